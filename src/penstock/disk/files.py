"""The few things we ask of the operating system, as methods: a test hands in a twin that loses, tears, fills up or
fails.

Room is always asked for before a file is mapped (a hole on a full disk would end the process with SIGBUS), flushes go
through the descriptor (they let other threads run, and cover what was written through a mapping), and a name counts as
there only after its folder was flushed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import re
import resource
import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from stat import S_ISDIR, S_ISREG

from penstock.disk.refusals import NO_ROOM, TOO_MANY, Refusals
from penstock.disk.released import Released
from penstock.errors import DiskFull, NoDescriptor, StoreError

DESCRIPTORS_KEPT = 256
_DESCRIPTORS_EACH, _UNASKED_MAX = 16, 32  # what a demand may take, with its connections; so many go by one look
PAGES_BYTES = 64 << 10
POSITIONS = 1 << 62  # that a file's name may say: from here on numbers mean "never"
TOGETHER_MIN = 16  # files from which on one flush of the file system costs less than theirs
PARTS_MAX = 1_024  # of one call: IOV_MAX
_PIECE = 1 << 18
_ZEROS = bytes(_PIECE)
_FLUSHES_AHEAD = 4  # what is ahead may be flushed so often before it is full
_SYNC_TELLS = (5, 8)  # the Linux since which syncfs(2) tells of writes that failed
_SYNC_WRITES = (0xEF53, 0x58465342)  # statfs(2)'s types of ext2 to ext4 and XFS
_WAIT_BEFORE = 1  # sync_file_range(2): of all of the file, for nought bytes are all
_STAT_BYTES = 256  # more than a `struct statfs`, whose first field is the type
_GET_FLAGS, _SET_FLAGS, _NO_COPY = 0x80086601, 0x40086602, 0x0080_0000  # of ioctl_iflags(2); the last is chattr's C
_FLAGS = struct.Struct("I4x")  # declared as a long, and half of it is used
_NOT_OPENED = (*TOO_MANY, errno.ENOMEM)  # then nothing was done to the file; from a flush, no memory is final
# An old kernel, or the sandbox of a container, says so of a call, whatever the file.
_NO_CALL = (errno.ENOSYS, errno.EPERM)

_SPARES_MAX = 16
_spares: list[int] = []  # descriptors of this process that files of ours may have when all others are taken
_spares_kept = 0


def keep_spares() -> None:
    """From now on hold some descriptors back. A burst of connections has all there are before any of them can be refused, and
    a file that cannot be opened then to be flushed would end the storing.
    """
    global _spares_kept
    _spares_kept = _SPARES_MAX
    try:
        while len(_spares) < _spares_kept:
            _spares.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return  # when the next file is closed


def _open(path: Path, flags: int) -> int:
    while True:
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno not in TOO_MANY or not _spares:
                raise
            os.close(_spares.pop())


def _mapped(fd: int, size: int, access: int) -> mmap.mmap:
    """Python has a descriptor of its own for each mapping: that, too, may be one of those held back."""
    while True:
        try:
            return mmap.mmap(fd, size, access=access)
        except OSError as error:
            if error.errno not in TOO_MANY or not _spares:
                raise
            os.close(_spares.pop())


def _close(fd: int) -> None:
    os.close(fd)
    if len(_spares) < _spares_kept:
        keep_spares()


def _failed(error: OSError, what: object, passing: tuple[int, ...] = TOO_MANY) -> StoreError:
    if error.errno in NO_ROOM:
        return DiskFull(f"no room for {what}: {error.strerror}")
    if error.errno in passing:
        return NoDescriptor(f"{what}: {error.strerror}")
    return StoreError(f"{what}: {error.strerror}")


def _no_calls(_: object) -> list[Callable[[], None]]:
    return []


def _none_unused(_: object) -> dict[Path, bool]:
    return {}


def _not_flushed(files: Files, error: OSError, what: str) -> StoreError:
    for call in files.when_unwritten:
        call()
    return _failed(error, what)


def file_of(fd: int) -> Path:
    """As the system knows it, for a message: where a part of a disk is bad, which file it is, is all that helps."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:
        return Path(f"descriptor {fd}")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


