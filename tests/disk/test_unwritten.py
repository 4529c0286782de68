"""What a failed flush leaves to the next start: which files are written once more, and what ends the note."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.disk import unwritten
from penstock.disk.files import Files
from penstock.errors import StoreError

HOUR_S = 3_600


class Watched(Files):
    """What is written, flushed and forgotten, in its order; flushes and reads may fail."""

    def __init__(self) -> None:
        self.done: list[tuple[str, str]] = []
        self.refuses = self.unreadable = ""

    def note(self, what: str, fd: int) -> str:
        name = Path(os.readlink(f"/proc/self/fd/{fd}")).name
        self.done.append((what, name))
        return name

    def read(self, fd: int, at: int, length: int) -> bytes:
        if self.note("read", fd) == self.unreadable:
            raise StoreError("Input/output error (by order of the test)")
        return super().read(fd, at, length)

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        self.note("write", fd)
        super().write(fd, at, data)

    def datasync(self, fd: int) -> None:
        if self.note("flush", fd) == self.refuses:
            raise StoreError("Input/output error (by order of the test)")
        super().datasync(fd)

    def of(self, name: str) -> list[str]:
        return [what for what, file in self.done if file == name]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("commitlog/0", "queues/t/t_1.queue", "lost+found/x", "live0", "lock", "old", "empty", "sparse"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode() * 1000)
    (tmp_path / "empty").write_bytes(b"")
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(64 << 20)
        file.seek(33 << 20)
        file.write(b"far")
    before = (tmp_path / "old").stat().st_mtime - 2 * HOUR_S
    os.utime(tmp_path / "old", (before, before))
    return tmp_path


AGAIN = ["flush", "read", "forget", "write", "flush"]


def test_what_was_written_lately_is_new_to_the_system(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, forget = Watched(), unwritten.forget
    monkeypatch.setattr(unwritten, "forget", lambda fd, at, length: (files.note("forget", fd), forget(fd, at, length)))
    unwritten.write_again(files, folder)
    assert files.done == []
    unwritten.note(files, folder)
    unwritten.note(files, folder)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    unwritten.write_again(files, folder)
    names = ("0", "t_1.queue", "x", "live0", "lock", "old", "empty", "sparse")
    assert {name: files.of(name) for name in names} == {
        "0": AGAIN, "t_1.queue": AGAIN, "sparse": AGAIN, "empty": ["flush", "flush"],
        "x": [], "live0": [], "lock": [], "old": [],
    }  # fmt: skip
    assert before.pop(folder / "unwritten") == b""
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_the_note_stays_while_the_disk_refuses(folder: Path) -> None:
    files = Watched()
    unwritten.note(files, folder)
    files.refuses = "t_1.queue"
    with pytest.raises(
        StoreError, match=r"t_1\.queue cannot be written once more after a failed flush: Input/output error"
    ):
        unwritten.write_again(files, folder)
    assert (folder / "unwritten").exists()
    files.refuses = ""
    unwritten.write_again(files, folder)
    assert not (folder / "unwritten").exists()


def test_a_bad_part_of_the_disk_does_not_end_a_start(folder: Path) -> None:
    files = Watched()
    unwritten.note(files, folder)
    files.unreadable = "0"
    unwritten.write_again(files, folder)
    assert files.of("0") == ["flush", "read", "flush"]
    assert not (folder / "unwritten").exists()


def test_a_flush_that_fails_says_so(tmp_path: Path) -> None:
    files = Files()
    told: list[int] = []
    files.when_unwritten.append(lambda: told.append(1))
    reading, writing = os.pipe()
    try:
        with pytest.raises(StoreError):
            files.datasync(reading)  # EINVAL: as good as any error
    finally:
        os.close(reading)
        os.close(writing)
    assert told == [1]


def test_a_disk_that_takes_no_name_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    unwritten.note(Files(), tmp_path / "gone")
    assert "not noted for the next start" in caplog.text


def test_what_a_broker_may_not_write_to_it_has_not_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that somebody laid beside it must not keep it from starting."""
    files = Watched()
    unwritten.note(files, folder)
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "sparse" and access(path, mode))
    unwritten.write_again(files, folder)
    assert files.of("sparse") == []
    assert files.of("0") == ["flush", "read", "write", "flush"]
