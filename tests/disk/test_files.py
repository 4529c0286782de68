"""Files, tables and segments: the ground everything stands on."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import re
import resource
import subprocess
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from penstock.disk import files as files_module
from penstock.disk.files import (
    PAGES_BYTES,
    PARTS_MAX,
    TOGETHER_MIN,
    Files,
    advise,
    flush_together,
    keep_spares,
    last_byte,
    make_pages,
    number_names,
    wipe,
)
from penstock.disk.segments import segment_name
from penstock.errors import DiskFull, NoDescriptor, StoreError


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    files = Files()
    folder = os.open(tmp_path, os.O_RDONLY)  # EISDIR, for want of a bad disk
    try:
        with pytest.raises(StoreError, match=re.escape(f"a read of {tmp_path} at 7: ")):
            files.read(folder, 7, 1)
    finally:
        os.close(folder)
    with pytest.raises(StoreError, match="a read of descriptor -1 at 0: "):
        files.read(-1, 0, 1)


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "there"
    path.touch()
    files, fd = Files(), os.open(path, os.O_RDONLY)
    try:
        for write in (lambda: files.write(fd, 7, b"x"), lambda: files.write_parts(fd, 7, [b"x", b"y"])):
            with pytest.raises(StoreError, match=re.escape(f"a write to {path}: Bad file descriptor")):
                write()
    finally:
        os.close(fd)
    end, other = os.pipe()
    try:
        with pytest.raises(StoreError, match=r"a flush of pipe:\[\d+\]: Invalid argument"):
            files.datasync(end)
    finally:
        os.close(end)
        os.close(other)


def test_a_short_write_goes_on_and_one_of_nothing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, write = Files(), os.pwrite
    fd = files.open(tmp_path / "f", create=True)
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: write(fd, data[:3], at))
    files.write(fd, 2, b"0123456789")
    assert (tmp_path / "f").read_bytes() == b"\0\x000123456789"
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    with pytest.raises(StoreError, match="wrote nothing"):
        files.write(fd, 0, b"x")
    files.close(fd)


def test_a_file_is_written_at_its_places(tmp_path: Path) -> None:
    files = Files()
    fd = files.open(tmp_path / "f", create=True)
    files.allocate(fd, 0, 100)
    files.write(fd, 98, b"abcd")
    assert files.size(fd) == 102
    assert files.read(fd, 97, 10) == b"\0abcd"
    view = files.map(fd, 102)
    view[0:2] = b"xy"
    files.datasync(fd)
    assert files.read(fd, 0, 2) == b"xy"
    files.close(fd)


def test_failures_are_ours(tmp_path: Path) -> None:
    files = Files()
    with pytest.raises(StoreError):
        files.open(tmp_path / "no" / "file")
    fd = files.open(tmp_path / "f", create=True)
    with pytest.raises(DiskFull):
        files.allocate(fd, 0, 1 << 55)
    with pytest.raises(StoreError):
        files.map(fd, 1000)
    files.close(fd)
    files.unlink(tmp_path / "nothing")
    assert files.names(tmp_path / "nothing") == []
    with pytest.raises(StoreError):
        files.rename(tmp_path / "nothing", tmp_path / "x")


@pytest.mark.parametrize("writable", [False, True])
def test_a_named_pipe_is_no_file_and_is_not_waited_for(tmp_path: Path, writable: bool) -> None:
    """A start that opened one to read it, as of the history, never ended."""
    os.mkfifo(tmp_path / "history.bin")
    held = os.open(tmp_path / "history.bin", os.O_RDWR)  # with a writer the opening does not wait
    with pytest.raises(StoreError, match=r"history\.bin is no file"):
        Files().open(tmp_path / "history.bin", create=writable, writable=writable)
    os.close(held)


def test_a_folder_below_a_link_that_leads_nowhere(tmp_path: Path) -> None:
    """It was tried for ever: a start ended with a traceback of a thousand calls."""
    (tmp_path / "link").symlink_to(tmp_path / "not mounted")
    with pytest.raises(StoreError, match="mount it"):
        Files().make_folder(tmp_path / "link" / "topic" / "0")


def test_a_link_that_leads_nowhere_is_as_old_as_it_is(tmp_path: Path) -> None:
    """One in lost+found ended each sweep of it."""
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    os.utime(tmp_path / "link", (70, 70), follow_symlinks=False)
    assert Files().modified_ms(tmp_path / "link") == 70_000


def test_a_folder_that_takes_no_folder() -> None:
    with pytest.raises(StoreError, match="/proc/nothing: No such file"):  # it was a RecursionError
        Files().make_folder(Path("/proc/nothing/here"))


PAGE = mmap.PAGESIZE


@pytest.mark.parametrize(
    ("size", "at", "length", "taken"),
    [
        (3 * PAGE, 0, 1, (0, PAGE)),
        (3 * PAGE, PAGE + 7, PAGE, (PAGE, 3 * PAGE)),
        (2 * PAGE + 99, 2 * PAGE + 67, 32, (2 * PAGE, 2 * PAGE + 99)),  # no page is longer than its file
        (0, 10, 20, (0, 30)),
    ],
)
def test_room_is_taken_for_whole_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, at: int, length: int, taken: tuple[int, int]
) -> None:
    """Where blocks are smaller than pages, a page of which one block is missing ends the process that writes to it."""
    files, allocate = Files(), os.posix_fallocate
    asked: list[tuple[int, int]] = []

    def noted(fd: int, begin: int, count: int) -> None:
        asked.append((begin, begin + count))
        allocate(fd, begin, count)

    fd = files.open(tmp_path / "f", create=True)
    files.grow(fd, size)
    monkeypatch.setattr(os, "posix_fallocate", noted)
    files.allocate(fd, at, length)
    assert asked == [taken]
    assert files.size(fd) == max(size, at + length)
    files.close(fd)


def test_wiping_touches_only_what_was_written(tmp_path: Path) -> None:
    files = Files()
    fd = files.open(tmp_path / "f", create=True)
    files.allocate(fd, 0, 1 << 20)
    view = files.map(fd, 1 << 20)
    view[10:20] = b"0123456789"
    view[300_000:300_003] = b"abc"
    assert wipe(files, tmp_path / "f", view, 15, 1 << 20) == 300_003
    assert view[:20] == bytes(10) + b"01234" + bytes(5)
    assert view[20:].count(0) == (1 << 20) - 20
    assert wipe(files, tmp_path / "f", view, 15, 1 << 20) == 15
    files.close(fd)


@pytest.mark.parametrize(("at", "end"), [(0, 1 << 20), (5000, 200_001), (PAGES_BYTES, 2 * PAGES_BYTES), (9000, 9001)])
def test_pages_are_made_where_nothing_was_written(tmp_path: Path, at: int, end: int) -> None:
    files = Files()
    fd = files.open(tmp_path / "f", create=True)
    files.allocate(fd, 0, 1 << 20)
    view = files.map(fd, 1 << 20, scattered=True)
    view[at : at + 1] = b"x"  # its page is there
    make_pages(files, fd, at + 1, end)
    found = files.data_ranges(fd, 0, 1 << 20)
    first = at // 4096 * 4096
    assert found == [(first, max(first + 4096, (end + 4095) // 4096 * 4096))]
    assert view[at] == ord("x")
    assert view[:].count(0) == (1 << 20) - 1
    view[end - 1 : end] = b"y"
    make_pages(files, fd, at + 1, 1 << 20)  # not over what is there
    assert view[end - 1] == ord("y")
    files.close(fd)


def test_pages_that_the_disk_refuses_come_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files()
    fd = files.open(tmp_path / "f", create=True)
    files.allocate(fd, 0, 1 << 20)
    with monkeypatch.context() as patched:

        def refused(*_: object) -> int:
            raise OSError(errno.ENOSPC, "no")

        patched.setattr(os, "pwrite", refused)
        make_pages(files, fd, 0, 1 << 20)
    assert files.data_ranges(fd, 0, 1 << 20) == []
    view = files.map(fd, 1 << 20)
    view[70_000:70_001] = b"x"
    assert files.read(fd, 70_000, 1) == b"x"
    files.close(fd)


def test_names_of_segments() -> None:
    names = ["00000000000000000010", "x", "1", "00000000000000000000", "0000000000000000000²"]
    assert list(number_names(names)) == [0, 10]
    assert list(number_names([segment_name((1 << 62) - 1024), segment_name(1 << 62), "9" * 20])) == [(1 << 62) - 1024]
    assert segment_name(1 << 30) == "00000000001073741824"


def test_disk_use_is_counted_as_df_counts(tmp_path: Path) -> None:
    used, total = Files().usage(tmp_path)
    told = subprocess.run(
        ["df", "--output=used,avail", "-B1", str(tmp_path)], capture_output=True, text=True, check=True
    )
    df_used, df_available = map(int, told.stdout.split("\n")[1].split())
    assert abs(used - df_used) < 64 << 20
    assert abs(total - df_used - df_available) < 64 << 20


@pytest.mark.parametrize("most", [0, 1, 3, 4, 5, 9, 10, 11])
def test_parts_go_on_behind_a_short_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    files = Files()
    fd = files.open(tmp_path / "f", create=True)

    def short(fd: int, parts: list[bytes], at: int) -> int:
        return os.pwrite(fd, b"".join(parts)[:most], at)

    monkeypatch.setattr(os, "pwritev", short)
    files.write_parts(fd, 3, [b"head", memoryview(b"bodies"), b"\0"])
    files.write_parts(fd, 14, [bytearray(b"more")])
    assert (tmp_path / "f").read_bytes() == b"\0\0\0headbodies\0more"
    files.close(fd)


def test_more_parts_than_one_call_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files()
    fd = files.open(tmp_path / "f", create=True)
    calls, pwritev = [], os.pwritev

    def counted(fd: int, parts: list[bytes], at: int) -> int:
        calls.append(len(parts))
        return pwritev(fd, parts, at)

    monkeypatch.setattr(os, "pwritev", counted)
    parts = [b"%d," % n for n in range(2 * PARTS_MAX + 5)]
    files.write_parts(fd, 1, parts)
    assert (tmp_path / "f").read_bytes() == b"\0" + b"".join(parts)
    assert calls == [PARTS_MAX, PARTS_MAX, 5]
    files.close(fd)


def test_parts_that_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files()
    fd = files.open(tmp_path / "f", create=True)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    with pytest.raises(DiskFull):
        files.write_parts(fd, 0, [b"x"])
    files.close(fd)


def test_a_whole_file_system_is_flushed_where_that_says_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files()
    (tmp_path / "f").write_bytes(b"x")
    fd = files.open(tmp_path / "f", writable=False)
    kind = subprocess.run(["stat", "-f", "-c", "%t", str(tmp_path)], capture_output=True, text=True).stdout.strip()
    new = tuple(map(int, os.uname().release.split(".", 2)[:2])) >= (5, 8)
    assert files.sync_all(fd) is (new and kind in ("ef53", "58465342"))
    with open("/proc/self/status") as other:
        assert files.sync_all(other.fileno()) is False  # nothing of which we know what it does
    monkeypatch.setattr("penstock.disk.files._SYNC_TELLS", (999, 0))
    assert files.sync_all(fd) is False
    assert files.device(fd) == files.device(tmp_path) == os.stat(tmp_path).st_dev
    assert files.device(tmp_path / "nothing") is None
    files.close(fd)
    with pytest.raises(StoreError):
        files.device(fd)


def test_files_have_descriptors_that_a_burst_of_connections_cannot_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And have them again once they are closed; of files that stay open there are only so many."""
    monkeypatch.setattr(files_module, "_spares", [])
    monkeypatch.setattr(files_module, "_spares_kept", 0)
    files = Files()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.ExitStack() as held:
        held.callback(lambda: [os.close(spare) for spare in files_module._spares])
        held.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        keep_spares()
        highest = max(map(int, os.listdir("/proc/self/fd")))  # other tests may have left some open
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 64, before[1]))
        with contextlib.suppress(OSError):
            while True:
                held.callback(os.close, os.dup(0))
        for n in range(50):
            fd = files.open(tmp_path / str(n % 3), create=True)
            files.sync_folder(tmp_path)
            files.close(fd)
        for _ in range(50):  # Python has a descriptor of its own for each mapping
            fd = files.open(tmp_path / "0")
            files.grow(fd, 4_096)
            view = files.map(fd, 4_096)
            view.close()
            files.close(fd)
        kept = [files.open(tmp_path / "0") for _ in range(len(files_module._spares))]
        with pytest.raises(StoreError, match="Too many open files"):
            files.open(tmp_path / "0")
        with pytest.raises(NoDescriptor, match="cannot map 4096 bytes: Too many open files"):
            files.map(kept[0], 4_096)
        for fd in kept:
            files.close(fd)
        assert len(files_module._spares) == len(kept) == 16


