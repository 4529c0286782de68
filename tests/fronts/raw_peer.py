"""A RocketMQ peer made of a plain socket."""

from __future__ import annotations

import itertools
import json
import socket
import struct
import time
from typing import Any

from penstock.message import ReceivedMessage
from penstock.wire import remoting
from penstock.wire.record import iter_records
from penstock.wire.remoting import RemotingCommand


class RawPeer:
    """One connection: bytes out, commands in."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.parser = remoting.CommandParser()
        self.got: list[RemotingCommand] = []
        self.opaques = itertools.count(1)

    def write(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self) -> RemotingCommand:
        while not self.got:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError("closed by the broker")
            self.got += self.parser.feed(data)
        return self.got.pop(0)

    def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", **more: Any) -> RemotingCommand:
        """Send a request and give its answer; what the broker starts meanwhile stays in `got`."""
        command = RemotingCommand(
            code, {k: str(v) for k, v in (ext or {}).items()}, body, opaque=next(self.opaques), **more
        )
        self.write(remoting.encode(command))
        others = []
        while True:
            answer = self.read()
            if answer.response and answer.opaque == command.opaque:
                self.got = others + self.got
                return answer
            others.append(answer)

    def send(self, topic: str, body: bytes, properties: dict[str, str] | None = None, **fields: Any) -> RemotingCommand:
        """SEND_MESSAGE_V2."""
        serialize = fields.pop("serialize", 0)
        return self.ask(310, send_fields(topic, properties) | fields, body, serialize=serialize)

    def pull(self, topic: str, queue_id: int, offset: int, **fields: Any) -> RemotingCommand:
        """PULL_MESSAGE of all tags, not to be held."""
        ext = {
            "consumerGroup": "G", "topic": topic, "queueId": queue_id, "queueOffset": offset, "maxMsgNums": 32,
            "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 15000, "subscription": "*", "subVersion": 0,
            "expressionType": "TAG",
        }  # fmt: skip
        serialize = fields.pop("serialize", 0)
        return self.ask(11, ext | fields, serialize=serialize)

    def closed(self) -> bool:
        """Whether the broker ends the connection without another word."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> RawPeer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def send_fields(topic: str, properties: dict[str, str] | None = None) -> dict[str, Any]:
    """Of SEND_MESSAGE_V2."""
    text = "\x02".join(f"{k}\x01{v}" for k, v in (properties or {}).items())
    return {"a": "PG", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0, "i": text}


def sending(topic: str, body: bytes, opaque: int = 1_000) -> RemotingCommand:
    """The request that `RawPeer.send` makes."""
    return RemotingCommand(310, {k: str(v) for k, v in send_fields(topic).items()}, body, opaque=opaque)


def raw_frame(header: bytes, body: bytes = b"", kind: int = 0) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body


def json_frame(header: Any, body: bytes = b"") -> bytes:
    return raw_frame(json.dumps(header).encode(), body)


def heartbeat(peer: RawPeer, client_id: str, group: str, topic: str, sub: str = "*", version: int = 1) -> None:
    subscription = {"topic": topic, "subString": sub, "subVersion": version}
    consumer = {"groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
                "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [subscription]}  # fmt: skip
    assert peer.ask(34, body=json.dumps({"clientID": client_id, "consumerDataSet": [consumer]}).encode()).code == 0


def wait_for(peer: RawPeer, topic: str, queue_id: int = 0, offset: int = 0) -> list[ReceivedMessage]:
    """What comes to a queue, by held pulls."""
    ends = time.monotonic() + 60
    while time.monotonic() < ends:
        answer = peer.pull(topic, queue_id, offset, sysFlag=6, suspendTimeoutMillis=1000)
        if answer.code == 0:
            return list(iter_records(answer.body, check=True))
    raise AssertionError(f"nothing came to {topic}")
