"""Every protocol of ours is a front as `net` and `app` want one."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from broker.queueside import Side
from fronts.toy import ToyFront
from penstock.broker.broker import Broker
from penstock.fronts.front import Front, Session
from penstock.fronts.nsq.front import NsqFront
from penstock.fronts.remoting.front import BrokerFront


def members(protocol: type) -> set[str]:
    return {name for name in (*vars(protocol), *protocol.__annotations__) if not name.startswith("_")}


@pytest.mark.parametrize("make", [NsqFront, BrokerFront, ToyFront])
def test_what_a_front_and_its_sessions_have(tmp_path: Path, make: type) -> None:
    side = Side(tmp_path)
    assert isinstance(side.broker, Broker)
    front = make(side.broker)
    session = front.session("127.0.0.1:1", lambda: None)
    for protocol, one in ((Front, front), (Session, session)):
        missing = {name for name in members(protocol) if not hasattr(one, name)}
        assert missing == set()
    front.begin_turn()
    front.end_turn([])
    due_ms = front.tick()
    assert due_ms is None or due_ms >= side.broker.mono_ms
    assert inspect.isroutine(session.feed)
    session.lost()
    side.close()
