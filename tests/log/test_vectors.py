"""Golden vectors of the record, the consume-queue entry and the ids derived from them."""

from __future__ import annotations

import struct
from pathlib import Path

from msgspec.structs import replace

from penstock.clock import FakeClock
from penstock.log.draft import Draft
from penstock.log.options import StoreOptions
from penstock.log.reading import ReadResult
from penstock.log.store import LogStore
from penstock.msgid import offset_msg_id
from penstock.wire.record import decode_record, java_hash

RECORD = bytes.fromhex(
    "000000bb daa320a7 3610a686 00000001 00000000 0000000000000000 0000000000000000 00000000 0000018bcfe5687b"
    "7f000001 00009f1a 000001a1f93a5acc 7f000001 00002a9f 00000000 0000000000000000 00000005 68656c6c6f"
    "06 546f70696341 0055"
)
PROPERTIES = (
    b"KEYS\x01k1 k2\x02UNIQ_KEY\x010123456789ABCDEF0123456789ABCDEF\x02CLUSTER\x01DefaultCluster\x02TAGS\x01TagA"
)
SMALL = StoreOptions(
    mapped_file_size_commit_log=1 << 16,
    mapped_file_size_consume_queue=2000,
    max_hash_slot_num=1000,
    max_index_num=4000,
)


def test_the_record_and_its_entry_are_rocketmqs(tmp_path: Path) -> None:
    store = LogStore(tmp_path, SMALL, clock=FakeClock(0x000001A1F93A5ACC))
    store.open()
    draft = Draft()
    draft.queue = store.queue(b"TopicA", 1)
    draft.set_body(b"hello")
    draft.set_properties(PROPERTIES)
    draft.set_born(b"\x7f\x00\x00\x01\x00\x00\x9f\x1a")
    draft.born_ms = 0x0000018BCFE5687B
    assert store.append(draft) == 0
    assert store.record_at(0) == RECORD + PROPERTIES
    result = ReadResult()
    assert store.read(draft.queue, 0, 32, 1 << 18, -1, None, result) == 0
    assert result.body() == RECORD + PROPERTIES
    assert (result.next_offset, result.count, result.runs) == (1, 1, [(0, 0xBB)])
    queue_file = tmp_path / "consumequeue" / "TopicA" / "1" / "00000000000000000000"
    assert queue_file.read_bytes()[:40].hex() == "0000000000000000000000bb000000000027a807" + "00" * 20
    assert queue_file.stat().st_size == 2000
    store.close()


def test_the_index_entry_is_rocketmqs(tmp_path: Path) -> None:
    store = LogStore(tmp_path, SMALL, clock=FakeClock(0x000001A1F93A5ACC))
    store.open()
    draft = Draft()
    draft.queue = store.queue(b"TopicA", 1)
    draft.set_body(b"hello")
    draft.set_properties(b"KEYS\x01k1 k2")
    for _ in range(2):
        assert store.append(draft) == 0
    (path,) = (tmp_path / "index").iterdir()
    assert len(path.name) == 17
    data = path.read_bytes()
    assert len(data) == 40 + 4 * 1000 + 20 * 4000
    begin, end, first, last, used, count = struct.unpack_from(">qqqqii", data)
    assert (begin, end) == (0x000001A1F93A5ACC, 0x000001A1F93A5ACC)
    assert (first, last, used, count) == (0, draft.physical, 2, 5)
    assert struct.unpack_from(">i", data, 40 + 4 * 649) == (3,)
    entry = struct.unpack_from(">iqii", data, 40 + 4 * 1000 + 20 * 3)
    assert entry == (1903240649, draft.physical, 0, 1)
    assert store.query(b"TopicA", b"k1", 9, 0, 1 << 50) == [store.record_at(draft.physical), store.record_at(0)]
    store.close()


def test_ids_and_times_of_the_record(tmp_path: Path) -> None:
    assert offset_msg_id(b"\x7f\x00\x00\x01\x00\x00\x2a\x9f", 0) == "7F00000100002A9F0000000000000000"
    assert java_hash("TagA") == 2598919
    assert java_hash("TopicA#k1") == -1903240649


def test_addresses_of_sixteen_bytes(tmp_path: Path) -> None:
    options = replace(SMALL, store_host=bytes(15) + b"\x01" + bytes(4))
    store = LogStore(tmp_path, options, clock=FakeClock(1_700_000_000_000))
    store.open()
    draft = Draft()
    draft.queue = store.queue(b"T", 0)
    draft.set_body(b"six")
    draft.set_born(bytes(15) + b"\x02" + b"\0\0\1\0")
    assert store.append(draft) == 0
    record = decode_record(store.record_at(0) or b"")
    assert record is not None
    assert (record.body, record.born_host, record.store_host) == (b"six", "[::2]:256", "[::1]:0")
    assert store.store_time(draft.queue, 0) == 1_700_000_000_000
    store.close(clean=False)
    assert store.open().records == 1
    store.close()
