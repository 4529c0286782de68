"""The kernel, its numpy twin and a plain reader see the same rows in any records."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spark_records import Record, read_plainly

from penstock.errors import Corrupt
from penstock.spark import decode, numpydecode, schema
from penstock.spark.batches import Batches

DECODERS = [pytest.param(decode.Decoder, id="kernel"), pytest.param(numpydecode.Decoder, id="numpy")]
ALL = schema.arrow_of(tuple(schema.BY_NAME))

name = st.binary(min_size=0, max_size=9).filter(lambda b: 1 not in b and 2 not in b)
pair = st.one_of(
    st.tuples(name, st.binary(max_size=12).filter(lambda b: 2 not in b)).map(b"\1".join),
    st.tuples(
        st.sampled_from([b"KEYS", b"TAGS", b"UNIQ_KEY", b"KEYSX", b"TAG"]),
        st.sampled_from([b"", b"a", b"a b", b" a  b ", b"TagA", "grün".encode()]),
    ).map(b"\1".join),
    st.binary(max_size=4).filter(lambda b: 2 not in b),
)
properties = st.tuples(st.lists(pair, max_size=5).map(b"\2".join), st.sampled_from([b"", b"\2"])).map(b"".join)
host = st.tuples(
    st.one_of(st.binary(min_size=4, max_size=4), st.binary(min_size=16, max_size=16)), st.integers(0, 99999)
)


@st.composite
def records(draw: Any) -> list[Record]:
    made = []
    for offset in range(draw(st.integers(0, 12))):
        packed = draw(st.booleans())
        body = draw(st.binary(max_size=40))
        made.append(
            Record(
                offset=offset + 100,
                body=zlib.compress(body) if packed else body,
                sys_flag=int(packed) | draw(st.sampled_from([0, 2, 4])),
                queue_id=draw(st.integers(0, 7)),
                topic=draw(st.sampled_from([b"t", b"orders", b"%RETRY%g", b"x" * 127])),
                properties=draw(properties),
                flag=draw(st.integers(-(2**31), 2**31 - 1)),
                physical=draw(st.integers(0, 2**62)),
                born_ms=draw(st.integers(0, 2**63 - 1)),
                born=draw(host),
                store=draw(host),
                reconsumed=draw(st.integers(0, 99)),
                crc=draw(st.sampled_from([None, 7])),
            )
        )
    return made


def rows(decoder: Any, data: bytes, first: int = 0, until: int = 1 << 60, **limits: int) -> list[dict[str, object]]:
    out = []
    for batch in Batches(ALL, broker="b", decoder=decoder).of(data, first, until, **limits):
        batch.validate(full=True)
        columns = [
            batch.column(i).cast(pa.int64()) if pa.types.is_timestamp(field.type) else batch.column(i)
            for i, field in enumerate(batch.schema)
        ]
        out += pa.RecordBatch.from_arrays(columns, names=ALL.names).to_pylist()
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
    sizes = lambda **limits: [b.num_rows for b in Batches(offset, decoder=decoder()).of(data, 0, 99, **limits)]  # noqa: E731
    assert sizes(rows_max=4) == [4, 4, 2]
    assert sizes(bytes_max=3 * len(data) // 10) == [3, 3, 3, 1]
    assert sizes(bytes_max=1) == [1] * 10


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
