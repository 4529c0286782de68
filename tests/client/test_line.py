"""The blocking line cuts frames with the one cutter."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from penstock.client.line import Line
from penstock.errors import WireError
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import RemotingCommand, encode
from penstock.words import FRAME_BYTES_MAX, TYPE_SHIFT

PATIENCE_S = 30.0


@pytest.fixture
def both() -> Iterator[tuple[Line, socket.socket]]:
    """A line, and what it is connected to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = Line(server.getsockname(), PATIENCE_S)
        peer, _ = server.accept()
        with peer:
            yield line, peer
        line.close()


@pytest.mark.parametrize(
    ("length", "kind", "size", "says"),
    [
        (FRAME_BYTES_MAX, 2, 0, "serialize type 2"),
        (FRAME_BYTES_MAX + 1, 0, 0, "a frame of"),
        (3, 0, 0, "a frame of 3 bytes"),
        (100, 0, 97, "a header of 97 bytes"),
    ],
)
def test_what_no_peer_sends_is_refused_by_its_first_bytes(
    both: tuple[Line, socket.socket], length: int, kind: int, size: int, says: str
) -> None:
    line, peer = both
    peer.sendall(length.to_bytes(4) + (kind << TYPE_SHIFT | size).to_bytes(4))
    with pytest.raises(WireError, match=says):
        line.next_answer(PATIENCE_S)


def test_answers_with_and_without_a_body(both: tuple[Line, socket.socket]) -> None:
    line, peer = both
    for body in (b"", b"body", b"x" * 1_000_000):
        command = RemotingCommand(RequestCode.HEART_BEAT)
        line.ask(command, PATIENCE_S)
        peer.sendall(encode(RemotingCommand(0, flag=1, opaque=command.opaque, body=body)))
        assert line.hear(command, PATIENCE_S).body == body
