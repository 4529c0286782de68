"""Publishes of level `pair`: what they wait for, and what their tickets are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.broker.copies import Member
from penstock.broker.nsq.copied import Copied, Copy, CopyTicket, demand_set
from penstock.errors import Refused

RULES = ({"name": "safe", "kind": "log", "level": "pair"}, {"name": "safer", "kind": "log", "level": "pair-disk"})


def side_of(tmp_path: Path, **settings: object) -> Side:
    return Side(tmp_path, topic=RULES, **settings)


def copied_of(side: Side) -> Copied:
    found: Copied = side.queueing.copied
    return found


def take_in(side: Side) -> Member:
    """A slave that is in sync with nothing."""
    member = Member("b", 1, "")
    member.heard(0, 0, 0, side.broker.mono_ms)
    member.judge(True, "")
    side.broker.copies.enter(member)
    return member


def test_alone_is_told_at_once_or_behind_the_flush(tmp_path: Path) -> None:
    side = side_of(tmp_path, ha_port=0)
    for name, waits in ((b"safe", False), (b"safer", True)):
        told: list[bool] = []
        ticket = side.queueing.publish(side.queueing.topic(name), [b"x"])
        assert isinstance(ticket, CopyTicket)
        ticket.then(told.append)
        assert told == ([] if waits else [False])
        side.turn()
        side.turn()
        assert told == [False]
        topic = side.queueing.topic(name)
        assert topic.depth() == 1  # it is stored
    side.close()


def test_what_a_turn_publishes_waits_for_the_end_of_the_log(tmp_path: Path) -> None:
    side = side_of(tmp_path, ha_port=0, ha_answer_ms=1_000)
    copies, copied = side.broker.copies, copied_of(side)
    take_in(side)
    told: list[Copy] = []
    topic = side.queueing.topic(b"safe")
    turn = copied.wait(topic, "one", told.append)
    assert turn == copied.turn
    assert copied.wait(topic, "gone", told.append) == turn
    assert copied.wait(topic, "late", told.append) == turn
    side.queueing.publish(topic, [b"x"])
    end = side.broker.store.end_position
    copied.drop("gone")
    copied.seal()
    assert copied.turn == turn + 1
    assert [entry[0] for entry in sorted(copies.waiting.line, key=lambda e: e[:2])] == [end, end]
    copies.drop("late")
    copies.waiting.settle(end - 1)
    assert told == []
    copies.waiting.settle(end)
    assert told == [Copy.THERE]
    copied.wait(topic, "two", told.append)
    copied.seal()
    copies.expire(side.broker.mono_ms + 999)
    assert told == [Copy.THERE]
    copies.expire(side.broker.mono_ms + 1_000)
    copied.wait(topic, "three", told.append)
    copied.seal()
    copies.waiting.fail()
    assert told == [Copy.THERE, Copy.LATE, Copy.BROKEN]
    side.close()


def test_without_an_ha_port_there_is_never_a_copy(tmp_path: Path) -> None:
    side = side_of(tmp_path)
    topic = side.queueing.topic(b"safe")
    for defer_ms in (0, 1_000):
        with pytest.raises(Refused, match="no ha_port"):
            side.queueing.publish(topic, [b"x"], defer_ms)
    with pytest.raises(Refused, match="no ha_port"):
        demand_set(side.broker.core, topic)
    assert topic.depth() == 0
    side.close()
