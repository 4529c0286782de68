"""`fronts.lookupd`: the answers of nsqlookupd 1.3.0, byte for byte (nsq.md §11), tombstones, silence and limits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from asking import ask

from penstock.clock import FakeClock
from penstock.errors import WireError
from penstock.fronts.lookupd import BODY_BYTES_MAX, Lookupd, LookupHttp, LookupSession
from penstock.registry.producers import ProducerTables

ME = {"broadcast_address": "b1", "hostname": "h1", "http_port": 4151, "tcp_port": 4150, "version": "1.3.0"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def lookupd(clock: FakeClock) -> Lookupd:
    found = Lookupd(ProducerTables(), clock=clock, broadcast_address="reg", hostname="host")
    found.tcp_port, found.http_port = 4160, 4161
    return found


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def identify(told: Any = None) -> bytes:
    return b"IDENTIFY\n" + frame(json.dumps(ME if told is None else told).encode())


def identify_as(**told: Any) -> bytes:
    return b"  V1" + identify(ME | told)


def say(session: LookupSession, data: bytes) -> bytes:
    used = session.feed(bytearray(data), len(data))
    assert used == len(data)
    return session.take()


def connect(lookupd: Lookupd, remote: str = "127.0.0.1:5", **told: Any) -> LookupSession:
    session = lookupd.session(remote, lambda: None)
    say(session, b"  V1" + identify(ME | told))
    return session


async def test_fields_of_any_case(lookupd: Lookupd) -> None:
    """As nsqlookupd 1.3.0 reads them: a client that writes its own names as they are in Go was told that they are missing."""
    told = {"Hostname": "h", "BROADCAST_ADDRESS": "b", "Version": "1", "TCP_Port": 1, "http_port": 2, "HTTP_Port": None}
    session = lookupd.session("127.0.0.1:5", lambda: None)
    assert b'"version"' in say(session, b"  V1" + identify(told))
    (node,) = json.loads((await ask(LookupHttp(lookupd), "GET", "/nodes")).body)["producers"]
    assert (node["hostname"], node["broadcast_address"], node["tcp_port"], node["http_port"]) == ("h", "b", 1, 2)


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"  V9", b"E_BAD_PROTOCOL"),
        (b"  V1FOO\n", b"E_INVALID invalid command FOO"),
        (b"  V1\n", b"E_INVALID invalid command "),
        (b"  V1IDENTIFY\n" + frame(b"{"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"  V1IDENTIFY\n" + frame(b"[" * 2000), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"  V1IDENTIFY\n" + frame(b'{"tcp_port":"x"}'), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify_as(epoch=-1), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify_as(epoch="2"), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify_as(epoch=1 << 63), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (identify_as(replica_set=7), b"E_BAD_BODY IDENTIFY failed to decode JSON body"),
        (b"  V1IDENTIFY\n" + frame(b"{}"), b"E_BAD_BODY IDENTIFY missing fields"),
        (b"  V1IDENTIFY\n" + frame(b"null"), b"E_BAD_BODY IDENTIFY missing fields"),
        (b"  V1IDENTIFY\n\xff\xff\xff\xff", b"E_BAD_BODY IDENTIFY invalid body size -1"),
        (b"  V1IDENTIFY\n\x7f\xff\xff\xff", b"E_BAD_BODY IDENTIFY body too big 2147483647 > 65536"),
        (b"  V1REGISTER t\n", b"E_INVALID client must IDENTIFY"),
        (b"  V1UNREGISTER t\n", b"E_INVALID client must IDENTIFY"),
    ],
)
def test_refused_and_ended(lookupd: Lookupd, sent: bytes, answer: bytes) -> None:
    session = lookupd.session("127.0.0.1:5", lambda: None)
    assert say(session, sent) == frame(answer)
    assert session.closing
    assert not lookupd.tables.producers


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (identify(), b"E_INVALID cannot IDENTIFY again"),
        (b"REGISTER\n", b"E_INVALID REGISTER insufficient number of params"),
        (b"UNREGISTER\n", b"E_INVALID UNREGISTER insufficient number of params"),
        (b"REGISTER t$\n", b"E_BAD_TOPIC REGISTER topic name 't$' is not valid"),
        (b"REGISTER t c$\n", b"E_BAD_CHANNEL REGISTER channel name 'c$' is not valid"),
        (b"REGISTER " + b"t" * 65 + b"\n", b"E_BAD_TOPIC REGISTER topic name '" + b"t" * 65 + b"' is not valid"),
        (b"UNREGISTER t\xff\n", b"E_BAD_TOPIC UNREGISTER topic name 't\xff' is not valid"),
    ],
)
def test_refused_after_identify(lookupd: Lookupd, sent: bytes, answer: bytes) -> None:
    session = connect(lookupd)
    session.feed(bytearray(sent), len(sent))
    assert session.take() == frame(answer)
    assert session.closing


def test_identify_is_answered_with_who_we_are(lookupd: Lookupd) -> None:
    session = lookupd.session("127.0.0.1:5", lambda: None)
    answer = say(session, b"  V1PING\r\n" + identify())
    assert answer == frame(b"OK") + frame(
        b'{"broadcast_address":"reg","hostname":"host","http_port":4161,"tcp_port":4160,"version":"1.3.0"}'
    )


def test_a_line_without_end_is_no_peer(lookupd: Lookupd) -> None:
    session = lookupd.session("127.0.0.1:5", lambda: None)
    data = bytearray(b"  V1" + b"X" * 5000)
    with pytest.raises(WireError):
        session.feed(data, len(data))


def test_any_cutting_gives_the_same(lookupd: Lookupd) -> None:
    stream = b"  V1" + identify() + b"REGISTER t c\nPING\nREGISTER u\nUNREGISTER u\nFOO\n"
    whole = say(lookupd.session("127.0.0.1:5", lambda: None), stream)
    for seed in range(30):
        dice = random.Random(seed)
        session = lookupd.session("127.0.0.1:6", lambda: None)
        kept, at, answers = bytearray(), 0, b""
        while at < len(stream):
            step = dice.randint(1, 40 if seed else 1)
            kept += stream[at : at + step]
            at += step
            if session.need and len(kept) < session.need:
                continue
            used = session.feed(kept, len(kept))
            del kept[:used]
            answers += session.take()
        assert answers == whole, seed
        assert not kept


def test_a_large_body_asks_for_its_room(lookupd: Lookupd) -> None:
    session = connect(lookupd)
    session = lookupd.session("127.0.0.1:7", lambda: None)
    head = b"  V1IDENTIFY\n" + BODY_BYTES_MAX.to_bytes(4, "big")
    assert session.feed(bytearray(head), len(head)) == 4
    assert session.need == len(head) - 4 + BODY_BYTES_MAX


Asked = Callable[..., Any]


async def test_what_tools_ask(lookupd: Lookupd) -> None:
    app = LookupHttp(lookupd)
    session = connect(lookupd)
    assert say(session, b"REGISTER t c\nREGISTER t#ephemeral e#ephemeral\nREGISTER u\n") == frame(b"OK") * 3
    node = {"remote_address": "127.0.0.1:5", "hostname": "h1", "broadcast_address": "b1", "tcp_port": 4150,
            "http_port": 4151, "version": "1.3.0", "topology_zone": "", "topology_region": ""}  # fmt: skip
    told = await ask(
        app, "GET", "/lookup?topic=t&format=json", headers={"host": "reg:4161", "authorization": "Bearer x"}
    )
    assert told.status == 200
    assert told.headers["x-nsq-content-type"] == "nsq; version=1.0"
    assert told.headers["content-type"] == "application/json; charset=utf-8"
    assert told.body == b'{"channels":["c"],"producers":[' + json.dumps(node, separators=(",", ":")).encode() + b"]}"
    assert (await ask(app, "GET", "/topics")).body == b'{"topics":["t","t#ephemeral","u"]}'
    assert (await ask(app, "GET", "/channels?topic=t%23ephemeral")).body == b'{"channels":["e#ephemeral"]}'
    assert (await ask(app, "GET", "/channels?topic=nope")).body == b'{"channels":[]}'
    nodes = (await ask(app, "GET", "/nodes")).json["producers"]
    assert nodes == [node | {"tombstones": [False] * 3, "topics": ["t", "t#ephemeral", "u"]}]
    assert (await ask(app, "GET", "/ping")).short == (200, "OK")
    assert (await ask(app, "GET", "/info")).short == (200, '{"version":"1.3.0"}')
    debug = (await ask(app, "GET", "/debug")).json
    assert set(debug) == {"client::", "topic:t:", "topic:t#ephemeral:", "topic:u:", "channel:t:c",
                          "channel:t#ephemeral:e#ephemeral"}  # fmt: skip
    assert debug["topic:t:"][0]["id"] == "127.0.0.1:5"


async def test_names_stay_and_ephemeral_ones_go(lookupd: Lookupd) -> None:
    app = LookupHttp(lookupd)
    session = connect(lookupd)
    say(session, b"REGISTER t c\nREGISTER t e#ephemeral\nREGISTER t t#tmp\nREGISTER e#ephemeral\n")
    say(session, b"UNREGISTER t c\nUNREGISTER t e#ephemeral\nUNREGISTER t t#tmp\n")
    assert (await ask(app, "GET", "/channels?topic=t")).body == b'{"channels":["c"]}'
    say(session, b"UNREGISTER e#ephemeral\nUNREGISTER nope nope\nUNREGISTER nope\n")
    assert (await ask(app, "GET", "/topics")).body == b'{"topics":["t"]}'
    session.lost()
    assert (await ask(app, "GET", "/lookup?topic=t")).body == b'{"channels":["c"],"producers":[]}'
    assert (await ask(app, "GET", "/nodes")).body == b'{"producers":[]}'


async def test_silence_and_tombstones(lookupd: Lookupd, clock: FakeClock) -> None:
    app = LookupHttp(lookupd)
    one, two = connect(lookupd), connect(lookupd, "127.0.0.1:6", broadcast_address="b2")
    for session in (one, two):
        say(session, b"REGISTER t c\nREGISTER u\n")

    async def producers(topic: str) -> list[str]:
        found = (await ask(app, "GET", f"/lookup?topic={topic}")).json["producers"]
        return [node["broadcast_address"] for node in found]

    assert (await ask(app, "POST", "/topic/tombstone?topic=t&node=b1:4151")).short == (200, "")
    assert await producers("t") == ["b2"]
    assert await producers("u") == ["b1", "b2"]
    nodes = (await ask(app, "GET", "/nodes")).json["producers"]
    assert [node["tombstones"] for node in nodes] == [[True, False], [False, False]]
    clock.advance(45_000)
    assert await producers("t") == ["b1", "b2"]
    clock.advance(250_000)
    say(two, b"PING\n")
    clock.advance(60_000)
    assert await producers("t") == ["b2"]
    assert len((await ask(app, "GET", "/nodes")).json["producers"]) == 1


@pytest.mark.parametrize(
    ("method", "target", "answer"),
    [
        ("GET", "/lookup", (400, "MISSING_ARG_TOPIC")),
        ("GET", "/lookup?topic=nope", (404, "TOPIC_NOT_FOUND")),
        ("GET", "/lookup?topic=%zz", (400, "INVALID_REQUEST")),
        ("GET", "/channels", (400, "MISSING_ARG_TOPIC")),
        ("POST", "/topic/create", (400, "MISSING_ARG_TOPIC")),
        ("POST", "/topic/create?topic=a$", (400, "INVALID_ARG_TOPIC")),
        ("POST", "/topic/create?topic=new", (200, "")),
        ("POST", "/topic/delete?topic=nope", (200, "")),
        ("POST", "/channel/create?topic=a", (400, "MISSING_ARG_CHANNEL")),
        ("POST", "/channel/create?topic=a&channel=c$", (400, "INVALID_ARG_CHANNEL")),
        ("POST", "/channel/create?topic=new2&channel=c", (200, "")),
        ("POST", "/channel/delete?topic=a&channel=b", (404, "CHANNEL_NOT_FOUND")),
        ("POST", "/topic/tombstone?topic=a", (400, "MISSING_ARG_NODE")),
        ("GET", "/topic/create?topic=a", (405, "METHOD_NOT_ALLOWED")),
        ("GET", "/nope", (404, "NOT_FOUND")),
    ],
)
async def test_http_answers(lookupd: Lookupd, method: str, target: str, answer: tuple[int, str]) -> None:
    told = await ask(LookupHttp(lookupd), method, target)
    assert told.short == answer


async def test_made_and_deleted_by_tools(lookupd: Lookupd) -> None:
    app = LookupHttp(lookupd)
    await ask(app, "POST", "/channel/create?topic=t&channel=c")
    session = connect(lookupd)
    say(session, b"REGISTER t c\nREGISTER t d\n")
    assert (await ask(app, "POST", "/channel/delete?topic=t&channel=c")).short == (200, "")
    assert (await ask(app, "GET", "/channels?topic=t")).body == b'{"channels":["d"]}'
    await ask(app, "POST", "/topic/delete?topic=t")
    assert (await ask(app, "GET", "/lookup?topic=t")).short == (404, "TOPIC_NOT_FOUND")
    assert (await ask(app, "GET", "/nodes")).json["producers"][0]["topics"] == []
    session.lost()


@pytest.mark.parametrize("host", ["127.0.0.1:4161", "[::1]:4161", "localhost", "LOCALHOST:1", "reg:4161", "10.2.3.4"])
async def test_hosts_that_are_ours(lookupd: Lookupd, host: str) -> None:
    assert (await ask(LookupHttp(lookupd), "GET", "/ping", headers={"host": host})).status == 200


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"host": "evil.test"}, "HOST_NOT_ALLOWED"),
        ({"host": "127.0.0.1.evil.test"}, "HOST_NOT_ALLOWED"),
        ({"host": "127.0.0.1", "origin": "http://x.test"}, "ORIGIN_NOT_ALLOWED"),
        ({"host": "127.0.0.1", "origin": "null"}, "ORIGIN_NOT_ALLOWED"),
    ],
)
async def test_pages_of_browsers_may_not_ask(lookupd: Lookupd, headers: dict[str, str], code: str) -> None:
    told = await ask(LookupHttp(lookupd), "POST", "/topic/create?topic=t", headers=headers)
    assert told.short == (403, code)
    assert not lookupd.tables.topics


async def test_other_names_can_be_allowed(lookupd: Lookupd) -> None:
    for allowed in ("queue.example", "*"):
        app = LookupHttp(lookupd, allowed_hosts=[allowed])
        assert (await ask(app, "GET", "/ping", headers={"host": "Queue.example:4161"})).status == 200


async def test_consumers_are_not_sent_to_a_master_whose_epoch_is_over(lookupd: Lookupd) -> None:
    old = connect(lookupd, "127.0.0.1:5", broadcast_address="old", replica_set="ab", epoch=3)
    new = connect(lookupd, "127.0.0.1:6", broadcast_address="new", replica_set="ab", epoch=4)
    for session in (old, new):
        assert say(session, b"REGISTER t c\n") == frame(b"OK")
    http = LookupHttp(lookupd)
    told = json.loads((await ask(http, "GET", "/lookup?topic=t")).body)
    assert (told["channels"], [one["broadcast_address"] for one in told["producers"]]) == (["c"], ["new"])
    assert set(told["producers"][0]) == {
        "remote_address", "hostname", "broadcast_address", "tcp_port", "http_port", "version", "topology_zone",
        "topology_region",
    }  # fmt: skip
    nodes = json.loads((await ask(http, "GET", "/nodes")).body)["producers"]
    assert {one["broadcast_address"]: one["tombstones"] for one in nodes} == {"old": [True], "new": [False]}
    new.lost()
    told = json.loads((await ask(http, "GET", "/lookup?topic=t")).body)
    assert [one["broadcast_address"] for one in told["producers"]] == ["old"]


def test_an_nsqd_that_is_refused_is_in_no_list_any_more(lookupd: Lookupd) -> None:
    """As in nsqlookupd; its own end of the connection may stay open."""
    session = connect(lookupd)
    say(session, b"REGISTER t c\n")
    assert len(lookupd.tables.lookup("t", 0) or ()) == 1
    say(session, b"NONSENSE\n")
    assert session.closing
    assert lookupd.tables.lookup("t", 0) == []
    assert not lookupd.tables.producers
    session.lost()
