"""A connection with plain sockets: answers in turn, and what leaves it unusable."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

import pytest

from penstock.client.line import Line
from penstock.errors import ConnectionLost, TimedOut, WireError
from penstock.wire.remoting import FLAG_ONEWAY, CommandParser, RemotingCommand, encode

Answer = Callable[[RemotingCommand], bytes]


def line(answer: Answer) -> Line:
    """A line to a peer that answers each request with these bytes; nothing ends the conversation."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as connection, contextlib.suppress(ConnectionResetError):
            parser = CommandParser()
            while data := connection.recv(65_536):
                for command in parser.feed(data):
                    reply = answer(command)
                    if not reply:
                        return
                    connection.sendall(reply)

    threading.Thread(target=serve, daemon=True).start()
    return Line(listener.getsockname(), 20)


def test_an_answer_that_nobody_waits_for_is_passed_over() -> None:
    def answer(command: RemotingCommand) -> bytes:
        late = RemotingCommand(0, opaque=command.opaque + 100, flag=1)
        return encode(late) + encode(command.reply(0, {"for": str(command.code)}, b"x" * 100_000))

    one = line(answer)
    for code in (1, 2):
        found = one.call(RemotingCommand(code), 20)
        assert (found.ext["for"], len(found.body)) == (str(code), 100_000)
    one.close()


def test_requests_sent_ahead_are_answered_in_turn() -> None:
    one = line(lambda command: encode(command.reply(0, {"for": str(command.code)})))
    for code in (1, 2, 3):
        one.ask(RemotingCommand(code), 20)
    assert [one.next_answer(20).ext["for"] for _ in range(3)] == ["1", "2", "3"]
    oneway = RemotingCommand(9, flag=FLAG_ONEWAY)
    assert one.call(oneway, 20) is oneway
    one.close()


@pytest.mark.parametrize(
    ("answer", "error"),
    [(b"", ConnectionLost), (b"\0\0\0\1" + bytes(8), WireError), (b"\0\0\0\x20", TimedOut)],
)
def test_what_ends_a_line(answer: bytes, error: type[Exception]) -> None:
    one = line(lambda command: answer)
    with pytest.raises(error):
        one.call(RemotingCommand(1), 20 if error is not TimedOut else 0.02)
    one.close()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(ConnectionLost, match="cannot connect"):
        Line(address, 20)
