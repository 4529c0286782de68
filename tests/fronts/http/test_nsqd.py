"""nsqd's HTTP API on a real broker over real sockets: recorded answers, counters, publishing, settings, metrics."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from asking import ask as asgi
from http_rows import ROWS, Row, ask, packed

import penstock
from penstock.fronts.http.nsqd import NsqHttp
from penstock.testing import Broker
from polling import eventually

LIMITS = {"max_msg_size": 1000, "max_body_size": 2000}


@pytest.fixture(scope="module")
def nsqd() -> Iterator[Broker]:
    with Broker(open_config=True, **LIMITS) as broker:
        yield broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(admin_token="secret", e2e_processing_latency_percentile="0.99,0.5") as broker:
        yield broker


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.method} {row.target[:60]} {len(row.body)}")
def test_recorded_answers(nsqd: Broker, row: Row) -> None:
    told = ask(nsqd.http, *row[:3])
    assert (told.status, told.answer) == (row.status, row.answer)
    if row.target.startswith("/ping") and row.status == 200:
        assert told.headers["x-nsq-content-type"] is None
    else:
        assert told.headers["x-nsq-content-type"] == "nsq; version=1.0"
    if row.status == 405:
        assert told.headers["allow"] == ("OPTIONS, POST" if "/pub" in row.target else "GET, OPTIONS")
    if row.status >= 400 or row.answer.startswith("["):
        assert told.headers["content-type"] == "application/json; charset=utf-8"


def stats(broker: Broker, query: str = "") -> Any:
    return json.loads(ask(broker.http, "GET", f"/stats?format=json{query}").body)


def test_what_was_published_is_counted_at_once(broker: Broker) -> None:
    ask(broker.http, "POST", "/topic/create?topic=counted")
    ask(broker.http, "POST", "/channel/create?topic=counted&channel=c")
    assert ask(broker.http, "POST", "/mpub?topic=counted", b"a\nb\n\nc").answer == "OK"
    assert ask(broker.http, "POST", "/pub?topic=counted&defer=60000", b"later").answer == "OK"
    (topic,) = stats(broker, "&topic=counted")["topics"]
    (channel,) = topic["channels"]
    assert (topic["topic_name"], topic["message_count"], topic["depth"], topic["paused"]) == ("counted", 4, 0, False)
    assert (channel["channel_name"], channel["depth"], channel["deferred_count"]) == ("c", 3, 1)
    assert (channel["in_flight_count"], channel["client_count"], channel["clients"]) == (0, 0, [])
    assert topic["e2e_processing_latency"]["count"] == 0


def test_mpub_is_all_or_nothing(nsqd: Broker) -> None:
    bad = packed(b"a", b"b")[:-1]
    assert ask(nsqd.http, "POST", "/mpub?topic=whole&binary=true", bad).status == 413
    assert ask(nsqd.http, "POST", "/mpub?topic=whole&binary=true", packed(b"a", b"b") + b"?").answer == "BAD_BODY"
    assert ask(nsqd.http, "POST", "/mpub?topic=whole", b"a\n" + b"x" * 1001).status == 413
    assert stats(nsqd, "&topic=whole")["topics"][0]["message_count"] == 0


def test_stats_filters(broker: Broker) -> None:
    ask(broker.http, "POST", "/topic/create?topic=f")
    ask(broker.http, "POST", "/channel/create?topic=f&channel=one")
    ask(broker.http, "POST", "/channel/create?topic=f&channel=two")
    ask(broker.http, "POST", "/topic/pause?topic=f")
    ask(broker.http, "POST", "/channel/pause?topic=f&channel=two")
    assert stats(broker, "&topic=nope")["topics"] is None
    assert stats(broker, "&topic=f&channel=nope")["topics"] == []
    found = stats(broker, "&topic=f&channel=two&include_clients=false&include_mem=false")
    (channel,) = found["topics"][0]["channels"]
    assert (channel["channel_name"], channel["paused"], channel["clients"]) == ("two", True, None)
    assert found["topics"][0]["paused"] is True
    assert "memory" not in found
    assert found["producers"] is None
    assert list(stats(broker)) == ["version", "health", "start_time", "topics", "memory", "producers"]
    names = [topic["topic_name"] for topic in stats(broker)["topics"]]
    assert names == sorted(names)


def test_of_one_topic_its_producers_are_told(broker: Broker) -> None:
    """Of any topic all were told, with all they publish to: also to a user who may know that topic alone."""
    host, _, port = broker.nsq.rpartition(":")
    with socket.create_connection((host, int(port)), 15) as producer:
        producer.sendall(b"  V2" + b"".join(b"PUB %s\n\0\0\0\1x" % topic for topic in (b"ours", b"ours", b"theirs")))
        answers = b""
        while len(answers) < 3 * len(b"\0\0\0\6\0\0\0\0OK"):
            answers += producer.recv(100)
        (seen,) = stats(broker)["producers"]
        assert seen["pub_counts"] == [{"topic": "ours", "count": 2}, {"topic": "theirs", "count": 1}]
        (seen,) = stats(broker, "&topic=ours")["producers"]
        assert seen["pub_counts"] == [{"topic": "ours", "count": 2}]
        assert stats(broker, "&topic=f")["producers"] is None
        assert "Producers: None" in ask(broker.http, "GET", "/stats?topic=f").body.decode()
        assert "theirs" not in ask(broker.http, "GET", "/stats?topic=ours").body.decode()


def test_stats_as_people_read_them(broker: Broker) -> None:
    ask(broker.http, "POST", "/topic/create?topic=seen")
    ask(broker.http, "POST", "/channel/create?topic=seen&channel=ch")
    ask(broker.http, "POST", "/channel/pause?topic=seen&channel=ch")
    ask(broker.http, "POST", "/pub?topic=seen", b"x")
    text = ask(broker.http, "GET", "/stats").body.decode()
    assert re.match(
        r"nsqd v1\.3\.0 \(built w/python3\.\d+\)\nstart_time \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\nuptime \S+s\n", text
    )
    assert "\n\nHealth: OK\n\nMemory:\n   heap_objects             \t" in text
    assert (
        "\n   [seen           ] depth: 0     be-depth: 0     msgs: 1        e2e%: 0.0ns, 0.0ns\n"
        "   *P [ch                       ] depth: 1     be-depth: 0     inflt: 0    def: 0    re-q: 0     "
        "timeout: 0     msgs: 1        e2e%: 0.0ns, 0.0ns\n"
    ) in text
    assert text.endswith("\nProducers: None\n")
    assert "Memory" not in ask(broker.http, "GET", "/stats?include_mem=0").body.decode()


def test_info(broker: Broker) -> None:
    told = json.loads(ask(broker.http, "GET", "/info").body)
    assert list(told) == [
        "version", "broadcast_address", "hostname", "http_port", "tcp_port", "start_time", "max_heartbeat_interval",
        "max_output_buffer_size", "max_output_buffer_timeout", "max_deflate_level", "topology_zone", "topology_region",
    ]  # fmt: skip
    assert (told["version"], told["max_heartbeat_interval"], told["max_output_buffer_timeout"]) == (
        "1.3.0", 60_000_000_000, 30_000_000_000,
    )  # fmt: skip
    assert f"127.0.0.1:{told['http_port']}" == broker.http
    assert f"127.0.0.1:{told['tcp_port']}" == broker.nsq


def test_methods_and_slashes(broker: Broker) -> None:
    told = ask(broker.http, "HEAD", "/ping")
    assert (told.status, told.body, told.headers["allow"]) == (405, b"", "GET, OPTIONS")
    told = ask(broker.http, "OPTIONS", "/pub")
    assert (told.status, told.body, told.headers["allow"]) == (200, b"", "OPTIONS, POST")
    told = ask(broker.http, "GET", "/ping/?a=b")
    assert (told.status, told.headers["location"]) == (301, "/ping?a=b")
    told = ask(broker.http, "POST", "/pub/?topic=a", b"x")
    assert (told.status, told.headers["location"]) == (307, "/pub?topic=a")
    told = ask(broker.http, "POST", "//PUB?topic=a", b"x")  # an address that ends with a slash, and a path behind it
    assert (told.status, told.headers["location"]) == (307, "/pub?topic=a")


def test_settings_are_not_for_everybody(broker: Broker) -> None:
    assert ask(broker.http, "PUT", "/config/log_level", b"info").answer == "ADMIN_TOKEN_REQUIRED"
    assert ask(broker.http, "PUT", "/config/log_level", b"info", authorization="Bearer Secret").status == 403
    assert ask(broker.http, "PUT", "/config/log_level", b"info", authorization="Bearer secret").answer == "2"
    assert ask(broker.http, "GET", "/config/log_level").answer == "2"
    for method, path in (("GET", "/debug/pprof/cmdline"), ("GET", "/debug/stacks"), ("POST", "/debug/freememory")):
        assert ask(broker.http, method, path).status == 403
    assert b"thread" in ask(broker.http, "GET", "/debug/stacks", authorization="Bearer secret").body
    assert ask(broker.http, "GET", "/debug/pprof/cmdline", authorization="Bearer secret").status == 404
    assert ask(broker.http, "POST", "/debug/freememory", authorization="Bearer secret").status == 200


def test_no_token_no_settings() -> None:
    with Broker(nsq_port=-1, lookup_port=-1, lookup_http_port=-1) as broker:
        assert ask(broker.http, "PUT", "/config/log_level", b"info", authorization="Bearer ").status == 403


@pytest.mark.parametrize("path", ["/pub?topic=web", "/topic/create?topic=web", "/topic/delete?topic=web"])
def test_pages_of_browsers_may_not_ask(broker: Broker, path: str) -> None:
    assert ask(broker.http, "POST", path, b"x", origin="http://x.test").answer == "ORIGIN_NOT_ALLOWED"
    assert ask(broker.http, "POST", path, b"x", host="x.test").answer == "HOST_NOT_ALLOWED"
    assert stats(broker, "&topic=web")["topics"] is None


def test_metrics(broker: Broker) -> None:
    ask(broker.http, "POST", "/topic/create?topic=measured")
    ask(broker.http, "POST", "/channel/create?topic=measured&channel=c")
    ask(broker.http, "POST", "/pub?topic=measured", b"12345")
    ask(broker.http, "POST", "/pub?topic=measured", b"x", origin="null")
    told = ask(broker.http, "GET", "/metrics")
    assert told.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = told.body.decode().splitlines()
    assert 'penstock_messages_in_total{topic="measured"} 1' in lines
    assert 'penstock_throughput_in_bytes_total{topic="measured"} 5' in lines
    assert 'penstock_consumer_lag_messages{topic="measured",channel="c"} 1' in lines
    (lag,) = [line for line in lines if line.startswith('penstock_consumer_lag_seconds{topic="measured",channel="c"} ')]
    assert float(lag.split()[-1]) >= 0
    assert 'penstock_processing_latency_seconds{topic="measured",channel="c",quantile="0.99"} 0.0' in lines
    assert "penstock_healthy 1" in lines
    assert any(
        line.startswith('penstock_rejected_total{protocol="http",reason="ORIGIN_NOT_ALLOWED"} ') for line in lines
    )
    names = [line.split()[2] for line in lines if line.startswith("# TYPE ")]
    assert len(names) == len(set(names))
    for line in lines:
        assert line.startswith("# ") or re.fullmatch(
            r'penstock_[a-z_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [0-9.e+-]+', line
        )


@contextmanager
def turns_of_others() -> Iterator[Callable[[], int]]:
    """How many turns of the loop others have had so far."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    try:
        yield lambda: turns
    finally:
        task.cancel()


