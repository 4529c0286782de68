"""Waiters: woken once, by news or by their deadline."""

from __future__ import annotations

import heapq
import random

import pytest

from penstock.delivery.waiters import Outcome, Positions, Waiter, Waiters


def test_news_wakes_everyone_of_that_key() -> None:
    waiters = Waiters()
    one, two, other = Waiter("k", 1, 100), Waiter("k", 2, 200), Waiter("x", 1, 50)
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
        waiters.park(Waiter(deadline, 0, deadline))
    assert [w.key for w in waiters.due(250)] == [100, 200]
    assert waiters.next_ms() == 300


def test_a_limit_and_a_lost_owner() -> None:
    waiters = Waiters(limit=2)
    mine = Waiter("k", "me", 10)
    assert waiters.park(mine)
    assert waiters.park(Waiter("k", "you", 20))
    assert not waiters.park(Waiter("k", "they", 30))
    waiters.drop("me")
    assert [w.owner for w in waiters.wake("k")] == ["you"]
    assert waiters.due(100) == []


def test_those_whose_owners_went_are_neither_woken_nor_in_the_way() -> None:
    """Owners that go are looked for now and then, not each among all who wait."""
    waiters = Waiters(limit=1_000)
    for number in range(1_000):
        waiters.park(Waiter(number % 2, number // 2, 10 + number % 2))
    for owner in range(7):
        waiters.drop(owner)
    assert waiters.count == 1_000
    assert waiters.park(Waiter(0, "late", 10))  # there is room
    assert waiters.count == 1_000 - 14 + 1
    waiters.drop(7)
    assert [waiter.owner for waiter in waiters.wake(0)] == [*range(8, 500), "late"]
    waiters.drop(8)
    assert [waiter.owner for waiter in waiters.due(11)] == list(range(9, 500))
    assert (waiters.count, waiters.next_ms(), waiters.watches(1)) == (0, None, False)


@pytest.mark.parametrize("seed", range(5))
def test_waiters_beside_a_plain_list(seed: int) -> None:
    rng, waiters, model = random.Random(seed), Waiters(limit=300), list[Waiter]()
    now_ms, owners = 0, 0
    gone: set[object] = set()
    for _ in range(3_000):
        kind = rng.randrange(8)
        if kind < 4:
            owners += rng.random() < 0.5
            waiter = Waiter(
                rng.randrange(5), rng.randrange(max(0, owners - 90), owners + 1), now_ms + rng.randrange(40)
            )
            if waiter.owner not in gone:
                assert waiters.park(waiter) == (len(model) < 300)
                model += [waiter] if len(model) < 300 else []
        elif kind < 6:
            gone.add(owner := rng.randrange(max(0, owners - 90), owners + 1))
            waiters.drop(owner)
            model = [waiter for waiter in model if waiter.owner != owner]
        elif kind == 6:
            key = rng.randrange(5)
            assert waiters.wake(key) == [waiter for waiter in model if waiter.key == key]
            model = [waiter for waiter in model if waiter.key != key]
        else:
            now_ms += rng.randrange(10)
            late = [waiter for waiter in model if waiter.deadline_ms <= now_ms]
            assert set(waiters.due(now_ms)) == set(late)
            model = [waiter for waiter in model if waiter not in late]
        assert waiters.count >= len(model)


def test_a_waiter_parks_again() -> None:
    waiters = Waiters()
    waiter = Waiter("k", 0, 100)
    for _ in range(500):  # entries of the past do not pile up
        waiters.park(waiter)
        assert waiters.wake("k") == [waiter]
    assert len(waiters._by_deadline) < 200


def test_parking_again_is_not_paid_for_by_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whom no news is for park again and again; the entries they leave behind are looked through now and then."""
    waiters = Waiters()
    looked: list[int] = []
    heapify = heapq.heapify
    monkeypatch.setattr(heapq, "heapify", lambda heap: (looked.append(len(heap)), heapify(heap)))
    for key in range(100):
        for _ in range(4):
            waiters.park(Waiter(key, 0, 30_000 + key))
    for _ in range(5):
        for key in range(100):
            for waiter in waiters.wake(key):
                assert waiters.park(waiter)
    assert sum(looked) < 5 * 400 + 400
    assert waiters.count == 400
    assert len(waiters.due(30_049)) == 200
    assert waiters.next_ms() == 30_050


def test_positions_are_told_in_order_and_once() -> None:
    room, told = Positions(), []
    for position in (30, 10, 20, 10):
        room.wait(position, "me", lambda outcome, at=position: told.append((at, outcome)))  # type: ignore[misc]
    assert not told
    room.settle(9)
    assert (told, len(room)) == ([], 4)
    room.settle(20)
    assert told == [(10, Outcome.REACHED), (10, Outcome.REACHED), (20, Outcome.REACHED)]
    room.settle(29)
    assert len(told) == 3
    room.fail()
    assert told[3:] == [(30, Outcome.FAILED)]
    assert not room


def test_a_position_that_is_reached_already_is_told_by_the_next_settling() -> None:
    room, told = Positions(), []
    room.settle(100)
    room.wait(50, "me", told.append)
    assert not told
    room.settle(100)
    assert told == [Outcome.REACHED]


def test_a_wait_for_a_position_ends_at_its_deadline_or_with_its_owner() -> None:
    room, told = Positions(), []
    room.wait(1, "late", lambda outcome: told.append(("late", outcome)), deadline_ms=100)
    room.wait(2, "patient", lambda outcome: told.append(("patient", outcome)))
    room.wait(3, "gone", lambda outcome: told.append(("gone", outcome)), deadline_ms=100)
    room.drop("gone")
    room.expire(99)
    assert not told
    room.expire(100)
    room.expire(200)
    assert told == [("late", Outcome.EXPIRED)]
    room.settle(5)
    assert told[1:] == [("patient", Outcome.REACHED)]


def test_who_is_told_may_wait_again() -> None:
    room, told = Positions(), []

    def again(outcome: Outcome) -> None:
        told.append(outcome)
        if len(told) < 3:
            room.wait(len(told) * 10, "me", again)

    room.wait(0, "me", again)
    room.settle(10)
    assert (len(told), len(room)) == (2, 1)


def test_each_deadline_is_kept_whatever_came_before_it() -> None:
    room, told = Positions(), []
    for name, deadline_ms in (("b", 20), ("never", None), ("a", 10), ("c", 30)):
        room.wait(100, name, lambda outcome, name=name: told.append((name, outcome)), deadline_ms)
    room.expire(9)
    assert not told
    room.drop("a")
    room.expire(10)  # the deadline of one that is gone
    room.expire(20)
    assert told == [("b", Outcome.EXPIRED)]
    room.wait(100, "d", lambda outcome: told.append(("d", outcome)), 25)  # earlier than what was left
    room.expire(25)
    room.expire(1_000)
    assert told[1:] == [("d", Outcome.EXPIRED), ("c", Outcome.EXPIRED)]
    room.settle(100)
    assert told[3:] == [("never", Outcome.REACHED)]


def test_positions_of_those_who_went_are_not_told() -> None:
    """Owners that go are looked for now and then, not each among all who wait."""
    room, told = Positions(), list[tuple[int, Outcome]]()
    for owner in range(1_000):
        room.wait(owner // 10, owner, lambda outcome, owner=owner: told.append((owner, outcome)), owner)  # type: ignore[misc]
    for owner in range(0, 30, 2):
        room.drop(owner)
    assert len(room) == 1_000
    room.settle(1)
    assert told == [(owner, Outcome.REACHED) for owner in range(1, 20, 2)]
    told.clear()
    room.expire(29)
    assert told == [(owner, Outcome.EXPIRED) for owner in range(21, 30, 2)]
    told.clear()
    for owner in range(30, 90):
        room.drop(owner)
    assert len(room) <= 1_000 - 30 - 45
    room.fail()
    assert told == [(owner, Outcome.FAILED) for owner in range(90, 1_000)]


def test_what_one_raises_is_not_the_others_loss() -> None:
    positions = Positions()
    told: list[tuple[str, Outcome]] = []

    def fail(outcome: Outcome) -> None:
        raise ValueError("planted")

    for at, deadline_ms in ((1, None), (2, None), (9, 50), (9, None)):
        positions.wait(at, None, fail, deadline_ms)
        positions.wait(at, None, lambda outcome, at=at: told.append((at, outcome)), deadline_ms)
    for tell in (lambda: positions.settle(2), lambda: positions.expire(50), positions.fail):
        with pytest.raises(ValueError, match="planted"):
            tell()
    assert told == [(1, Outcome.REACHED), (2, Outcome.REACHED), (9, Outcome.EXPIRED), (9, Outcome.FAILED)]
    assert len(positions) == 0


def test_who_is_forgotten_while_others_are_told_is_not_told() -> None:
    positions = Positions()
    told: list[str] = []
    positions.wait(1, "first", lambda outcome: positions.drop("second"))
    positions.wait(1, "second", lambda outcome: told.append("second"))
    positions.wait(1, "third", lambda outcome: told.append("third"))
    positions.settle(1)
    positions.settle(1)
    assert told == ["third"]
