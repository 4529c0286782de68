"""Draft: what is found in the properties, and a record read back into it."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_parts import make, put

from penstock.log.draft import Draft
from penstock.wire.record import decode_record, java_hash


@pytest.mark.parametrize("order", [0, 1])
def test_what_is_looked_for_in_the_properties(order: int) -> None:
    pairs = [
        b"TAGS\x01paid",
        b"KEYS\x01a b",
        b"UNIQ_KEY\x01U1",
        b"PSEQ\x01ab.7.1",
        b"TAG\x01no",
        b"XKEYS\x01no",
        b"empty",
    ]
    draft = Draft()
    draft.set_properties(b"\x02".join(pairs[::-1] if order else pairs))
    assert draft.tags_code == java_hash("paid")
    assert (draft.keys_len, draft.uniq_len, draft.sequence()) == (3, 2, b"ab.7.1")
    draft.set_properties(b"")
    assert (draft.tags_code, draft.keys_len, draft.uniq_len, draft.sequence()) == (0, 0, 0, b"")


def test_the_last_of_a_name_counts() -> None:
    draft = Draft()
    draft.set_properties(b"PSEQ\x01a.1.1\x02PSEQ\x01b.2.1")
    assert draft.sequence() == b"b.2.1"


@pytest.mark.parametrize("host", [b"\x7f\0\0\x01\0\0\x2a\x9f", bytes(15) + b"\x01\0\0\x2a\x9f"])
def test_a_draft_becomes_a_record_and_says_where_it_stands(tmp_path: Path, host: bytes) -> None:
    store = make(tmp_path)
    store.open()
    put(store, b"before")
    draft = Draft()
    draft.queue = store.queue(b"topic", 3)
    draft.set_body(b"the body")
    draft.set_properties(b"KEYS\x01k\x02TAGS\x01t")
    draft.set_tail(b"CLUSTER\x01C")
    draft.set_born(host)
    draft.born_ms, draft.flag, draft.reconsume_times = 1_000, 9, 2
    assert store.append(draft) == 0
    record = store.record_at(draft.physical)
    assert record is not None
    message = decode_record(record)
    assert message is not None
    assert (message.topic, message.body, message.queue_id) == ("topic", b"the body", 3)
    assert (message.born_ms, message.flag, message.reconsume_times) == (1_000, 9, 2)
    assert dict(message.properties) == {"KEYS": "k", "TAGS": "t", "CLUSTER": "C"}
    assert (message.queue_offset, message.physical_offset) == (draft.queue_offset, draft.physical)
    assert (message.size, message.store_ms, len(record)) == (draft.size, draft.store_ms, draft.size)
    store.close()