@pytest.mark.parametrize("path", ["/stats", "/stats?format=json", "/metrics"])
async def test_others_have_the_loop_while_much_is_counted(path: str, tmp_path: Any) -> None:
    async with penstock.Broker(tmp_path, nsq_port=-1, lookup_port=-1, lookup_http_port=-1, level="memory") as server:
        assert server.broker is not None
        for number in range(300):
            server.broker.queueing.topic(b"t%d" % number).channel(b"c")
        with turns_of_others() as turns:
            told = await asgi(NsqHttp(server.broker), "GET", path)
        assert told.body.count(b"t299") >= 1
        assert turns() >= 300 / 20


class Publishing:
    """A connection that has published to one topic; it counts how often it is described."""

    def __init__(self, topic: bytes) -> None:
        self.publisher = self
        self.described = 0
        self._topic = topic

    def any_to(self, topic: bytes) -> bool:
        return topic == self._topic

    def describe(self, now_s: int) -> dict[str, object]:
        self.described += 1
        return {"pub_counts": [{"topic": self._topic.decode(), "count": 1}]}


async def test_of_many_producers_those_of_the_topic_are_described_and_others_have_the_loop(tmp_path: Path) -> None:
    async with penstock.Broker(tmp_path, nsq_port=-1, lookup_port=-1, lookup_http_port=-1, level="memory") as server:
        assert server.broker is not None
        queueing = server.broker.queueing
        queueing.topic(b"mine")
        others = [Publishing(b"another") for _ in range(1_000)]
        own = Publishing(b"mine")
        queueing.producers.update(others)
        queueing.producers.add(own)

        site = NsqHttp(server.broker)
        told = json.loads((await asgi(site, "GET", "/stats?format=json&topic=mine")).body)
        assert told["producers"] == [{"pub_counts": [{"topic": "mine", "count": 1}]}]
        assert (own.described, sum(one.described for one in others)) == (1, 0)
        with turns_of_others() as turns:
            await asgi(site, "GET", "/stats?format=json")
        queueing.producers.clear()
        assert sum(one.described for one in others) == 1_000
        assert turns() >= 1_000 / 200


