"""What a store knows of itself from one start to the next, and how it tells a killed process from a power cut.

checkpoint   RocketMQ's 4096 bytes: three store times (8 each) of the last flushed record in log, queues and index.
             Other times than a slot's mean that a RocketMQ broker wrote here since. Ours are two slots at 1024 and 2048,
             written in turns, the higher generation with a true sum counts:
             "PCKP" | version (4) | generation (8) | epoch (8) | clean (8) | durable position (8) | derived position (8)
             | index file (8) | its count (8) | last store time (8) | queue entries (8) | CRC-32 (4)
store.json   format version, store id, epoch, file sizes
offsets.json queue offsets reserved durably, ahead of those handed out; where each queue ended at the last stop
suspects.json  queues of which a reader has met a damaged entry: the next start derives them again
live0 live1  "PLIV" | state (4) | generation (8) | log end (8) | log end after the append at work (8)
             On the disk they say RESERVED while the broker runs, and only in memory where the log ends: a killed
             process leaves the memory to the kernel, a power cut the disk.
"""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path
from zlib import crc32

import msgspec

from penstock.disk import tables
from penstock.disk.files import Files
from penstock.errors import Corrupt, StoreError
from penstock.wire import layout

SIZE = 4096
DAMAGED_QUEUES = "suspects.json"
CUT = " cut"  # in `abort`
_SLOTS = (1024, 2048)
_SLOT = struct.Struct(">4sIqqqqqqqqq")
_TIMES = struct.Struct(">qqq")
SLOT_VERSION = 1
FORMAT_VERSION = 2


class Checkpoint(msgspec.Struct, frozen=True):
    """Positions that are durable: the log below `durable`, what is derived from it below `derived`."""

    generation: int = 0
    epoch: int = 0
    clean: bool = False
    durable: int = 0
    derived: int = 0
    index_file: int = 0
    index_count: int = 0
    store_ms: int = 0
    entries: int = 0
    """How many consume-queue entries there were below `derived`, in all queues: fewer or more is a broken queue."""


class CheckpointFile:
    """The file `checkpoint`. `value` is the last one read or written; None when there was none to believe.

    `foreign_from` is the position from which a RocketMQ broker has written since our last mark; -1 when none has.
    """

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = files
        self.value: Checkpoint | None = None
        self.foreign_from = -1
        self._generation = 0
        self._fd = -1

    def load(self, abort: str | None = None) -> Checkpoint | None:
        """The newest slot with a true sum, unless another broker has gone on behind it."""
        self.value, self.foreign_from = None, -1
        if self.path.is_file():
            fd = self.files.open(self.path, writable=False)
            try:
                data = self.files.read(fd, 0, SIZE)
            finally:
                self.files.close(fd)
            value, counts = newest(data, abort)
            if value is not None:
                self._generation = value.generation
                if counts:
                    self.value = value
                else:
                    self.foreign_from = value.durable
        return self.value

    def write(self, value: Checkpoint) -> Checkpoint:
        """Write the value into the older slot and flush. For any thread, one at a time. StoreError."""
        self._generation += 1
        value = msgspec.structs.replace(value, generation=self._generation)
        if self._fd < 0:
            self._fd = self.files.open(self.path, create=True)
            if self.files.size(self._fd) < SIZE:
                self.files.allocate(self._fd, 0, SIZE)
        packed = _SLOT.pack(
            b"PCKP", SLOT_VERSION, value.generation, value.epoch, value.clean, value.durable, value.derived,
            value.index_file, value.index_count, value.store_ms, value.entries,
        )  # fmt: skip
        self.files.write(self._fd, _SLOTS[value.generation % 2], packed + struct.pack(">I", crc32(packed)))
        self.files.write(self._fd, 0, _TIMES.pack(value.store_ms, value.store_ms, value.store_ms))
        self.files.datasync(self._fd)
        self.value = value
        return value

    def close(self) -> None:
        if self._fd >= 0:
            self.files.close(self._fd)
            self._fd = -1


def parse(data: bytes) -> list[Checkpoint]:
    """The slots of a checkpoint file whose sums hold."""
    found = []
    for at in _SLOTS:
        packed = data[at : at + _SLOT.size]
        if len(packed) < _SLOT.size or packed[:4] != b"PCKP":
            continue
        if data[at + _SLOT.size : at + _SLOT.size + 4] != struct.pack(">I", crc32(packed)):
            continue
        _, version, generation, epoch, clean, *rest = _SLOT.unpack(packed)
        if version == SLOT_VERSION:
            found.append(Checkpoint(generation, epoch, bool(clean), *rest))
    return found


def newest(data: bytes, abort: str | None = None) -> tuple[Checkpoint | None, bool]:
    """(the slot of the highest generation, whether it still counts). `abort`: what the file of that name says.

    A RocketMQ broker on the folder keeps our slots and writes its own store times: ours are those of a slot (of the older
    one, when a write was torn). While `abort` says that our own process was the last to start, other times are damage or
    our own torn write (three equal ones), unless log and queues both went on: RocketMQ, which leaves our file `abort`.
    """
    found = parse(data)
    ours = [(0, 0, 0), *((mark.store_ms,) * 3 for mark in found)]
    mark = max(found, key=lambda mark: mark.generation, default=None)
    told = times(data)
    counts = told in ours
    if not counts and mark is not None and abort is not None and abort.startswith("pid "):
        counts = len(set(told)) == 1 or min(told[:2]) <= mark.store_ms
    return mark, counts


