"""`wire.record`: golden bytes, round trips, damaged records, bodies that would explode, ids, batches."""

import contextlib
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import WireError
from penstock.msgid import pack_host
from penstock.wire.codes import SYS_BORN_IPV6, SYS_COMPRESSED, SYS_STORE_IPV6
from penstock.wire.record import (
    BatchItem,
    body_crc,
    decode_batch,
    decode_record,
    encode_batch,
    encode_record,
    format_properties,
    iter_records,
    java_hash,
    open_body,
    parse_properties,
    restore_properties,
    tags_code,
)

UNIQ = "7F0000010002A9F0000000000000ABCD"
PROPERTIES = f"KEYS\x01k1 k2\x02UNIQ_KEY\x01{UNIQ}\x02CLUSTER\x01DefaultCluster\x02TAGS\x01TagA".encode()
# a record of a real 4.9.8 broker, with another UNIQ_KEY
GOLDEN = (
    bytes.fromhex(
        "000000bb daa320a7 3610a686 00000001 00000000 0000000000000000 0000000000000000 00000000 0000018bcfe5687b"
        "7f000001 00009f1a 000001a1f93a5acc 7f000001 00002a9f 00000000 0000000000000000 00000005 68656c6c6f 06"
        "546f70696341 0055"
    )
    + PROPERTIES
)


def test_golden_record() -> None:
    assert len(PROPERTIES) == 0x55
    assert len(GOLDEN) == 187
    record = decode_record(GOLDEN, check=True)
    assert record is not None
    assert (record.topic, record.body, record.queue_id, record.queue_offset) == ("TopicA", b"hello", 1, 0)
    assert (record.born_host, record.store_host) == ("127.0.0.1:40730", "127.0.0.1:10911")
    assert (record.tags, record.keys, record.uniq_key, record.size) == ("TagA", ("k1", "k2"), UNIQ, 187)
    assert (record.born_ms, record.store_ms) == (0x18BCFE5687B, 0x1A1F93A5ACC)
    assert (record.msg_id, record.offset_msg_id) == (UNIQ, "7F00000100002A9F0000000000000000")
    written = encode_record(
        b"TopicA",
        b"hello",
        PROPERTIES,
        queue_id=1,
        born_ms=record.born_ms,
        born_host=pack_host(record.born_host),
        store_ms=record.store_ms,
        store_host=pack_host(record.store_host),
    )
    assert written == GOLDEN


def test_golden_hashes() -> None:
    assert tags_code("TagA") == 2598919 == 0x27A807
    assert java_hash("TopicA#k1") == -1903240649
    assert tags_code(None) == tags_code("") == 0
    assert java_hash("中😀") == 20013 * 31 * 31 + 0xD83D * 31 + 0xDE00
    assert body_crc(b"hello") == 0x3610A686


hosts = st.sampled_from(["10.0.0.1:1", "255.255.255.255:65535", "[::1]:10911", "[fe80::1:2]:9"])
longs = st.integers(-(2**63), 2**63 - 1)
ints = st.integers(-(2**31), 2**31 - 1)


@given(
    st.binary(max_size=127), st.binary(max_size=300), st.binary(max_size=100), hosts, hosts, longs, longs, ints, ints
)
def test_round_trip(
    topic: bytes, body: bytes, props: bytes, born: str, store: str, offset: int, ms: int, flag: int, times: int
) -> None:
    raw = encode_record(
        topic,
        body,
        props,
        queue_id=3,
        queue_offset=offset,
        physical_offset=offset,
        flag=flag,
        born_ms=ms,
        born_host=pack_host(born),
        store_ms=ms,
        store_host=pack_host(store),
        reconsume_times=times,
        prepared_offset=offset,
    )
    record = decode_record(b"xyz" + raw, 3, broker="b", check=True)
    assert record is not None
    assert record.topic == topic.decode("utf-8", "replace")
    assert (record.body, record.born_host, record.store_host) == (body, born, store)
    assert (record.queue_offset, record.physical_offset, record.prepared_offset) == (offset, offset, offset)
    assert (record.born_ms, record.store_ms, record.flag, record.reconsume_times) == (ms, ms, flag, times)
    assert bool(record.sys_flag & SYS_BORN_IPV6) == born.startswith("[")
    assert bool(record.sys_flag & SYS_STORE_IPV6) == store.startswith("[")
    assert (record.size, record.broker) == (len(raw), "b")