class Files:
    """The real disk. Every failure is a `StoreError`, no room a `DiskFull`, no descriptor a `NoDescriptor`."""

    refusals = cached_property(lambda _: Refusals())
    when_unwritten = cached_property(_no_calls)  # a flush has failed: called in the thread that flushed
    unused = cached_property(_none_unused)  # see `quarantine.take_back`
    given_up = ""  # why no name may come, change or go, and nothing is durable

    _unasked, _limit = 0, 0  # so many demands may go by before descriptors are counted again, under this limit

    @cached_property
    def released(self) -> Released:
        """Where mappings and descriptors go that may be the last of their file."""
        return Released(self.close)

    def give_up(self, why: str) -> None:
        """The folder is not ours any more: what has its name is another's, who may be at work there. What makes a name, moves
        one, takes one away or vouches for bytes is a StoreError from now on.
        """
        self.given_up = why

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        """A descriptor of the file; `create` makes it when it is missing."""
        if create:
            _demand_ours(self)
        _demand_file(path)
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0)
        try:
            return _open(path, flags)
        except OSError as error:
            raise _failed(error, path, _NOT_OPENED) from error

    def close(self, fd: int) -> None:
        _close(fd)

    def demand_descriptors(self) -> None:
        """StoreError when few are left: they are kept for connections, and for what is there already. For whoever is about to
        begin something new that holds some for good. Where there are plenty the next ones are not looked at.
        """
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if self._unasked > 0 and limit == self._limit:
            self._unasked -= 1
            return
        try:
            lowest = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # the number of the first free one
        except OSError as error:
            raise _failed(error, "a descriptor") from error
        os.close(lowest)
        left = limit - min(DESCRIPTORS_KEPT, limit // 4) - lowest
        self._limit = limit
        self._unasked = min(_UNASKED_MAX, left // (2 * _DESCRIPTORS_EACH))
        if left <= 0:
            raise StoreError(
                f"{lowest} of {limit} file descriptors are in use, the rest are kept for connections: "
                "raise the limit of open files (ulimit -n, LimitNOFILE)"
            )

    def size(self, fd: int) -> int:
        try:
            return os.fstat(fd).st_size
        except OSError as error:
            raise _failed(error, file_of(fd)) from error

    def grow(self, fd: int, size: int) -> None:
        """Let the file end at `size` without taking room; what lies between must be allocated before it is touched."""
        try:
            if os.fstat(fd).st_size < size:
                os.ftruncate(fd, size)
        except OSError as error:
            raise _failed(error, "a longer file") from error

    def cut(self, fd: int, size: int) -> None:
        """Let the file end at `size`, which must not lie beyond its end. Never for a file that is mapped."""
        try:
            os.ftruncate(fd, size)
        except OSError as error:
            raise _failed(error, "a shorter file") from error

    def allocate(self, fd: int, at: int, length: int) -> None:
        """Take room on the disk for these bytes, growing the file if need be; they read as zeros. And for all of their pages,
        as far as the file goes: where blocks are smaller, a page that lacks one cannot be written through a mapping.
        """
        begin, end = at // mmap.PAGESIZE * mmap.PAGESIZE, at + length
        try:
            whole = min(os.fstat(fd).st_size, (end + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE)
            os.posix_fallocate(fd, begin, max(end, whole) - begin)
        except OSError as error:
            raise _failed(
                error, f"{length} bytes by fallocate(2)" if error.errno in _NO_CALL else f"{length} bytes"
            ) from error

    def data_ranges(self, fd: int, at: int, end: int) -> list[tuple[int, int]]:
        """The parts of at … end that may hold something else than zeros: allocated and never written reads as zeros
        for free.
        """
        found = []
        try:
            while at < end:
                begin = os.lseek(fd, at, os.SEEK_DATA)
                if begin >= end:
                    break
                at = min(end, os.lseek(fd, begin, os.SEEK_HOLE))
                found.append((begin, at))
        except OSError as error:
            if error.errno != errno.ENXIO:  # no more data
                return [*found, (at, end)]
        return found

    def map(self, fd: int, size: int, *, writable: bool = True, scattered: bool = False) -> mmap.mmap:
        """The first `size` bytes of the file in memory; unmapped when the last reference goes.

        `scattered`: a page is touched here and there. Else the system reads (or zeroes) megabytes around the first one.
        """
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        try:
            view = _mapped(fd, size, access)
        except OSError as error:
            raise _failed(error, f"cannot map {size} bytes", _NOT_OPENED) from error
        except ValueError as error:
            raise StoreError(f"cannot map {size} bytes: {error}") from error
        if scattered:
            advise(view, mmap.MADV_RANDOM)
        return view

    def read(self, fd: int, at: int, length: int) -> bytes:
        """Up to `length` bytes at `at`; fewer only at the end of the file: a call that meets a bad part of the disk gives what
        lies before it, and only the next one fails.
        """
        try:
            data = os.pread(fd, length, at)
            while len(data) < length and (more := os.pread(fd, length - len(data), at + len(data))):
                data += more
        except OSError as error:
            raise _failed(error, f"a read of {file_of(fd)} at {at}") from error
        return data

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        """All of `data` at `at`, however many calls that takes."""
        view = memoryview(data)
        try:
            while view:
                done = os.pwrite(fd, view, at)
                if not done:
                    raise OSError(errno.EIO, "it wrote nothing")
                view = view[done:]
                at += done
        except OSError as error:
            raise _failed(error, f"a write to {file_of(fd)}") from error

    def write_parts(self, fd: int, at: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        """All of these, one behind the other, at `at`; in one call as a rule."""
        for first in range(0, len(parts), PARTS_MAX):
            some = parts[first : first + PARTS_MAX]
            try:
                done = os.pwritev(fd, some, at)
            except OSError as error:
                raise _failed(error, f"a write to {file_of(fd)}") from error
            size = sum(map(len, some))
            if done < size:
                self.write(fd, at + done, memoryview(b"".join(some))[done:])
            at += size

    def datasync(self, fd: int) -> None:
        """Make the file's bytes durable, those written through mappings too. Blocks without the interpreter lock."""
        _demand_ours(self)
        try:
            os.fdatasync(fd)
        except OSError as error:
            raise _not_flushed(self, error, f"a flush of {file_of(fd)}") from error

    def device(self, file: int | Path) -> int | None:
        """The number of the file system that a file, or what a descriptor stands for, lies on; None when it is gone."""
        try:
            return os.stat(file).st_dev
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed(error, file) from error

    def is_at(self, fd: int, path: Path) -> bool:
        """Whether the open file is still what stands at this path: False when nothing does, or another file. True where the
        system does not say.
        """
        try:
            return os.path.samestat(os.fstat(fd), os.stat(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True

    def sync_all(self, fd: int) -> bool:
        """Write out all that was written to the file system of this file, names included. Blocks without the interpreter lock.
        The disk's own cache is only flushed for certain by a `datasync` behind it. False where even that vouches for nothing:
        on other file systems than ext4 and XFS (FUSE asks nobody), and before Linux 5.8, which tells nobody of a write that
        failed. Others tell those who had the file open before.
        """
        release = re.match(r"(\d+)\.(\d+)", os.uname().release)
        if sys.platform != "linux" or release is None or (int(release[1]), int(release[2])) < _SYNC_TELLS:
            return False
        libc, stat = _libc(), ctypes.create_string_buffer(_STAT_BYTES)
        if libc.fstatfs(fd, stat) or ctypes.c_long.from_buffer(stat).value not in _SYNC_WRITES:
            return False
        if libc.syncfs(fd):
            number = ctypes.get_errno()
            raise _not_flushed(
                self, OSError(number, os.strerror(number)), f"a flush of the file system of {file_of(fd)}"
            )
        return True

    def check_written(self, fd: int) -> bool:
        """StoreError when something of this file could not be written out, whoever wrote it, and nobody was told yet. What is on
        its way to the disk is waited for, nothing is flushed: see `flush_together`. False where the system does not say.
        """
        libc, nothing = _libc(), ctypes.c_int64(0)
        if libc.sync_file_range(fd, nothing, nothing, _WAIT_BEFORE):
            number = ctypes.get_errno()
            if number in _NO_CALL:
                return False
            raise _not_flushed(self, OSError(number, os.strerror(number)), f"a flush of {file_of(fd)}")
        return True

    def sync_folder(self, folder: Path) -> None:
        """Make the names in the folder durable."""
        try:
            fd = _open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise _failed(error, f"a flush of the folder {folder}", _NOT_OPENED) from error
        try:
            os.fsync(fd)
        except OSError as error:
            raise _failed(error, f"a flush of the folder {folder}") from error
        finally:
            _close(fd)

    def rename(self, old: Path, new: Path) -> None:
        _demand_ours(self)
        try:
            os.rename(old, new)
        except OSError as error:
            raise _failed(error, old) from error

    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name."""
        _demand_ours(self)
        try:
            os.link(old, new)
        except OSError as error:
            raise _failed(error, new) from error

    def unlink(self, path: Path) -> None:
        _demand_ours(self)
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _failed(error, path) from error

    def discard(self, path: Path) -> None:
        """As `unlink`, for a file of which many pages may be in memory: they are freed where `released` frees."""
        try:
            self.demand_descriptors()  # a topic may have thousands of files, and a flush must still find one
            fd = self.open(path, writable=False)
        except StoreError:  # too few are left, or it is not there
            fd = -1
        try:
            self.unlink(path)
        finally:
            if fd >= 0:
                self.released.add(fd)

    def make_folder(self, path: Path, *, durable: bool = True) -> None:
        """The folder and the ones above it; with `durable` each new name is flushed in its parent."""
        _demand_ours(self)
        try:
            os.mkdir(path)
        except FileExistsError:
            demand_target(path)
            return
        except FileNotFoundError as error:
            if path.parent == path:
                return
            if os.path.isdir(path.parent):  # there, and takes no folder: /proc
                raise _failed(error, path) from error
            self.make_folder(path.parent, durable=durable)
            self.make_folder(path, durable=durable)
            return
        except OSError as error:
            raise _failed(error, path) from error
        if durable:
            self.sync_folder(path.parent)

    def remove_folder(self, path: Path) -> None:
        """Remove the folder if it is empty, else leave it."""
        _demand_ours(self)
        try:
            os.rmdir(path)
        except OSError:
            return

    def names(self, folder: Path) -> list[str]:
        """What lies in the folder, sorted; nothing when there is no such folder."""
        while True:
            try:
                return sorted(os.listdir(folder))
            except InterruptedError:  # Python tries again what a signal ends, but not this
                continue
            except (FileNotFoundError, NotADirectoryError):
                return []
            except OSError as error:
                raise _failed(error, folder) from error

    def may_use(self, folder: Path) -> bool:
        """Whether what lies in the folder may be read and changed by this process."""
        return os.access(folder, os.R_OK | os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)

    def modified_ms(self, path: Path) -> int:
        """When the file was last written, by the wall clock; a link that leads nowhere: when it was made."""
        try:
            return os.stat(path).st_mtime_ns // 1_000_000
        except OSError:
            try:
                return os.lstat(path).st_mtime_ns // 1_000_000
            except OSError as error:
                raise _failed(error, path) from error

    def usage(self, folder: Path) -> tuple[int, int]:
        """Bytes of the folder's file system: (used, used and available to us), as `df` counts and RocketMQ does: blocks that
        are reserved for root are neither.
        """
        try:
            stat = os.statvfs(folder)
        except OSError as error:
            raise _failed(error, folder) from error
        used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize
        return used, used + stat.f_bavail * stat.f_frsize


def _demand_ours(files: Files) -> None:
    if files.given_up:
        raise StoreError(files.given_up)


def demand_target(path: Path) -> None:
    """StoreError where there is a link that leads nowhere: what is behind it may be on a disk that is not mounted."""
    try:
        nowhere = path.is_symlink() and not path.exists()
    except OSError as error:
        raise _failed(error, path) from error
    if nowhere:
        raise StoreError(f"{path} leads to {os.readlink(path)}, which is not there: mount it, or remove the link")


def _demand_file(path: Path) -> None:
    """StoreError where a named pipe is, whose opening would wait for a writer, a socket or a device. A folder can be opened."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # the opening says why
    if not S_ISREG(mode) and not S_ISDIR(mode):
        raise StoreError(f"{path} is no file but a named pipe, a socket or a device: move it away")


def flush_together(files: Files, paths: Sequence[Path], folders: Iterable[Path] = ()) -> bool:
    """Make these files durable, and the names in these folders, by one flush of their file system, whoever has written them:
    each file is asked for writes that failed, as its own flush would tell. False where that cannot be vouched for, and where
    they are few: then flush them one by one. StoreError when a write has failed.
    """
    if len(paths) < TOGETHER_MIN or len({files.device(path) for path in (*paths, *folders)}) != 1:
        return False
    try:
        fd = files.open(paths[0], writable=False)
    except StoreError:  # it was deleted just now
        return False
    try:
        if not _all_is_written(files, fd, paths):
            return False
        files.datasync(fd)
    finally:
        files.close(fd)
    return True


def _all_is_written(files: Files, fd: int, paths: Sequence[Path]) -> bool:
    try:
        if not files.sync_all(fd):
            return False
    except StoreError:  # somebody's write has failed, or has no room: perhaps none of ours
        return False
    for path in paths:
        try:
            one = files.open(path, writable=False)
        except StoreError:
            return False
        try:
            if not files.check_written(one):
                return False
        finally:
            files.close(one)
    return True


def write_in_place(folder: Path) -> None:
    """Have files that come into this folder, or below it, written where they lie. btrfs takes new room for each page that is
    written once more, however much of the file has been allocated: on a full disk that ends who writes through a mapping.
    Other file systems do not know the word, or do so anyway.
    """
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            (flags,) = _FLAGS.unpack(fcntl.ioctl(fd, _GET_FLAGS, bytes(_FLAGS.size)))
            fcntl.ioctl(fd, _SET_FLAGS, _FLAGS.pack(flags | _NO_COPY))
        finally:
            os.close(fd)


def is_full(files: Files, error: StoreError) -> bool:
    """Whether it is for lack of room that nothing is stored. Who sends is told no more than that; every send comes here."""
    files.refusals.note(error)
    return isinstance(error, DiskFull)


def take_room(files: Files, fd: int, at: int, need: int, want: int) -> int:
    """Take room from `at` to `want`, or at least to `need` when the disk is nearly full; returns how far. DiskFull."""
    try:
        files.allocate(fd, at, want - at)
    except DiskFull:
        if need >= want:
            raise
        files.allocate(fd, at, need - at)
        return need
    return want


def are_many(written: int, ahead: int) -> bool:
    """Whether so many bytes since the last flush promise that as many ahead are filled before long."""
    return ahead <= _FLUSHES_AHEAD * written


def make_pages(files: Files, fd: int, at: int, end: int) -> None:
    """Let the system hold zeros for the part of a mapped file behind all that was written, whose room is taken: in pieces of
    64 KiB. A page alone, as a mapping faults it in, costs five times as much: to come, to be flushed, to come again.
    Only a writer that fills such a piece between two flushes gains: a byte of it written, all of it is flushed.
    """
    at = (at + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
    if files.data_ranges(fd, at, end):
        return  # a former life of the file, which is judged elsewhere
    try:
        while at < end:
            stop = min(end, at // PAGES_BYTES * PAGES_BYTES + PAGES_BYTES)
            files.write(fd, at, bytes(stop - at))
            at = stop
    except StoreError:
        return  # they come one by one, then


def advise(view: mmap.mmap, advice: int, at: int = 0, length: int | None = None) -> None:
    """Say how a mapped file will be read. The system may refuse advice: nothing but speed depends on it."""
    with contextlib.suppress(OSError):
        view.madvise(advice, at, len(view) - at if length is None else length)


def wipe(files: Files, path: Path, view: mmap.mmap, at: int, end: int) -> int:
    """Let the mapped file be zero from at to end, touching no page that is already; returns behind the last byte that
    was not.
    """
    fd = files.open(path)
    try:
        ranges = files.data_ranges(fd, at, end)
    finally:
        files.close(fd)
    used = at
    for begin, stop in ranges:
        for piece in range(begin, stop, _PIECE):
            chunk = view[piece : min(stop, piece + _PIECE)]
            kept = _used(chunk)
            if kept:
                used = piece + kept
                view[piece:used] = bytes(kept)
    return used


def last_byte(files: Files, path: Path, view: mmap.mmap, at: int, end: int) -> int:
    """Behind the last byte in at … end that is not zero; at when all are."""
    fd = files.open(path)
    try:
        ranges = files.data_ranges(fd, at, end)
    finally:
        files.close(fd)
    for begin, stop in reversed(ranges):
        while stop > begin:
            piece = max(begin, stop - _PIECE)
            kept = _used(view[piece:stop])
            if kept:
                return piece + kept
            stop = piece
    return at


def _used(piece: bytes) -> int:
    """Where its zeros begin. Where holes are not told, gigabytes of zeros are looked at: a comparison has them in a tenth."""
    return 0 if _ZEROS.startswith(piece) else len(piece.rstrip(b"\0"))


def number_names(names: list[str]) -> Iterator[int]:
    """The first offsets among the names: those of exactly 20 digits, in order. Beyond all positions nothing is ours."""
    for name in sorted(names):
        if len(name) == 20 and name.isascii() and name.isdigit() and int(name) < POSITIONS:
            yield int(name)
