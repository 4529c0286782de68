"""Requests that look messages up."""

from __future__ import annotations

from fronts.raw_peer import RawPeer
from penstock.fronts.requests.lookup import Lookup
from penstock.wire.record import iter_records


def test_view_by_offset_gives_records_only(peer: RawPeer) -> None:
    placed = peer.send("View", b"x" * 100)
    physical = int(placed.ext["msgId"][16:], 16)
    found = peer.ask(33, {"offset": physical})
    assert found.code == 0
    assert next(iter_records(found.body)).body == b"x" * 100
    for offset in (1 << 60, 3, -1, physical + 50, physical + 1):
        answer = peer.ask(33, {"offset": offset})
        assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {offset}")


def test_query_by_key(peer: RawPeer) -> None:
    peer.send("Keyed", b"one", {"KEYS": "a b", "UNIQ_KEY": "U1"})
    peer.send("Keyed", b"two", {"KEYS": "b", "UNIQ_KEY": "U2"})
    span = {"topic": "Keyed", "maxNum": 10, "beginTimestamp": 0, "endTimestamp": 1 << 60}
    assert sorted(m.body for m in iter_records(peer.ask(12, span | {"key": "b"}).body)) == [b"one", b"two"]
    unique = peer.ask(12, span | {"key": "U2", "_UNIQUE_KEY_QUERY": "true"})
    assert [m.body for m in iter_records(unique.body)] == [b"two"]
    assert peer.ask(12, span | {"key": "nothing"}).code == 22


def test_each_request_of_the_table_has_its_method() -> None:
    assert Lookup.TABLE
    for code, name in Lookup.TABLE.items():
        assert callable(getattr(Lookup, name, None)), code