def test_a_file_that_the_system_tells_nothing_of_is_a_store_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Committed offsets were not tried again behind it, and `/ping` said so until the next were written."""
    files = Files()
    fd = files.open(tmp_path / "a", create=True)

    def fail(*_: object, **__: object) -> os.stat_result:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        for name in ("stat", "lstat", "fstat"):
            patch.setattr(os, name, fail)
        for call in (
            lambda: files.make_folder(tmp_path),
            lambda: files.size(fd),
            lambda: files.modified_ms(tmp_path / "a"),
        ):
            with pytest.raises(StoreError, match=os.strerror(errno.ESTALE)):
                call()
    files.close(fd)


def test_a_signal_ends_no_look_into_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic was refused for it: Python tries again what a signal ends, but not the opening of a folder to be listed."""
    (tmp_path / "a").touch()
    listdir, ended = os.listdir, [InterruptedError(errno.EINTR, os.strerror(errno.EINTR))]

    def once(folder: Path) -> list[str]:
        if ended:
            raise ended.pop()
        return listdir(folder)

    monkeypatch.setattr(os, "listdir", once)
    assert Files().names(tmp_path) == ["a"]


def test_no_memory_to_open_a_file_passes_and_none_to_flush_it_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flush that could not open its file, or its folder, for want of memory ended all storing."""
    files = Files()
    fd = files.open(tmp_path / "a", create=True)

    def fail(*_: object) -> int:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", fail)
        with pytest.raises(NoDescriptor, match="a: Cannot allocate memory"):
            files.open(tmp_path / "a")
        with pytest.raises(NoDescriptor, match=r"a flush of the folder .*: Cannot allocate memory"):
            files.sync_folder(tmp_path)
    monkeypatch.setattr(os, "fdatasync", fail)
    monkeypatch.setattr(os, "fsync", fail)
    for flush in (lambda: files.datasync(fd), lambda: files.sync_folder(tmp_path)):
        with pytest.raises(StoreError, match="Cannot allocate memory") as raised:
            flush()
        assert not isinstance(raised.value, NoDescriptor)
    files.close(fd)


def test_where_few_descriptors_are_left_a_deletion_takes_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files()
    files.released.begin()
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x")
    files.discard(tmp_path / "a")
    assert len(files.released) == 1

    def few(self: Files) -> None:
        raise StoreError("the rest are kept (by order of the test)")

    monkeypatch.setattr(Files, "demand_descriptors", few)
    files.discard(tmp_path / "b")
    assert (len(files.released), list(tmp_path.iterdir())) == (1, [])
    files.released.end()


class Together(Files):
    """What was flushed, and which files were asked whether they could be written."""

    def __init__(self, answer: bool | StoreError = True, lost: str = "") -> None:
        self.answer, self.lost, self.paths = answer, lost, dict[int, Path]()
        self.done: list[str] = []

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        fd = super().open(path, create=create, writable=writable)
        self.paths[fd] = path
        return fd

    def sync_all(self, fd: int) -> bool:
        self.done.append("all")
        if isinstance(self.answer, StoreError):
            raise self.answer
        return self.answer

    def check_written(self, fd: int) -> bool:
        self.done.append(self.paths[fd].name)
        if self.paths[fd].name == self.lost:
            raise StoreError("a flush: Input/output error")
        return super().check_written(fd)

    def datasync(self, fd: int) -> None:
        self.done.append(f"flush {self.paths[fd].name}")


def make_many(folder: Path, count: int = TOGETHER_MIN) -> list[Path]:
    paths = [folder / f"f{number}" for number in range(count)]
    for path in paths:
        path.write_bytes(b"x")
    return paths


def test_many_files_are_flushed_together_and_each_is_asked(tmp_path: Path) -> None:
    files, paths = Together(), make_many(tmp_path)
    assert flush_together(files, paths, [tmp_path])
    assert files.done == ["all", *(path.name for path in paths), "flush f0"]
    files.done = []
    assert not flush_together(files, paths[1:], [tmp_path])  # too few
    assert not flush_together(files, paths, [tmp_path, Path("/proc")])  # on another file system
    assert files.done == []


@pytest.mark.parametrize("answer", [False, StoreError("somebody's write"), DiskFull("somebody's room")])
def test_files_are_flushed_one_by_one_where_the_file_system_says_nothing(
    tmp_path: Path, answer: bool | StoreError
) -> None:
    files = Together(answer)
    assert not flush_together(files, make_many(tmp_path))
    assert files.done == ["all"]


@pytest.mark.parametrize("gone", [0, 5])
def test_files_of_which_one_is_deleted_are_flushed_one_by_one(tmp_path: Path, gone: int) -> None:
    files, paths = Together(), make_many(tmp_path)
    paths[gone].unlink()
    assert not flush_together(files, paths)


def test_a_file_that_could_not_be_written_fails_the_flush(tmp_path: Path) -> None:
    files = Together(lost="f7")
    with pytest.raises(StoreError, match="Input/output error"):
        flush_together(files, make_many(tmp_path))
    assert "flush f0" not in files.done


@pytest.mark.parametrize("refused", [errno.ENOSYS, errno.EPERM])
def test_files_are_flushed_one_by_one_where_the_system_refuses_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    """A sandbox that forbids sync_file_range(2) ended the storing: nothing was accepted until a restart, and then again."""

    class Libc:
        def sync_file_range(self, *_: object) -> int:
            ctypes.set_errno(refused)
            return -1

    monkeypatch.setattr(files_module, "_libc", Libc)
    files = Together()
    assert not flush_together(files, make_many(tmp_path))
    assert files.done == ["all", "f0"]


def test_advice_that_the_system_refuses_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel without madvise(2), or a sandbox that forbids it: nothing could be stored."""

    class Mapped(mmap.mmap):
        def madvise(self, *_: object) -> None:  # type: ignore[override]
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    files = Files()
    monkeypatch.setattr(files_module.mmap, "mmap", Mapped)
    fd = files.open(tmp_path / "f", create=True)
    files.allocate(fd, 0, mmap.PAGESIZE)
    view = files.map(fd, mmap.PAGESIZE, scattered=True)
    advise(view, mmap.MADV_WILLNEED, 0, mmap.PAGESIZE)
    view.close()
    files.close(fd)


