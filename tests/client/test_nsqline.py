"""`client.nsqline`: one NSQ connection with plain sockets, against a broker and against peers that misbehave."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.client import line as line_module
from penstock.client import nsqframes
from penstock.client.nsqline import NsqLine
from penstock.errors import BrokerRefused, ConnectionLost, PenstockError, TimedOut
from penstock.testing import Broker
from polling import eventually


def test_publishing(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        line = NsqLine(broker.nsq, 10)
        assert line.call(nsqframes.publish("orders", [b"1"]), 10) == b"OK"
        assert line.call(nsqframes.publish("orders", [b"2", b"3"]), 10) == b"OK"
        with pytest.raises(BrokerRefused) as caught:
            line.call(b"PUB bad!name\n" + bytes([0, 0, 0, 1]) + b"x", 10)
        assert "E_BAD_TOPIC" in caught.value.remark
        twin = pickle.loads(pickle.dumps(caught.value))
        assert (twin.code, twin.remark) == (caught.value.code, caught.value.remark)
        line.close()


@contextmanager
def peer(*answers: bytes) -> Iterator[str]:
    """A peer that says these, one for each time it is spoken to, and then nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError), server.accept()[0] as connection:
                for answer in answers:
                    connection.recv(65_536)
                    if not answer:
                        return
                    connection.sendall(answer)
                connection.recv(65_536)
                connection.recv(65_536)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
    thread.join(60)


OK = bytes([0, 0, 0, 6, 0, 0, 0, 0]) + b"OK"
HEARTBEAT = bytes([0, 0, 0, 15, 0, 0, 0, 0]) + b"_heartbeat_"


def test_heartbeats_answer_nothing() -> None:
    with peer(OK, HEARTBEAT + OK) as address:
        line = NsqLine(address, 10)
        assert line.call(nsqframes.publish("T", [b"x"]), 10) == b"OK"
        line.close()


def test_an_answer_that_nobody_asked_for_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers have no numbers: it would be the receipt of a message that was not read yet."""
    monkeypatch.setattr(line_module, "FRESH_S", 1e9)
    again = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(ConnectionResetError), server.accept()[0] as connection:
                for _ in range(2):
                    connection.recv(65_536)
                    connection.sendall(OK)
                again.wait(60)
                connection.sendall(OK)
                connection.recv(65_536)

        thread = threading.Thread(target=serve)
        thread.start()
        line = NsqLine(f"127.0.0.1:{server.getsockname()[1]}", 10)
        assert line.call(nsqframes.publish("T", [b"x"]), 10) == b"OK"
        assert line.is_quiet()
        again.set()
        eventually(lambda: not line.is_quiet())
        line.close()
        thread.join(60)


@pytest.mark.parametrize("answers", [(), (b"",), (OK, b""), (OK,), (b"\xff" * 20,)])
def test_a_peer_that_does_not_answer_as_it_should(answers: tuple[bytes, ...]) -> None:
    with peer(*answers) as address:
        with pytest.raises(PenstockError) as caught:
            line = NsqLine(address, 0.5)
            try:
                line.call(nsqframes.publish("T", [b"x"]), 0.5)
            finally:
                line.close()
        if answers[-1:] == (b"",):
            assert isinstance(caught.value, ConnectionLost)


def test_nobody_there() -> None:
    with pytest.raises(ConnectionLost):
        NsqLine("127.0.0.1:1", 1.0)
    assert issubclass(TimedOut, PenstockError)
