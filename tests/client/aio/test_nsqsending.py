"""Publishing to queue topics: one connection to a broker, all or none, and what it cannot take."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from penstock.client.aio.nsqsending import QueueSender
from penstock.client.results import SendStatus
from penstock.client.routes import MessageQueue
from penstock.clock import Clock
from penstock.errors import BrokerRefused, Closed, ConnectionLost
from penstock.message import Message
from penstock.testing import Broker

TO = MessageQueue("q", "broker-a", 0)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(max_msg_size=100, max_body_size=1_000) as running:
        yield running


def depth(broker: Broker, topic: bytes) -> int:
    return broker.call(lambda server: server.broker.queueing.topic(topic).depth())  # type: ignore[union-attr]


async def test_a_batch_is_all_or_none(broker: Broker) -> None:
    sender = QueueSender(Clock(), 10)
    receipt = await sender.send(broker.nsq, TO, [Message("batch", b"a"), Message("batch", b"b")], 10)
    assert (receipt.status, receipt.queue_offset, receipt.msg_ids) == (SendStatus.SEND_OK, -1, ("", ""))
    with pytest.raises(BrokerRefused):
        await sender.send(broker.nsq, TO, [Message("batch", b"c"), Message("batch", b"x" * 101)], 10)
    assert depth(broker, b"batch") == 2
    await sender.close()


async def test_a_connection_that_an_error_closed_is_opened_anew(broker: Broker) -> None:
    sender = QueueSender(Clock(), 10)
    with pytest.raises(BrokerRefused):
        await sender.send(broker.nsq, TO, [Message("anew", b"x" * 101)], 10)
    while True:  # until this side has seen the end of the old connection
        with contextlib.suppress(ConnectionLost):
            await sender.send(broker.nsq, TO, [Message("anew", b"fine")], 10)
            break
    await sender.send_oneway(broker.nsq, Message("anew", b"unanswered"))
    await sender.send(broker.nsq, TO, [Message("anew", b"behind it")], 10)
    assert depth(broker, b"anew") == 3
    await sender.close()


async def test_what_a_queue_topic_cannot_take(broker: Broker) -> None:
    sender = QueueSender(Clock(), 10)
    for bad in (Message("q", b"x", tags="A"), Message("q", b"x", keys=("k",)), Message("q", b"")):
        with pytest.raises(ValueError, match=r".+"):
            await sender.send(broker.nsq, TO, [bad], 10)
    await sender.close()
    with pytest.raises(Closed):
        await sender.send(broker.nsq, TO, [Message("q", b"x")], 10)
