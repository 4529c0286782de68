"""Golden vectors of the record, the consume-queue entry and the ids derived from them."""

from __future__ import annotations

from pathlib import Path

from penstock.clock import FakeClock
from penstock.log.draft import Draft
from penstock.log.options import StoreOptions
from penstock.log.reading import ReadResult
from penstock.log.store import LogStore

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
