"""What a stream does not see any more is told once; brokers and topics: `test_source`."""

from __future__ import annotations

import pytest
from spark_fakes import Log

from penstock.client.routes import MessageQueue
from penstock.errors import BrokerRefused
from penstock.spark.read.options import parse
from penstock.spark.read.unseen import Unseen

A0, A1, A2, A3 = (MessageQueue("t", "a", n) for n in range(4))


@pytest.fixture
def log() -> Log:
    """Four queues; an operator lets the first two be read."""
    made = Log()
    for queue, count in ((A0, 5), (A1, 5), (A2, 15), (A3, 4)):
        made.put(queue, count)
    return made


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_what_is_unread_in_queues_that_a_topic_has_no_more(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    """A run with availableNow ended without it, and without a word."""
    unseen, at = Unseen(parse({"subscribe": "t"})), {A0: 0, A2: 5, A3: 4}  # of the last one all is read
    for _ in range(3):
        unseen.tell(log, at, [A0, A1])
    assert said(caplog) == ["10 messages of t queue 2 at a are not read: the topic has fewer queues now"]
    unseen.tell(log, at, [A0, A1, A2, A3])
    assert len(caplog.records) == 1
    unseen.tell(log, at, [A0, A1])
    assert len(caplog.records) == 2


def test_what_the_user_leaves_out_is_not_missed(log: Log, caplog: pytest.LogCaptureFixture) -> None:
    Unseen(parse({"assign": '{"t": [0, 1]}'})).tell(log, {A0: 0, A2: 5}, [A0, A1])
    Unseen(parse({"subscribe": "u"})).tell(log, {A0: 0, A2: 5}, [MessageQueue("u", "a", 0)])
    assert said(caplog) == []


def test_queues_that_are_nowhere_are_no_error(
    log: Log, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The topic was made anew with fewer."""

    def refuse(queue: MessageQueue) -> tuple[int, int]:
        raise BrokerRefused(1, "no such queue")

    monkeypatch.setattr(log, "offsets", refuse)
    Unseen(parse({"subscribe": "t"})).tell(log, {A0: 0, A2: 5}, [A0, A1])
    assert said(caplog) == []
