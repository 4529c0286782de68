"""The recorded answers of nsqd, against our broker over real sockets.

With NSQD=<path of a real nsqd> in the environment the same table is put to that, to see that the table is right.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from fronts.nsq_rows import AUTH, LARGE, SMALL, Row, identify, mpub, pub
from penstock.testing import Broker

REAL = os.environ.get("NSQD", "")
TYPES = {0: "R", 1: "E", 2: "M"}


@contextlib.contextmanager
def daemon(folder: Path, **settings: int | str) -> Iterator[str]:
    """The NSQ address of a broker with these settings; of the real nsqd, if we are told to use one."""
    if not REAL:
        more = {"auth_http_request_method": "get"} if "auth_http_address" in settings else {}
        with Broker(**more, **settings) as broker:
            yield broker.nsq
        return
    flags = [f"-{name.replace('_', '-')}={value}" for name, value in settings.items()]
    addresses = ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
    with subprocess.Popen(
        [REAL, *addresses, f"-data-path={folder}", *flags], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = process.stderr
        try:
            address = next(line.split("listening on ")[1].strip() for line in lines if "TCP: listening on " in line)
            threading.Thread(target=lines.read, daemon=True).start()  # it must be able to write its log
            yield address
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with daemon(tmp_path_factory.mktemp("small"), max_msg_size=1000, max_body_size=2000) as address:
        yield address


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with daemon(tmp_path_factory.mktemp("large")) as address:
        yield address


RIGHTS = {"topic": "^t$", "channels": ["^c$", "^$"], "permissions": ["subscribe", "publish"]}


class AuthServer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        secret = parse_qs(urlsplit(self.path).query)["secret"][0]
        rights = {"good": [RIGHTS], "none": []}.get(secret)
        self.send_response(200 if rights is not None else 403)
        self.end_headers()
        answer = {"ttl": 3600, "identity": "me", "identity_url": "", "authorizations": rights}
        self.wfile.write(json.dumps(answer).encode() if rights is not None else b"no")

    def log_message(self, *args: object) -> None:
        """Quiet."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), AuthServer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            asked = f"127.0.0.1:{server.server_address[1]}"
            with daemon(tmp_path_factory.mktemp("guarded"), auth_http_address=asked) as address:
                yield address
        finally:
            server.shutdown()
            thread.join()


