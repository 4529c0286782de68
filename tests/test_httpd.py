"""`httpd`: what comes over the socket. Order and framing, limits, slowness, ambiguous requests (reliability.md 8.3)."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from http_rows import ask

from penstock.clock import FakeClock
from penstock.httpd import HEADERS_MAX, SMALL_BYTES, Direct
from penstock.testing import Broker

CLOCK = FakeClock()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(clock=CLOCK, max_msg_size=1000, max_body_size=2000, lookup_port=-1, lookup_http_port=-1) as broker:
        yield broker


class Raw:
    """A socket to the HTTP port."""

    def __init__(self, broker: Broker, buffer_bytes: int = 0) -> None:
        host, _, port = broker.http.rpartition(":")
        self.socket = socket.socket()
        if buffer_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.settimeout(15)
        self.socket.connect((host, int(port)))
        self.kept = b""

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self) -> tuple[int, bytes]:
        """The next answer: status and body."""
        while b"\r\n\r\n" not in self.kept:
            self._more()
        head, _, rest = self.kept.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
        while len(rest) < length:
            self._more()
            rest = self.kept.partition(b"\r\n\r\n")[2]
        self.kept = rest[length:]
        return int(head[9:12]), rest[:length]

    def _more(self) -> None:
        data = self.socket.recv(65536)
        assert data, f"the end after {self.kept!r}"
        self.kept += data

    def ended(self) -> bool:
        """Whether the other side has closed, with nothing more to say."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


def post(body: bytes, target: str = "/pub?topic=t", extra: str = "") -> bytes:
    return f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode() + body


def chunked(*pieces: bytes, target: str = "/pub?topic=t") -> bytes:
    head = f"POST {target} HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (*pieces, b""))


PUB = b"POST /pub?topic=t HTTP/1.1\r\nHost: 127.0.0.1\r\n"
PING = b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
GONE = b"GET /nope HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def test_one_connection_many_requests_in_order(broker: Broker) -> None:
    with Raw(broker) as raw:
        raw.send(post(b"1") + PING + post(b"2") + GONE + post(b"") + chunked(b"3", b"4") + PING)
        found = [raw.answer() for _ in range(7)]
        assert [status for status, _ in found] == [200, 200, 200, 404, 400, 200, 200]
        raw.send(post(b"again"))
        assert raw.answer() == (200, b"OK")


def test_order_holds_while_a_flush_is_waited_for() -> None:
    with Broker(level="disk", lookup_port=-1, lookup_http_port=-1) as broker, Raw(broker) as raw:
        raw.send(post(b"1") + PING + post(b"2") + GONE + post(b"3") + post(b"", "/pub"))
        assert [raw.answer()[0] for _ in range(6)] == [200, 200, 200, 404, 200, 400]


def test_a_body_in_tiny_pieces_is_not_kept_as_so_many_objects() -> None:
    direct = Direct("/pub", b"", True)
    pieces = [b"first", *[b"%02d" % (n % 100) for n in range(10_000)], b"x" * SMALL_BYTES, b"y", b"z"]
    for piece in pieces:
        direct.add(piece)
    assert b"".join(direct.pieces) == b"".join(pieces)
    assert len(direct.pieces) == 4


