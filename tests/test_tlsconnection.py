"""TLS on the listeners, with real sockets: who is let in, who is told apart, and what a peer can hold up."""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from certificates import Authority, Certificate
from fronts.nsq_peer import NsqPeer, mpub, sized
from fronts.raw_peer import RawPeer
from penstock.embedded import ThreadedBroker as Broker
from penstock.errors import ConfigError
from penstock.fronts.site import DONE
from penstock.tlsconnection import HANDSHAKE
from penstock.wire import remoting
from penstock.wire.remoting import RemotingCommand
from polling import eventually

MAGIC = b"  V1"


def plain(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def secure(address: str, context: ssl.SSLContext) -> ssl.SSLSocket:
    return wrap(plain(address), context)


def wrap(connection: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
    try:
        return context.wrap_socket(connection, server_hostname="127.0.0.1")
    except BaseException:
        connection.close()
        raise


class TlsPeer(RawPeer):
    """A RocketMQ peer with TLS."""

    def __init__(self, address: str, context: ssl.SSLContext) -> None:
        super().__init__(address)
        self.socket = wrap(self.socket, context)


def metric(broker: Broker, line: str) -> float:
    with urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=30) as told:
        page = told.read().decode()
    return sum(float(found.rpartition(" ")[2]) for found in page.splitlines() if found.startswith(line))


def sessions(broker: Broker, kind: str) -> list[Any]:
    """The sessions of a kind that there are now."""
    return broker.call(
        lambda server: [c.session for c in server.net.connections if type(getattr(c, "session", None)).__name__ == kind]
    )


@pytest.fixture
def broker(server_certificate: Certificate, authority: Authority) -> Iterator[Broker]:
    """One that takes TLS and plain peers, with or without certificates."""
    more = {"tls_root_ca_file": str(authority.cert), "tls_client_auth_policy": "optional"}
    with Broker(**server_certificate.settings, **more) as broker:
        yield broker


@pytest.fixture
def strict(server_certificate: Certificate) -> Iterator[Broker]:
    """One that takes nothing but TLS."""
    modes = dict.fromkeys(("remoting_tls", "registry_tls", "lookup_tls"), "required")
    with Broker(**server_certificate.settings, **modes) as broker:
        yield broker


# -- both on one port


def test_tls_and_plain_peers_share_the_ports_of_rocketmq(broker: Broker, authority: Authority) -> None:
    body = bytes(range(256)) * 8_000  # many records each way
    with TlsPeer(broker.remoting, authority.client()) as peer, RawPeer(broker.remoting) as other:
        assert peer.send("logs", b"by tls", e=0).code == 0
        assert peer.send("logs", body, e=1).code == 0
        assert other.send("logs", b"plain", e=2).code == 0
        for reader in (peer, other):
            assert b"by tls" in reader.pull("logs", 0, 0).body
            assert body in reader.pull("logs", 1, 0).body
            assert b"plain" in reader.pull("logs", 2, 0).body
    for context in (authority.client(), None):
        peer = RawPeer(broker.registry) if context is None else TlsPeer(broker.registry, context)
        with peer:
            assert b"brokerDatas" in peer.ask(105, {"topic": "logs"}).body
    assert metric(broker, 'penstock_tls_handshakes_total{result="done"}') == 2


def test_a_frame_cut_anywhere_comes_whole(broker: Broker, authority: Authority) -> None:
    with TlsPeer(broker.remoting, authority.client()) as peer:
        first = peer.write
        peer.write = lambda data: [first(data[at : at + 1]) for at in range(len(data))] and None  # type: ignore[method-assign]
        assert peer.send("logs", b"a byte a record").code == 0


def test_lookupd_speaks_both_on_both_its_ports(broker: Broker, authority: Authority) -> None:
    for connection in (plain(broker.lookup), secure(broker.lookup, authority.client())):
        with connection:
            connection.sendall(MAGIC + b"PING\n")
            assert connection.recv(100) == b"\0\0\0\2OK"
    with urllib.request.urlopen(f"http://{broker.lookup_http}/ping", timeout=30) as told:
        assert told.read() == b"OK"
    with urllib.request.urlopen(f"https://{broker.lookup_http}/ping", timeout=30, context=authority.client()) as told:
        assert told.read() == b"OK"


def test_without_a_certificate_there_is_no_tls(authority: Authority) -> None:
    with Broker() as broker, pytest.raises((ssl.SSLError, OSError)):
        secure(broker.remoting, authority.client())


def test_off_means_off(server_certificate: Certificate, authority: Authority) -> None:
    with Broker(**server_certificate.settings, remoting_tls="off") as broker:
        with RawPeer(broker.remoting) as peer:
            assert peer.send("logs", b"x").code == 0
        with pytest.raises((ssl.SSLError, OSError)):
            secure(broker.remoting, authority.client())


# -- nothing but TLS


def test_a_plain_peer_is_closed_where_tls_is_required(
    strict: Broker, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for address in (strict.remoting, strict.registry, strict.lookup, strict.lookup_http):
            caplog.clear()
            with plain(address) as peer:
                peer.sendall(b"\0\0\0\1GET / HTTP/1.1\r\n\r\n")
                with contextlib.suppress(ConnectionResetError):
                    assert peer.recv(100) == b""
    assert metric(strict, 'penstock_tls_handshakes_total{result="plain"}') == 4
    with TlsPeer(strict.remoting, authority.client()) as peer:
        assert peer.send("logs", b"x").code == 0


def test_the_log_says_it_once(strict: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with plain(strict.remoting) as peer:
        peer.sendall(b"\0\0\0\1")
        assert not peer.recv(100)
    lines = [line for line in caplog.messages if "does not speak TLS" in line]
    assert len(lines) == 1
    assert "connection closed peer=127.0.0.1" in lines[0]


def test_old_versions_and_no_handshakes_are_refused(strict: Broker, authority: Authority) -> None:
    old = authority.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with secure(strict.remoting, old) as connection:
        assert connection.version() == "TLSv1.2"
        assert connection.compression() is None
    with plain(strict.remoting) as peer:
        peer.sendall(b"\x16\x03\x01\x00\x05hello")
        answer = peer.recv(100)
        assert answer[:1] in (b"", b"\x15")  # an alert
        while answer:
            answer = peer.recv(100)
    eventually(lambda: metric(strict, 'penstock_tls_handshakes_total{result="failed"}') == 1)


@pytest.mark.parametrize("setting", ["remoting_tls", "registry_tls", "lookup_tls"])
def test_required_without_a_certificate_is_no_start(tmp_path: Path, setting: str) -> None:
    with pytest.raises(ConfigError, match="no certificate"), Broker(tmp_path, **{setting: "required"}):
        pass
    with pytest.raises(ConfigError, match="perhaps"), Broker(tmp_path, **{setting: "perhaps"}):
        pass


# -- who the client is


def test_a_session_knows_the_name_in_the_certificate(
    broker: Broker, authority: Authority, client_certificate: Certificate
) -> None:
    for certificate, name in ((None, ""), (client_certificate, "anna")):
        context = authority.client(certificate)
        with TlsPeer(broker.remoting, context) as peer:
            assert peer.send("logs", b"x").code == 0
            assert [session.certificate for session in sessions(broker, "BrokerSession")] == [name]
        eventually(lambda: not sessions(broker, "BrokerSession"))
        with TlsPeer(broker.registry, context) as peer:
            assert peer.ask(106).code == 0
            assert [session.certificate for session in sessions(broker, "RemotingSession")] == [name]
        eventually(lambda: not sessions(broker, "RemotingSession"))
        with secure(broker.lookup, context) as connection:
            connection.sendall(MAGIC + b"PING\n")
            assert connection.recv(100)
            assert name in [session.certificate for session in sessions(broker, "LookupSession")]
        eventually(lambda: not sessions(broker, "LookupSession"))


def test_a_request_of_http_knows_it_too(broker: Broker, authority: Authority, client_certificate: Certificate) -> None:
    found: list[str] = []
    host, _, port = broker.addresses["https"].rpartition(":")
    for certificate, name in ((None, ""), (client_certificate, "anna")):
        peer = HTTPSConnection(host, int(port), timeout=30, context=authority.client(certificate))
        peer.request("GET", "/ping")
        assert peer.getresponse().read() == b"OK"
        (connection,) = broker.call(lambda server: [c for c in server.net.connections if hasattr(c, "scheme")])
        assert (connection.certificate, connection.scheme) == (name, "https")
        connection._httpd.site.routes["/info"] = {"GET": lambda request: found.append(request.certificate) or DONE}
        peer.request("GET", "/info")
        assert peer.getresponse().read() == b""
        peer.close()
        eventually(lambda: not broker.call(lambda server: [c for c in server.net.connections if hasattr(c, "scheme")]))
    assert found == ["", "anna"]


def identify(peer: NsqPeer, context: ssl.SSLContext) -> None:
    answer = peer.ask(b"IDENTIFY\n" + sized(b'{"feature_negotiation":true,"tls_v1":true}'))
    assert b'"tls_v1":true' in answer
    peer.socket = wrap(peer.socket, context)
    frame = peer.frame()
    assert frame is not None
    assert frame[1] == b"OK"


def test_an_nsq_client_is_known_from_the_upgrade_on(
    broker: Broker, authority: Authority, client_certificate: Certificate
) -> None:
    for certificate, name in ((None, ""), (client_certificate, "anna")):
        peer = NsqPeer(broker.nsq)
        identify(peer, authority.client(certificate))
        assert peer.ask(mpub(b"t", b"a" * 100_000, b"b" * 900_000)) == b"OK"
        assert [session.certificate for session in sessions(broker, "NsqSession")] == [name]
        peer.socket.close()
        eventually(lambda: not sessions(broker, "NsqSession"))


def test_what_was_said_before_the_upgrade_is_not_carried_out_inside(broker: Broker) -> None:
    peer = NsqPeer(broker.nsq)
    asked = b"IDENTIFY\n" + sized(b'{"feature_negotiation":true,"tls_v1":true}')
    peer.send(asked + b"PUB sneaked\n" + sized(b"x"))
    frame = peer.frame()
    assert frame is not None
    assert b'"tls_v1":true' in frame[1]
    rest = peer.unread()
    while data := peer.socket.recv(100):
        rest += data
    peer.close()
    assert rest[:1] in (b"", b"\x15")  # an alert
    with urllib.request.urlopen(f"http://{broker.http}/stats?format=json", timeout=30) as told:
        assert b"sneaked" not in told.read()


def test_a_certificate_of_somebody_else_is_none(
    broker: Broker, authority: Authority, tmp_path: Path, client_certificate: Certificate
) -> None:
    stranger = Authority(tmp_path, "stranger").sign("anna")
    with pytest.raises((OSError, EOFError)), TlsPeer(broker.remoting, authority.client(stranger)) as peer:
        peer.send("logs", b"x")  # in TLS 1.3 the alert comes with the first read
    eventually(lambda: metric(broker, 'penstock_tls_handshakes_total{result="failed"}') == 1)


def test_a_certificate_that_nobody_checked_names_nobody(
    server_certificate: Certificate, authority: Authority, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").sign("anna")
    with (
        Broker(**server_certificate.settings, tls_client_auth_policy="require") as broker,
        TlsPeer(broker.remoting, authority.client(stranger)) as peer,
    ):
        assert peer.send("logs", b"x").code == 0
        assert [session.certificate for session in sessions(broker, "BrokerSession")] == [""]


def test_a_certificate_of_two_names_names_nobody(broker: Broker, authority: Authority) -> None:
    both = authority.sign("both", subject="/CN=anna/CN=admin")
    with TlsPeer(broker.remoting, authority.client(both)) as peer:
        assert peer.send("logs", b"x").code == 0
        assert [session.certificate for session in sessions(broker, "BrokerSession")] == [""]


def test_where_certificates_are_required_nobody_comes_without(
    server_certificate: Certificate, authority: Authority, client_certificate: Certificate
) -> None:
    more = {
        "tls_client_auth_policy": "require-verify", "tls_root_ca_file": str(authority.cert), "remoting_tls": "required",
    }  # fmt: skip
    with Broker(**server_certificate.settings, **more) as broker:
        with pytest.raises((OSError, EOFError)), TlsPeer(broker.remoting, authority.client()) as peer:
            peer.send("logs", b"x")
        with TlsPeer(broker.remoting, authority.client(client_certificate)) as peer:
            assert peer.send("logs", b"x").code == 0


# -- slow ones


def test_a_thousand_slow_handshakes_hold_nobody_up_and_leave_nothing(
    server_certificate: Certificate, authority: Authority
) -> None:
    more = {"tls_handshake_timeout_ms": 2_000, "remoting_tls": "required"}
    with Broker(**server_certificate.settings, **more) as broker:
        before = metric(broker, "penstock_connections")
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        hello = authority.client().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
        with pytest.raises(ssl.SSLWantReadError):
            hello.do_handshake()
        data = outgoing.read()
        slow = []
        for number in range(1_000):
            peer = plain(broker.remoting)
            peer.sendall(data[: number % len(data)])
            slow.append(peer)
        with TlsPeer(broker.remoting, authority.client()) as peer:
            assert peer.send("logs", b"x").code == 0
        eventually(lambda: metric(broker, 'penstock_tls_handshakes_total{result="slow"}') == 1_000)
        assert metric(broker, 'penstock_limit_reached_total{limit="tls_handshake"}') == 1_000
        eventually(lambda: metric(broker, "penstock_connections") <= before)
        for peer in slow:
            peer.close()
        held = broker.call(lambda server: (server.net.waiting_bytes, server.net.admission.count))
        assert held == (0, 0)


def test_a_slow_handshake_within_nsq_ends_too(server_certificate: Certificate) -> None:
    with Broker(**server_certificate.settings, tls_handshake_timeout_ms=200) as broker:
        peer = NsqPeer(broker.nsq)
        body = b'{"feature_negotiation":true,"tls_v1":true,"heartbeat_interval":-1}'
        assert b'"tls_v1":true' in peer.ask(b"IDENTIFY\n" + sized(body))
        assert peer.socket.recv(100) == b""
        peer.close()
        assert metric(broker, 'penstock_rejected_total{protocol="nsq",reason="TLS_HANDSHAKE_TOO_SLOW"}') == 1
        assert metric(broker, 'penstock_limit_reached_total{limit="tls_handshake"}') == 1


def test_connections_that_shake_hands_count_among_the_others(
    server_certificate: Certificate, authority: Authority
) -> None:
    more = {"max_connections": 2, "remoting_tls": "required", "nsq_port": -1}
    with Broker(**server_certificate.settings, **more) as broker:
        first, second = plain(broker.remoting), plain(broker.remoting)
        first.sendall(bytes([HANDSHAKE]))
        eventually(lambda: broker.call(lambda server: server.net.admission.count) == 2)
        with plain(broker.remoting) as third:
            assert third.recv(100) == b""
        assert metric(broker, 'penstock_limit_reached_total{limit="connections"}') == 1
        for peer in (first, second):
            peer.close()
        eventually(lambda: broker.call(lambda server: server.net.admission.count) == 0)
        with TlsPeer(broker.remoting, authority.client()) as peer:
            assert peer.send("logs", b"x").code == 0
            assert broker.call(lambda server: server.net.admission.count) == 1


def test_https_gets_in_beyond_the_limit_as_http_does(server_certificate: Certificate, authority: Authority) -> None:
    """Whoever looks why nobody gets in must get in."""
    with Broker(**server_certificate.settings, max_connections=1, https_port=0) as broker, plain(broker.nsq):
        eventually(lambda: broker.call(lambda server: server.net.admission.count) == 1)
        host, _, port = broker.addresses["https"].rpartition(":")
        peer = HTTPSConnection(host, int(port), timeout=30, context=authority.client())
        peer.request("GET", "/ping")
        assert peer.getresponse().read() == b"OK"
        peer.close()


# -- what a connection does besides


def test_a_peer_that_sends_ahead_and_then_ends_gets_its_answers(broker: Broker, authority: Authority) -> None:
    bodies = [b"%d" % n * 500 for n in range(300)]
    with secure(broker.remoting, authority.client()) as connection:
        sent = []
        for number, body in enumerate(bodies):
            ext = {"a": "P", "b": "ahead", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
            sent.append(remoting.encode(RemotingCommand(310, ext, body, opaque=number + 1)))
        connection.sendall(b"".join(sent))
        parser, got = remoting.CommandParser(), []
        while len(got) < len(bodies):
            data = connection.recv(1 << 16)
            assert data
            got += parser.feed(data)
        assert [answer.opaque for answer in got] == list(range(1, len(bodies) + 1))
        assert {answer.code for answer in got} == {0}
        assert isinstance(connection.unwrap(), socket.socket)  # its end is answered with ours


def test_a_reader_that_stops_reading_is_served_later(broker: Broker, authority: Authority) -> None:
    body = b"z" * 1_000_000
    with TlsPeer(broker.remoting, authority.client()) as peer:
        for _ in range(4):
            assert peer.send("big", body, e=0).code == 0
        many = 24
        for number in range(many):  # about 4 MB of answer each: more than is written at once
            ext = {
                "consumerGroup": "G", "topic": "big", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
                "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
                "subVersion": "0", "expressionType": "TAG",
            }  # fmt: skip
            peer.write(remoting.encode(RemotingCommand(11, ext, opaque=10_000 + number)))
        answers = [peer.read() for _ in range(many)]
        assert [answer.opaque for answer in answers] == [10_000 + number for number in range(many)]
        assert {len(answer.body) for answer in answers} == {len(answers[0].body)}
        assert body in answers[-1].body


def test_large_bodies_of_queue_topics(broker: Broker, authority: Authority) -> None:
    bodies = [b"%d" % n * 50_000 for n in range(5)]
    peer = NsqPeer(broker.nsq)
    identify(peer, authority.client())
    for body in bodies:
        assert peer.ask(b"PUB big\n" + sized(body)) == b"OK"
    peer.subscribe(b"big", b"c", 5)
    assert [peer.message().body for _ in bodies] == bodies
    peer.close()


def test_no_renegotiation(strict: Broker, authority: Authority) -> None:
    context = broker_context(strict)
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def broker_context(broker: Broker) -> ssl.SSLContext:
    return broker.call(lambda server: server._tls[0].context)


# -- renewal


def test_a_renewed_certificate_is_for_the_connections_to_come(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = authority.sign("first"), authority.sign("second")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(made: Certificate) -> None:
        cert.write_bytes(made.cert.read_bytes())
        key.write_bytes(made.key.read_bytes())

    def name() -> str:
        with secure(broker.remoting, authority.client()) as connection:
            told: Any = connection.getpeercert()
        return str(re.search(r"'commonName', '(\w+)'", str(told["subject"]))[1])  # type: ignore[index]

    def name_of_https() -> str:
        with secure(broker.addresses["https"], authority.client()) as connection:
            told: Any = connection.getpeercert()
        return str(re.search(r"'commonName', '(\w+)'", str(told["subject"]))[1])  # type: ignore[index]

    install(first)
    settings = {"tls_cert": str(cert), "tls_key": str(key)}
    with Broker(**settings) as broker, TlsPeer(broker.remoting, authority.client()) as old:
        assert old.send("logs", b"before").code == 0
        assert (name(), name_of_https()) == ("first", "first")
        install(second)
        assert name() == "first"
        with caplog.at_level(logging.INFO):
            broker.call(lambda server: server.renew())
        assert any("certificate renewed" in line for line in caplog.messages)
        assert (name(), name_of_https()) == ("second", "second")
        assert old.send("logs", b"after").code == 0
        for bad in (b"no certificate", second.cert.read_bytes()):
            cert.write_bytes(bad)
            key.write_bytes(first.key.read_bytes())  # of another certificate
            caplog.clear()
            broker.call(lambda server: server.renew())
            assert any("the old one stays" in line for line in caplog.messages)
            assert (name(), name_of_https()) == ("second", "second")
        assert old.send("logs", b"after").code == 0


def test_many_at_once(broker: Broker, authority: Authority) -> None:
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with TlsPeer(broker.remoting, authority.client()) as peer:
                for count in range(20):
                    assert peer.send("many", b"%d-%d" % (number, count)).code == 0
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
