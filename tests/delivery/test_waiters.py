"""Waiters: woken once, by news or by their deadline."""

from __future__ import annotations

from penstock.delivery.waiters import Waiter, Waiters


def test_news_wakes_everyone_of_that_key() -> None:
    waiters = Waiters()
    one, two, other = Waiter("k", 1, 100, "a"), Waiter("k", 2, 200, "b"), Waiter("x", 1, 50, "c")
    for waiter in (one, two, other):
        assert waiters.park(waiter)
    assert waiters.watches("k")
    assert waiters.wake("k") == [one, two]
    assert waiters.wake("k") == []
    assert waiters.next_ms() == 50
    assert waiters.due(1000) == [other]
    assert waiters.count == 0
    assert waiters.next_ms() is None


def test_deadlines_in_their_order() -> None:
    waiters = Waiters()
    for deadline in (300, 100, 200):
        waiters.park(Waiter(deadline, 0, deadline, deadline))
    assert [w.what for w in waiters.due(250)] == [100, 200]
    assert waiters.next_ms() == 300


def test_a_limit_and_a_lost_owner() -> None:
    waiters = Waiters(limit=2)
    mine = Waiter("k", "me", 10, None)
    assert waiters.park(mine)
    assert waiters.park(Waiter("k", "you", 20, None))
    assert not waiters.park(Waiter("k", "they", 30, None))
    waiters.drop("me")
    assert [w.owner for w in waiters.wake("k")] == ["you"]
    assert waiters.due(100) == []


def test_a_waiter_parks_again() -> None:
    waiters = Waiters()
    waiter = Waiter("k", 0, 100, None)
    for _ in range(500):  # entries of the past do not pile up
        waiters.park(waiter)
        assert waiters.wake("k") == [waiter]
    assert len(waiters._by_deadline) < 200
