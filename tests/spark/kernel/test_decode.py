"""The kernel, its numpy twin and a plain reader see the same rows in any records."""

from __future__ import annotations

import zlib
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_records import Record, read_plainly
from spark_strategies import records

from penstock.errors import Corrupt
from penstock.spark import schema
from penstock.spark.kernel import decode, numpydecode
from penstock.spark.kernel.batches import _PLAIN, SHEETS, Batches

DECODERS = [pytest.param(decode.Decoder, id="kernel"), pytest.param(numpydecode.Decoder, id="numpy")]
ALL = schema.arrow_of(tuple(schema.BY_NAME))


def plain(batch: pa.RecordBatch) -> list[dict[str, object]]:
    """The rows; times as numbers, because Python has not all of them."""
    columns = [batch.column(i) for i in range(batch.num_columns)]
    columns = [column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()  # type: ignore[no-any-return]


def rows(decoder: Any, data: bytes, first: int = 0, until: int = 1 << 60, **limits: int) -> list[dict[str, object]]:
    out = []
    for batch in Batches(ALL, broker="b", decoder=decoder, **limits).of(data, first, until):  # type: ignore[arg-type]
        batch.validate(full=True)
        out += plain(batch)
    for row in out:
        assert row.pop("broker") == "b"
        row.pop("delayUntil")
        row["headers"] = [(pair["key"], pair["value"]) for pair in row["headers"]]
    return out


@settings(max_examples=150, deadline=None)
@given(made=records(), rows_max=st.integers(1, 5), bytes_max=st.integers(1, 2000))
def test_three_readers_agree(made: list[Record], rows_max: int, bytes_max: int) -> None:
    data = b"".join(record.encode() for record in made)
    expected = read_plainly(data)
    assert rows(decode.Decoder(), data, rows_max=rows_max, bytes_max=bytes_max) == expected
    assert rows(numpydecode.Decoder(), data, rows_max=rows_max, bytes_max=bytes_max) == expected
    assert rows(decode.Decoder(), data) == rows(numpydecode.Decoder(), data) == expected


@settings(max_examples=60, deadline=None)
@given(
    made=records(), first=st.integers(95, 115), until=st.integers(95, 115), tagged=st.booleans(), keyed=st.booleans()
)
def test_selection_is_the_same_as_filtering_afterwards(
    made: list[Record], first: int, until: int, tagged: bool, keyed: bool
) -> None:
    data = b"".join(record.encode() for record in made)
    tags, keys = ((b"TagA", b"a") if tagged else ()), ((b"b",) if keyed else ())
    expected = [
        row
        for row in read_plainly(data)
        if first <= row["offset"] < until
        and (not tagged or row["tags"] in ("TagA", "a"))
        and (not keyed or "b" in (row["keys"] or []))
    ]
    for module in (decode, numpydecode):
        assert rows(module.Decoder(tags, keys), data, first, until) == expected


@pytest.mark.parametrize("decoder", DECODERS)
@settings(max_examples=60, deadline=None)
@given(made=records(), mask=st.lists(st.booleans(), min_size=40, max_size=40))
def test_only_what_a_caller_wants_by_its_properties_stays(decoder: Any, made: list[Record], mask: list[bool]) -> None:
    data = b"".join(record.encode() for record in made)
    asked: list[bytes] = []

    def wanted(properties: bytes) -> bool:
        asked.append(properties)
        return mask[(len(asked) - 1) % len(mask)]

    make = Batches(ALL, decoder=decoder())
    make.decoder.load(data, 0, 1 << 60)
    count = make.decoder.only(wanted)
    offsets = [n for batch in make.feed(count) for n in batch.column("offset").to_pylist()]
    offsets += [n for batch in make.rest() for n in batch.column("offset").to_pylist()]
    assert asked == [record.properties for record in made]
    assert offsets == [record.offset for i, record in enumerate(made) if mask[i % len(mask)]]


@pytest.mark.parametrize("decoder", DECODERS)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), made=records())
def test_damage_is_corrupt_and_never_another_error(decoder: Any, data: Any, made: list[Record]) -> None:
    raw = bytearray(b"".join(record.encode() for record in made))
    if not raw:
        return
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    del raw[data.draw(st.integers(0, len(raw))) :]
    try:
        for batch in Batches(ALL, decoder=decoder()).of(bytes(raw), 0, 1 << 62):
            batch.validate(full=True)
    except Corrupt:
        pass


@pytest.mark.parametrize("decoder", DECODERS)
def test_a_damaged_compressed_body_fails_or_is_null(decoder: Any) -> None:
    packed = Record(0, body=zlib.compress(b"fine"), sys_flag=1)
    broken = replace(packed, offset=1, body=packed.body[:-3])
    data = packed.encode() + broken.encode()
    value = schema.arrow_of(("value",))
    with pytest.raises(Corrupt, match="byte 1"):
        list(Batches(value, decoder=decoder()).of(data, 0, 9))
    (batch,) = Batches(value, decoder=decoder(), keep_damaged=True).of(data, 0, 9)
    assert batch.column(0).to_pylist() == [b"fine", None]