def test_metrics_of_log_topics_and_of_other_protocols() -> None:
    with Broker(lookup_port=-1, lookup_http_port=-1) as broker:
        with penstock.Producer(broker.registry) as producer:
            for number in range(5):
                producer.send(penstock.Message("events", b"%d" % number))

        def commit(server: Any) -> None:
            server.broker.offsets.table[("events", "readers")] = dict.fromkeys(range(4), 0)

        broker.call(commit)
        host, _, port = broker.nsq.rpartition(":")
        with socket.create_connection((host, int(port)), 10) as peer:
            peer.sendall(b"  V2FOO\n")
            assert b"E_INVALID" in peer.recv(100)
        told = r'penstock_consumer_lag_seconds\{topic="events",group="readers"\} (\S+)\n'
        lags: list[float] = []

        def is_behind() -> bool:
            lags[:] = [float(lag) for lag in re.findall(told, ask(broker.http, "GET", "/metrics").body.decode())]
            return len(lags) == 1 and lags[0] > 0

        eventually(is_behind)
        text = ask(broker.http, "GET", "/metrics").body.decode()
        assert 'penstock_consumer_lag_messages{topic="events",group="readers"} 5\n' in text
        assert 'penstock_rejected_total{protocol="nsq",reason="E_INVALID"} 1\n' in text


