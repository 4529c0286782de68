"""`limits`: each of them set low, run into by a peer on a socket, answered, and counted under its name."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fronts.nsq_peer import NsqPeer, mpub, sized
from fronts.raw_peer import RawPeer, heartbeat, json_frame, raw_frame
from penstock.access.rights import Rights
from penstock.config import BrokerConfig, RegistryConfig, defaults
from penstock.httpd import LARGE_BYTES
from penstock.limits import NAMES, CreationRate, Limits, is_loopback, limits_of
from penstock.memory import memory_bytes
from penstock.testing import Broker
from penstock.wire import remoting
from penstock.wire.remoting import RemotingCommand
from polling import eventually


def http(address: str, path: str, body: bytes | None = None) -> tuple[int, str]:
    request = urllib.request.Request(f"http://{address}{path}", data=body)
    try:
        with urllib.request.urlopen(request, timeout=30) as told:
            return told.status, told.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def reached(broker: Broker, name: str) -> float:
    page = http(broker.http, "/metrics")[1]
    line = f'penstock_limit_reached_total{{limit="{name}"}} '
    return next(float(found.removeprefix(line)) for found in page.splitlines() if found.startswith(line))


def plain(address: str) -> socket.socket:
    return socket.create_connection(tuple(address.rsplit(":", 1)), timeout=30)


def everything(peer: socket.socket) -> bytes:
    """What comes until the end."""
    got = b""
    try:
        while data := peer.recv(1 << 16):
            got += data
    except ConnectionResetError:
        pass
    return got


# -- what each peer does and is told -------------------------------------------------------------------------------


def _two_connections(broker: Broker) -> bytes:
    with plain(broker.nsq), plain(broker.nsq) as second:
        return everything(second)


def _from_afar(broker: Broker) -> bytes:
    return repr([broker.call(lambda server: server.net.admit("10.0.0.1:1")) for _ in range(2)]).encode()


def _large_frames(broker: Broker) -> bytes:
    with plain(broker.remoting) as first, plain(broker.remoting) as second:
        first.sendall(struct.pack(">II", 4 << 20, 16) + bytes(1 << 20))
        eventually(lambda: broker.call(lambda server: server.net.waiting_bytes) > 1 << 18)
        second.sendall(struct.pack(">II", 4 << 20, 16) + bytes(1 << 18))
        return b"closed" + everything(second)


def _large_bodies(broker: Broker) -> bytes:
    head = b"POST /mpub?topic=t HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n" % (4 << 20)
    with plain(broker.http) as first, plain(broker.http) as second, plain(broker.remoting) as other:
        first.sendall(head + bytes(1 << 17))
        eventually(lambda: broker.call(lambda server: server.net.waiting_bytes) == 1 << 17)
        other.sendall(struct.pack(">II", 4 << 20, 16) + bytes(1 << 20))
        eventually(lambda: broker.call(lambda server: server.net.waiting_bytes) > 1 << 18)
        second.sendall(head + bytes(LARGE_BYTES + 1))
        told = everything(second)
    eventually(lambda: broker.call(lambda server: server.net.waiting_bytes) == 0)  # given back
    return told


def _unread(broker: Broker) -> bytes:
    peer = RawPeer(broker.remoting)
    for _ in range(4):
        assert peer.send("t", bytes(1 << 20), e=0).code == 0
    peer.socket.settimeout(0.5)
    pull = {"consumerGroup": "G", "topic": "t", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4}
    ext = {**pull, "commitOffset": 0, "subscription": "*", "subVersion": 0, "suspendTimeoutMillis": 0}
    ext["maxMsgBytes"] = 4 << 20
    ask = remoting.encode(RemotingCommand(11, {k: str(v) for k, v in ext.items()}, opaque=7))
    try:
        for _ in range(40):
            peer.write(ask)
    except OSError:
        pass
    eventually(lambda: reached(broker, "slow_reader") == 1)
    assert reached(broker, "unread") >= 1
    peer.socket.settimeout(30)
    with contextlib.suppress(OSError):
        everything(peer.socket)
    peer.close()
    return b"closed"


def _half_a_frame(broker: Broker) -> bytes:
    with plain(broker.remoting) as peer:
        peer.sendall(b"\0\0\1\0\0\0")
        return b"closed" + everything(peer)


def _silent(address: Callable[[Broker], str]) -> Callable[[Broker], bytes]:
    def act(broker: Broker) -> bytes:
        with plain(address(broker)) as peer:
            return b"closed" + everything(peer)

    return act


def _bytes(data: bytes) -> Callable[[Broker], bytes]:
    """Bytes to the RocketMQ port, until it closes."""

    def act(broker: Broker) -> bytes:
        with plain(broker.remoting) as peer:
            peer.sendall(data)
            return b"closed" + everything(peer)

    return act


def _nsq(data: bytes) -> Callable[[Broker], bytes]:
    def act(broker: Broker) -> bytes:
        with plain(broker.nsq) as peer:
            peer.sendall(b"  V2" + data)
            return b"closed" + everything(peer)

    return act


def _told(answer: RemotingCommand) -> bytes:
    return f"{answer.code} {answer.remark}".encode()


def _peer(act: Callable[[RawPeer], RemotingCommand]) -> Callable[[Broker], bytes]:
    """A request that is refused; the connection lives."""

    def run(broker: Broker) -> bytes:
        with RawPeer(broker.remoting) as peer:
            said = _told(act(peer))
            assert peer.send("logs", b"x").code == 0
            return said

    return run


def _web(data: bytes) -> Callable[[Broker], bytes]:
    def act(broker: Broker) -> bytes:
        with plain(broker.http) as peer:
            peer.sendall(data)
            return everything(peer)

    return act


def _answers(broker: Broker) -> bytes:
    ext = {"a": "P", "b": "t", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": ""}
    with RawPeer(broker.remoting) as peer:
        assert peer.send("t", b"x").code == 0
        peer.write(b"".join(remoting.encode(RemotingCommand(310, ext, b"x", opaque=n)) for n in range(1, 101)))
        return b"%d" % sum(peer.read().code == 0 for _ in range(100))


def _topics(broker: Broker) -> bytes:
    assert http(broker.http, "/topic/create?topic=one-of-the-queue-side", b"")[0] == 200
    assert http(broker.http, "/topic/create?topic=two-of-the-queue-side", b"")[0] == 503
    with RawPeer(broker.remoting) as peer:
        assert peer.send("one-of-the-log-side", b"x").code == 0
        return _told(peer.send("one-more", b"x"))


def _creations(broker: Broker) -> bytes:
    with RawPeer(broker.remoting) as peer:
        told = [_told(peer.send(f"t{n}", b"x")) for n in range(60)]
    assert told[:5] == [b"0 None"] * 5
    return told[-1] + http(broker.http, "/topic/create?topic=fresh", b"")[1].encode()


def _channels(broker: Broker) -> bytes:
    with plain(broker.nsq) as first, plain(broker.nsq) as second:
        first.sendall(b"  V2SUB t one\n")
        assert b"OK" in first.recv(100)
        second.sendall(b"  V2SUB t two\n")
        return everything(second)


def _wide(peer: RawPeer, queues: int) -> RemotingCommand:
    return peer.ask(17, {
        "topic": "wide", "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
    })  # fmt: skip


def _groups(broker: Broker) -> bytes:
    def close(server: Any) -> None:
        server.broker.limits.max_groups = len(server.broker.groups.by_name)

    broker.call(close)
    with RawPeer(broker.remoting) as peer:
        assert peer.send("t", b"x").code == 0
        return _told(peer.pull("t", 0, 0, consumerGroup="one-more"))


def _consumers(broker: Broker) -> bytes:
    with plain(broker.nsq) as first, plain(broker.nsq) as second:
        first.sendall(b"  V2SUB t c\n")
        assert b"OK" in first.recv(100)
        second.sendall(b"  V2SUB t c\n")
        return everything(second)


def _in_flight(broker: Broker) -> bytes:
    peer = NsqPeer(broker.nsq)
    assert peer.ask(b"SUB t c\n") == b"OK"
    other = NsqPeer(broker.nsq)
    assert other.ask(mpub(b"t", b"one", b"two", b"three")) == b"OK"
    peer.send(b"RDY 10\n")
    got = [peer.frame() for _ in range(2)]
    eventually(lambda: reached(broker, "in_flight") >= 1)
    depth = json.loads(http(broker.http, "/stats?format=json")[1])["topics"][0]["channels"][0]["depth"]
    peer.socket.close()
    other.socket.close()
    return b"%d given, %d wait" % (len(got), depth)


def _held(peer: RawPeer) -> RemotingCommand:
    assert peer.send("t", b"x").code == 0
    return peer.pull("t", 0, 1, sysFlag=6, suspendTimeoutMillis=60_000)


def _delayed(peer: RawPeer) -> RemotingCommand:
    assert peer.send("t", b"x", {"TIMER_DELAY_SEC": "1000"}).code == 0
    assert peer.send("t", b"x", {"TIMER_DELAY_SEC": "0"}).code == 0
    return peer.send("t", b"x", {"TIMER_DELAY_SEC": "1000"})


def _filter(expression: str) -> Callable[[RawPeer], RemotingCommand]:
    about = {"subscriptionData": {"topic": "t", "subString": expression, "expressionType": "SQL92"}}
    return lambda peer: peer.ask(46, body=json.dumps(about).encode())


def _guessed(broker: Broker) -> bytes:
    def guess(server: Any) -> None:
        rights = Rights(None, 1, server.net.limits)
        assert [rights.of_password("u", "wrong", "10.0.0.1:1") for _ in range(2)] == [None, None]

    broker.call(guess)
    return b"refused"


class Row(NamedTuple):
    settings: dict[str, Any]
    act: Callable[[Broker], bytes]
    told: bytes


_WIDE = {"code": 105, "extFields": {f"k{n}": "v" for n in range(50)}}
ROWS: dict[str, list[Row]] = {
    "connections": [Row({"max_connections": 1}, _two_connections, b"E_INVALID too many connections")],
    "address": [Row({"max_connections_per_address": 1}, _from_afar, b"[True, False]")],
    "memory": [
        Row({"connection_memory_bytes": 1 << 18}, _large_frames, b"closed"),
        Row({"connection_memory_bytes": 1 << 18}, _large_bodies, b"503 Service Unavailable"),
    ],
    "unread": [Row({"max_unread_bytes": 1 << 16, "slow_reader_timeout_ms": 1}, _unread, b"closed")],
    "slow_reader": [],  # with the one before
    "slow_request": [Row({"request_timeout_ms": 1}, _half_a_frame, b"closed")],
    "greeting": [
        Row({"greeting_timeout_ms": 50}, _silent(lambda broker: broker.nsq), b"closed"),
        Row({"greeting_timeout_ms": 50}, _silent(lambda broker: broker.http), b"closed"),
        Row({"greeting_timeout_ms": 50}, _web(b"GET / HT"), b"408 Request Timeout"),
    ],
    "idle": [Row({"idle_timeout_ms": 1}, _silent(lambda broker: broker.remoting), b"closed")],
    "tls_handshake": [],  # tests/test_tlsconnection.py, at both doors
    "frame": [Row({"max_frame_size": 1000}, _bytes(struct.pack(">II", 1001, 20)), b"closed")],
    "header": [
        Row(
            {"max_header_size": 1000},
            _peer(lambda peer: peer.send("t", b"", {"k": "v" * 1000})),
            b"13 the message is illegal: a header of 1",
        ),
        Row({"max_header_size": 1000}, _bytes(struct.pack(">II", 10_000, 4001)), b"closed"),
    ],
    "header_fields": [Row({"max_header_fields": 40}, _bytes(json_frame(_WIDE)), b"closed")],
    "json_depth": [Row({"max_json_depth": 3}, _bytes(raw_frame(b'{"code":1,"x":[[[1]]]}')), b"closed")],
    "body": [Row({"max_message_size": 1000}, _peer(lambda peer: peer.send("t", bytes(1001))), b"13 ")],
    "properties": [
        Row({"max_properties_size": 100}, _peer(lambda p: p.send("t", b"", {"k": "v" * 200})), b"length limit 100B"),
        Row({}, _peer(lambda p: p.send("t", b"", {"k": "v" * 32_800})), b"properties length limit 32KB"),
    ],
    "answers": [Row({"max_waiting_answer_bytes": 1000, "level": level}, _answers, b"100") for level in ("os", "disk")],
    "command_line": [Row({"max_command_line": 100}, _nsq(b"PUB " + bytes(101)), b"closed")],
    "nsq_message": [
        Row(
            {"max_msg_size": 100}, _nsq(b"PUB t\n" + sized(bytes(101))), b"E_BAD_MESSAGE PUB message too big 101 > 100"
        ),
        Row({"max_msg_size": 100}, _nsq(b"DPUB t 1\n" + sized(bytes(101))), b"E_BAD_MESSAGE DPUB message too big"),
        Row({"max_msg_size": 100}, _nsq(mpub(b"t", bytes(101))), b"E_BAD_MESSAGE MPUB message too big"),
        Row({"max_msg_size": 100}, lambda b: http(b.http, "/pub?topic=t", bytes(101))[1].encode(), b"MSG_TOO_BIG"),
        Row({"max_msg_size": 9}, lambda b: http(b.http, "/mpub?topic=t", b"x" * 10)[1].encode(), b"MSG_TOO_BIG"),
    ],
    "nsq_body": [
        Row({"max_body_size": 100}, _nsq(mpub(b"t", bytes(101))), b"E_BAD_BODY MPUB body too big"),
        Row({"max_body_size": 100}, _nsq(b"IDENTIFY\n" + sized(bytes(101))), b"E_BAD_BODY IDENTIFY body too big"),
        Row({"max_body_size": 100}, lambda b: http(b.http, "/mpub?topic=t", bytes(101))[1].encode(), b"BODY_TOO_BIG"),
    ],
    "http_header": [
        Row({"max_http_header_size": 400}, _web(b"GET / HTTP/1.1\r\nx: " + b"y" * 401 + b"\r\n\r\n"), b" 431 ")
    ],
    "http_url": [Row({"max_http_url_size": 100}, _web(b"GET /" + b"y" * 101 + b" HTTP/1.1\r\n"), b" 414 ")],
    "topics": [Row({"max_topics": 1}, _topics, b"no more than ")],
    "topic_creations": [Row({"max_topic_creations_per_second": 1}, _creations, b"more than 1 new topics a second")],
    "channels": [Row({"max_channels_per_topic": 1}, _channels, b"E_BAD_CHANNEL SUB no more than 1 channels")],
    "queues": [Row({"max_queues_per_topic": 22}, _peer(lambda p: _wide(p, 23)), b"1 a topic has 0 to 22 queues")],
    "groups": [Row({}, _groups, b"no more than ")],
    "consumers": [Row({"max_channel_consumers": 1}, _consumers, b"E_SUB_FAILED SUB failed consumers for t:c exceeds")],
    "in_flight": [Row({"max_in_flight_per_channel": 2}, _in_flight, b"2 given, 1 wait")],
    "waiting_pulls": [Row({"max_waiting_pulls": 0}, _peer(_held), b"19 ")],
    "delayed": [Row({"max_delayed_messages": 1}, _peer(_delayed), b"14 no more than 1 delayed messages")],
    "filter": [Row({"max_filter_size": 10}, _peer(_filter("a = 1 AND b = 2")), b"23 ")],
    "filter_depth": [Row({"max_filter_depth": 4}, _peer(_filter("((((((a = 1))))))")), b"nested deeper than 4")],
    "logins": [Row({}, _guessed, b"refused")],
}


@pytest.mark.parametrize(("name", "number"), [(name, n) for name, rows in ROWS.items() for n in range(len(rows))])
def test_a_limit_that_is_reached_is_answered_and_counted(name: str, number: int) -> None:
    row = ROWS[name][number]
    with Broker(**row.settings) as broker:
        assert row.told in row.act(broker)
        assert reached(broker, name) >= 1


def test_every_limit_has_a_setting_a_row_and_a_place_in_the_docs() -> None:
    assert set(ROWS) == set(NAMES)
    settings = defaults(BrokerConfig)
    page = (Path(__file__).parents[1] / "docs" / "operate.md").read_text()
    section = page.partition("\n## Limits\n")[2].partition("\n## ")[0]
    for name, setting in NAMES.items():
        assert setting in settings, setting
        assert f"| `{name}` | `{setting}` |" in section, name
    assert Limits.__annotations__.keys() <= set(NAMES.values())


def test_what_is_there_already_stays_when_a_limit_is_lowered(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, RawPeer(broker.remoting) as peer:
        assert _wide(peer, 30).code == 0
        assert peer.send("wide", b"kept", e=29).code == 0
    with Broker(tmp_path, max_queues_per_topic=20, max_topics=1) as broker, RawPeer(broker.remoting) as peer:
        assert b"kept" in peer.pull("wide", 29, 0).body
        assert (peer.send("more", b"x").remark or "").startswith("no more than 1 topics")


@pytest.mark.parametrize("kind", [BrokerConfig, RegistryConfig])
def test_the_settings_have_the_defaults_of_the_limits(kind: type[BrokerConfig | RegistryConfig]) -> None:
    limits = limits_of(kind())
    for name in Limits.__annotations__:
        assert getattr(limits, name) == getattr(Limits, name), name


def test_there_are_no_other_limits() -> None:
    with pytest.raises(TypeError, match="no limit max_nothing"):
        Limits(max_nothing=1)


@pytest.mark.parametrize("door", ["http", "lookup_http"])
def test_http_connections_count_among_the_others(door: str) -> None:
    with Broker(max_connections=1) as broker:
        address = broker.call(lambda server: server.addresses[door])
        peers = [plain(address) for _ in range(18)]
        assert b"503 Service Unavailable" in (told := everything(peers[-1]))
        assert b"TOO_MANY_CONNECTIONS" in told
        with plain(broker.nsq) as one_more:
            assert b"too many connections" in everything(one_more)
        for peer in peers:
            peer.close()
        eventually(lambda: broker.call(lambda server: server.net.admission.count) == 0)
        assert reached(broker, "connections") >= 2


def test_topics_are_made_at_a_rate() -> None:
    rate = CreationRate(2)
    assert [rate.take(1_000_000) for _ in range(21)] == [True] * 20 + [False]
    assert [rate.take(1_000_499), rate.take(1_000_500), rate.take(1_000_500)] == [False, True, False]
    assert [rate.take(0), rate.take(500)] == [False, True]  # the clock went back
    assert all(CreationRate(0).take(0) for _ in range(1_000))


def test_a_header_that_escapes_make_long_is_refused_and_the_connection_lives() -> None:
    with Broker() as broker, RawPeer(broker.remoting) as peer:
        for properties in ({f"k{n}": "v" for n in range(3_500)}, {"k": '"' * 32_000}, {"k": "\x01" * 20_000}):
            answer = peer.send("t", b"x", properties)
            assert answer.code in (0, 13), answer
            assert answer.code == 0 or "header of" in (answer.remark or "")
        heartbeat(peer, "1@c", "g", "t")


def test_memory() -> None:
    assert Limits(connection_memory_bytes=5).memory_bytes == 5
    assert Limits().memory_bytes == memory_bytes() // 4


@pytest.mark.parametrize(
    ("host", "free"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("[::1]", True),
        ("", True),
        ("10.0.0.1", False),
        ("[2001:db8::1]", False),
    ],
)
def test_loopback(host: str, free: bool) -> None:
    assert is_loopback(host) is free