@pytest.mark.parametrize("decoder", DECODERS)
def test_due_and_real_topic_come_from_properties(decoder: Any) -> None:
    data = Record(0, topic=b"%RETRY%g", properties=b"RETRY_TOPIC\1orders\2TIMER_DELIVER_MS\x011700000000000").encode()
    two = schema.arrow_of(("topic", "delayUntil"))
    (batch,) = Batches(two, decoder=decoder(), real_topic=True).of(data, 0, 9)
    assert batch.column(0).to_pylist() == ["orders"]
    assert batch.column(1).cast(pa.int64()).to_pylist() == [1_700_000_000_000_000]


@pytest.mark.parametrize("decoder", DECODERS)
def test_batches_are_cut_by_rows_and_by_bytes(decoder: Any) -> None:
    data = b"".join(Record(i, body=b"x" * 100).encode() for i in range(10))
    offset = schema.arrow_of(("offset",))
    sizes = lambda **limits: [b.num_rows for b in Batches(offset, decoder=decoder(), **limits).of(data, 0, 99)]  # noqa: E731
    assert sizes(rows_max=4) == [4, 4, 2]
    assert sizes(bytes_max=3 * len(data) // 10) == [3, 3, 3, 1]
    assert sizes(bytes_max=1) == [1] * 10


PLAIN = tuple(name for name in schema.BY_NAME if name in _PLAIN)


@settings(max_examples=150, deadline=None)
@given(
    made=records(),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    rows_max=st.integers(1, 5),
    bytes_max=st.integers(1, 2000),
    columns=st.lists(st.sampled_from(PLAIN), min_size=1, unique=True),
)
def test_a_sheet_gathers_the_same_rows_over_several_fetches(
    made: list[Record], cuts: list[int], rows_max: int, bytes_max: int, columns: list[str]
) -> None:
    data = b"".join(record.encode() for record in made)
    arrow = schema.arrow_of(tuple(columns))
    expected = [row for b in Batches(arrow, decoder=numpydecode.Decoder()).of(data, 0, 1 << 60) for row in plain(b)]
    make = Batches(arrow, decoder=decode.Decoder(), rows_max=rows_max, bytes_max=bytes_max)
    edges = [0, *sorted(min(cut, len(made)) for cut in cuts), len(made)]
    found = []
    for begin, end in pairwise(edges):
        piece = b"".join(record.encode() for record in made[begin:end])
        found += list(make.feed(make.decoder.load(piece, 0, 1 << 60)))
    found += list(make.rest())
    for batch in found:
        batch.validate(full=True)
        assert batch.schema.equals(arrow)
    assert [row for batch in found for row in plain(batch)] == expected


@pytest.mark.skipif(not SHEETS, reason="an uncompiled build has no sheets")
def test_memory_is_used_again_only_when_nobody_holds_the_batch() -> None:
    data = [b"".join(Record(10 * n + i, body=b"%d" % n * 50).encode() for i in range(10)) for n in range(30)]
    make = Batches(schema.arrow_of(("offset", "value")), decoder=decode.Decoder())
    address = lambda batch: batch.column(1).buffers()[2].address  # noqa: E731
    places = {address(batch) for piece in data for batch in make.of(piece, 0, 1 << 60)}
    assert len(places) <= 2  # one being made, one in the hand of this loop
    kept = [batch for piece in data for batch in make.of(piece, 0, 1 << 60)]
    one = kept[3].column(1).slice(2, 1)  # holds the memory as well as the batch does
    del kept[3]
    kept += [batch for piece in data for batch in make.of(piece, 0, 1 << 60)]
    assert one.to_pylist() == [b"3" * 50]
    rows = [row["offset"] for batch in kept for row in batch.to_pylist()]
    assert rows == [i for i in range(300) if i // 10 != 3] + list(range(300))


@pytest.mark.parametrize("decoder", DECODERS)
def test_records_at_known_places_are_the_same_rows(decoder: Any) -> None:
    made = [Record(i, body=b"%d" % i, properties=b"TAGS\1" + (b"a" if i % 2 else b"b")) for i in range(20)]
    segment, starts = b"", []
    for record in made:
        segment += b"other" * (record.offset % 3)  # records of other queues lie between
        starts.append(len(segment))
        segment += replace(record, physical=1000 + len(segment)).encode()
    at = lambda: np.array(starts, np.int32)  # noqa: E731
    two = schema.arrow_of(("offset", "value"))
    make = Batches(two, decoder=decoder())
    (batch,) = make.cut(make.decoder.place(segment, at(), 0, 1000))
    assert batch.to_pylist() == [{"offset": i, "value": b"%d" % i} for i in range(20)]
    make = Batches(two, decoder=decoder((b"a",)))
    (batch,) = make.cut(make.decoder.place(segment, at(), 0, 1000))
    assert batch.column(0).to_pylist() == list(range(1, 20, 2))
    for first, base in ((1, 1000), (0, 999)):
        with pytest.raises(Corrupt, match="not the record"):
            make.decoder.place(segment, at(), first, base)
    with pytest.raises(Corrupt):
        make.decoder.place(segment, at() + np.int32(1), 0, 1000)