class NsqPeer:
    """A client made of a plain socket; frames as text."""

    def __init__(self, address: str, magic: bytes = b"  V2") -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        self.data = b""
        self.message_id = b""  # of the last message
        self.socket.sendall(magic)

    def send(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # closed before it was all sent
            self.socket.sendall(data)

    def _need(self, length: int) -> bool:
        while len(self.data) < length:
            try:
                more = self.socket.recv(1 << 16)
            except ConnectionResetError:
                more = b""
            if not more:
                return False
            self.data += more
        return True

    def frame(self) -> str | None:
        """The next frame, None at the end of the stream. Heartbeats are answered."""
        while True:
            if not self._need(4):
                assert self.data == b""
                return None
            size = struct.unpack(">i", self.data[:4])[0]
            assert self._need(4 + size)
            kind, data = struct.unpack(">i", self.data[4:8])[0], self.data[8 : 4 + size]
            self.data = self.data[4 + size :]
            if data == b"_heartbeat_":
                self.send(b"NOP\n")
                continue
            text = data
            if kind == 2:
                self.message_id = data[10:26]
                text = b"%d %s" % (int.from_bytes(data[8:10]), data[26:])
            return f"{TYPES[kind]} {text.decode()}"

    def __enter__(self) -> NsqPeer:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()


def check(address: str, row: Row, probe: str = "probe") -> None:
    """Send the row's bytes and see its frames, and nothing else. An open connection shows that it is by a publish."""
    frames, closed = row.reference if REAL and row.reference is not None else (row.frames, row.closed)
    with NsqPeer(address, row.magic) as peer:
        peer.send(row.sent)
        if row.ends:
            peer.socket.shutdown(socket.SHUT_WR)
        if not closed:
            peer.send(pub(probe, b"are you there"))
            frames = [*frames, "R OK"]
        got = []
        while (frame := peer.frame()) is not None:
            got.append(frame)
            if not closed and len(got) == len(frames):
                break
        if not closed and "M" in {word[0] for word in frames}:  # a message may come before the last answer
            got.sort(key=lambda word: word[0] == "M")
            frames = sorted(frames, key=lambda word: word[0] == "M")
        assert got == frames


def ids(rows: list[Row]) -> list[str]:
    assert len({row.name for row in rows}) == len(rows)
    return [row.name.encode("ascii", "backslashreplace").decode().replace("\0", "\\0") for row in rows]


@pytest.mark.parametrize("row", SMALL, ids=ids(SMALL))
def test_small(small: str, row: Row) -> None:
    check(small, row)


@pytest.mark.parametrize("row", LARGE, ids=ids(LARGE))
def test_large(large: str, row: Row) -> None:
    check(large, row)


@pytest.mark.parametrize("row", AUTH, ids=ids(AUTH))
def test_auth(guarded: str, row: Row) -> None:
    check(guarded, row, "t" if row.name == "what is granted" else "probe")


def test_every_cutting_of_the_stream_gets_the_same_answers(small: str) -> None:
    sent = (
        identify()
        + b"SUB cut c\n"
        + pub("cut", b"one")
        + b"NOP\nRDY 5\n"
        + mpub("cut", b"two", b"three")
        + b"TOUCH 0\n"
    )
    for at in range(1, len(sent)):
        with NsqPeer(small) as peer:
            peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.send(sent[:at])
            peer.send(sent[at:])
            got = []
            while (frame := peer.frame()) is not None:
                got.append(frame)
        assert [f for f in got if f[0] != "M"] == ["R OK"] * 4 + ["E E_INVALID invalid message ID"], at


def test_what_identify_answers(large: str) -> None:
    with NsqPeer(large) as peer:
        peer.send(identify(feature_negotiation=True))
        answer = peer.frame()
    assert answer is not None
    found = json.loads(answer[2:])
    version = found.pop("version")
    assert version.count(".") == 2
    expected = {
        "max_rdy_count": 2500, "max_msg_timeout": 900000, "msg_timeout": 60000, "tls_v1": False, "deflate": False,
        "deflate_level": 6, "max_deflate_level": 6, "snappy": False, "sample_rate": 0, "auth_required": False,
        "output_buffer_size": 16384, "output_buffer_timeout": 250,
    }  # fmt: skip
    assert {key: found[key] for key in expected} == expected
    assert [key for key in found if key in expected] == list(expected)


@pytest.mark.parametrize(
    ("asked", "answered"),
    [
        ({"msg_timeout": 5000}, {"msg_timeout": 5000}),
        ({"sample_rate": 30}, {"sample_rate": 30}),
        ({"output_buffer_size": -1}, {"output_buffer_size": 1, "output_buffer_timeout": 0}),
        ({"output_buffer_timeout": -1}, {"output_buffer_size": 16384, "output_buffer_timeout": 0}),
        ({"output_buffer_size": 100, "output_buffer_timeout": 1000}, {"output_buffer_size": 100, "output_buffer_timeout": 1000}),
        ({"deflate_level": 3}, {"deflate_level": 6, "deflate": False}),
        ({"deflate_level": 3, "deflate": True}, {"deflate_level": 3, "deflate": True}),
        ({"deflate_level": 9, "deflate": True}, {"deflate_level": 6, "deflate": True}),
        ({"snappy": True}, {"snappy": True, "deflate": False}),
        ({"tls_v1": True}, {"tls_v1": False}),
    ],
)  # fmt: skip
def test_what_identify_settles(large: str, asked: dict[str, int], answered: dict[str, int]) -> None:
    with NsqPeer(large) as peer:
        peer.send(identify(feature_negotiation=True, **asked))
        answer = peer.frame()
    assert answer is not None
    found = json.loads(answer[2:])
    assert {key: found[key] for key in answered} == answered


def test_a_message_of_another_client(small: str) -> None:
    """FIN, REQ and TOUCH of what somebody else has in flight fail as if there were no such message; the other keeps it."""
    with NsqPeer(small) as owner, NsqPeer(small) as other:
        for peer in (owner, other):
            peer.send(b"SUB owned c\n")
            assert peer.frame() == "R OK"
        owner.send(b"RDY 1\n" + pub("owned", b"mine"))
        assert {owner.frame(), owner.frame()} == {"R OK", "M 1 mine"}
        name = owner.message_id.decode()
        for command, more in (("FIN", ""), ("REQ", " 0"), ("TOUCH", "")):
            other.send(f"{command} {name}{more}\n".encode())
            told = other.frame()
            assert told in {
                f"E E_{command}_FAILED {command} {name} failed {why}"
                for why in ("ID not in flight", "client does not own message")
            }
        owner.send(b"TOUCH %s\nREQ %s 0\n" % (owner.message_id, owner.message_id))
        assert owner.frame() == "M 2 mine"
        owner.send(b"FIN %s\nFIN %s\n" % (owner.message_id, owner.message_id))
        assert owner.frame() == f"E E_FIN_FAILED FIN {name} failed ID not in flight"
