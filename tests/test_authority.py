"""NSQ's AUTH: what is asked of auth servers, what their answers grant, and what happens when they are old or absent."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from penstock.authority import read_rights
from penstock.testing import Broker

GRANTED = {
    "ttl": 3600,
    "identity": "me",
    "identity_url": "http://me",
    "authorizations": [
        {"topic": "^open$", "channels": [".*"], "permissions": ["subscribe", "publish"]},
        {"topic": "^read$", "channels": ["^c"], "permissions": ["subscribe"]},
        {"topic": "^narrow$", "channels": ["^c"], "permissions": ["publish"]},
    ],
}


class AuthServer:
    """Answers every question with `answer` and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.status, self.answer = 200, json.dumps(GRANTED)
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(("GET", self.headers["Accept"], parse_qs(urlsplit(self.path).query, True)))
                self._tell()

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append(("POST", self.headers["Accept"], body))
                self._tell()

            def _tell(self) -> None:
                data = outer.answer.encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *words: Any) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def authority() -> Iterator[AuthServer]:
    server = AuthServer()
    yield server
    server.server.shutdown()
    server.server.server_close()


def say(broker: Broker, *commands: bytes) -> list[bytes]:
    """The data of the frames that answer, up to the end or the last command's."""
    host, _, port = broker.nsq.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as peer, peer.makefile("rb") as answers:
        peer.sendall(b"  V2" + b"".join(commands))
        found = []
        while len(found) < len(commands) and (size := answers.read(4)):
            found.append(answers.read(int.from_bytes(size, "big"))[4:])
        return found


AUTH = b"AUTH\n\0\0\0\6secret"


def publish(topic: bytes) -> bytes:
    return b"PUB " + topic + b"\n\0\0\0\1x"


@pytest.mark.parametrize("method", ["get", "post"])
def test_what_is_asked_and_granted(authority: AuthServer, method: str) -> None:
    with Broker(auth_http_address=authority.address, auth_http_request_method=method) as broker:
        found = say(broker, AUTH, publish(b"open"), b"SUB read chan\n", publish(b"read"))
        assert json.loads(found[0]) == {"identity": "me", "identity_url": "http://me", "permission_count": 3}
        assert found[1:] == [b"OK", b"OK", b'E_UNAUTHORIZED AUTH failed for PUB on "read" ""']
        expected = {"common_name": [""], "remote_ip": ["127.0.0.1"], "secret": ["secret"], "tls": ["false"]}
        assert authority.asked == [(method.upper(), "application/vnd.nsq; version=1.0", expected)]
        assert say(broker, AUTH, publish(b"narrow"))[1].startswith(b"E_UNAUTHORIZED")
        assert say(broker, AUTH, b"SUB read other\n")[1].startswith(b"E_UNAUTHORIZED")
        assert say(broker, AUTH, AUTH)[1] == b"E_INVALID AUTH already set"
        assert say(broker, publish(b"open")) == [b"E_AUTH_FIRST AUTH required before PUB"]


def test_a_server_that_fails_is_passed_over(authority: AuthServer) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
        with Broker(auth_http_address=f"{dead};http://{authority.address}/auth") as broker:
            for _ in range(4):
                assert say(broker, AUTH, publish(b"open"))[1] == b"OK"


@pytest.mark.parametrize(
    ("status", "answer", "told"),
    [
        (403, json.dumps(GRANTED), b"E_AUTH_FAILED AUTH failed"),
        (200, "nonsense", b"E_AUTH_FAILED AUTH failed"),
        (200, json.dumps(GRANTED | {"ttl": 0}), b"E_AUTH_FAILED AUTH failed"),
        (200, json.dumps(GRANTED | {"authorizations": []}), b"E_UNAUTHORIZED AUTH no authorizations found"),
    ],
)
def test_no_rights(authority: AuthServer, status: int, answer: str, told: bytes) -> None:
    authority.status, authority.answer = status, answer
    with Broker(auth_http_address=authority.address) as broker:
        assert say(broker, AUTH, publish(b"open")) == [told]


def test_where_the_system_gives_no_thread_nobody_is_asked_and_nothing_is_granted(
    authority: AuthServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pids.max`, `ulimit -u`: the client waited for an answer for ever."""

    def submit(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    with Broker(auth_http_address=authority.address) as broker:
        monkeypatch.setattr(ThreadPoolExecutor, "submit", submit)
        assert say(broker, AUTH, publish(b"open")) == [b"E_AUTH_FAILED AUTH failed"]
        monkeypatch.undo()
        assert say(broker, AUTH, publish(b"open"))[1] == b"OK"


def test_old_rights_are_asked_for_again(authority: AuthServer) -> None:
    authority.answer = json.dumps(GRANTED | {"ttl": 1})
    with Broker(auth_http_address=authority.address) as broker:
        host, _, port = broker.nsq.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as peer, peer.makefile("rb") as answers:
            peer.sendall(b"  V2" + AUTH)
            answers.read(int.from_bytes(answers.read(4), "big"))
            authority.answer = json.dumps(GRANTED | {"authorizations": GRANTED["authorizations"][1:]})  # type: ignore[index]
            told = b"OK"
            while told == b"OK":  # until the second is over
                peer.sendall(publish(b"open"))
                told = answers.read(int.from_bytes(answers.read(4), "big"))[4:]
        assert told == b'E_UNAUTHORIZED AUTH failed for PUB on "open" ""'
        assert len(authority.asked) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"[]",
        b"{}",
        b'{"ttl":1.5}',
        b'{"ttl":true}',
        b'{"ttl":1,"authorizations":{}}',
        b'{"ttl":1,"authorizations":[1]}',
        b'{"ttl":1,"authorizations":[{"topic":"(","permissions":[]}]}',
        b'{"ttl":1,"authorizations":[{"topic":1}]}',
        b'{"ttl":1,"authorizations":[{"topic":".*","permissions":["everything"]}]}',
        b'{"ttl":1,"identity":5}',
        b"[" * 100_000,
    ],
)
def test_answers_that_are_none(answer: bytes) -> None:
    with pytest.raises(ValueError):
        read_rights(answer)


def test_an_answer_is_read_as_nsqd_reads_it() -> None:
    """The case of names does not matter, and null is an empty text: an auth server in Python that has no page of its user."""
    told = read_rights(
        b'{"TTL":60,"Identity":"me","identity_url":null,'
        b'"Authorizations":[{"Topic":"t","Channels":["c"],"permissions":["publish"]}]}'
    )
    assert (told.ttl_s, told.identity, told.identity_url) == (60, "me", "")
    assert told.grants(b"publish", b"t", b"c", 0)
