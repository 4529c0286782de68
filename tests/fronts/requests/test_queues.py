"""Requests of our own tools: pages of queue topics, changes, and bad questions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fronts.frontside import RemotingSide
from penstock.fronts.requests import queues as module
from penstock.fronts.requests.queues import QueueCalls
from penstock.wire import fastjson
from penstock.wire.codes import RequestCode

LIST, CHANGE = RequestCode.QUEUE_TOPICS, RequestCode.QUEUE_CHANGE


@pytest.fixture
def side(tmp_path: Path) -> Iterator[RemotingSide]:
    side = RemotingSide(tmp_path)
    yield side
    side.close()


def test_pages_hold_so_many_topics_and_channels(side: RemotingSide, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LIST in QueueCalls.TABLE
    monkeypatch.setattr(module, "ROWS_MAX", 4)
    for n in range(5):
        side.queueing.topic(b"t%d" % n).channel(b"c")
    session, after, pages = side.session(), "", []
    while True:
        page = fastjson.loads(side.ask(session, LIST, topic="", after=after).body)
        pages.append([row["topic"] for row in page["topics"]])
        after = page["next"]
        if not after:
            break
    assert pages == [["t0", "t1"], ["t2", "t3"], ["t4"]]
    (row,) = fastjson.loads(side.ask(session, LIST, topic="t3", after="").body)["topics"]
    assert (row["kind"], row["level"], row["channels"][0]["channel"]) == ("queue", "os", "c")


def test_changes(side: RemotingSide) -> None:
    session = side.session()
    assert side.ask(session, CHANGE, topic="t", action="add", level="disk").code == 0
    assert side.ask(session, CHANGE, topic="t", channel="c", action="add").code == 0
    topic = side.queueing.topic(b"t")
    assert side.ask(session, CHANGE, topic="t", channel="c", action="pause").code == 0
    assert topic.channels[b"c"].paused
    assert side.ask(session, CHANGE, topic="t", channel="c", action="rm").code == 0
    assert topic.channels == {}
    assert side.ask(session, CHANGE, topic="t", action="rm").code == 0
    assert side.ask(session, CHANGE, topic="t", action="rm").code == 17


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (CHANGE, {"topic": "t", "action": "add", "level": "tape"}),
        (CHANGE, {"topic": "known", "action": "shake"}),
        (CHANGE, {"topic": "known", "channel": "none", "action": "rm"}),
        (RequestCode.DELAYED_COUNT, {"edges": "5,x", "topic": "", "channel": "", "after": ""}),
        (RequestCode.DELAYED_LIST, {"topic": "", "channel": "", "after": "yesterday"}),
    ],
)
def test_what_makes_no_sense_is_refused(side: RemotingSide, code: int, ext: dict[str, str]) -> None:
    side.queueing.topic(b"known")
    answer = side.ask(side.session(), code, **ext)
    assert answer.code != 0
    assert answer.remark
