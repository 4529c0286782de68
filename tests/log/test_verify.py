"""verify says yes to a good store and names what is wrong with a bad one; inspect reads every file."""

from __future__ import annotations

import errno
import json
import mmap
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from store_parts import make, put, work

from penstock.errors import PenstockError, StoreError
from penstock.log.commitlog import CommitLog
from penstock.log.verify import _Verifier, inspect, verify


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = make(tmp_path / "s")
    store.open()
    for n in range(200):
        put(store, b"m%d" % n, queue_id=n % 2, properties=b"TAGS\x01t\x02KEYS\x01k%d" % n)
    work(store)
    store.close()
    return tmp_path / "s"


def test_a_good_store(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    report = verify(folder, lambda done, total: seen.append((done, total)))
    assert report.ok
    assert (report.records, report.queues, report.entries, report.index_entries) == (200, 2, 200, 200)
    assert report.findings == []
    assert seen[-1] == (report.bytes, report.bytes)
    assert json.loads(json.dumps(report.as_dict()))["ok"] is True
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    verify(folder)
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_flipped_bit_is_named(folder: Path) -> None:
    path = folder / "commitlog" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    report = verify(folder)
    assert not report.ok
    (finding,) = [one for one in report.findings if one.level == "damage"]
    assert finding.file == "commitlog/00000000000000000000"
    assert finding.position <= 5000 < finding.end
    kinds = [one["kind"] for one in inspect(path)]
    assert kinds.count("damage") == 1
    assert report.records == 199


class BadDisk:
    """Reads of these pages of a file fail, as on a disk with a bad part. A mapping of them would end the process, and is none."""

    def __init__(self, path: Path, begin: int, end: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path, self.inode, self.bad = path, path.stat().st_ino, range(begin, end)
        self.read, self.map = os.pread, mmap.mmap
        monkeypatch.setattr(os, "pread", self.pread)
        monkeypatch.setattr(mmap, "mmap", self.mmap)

    def pread(self, fd: int, length: int, at: int) -> bytes:
        if os.fstat(fd).st_ino == self.inode and at < self.bad.stop and self.bad.start < at + length:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self.read(fd, length, at)

    def mmap(self, fd: int, size: int, *args: Any, **kwargs: Any) -> mmap.mmap:
        if fd >= 0:
            assert os.fstat(fd).st_ino != self.inode, "SIGBUS"
        return self.map(fd, size, *args, **kwargs)


def test_a_pipe_among_the_index_files_is_named_and_not_opened(folder: Path) -> None:
    os.mkfifo(folder / "index" / "20200101000000000")
    report = verify(folder)
    assert [(one.level, one.file, one.why) for one in report.findings if "index" in one.file] == [
        ("derived", "index/20200101000000000", "cannot be read: it is no file")
    ]


@pytest.mark.parametrize("name", ["commitlog", "checksums", "consumequeue/T/1"])
def test_a_part_of_the_disk_that_cannot_be_read_is_named(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / name / "00000000000000000000"
    begin = 8192 if name == "commitlog" else 0
    end = min(begin + 4096, path.stat().st_size)
    BadDisk(path, begin, end, monkeypatch)
    report = verify(folder)
    assert not report.ok
    bad = [one for one in report.findings if "cannot be read" in one.why]
    assert [(one.file, one.position, one.end) for one in bad] == [(f"{name}/{path.name}", begin, end)]
    if name == "commitlog":
        (damage,) = [one for one in report.findings if one.level == "damage" and one not in bad]
        assert damage.position < end
        assert damage.end > begin
        assert 0 < report.records < 200
    else:
        assert report.records == 200
    assert list(inspect(path))


@pytest.mark.parametrize("name", ["consumequeue/T/1", "index", "checksums", "checkpoint"])
def test_derived_files(folder: Path, name: str) -> None:
    path = folder / name
    files = [path] if path.is_file() else sorted(path.iterdir())
    noise = random.Random(name)
    for file in files:
        file.write_bytes(noise.randbytes(file.stat().st_size))
    report = verify(folder)
    assert report.findings
    assert all(finding.file.startswith(name) for finding in report.findings)
    assert report.ok == (name in ("checksums", "checkpoint"))  # without those the log is still whole
    if path.is_dir():
        shutil.rmtree(path)
        assert bool(verify(folder).findings) == (name != "index")


def test_every_file_can_be_looked_into(folder: Path) -> None:
    store = make(folder)
    store.open()
    put(store, b"now")
    seen = set()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        pieces = list(inspect(path))
        json.dumps(pieces)
        seen |= {piece["kind"] for piece in pieces}
    kinds = "record blank free entry header key sum slot times live table text"
    assert seen == set(kinds.split())
    store.close()
    records = [piece for piece in inspect(folder / "commitlog" / "00000000000000000000") if piece["kind"] == "record"]
    assert (records[1]["topic"], records[1]["queueId"], records[1]["properties"]) == (
        "T",
        1,
        {"TAGS": "t", "KEYS": "k1"},
    )


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no log store"):
        verify(tmp_path)
    with pytest.raises(StoreError):
        inspect(tmp_path / "nothing")
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(StoreError):
        inspect(tmp_path / "x.txt")


@pytest.mark.parametrize("seed", range(30))
def test_any_bytes(folder: Path, seed: int) -> None:
    noise = random.Random(seed)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        data = bytearray(path.read_bytes())
        for _ in range(noise.randrange(20) if data else 0):
            data[noise.randrange(len(data))] = noise.randrange(256)
        path.write_bytes(data[: len(data) if noise.random() < 0.8 else noise.randrange(len(data) + 1)])
    verify(folder)
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        try:
            for piece in inspect(path):
                json.dumps(piece)
        except PenstockError:
            continue


def test_a_page_lost_behind_the_durable_position_is_no_damage(tmp_path: Path) -> None:
    """A power cut may lose a page and keep a later one; before the start, and with it, nothing durable is missing."""
    store = make(tmp_path / "s")
    store.open()
    for n in range(20):
        put(store, b"durable %d" % n)
    work(store)
    durable = store.end_position
    for n in range(20):
        put(store, b"torn %d" % n + bytes(100))
    folder = tmp_path / "after"
    shutil.copytree(tmp_path / "s", folder)
    store.close()
    path = folder / "commitlog" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    data[durable + 500 : durable + 600] = bytes(100)
    path.write_bytes(data)
    report = verify(folder)
    assert [one.level for one in report.findings if one.level == "damage"] == []
    (torn,) = [one for one in report.findings if "torn" in one.why and one.level == "note" and one.end > one.position]
    assert durable <= torn.position
    data[300] ^= 1  # what is durable is damage as ever
    path.write_bytes(data)
    assert any(one.level == "damage" for one in verify(folder).findings)


def test_what_a_broker_stores_meanwhile_is_no_fault(tmp_path: Path) -> None:
    """Its queues were read before the log, and each record that came in between was said not to be in its queue."""
    store = make(tmp_path / "s")
    store.open()
    for n in range(200):
        put(store, b"m%d" % n, queue_id=n % 2, properties=b"TAGS\x01t\x02KEYS\x01k%d" % n)

    class Meanwhile(_Verifier):
        def _walk(self, log: CommitLog) -> None:
            for n in range(200):
                put(store, b"more", queue_id=n % 3)  # a third queue is new
            super()._walk(log)
            put(store, b"behind the end that was found")
            work(store)

    report = Meanwhile(tmp_path / "s", lambda done, total: None).run()
    assert report.findings == []
    assert report.queues == 3
    assert report.records == report.entries > 250  # and no segments that were made meanwhile
    store.close()


def test_what_is_in_no_queue_is_said_of_a_folder_in_use_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.log.verify._LATE_MAX", 7)
    store = make(tmp_path / "s")
    store.open()
    for n in range(20):
        put(store, b"m%d" % n, queue_id=n % 2)
    (path,) = (tmp_path / "s" / "consumequeue" / "T" / "1").iterdir()
    path.write_bytes(bytes(path.stat().st_size))
    report = verify(tmp_path / "s")
    assert len([one for one in report.findings if "does not lead to its record" in one.why]) == 10
    assert not report.ok
    store.close(False)


def test_an_entry_that_leads_behind_the_log_of_a_killed_broker_is_said(tmp_path: Path) -> None:
    store = make(tmp_path / "s")
    store.open()
    for n in range(10):
        put(store, b"m%d" % n)
    end = store.end_position
    store.close(False)
    (path,) = (tmp_path / "s" / "consumequeue" / "T" / "0").iterdir()
    data = bytearray(path.read_bytes())
    data[200:220] = (end + 500).to_bytes(8) + (100).to_bytes(4) + bytes(8)
    path.write_bytes(data)
    assert (tmp_path / "s" / "abort").exists()
    assert [one.why for one in verify(tmp_path / "s").findings] == ["1 entries lead to no record"]


@pytest.mark.parametrize("name", ["queues/T/T_1.queue", "queues/T/c.cursor"])
def test_a_pipe_among_the_files_of_queue_topics(folder: Path, name: str) -> None:
    """It was opened, and waited for a writer for ever."""
    (folder / "queues" / "T").mkdir(parents=True)
    os.mkfifo(folder / name)
    (finding,) = verify(folder).findings
    assert (finding.file, finding.why) == (name, "cannot be read: it is no file")
