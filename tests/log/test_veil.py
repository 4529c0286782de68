"""Veils: a batch is seen whole or not at all, in the order of the log."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_parts import bodies, make, put, work

from penstock.log.store import LogStore
from penstock.log.veil import Veils


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    store = make(tmp_path)
    store.open()
    put(store, b"before")
    put(store, b"before", queue_id=1)
    work(store)
    return store


def test_a_batch_is_seen_when_it_is_whole(store: LogStore) -> None:
    veils = Veils(store)
    queues = [store.queue(b"T", 0), store.queue(b"T", 1)]
    veil = veils.lower(queues, store.end_position)
    shown: list[str] = []
    first = put(store, b"one")
    veils.when_visible(lambda: shown.append("one"))
    put(store, b"two", queue_id=1)
    work(store)
    veils.lift()
    data = store.record_at(first.physical)
    assert data is not None
    assert veils.hides(data)
    assert (bodies(store), bodies(store, queue_id=1), shown) == ([b"before"], [b"before"], [])
    veil.complete()
    veils.lift()
    assert not veils.hides(data)
    assert (bodies(store), bodies(store, queue_id=1)) == ([b"before", b"one"], [b"before", b"two"])
    assert shown == ["one"]
    veils.when_visible(lambda: shown.append("at once"))
    assert shown == ["one", "at once"]


def test_a_batch_waits_for_those_before_it(store: LogStore) -> None:
    veils = Veils(store)
    queue = store.queue(b"T", 0)
    first = veils.lower([queue], store.end_position)
    put(store, b"one")
    second = veils.lower([queue], store.end_position)
    put(store, b"two")
    work(store)
    second.complete()
    veils.lift()
    assert bodies(store) == [b"before"]
    first.complete()
    veils.lift()
    assert bodies(store) == [b"before", b"one", b"two"]


def test_what_lies_in_other_queues_is_seen(store: LogStore) -> None:
    veils = Veils(store)
    veils.lower([store.queue(b"T", 0)], store.end_position)
    other = put(store, b"other", queue_id=1)
    work(store)
    data = store.record_at(other.physical)
    assert data is not None
    assert not veils.hides(data)
    assert bodies(store, queue_id=1) == [b"before", b"other"]


def test_readers_that_wait_hear_of_it(store: LogStore) -> None:
    veils = Veils(store)
    queue = store.queue(b"T", 0)
    veil = veils.lower([queue], store.end_position)
    put(store, b"one")
    work(store)
    store.arrived.clear()
    queue.arrived = False
    queue.watched = True
    veil.complete()
    veils.lift()
    assert store.arrived == [queue]