def abort_text(folder: Path) -> str | None:
    """What the file `abort` of a store says; None when there is none: the last broker stopped cleanly."""
    path = folder / "abort"
    if not path.is_file():
        return None
    with path.open("rb") as file:
        return file.read(200).decode("ascii", "replace")


def write_abort(files: Files, folder: Path, *, cut: bool) -> None:
    """Say that a broker runs here. `cut`: a power cut came before, and this start has not yet looked at all that stands there."""
    fd = files.open(folder / "abort", create=True)
    try:
        files.write(fd, 0, f"pid {os.getpid()} boot {boot_id()}{CUT if cut else ''}\n".ljust(120).encode())
        files.datasync(fd)
    finally:
        files.close(fd)
    files.sync_folder(folder)


def times(data: bytes) -> tuple[int, int, int]:
    """RocketMQ's three store times."""
    return _TIMES.unpack_from(data.ljust(_TIMES.size, b"\0"))


class StoreFile(msgspec.Struct):
    """`store.json`: who this store is."""

    store_id: str
    epoch: int
    log_segment_size: int
    queue_file_size: int
    slots: int
    entries: int


def open_store_file(
    files: Files, path: Path, log_segment_size: int, queue_file_size: int, slots: int, entries: int
) -> StoreFile:
    """Read it, raise the epoch by one, write it. Corrupt when a newer version wrote it: then nothing may be touched."""
    without = "sizes are taken from the files there are"
    table = tables.take(files, path.parent, path, _known_shape, without) or {}
    version = table.get("formatVersion", FORMAT_VERSION)
    if version > FORMAT_VERSION:
        raise Corrupt(path, 0, f"format version {version}; this program knows {FORMAT_VERSION}")
    store = StoreFile(
        str(table.get("storeId") or os.urandom(16).hex()),
        _number(table, "epoch", 0) + 1,
        _number(table, "mappedFileSizeCommitLog", log_segment_size),
        _whole_entries(_number(table, "mappedFileSizeConsumeQueue", queue_file_size)),
        _number(table, "maxHashSlotNum", slots),
        _number(table, "maxIndexNum", entries),
    )
    tables.save(
        files,
        path,
        {
            "formatVersion": FORMAT_VERSION,
            "storeId": store.store_id,
            "epoch": store.epoch,
            "mappedFileSizeCommitLog": store.log_segment_size,
            "mappedFileSizeConsumeQueue": store.queue_file_size,
            "maxHashSlotNum": store.slots,
            "maxIndexNum": store.entries,
        },
    )
    return store


def _whole_entries(size: int) -> int:
    """A size of consume-queue files, rounded up as RocketMQ does: no entry lies in two files."""
    return -(-size // layout.ENTRY_BYTES) * layout.ENTRY_BYTES


def _known_shape(table: dict[str, object]) -> bool:
    return isinstance(table.get("formatVersion"), int) and isinstance(table.get("storeId"), str)


def _number(table: dict[str, object], name: str, default: int) -> int:
    value = table.get(name, default)
    return value if isinstance(value, int) and value > 0 else default


def boot_id() -> str:
    """Changes with every start of the operating system."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


_LIVE = struct.Struct(">4sIqqq")
RESERVED, LIVE = 1, 2


class LivePages:
    """Two one-page files: which log end was visible, if only the process ended. `view` takes (log end) at byte 16."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._paths = (folder / "live0", folder / "live1")
        self._files = files
        self._generation = 0
        self._maps: list[mmap.mmap] = []
        self._fds = [-1, -1]

    def seen(self) -> list[tuple[int, int, int, int]]:
        """(state, generation, log end, end after the appends at work) of each readable page."""
        found = []
        for path in self._paths:
            if not path.is_file():
                continue
            fd = self._files.open(path, writable=False)
            try:
                data = self._files.read(fd, 0, _LIVE.size)
            finally:
                self._files.close(fd)
            if len(data) == _LIVE.size and data[:4] == b"PLIV":
                _, state, generation, end, following = _LIVE.unpack(data)
                found.append((state, generation, end, following))
        return found

    def start(self, end: int) -> mmap.mmap:
        """Write the marker to the disk; returns the page whose memory now says how far the log goes."""
        self._generation = max([page[1] for page in self.seen()], default=0)
        for n, path in enumerate(self._paths):
            self._fds[n] = self._files.open(path, create=True)
            self._files.allocate(self._fds[n], 0, SIZE)
            self._maps.append(self._files.map(self._fds[n], SIZE))
        self.mark()
        return self.turn(end)

    def mark(self) -> None:
        """Make the marker durable in the page that is not in use. For any thread."""
        n = (self._generation + 1) % 2
        self._files.write(self._fds[n], 0, _LIVE.pack(b"PLIV", RESERVED, self._generation + 1, 0, 0))
        self._files.datasync(self._fds[n])

    def turn(self, end: int) -> mmap.mmap:
        """Use the page marked last, for a log that ends here; the caller writes at bytes 16 and 24 from now on."""
        self._generation += 1
        page = self._maps[self._generation % 2]
        page[16:32] = struct.pack(">qq", end, end)
        page[4:8] = struct.pack(">I", LIVE)
        self._maps[(self._generation + 1) % 2][4:8] = bytes(4)  # that one goes no further
        return page

    def close(self) -> None:
        for n, fd in enumerate(self._fds):
            if fd >= 0:
                self._files.close(fd)
                self._fds[n] = -1
        self._maps = []

    def remove(self) -> None:
        """After a clean stop there is nothing to tell."""
        self.close()
        for path in self._paths:
            self._files.unlink(path)


__all__ = ["Checkpoint", "CheckpointFile", "LivePages", "StoreError", "StoreFile"]
