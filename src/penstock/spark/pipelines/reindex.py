"""Consume queues and key index, derived again from the commit log alone.

    tasks    walk one piece of the log each and keep its entries and keys in <to>/.parts/<piece>.npz
    driver   lays each queue's entries into files of the store's size, holes as fillers, as the broker does; puts the
             keys into index files in the order of the log
    swap     (wanted or not) moves the new folders to their places and the old ones to lost+found/; nothing is deleted

A part stands under its name only when it is whole, so a killed run goes on where it stopped, as long as the log's pieces
are the same. The broker must be stopped for a swap.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

import numpy as np
from numpy.lib.npyio import NpzFile

from penstock.disk import tables
from penstock.disk.files import Files
from penstock.errors import ConfigError, Locked
from penstock.log.options import MESSAGE_DELAY_LEVEL, delay_levels
from penstock.spark.kernel.buffers import ENTRY, Records
from penstock.spark.log import derive
from penstock.spark.log import files as logfiles
from penstock.spark.log.files import Damage, Piece
from penstock.spark.log.indexfile import INDEX_ENTRY
from penstock.spark.pipelines.asked import at_least
from penstock.spark.pipelines.parallel import SMALL_BYTES, Progress, over
from penstock.wire import layout
from penstock.wire.record import INDEX_HEAD

if TYPE_CHECKING:
    from penstock.spark.pipelines.parallel import Spark

SPLIT_BYTES = 128 << 20
_FAR = 10_000_000  # entries: an offset that jumps further is damage, as for the broker
_ROW = np.dtype([("offset", "i8"), ("entry", ENTRY)])
_KEY = np.dtype([("hash", "i8"), ("physical", "i8"), ("stored", "i8")])


@dataclass(frozen=True)
class ReindexResult:
    """What was made, and where it is."""

    store: str
    folder: str
    records: int
    queues: int
    entries: int
    keys: int
    damaged_bytes: int
    resumed: int
    swapped: bool
    dry_run: bool
    seconds: float

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def run(
    spark: Spark,
    store: str | Path,
    *,
    to: str | Path = "",
    swap: bool = False,
    split_bytes: int = SPLIT_BYTES,
    message_delay_level: str = MESSAGE_DELAY_LEVEL,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ReindexResult:
    """Make consume queues and key index of a store's folder in `to` (default: `<store>/reindex`).

    With `swap` they take the place of those there are. Raises `Locked` when a broker runs on the folder, or
    another run writes to `to`.
    """
    began = time.monotonic()
    folder = Path(store).absolute()
    if not (folder / "commitlog").is_dir():
        raise ConfigError(f"{folder} is no store folder: it has no folder commitlog")
    at_least(1, "split_bytes", split_bytes)
    out = Path(to).absolute() if to else folder / "reindex"
    segments = logfiles.find(str(folder))
    runs = logfiles.cut(segments, split_bytes, None)
    if dry_run:
        size = sum(segment.end for segment in segments)
        about = _estimate(segments) if size else 0
        return ReindexResult(
            str(folder), str(out), about, 0, 0, 0, 0, 0, False, True, round(time.monotonic() - began, 3)
        )
    if (out / "commitlog").is_dir():
        raise ConfigError(
            f"{out} is a store folder: what is there would go", "another --to; --swap puts the new files in place"
        )
    with ExitStack() as held:
        if swap:
            held.enter_context(_locked(folder / "lock", os.O_RDWR | os.O_CREAT, f"{folder} is in use by a broker"))
        parts = out / ".parts"
        parts.mkdir(parents=True, exist_ok=True)
        held.enter_context(_locked(out, os.O_RDONLY, f"another reindex run writes to {out}"))
        delays = delay_levels(message_delay_level)
        paths = [parts / _part_name(run) for run in runs]
        pairs = list(zip(paths, runs, strict=True))
        resumed = sum(path.exists() for path in paths)

        def work(item: tuple[Path, list[Piece]]) -> Iterator[dict[str, int]]:
            yield derive_part(item[1], item[0], delays)

        total = sum(segment.end for segment in segments)
        found = over(spark, pairs, work, progress, total, small=total <= SMALL_BYTES)
        table = tables.load(Files(), folder / "store.json") or {}
        for name in ("consumequeue", "index"):
            shutil.rmtree(out / name, ignore_errors=True)
        loaded = [np.load(path) for path in paths]
        queues, entries = _write_queues(out, loaded, _size(table, "mappedFileSizeConsumeQueue", _queue_size(folder)))
        keys = _write_index(
            out, loaded, _size(table, "maxHashSlotNum", 5_000_000), _size(table, "maxIndexNum", 20_000_000)
        )
        for part in loaded:
            part.close()
        shutil.rmtree(parts)
        if swap:
            _swap(folder, out)
    records, damaged = (sum(one[name] for one in found) for name in ("records", "damaged"))
    return ReindexResult(
        str(folder), str(folder if swap else out), records, queues, entries, keys, damaged, resumed, swap, False,
        round(time.monotonic() - began, 3),
    )  # fmt: skip


# -- in the tasks


def derive_part(run: Sequence[Piece], path: Path, delays: tuple[int, ...]) -> dict[str, int]:
    """Entries and keys of one run of pieces, in a file."""
    if path.exists():
        with np.load(path) as part:
            return {"records": int(part["counts"][0]), "damaged": int(part["counts"][1])}
    rows: dict[str, list[Records]] = {}
    keys: list[Records] = []
    records = damaged = 0
    for piece in run:
        for window in derive.windows(piece, delays):
            if isinstance(window, Damage):
                damaged += window.end - window.begin
                continue
            records += len(window.topic)
            for name, part in _by_queue(window):
                rows.setdefault(name, []).append(part)
            row, hashes = window.keys()
            made = np.empty(len(row), _KEY)
            made["hash"], made["physical"], made["stored"] = hashes, window.physical[row], window.stored[row]
            keys.append(made)
    arrays = {f"q/{name}": np.concatenate(found) for name, found in rows.items()}
    arrays["keys"] = np.concatenate(keys) if keys else np.empty(0, _KEY)
    arrays["counts"] = np.array([records, damaged])
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.writing")
    with open(unfinished, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    unfinished.replace(path)
    return {"records": records, "damaged": damaged}


def _by_queue(window: derive.LogWindow) -> Iterator[tuple[str, Records]]:
    rows = np.empty(len(window.topic), _ROW)
    rows["offset"] = window.offset
    rows["entry"]["physical"], rows["entry"]["size"], rows["entry"]["code"] = window.physical, window.size, window.code
    whose = window.topic * (1 << 32) + window.queue
    good = (window.kind & 4 == 0) & (window.offset >= 0) & (window.offset <= 1 << 58) & (window.queue >= 0)
    for number in np.unique(whose[good]).tolist():
        topic = window.topics[number >> 32].decode("utf-8", "surrogateescape")
        yield f"{topic}/{number & 0xFFFFFFFF}", rows[good & (whose == number)]


def _part_name(run: Sequence[Piece]) -> str:
    """Named by what it covers, and by when that was written: another cutting, a log that has grown, a segment that was brought
    back since, or another store make other parts.
    """
    first, last = run[0], run[-1]
    written = [os.stat(piece.segment.path).st_mtime_ns for piece in run]
    stamp = crc32(repr([(piece.segment.path, at) for piece, at in zip(run, written, strict=True)]).encode())
    return f"{first.segment.base + first.begin:020d}-{last.segment.base + last.end:020d}-{stamp:08x}.npz"


# -- on the driver


def _write_queues(out: Path, parts: list[NpzFile], size: int) -> tuple[int, int]:
    names = sorted({name for part in parts for name in part.files if name.startswith("q/")})
    entries = 0
    for name in names:
        rows = np.concatenate([part[name] for part in parts if name in part.files])
        entries += len(rows)
        write_queue(out / "consumequeue" / name[2:], rows, size)
    return len(names), entries


def write_queue(folder: Path, rows: Records, size: int) -> None:
    """The files of one queue from its entries in the order of the log."""
    per_file = size // ENTRY.itemsize
    offsets = rows["offset"]
    begin = int(offsets[0]) // per_file * per_file
    ahead = np.maximum.accumulate(offsets)
    jump = np.flatnonzero(offsets[1:] > ahead[:-1] + _FAR)
    if len(jump):  # what jumps far is damage; everything behind is looked at again without it
        return write_queue(folder, np.delete(rows, jump[0] + 1), size)
    rows = rows[offsets >= begin]
    offsets = rows["offset"]
    folder.mkdir(parents=True, exist_ok=True)
    filler = np.zeros(1, ENTRY)
    filler["size"] = layout.FILLER_SIZE
    end = int(offsets.max()) + 1
    for first in range(begin, end, per_file):
        held = np.repeat(filler, min(end - first, per_file))
        inside = (offsets >= first) & (offsets < first + per_file)
        held[offsets[inside] - first] = rows["entry"][inside]  # of several with one offset the last one stays
        with open(folder / f"{first * ENTRY.itemsize:020d}", "wb") as file:
            file.write(held.tobytes())
            file.truncate(size)
    return None


def _write_index(out: Path, parts: list[NpzFile], slots: int, entries: int) -> int:
    """Index files as the broker fills them, one after the other; their names are moments, and here only numbers."""
    keys = np.concatenate([part["keys"] for part in parts]) if parts else np.empty(0, _KEY)
    name = int(time.strftime("%Y%m%d%H%M%S") + "000")
    before = 0
    for at in range(0, len(keys), entries - 1):
        some = keys[at : at + entries - 1]
        (out / "index").mkdir(parents=True, exist_ok=True)
        with open(out / "index" / f"{name:017d}", "wb") as file:
            file.write(index_file(some, slots, before))
            file.truncate(
                layout.INDEX_HEAD_BYTES + slots * layout.INDEX_SLOT_BYTES + entries * layout.INDEX_ENTRY_BYTES
            )
        name, before = name + 1, int(some["stored"][-1])
    return len(keys)


def index_file(keys: Records, slots: int, before: int) -> bytes:
    """One index file of these keys, up to its last entry; `before` is the time of the last key of the file before."""
    count = len(keys)
    entries = np.zeros(count + 1, INDEX_ENTRY)
    stored = keys["stored"]
    begin = int(stored[0])
    seconds = (stored - begin) // 1000
    seconds[0] = (begin - before) // 1000 if before > 0 else 0
    if begin <= 0:
        seconds[:] = 0
    slot = keys["hash"] % slots
    order = np.argsort(slot, kind="stable")
    same = slot[order][1:] == slot[order][:-1]
    previous = np.zeros(count, np.int64)
    previous[order[1:][same]] = order[:-1][same] + 1
    entries["hash"][1:], entries["physical"][1:] = keys["hash"], keys["physical"]
    entries["seconds"][1:], entries["previous"][1:] = np.clip(seconds, 0, layout.INDEX_SECONDS_MAX), previous
    heads = np.zeros(slots, ">i4")
    heads[slot] = np.arange(1, count + 1)  # of several the last one stays
    header = INDEX_HEAD.pack(
        begin,
        int(stored[-1]),
        int(keys["physical"][0]),
        int(keys["physical"][-1]),
        int((previous == 0).sum()),
        count + 1,
    )
    return header + heads.tobytes() + entries.tobytes()


def _size(table: Mapping[str, object], name: str, default: int) -> int:
    value = table.get(name)
    return value if isinstance(value, int) and value > 0 else default


def _queue_size(folder: Path) -> int:
    """What the consume queues' files there are measure: RocketMQ writes its sizes nowhere."""
    for path in (folder / "consumequeue").glob("*/*/*"):
        if path.stat().st_size and path.stat().st_size % ENTRY.itemsize == 0:
            return path.stat().st_size
    return 6_000_000


def _estimate(segments: list[logfiles.LogSegment]) -> int:
    """How many records there are, about: from the first megabyte."""
    sample = Piece(segments[0], 0, min(segments[0].end, 1 << 20))
    found = sum(len(w.topic) for w in derive.windows(sample) if not isinstance(w, Damage))
    return found * sum(segment.end for segment in segments) // max(sample.end, 1)


@contextmanager
def _locked(path: Path, flags: int, why: str) -> Iterator[None]:
    """With a file's or folder's lock, as a broker takes the one of its store. `Locked` when another process has it."""
    fd = os.open(path, flags, 0o644)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Locked(why) from None
        yield
    finally:
        os.close(fd)


def _swap(folder: Path, out: Path) -> None:
    quarantine = folder / "lost+found" / time.strftime("reindex-%Y%m%d%H%M%S")
    quarantine.mkdir(parents=True, exist_ok=True)
    for name in ("consumequeue", "index"):
        if (folder / name).exists():
            (folder / name).rename(quarantine / name)
        if (out / name).exists():
            (out / name).rename(folder / name)
    if out.is_dir() and not any(out.iterdir()):
        out.rmdir()
