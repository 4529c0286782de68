"""LogStream: a message queue as a cursor reads it."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest
from store_parts import make, put, work

from penstock.log.draft import Draft
from penstock.log.stream import LogStream


def test_messages_by_ordinal(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    drafts = [put(store, b"m%d" % n) for n in range(3)]
    stream = LogStream(store, store.queue(b"T", 0), False)
    assert (stream.begin(), stream.end(), stream.count(1), stream.count(9)) == (0, 3, 2, 0)
    assert stream.find(1) == 1
    assert (stream.body(), stream.attempts, stream.message_id) == (b"m1", 0, drafts[1].physical + 1)
    assert stream.stamp_ns == drafts[1].store_ms * 1_000_000
    assert stream.find(3) == 0
    store.close()


def test_a_compressed_body_is_shown_as_it_was(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    draft = Draft()
    draft.queue = store.queue(b"T", 0)
    draft.sys_flag = 1
    draft.set_body(zlib.compress(b"long " * 100))
    assert store.append(draft) == 0
    stream = LogStream(store, store.queue(b"T", 0), False)
    assert stream.find(0) == 1
    assert stream.body() == b"long " * 100
    store.close()


@pytest.mark.parametrize("durable", [True, False])
def test_at_level_disk_only_what_is_flushed_is_read(tmp_path: Path, durable: bool) -> None:
    store = make(tmp_path)
    store.open()
    put(store, b"x")
    stream = LogStream(store, store.queue(b"T", 0), durable)
    assert stream.end() == (0 if durable else 1)
    work(store)
    assert stream.end() == 1
    store.close()


def test_a_damaged_record_is_not_shown(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    drafts = [put(store, b"body %d" % n) for n in range(3)]
    segment = store.log.file.at(drafts[1].physical)
    assert segment is not None
    at = drafts[1].physical - segment.first + drafts[1].size - 8
    segment.map[at : at + 1] = b"?"
    stream = LogStream(store, store.queue(b"T", 0), False)
    assert [stream.find(n) for n in range(3)] == [1, 0, 1]
    store.close()
