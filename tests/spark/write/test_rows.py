"""Rows to messages, without Spark: where they go, what they carry, and what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.spool import pieces
from penstock.client.routes import MessageQueue
from penstock.client.sending import by_sharding_key
from penstock.errors import ConfigError
from penstock.spark.write import options as sinkoptions
from penstock.spark.write.rows import Rejected, RowEncoder
from penstock.wire.record import decode_batch, open_body, parse_properties

QUEUES = [MessageQueue("T", broker, n) for broker in ("broker-a", "broker-b") for n in range(2)]


def messages(columns: dict[str, Any], **options: Any) -> list[tuple[MessageQueue, bool, bytes, dict[str, str]]]:
    """What a batch of these columns becomes: (queue, delayed, body, properties)."""
    rows = RowEncoder(lambda topic: [q._replace(topic=topic) for q in QUEUES], **({"topic": "T"} | options))
    found = []
    for piece in rows.pieces(pa.record_batch(columns)):
        for inner in pieces(piece.data):
            items = decode_batch(inner.messages)
            assert (inner.topic.decode(), inner.queue_id) == (piece.queue.topic, piece.queue.queue_id)
            assert len(items) == inner.count
            for item in items:
                body = open_body(inner.sys_flag, item.body)
                found.append((piece.queue, inner.delayed, body, parse_properties(item.properties.decode())))
    return found


def test_properties_stand_side_by_side() -> None:
    columns = {
        "value": pa.array(["a", "b", "c"]),
        "key": pa.array([b"k", None, b""], pa.binary()),
        "tags": pa.array(["t", None, "u"]),
        "shardingKey": pa.array([None, None, "s"], pa.string()),
        "properties": pa.array([[("p", "1"), ("WAIT", "x")], None, []], pa.map_(pa.string(), pa.string())),
        "headers": pa.array(
            [[{"key": "h", "value": b"2"}], [{"key": "h", "value": None}], None],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    }
    assert {body: properties for _, _, body, properties in messages(columns)} == {
        b"a": {"KEYS": "k", "TAGS": "t", "p": "1", "h": "2"},
        b"b": {},
        b"c": {"TAGS": "u", "__SHARDINGKEY": "s"},
    }
    keys = pa.array([["x", "y"], None, []], pa.list_(pa.string()))
    listed = {body: properties.get("KEYS") for _, _, body, properties in messages(columns | {"keys": keys})}
    assert listed == {b"a": "x y", b"b": None, b"c": None}


def test_a_message_that_is_passed_on_keeps_its_sharding_key() -> None:
    """As replay, redrive and copies of a topic do: it goes where its like are, whatever its other keys."""
    columns = {
        "value": pa.array(["a", "b", "c", "d"]),
        "key": pa.array(["k1", "k2", "k3", "k4"]),
        "properties": pa.array(
            [[("__SHARDINGKEY", "s"), ("p", "1")], [("__SHARDINGKEY", "s")], [("__SHARDINGKEY", "other")], None],
            pa.map_(pa.string(), pa.string()),
        ),
    }
    found = {body: (queue, properties) for queue, _, body, properties in messages(columns)}
    assert found[b"a"] == (by_sharding_key("s", QUEUES), {"KEYS": "k1", "__SHARDINGKEY": "s", "p": "1"})
    assert found[b"b"] == (by_sharding_key("s", QUEUES), {"KEYS": "k2", "__SHARDINGKEY": "s"})
    assert found[b"d"] == (by_sharding_key("k4", QUEUES), {"KEYS": "k4"})
    own = columns | {"shardingKey": pa.array([None, None, "s", None], pa.string())}
    assert {body: p.get("__SHARDINGKEY") for _, _, body, p in messages(own)} == {
        b"a": "s",
        b"b": "s",
        b"c": "s",
        b"d": None,
    }


def test_keys_and_tags_among_the_properties_count_where_no_column_says_them() -> None:
    columns = {
        "value": pa.array(["a"]),
        "properties": pa.array([[("KEYS", "k l"), ("TAGS", "t"), ("p", "1")]], pa.map_(pa.string(), pa.string())),
    }
    none, own = pa.array([None], pa.string()), pa.array(["own"])
    for more, expected in (
        ({}, {"KEYS": "k l", "TAGS": "t", "p": "1"}),
        ({"tags": none, "key": none}, {"p": "1"}),
        ({"tags": own}, {"KEYS": "k l", "TAGS": "own", "p": "1"}),
        ({"keys": pa.array([["x"]], pa.list_(pa.string()))}, {"KEYS": "x", "TAGS": "t", "p": "1"}),
    ):
        assert [properties for *_, properties in messages(columns | more)] == [expected]


def test_a_null_among_keys_is_none_of_them() -> None:
    keys = pa.array([["x", None, "y"], [None], None], pa.list_(pa.string()))
    columns = {"value": pa.array(["a", "b", "c"]), "keys": keys, "key": pa.array(["k"] * 3)}
    assert {body: properties.get("KEYS") for _, _, body, properties in messages(columns)} == {
        b"a": "x y", b"b": None, b"c": "k",
    }  # fmt: skip


def test_long_offsets_of_arrow_are_taken() -> None:
    """As Spark makes them with spark.sql.execution.arrow.useLargeVarTypes."""
    columns = {
        "value": pa.array([b"a", b"bb"], pa.large_binary()),
        "tags": pa.array(["t", None], pa.large_string()),
        "key": pa.array(["k", "kk"], pa.large_string()),
        "topic": pa.array(["X", "Y"], pa.large_string()),
        "keys": pa.array([None, ["x", "y"]], pa.list_(pa.large_string())),
        "properties": pa.array([[("p", "1")], []], pa.map_(pa.large_string(), pa.large_string())),
    }
    found = {body: (queue.topic, properties) for queue, _, body, properties in messages(columns, topic=None)}
    assert found == {b"a": ("X", {"KEYS": "k", "TAGS": "t", "p": "1"}), b"bb": ("Y", {"KEYS": "x y"})}


@given(
    st.lists(
        st.tuples(st.binary(max_size=40), st.none() | st.text(st.characters(min_codepoint=32), max_size=9)), min_size=1
    ),
    st.integers(60, 400),
    st.booleans(),
)
def test_every_row_is_there_once_and_in_order_of_its_key(
    rows: list[tuple[bytes, str | None]], piece_bytes: int, compress: bool
) -> None:
    columns = {
        "value": pa.array([value for value, _ in rows], pa.binary()),
        "key": pa.array([None if key is None else key.encode() for _, key in rows], pa.binary()),
    }
    found = messages(columns, piece_bytes=piece_bytes, compress=compress)
    assert sorted(body for _, _, body, _ in found) == sorted(value for value, _ in rows)
    for key in {key for _, key in rows if key}:
        assert [m[2] for m in found if m[3].get("KEYS") == key] == [value for value, k in rows if k == key]
        assert {m[0] for m in found if m[3].get("KEYS") == key} == {by_sharding_key(key, QUEUES)}


def test_where_rows_go() -> None:
    columns = {
        "value": pa.array([b"a", b"b", b"c"]),
        "partition": pa.array([3, None, 0], pa.int32()),
        "topic": pa.array(["X", "Y", "X"]),
    }
    placed = {body: queue for queue, _, body, _ in messages(columns, topic=None, turn=2)}
    assert placed == {
        b"a": MessageQueue("X", "broker-b", 1), b"b": MessageQueue("Y", "broker-b", 0), b"c": MessageQueue("X", "broker-a", 0),
    }  # fmt: skip
    assert {queue.topic for queue, *_ in messages(columns)} == {"T"}
    spread = [queue for queue, *_ in messages({"value": pa.array([b"x"] * 400)})]
    assert [spread.count(queue) for queue in QUEUES] == [100] * 4


def test_delays() -> None:
    columns = {
        "value": pa.array([b"a", b"b", b"c"]),
        "delayMs": pa.array([None, 60_000, 1], pa.int64()),
        "deliverAt": pa.array([None, None, 2_000_000_000_000_000], pa.timestamp("us", "UTC")),
    }
    found = {body: (delayed, p.get("TIMER_DELIVER_MS")) for _, delayed, body, p in messages(columns)}
    assert found[b"a"] == (False, None)
    assert found[b"c"] == (True, "2000000000000")
    assert found[b"b"][0] is True
    odd = {
        "value": pa.array([b"never", b"now"]),
        "delayMs": pa.array([(1 << 63) - 1, -(1 << 63)], pa.int64()),
    }
    due = {body: int(p["TIMER_DELIVER_MS"]) for _, _, body, p in messages(odd)}
    assert due[b"never"] > 10**15 > due[b"now"] > 10**12
    old = {"value": pa.array([b"x"]), "deliverAt": pa.array([-5_000_000], pa.timestamp("us", "UTC"))}
    assert [p["TIMER_DELIVER_MS"] for *_, p in messages(old)] == ["0"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"value": pa.array([b"x", None])}, "row 1 of this partition has no value"),
        ({"value": pa.array([b"x"]), "partition": pa.array([4])}, "is for queue 4: T has 4"),
        ({"value": pa.array([b"x"]), "partition": pa.array([-2])}, "is for queue -2"),
        ({"value": pa.array([b"x"] * 2), "topic": pa.array(["T", ""])}, "row 1 of this partition is for topic ''"),
        (
            {"value": pa.array([b"x"] * 2), "topic": pa.array(["a b", "T"])},
            "row 0 of this partition is for topic 'a b'",
        ),
        (
            {"value": pa.array(["x", "y"]), "tags": pa.array(["ok", "a\x01b"])},
            "row 1 of this partition has a byte 1 or 2",
        ),
        ({"value": pa.array([b"x"]), "key": pa.array([b"\xff"])}, "not UTF-8"),
        (
            {
                "value": pa.array([b"x"]),
                "headers": pa.array(
                    [[{"key": None, "value": b"2"}]],
                    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
                ),
            },
            "row 0 of this partition: a header has no key",
        ),
        (
            {
                "value": pa.array([b"x"]),
                "headers": pa.array(
                    [[{"key": "id", "value": b"\xff"}]],
                    pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
                ),
            },
            "row 0 of this partition: header id is not UTF-8 text",
        ),
        (
            {
                "value": pa.array([b"x"] * 2),
                "properties": pa.array([[("a", b"b")], [("a", b"\xff")]], pa.map_(pa.string(), pa.binary())).view(
                    pa.map_(pa.string(), pa.string())
                ),
            },
            "row 1 of this partition has properties or headers that are not UTF-8 text",
        ),
        ({"value": pa.array([b"x" * (4 << 20) + b"y"])}, "more than 4194304 bytes"),
        ({"value": pa.array([b"x"]), "tags": pa.array(["t" * 40_000])}, "bytes of properties"),
    ],
)
def test_rows_that_cannot_be_messages(columns: dict[str, Any], said: str) -> None:
    with pytest.raises(Rejected) as error:
        messages(columns, topic=None if "topic" in columns else "T")
    assert said in str(error.value)
    if "topic" not in columns:
        with pytest.raises(Rejected, match="row 0 of this partition has no topic"):
            messages({"value": pa.array([b"x"]), "topic": pa.array([None], pa.string())}, topic=None)


# -- options and columns


def table(*columns: Any) -> Any:
    """What is looked at of a StructType."""
    kinds = [(name, SimpleNamespace(simpleString=lambda kind=kind: kind)) for name, kind in columns]
    return SimpleNamespace(fields=[SimpleNamespace(name=name, dataType=kind) for name, kind in kinds])


@pytest.mark.parametrize(
    ("ddl", "options", "said"),
    [
        ("value string", {}, "no topic given"),
        ("valu string", {"topic": "t"}, "did you mean value"),
        ("value int", {"topic": "t"}, "column value is int"),
        ("key string", {"topic": "t"}, "no column value"),
        ("value string, tag string", {"topic": "t"}, "did you mean tags"),
        ("value string", {"topik": "t"}, "did you mean topic"),
        ("value string", {"topic": "t", "commitMode": "all"}, "must be one of batch, partition, none"),
        ("value string", {"topic": "t", "path": "u"}, "exclude each other"),
        ("value string", {"topic": "t", "batchBytes": "9m"}, "at most 8388608"),
        ("value string", {"topic": "t", "batchBytes": "5m", "commitMode": "none"}, "at most 4194304"),
        ("value string, delayMs bigint", {"topic": "t", "commitMode": "none"}, "needs commitMode batch"),
    ],
)
def test_what_cannot_be_written(ddl: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        found = sinkoptions.parse(options)
        sinkoptions.check(table(*(word.split() for word in ddl.split(", "))), found)
    assert said in str(error.value)


def test_rows_can_be_passed_on_as_they_were_read() -> None:
    from penstock.spark import schema

    every = table(*((column.name, column.type) for column in schema.COLUMNS))
    sinkoptions.check(every, sinkoptions.parse({"TOPIC": "t", "JobId": "j"}))


def test_which_options_are_a_sinks() -> None:
    assert sinkoptions.for_writing({"checkpointLocation": "/c"})
    assert sinkoptions.for_writing({"JOBID": "j"})
    assert not sinkoptions.for_writing({"topic": "t", "registry": "r", "path": "p"})
