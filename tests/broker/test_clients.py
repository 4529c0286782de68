"""Clients and queue locks, without sockets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.broker import clients as clients_module
from penstock.broker.clients import (
    EXPIRY_MS,
    FORGET_MS,
    LOCK_MS,
    NAMED_MAX,
    SHARE_AGAIN_MS,
    ClientTable,
    Member,
    QueueLocks,
    Sharing,
    Subscription,
)
from penstock.errors import Refused
from penstock.words import FAR_MS


def member(client_id: str, peer: Any, heard_ms: int = 0) -> Member:
    return Member(client_id, peer, "JAVA", 409, heard_ms)


def test_clients_come_and_go() -> None:
    clients, here, there = ClientTable(), SimpleNamespace(remote="a"), SimpleNamespace(remote="b")
    mono_ms = 0

    def heard(client_id: str, peer: Any, subs: dict[str, Subscription]) -> bool:
        clients.consumer_heard("g", member(client_id, peer), {}, subs)
        return shared()

    def shared() -> bool:
        nonlocal mono_ms
        mono_ms += SHARE_AGAIN_MS
        return clients.sharing.take(mono_ms) == ["g"]

    subs = {"T": Subscription("T")}
    assert heard("1", here, subs)
    assert not heard("1", here, subs)
    assert heard("2", there, subs)
    assert heard("2", there, {"T": Subscription("T", "A", version=2, codes=[65], tags=["A"])})
    assert not heard("1", here, {"T": Subscription("T", version=1)})
    assert clients.consumers["g"].subscriptions["T"].expression == "A"
    assert heard("1", there, {"T": Subscription("T")})  # a reconnected client
    clients.leave(there, "2", "", "g")
    assert shared()
    clients.producer_heard("p", member("3", there))
    clients.lost(there)
    assert not shared()  # the last member went: nobody is left to be told
    assert (clients.consumers, clients.producers) == ({}, {})


def test_a_lost_connection_takes_what_is_its_own() -> None:
    clients, here, there = ClientTable(), SimpleNamespace(remote="a"), SimpleNamespace(remote="b")
    for number, peer in enumerate((here, there, here, there)):
        clients.producer_heard("p", member(f"{number}", peer))
        clients.consumer_heard("g" if number < 3 else "h", member(f"{number}", peer), {}, {})
    clients.producer_heard("p", member("2", there))  # it has come back by the other connection
    clients.lost(here)
    clients.lost(SimpleNamespace(remote="c"))  # which was in no group
    assert sorted(clients.producers["p"]) == ["1", "2", "3"]
    assert {name: list(group.members) for name, group in clients.consumers.items()} == {"g": ["1"], "h": ["3"]}


def test_changes_soon_behind_one_are_told_together() -> None:
    sharing = Sharing()
    assert (sharing.take(7), sharing.due_ms) == ([], FAR_MS)
    sharing.change("g")
    assert sharing.due_ms <= 1_000  # at once
    assert sharing.take(1_000) == ["g"]
    for group in ("g", "g", "h"):
        sharing.change(group)
    assert sharing.take(1_001) == ["h"]
    assert (sharing.take(1_000 + SHARE_AGAIN_MS - 1), sharing.due_ms) == ([], 1_000 + SHARE_AGAIN_MS)
    assert sharing.take(1_000 + SHARE_AGAIN_MS) == ["g"]
    assert (sharing.take(5_000), sharing.due_ms) == ([], FAR_MS)
    sharing.change("g")
    assert sharing.take(5_000) == ["g"]


def test_the_goodbye_of_an_old_connection_is_not_that_of_a_new_one() -> None:
    """A program that is started anew under the same id comes before the old one has gone."""
    clients, old, new = ClientTable(), SimpleNamespace(remote="a"), SimpleNamespace(remote="b")
    for peer in (old, new):
        clients.consumer_heard("g", member("1", peer), {}, {})
        clients.producer_heard("p", member("1", peer))
    clients.leave(old, "1", "p", "g")
    assert list(clients.consumers["g"].members) == list(clients.producers["p"]) == ["1"]
    clients.leave(new, "1", "p", "g")
    assert (clients.consumers, clients.producers) == ({}, {})


def test_a_connection_is_in_so_many_groups_whatever_ids_it_says() -> None:
    clients, here, there = ClientTable(), SimpleNamespace(remote="a"), SimpleNamespace(remote="b")
    for number in range(NAMED_MAX // 2):
        clients.demand_room(here, f"{number}", ["p"], ["g"])
        clients.producer_heard("p", member(f"{number}", here))
        clients.consumer_heard("g", member(f"{number}", here), {}, {})
    clients.demand_room(here, "0", ["p"], ["g"])  # those it is in already
    clients.demand_room(there, "more", ["p"], ["g"])
    with pytest.raises(Refused, match=f"at most {NAMED_MAX}"):
        clients.demand_room(here, "more", ["p"], [])
    clients.leave(here, "0", "p", "")
    clients.demand_room(here, "more", ["p"], [])
    clients.producer_heard("p", member("1", there))  # the same client by another connection
    clients.consumer_heard("g", member("1", there), {}, {})
    clients.demand_room(here, "more", ["p", "q", "r"], [])
    clients.expire(EXPIRY_MS + 1)
    clients.demand_room(here, "more", [f"{number}" for number in range(NAMED_MAX)], [])


def test_silent_clients_expire() -> None:
    clients, here = ClientTable(), SimpleNamespace(remote="a")
    clients.consumer_heard("g", member("1", here, 0), {}, {})
    clients.consumer_heard("g", member("2", here, EXPIRY_MS), {}, {})
    clients.producer_heard("p", member("1", here, 0))
    clients.producer_heard("p", member("2", here, EXPIRY_MS))
    assert clients.sharing.take(0) == ["g"]
    clients.expire(EXPIRY_MS + 1)
    assert clients.sharing.take(EXPIRY_MS + 1) == ["g"]
    assert list(clients.producers["p"]) == ["2"]
    assert list(clients.consumers["g"].members) == ["2"]


def test_queue_locks_expire() -> None:
    locks, queue = QueueLocks(), ("T", "b", 0)
    assert locks.lock("g", "one", [queue], 0) == [queue]
    assert locks.lock("g", "two", [queue], LOCK_MS - 1) == []
    assert locks.lock("other", "two", [queue], 0) == [queue]
    assert locks.lock("g", "two", [queue], LOCK_MS) == [queue]
    locks.unlock("g", "one", [queue])  # which is another's
    assert locks.lock("g", "one", [queue], LOCK_MS) == []


def test_queue_locks_that_nobody_holds_are_forgotten() -> None:
    locks, queues = QueueLocks(), [("T", "b", number) for number in range(3)]
    for number in range(100):
        locks.lock(f"g{number}", "one", queues, 0)
    locks.unlock("g0", "one", queues)
    assert locks.count == 297
    assert locks.lock("g1", "one", queues[:1], LOCK_MS - 1) == queues[:1]
    locks.lock("new", "one", queues[:1], LOCK_MS + FORGET_MS)
    assert locks.count == 2
    locks.unlock("new", "two", queues)
    locks.unlock("unknown", "two", queues)
    assert locks.count == 2
    assert locks.lock("g1", "two", queues, LOCK_MS + FORGET_MS) == queues[1:]


def test_there_is_an_end_to_queue_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients_module, "LOCKS_MAX", 2)
    locks, queues = QueueLocks(), [("T", "b", number) for number in range(3)]
    assert locks.lock("g", "one", queues, 0) == queues[:2]
    assert locks.lock("other", "one", queues, 0) == []
    assert locks.lock("g", "one", queues, 1) == queues[:2]  # renewed
    assert locks.lock("other", "one", queues, LOCK_MS + FORGET_MS) == queues[:2]
