"""`penstock store`: a good folder, a bad one, and a look into a file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from store_parts import make, put

from penstock.cli.main import main
from penstock.cli.store import store as command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = make(tmp_path)
    store.open()
    for n in range(20):
        put(store, b"message %d" % n)
    store.close()
    return tmp_path


def test_a_good_folder_and_a_bad_one(folder: Path) -> None:
    good = CliRunner().invoke(command, ["verify", str(folder)])
    assert (good.exit_code, good.output.splitlines()[-1]) == (0, "all is well")
    segment = folder / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    data[500] ^= 1
    segment.write_bytes(data)
    bad = CliRunner().invoke(command, ["verify", str(folder)])
    assert bad.exit_code == 1
    assert "NOT well" in bad.output
    report = json.loads(CliRunner().invoke(command, ["verify", "--json", str(folder)]).output)
    assert report["findings"]


@pytest.mark.parametrize("more", [(), ("--json",)])
@pytest.mark.parametrize("bad", [False, True])
def test_what_is_wrong_is_the_exit_code_though_nobody_reads_it(folder: Path, more: tuple[str, ...], bad: bool) -> None:
    """As with `| grep -q`, where it was 0."""
    if bad:
        segment = folder / "commitlog" / f"{0:020d}"
        data = bytearray(segment.read_bytes())
        data[500] ^= 1
        segment.write_bytes(data)
    words = [sys.executable, "-m", "penstock.cli", "store", "verify", str(folder), *more]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as done:
        assert done.stdout is not None
        done.stdout.close()
        assert done.stderr is not None
        assert (done.stderr.read(), done.wait()) == (b"", int(bad))


def test_a_file_s_name_does_nothing_to_a_terminal(folder: Path) -> None:
    topic = folder / "consumequeue" / "T"
    (folder / "consumequeue" / "\x1b[2J").mkdir()
    (topic / "0").rename(folder / "consumequeue" / "\x1b[2J" / "0")
    told = CliRunner().invoke(command, ["verify", str(folder)], color=True)
    assert "\\x1b[2J" in told.output
    assert "\x1b" not in told.output


def test_a_look_into_a_file(folder: Path) -> None:
    told = CliRunner().invoke(command, ["inspect", "--limit", "3", str(folder / "commitlog" / f"{0:020d}")])
    assert [json.loads(line)["kind"] for line in told.output.splitlines()] == ["record"] * 3
    assert CliRunner().invoke(command, ["inspect", str(folder / "nothing")]).exit_code == 2


def test_a_file_that_cannot_be_read_is_named() -> None:
    """What lies at address 0 gives EIO, as a bad part of a disk does."""
    told = CliRunner().invoke(main, ["store", "inspect", "/proc/self/mem"])
    assert told.exit_code == 1
    assert "/proc/self/mem cannot be read to its end: Input/output error" in told.output
    assert "A part of the disk is bad" in told.output
