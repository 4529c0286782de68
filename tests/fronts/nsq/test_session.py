"""Peers that mean harm, or are just broken: what they send costs them their connection and nobody else anything."""

from __future__ import annotations

import json
import os
import ssl
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import cramjam
import psutil
import pytest

from fronts.frontside import NsqSide
from fronts.nsq_peer import NsqPeer, mpub, sized
from penstock.authority import Rights, read_rights
from penstock.fronts.nsq import session as nsq
from penstock.fronts.nsq.front import NsqFront
from penstock.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def identify(peer: NsqPeer, **fields: object) -> dict[str, object]:
    told = {"feature_negotiation": True, **fields}
    answer: dict[str, object] = json.loads(peer.ask(b"IDENTIFY\n" + sized(json.dumps(told).encode())))
    return answer


def rss_mib() -> float:
    return psutil.Process(os.getpid()).memory_info().rss / 2**20


def still_serves(broker: Broker) -> None:
    peer = NsqPeer(broker.nsq)
    peer.publish(b"alive", b"yes")
    peer.close()


def test_deflate_that_expands_is_worked_off_in_pieces(broker: Broker) -> None:
    peer = NsqPeer(broker.nsq)
    assert identify(peer, deflate=True)["deflate"] is True
    open_, close = zlib.decompressobj(-15), zlib.compressobj(6, zlib.DEFLATED, -15)
    frame = open_.decompress(peer.unread())
    while len(frame) < 10:
        frame += open_.decompress(peer.socket.recv(1 << 16))
    assert frame.endswith(b"OK")
    before = rss_mib()
    commands = (
        (64 << 18) if nsq.__file__.endswith(".so") else 1 << 16
    )  # 64 MiB in 64 KiB; uncompiled that takes a minute
    bomb = close.compress(b"NOP\n" * commands) + close.flush(zlib.Z_SYNC_FLUSH)
    peer.send(bomb + close.compress(b"FOO\n") + close.flush(zlib.Z_SYNC_FLUSH))
    peer.socket.settimeout(180)  # seconds of work where nothing else runs
    frame = b""
    while b"FOO" not in frame:
        frame += open_.decompress(peer.socket.recv(1 << 16))
    assert b"E_INVALID invalid command FOO" in frame
    assert rss_mib() - before < 48
    peer.close()
    still_serves(broker)


def test_snappy_both_ways(broker: Broker) -> None:
    peer = NsqPeer(broker.nsq)
    assert identify(peer, snappy=True)["snappy"] is True
    raw = peer.unread()
    while len(raw) < 10 + 4 + 4 + 10:
        raw += peer.socket.recv(1 << 16)
    assert bytes(cramjam.snappy.decompress(raw))[4:] == b"\0\0\0\0OK"
    out = bytes(cramjam.snappy.compress(b"PUB s\n" + sized(b"x" * 100_000)))
    for at in range(0, len(out), 1000):
        peer.send(out[at : at + 1000])
    answer = peer.socket.recv(1 << 16)
    assert bytes(cramjam.snappy.decompress(b"\xff\x06\x00\x00sNaPpY" + answer))[8:] == b"OK"
    peer.send(b"\x00\xff\xff\xff" + bytes(200))  # a chunk of 16 MiB
    assert peer.socket.recv(1) == b""
    peer.close()
    still_serves(broker)


@pytest.mark.parametrize(
    "sent",
    [
        b"PUB t\n\x7f\xff\xff\xff",
        b"MPUB t\n\x00\x10\x00\x00\x7f\xff\xff\xff",
        b"IDENTIFY\n\x7f\xff\xff\xff",
        b"IDENTIFY\n" + sized(b"[" * 100_000),
        b"IDENTIFY\n" + sized(b'{"heartbeat_interval": ' + b"9" * 5000 + b"}"),
        b"IDENTIFY\n" + sized(b'{"msg_timeout": NaN}'),
        b"IDENTIFY\n" + sized(b'{"client_id": 7}'),
        b"X" * 5000 + b"\n",
        b"\xff" * 64 + b"\n",
        mpub(b"t", b"a") + b"MPUB t\n" + sized((1).to_bytes(4) + sized(b"b") + b"extra"),
    ],
)
def test_what_is_closed_at_once_takes_no_memory(broker: Broker, sent: bytes) -> None:
    before = rss_mib()
    peers = [NsqPeer(broker.nsq) for _ in range(20)]
    for peer in peers:
        peer.send(sent)
        while peer.frame() is not None:
            pass
        peer.close()
    assert rss_mib() - before < 32
    still_serves(broker)


def test_a_promise_of_a_megabyte_is_not_believed_before_it_comes(broker: Broker) -> None:
    before = rss_mib()
    peers = [NsqPeer(broker.nsq) for _ in range(200)]
    for peer in peers:
        peer.send(b"PUB t\n" + (1 << 20).to_bytes(4) + b"x" * 1000)
    still_serves(broker)
    assert rss_mib() - before < 40
    for peer in peers:
        peer.close()


