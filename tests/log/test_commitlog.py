"""CommitLog: records in RocketMQ's bytes, and which bytes are taken for one."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_parts import make, put

from penstock.log.commitlog import BAD, BLANK
from penstock.wire import layout


def test_a_record_is_taken_for_one_when_all_its_lengths_agree(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    drafts = [put(store, b"body %d" % n, properties=b"KEYS\x01k") for n in range(2)]
    log, draft = store.log, drafts[0]
    segment = log.file.at(0)
    assert segment is not None
    at = draft.physical
    for place in (
        layout.SIZE + 3,
        layout.MAGIC,
        layout.PHYSICAL + 7,
        layout.BODY_LENGTH + 3,
        draft.size - len(b"KEYS\x01k") - 1,
    ):
        was = segment.map[at + place]
        segment.map[at + place : at + place + 1] = bytes([was ^ 1])
        assert log.size_at(at) == BAD, place
        segment.map[at + place : at + place + 1] = bytes([was])
    segment.map[at + layout.BODY : at + layout.BODY + 1] = b"?"
    assert (log.size_at(at), log.check(at)) == (draft.size, BAD)  # its lengths agree, its body does not
    store.close()


def test_a_segment_ends_with_a_blank(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    last = 0
    while (draft := put(store, b"x" * 1_000)).physical < store.log.file.size:
        last = draft.physical + draft.size
    assert draft.physical == store.log.file.size
    assert store.log.size_at(last) == BLANK
    assert store.log.bytes_at(last + 4, 4) == layout.MAGIC_BLANK.to_bytes(4)
    store.close()


def test_records_stand_where_they_say(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    drafts = [put(store, b"m%d" % n) for n in range(3)]
    log = store.log
    assert [log.size_at(draft.physical) for draft in drafts] == [draft.size for draft in drafts]
    assert log.size_at(log.end) == BAD
    assert log.stands_for(drafts[1].physical, 0, 1)
    assert not log.stands_for(drafts[1].physical, 0, 2)
    segment = log.file.at(0)
    assert segment is not None
    segment.map[drafts[1].physical + layout.FLAG : drafts[1].physical + layout.FLAG + 1] = b"?"
    assert (log.size_at(drafts[1].physical), log.check(drafts[1].physical)) == (drafts[1].size, BAD)
    assert log.check(drafts[2].physical) == drafts[2].size
    store.close()


@pytest.mark.parametrize("size", [1, 1 << 14])
def test_what_fits_no_segment_is_too_large(tmp_path: Path, size: int) -> None:
    store = make(tmp_path)
    store.open()
    assert store.log.room(size, 1) == (0 if size == 1 else 3)
    store.close()
