"""A line protocol: what a protocol of one's own needs, and no more.

PUT topic text      OK                   when the message is stored as its topic promises
READ topic channel  OK, then MSG id attempts text, one at a time
DONE id             OK                   or NO and why, as after every other line
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.broker.broker import Broker
from penstock.delivery.channel import Channel, Consumer
from penstock.delivery.source import Source
from penstock.errors import Refused
from penstock.fronts.front import Front


class ToySession(Consumer):
    """One connection."""

    def __init__(self, broker: Broker, wake: Callable[[], None]) -> None:
        super().__init__()
        self.broker, self.queueing, self._wake = broker, broker.queueing, wake
        self.channel: Channel | None = None
        self.need = 0

    def feed(self, owner: bytearray, total: int) -> int:
        lines = bytes(memoryview(owner)[:total]).split(b"\n")
        for line in lines[:-1]:
            verb, *words = line.split(b" ", 2)
            try:
                {b"PUT": self.put, b"READ": self.read, b"DONE": self.done}[verb](*words)
            except (Refused, KeyError, TypeError, ValueError) as error:
                self.answer(b"NO " + (str(error) or "what?").encode())
        return total - len(lines[-1])

    def answer(self, line: bytes) -> None:
        self.out.put(line + b"\n")
        self.wake()

    def put(self, topic: bytes, text: bytes) -> None:
        ticket = self.queueing.publish(self.queueing.topic(topic), [text])
        if ticket is None:
            self.answer(b"OK")
        else:
            ticket.then(lambda good: self.answer(b"OK" if good else b"NO disk"))

    def read(self, topic: bytes, name: bytes) -> None:
        self.channel = self.queueing.topic(topic).channel(name)
        self.channel.add(self)
        self.ready_count = 1
        self.queueing.mark_channel(self.channel)
        self.answer(b"OK")

    def done(self, message_id: bytes) -> None:
        if self.channel is None:
            raise Refused("READ first")
        failed = self.channel.finish(self, int(message_id, 16), self.broker.now_ns, self.broker.mono_ms)
        self.queueing.mark_channel(self.channel)
        self.answer(b"NO such message" if failed else b"OK")

    def deliver(self, source: Source, attempts: int) -> int:
        self.out.put(b"MSG %x %d %s\n" % (source.message_id, attempts, source.body()))
        return 0

    def take(self) -> bytes:
        return self.out.take()

    def wake(self) -> None:
        self._wake()

    def lost(self) -> None:
        if self.channel is not None:
            self.channel.remove(self)


class ToyFront(Front):
    """All connections."""

    name = "toy"

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def session(self, remote: str, wake: Callable[[], None]) -> ToySession:
        return ToySession(self.broker, wake)
