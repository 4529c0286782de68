"""`client.aio.inflight`: each message of a channel until it is settled, once."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from client.scripted import message
from penstock.client.aio.delivery import Handed, finish
from penstock.client.aio.inflight import InFlight, begin_all, close_all
from penstock.client.results import Outcome, Retry
from penstock.message import ReceivedMessage


class Connection:
    """What is written to it, in the loop and from threads."""

    def __init__(self) -> None:
        self.closed = False
        self.msg_timeout_s = 60.0
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def soon(self, work: Any) -> None:
        work()


class Reader:
    def __init__(self) -> None:
        self.finished: list[list[Handed]] = []
        self.settled: list[tuple[InFlight, Outcome]] = []

    def finish(self, done: list[Handed]) -> None:
        self.finished.append(done)

    def settle(self, hand: InFlight, message: ReceivedMessage, outcome: Outcome) -> None:
        self.settled.append((hand, outcome))


def in_flight(reader: Reader, connection: Connection, count: int) -> list[Handed]:
    messages = [message(number, nsq_id=f"{number:016x}") for number in range(count)]
    hands = begin_all(reader, connection, messages, time.monotonic())  # type: ignore[arg-type]
    return [Handed(hand, one) for hand, one in zip(hands, messages, strict=True)]


async def test_the_messages_of_a_reader_finish_together_and_those_of_a_connection_in_one_command() -> None:
    reader, one, other = Reader(), Connection(), Connection()
    handed = in_flight(reader, one, 3) + in_flight(reader, other, 2)
    await handed[1].settle(Retry(1.0))
    finish(handed)
    assert [len(done) for done in reader.finished] == [4]
    assert [(hand.message_id, type(outcome)) for hand, outcome in reader.settled] == [("0" * 15 + "1", Retry)]
    hands = {one.hand for one in handed}
    reader.settled[0][0].close()
    ids = close_all(handed, hands)  # type: ignore[arg-type]
    assert ids == {one: ["0" * 16, "0" * 15 + "2"], other: ["0" * 16, "0" * 15 + "1"]}
    assert hands == {reader.settled[0][0]}  # whoever settled it takes it out
    assert close_all(handed, set()) == {}


async def test_it_is_touched_when_it_has_waited_for_long_and_never_when_it_is_gone() -> None:
    reader, connection = Reader(), Connection()
    connection.msg_timeout_s = 0.0
    hand = in_flight(reader, connection, 1)[0].hand
    assert isinstance(hand, InFlight)
    await asyncio.sleep(0.001)
    hand.begin(5.0)
    assert hand.keep_until_s > time.monotonic()
    assert connection.sent == [b"TOUCH 0000000000000000\n"]
    await hand.extend(message())
    hand.begin(None)
    assert hand.keep_until_s <= time.monotonic()
    assert len(connection.sent) == 3
    connection.closed = True
    assert hand.gone
    await hand.extend(message())
    connection.closed = False
    hand.close()
    assert hand.gone
    hand.begin(5.0)
    assert len(connection.sent) == 3
