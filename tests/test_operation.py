"""The commands of the pages on operation, as an operator types them: against a running `penstock up` with traffic of both
protocols, from the page alone. `tests/test_deploy.py` reads them; here they are run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from fronts.nsq_peer import NsqPeer, mpub
from penstock.client.results import Reject
from polling import eventually

ROOT = Path(__file__).parents[1]
PAGES = ("production", "from-nsqd", "from-rocketmq", "troubleshooting")
# What ends with another code than 0 here, and why.
CODES = {
    "penstock message trace 42": 3,  # nobody traces here
    "penstock export --to nsqd /var/lib/nsqd-new --data /var/lib/penstock": 2,  # while the broker has the folder
}


def lines(page: str) -> Iterator[str]:
    text = (ROOT / f"docs/howto/{page}.md").read_text()
    for block in re.findall(r"^```sh op\n(.*?)^```", text, re.S | re.M):
        yield from block.splitlines()


@contextmanager
def up(folder: Path) -> Iterator[dict[str, Any]]:
    """`penstock up` on a folder, with its file of settings."""
    ports = [f"--{name}-port=0" for name in ("remoting", "nsq", "http", "registry", "lookup", "lookup-http")]
    command = [
        sys.executable, "-m", "penstock.cli", "up", "--data", str(folder / "data"), "--config", str(folder / "penstock.toml"),
        *ports,
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process, ExitStack() as stack:
        stack.callback(process.kill)  # whatever goes wrong, nobody waits for it
        assert process.stdout is not None
        yield json.loads(process.stdout.readline().removeprefix(b"ready "))
        process.terminate()
        assert process.wait(60) == 0


def fill(at: dict[str, Any]) -> None:
    """Orders that a group reads and gave up on, jobs of which a consumer has some, something that waits for its time."""

    def refuse(message: object) -> None:
        raise Reject("no such customer")

    registry = at["registry"]
    with penstock.Producer(registry) as producer, penstock.Admin(registry) as admin:
        for n in range(50):
            producer.send(
                penstock.Message("orders", b'{"price": %d}' % n, keys=(str(n),), properties={"price": str(n)})
            )
        later = time.time_ns() // 1_000_000 + 3_600_000
        producer.send(penstock.Message("orders", b"later", keys=("42",), deliver_at_ms=later))
        producer.send(penstock.Message("few", b"x"))
        with penstock.PushConsumer("billing", registry, listener=refuse, start="first") as consumer:
            consumer.subscribe("few")
            eventually(lambda: "%DLQ%billing" in admin.topics(system=True))
        with penstock.PullConsumer(registry, group="billing") as reader:
            reader.commit(dict.fromkeys(reader.queues("orders"), 0))
        eventually(lambda: admin.delayed() != [])


def run(line: str, folder: Path, at: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    words = shlex.split(line, comments=True)
    places = {
        "/etc/penstock/penstock.toml": folder / "penstock.toml", "/var/lib/penstock": folder / "data",
        "/var/lib/nsqd-new": folder / "nsqd",
    }  # fmt: skip
    words = [str(places.get(word, word)) for word in words[1:]]
    environ = {"PENSTOCK_REGISTRY": at.get("registry", ""), "PENSTOCK_HTTP": at.get("http", ""), "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words], env={**os.environ, **environ}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip


def test_the_pages_from_top_to_bottom(tmp_path: Path) -> None:
    (tmp_path / "penstock.toml").write_text("[broker]\nfile_reserved_time_hours = 48\n")
    stopped, reloaded = list[str](), list[str]()
    with up(tmp_path) as at:
        fill(at)
        peer = NsqPeer(at["nsq"])
        peer.subscribe(b"jobs", b"mail", 2)
        peer.send(mpub(b"jobs", *(b"job %d" % n for n in range(40))))
        (tmp_path / "penstock.toml").write_text("[broker]\nfile_reserved_time_hours = 24\n")
        told: dict[str, str] = {}
        for page in PAGES:
            for line in lines(page):
                if line.startswith("penstock store verify"):
                    stopped.append(line)
                    continue
                done = run(line, tmp_path, at)
                assert done.returncode == CODES.get(line, 0), (page, line, done.stdout, done.stderr)
                assert "Traceback" not in done.stderr, (page, line, done.stderr)
                told[line] = done.stdout
                reloaded += [done.stdout] if line.endswith("reload") else []
        peer.close()
    assert re.search(r"file_reserved_time_hours .*24", reloaded[0])
    assert "billing" in told["penstock group lag billing"]
    assert "price" in told["penstock message find orders 42"]
    assert len(told["penstock tail jobs --channel mail --count 10"].splitlines()) == 10
    assert "later" in told["penstock delayed find --id 42"]
    assert "no such customer" in told["penstock dlq show billing"]
    for line in [*stopped, *(line for line in CODES if "export" in line)]:
        done = run(line, tmp_path, {})
        assert done.returncode == 0, (line, done.stderr)
    assert (tmp_path / "nsqd" / "nsqd.dat").is_file()


def test_a_copy_of_a_stopped_folder_is_a_restore(tmp_path: Path) -> None:
    """The page's backup: a slave or a stopped broker's folder copied, started with other ports, and all is there."""
    (tmp_path / "penstock.toml").write_text("")
    with up(tmp_path) as at:
        fill(at)
    restored = tmp_path / "restored"
    shutil.copytree(tmp_path / "data", restored / "data")
    (restored / "penstock.toml").write_text("")
    with up(restored) as at, penstock.Admin(at["registry"]) as admin:
        assert sum(one.max_offset for one in admin.topic_stats("orders").values()) == 50
        assert len(admin.delayed()) == 1
        assert "few" in {row.topic for row in admin.group_stats("billing")}


@pytest.mark.parametrize("page", PAGES)
def test_each_page_has_commands(page: str) -> None:
    assert list(lines(page))