@pytest.mark.parametrize("refused", [errno.ENOSYS, errno.EPERM])
def test_room_that_a_sandbox_refuses_says_by_which_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    def allocate(*_: object) -> None:
        raise OSError(refused, os.strerror(refused))

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    files = Files()
    fd = files.open(tmp_path / "f", create=True)
    with pytest.raises(StoreError, match=r"fallocate\(2\)"):
        files.allocate(fd, 0, 100)
    files.close(fd)


def test_zeros_are_not_looked_at_byte_by_byte_where_holes_are_not_told(tmp_path: Path) -> None:
    """A start behind a kill looked at a gigabyte of them for seven seconds."""

    class Piece(bytes):
        def rstrip(self, chars: object = None, /) -> bytes:
            assert any(self)
            return super().rstrip(b"\0")

    class View(bytearray):
        def __getitem__(self, at: slice) -> Piece:  # type: ignore[override]
            return Piece(super().__getitem__(at))

    class Untold(Files):
        def data_ranges(self, fd: int, at: int, end: int) -> list[tuple[int, int]]:
            return [(at, end)]

    files, path = Untold(), tmp_path / "f"
    path.write_bytes(b"")
    view = cast("mmap.mmap", View(3 << 20))
    assert last_byte(files, path, view, 15, 3 << 20) == 15
    assert wipe(files, path, view, 15, 3 << 20) == 15
    view[700_001] = view[300_002] = 7
    assert last_byte(files, path, view, 15, 3 << 20) == 700_002
    assert wipe(files, path, view, 15, 3 << 20) == 700_002
    assert last_byte(files, path, view, 15, 3 << 20) == 15


