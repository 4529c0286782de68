"""Commit-log folders for tests, and a reader of them written once more from the format, in thirty lines."""

from __future__ import annotations

import shutil
import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from spark_records import Record, read_plainly


def write_log(store: Path, records: Iterable[Record], size: int = 4096, first: int = 0) -> list[Record]:
    """Segments of `size` bytes as a broker fills them; the records as they were stored."""
    folder = store / "commitlog"
    folder.mkdir(parents=True, exist_ok=True)
    base, data, stored = first, b"", []
    for record in records:
        placed = replace(record, physical=base + len(data))
        if len(data) + len(placed.encode()) + 8 > size:
            (folder / f"{base:020d}").write_bytes(
                (data + struct.pack(">iI", size - len(data), 0xCBD43194)).ljust(size, b"\0")
            )
            base, data = base + size, b""
            placed = replace(record, physical=base)
        data += placed.encode()
        stored.append(placed)
    (folder / f"{base:020d}").write_bytes(data.ljust(size, b"\0"))
    return stored


def good(data: bytes, p: int, base: int) -> bytes:
    """The whole record that stands at p at its own physical offset, or nothing."""
    if len(data) - p < 91 or data[p + 4 : p + 8] != b"\xda\xa3\x20\xa7":
        return b""
    (total,), (physical,) = struct.unpack_from(">i", data, p), struct.unpack_from(">q", data, p + 28)
    hosts = sum(16 if data[p + 39] & bit else 4 for bit in (0x10, 0x20))
    at = p + 76 + hosts
    if physical != base + p or not 91 <= total <= len(data) - p:
        return b""
    for width in (4, 1, 2):
        n = int.from_bytes(data[at : at + width], "big", signed=width == 4)
        at += width + n
        if n < 0 or at > p + total:
            return b""
    return data[p:at] if at == p + total else b""


def is_segment(data: bytes, base: int) -> bool:
    """Whether a file without one whole record may be one: it is blank, or begins with a record's head that belongs there."""
    if not data[:36].strip(b"\0") or data[4:8] == b"\xcb\xd4\x31\x94":
        return True
    return data[4:8] in (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab") and data[28:36] == base.to_bytes(8)


def read_log(store: Path) -> list[dict[str, object]]:
    """The rows of a log, and a row with only a place for each stretch of damage."""
    rows: list[dict[str, object]] = []
    names = sorted((store / "commitlog").iterdir())
    for path in names:
        data, base, p = path.read_bytes(), int(path.name), 0
        while p < len(data):
            record = good(data, p, base)
            if record:
                rows += [row for row in read_plainly(record) if not row["sysFlag"] & 4]  # type: ignore[operator]
                p += len(record)
                continue
            if data[p : p + 8] == struct.pack(">iI", len(data) - p, 0xCBD43194):
                break
            after = next(
                (q for q in range(p + 1, len(data)) if data[q + 5 : q + 6] == b"\xa3" and good(data, q, base)), 0
            )
            if not after and path == names[-1] and (p or is_segment(data, base)):
                break
            rows.append({"physicalOffset": base + p, "size": (after or len(data)) - p, "crcOk": False})
            p = after or len(data)
    return rows


def fill_store(folder: Path, count: int = 400) -> Path:
    """A store of our own broker's making: topics `orders` (3 queues) and `rare`, keys and tags, several segments."""
    from store_parts import make, put, work

    store = make(folder)
    store.open()
    for n in range(count):
        topic, queue = (b"rare", 0) if n % 9 == 0 else (b"orders", n % 3)
        tag = b"odd" if n % 2 else b"even"
        put(store, b"body %d " % n * (n % 9 + 1), topic, queue, b"KEYS\1k%d all\2TAGS\1%s" % (n, tag))
    work(store)
    store.close()
    return folder


def made(count: int) -> list[Record]:
    """Sizes, times, retries and tags of all kinds."""
    return [
        Record(
            n // 2, b"x" * (n * 7 % 90), n % 2, b"orders" if n % 3 else b"bills", b"TAGS\1" + b"abc"[n % 3 :][:1],
            stored_ms=1_700_000_000_000 + n * 700, born_ms=1_700_000_000_000 + n * 700 - n * 13 % 101, reconsumed=n % 4,
        )
        for n in range(count)
    ]  # fmt: skip


def copy(good: Path, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(good, to)
    return to


def flip(path: Path, at: int, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1 << bit]))


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def counted(spark: Any, registry: str, topic: str) -> Counter[int]:
    rows = spark.read.format("penstock").options(registry=registry).load(topic).select("value").collect()
    return Counter(int(bytes(row["value"]).rstrip(b".")) for row in rows)
