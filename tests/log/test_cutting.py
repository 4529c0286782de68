"""Cutting the end of a log: what is kept, what the log is afterwards, and a process that ends at any call on the way."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from lying_disk import LyingFiles
from store_parts import bodies, make, put, work

from penstock.disk.files import Files
from penstock.errors import StoreError
from penstock.log import cutting
from penstock.log.store import LogStore
from penstock.log.verify import verify

SEGMENT = 1 << 14


def fill(store: LogStore, count: int, seed: int = 1) -> list[int]:
    """So many messages in two queues; where each begins."""
    rng = random.Random(seed)
    places = []
    for number in range(count):
        draft = put(store, b"%d " % number + rng.randbytes(rng.randrange(900)), queue_id=number % 2,
                    properties=b"KEYS\x01k%d" % number)  # fmt: skip
        places.append(draft.physical)
    return places


def log_of(folder: Path) -> bytes:
    found = b""
    for path in sorted((folder / "commitlog").iterdir()):
        found = found.ljust(int(path.name), b"\0") + path.read_bytes()
    return found.rstrip(b"\0")


def opened(folder: Path, files: Files | None = None) -> LogStore:
    store = make(folder, files=files)
    store.follow(True)
    store.open()
    return store


def made(folder: Path, count: int, close: str) -> list[int]:
    """A log; ended cleanly, or as kill -9 ends it, before or after a checkpoint."""
    store = make(folder)
    store.follow(False)
    store.open()
    places = fill(store, count)
    if close != "killed":
        work(store)
    end = store.end_position
    store.close(clean=close == "clean")
    return [*places, end]


@pytest.mark.parametrize("close", ["clean", "killed", "killed later"])
@pytest.mark.parametrize("at", [1, 40, 79, 119])
def test_the_log_ends_there_and_the_tail_is_kept(tmp_path: Path, at: int, close: str) -> None:
    places = made(tmp_path / "d", 120, close)
    before, to = log_of(tmp_path / "d"), places[at]
    cutting.intend(Files(), tmp_path / "d", to, places[-1], 7, "a reason")
    store = opened(tmp_path / "d")
    assert store.end_position == to
    assert len(bodies(store)) == (at + 1) // 2
    assert len(bodies(store, queue_id=1)) == at // 2
    assert not store.damaged
    store.close()
    assert log_of(tmp_path / "d") == before[:to]
    [(folder, manifest)] = cutting.cut_tails(tmp_path / "d")
    pieces = [(folder / str(piece["file"])).read_bytes() for piece in manifest["pieces"]]
    assert [f"{crc32(piece):08x}" for piece in pieces] == [piece["crc32"] for piece in manifest["pieces"]]
    assert b"".join(pieces) == before[to:].ljust(places[-1] - to, b"\0")
    assert (manifest["position"], manifest["end"], manifest["epoch"], manifest["why"]) == (
        to,
        places[-1],
        7,
        "a reason",
    )
    report = verify(tmp_path / "d")
    assert report.ok, report.findings
    assert report.entries == report.records == at


def test_the_log_grows_over_the_cut_and_gives_the_offsets_again(tmp_path: Path) -> None:
    places = made(tmp_path / "d", 100, "clean")
    cutting.intend(Files(), tmp_path / "d", places[30], places[-1], 1, "a reason")
    store = opened(tmp_path / "d")
    store.follow(False)
    fill(store, 100, seed=2)
    work(store)
    assert store.queue(b"T", 0).max_offset == 15 + 50
    store.close()
    report = verify(tmp_path / "d")
    assert report.ok, report.findings
    assert report.records == 130


def test_a_second_cut_at_the_same_place_keeps_both_tails(tmp_path: Path) -> None:
    places = made(tmp_path / "d", 50, "clean")
    for _ in range(2):
        cutting.intend(Files(), tmp_path / "d", places[20], places[-1], 1, "a reason")
        store = opened(tmp_path / "d")
        store.follow(False)
        fill(store, 30, seed=1)
        places[-1] = store.end_position
        store.close()
    assert len(list(cutting.cut_tails(tmp_path / "d"))) == 2


@pytest.mark.parametrize(
    "text", ["", "{}", '{"to": 5}', "no json", '{"to": 9, "end": 5, "folder": "log-9-1", "epoch": 1}']
)
def test_an_intent_that_cannot_be_read_stops_the_start(tmp_path: Path, text: str) -> None:
    made(tmp_path / "d", 10, "clean")
    before = log_of(tmp_path / "d")
    (tmp_path / "d" / "ha").mkdir()
    (tmp_path / "d" / cutting.INTENT).write_text(text)
    with pytest.raises(StoreError, match=r"cut\.json"):
        opened(tmp_path / "d")
    assert log_of(tmp_path / "d") == before


class Killed(BaseException):
    """The process ends here."""


CALLS = ("open", "allocate", "grow", "map", "write", "datasync", "sync_folder", "rename", "unlink", "make_folder")


class KilledAt(LyingFiles):
    """The n-th call does not come to be: the process has ended."""

    def __init__(self, root: Path, n: int) -> None:
        super().__init__(root)
        self.left = n
        self.held: set[int] = set()

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        fd = super().open(path, create=create, writable=writable)
        self.held.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.held.discard(fd)
        super().close(fd)

    def let_go(self) -> None:
        """As the system closes what an ended process has open."""
        for fd in list(self.held):
            self.close(fd)

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in CALLS:
            self.left -= 1
            if self.left <= 0:

                def end(*args: object, **more: object) -> None:
                    raise Killed

                return end
        return found


@pytest.mark.parametrize("close", ["clean", "killed"])
def test_a_process_may_end_at_any_call(tmp_path: Path, close: str) -> None:
    places = made(tmp_path / "d", 60, close)
    before, to = log_of(tmp_path / "d"), places[25]
    tail = before[to:].ljust(places[-1] - to, b"\0")
    cutting.intend(Files(), tmp_path / "d", to, places[-1], 3, "a reason")
    n, ends = 1, 0
    while not ends:
        folder = tmp_path / f"n{n}"
        shutil.copytree(tmp_path / "d", folder)
        files = KilledAt(folder, n)
        try:
            opened(folder, files).close(clean=False)
            ends = n
        except (Killed, SystemError):
            files.let_go()
        for _ in range(2):  # the second start changes nothing
            store = opened(folder)
            assert store.end_position == to, n
            assert len(bodies(store)) == 13, n
            store.close()
            assert log_of(folder) == before[:to], n
            [(kept, manifest)] = cutting.cut_tails(folder)
            assert b"".join((kept / str(piece["file"])).read_bytes() for piece in manifest["pieces"]) == tail, n
            assert not (folder / cutting.INTENT).exists()
        shutil.rmtree(folder)
        n += 1 if n < 40 else 7
    assert ends > 60


def test_what_is_no_tail_is_passed_over(tmp_path: Path) -> None:
    lost = tmp_path / "lost+found"
    for name, text in (("log-1-1", "{"), ("log-2-1", json.dumps({"position": "x"})), ("log-3-1", None)):
        (lost / name).mkdir(parents=True)
        if text is not None:
            (lost / name / cutting.MANIFEST).write_text(text)
    assert list(cutting.cut_tails(tmp_path)) == []