def test_who_asks_and_does_not_read_is_not_listened_to(broker: Broker) -> None:
    """Requests that wait for others take memory: they wait at the peer. None is lost."""
    pad = b"X-Pad: " + b"x" * 100 + b"\r\n\r\n"
    asked = b"".join(one[:-2] + pad for one in (PING, GONE)) + post(b"", extra=pad[:-2].decode())
    with Raw(broker, 4096) as raw:
        raw.socket.settimeout(2)
        sent = 0
        try:
            while sent < 20 << 20:
                sent += raw.socket.send(asked[sent % len(asked) :])
        except TimeoutError:
            raw.socket.settimeout(60)
            found = [raw.answer()[0] for _ in range(sent // len(asked) * 3)]
            assert found == [200, 404, 400] * (len(found) // 3)
            return
        pytest.fail("20 MiB of requests were read, and of their answers none")


def test_a_peer_that_ends_its_side_first(broker: Broker) -> None:
    for request in (PING, post(b"x"), PING + post(b"x")):
        with Raw(broker) as raw:
            raw.send(request)
            raw.socket.shutdown(socket.SHUT_WR)
            assert raw.answer() == (200, b"OK")


def test_a_name_that_is_not_escaped_is_taken_whole(broker: Broker) -> None:
    """As nsqd takes it. `/topic/delete?topic=kept#ephemeral` deleted the topic `kept`."""
    with Raw(broker) as raw:
        for target in ("/topic/create?topic=kept", "/pub?topic=kept#ephemeral", "/topic/delete?topic=kept#ephemeral"):
            raw.send(post(b"x", target))
            assert raw.answer()[0] == 200
        raw.send(post(b"", "/topic/empty?topic=kept"))
        assert raw.answer() == (200, b"")
        raw.send(post(b"", "/topic/empty?topic=kept#ephemeral"))
        assert raw.answer() == (404, b'{"message":"TOPIC_NOT_FOUND"}')


def test_byte_by_byte(broker: Broker) -> None:
    with Raw(broker) as raw:
        raw.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in post(b"slowly") + chunked(b"ab", b"c"):
            raw.send(bytes([byte]))
        assert raw.answer() == (200, b"OK")
        assert raw.answer() == (200, b"OK")


@pytest.mark.parametrize(
    "sent",
    [
        post(b"x" * 1001) + PING,
        chunked(b"x" * 600, b"x" * 600) + PING,
        chunked(*[b"x" * 1000] * 50) + PING,
    ],
    ids=["length", "chunked", "much more"],
)
def test_too_big_is_refused_and_the_connection_goes_on(broker: Broker, sent: bytes) -> None:
    with Raw(broker) as raw:
        raw.send(sent)
        assert raw.answer() == (413, b'{"message":"MSG_TOO_BIG"}')
        assert raw.answer() == (200, b"OK")


def test_a_huge_body_is_refused_before_it_comes(broker: Broker) -> None:
    with Raw(broker) as raw:
        raw.send(PUB + b"Content-Length: 99999999999\r\n\r\n")
        assert raw.answer()[0] == 413


def test_continue(broker: Broker) -> None:
    with Raw(broker) as raw:
        raw.send(post(b"x", extra="Expect: 100-continue\r\n")[:-1])
        assert raw.socket.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.send(b"x")
        assert raw.answer() == (200, b"OK")
        raw.send(post(b"x" * 1001, extra="Expect: 100-continue\r\n")[:-1001])
        assert raw.answer()[0] == 413


@pytest.mark.parametrize(
    "head", [b"POST /pub?topic=t HTTP/1.0\r\nContent-Length: 1\r\n\r\nx", post(b"x", extra="Connection: close\r\n")]
)
def test_closed_when_asked(broker: Broker, head: bytes) -> None:
    with Raw(broker) as raw:
        raw.send(head)
        assert raw.answer() == (200, b"OK")
        assert raw.ended()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"  V2", 400),
        (b"  V2\x00\x00\x00\x00", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (b"GET /ping\r\n\r\n", 400),
        (b"GET /ping HTTP/1.1\r\n\r\n", 400),
        (b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (PUB + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx", 400),
        (PUB + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy", 400),
        (PUB + b"Content-Length: -1\r\n\r\nx", 400),
        (PUB + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (PUB + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n", 400),
        (PUB + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\nx\r\n0\r\n\r\n", 400),
        (PUB + b"Transfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n", 400),
        (b"GET http://127.0.0.1/ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /../ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /x/.. HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /%2e%2e/ping HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /pi\x00ng HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /pi%00ng HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400),
        (b"GET /ping?" + b"x" * 8200 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 414),
        (b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 17000 + b"\r\n\r\n", 431),
        (b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * 30000, 431),
        (b"GET /ping HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * HEADERS_MAX + b"\r\n", 431),
    ],
    ids=lambda value: str(value)[:90] if isinstance(value, bytes) else None,
)  # fmt: skip
def test_refused_and_closed(broker: Broker, sent: bytes, status: int) -> None:
    with Raw(broker) as raw:
        raw.send(sent)
        found, body = raw.answer()
        assert found == status
        assert json.loads(body)["message"]
        assert raw.ended()


def test_what_came_before_a_bad_request_is_answered(broker: Broker) -> None:
    with Raw(broker) as raw:
        raw.send(post(b"x") + b"nonsense\r\n\r\n")
        assert raw.answer() == (200, b"OK")
        assert raw.answer()[0] == 400
        assert raw.ended()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET /ping HTTP/1.1\r\nHost:",
        post(b"x" * 500)[:-400],
        post(b"x" * 500, "/topic/create?topic=t").replace(b"/topic/create?topic=t", b"/mpub?topic=t")[:-400],
    ],
    ids=["head", "pub", "mpub"],
)
def test_half_a_request_and_silence(broker: Broker, sent: bytes) -> None:
    with Raw(broker) as raw:
        raw.send(sent)
        with Raw(broker) as other:  # its answer says that the first one's bytes have been read
            other.send(PING)
            other.answer()
        CLOCK.advance(31_000)
        assert raw.answer() == (408, b'{"message":"REQUEST_TIMEOUT"}')
        assert raw.ended()


def test_nothing_at_all(broker: Broker) -> None:
    with Raw(broker) as raw:
        with Raw(broker) as other:
            other.send(PING)
            other.answer()
        CLOCK.advance(11_000)
        assert raw.ended()


def test_a_quiet_connection_may_stay(broker: Broker) -> None:
    with Raw(broker) as raw:
        raw.send(PING)
        assert raw.answer() == (200, b"OK")
        CLOCK.advance(100_000)
        with Raw(broker) as other:
            other.send(PING)
            other.answer()
        raw.send(PING)
        assert raw.answer() == (200, b"OK")


@pytest.mark.parametrize("request_", [PING, post(b"x")], ids=["ASGI", "direct"])
def test_a_quiet_connection_is_ended_when_the_time_of_now_is_over(request_: bytes) -> None:
    """It was that of the start, whatever a reload said."""
    with Broker(lookup_port=-1, lookup_http_port=-1) as broker, Raw(broker) as raw:
        raw.send(request_)
        assert raw.answer() == (200, b"OK")
        broker.call(lambda server: server.change_settings({"idle_timeout_ms": 1_000}, {"idle_timeout_ms"}))
        raw.send(request_)
        assert raw.answer() == (200, b"OK")
        assert raw.ended()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder


def test_https_and_the_way_to_it(certificate: Path) -> None:
    tls = {"tls_cert": str(certificate / "cert.pem"), "tls_key": str(certificate / "key.pem"), "tls_required": "true"}
    with Broker(lookup_port=-1, lookup_http_port=-1, **tls) as broker:
        https = broker.addresses["https"]
        told = ask(broker.http, "GET", "/ping")
        port = https.rpartition(":")[2]
        assert (told.status, told.body) == (403, b'{"message": "TLS_REQUIRED", "https_port": %s}' % port.encode())
        assert told.headers["x-nsq-content-type"] == "nsq; version=1.0"
        assert ask(broker.http, "POST", "/pub?topic=t", b"x").status == 403
        context = ssl.create_default_context(cafile=certificate / "cert.pem")
        with (
            socket.create_connection(("127.0.0.1", int(port)), 10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
        ):
            wrapped.sendall(post(b"x") + PING)
            got = b""
            while got.count(b"OK") < 4:  # two status lines, two bodies
                got += wrapped.recv(65536)
            assert wrapped.version() == "TLSv1.3"


def test_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "http.sock")
    for _ in range(2):  # the second finds the file of the first
        with Broker(http_host=path, lookup_port=-1, lookup_http_port=-1) as broker:
            assert broker.http == path
            with socket.socket(socket.AF_UNIX) as peer:
                peer.connect(path)
                peer.sendall(b"GET /info HTTP/1.1\r\nHost: any.name\r\n\r\n")
                assert b'"http_port":-1' in peer.recv(65536)
