"""go-diskqueue itself beside our disk queue: each goes on with the files of the other."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from disk.queue_parts import contents, drain, make, message, messages, put
from peers.conftest import CACHE, HERE, install

MODULE = "github.com/nsqio/go-diskqueue@v1.1.0"


@pytest.fixture(scope="session")
def theirs() -> str:
    """The program that drives the library."""
    folder = install(
        CACHE / "go-diskqueue",
        ["go", "version"],
        ["cp", str(HERE / "diskqueue_peer.go"), "FOLDER/main.go"],
        ["sh", "-c", f"cd FOLDER && go mod init queue && go get {MODULE} && go build -o queue ."],
    )
    return str(folder / "queue")


def go(program: str, folder: Path, *script: str, size: int = 400, quiet: bool = True) -> list[bytes]:
    """What it took; its complaints are failures, unless it must not be `quiet`."""
    done = subprocess.run(
        [program, str(folder), "t", str(size), "2500", *script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert (not done.stderr) == quiet, done.stderr
    assert "nothing" not in done.stdout
    return [bytes.fromhex(line) for line in done.stdout.split() if len(line) > 20]


@pytest.mark.parametrize("size", [400, 4000])
@pytest.mark.parametrize("taken", [0, 5, 11, 29, 30])
def test_they_go_on_with_ours(theirs: str, tmp_path: Path, size: int, taken: int) -> None:
    queue = make(tmp_path, max_bytes_per_file=size)
    for n in range(30):
        put(queue, message(n))
    queue.take_payloads(taken)
    queue.done(taken)
    queue.close()
    assert go(theirs, tmp_path, f"take:{30 - taken}", "from:30", "put:9", "take:9", "close", size=size) == messages(
        taken, 39
    )
    assert not list(tmp_path.glob("*.bad"))
    assert drain(make(tmp_path)) == []


def test_they_read_what_we_left_when_killed(theirs: str, tmp_path: Path) -> None:
    """The library believes positions of a meta file only up to a point; what was flushed it finds."""
    queue = make(tmp_path, max_bytes_per_file=4000)
    put(queue, *messages(20))
    queue.sync()
    put(queue, *messages(20, 25))
    assert go(theirs, tmp_path, "take:25", "close", size=4000, quiet=False) == messages(25)


@pytest.mark.parametrize("size", [400, 4000])
def test_turn_about(theirs: str, tmp_path: Path, size: int) -> None:
    """Ours, theirs, ours: each takes seven and puts ten."""
    found: list[bytes] = []
    for turn in range(6):
        first = 10 * turn
        if turn % 2:
            found += go(theirs, tmp_path, f"from:{first}", "put:10", "take:7", "close", size=size)
        else:
            queue = make(tmp_path, max_bytes_per_file=size)
            for n in range(first, first + 10):
                put(queue, message(n))
            found += queue.take_payloads(7)
            queue.done(7)
            queue.close()
    assert found + drain(make(tmp_path)) == messages(60)


def test_the_same_work_leaves_the_same_bytes(theirs: str, tmp_path: Path) -> None:
    ours, others = tmp_path / "ours", tmp_path / "others"
    ours.mkdir()
    others.mkdir()
    queue = make(ours, max_bytes_per_file=1000)
    for n in range(300):
        put(queue, message(n))
    queue.take_payloads(123)
    queue.done(123)
    queue.close()
    go(theirs, others, "put:300", "take:123", "close", size=1000)
    assert contents(ours) == contents(others)