@given(st.binary(max_size=300), st.integers(0, 186), st.binary(max_size=8))
def test_any_bytes_give_a_record_or_none(data: bytes, at: int, patch: bytes) -> None:
    decode_record(data, 0)
    damaged = (GOLDEN[:at] + patch + GOLDEN[at + len(patch) :])[: len(GOLDEN)]
    record = decode_record(damaged, 0)
    assert record is None or record.size == len(damaged)


def test_cut_and_damaged_records() -> None:
    assert all(decode_record(GOLDEN[:n]) is None for n in range(187))
    damaged = GOLDEN.replace(b"hello", b"jello")
    assert decode_record(damaged) is not None
    assert decode_record(damaged, check=True) is None


def test_v2_record() -> None:
    body = GOLDEN.replace(b"\x06TopicA", b"\x00\x06TopicA").replace(b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")
    record = decode_record((188).to_bytes(4, "big") + body[4:])
    assert record is not None
    assert (record.topic, record.tags) == ("TopicA", "TagA")


def test_iter_records() -> None:
    assert [r.body for r in iter_records(GOLDEN * 3)] == [b"hello"] * 3
    with pytest.raises(WireError):
        list(iter_records(GOLDEN + b"\0" * 10))


def test_compressed_bodies() -> None:
    raw = encode_record(b"T", zlib.compress(b"x" * 10_000), sys_flag=SYS_COMPRESSED)
    record = decode_record(raw)
    assert record is not None
    assert record.body == b"x" * 10_000
    for stored in (b"not zlib", zlib.compress(b"x" * 10_000)[:-6], b""):
        record = decode_record(encode_record(b"T", stored, sys_flag=SYS_COMPRESSED, queue_offset=7))
        assert record is not None
        assert record.undecodable
        assert (record.body, record.queue_offset) == (stored, 7)


def test_a_zlib_bomb_is_refused_early() -> None:
    bomb = zlib.compress(bytes(64 << 20), 9)
    with pytest.raises(ValueError, match="expands beyond 4194304 bytes"):
        open_body(SYS_COMPRESSED, bomb)
    assert open_body(SYS_COMPRESSED, zlib.compress(bytes(4_194_304))) == bytes(4_194_304)


def test_unknown_compression() -> None:
    with pytest.raises(ValueError, match="type 5"):
        open_body(SYS_COMPRESSED | 5 << 8, b"")


def test_properties() -> None:
    assert parse_properties("a\x01b\x02c\x01d\x02") == parse_properties("a\x01b\x02c\x01d") == {"a": "b", "c": "d"}
    assert parse_properties("") == {}
    assert parse_properties("a\x01\x02b\x02c\x01x\x01y") == {"c": "x\x01y"}
    assert format_properties({"a": "b", "c": "d"}) == "a\x01b\x02c\x01d"
    assert format_properties({}) == ""
    for bad in ({"a": "b\x02"}, {"a\x01": "b"}, {"": "b"}):
        with pytest.raises(ValueError):
            format_properties(bad)
    for bad in ({"a": "b\x02"}, {"a\x01": "b"}):
        with pytest.raises(ValueError):
            restore_properties(bad)
    for text in ("", "a\x01b", "c\x01x\x01y\x02a\x01\x01", "\x01b\x02a\x01b"):
        assert restore_properties(parse_properties(text)) == text


@given(st.lists(st.builds(BatchItem, st.binary(max_size=50), st.binary(max_size=50), ints), max_size=5))
def test_batches(items: list[BatchItem]) -> None:
    assert decode_batch(encode_batch(items)) == items


@given(st.binary(max_size=120))
def test_any_bytes_give_a_batch_or_wire_error(data: bytes) -> None:
    good = encode_batch([BatchItem(b"body", b"a\x01b")])
    for body in (data, good + data, good[: len(data)]):
        with contextlib.suppress(WireError):
            assert encode_batch(decode_batch(body))[:4] == body[:4]
