"""`client.received`: the compiled pass gives what `wire.record` gives, record for record, also where a broker lies."""

from __future__ import annotations

import copy
import pickle
import random
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isal import isal_zlib

from penstock.client.received import cut_records
from penstock.errors import WireError
from penstock.message import ReceivedMessage
from penstock.wire import layout
from penstock.wire.record import encode_record, iter_records

ALL: frozenset[str] = frozenset()
LOOPBACK6 = bytes(15) + b"\1" + (10911).to_bytes(4)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=9).map(str.encode) | st.binary(max_size=9)
PAIRS = st.lists(
    st.tuples(st.sampled_from([b"TAGS", b"KEYS", b"UNIQ_KEY", b"WAIT", b"", b"TAG"]) | TEXTS, TEXTS), max_size=5
)


def record(
    number: int = 0, body: bytes = b"body", properties: bytes = b"TAGS\1paid\2KEYS\1a b\2", **head: int
) -> bytes:
    return encode_record(b"orders", body, properties, queue_offset=number, physical_offset=300 * number, **head)  # type: ignore[arg-type]


def wide_topic(short: bytes) -> bytes:
    """The same record as RocketMQ 5 writes it, its body being four bytes long."""
    at = layout.BODY + 4
    size = int.from_bytes(short[:4]) + 1
    return size.to_bytes(4) + layout.MAGIC_V2.to_bytes(4) + short[8:at] + b"\0" + short[at:]


@given(
    st.lists(st.tuples(TEXTS, TEXTS, PAIRS, st.booleans(), st.booleans(), st.integers(-(2**63), 2**63 - 1)), max_size=4)
)
def test_any_records(given: list[tuple[bytes, bytes, list[tuple[bytes, bytes]], bool, bool, int]]) -> None:
    data = b"".join(
        encode_record(
            topic,
            body,
            b"\2".join(name + b"\1" + value for name, value in pairs),
            queue_id=number % 7 - 3,
            queue_offset=number,
            physical_offset=number,
            born_ms=number,
            store_ms=number,
            prepared_offset=number,
            reconsume_times=number % 5,
            flag=number % 2**31,
            born_host=LOOPBACK6 if born else bytes(8),
            store_host=LOOPBACK6 if stored else bytes(8),
        )
        for topic, body, pairs, born, stored, number in given
    )
    assert cut_records(data, "a", -(2**63), ALL) == list(iter_records(data, broker="a"))


def test_kinds_of_bodies_and_of_topics() -> None:
    packed, broken = isal_zlib.compress(b"long " * 100), b"\x78\x9cnot zlib"
    data = record(1, packed, sys_flag=1) + record(2, broken, sys_flag=1) + record(3, b"x", sys_flag=1 | 7 << 8)
    data += wide_topic(record(4)) + record(5, b"half", sys_flag=layout.SYS_HALF) + record(6, b"", b"")
    found = cut_records(data, "a", 0, ALL)
    assert found == list(iter_records(data, broker="a"))
    assert [message.undecodable is None for message in found] == [True, False, False, True, True, True]
    assert (found[0].body, found[1].body) == (b"long " * 100, broken)


def test_from_an_offset_on_and_of_some_tags() -> None:
    data = b"".join(
        record(number, properties=b"TAGS\1" + tag) for number, tag in enumerate([b"a", b"b", b"a", b"c", b""])
    )
    assert [message.queue_offset for message in cut_records(data, "", 2, ALL)] == [2, 3, 4]
    assert [message.queue_offset for message in cut_records(data, "", 1, frozenset("ac"))] == [2, 3]


def test_a_message_is_what_it_was() -> None:
    """Equal, printed, hashed, pickled and copied as one that is made by hand."""
    (message,) = cut_records(record(7), "a", 0, ALL)
    twin = ReceivedMessage(
        "orders", b"body", 0, 7, 2100, {"TAGS": "paid", "KEYS": "a b"}, born_host="127.0.0.1:0",
        store_host="127.0.0.1:10911", size=message.size, broker="a",
    )  # fmt: skip
    assert message == twin
    assert repr(message) == repr(twin)
    assert pickle.loads(pickle.dumps(message)) == copy.deepcopy(message) == copy.copy(message) == twin
    assert msgspec.structs.replace(message, topic="other").topic == "other"
    assert (message.tags, message.keys, message.msg_id) == ("paid", ("a", "b"), message.offset_msg_id)
    with pytest.raises(AttributeError, match="immutable"):
        message.body = b""  # type: ignore[misc]


def test_a_message_that_is_kept_keeps_no_answer() -> None:
    data = b"".join(record(number, bytes(100_000)) for number in range(10)) + record(10, b"small")
    before = sys.getrefcount(data)
    kept = cut_records(data, "a", 10, ALL)
    assert sys.getrefcount(data) == before
    assert kept[0].body == b"small"


def outcome(data: bytes) -> list[ReceivedMessage] | str:
    try:
        return cut_records(data, "a", -(2**63), ALL)
    except WireError as error:
        return str(error)


def expected(data: bytes) -> list[ReceivedMessage] | str:
    try:
        return list(iter_records(data, broker="a"))
    except WireError as error:
        return str(error)


@pytest.mark.parametrize("flags", [0, layout.SYS_BORN_IPV6 | layout.SYS_STORE_IPV6, layout.SYS_COMPRESSED])
def test_every_byte_of_a_record_may_lie(flags: int) -> None:
    """Each length and each flag, one byte at a time: never a byte from beside the record, never another error."""
    hosts = {"born_host": LOOPBACK6, "store_host": LOOPBACK6} if flags & layout.SYS_BORN_IPV6 else {}
    lying = encode_record(b"orders", b"body", b"TAGS\1paid", sys_flag=flags, queue_offset=1, **hosts)  # type: ignore[arg-type]
    for at in range(len(lying)):
        for value in (0, 1, 0x10, 0x20, 0x30, 0x7F, 0x80, 0xFF, lying[at] ^ 1, (lying[at] + 1) % 256):
            data = record() + lying[:at] + bytes([value]) + lying[at + 1 :] + record(2)
            assert outcome(data) == expected(data), (at, value)


def test_answers_that_were_cut_or_shuffled() -> None:
    chance = random.Random(11)
    whole = record(1) + wide_topic(record(2)) + record(3, isal_zlib.compress(bytes(300)), sys_flag=1)
    for end in range(len(whole)):
        assert outcome(whole[:end]) == expected(whole[:end])
    for _ in range(2_000):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        assert outcome(bytes(data)) == expected(bytes(data))


def test_a_short_record_that_claims_long_hosts() -> None:
    """The least size there is, with hosts of 20 bytes: the record's end lies before its own fields."""
    short = encode_record(b"", b"", queue_offset=1)
    data = short[: layout.SYS_FLAG] + (0x30).to_bytes(4) + short[layout.BORN_MS :]
    assert outcome(data) == expected(data) == f"no record at byte 0 of {len(data)}"
