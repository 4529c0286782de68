"""What a broker derives from its commit log, computed again from pieces of it: consume-queue entries and index keys.

A table per window, one row per record in the order of the log (numpy arrays); `audit` compares it with the files
beside the log, `reindex` writes those files again. Rules as in `log/store.py`: halves and rollbacks of transactions stand in no
consume queue, rollbacks in no index; entries of delayed messages carry the due time in place of the tags code.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from penstock.log.options import MESSAGE_DELAY_LEVEL, delay_levels
from penstock.schedule.delays import TIMERS
from penstock.spark.kernel import batches
from penstock.spark.kernel.buffers import FIRST_MS, LAST_MS, DecodedColumns, Flags, Ints, Longs, Octets, RecordDecoder
from penstock.spark.kernel.rowtable import KEYS, PROPERTIES, START, STORE, TAGS, TOPIC, UNIQUE
from penstock.spark.log import files as logfiles
from penstock.spark.log.files import Damage, Piece
from penstock.wire import layout
from penstock.wire.names import SCHEDULE_TOPIC, TIMER_TOPIC
from penstock.wire.record import java_hash

_DUE = tuple((timer.name.encode(), timer.unit, int(timer.relative)) for timer in TIMERS)
_MULTIPLIER = np.uint32(31)


@dataclass
class LogWindow:
    """The records of one window; `topic` is an index into `topics`, `begin` where the window starts in its file."""

    data: bytes
    begin: int
    topics: list[bytes]
    topic: Longs
    queue: Ints
    offset: Longs
    physical: Longs
    size: Ints
    code: Longs
    tag: Longs  # the code of the tag
    late: Flags  # delayed: `code` is a timestamp, which a restarted broker writes as the tag's code instead
    kind: Ints  # of transaction: 0, 4 half, 8 commit, 12 rollback
    stored: Longs
    start: Longs  # in the window
    columns: DecodedColumns

    def keys(self) -> tuple[Longs, Longs]:
        """(row, hash) of every key the index holds, in the index's order: a record's unique key, then its keys."""
        seeds = [java_hash(name.decode("utf-8", "replace") + "#") & 0xFFFFFFFF for name in self.topics]
        seed = np.array(seeds or [0], np.uint32)[self.topic]
        valid, edges, data, _ = self.columns.binary(UNIQUE)
        rows = np.arange(len(self.topic))
        if valid is not None:
            rows = rows[np.unpackbits(valid, count=len(rows), bitorder="little").astype(bool)]
        unique = _hashes(data, edges[rows], edges[rows + 1], seed[rows])
        _, lists, items, words, _ = self.columns.words(KEYS)
        of_row = np.repeat(np.arange(len(self.topic)), np.diff(lists))
        named = _hashes(words, items[:-1], items[1:], seed[of_row])
        row, hashes = np.concatenate([rows, of_row]), np.concatenate([unique, named])
        keep = self.kind[row] != 12
        order = np.argsort(row[keep], kind="stable")
        return row[keep][order], hashes[keep][order]


def windows(piece: Piece, delays: tuple[int, ...] | None = None) -> Iterator[LogWindow | Damage]:
    """The records of a piece and the damage between them, in order."""
    decoder = batches.decoder_of()
    decoder.choose((), FIRST_MS, LAST_MS, False, True, True)
    levels = delay_levels(MESSAGE_DELAY_LEVEL) if delays is None else delays
    for found in logfiles.walk(piece, decoder):
        if isinstance(found, Damage):
            yield found
            continue
        row = 0
        while row < found.number:
            row += decoder.frame(row, found.number - row, 1 << 40, False)
            yield _window(decoder, batches.columns_of(decoder), found.begin, levels)


def _window(decoder: RecordDecoder, columns: DecodedColumns, begin: int, levels: tuple[int, ...]) -> LogWindow:
    names, topic = _numbered(columns, TOPIC)
    tags, tag = _numbered(columns, TAGS)
    of_tag = np.array([_tag_code(name) for name in tags] or [0], np.int64)[tag]
    code, late = of_tag.copy(), np.zeros(len(topic), bool)
    stored = columns.longs(STORE, -8)
    queue = columns.ints(START, 12)
    if SCHEDULE_TOPIC in names:
        mine = topic == names.index(SCHEDULE_TOPIC)
        wait = np.array(levels, np.int64)[np.clip(queue, 0, len(levels) - 1)]
        code = np.where(mine, stored + np.where(queue < 0, 0, wait), code)
        late |= mine
    if TIMER_TOPIC in names:
        mine = topic == names.index(TIMER_TOPIC)
        places, sizes = columns.spans(PROPERTIES)
        for row in np.flatnonzero(mine).tolist():
            code[row] = _due(decoder.owner[places[row] : places[row] + sizes[row]], int(stored[row]), int(code[row]))
        late |= mine
    positions, _ = columns.spans(START)
    return LogWindow(
        decoder.owner, begin, names, topic, queue,
        columns.longs(START, layout.QUEUE_OFFSET), columns.longs(START, layout.PHYSICAL), columns.ints(START, 0),
        code, of_tag, late, columns.ints(START, layout.SYS_FLAG) & layout.SYS_TRANSACTION, stored,
        positions.astype(np.int64), columns,
    )  # fmt: skip


def _due(properties: bytes, stored: int, otherwise: int) -> int:
    """When a message with these properties is due, as the broker counts it."""
    found = dict(pair.partition(b"\1")[::2] for pair in properties.split(b"\2"))
    for name, unit, begin in _DUE:
        if name in found:
            return begin * stored + unit * int(found[name]) if found[name].isdigit() else otherwise
    return otherwise


def _numbered(columns: DecodedColumns, span: int) -> tuple[list[bytes], Longs]:
    """(the texts there are, which of them each row has); a missing one is the empty text."""
    import pyarrow as pa

    _, edges, data, _ = columns.binary(span)
    array = pa.Array.from_buffers(
        pa.binary(), len(edges) - 1, [None, pa.py_buffer(edges), pa.py_buffer(np.ascontiguousarray(data))]
    )
    coded = array.dictionary_encode()
    return coded.dictionary.to_pylist(), coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _tag_code(tag: bytes) -> int:
    return java_hash(tag.decode("utf-8", "replace")) if tag else 0


def _hashes(data: Octets, starts: Ints, ends: Ints, seed: NDArray[np.uint32]) -> Longs:
    """The index's hash of each text, going on from a seed: Java's, without its sign."""
    sizes = ends - starts
    out = seed.astype(np.uint32).copy()
    for at in range(int(sizes.max()) if len(sizes) else 0):
        inside = sizes > at
        out[inside] = out[inside] * _MULTIPLIER + data[starts[inside] + at]
    if len(data) and int(data.max()) >= 0x80:  # more than one byte a character: one by one
        for i in np.flatnonzero(sizes):
            text = bytes(data[starts[i] : ends[i]])
            if not text.isascii():
                out[i] = _going_on(int(seed[i]), text)
    signed = out.astype(np.int32).astype(np.int64)
    signed = np.abs(signed)
    return np.where(signed > layout.INDEX_HASH_MAX, 0, signed)


def key_hash(topic: str, key: str) -> int:
    """The hash under which the index holds a key of a topic."""
    found = _going_on(java_hash(topic + "#") & 0xFFFFFFFF, key.encode())
    size = abs(found - (1 << 32) if found >= 1 << 31 else found)
    return 0 if size > layout.INDEX_HASH_MAX else size


def _going_on(seed: int, text: bytes) -> int:
    units = text.decode("utf-8", "replace").encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        seed = (seed * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return seed


def segment_files(folder: str) -> list[tuple[int, str]]:
    """(number, path) of the files of a segmented store, in order."""
    try:
        names = sorted(name for name in os.listdir(folder) if len(name) == 20 and name.isdigit())
    except OSError:
        return []
    return [(int(name), os.path.join(folder, name)) for name in names]