def test_a_file_that_cannot_be_asked_is_an_error() -> None:
    reading, writing = os.pipe()
    try:
        with pytest.raises(StoreError):
            Files().check_written(reading)
    finally:
        os.close(reading)
        os.close(writing)


def test_in_a_folder_that_is_given_up_no_name_comes_changes_or_goes(tmp_path: Path) -> None:
    """It may be another's by now."""
    files, file = Files(), tmp_path / "file"
    file.write_bytes(b"x")
    fd = files.open(file)
    files.give_up("it was replaced")
    for call in (
        partial(files.open, tmp_path / "new", create=True), partial(files.make_folder, tmp_path / "folder"),
        partial(files.rename, file, tmp_path / "other"), partial(files.link, file, tmp_path / "other"),
        partial(files.unlink, file), partial(files.discard, file), partial(files.datasync, fd),
    ):  # fmt: skip
        with pytest.raises(StoreError, match="it was replaced"):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert files.read(fd, 0, 9) == b"x"
    files.close(fd)


def test_a_bad_part_of_the_disk_is_no_end_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives what lies before it, and fails the next call. Taken for all there is, a table was set aside as damaged
    and its former version taken.
    """
    files, path, read = Files(), tmp_path / "f", os.pread
    path.write_bytes(bytes(range(200)))
    fd = files.open(path)
    monkeypatch.setattr(os, "pread", lambda fd, length, at: read(fd, min(length, 64), at))
    assert files.read(fd, 10, 1_000) == bytes(range(10, 200))

    def bad(fd: int, length: int, at: int) -> bytes:
        if at >= 128:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(fd, min(length, 128 - at), at)

    monkeypatch.setattr(os, "pread", bad)
    assert files.read(fd, 0, 128) == bytes(range(128))
    with pytest.raises(StoreError, match="Input/output error"):
        files.read(fd, 0, 200)
    files.close(fd)
