"""Trace records, as RocketMQ's clients write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire import traces
from penstock.wire.traces import Trace

JAVA = (  # what a Java 4.9.7 client writes
    b"Pub\x011795384072611\x01DefaultRegion\x01PG\x01orders\x017F00000100\x01TagA\x01k1 k2\x01127.0.0.1:10911\x015\x013\x010"
    b"\x017F00000100002A9F0000000000000000\x01true\x02"
    b"SubBefore\x011795384072700\x01null\x01CG\x01R1\x017F00000100\x012\x01null\x02"
    b"SubAfter\x01R1\x017F00000100\x0112\x01false\x01null\x014\x011795384072712\x01CG\x02"
    b"EndTransaction\x011795384072800\x01DefaultRegion\x01PG\x01orders\x017F00000100\x01null\x01null\x01127.0.0.1:10911\x012\x01T1"
    b"\x01COMMIT_MESSAGE\x01true\x02"
)


def test_what_java_writes_is_read() -> None:
    sent, before, after, ended = traces.read(JAVA)
    assert (sent.what, sent.time_ms, sent.group, sent.topic, sent.msg_id) == (
        "Pub",
        1795384072611,
        "PG",
        "orders",
        "7F00000100",
    )
    assert (sent.tags, sent.keys, sent.host, sent.body_bytes, sent.cost_ms) == (
        "TagA",
        "k1 k2",
        "127.0.0.1:10911",
        5,
        3,
    )
    assert (sent.offset_msg_id, sent.success) == ("7F00000100002A9F0000000000000000", True)
    assert (before.group, before.request_id, before.retry_times, before.keys) == ("CG", "R1", 2, "")
    assert (after.request_id, after.cost_ms, after.success, after.code, after.group) == (
        "R1",
        12,
        False,
        traces.FAILED,
        "CG",
    )
    assert (ended.transaction_id, ended.state, ended.from_check) == ("T1", "COMMIT_MESSAGE", True)
    assert traces.in_order([after, sent, before, sent]) == [sent, before, after]


def test_older_and_newer_records_are_read() -> None:
    (older,) = traces.read(b"SubAfter\x01R\x01M\x013\x01true\x01k\x010\x02")
    assert (older.time_ms, older.group, older.success) == (0, "", True)
    (newer,) = traces.read(JAVA.split(b"\x02")[0] + b"\x0110.0.0.1\x02")
    assert newer.success


text = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"])).filter(lambda t: t != "null")
number = st.integers(0, 1 << 40)


@given(st.sampled_from(["Pub", "EndTransaction"]), number, st.tuples(*[text] * 6), st.integers(0, 3))
def test_what_is_written_is_read(what: str, time_ms: int, said: tuple[str, ...], kind: int) -> None:
    msg_id, group, topic, tags, keys, host = said
    trace = Trace(what, msg_id, time_ms, group, topic, tags, keys, host, msg_type=kind)
    assert list(traces.read(trace.encode().encode())) == [trace]


@pytest.mark.parametrize("fields", [(True, 0), (False, 4)])
def test_work_on_a_message(fields: tuple[bool, int]) -> None:
    before = Trace("SubBefore", "M", 5, "G", keys="a b", request_id="R", retry_times=1)
    after = Trace("SubAfter", "M", 9, "G", keys="a b", cost_ms=4, success=fields[0], request_id="R", code=fields[1])
    assert list(traces.read((before.encode() + after.encode()).encode())) == [before, after]
    assert before.index_keys == ["M", "a", "b"]


@given(st.binary())
def test_what_is_no_record_is_passed_over(junk: bytes) -> None:
    list(traces.read(junk))
    cut = JAVA[: len(junk) % len(JAVA)]
    assert len(list(traces.read(cut))) <= 4
    assert list(traces.read(b"Pub\x01x\x02" + b"Other\x01" * 20)) == []
