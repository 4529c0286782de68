"""What NSQ sessions share: the time of the turn, heartbeats, ephemeral channels that go with their last consumer."""

from __future__ import annotations

from pathlib import Path

import pytest

from fronts.frontside import NsqSide
from penstock.fronts.nsq import shared as module
from penstock.fronts.nsq.shared import Shared


class Beat:
    """Something with a heartbeat every ten ms."""

    due_number = 0

    def __init__(self, every_ms: int = 10) -> None:
        self.every_ms = every_ms
        self.beats: list[int] = []

    def number_beat(self, number: int) -> None:
        self.due_number = number

    def beat(self, mono_ms: int) -> int:
        self.beats.append(mono_ms)
        return mono_ms + self.every_ms if self.every_ms else 0


@pytest.fixture
def side(tmp_path: Path) -> NsqSide:
    return NsqSide(tmp_path)


def tick(side: NsqSide, shared: Shared, ms: int) -> int | None:
    side.turn(ms)
    shared.update()
    return shared.tick()


def test_whoever_is_due_is_asked(side: NsqSide) -> None:
    shared, often, once = Shared(side.broker), Beat(), Beat(0)
    begin = shared.mono_ms
    shared.look_at(often, begin + 10)
    shared.look_at(once, begin + 15)
    assert tick(side, shared, 9) == begin + 10
    assert tick(side, shared, 1) == begin + 15
    tick(side, shared, 10)
    assert ([at - begin for at in often.beats], [at - begin for at in once.beats]) == ([10, 20], [20])
    shared.forget(often)
    assert tick(side, shared, 100) is None
    assert len(often.beats) == 2


def test_who_is_looked_at_again_is_asked_once(side: NsqSide) -> None:
    shared, one = Shared(side.broker), Beat(0)
    begin = shared.mono_ms
    shared.look_at(one, begin + 5)
    shared.look_at(one, begin + 50)
    tick(side, shared, 10)
    assert one.beats == []
    tick(side, shared, 40)
    assert one.beats == [begin + 50]


def test_connections_that_are_gone_leave_nothing(side: NsqSide, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BEATS_MIN", 10)
    shared = Shared(side.broker)
    for _ in range(200):
        one = Beat()
        shared.look_at(one, shared.mono_ms + 10_000)
        shared.forget(one)
    assert len(shared._beats) < 20


def test_an_ephemeral_channel_goes_with_its_last_consumer(side: NsqSide) -> None:
    one, two = side.session(1), side.session(2)
    for session in (one, two):
        side.say(session, b"SUB t c#ephemeral\n")
    one.lost()
    assert b"c#ephemeral" in side.queueing.topic(b"t").channels
    two.lost()
    assert side.queueing.topic(b"t").channels == {}
