"""Looking into the files of queue topics without opening them: ready queues, cursors, disk queues, tables. Nothing is written.

`inspect` prints one file, piece by piece, and stops where a segment is known to end: what stands behind that is of an
earlier life of the file. `verify` looks at all of them; the findings are those of `log.verify`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from struct import Struct
from typing import BinaryIO
from zlib import crc32

from penstock.disk import cursorlayout, tables
from penstock.disk import readylayout as layout
from penstock.disk.files import Files
from penstock.disk.queuefiles import Paths, RecordFile, Sums, load_sums, queues_in, read_meta
from penstock.disk.segmenthead import NOT_CLEAN, parse_head
from penstock.errors import StoreError

Entry = dict[str, object]
Add = Callable[[str, str, str, int, int], None]  # level, file, why, from, to

_RECORD = Struct(">BIQHI")  # letter, length, id, attempts, mark
_ENTRY = Struct(">II")
_SLOT = Struct(">QQQ")
_SUM_CHARS = 8
_DATA_HEAD = Struct(">QH16s")  # of a message in a disk queue: timestamp, attempts, id


def inspect(path: Path) -> Iterator[Entry] | None:
    """What stands in a file of the queue side; None when it is none of its files."""
    name = path.name
    if name.endswith(".queue"):
        return _of_queue(path)
    if name.endswith(".sums"):
        return _of_sums(path)
    if name.endswith(".cursor"):
        return _of_cursor(path)
    if name.endswith(".diskqueue.meta.dat"):
        return _of_meta(path)
    if ".diskqueue." in name and name.endswith(".dat"):
        return _of_disk_queue(path)
    if ".diskqueue." in name and name.endswith(".sum"):
        return _of_disk_sums(path)
    if name in ("nsqd.dat", "nsqd.dat.bak"):
        return iter([{"kind": "table", **tables.parse(path.read_bytes().decode("utf-8-sig"))}])
    if name == "deaths.jsonl" or name.endswith((".changes", ".changes.bak")):
        return _of_summed_lines(path)
    return None


def verify(folder: Path, add: Add) -> tuple[int, int]:
    """Look at all ready queues, cursors and disk queues of a data folder; (segments, messages)."""
    segments = messages = 0
    for path in sorted((folder / "queues").glob("*/*.queue")):  # beside the topics lie spares, which are nobody's
        segments += 1
        for entry in _readable(folder, path, "damage", _of_queue(path), add):
            if entry["kind"] == "message":
                messages += 1
            elif entry["kind"] in ("damage", "bad"):
                _add_damage(path.relative_to(folder), entry, add)
            elif entry["kind"] == "unchecked":
                why = "it has no sums: its messages are read as far as their lengths lead on"
                add("note", str(path.relative_to(folder)), why, 0, 0)
    for path in sorted((folder / "queues").glob("**/*.cursor")):
        for entry in _readable(folder, path, "derived", _of_cursor(path), add):
            if entry["kind"] == "bad":
                add("derived", str(path.relative_to(folder)), str(entry["why"]), 0, 0)
    for queue, numbers in sorted(queues_in(Files(), folder).items()):
        messages += _verify_disk_queue(folder, queue, numbers, add)
    if (folder / "nsqd.dat").is_file():
        try:
            tables.parse((folder / "nsqd.dat").read_bytes().decode("utf-8-sig"))
        except ValueError as error:
            add("derived", "nsqd.dat", f"is no table of topics: {error}", 0, 0)
        except OSError as error:
            add("derived", "nsqd.dat", f"cannot be read: {error.strerror or error}", 0, 0)
    return segments, messages


def _readable(folder: Path, path: Path, level: str, entries: Iterator[Entry], add: Add) -> Iterator[Entry]:
    """What stands in a file, as far as the disk gives it."""
    if not path.is_file() and path.exists():  # opening a pipe would wait for a writer
        add(level, str(path.relative_to(folder)), "cannot be read: it is no file", 0, 0)
        return
    try:
        yield from entries
    except (OSError, StoreError) as error:
        if not os.path.lexists(path):  # a broker at work there has no need of it any more
            return
        why = str(error) if isinstance(error, StoreError) else error.strerror or error
        add(level, str(path.relative_to(folder)), f"it, or what belongs to it, cannot be read to its end: {why}", 0, 0)


def _add_damage(name: Path, entry: Entry, add: Add) -> None:
    at, size = entry.get("position", 0), entry.get("size", 0)
    assert isinstance(at, int)
    assert isinstance(size, int)
    add("damage", str(name), str(entry["why"]), at, at + size)


# -- ready queues ----------------------------------------------------------------------------------------------------


def _head(sums: BinaryIO) -> tuple[int, int, int] | None:
    """(life, first ordinal, messages when it was stopped cleanly or -1) as a sums file says it in the newer copy of its head."""
    fd = sums.fileno()
    places = (0, max(0, os.fstat(fd).st_size - layout.HEAD_BYTES))
    copies = [parse_head(os.pread(fd, layout.HEAD_BYTES, at)) for at in places]
    head = max((copy for copy in copies if copy is not None), key=lambda copy: copy.life, default=None)
    return None if head is None else (head.life, head.first, -1 if head.records == NOT_CLEAN else head.records)


def _entries(sums: BinaryIO, count: int) -> Iterator[tuple[int, int]]:
    """(start, sum) of each message: as many as the head says, or as many as there are."""
    sums.seek(layout.START)
    n = 0
    while n != count and len(data := sums.read(_ENTRY.size)) == _ENTRY.size:
        start, crc = _entry(data)
        if count < 0 and _is_end(n, start, crc):
            return
        yield start, crc
        n += 1


def _entry(data: bytes) -> tuple[int, int]:
    start, crc = _ENTRY.unpack(data)
    return start & layout.START_BITS, crc


def _is_end(n: int, start: int, crc: int) -> bool:
    """Whether there is no entry n yet, or no more."""
    return not start and bool(n or not crc)


def _of_queue(path: Path) -> Iterator[Entry]:
    sums_path = path.with_suffix(".sums")
    stamped = path.parent.name.endswith(".again")
    with ExitStack() as stack:
        sums = stack.enter_context(sums_path.open("rb")) if sums_path.is_file() else None
        head = _head(sums) if sums is not None else None
        stream = stack.enter_context(path.open("rb"))
        size = path.stat().st_size
        if sums is not None and head is not None:
            yield from _of_segment(stream, sums, size, head, stamped)
            return
        yield {"kind": "unchecked"}
        at, ordinal = 0, 0
        while (length := _framed(_read(stream, at, layout.BODY), at, size)) > 0:
            yield _message(ordinal, at, _read(stream, at, length), stamped) | {"checked": False}
            at, ordinal = at + length, ordinal + 1


def _of_segment(
    stream: BinaryIO, sums: BinaryIO, size: int, head: tuple[int, int, int], stamped: bool
) -> Iterator[Entry]:
    """A broker at work appends meanwhile, and uses files again that are used up: what seems damaged is looked at again."""
    life, first, count = head
    salt = life * layout.SALT

    def judge(n: int, at: int, crc: int, read: Callable[[int, int], bytes]) -> tuple[int, Entry]:
        """(where message n ends, the message); (0, what is wrong with it)."""
        length = _framed(read(at, layout.BODY), at, size)
        data = read(at, length) if length > 0 else b""
        if length > 0 and crc32(data, ((first + n) ^ salt) & layout.SUM_BITS) == crc:
            return at + length, _message(first + n, at, data, stamped)
        why = "its sum does not hold" if length > 0 else "no message that can be right"
        return 0, {"kind": "damage", "ordinal": first + n, "position": at, "size": max(0, length), "why": why}

    def again(odd: list[int]) -> Iterator[Entry]:
        """As the files are now, past what was read ahead; nothing of those in another life."""
        for n in odd:
            at, crc = _entry(os.pread(sums.fileno(), _ENTRY.size, layout.START + n * _ENTRY.size))
            _, found = judge(n, at, crc, lambda at, length: os.pread(stream.fileno(), length, at))
            now = _head(sums)  # which a new life writes before its messages, and behind the sums it has cleared
            if (now is None or now[:2] == head[:2]) and not (count < 0 and _is_end(n, at, crc)):
                yield found

    odd: list[int] = []
    end = 0
    for n, (at, crc) in enumerate(_entries(sums, count)):
        found_end, found = judge(n, at, crc, lambda at, length: _read(stream, at, length))
        if found_end:
            yield from again(odd)  # behind a message that is whole there is none that never was
            odd = []
            end = found_end
            yield found
        elif crc != layout.NO_SUM or count >= 0:
            odd.append(n)
    if count >= 0:
        yield from again(odd)
    yield {"kind": "end", "position": end, "clean": count >= 0}


def _read(stream: BinaryIO, at: int, length: int) -> bytes:
    stream.seek(at)
    return stream.read(length)


def _framed(head: bytes, at: int, size: int) -> int:
    """The length of what stands there, if it may be a message by its own lengths, else 0."""
    if len(head) < layout.BODY or head[0] != layout.LETTER:
        return 0
    length = int.from_bytes(head[layout.LENGTH : layout.ID]) + layout.ID
    return length if length >= layout.BODY and at + length <= size else 0


def _message(ordinal: int, at: int, data: bytes, stamped: bool) -> Entry:
    _, _, id_, attempts, mark = _RECORD.unpack_from(data)
    body = layout.BODY + (layout.STAMP_BYTES if stamped else 0)
    stamp = int.from_bytes(data[layout.BODY : body]) if stamped else id_
    return {
        "kind": "message", "ordinal": ordinal, "position": at, "size": len(data), "id": f"{id_:016x}", "timestamp": stamp,
        "attempts": attempts, "mark": mark, "bodySize": len(data) - body,
    }  # fmt: skip


def _of_sums(path: Path) -> Iterator[Entry]:
    with path.open("rb") as sums:
        head = _head(sums)
        if head is None:
            yield {"kind": "bad", "why": "neither copy of its head holds"}
            return
        life, first, count = head
        yield {"kind": "header", "first": first, "count": count, "clean": count >= 0, "life": life}
        for n, (start, crc) in enumerate(_entries(sums, count)):
            yield {"kind": "sum", "ordinal": first + n, "position": start, "crc32": f"{crc:08x}"}


# -- cursors ---------------------------------------------------------------------------------------------------------


def _of_cursor(path: Path) -> Iterator[Entry]:
    data = path.read_bytes()
    page = cursorlayout.PAGE_BYTES
    if int.from_bytes(data[:4]) != cursorlayout.MAGIC or len(data) % page:
        yield {"kind": "bad", "why": "it does not begin as a cursor"}
        return
    version = int.from_bytes(data[cursorlayout.VERSION : cursorlayout.VERSION + 4])
    yield {"kind": "header", "version": version, "pages": len(data) // page - 1}
    if version not in (1, cursorlayout.VERSION_NOW):
        yield {"kind": "bad", "why": f"version {version} is none"}
        return
    if version != cursorlayout.VERSION_NOW:
        yield {"kind": "committed", "ordinal": int.from_bytes(data[16:24])}
        return
    slots = []
    for n in range(2):
        turn, committed, check = _SLOT.unpack_from(data, cursorlayout.SLOT + n * cursorlayout.SLOT_BYTES)
        if check == turn ^ committed ^ cursorlayout.CHECK_CONSTANT:
            slots.append((turn, committed))
    if not slots:
        yield {"kind": "bad", "why": "none of its two slots holds"}
        return
    committed = max(slots)[1]
    yield {"kind": "committed", "ordinal": committed}
    for at in range(page, len(data), page):
        first = int.from_bytes(data[at : at + 8])
        bits = data[at + cursorlayout.BITS : at + page]
        found = [8 * n + b for n, byte in enumerate(bits) if byte for b in range(8) if byte >> b & 1]
        beyond = [first + n for n in found if first + n >= committed]
        if beyond:
            yield {"kind": "finished", "first": beyond[0], "last": beyond[-1], "count": len(beyond)}


# -- disk queues -----------------------------------------------------------------------------------------------------


def _disk_records(path: Path, sums: Sums | None, begin: int, end: int) -> Iterator[tuple[int, bytes, bool]]:
    """(place, record, whether it is as its sum says) up to `end`."""
    file = RecordFile(Files(), path)
    try:
        at = begin
        while (record := file.record(at, end)) is not None and len(record) > 4:
            n = -1 if sums is None else sums.find(at)
            told = sums is not None and 0 <= n < len(sums) and sums.start(n) == at
            yield at, record, not told or sums is None or sums.sum_matches(n, record)
            at += len(record)
    finally:
        file.close()


def _of_disk_queue(path: Path) -> Iterator[Entry]:
    queue, _, number = path.name.removesuffix(".dat").rpartition(".diskqueue.")
    meta = read_meta(Files(), Paths(path.parent, queue).meta)
    begin, end = 0, path.stat().st_size
    if meta is not None and number.isdigit():
        _, read, write = meta
        begin = read[1] if read[0] == int(number) else 0
        end = min(end, write[1]) if write[0] == int(number) else end
    sums = load_sums(Files(), path.with_suffix(".sum"))
    for at, record, good in _disk_records(path, sums, begin, end):
        if not good:
            yield {"kind": "damage", "position": at, "size": len(record), "why": "its sum does not hold"}
        elif len(record) >= 4 + _DATA_HEAD.size:
            stamp, attempts, id_ = _DATA_HEAD.unpack_from(record, 4)
            yield {
                "kind": "message", "position": at, "size": len(record), "id": id_.decode("ascii", "backslashreplace"),
                "timestamp": stamp, "attempts": attempts, "bodySize": len(record) - 4 - _DATA_HEAD.size,
            }  # fmt: skip
        else:
            yield {"kind": "record", "position": at, "size": len(record)}
    yield {"kind": "end", "position": end}


def _of_disk_sums(path: Path) -> Iterator[Entry]:
    sums = load_sums(Files(), path)
    if sums is None:
        yield {"kind": "bad", "why": "it does not begin as sums"}
        return
    for n, entry in enumerate(sums.entries):
        yield {
            "kind": "sum",
            "position": sums.start(n),
            "more": sums.more(n),
            "crc32": f"{entry & layout.SUM_BITS:08x}",
        }


def _of_meta(path: Path) -> Iterator[Entry]:
    meta = read_meta(Files(), path)
    if meta is None:
        yield {"kind": "bad", "why": "it is no meta file"}
        return
    depth, read, write = meta
    yield {
        "kind": "meta",
        "depth": depth,
        "readFile": read[0],
        "readAt": read[1],
        "writeFile": write[0],
        "writeAt": write[1],
    }


def _verify_disk_queue(folder: Path, queue: str, numbers: list[int], add: Add) -> int:
    paths = Paths(folder, queue)
    try:
        if paths.meta.is_file() and read_meta(Files(), paths.meta) is None:
            add("derived", paths.meta.name, "is no meta file: a start counts the messages anew", 0, 0)
    except StoreError as error:
        add("derived", paths.meta.name, str(error), 0, 0)
        return 0
    count = 0
    for number in numbers:
        path = paths.data(number)
        for entry in _readable(folder, path, "damage", _of_disk_queue(path), add):
            count += entry["kind"] == "message"
            if entry["kind"] == "damage":
                _add_damage(path.relative_to(folder), entry, add)
    return count


# -- lines -----------------------------------------------------------------------------------------------------------


def _of_summed_lines(path: Path) -> Iterator[Entry]:
    """JSON lines with their CRC-32 in front."""
    for line in path.read_bytes().splitlines():
        text = line[_SUM_CHARS + 1 :]
        if line[:_SUM_CHARS] == b"%08x" % crc32(text):
            yield {"kind": "line", **json.loads(text)}
        else:
            yield {"kind": "damage", "line": line[:200].decode("utf-8", "replace")}
