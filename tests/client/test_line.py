"""A connection with plain sockets: answers in turn, what leaves it unusable, and frames cut by the one cutter."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from penstock.client import line as line_module
from penstock.client.line import Line
from penstock.client.liveness import GONE
from penstock.client.plainsend import PlainSends
from penstock.client.results import SendReceipt
from penstock.client.routes import MessageQueue
from penstock.errors import ConnectionLost, TimedOut, WireError
from penstock.message import Message
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import FLAG_ONEWAY, CommandParser, RemotingCommand, encode
from penstock.words import FRAME_BYTES_MAX, TYPE_SHIFT

Answer = Callable[[RemotingCommand], bytes]


@pytest.fixture(params=[False, True], ids=["in place", "short"])
def short(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def line(answer: Answer, short: bool) -> Line:
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
    return Line(listener.getsockname(), 20, short=short)


def test_an_answer_that_nobody_waits_for_is_passed_over(short: bool) -> None:
    def answer(command: RemotingCommand) -> bytes:
        late = RemotingCommand(0, opaque=command.opaque + 100, flag=1)
        return encode(late) + encode(command.reply(0, {"for": str(command.code)}, b"x" * 100_000))

    one = line(answer, short)
    for code in (1, 2):
        found = one.call(RemotingCommand(code), 20)
        assert (found.ext["for"], len(found.body)) == (str(code), 100_000)
    one.close()


def test_requests_sent_ahead_are_answered_in_turn(short: bool) -> None:
    one = line(lambda command: encode(command.reply(0, {"for": str(command.code)})), short)
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
def test_what_ends_a_line(answer: bytes, error: type[Exception], short: bool) -> None:
    one = line(lambda command: answer, short)
    with pytest.raises(error):
        one.call(RemotingCommand(1), 20 if error is not TimedOut else 0.02)
    one.close()


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
    with pytest.raises(ConnectionLost, match="cannot connect"):
        Line(address, 20)


PATIENCE_S = 30.0


@pytest.fixture
def both(short: bool) -> Iterator[tuple[Line, socket.socket]]:
    """A line, and what it is connected to."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        line = Line(server.getsockname(), PATIENCE_S, short=short)
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


def test_a_line_that_answered_just_now_is_not_looked_at(
    both: tuple[Line, socket.socket], short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, peer = both
    command = RemotingCommand(1)
    one.ask(command, PATIENCE_S)
    peer.sendall(encode(RemotingCommand(0, flag=1, opaque=command.opaque)))
    one.hear(command, PATIENCE_S)
    peer.close()
    with pytest.raises(ConnectionLost):
        one.next_answer(PATIENCE_S)  # the end has come
    monkeypatch.setattr(line_module, "FRESH_S", 1e9)
    assert one.is_quiet() == short
    monkeypatch.setattr(line_module, "FRESH_S", 0.0)
    assert not one.is_quiet()


def test_what_comes_before_it_is_asked_for(both: tuple[Line, socket.socket]) -> None:
    """Two answers in one read, the second cut: both are heard, and a line with something left over is not quiet."""
    line, peer = both
    first, second = RemotingCommand(1), RemotingCommand(2)
    line.ask(first, PATIENCE_S)
    line.ask(second, PATIENCE_S)
    answers = [encode(RemotingCommand(0, flag=1, opaque=one.opaque, body=b"x" * 50)) for one in (first, second)]
    peer.sendall(answers[0] + answers[1][:5])
    assert line.hear(first, PATIENCE_S).body == b"x" * 50
    assert not line.is_quiet()
    peer.sendall(answers[1][5:])
    assert line.hear(second, PATIENCE_S).body == b"x" * 50
    assert line.is_quiet()


@pytest.fixture
def signals() -> Iterator[None]:
    """A signal every 10 ms, as a profiler has them, with a handler that gives up after five seconds."""
    left = 500

    def count(number: int, frame: object) -> None:
        nonlocal left
        left -= 1
        assert left, "the deadline has gone by"

    before = signal.signal(signal.SIGALRM, count)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def silent() -> socket.socket:
    """A peer that takes connections, and neither reads nor says anything."""
    return socket.create_server(("127.0.0.1", 0))


def test_a_deadline_holds_while_signals_come(signals: None, short: bool) -> None:
    with silent() as peer:
        one = Line(peer.getsockname(), 20, short=short)
        with pytest.raises(TimedOut, match="did not answer request"):
            one.call(RemotingCommand(1), 0.2)
        with pytest.raises(TimedOut, match="did not take request"):
            one.call(RemotingCommand(1, body=bytes(32 << 20)), 0.2)
        one.close()


def test_a_peer_whose_machine_is_gone(monkeypatch: pytest.MonkeyPatch, short: bool) -> None:
    """Whoever waits for its answer need not wait until the time is over; nor who has more to send than it takes."""
    monkeypatch.setattr(line_module, "LOOK_S", 0.001)
    monkeypatch.setattr(line_module, "is_gone", lambda connection: True)
    pure = os.environ.get("PENSTOCK_PURE") == "1"  # then `sendall` of Python's looks at nothing meanwhile
    for body in (b"",) if pure else (b"", bytes(32 << 20)):
        with silent() as server:
            one = Line(server.getsockname(), 60, short=short)
            with pytest.raises(ConnectionLost, match=GONE):
                one.call(RemotingCommand(1, body=body), 60)
            one.close()


def test_what_is_sent_while_signals_come_is_whole(signals: None, short: bool) -> None:
    one = line(lambda command: encode(command.reply(0, None, command.body[::-1])), short)
    body = random.Random(3).randbytes(8 << 20)
    assert one.call(RemotingCommand(1, body=body), 60).body == body[::-1]
    one.close()


class Cooperative(socket.socket):
    """As libraries of green threads put it in the place of Python's: it never blocks the thread in the system."""

    def settimeout(self, seconds: float | None) -> None:
        super().settimeout(60 if seconds is None else seconds)


def test_a_socket_that_never_blocks(monkeypatch: pytest.MonkeyPatch, short: bool) -> None:
    def connect(address: tuple[str, int], timeout_s: float) -> socket.socket:
        connection = Cooperative(socket.AF_INET)
        connection.settimeout(timeout_s)
        connection.connect(address)
        return connection

    monkeypatch.setattr(line_module.socket, "create_connection", connect)
    one = line(lambda command: encode(command.reply(0, None, command.body)), short)
    assert one.call(RemotingCommand(1, body=b"x"), 20).body == b"x"
    one.close()


def test_an_answer_that_comes_twice_is_no_other_sends() -> None:
    """Else a message that is nowhere has a receipt."""
    offsets = iter(range(10))

    def answer(command: RemotingCommand) -> bytes:
        ext = {"msgId": "A", "queueId": command.ext["e"], "queueOffset": str(next(offsets))}
        return encode(command.reply(0, ext)) * 2

    one, found = line(answer, False), []
    for queue_id in (0, 1, 0, 1):
        sends = PlainSends("G", MessageQueue("T", "a", queue_id))
        receipt = one.store(sends.request(Message("T", b""), "KEY", 0), 20, MessageQueue("T", "a", 0))
        assert isinstance(receipt, SendReceipt)
        found.append((receipt.queue.queue_id, receipt.queue_offset))
    assert found == [(0, 0), (1, 1), (0, 2), (1, 3)]
    one.close()