def test_tls_and_what_came_before_it(tmp_path: Path) -> None:
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
        "-keyout",
        "key.pem",
        "-out",
        "cert.pem",
    ]
    try:
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openssl program to make a certificate with")
    settings = {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}
    with Broker(tmp_path / "data", tls_required="tcp-https", **settings) as broker:
        plain = NsqPeer(broker.nsq)
        assert plain.ask(b"PUB t\n" + sized(b"x")) == b"E_INVALID cannot PUB in current state (TLS required)"
        assert plain.frame() is None
        plain.close()
        peer = NsqPeer(broker.nsq)
        assert identify(peer, tls_v1=True)["tls_v1"] is True
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        peer.socket = context.wrap_socket(peer.socket)
        assert peer.frame() == (0, b"OK")
        peer.publish(b"t", b"inside")
        peer.subscribe(b"t", b"c", 1)
        assert peer.message().body == b"inside"
        peer.close()
        early = NsqPeer(broker.nsq)
        told = json.dumps({"feature_negotiation": True, "tls_v1": True}).encode()
        early.send(b"IDENTIFY\n" + sized(told) + b"PUB t\n" + sized(b"in clear"))
        assert early.frame() is not None
        while early.socket.recv(1 << 16):  # the alert, then the end
            pass
        early.close()


async def test_silence_before_the_magic_ends(tmp_path: Path) -> None:
    from penstock.broker.broker import Broker as Inner
    from penstock.clock import FakeClock
    from penstock.config import BrokerConfig
    from penstock.fronts.nsq.front import NsqFront

    clock = FakeClock()
    broker = Inner(BrokerConfig(data=str(tmp_path), mapped_file_size_commit_log=1 << 20), clock=clock)
    broker.open()
    front = NsqFront(broker)
    session, other = (front.session(f"127.0.0.1:{port}", lambda: None) for port in (1, 2))
    session.feed(bytearray(b"  V"), 3)
    other.feed(bytearray(b"  V2"), 4)
    for ms, closed in ((9_999, False), (1, True)):
        clock.advance(ms)
        broker.time.update()
        front.begin_turn()
        front.tick()
        assert session.closing == closed
    assert not other.closing
    clock.advance(30_000)
    broker.time.update()
    front.begin_turn()
    front.tick()
    assert b"_heartbeat_" in other.take()
    clock.advance(40_000)
    broker.time.update()
    front.begin_turn()
    front.tick()
    assert other.closing
    broker.close()


def test_identify_takes_its_fields_in_any_case() -> None:
    """As Go's decoder does; of one field written twice the last counts."""
    with Broker() as broker:
        peer = NsqPeer(broker.nsq)
        body = b'{"Client_ID":"a","FEATURE_NEGOTIATION":true,"msg_timeout":2000,"Msg_Timeout":5000,"other":1}'
        answer = json.loads(peer.ask(b"IDENTIFY\n" + sized(body)))
        assert answer["msg_timeout"] == 5000
        peer.close()
        peer = NsqPeer(broker.nsq)
        assert b"heartbeat interval (5) is invalid" in peer.ask(b"IDENTIFY\n" + sized(b'{"Heartbeat_Interval":5}'))
        peer.close()


class Asked:
    """An NSQ side whose auth server answers when the test says so."""

    def __init__(self, folder: Path) -> None:
        self.side = NsqSide(folder, auth_http_address="127.0.0.1:1")
        self.side.front = NsqFront(self.side.broker, None, self.ask)
        self.session = self.side.session()
        self.done: Callable[[Rights | None], None] = lambda rights: None

    def ask(self, session: object, secret: bytes, done: Callable[[Rights | None], None]) -> None:
        self.done = done

    def answer(self) -> list[bytes]:
        """Everything is granted: what leaves then."""
        self.side.front.begin_turn()
        rule = {"topic": ".*", "channels": [".*"], "permissions": ["subscribe", "publish"]}
        self.done(read_rights(json.dumps({"ttl": 60, "authorizations": [rule]}).encode()))
        self.side.turn()
        return self.side.frames(self.session)


@pytest.mark.parametrize(
    ("behind", "frames"),
    [
        (b"", []),
        (b"PUB t\n" + sized(b"x"), [b"OK"]),
        (b"PUB t\n" + sized(b"x")[:-1], [b"E_BAD_MESSAGE PUB failed to read message body"]),
    ],
)
def test_who_says_nothing_more_while_its_rights_are_asked_for_is_answered(
    tmp_path: Path, behind: bytes, frames: list[bytes]
) -> None:
    asked = Asked(tmp_path)
    asked.side.say(asked.session, b"AUTH\n" + sized(b"secret") + behind)
    asked.session.eof()
    assert not asked.session.closing
    granted, *others = asked.answer()
    assert b"permission_count" in granted
    assert others == frames
    assert asked.session.closing
    asked.side.close()


def test_what_comes_through_a_layer_while_rights_are_asked_for_is_kept(tmp_path: Path) -> None:
    asked = Asked(tmp_path)
    asked.side.say(asked.session, b"IDENTIFY\n" + sized(b'{"feature_negotiation":true,"deflate":true}'))
    asked.session.take()
    deflate = zlib.compressobj(6, zlib.DEFLATED, -15)
    publish = b"PUB t\n" + sized(bytes(30_000))
    wire = deflate.compress(b"AUTH\n" + sized(b"secret") + publish * 3) + deflate.flush(zlib.Z_SYNC_FLUSH)
    asked.side.front.begin_turn()
    for data in (wire, deflate.compress(publish) + deflate.flush(zlib.Z_SYNC_FLUSH)):
        assert asked.session.feed(bytearray(data), len(data)) == len(data)
    asked.side.turn()
    asked.answer()
    assert not asked.session.ended
    assert asked.side.queueing.topics[b"t"].message_count == 4
    asked.side.close()
