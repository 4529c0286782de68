"""A plain NSQ connection."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple


class Message(NamedTuple):
    stamp_ns: int
    attempts: int
    id: bytes
    body: bytes


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def mpub(topic: bytes, *bodies: bytes) -> bytes:
    return b"MPUB " + topic + b"\n" + sized(struct.pack(">I", len(bodies)) + b"".join(map(sized, bodies)))


class NsqPeer:
    """Sends bytes, reads frames."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self._read = b""
        try:
            self.socket.sendall(b"  V2")
        except OSError:
            self.socket.close()
            raise

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def frame(self) -> tuple[int, bytes] | None:
        """The next frame that is no heartbeat; None at the end."""
        while True:
            while len(self._read) < 4 or len(self._read) < 4 + int.from_bytes(self._read[:4]):
                data = self.socket.recv(1 << 16)
                if not data:
                    return None
                self._read += data
            size = int.from_bytes(self._read[:4])
            found, self._read = self._read[4 : 4 + size], self._read[4 + size :]
            if found[4:] != b"_heartbeat_":
                return int.from_bytes(found[:4]), found[4:]

    def unread(self) -> bytes:
        """What was read behind the last frame."""
        found, self._read = self._read, b""
        return found

    def ask(self, data: bytes) -> bytes:
        """Send, and the answer."""
        self.send(data)
        frame = self.frame()
        assert frame is not None
        return frame[1]

    def message(self) -> Message:
        frame = self.frame()
        assert frame is not None
        assert frame[0] == 2, frame
        data = frame[1]
        return Message(int.from_bytes(data[:8]), int.from_bytes(data[8:10]), data[10:26], data[26:])

    def publish(self, topic: bytes, *bodies: bytes) -> None:
        for body in bodies:
            assert self.ask(b"PUB " + topic + b"\n" + sized(body)) == b"OK"

    def subscribe(self, topic: bytes, channel: bytes, ready: int) -> None:
        assert self.ask(b"SUB %s %s\nRDY %d\n" % (topic, channel, ready)) == b"OK"

    def finish(self, *messages: Message) -> None:
        self.send(b"".join(b"FIN " + message.id + b"\n" for message in messages))

    def close(self) -> None:
        self.socket.close()