def test_disk_level_answers_after_the_flush() -> None:
    with Broker(level="disk", lookup_port=-1, lookup_http_port=-1) as broker:
        assert ask(broker.http, "POST", "/pub?topic=safe", b"x").answer == "OK"
        assert ask(broker.http, "POST", "/mpub?topic=safe", b"x\ny").answer == "OK"
        found = broker.call(
            lambda server: (server.broker.queueing.flush_done, server.broker.queueing.topics[b"safe"].level)
        )
        assert found[0] >= 2
        assert found[1] == 1


def test_names_outlive_a_restart(tmp_path: Any) -> None:
    with Broker(tmp_path, lookup_port=-1, lookup_http_port=-1) as broker:
        ask(broker.http, "POST", "/topic/create?topic=kept")
        ask(broker.http, "POST", "/channel/create?topic=kept&channel=c")
        ask(broker.http, "POST", "/channel/pause?topic=kept&channel=c")
        ask(broker.http, "POST", "/pub?topic=kept", b"x")
    with Broker(tmp_path, lookup_port=-1, lookup_http_port=-1) as broker:
        (topic,) = stats(broker)["topics"]
        (channel,) = topic["channels"]
        assert (topic["topic_name"], channel["paused"], channel["depth"]) == ("kept", True, 1)


def test_a_failed_disk_is_told(broker: Broker) -> None:
    def fail(server: Any) -> None:
        server.broker.queueing.flush.healthy, server.broker.queueing.flush.error = False, "it broke"

    def heal(server: Any) -> None:
        server.broker.queueing.flush.healthy, server.broker.queueing.flush.error = True, ""

    broker.call(fail)
    try:
        told = ask(broker.http, "GET", "/ping")
        assert (told.status, told.body) == (500, b"NOK - it broke")
        told = ask(broker.http, "POST", "/pub?topic=sick", b"x")
        assert (told.status, told.answer) == (503, "EXITING")
        assert stats(broker)["health"] == "NOK - it broke"
    finally:
        broker.call(heal)
