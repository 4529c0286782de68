"""Columns: bytes, words, pairs and sums of the rows that a decoder has framed."""

from __future__ import annotations

import numpy as np
from spark_records import Record

from penstock.spark.kernel.columns import Columns
from penstock.spark.kernel.decode import Decoder

BODY = 1


def framed(*records: Record) -> Columns:
    decoder = Decoder()
    decoder.choose((), 0, 1 << 62, False, False)
    data = b"".join(record.encode() for record in records)
    assert decoder.load(data, 0, 1 << 60) == len(records)
    assert decoder.frame(0, 100, 1 << 20, True) == len(records)
    return Columns(decoder)


def test_bodies_and_sums() -> None:
    columns = framed(Record(0, b"one"), Record(1, b""), Record(2, b"three", crc=5))
    _, offsets, data, nulls = columns.binary(BODY)
    assert (offsets.tolist(), data.tobytes()[:8], nulls) == ([0, 3, 3, 8], b"onethree", 0)
    assert int(columns.intact()[0]) & 0b111 == 0b011
    positions, lengths = columns.spans(BODY)
    assert lengths.tolist() == [3, 0, 5]
    assert np.all(np.diff(positions) > 0)


def test_numbers_and_times() -> None:
    columns = framed(Record(7, queue_id=3, stored_ms=5), Record(8, queue_id=4, stored_ms=1 << 60))
    positions, _ = columns.spans(0)
    assert len(positions) == 2
    names, values = columns.pairs(False)[0], columns.pairs(True)[0]
    assert (names.tolist(), values.tolist()) == ([0, 0, 0], [0, 0, 0])
