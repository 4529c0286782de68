"""Bytes that are nearly right: what each listener is told by its clients, and ways to spoil it."""

from __future__ import annotations

import json
import random
import struct
from typing import NamedTuple

from penstock.wire import remoting
from penstock.wire.codes import HEADER_TEXTS, header_fields
from penstock.wire.remoting import BINARY, RemotingCommand

INPUT_BYTES_MAX = 64 << 10
_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_WORDS = (
    b"0", b"-1", b"99999999999999999999", b"ffffffffffffffff", b"../../x", b"\0", b"\xff\xfe", b"%00", b"null", b"[[[[",
    b"PENSTOCK_QUEUE\x01t\x02PENSTOCK_ID\x01abc", b"DELAY\x0199", b"DELAY\x01x", b"TIMER_DELIVER_MS\x01-5", b"TRAN_MSG\x01true",
    b"%RETRY%x", b"%DLQ%x", b"SCHEDULE_TOPIC_XXXX", b"rmq_sys_penstock_done", b"#ephemeral", b"a" * 300, b"\n", b"\r\n\r\n",
)  # fmt: skip


class Target(NamedTuple):
    """One listener: the role whose address it has, what a connection begins with, right inputs."""

    name: str
    greeting: bytes
    seeds: list[bytes]


def _sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def nsq() -> Target:
    """nsqd's TCP protocol."""
    mpub = struct.pack(">I", 2) + _sized(b"one") + _sized(b"two")
    identify = json.dumps(
        {"client_id": "c", "feature_negotiation": True, "msg_timeout": 2000, "deflate": False}
    ).encode()
    compressed = json.dumps({"feature_negotiation": True, "deflate": True, "deflate_level": 3}).encode()
    snappy = json.dumps({"feature_negotiation": True, "snappy": True}).encode()
    seeds = [
        b"PUB fuzz\n" + _sized(b"body"), b"MPUB fuzz\n" + _sized(mpub), b"DPUB fuzz 50\n" + _sized(b"later"),
        b"SUB fuzz c#ephemeral\nRDY 10\n", b"SUB fuzz-log c\nRDY 1\n", b"RDY 5\n", b"FIN 0123456789abcdef\n",
        b"REQ 0123456789abcdef 100\n", b"TOUCH 0123456789abcdef\n", b"REJECT 0123456789abcdef\n", b"NOP\n", b"CLS\n",
        b"IDENTIFY\n" + _sized(identify), b"IDENTIFY\n" + _sized(compressed), b"IDENTIFY\n" + _sized(snappy),
        b"AUTH\n" + _sized(b"secret"), b"PUB fuzz#ephemeral\n" + _sized(b"x" * 2000),
    ]  # fmt: skip
    return Target("nsq", b"  V2", seeds)


