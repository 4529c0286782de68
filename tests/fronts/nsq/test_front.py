"""The NSQ front: a session for each connection, and nothing left of one that is gone."""

from __future__ import annotations

from pathlib import Path

from fronts.frontside import NsqSide
from penstock.fronts.nsq.front import TOO_MANY, NsqFront
from penstock.fronts.nsq.session import HEARTBEAT_MS
from penstock.limits import Limits


def beat(side: NsqSide, ms: int) -> int | None:
    side.turn(ms)
    side.front.begin_turn()
    return side.front.tick()


def test_sessions_come_and_go(tmp_path: Path) -> None:
    side = NsqSide(tmp_path)
    assert isinstance(side.front, NsqFront)
    sessions = [side.session(port) for port in (1, 2)]
    assert side.front.sessions == set(sessions)
    sessions[0].lost()
    assert side.front.sessions == {sessions[1]}
    assert TOO_MANY.endswith(b"E_INVALID too many connections")
    side.close()


def test_heartbeats_are_sent_when_they_are_due(tmp_path: Path) -> None:
    side = NsqSide(tmp_path)
    session = side.session()
    due = beat(side, 0)
    assert due is not None
    assert due <= side.broker.mono_ms + max(HEARTBEAT_MS, Limits.greeting_timeout_ms)
    beat(side, HEARTBEAT_MS)
    assert side.frames(session) == [b"_heartbeat_"]
    session.lost()
    beat(side, 3 * HEARTBEAT_MS)
    assert session.take() == b""
    side.close()
