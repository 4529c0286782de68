"""The suites of foreign NSQ clients, unchanged, each against our `nsqd` and `nsqlookupd`, which they find by PATH.

With NSQD=<path of a real nsqd> in the environment they are run against that and the nsqlookupd beside it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from peers.conftest import CACHE, HERE, Lines, Program, install
from penstock.testing import Broker

GNSQ = "gnsq==1.0.2"
NSQJS = "nsqjs@0.13.0"
GO_NSQ = "github.com/nsqio/go-nsq@v1.1.0"
SMALL = ["pynsq==0.9.1", "ansq==0.3.0"]
SCRIPTS = Path(os.environ["NSQD"]).parent if os.environ.get("NSQD") else Path(sys.executable).parent


def pip(*packages: str) -> list[list[str]]:
    quiet = ["--quiet", "--disable-pip-version-check"]
    return [
        [sys.executable, "-m", "venv", "FOLDER"],
        ["FOLDER/bin/python", "-m", "pip", "install", *quiet, *packages],
    ]


def run(command: list[str], cwd: Path, data: Path, *, daemons: str = "-", timeout_s: float = 180) -> str:
    """What a suite prints. It runs in a network of its own, since most want fixed ports."""
    if not (SCRIPTS / "nsqd").exists():
        pytest.skip("the commands nsqd and nsqlookupd are not installed")
    alone = ["unshare", "-rn", "true"]
    if shutil.which("unshare") is None or subprocess.run(alone, capture_output=True).returncode:
        pytest.skip("this machine gives no network of one's own")
    words = ["unshare", "-rn", "sh", str(HERE / "nsq_suite.sh"), str(data), daemons, *command]
    environment = {**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}"}
    done = subprocess.run(
        words, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=timeout_s
    )
    return done.stdout


def test_gnsq(tmp_path: Path) -> None:
    source = ["--no-deps", "--no-binary", ":all:", "--dest", "FOLDER", GNSQ]
    folder = install(
        CACHE / GNSQ,
        *pip(GNSQ, "pytest>=8", "python-snappy", "setuptools"),
        ["FOLDER/bin/python", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", *source],
        ["tar", "-xf", "FOLDER/gnsq-1.0.2.tar.gz", "-C", "FOLDER"],
    )
    python = str(folder / "bin" / "python")
    own = ["-c", os.devnull, "--rootdir=.", "-p", "no:cacheprovider"]  # not the settings of our suite
    told = run([python, "-m", "pytest", "-q", *own, "tests"], folder / "gnsq-1.0.2", tmp_path)
    assert re.search(r"^108 passed", told, re.MULTILINE), told[-4000:]


def test_nsqjs(tmp_path: Path) -> None:
    tools = ["mocha@9", "should@13", "sinon@11", "nock@13", "temp@0.9", "p-event@4", "async-retry@1.3", "debug@4"]
    folder = install(
        CACHE / NSQJS,
        ["npm", "install", "--prefix", "FOLDER", "--no-audit", "--no-fund", "--silent", NSQJS, *tools],
        ["node", "--version"],
    )
    mocha = str(folder / "node_modules" / ".bin" / "mocha")
    told = run([mocha, "-R", "dot", "--exit"], folder / "node_modules" / "nsqjs", tmp_path)
    assert "171 passing" in told, told[-4000:]
    assert "failing" not in told


def test_go_nsq(tmp_path: Path) -> None:
    copy = f'cp -r "$(go env GOMODCACHE)/{GO_NSQ}" FOLDER/source && chmod -R u+w FOLDER/source'
    folder = install(
        CACHE / "go-nsq",
        ["go", "version"],
        ["sh", "-c", f"cd FOLDER && go mod init suite && go get {GO_NSQ}"],
        ["sh", "-c", copy],
        ["sh", "-c", "cd FOLDER/source && go test -c -o ../suite ."],
    )
    told = run([str(folder / "suite"), "-test.v", "-test.timeout", "120s"], folder / "source", tmp_path, daemons="nsqd")
    assert len(re.findall(r"^--- PASS", told, re.MULTILINE)) == 24, told[-6000:]
    assert "--- FAIL" not in told


@pytest.mark.parametrize("package", ["pynsq", "ansq"])
def test_published_read_and_given_back(package: str, broker: Broker, group: str) -> None:
    folder = install(CACHE / "nsq-small", *pip(*SMALL))
    client = Program([str(folder / "bin" / "python"), str(HERE / "nsq_client.py")], {}, broker.nsq)
    told: Lines = client.run(package, f"{group}.{package}")
    bodies = sorted(line["body"] for line in told)
    assert bodies == sorted([*(f"one {n}" for n in range(10)), "one 3", "two 0", "two 1"])
    assert sorted(line["attempts"] for line in told if line["body"] == "one 3") == [1, 2]