def remoting_target(name: str, codes: range) -> Target:
    """RocketMQ's protocol: a right header of every code there is, in both forms, with a body here and there."""
    values = {"topic": "fuzz", "b": "fuzz", "i": "KEYS\x01k\x02TAGS\x01t", "subscription": "*", "expressionType": "TAG"}
    heartbeat = {
        "clientID": "c", "producerDataSet": [{"groupName": "p"}],
        "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "fuzz", "subString": "*"}]}],
    }  # fmt: skip
    batch = b"".join(struct.pack(">IIIII", 26, 0, 0, 0, 3) + b"abc" + b"\0\0" + b"\0" for _ in range(2))
    bodies = [b"", b"body", json.dumps(heartbeat).encode(), batch]
    seeds = []
    for number, code in enumerate(code for code in HEADER_TEXTS if int(code) in codes):
        ext = {field.name: values.get(field.name, "1" if number % 3 else "0") for field in header_fields(code)}
        command = RemotingCommand(int(code), ext, bodies[number % len(bodies)], opaque=number)
        if number % 2 and int(code) < 1 << 15:
            command.serialize = BINARY
        seeds.append(remoting.encode(command))
    for code, body in ((310, b"hot"), (320, batch), (34, bodies[2])):
        ext = {"a": "p", "b": "fuzz", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": values["i"]}
        seeds.append(remoting.encode(RemotingCommand(code, ext, body, opaque=code)))
    return Target(name, b"", seeds)


def http() -> Target:
    """nsqd's HTTP API and ours."""

    def request(line: str, body: bytes = b"", more: str = "") -> bytes:
        return f"{line} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body

    seeds = [
        request("POST /pub?topic=fuzz", b"body"), request("POST /mpub?topic=fuzz", b"a\nb\nc"),
        request("POST /mpub?topic=fuzz&binary=true", struct.pack(">I", 1) + _sized(b"x")),
        request("POST /pub?topic=fuzz&defer=50", b"x"), request("GET /stats?format=json&topic=fuzz"), request("GET /metrics"),
        request("POST /topic/create?topic=fuzz-made"), request("POST /channel/create?topic=fuzz&channel=h#ephemeral"),
        request("POST /topic/pause?topic=fuzz"), request("POST /topic/unpause?topic=fuzz"), request("GET /info"),
        request("POST /channel/empty?topic=fuzz&channel=c"), request("PUT /config/log_level", b"info"), request("GET /ping"),
        b"POST /pub?topic=fuzz HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        request("GET /debug/stacks", more="Expect: 100-continue\r\nConnection: upgrade\r\nUpgrade: h2c\r\n"),
    ]  # fmt: skip
    return Target("http", b"", seeds)


def lookup() -> Target:
    """nsqlookupd's TCP protocol."""
    identify = json.dumps(
        {"broadcast_address": "h", "hostname": "h", "http_port": 1, "tcp_port": 2, "version": "1"}
    ).encode()
    seeds = [
        b"IDENTIFY\n" + _sized(identify), b"REGISTER fuzz\n", b"REGISTER fuzz c\n", b"UNREGISTER fuzz c\n",
        b"UNREGISTER fuzz\n", b"PING\n", b"IDENTIFY\n" + _sized(identify) + b"REGISTER t c\nPING\n",
    ]  # fmt: skip
    return Target("lookup", b"  V1", seeds)


def lookup_http() -> Target:
    """nsqlookupd's HTTP API."""
    paths = (
        "/lookup?topic=fuzz", "/topics", "/channels?topic=fuzz", "/nodes", "/debug", "/info", "/ping",
        "/topic/create?topic=a", "/channel/create?topic=a&channel=b", "/topic/delete?topic=a",
        "/topic/tombstone?topic=fuzz&node=h:1",
    )  # fmt: skip
    verbs = ("GET", "POST")
    seeds = [f"{verb} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode() for path in paths for verb in verbs]
    return Target("lookup_http", b"", seeds)


def targets() -> list[Target]:
    """Every listener of `penstock up`."""
    return [
        nsq(),
        remoting_target("remoting", range(1, 100_000)),
        http(),
        remoting_target("registry", range(100, 330)),
        lookup(),
        lookup_http(),
    ]


def spoil(seed: random.Random, target: Target) -> bytes:
    """An input: one or several right ones, changed in a few places, or now and then not at all."""
    data = bytearray(b"".join(seed.choice(target.seeds) for _ in range(seed.choice((1, 1, 1, 2, 3)))))
    for _ in range(seed.choice((0, 1, 1, 2, 4))):
        at = seed.randrange(len(data) + 1)
        kind = seed.randrange(8)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << seed.randrange(8)
        elif kind == 1:
            del data[at : at + seed.choice((1, 2, 4, 16))]
        elif kind == 2:
            data[at:at] = data[at : at + seed.choice((1, 4, 64))] * seed.choice((1, 2, 50))
        elif kind == 3:
            data[at:at] = seed.randbytes(seed.choice((1, 4, 40)))
        elif kind == 4:
            number, size = seed.choice(_NUMBERS), seed.choice((1, 2, 4, 8))
            data[at : at + size] = (number & ((1 << 8 * size) - 1)).to_bytes(size)
        elif kind == 5:
            data[at:at] = seed.choice(_WORDS)
        elif kind == 6:
            del data[at:]
        else:
            other = seed.choice(target.seeds)
            data[at:] = other[seed.randrange(len(other)) :]
    return bytes(data[:INPUT_BYTES_MAX])
