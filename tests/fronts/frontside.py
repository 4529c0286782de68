"""Fronts over a broker without sockets: bytes in, bytes out, one turn at a time."""

from __future__ import annotations

from typing import Any

from broker.queueside import Side
from fronts.nsq_peer import sized
from penstock.access.rights import Rights
from penstock.fronts.nsq.front import NsqFront
from penstock.fronts.nsq.session import NsqSession
from penstock.fronts.remoting.front import BrokerFront, BrokerSession
from penstock.wire.remoting import CommandParser, RemotingCommand, encode


class NsqSide(Side):
    """Its sessions have sent the magic."""

    def __init__(self, folder: Any, rights: Rights | None = None, **settings: Any) -> None:
        Side.__init__(self, folder, **settings)
        self.front = NsqFront(self.broker, users=rights)

    def session(self, port: int = 1) -> NsqSession:
        session = self.front.session(f"127.0.0.1:{port}", lambda: None)
        self.say(session, b"  V2")
        return session

    def say(self, session: NsqSession, data: bytes) -> list[bytes]:
        """Bytes that come in a turn, and the frames that leave at its end, without their sizes and types."""
        self.front.begin_turn()
        held = bytearray(data)
        used = session.feed(held, len(held))
        assert used == len(data) or session.closing, "a command that is not whole"
        self.turn()
        return self.frames(session)

    def frames(self, session: NsqSession) -> list[bytes]:
        data, found = session.take(), []
        while data:
            size = int.from_bytes(data[:4])
            found.append(data[8 : 4 + size])
            data = data[4 + size :]
        return found

    def pub(self, session: NsqSession, topic: bytes, body: bytes) -> list[bytes]:
        return self.say(session, b"PUB " + topic + b"\n" + sized(body))


class RemotingSide(Side):
    """A RocketMQ front; `ask` is a request and the answers that leave in its turn."""

    def __init__(self, folder: Any, rights: Rights | None = None, **settings: Any) -> None:
        Side.__init__(self, folder, **settings)
        self.front = BrokerFront(self.broker, rights)
        self._opaque = 0

    def session(self, port: int = 1) -> BrokerSession:
        return self.front.session(f"127.0.0.1:{port}", lambda: None)

    def say(self, session: BrokerSession, *commands: RemotingCommand) -> list[RemotingCommand]:
        data = bytearray(b"".join(map(encode, commands)))
        self.front.begin_turn()
        assert session.feed(data, len(data)) == len(data)
        return self.answers(session)

    def answers(self, session: BrokerSession, ms: int = 0) -> list[RemotingCommand]:
        """What leaves at the end of this turn, `ms` later."""
        self.clock.advance(ms)
        self.broker.time.update()
        news, self.broker.store.arrived = self.broker.store.arrived, []
        for queue in news:
            queue.arrived = False
        self.front.end_turn(news)
        self.broker.save_tables()
        return CommandParser().feed(session.take())

    def ask(self, session: BrokerSession, code: int, body: bytes = b"", **ext: object) -> RemotingCommand:
        self._opaque += 1
        texts = {name: str(value) for name, value in ext.items()}
        (answer,) = self.say(session, RemotingCommand(code, texts, body, opaque=self._opaque))
        assert answer.opaque == self._opaque
        return answer

    def send(
        self, session: BrokerSession, topic: str, body: bytes, properties: str = "", **more: object
    ) -> RemotingCommand:
        fields = {"a": "P", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 5, "h": 0, "i": properties} | more
        return self.ask(session, 310, body, **fields)
