"""Statistics pushed to statsd: names in nsqd's layout, counters as differences, packets of limited size."""

from __future__ import annotations

import socket

from http_rows import ask

from penstock.fronts.figures import duration, percentiles, statsd_lines, statsd_packets, statsd_prefix
from penstock.testing import Broker

LATENCY = {"count": 2, "percentiles": [{"quantile": 0.99, "value": 1500}]}
TOPIC = {
    "topic_name": "t", "message_count": 7, "message_bytes": 70, "depth": 1, "backend_depth": 0,
    "e2e_processing_latency": LATENCY,
    "channels": [
        {
            "channel_name": name, "message_count": 5, "requeue_count": 1, "timeout_count": 2, "depth": 3,
            "backend_depth": 0, "in_flight_count": 4, "deferred_count": 6, "client_count": 8,
            "e2e_processing_latency": {"count": 0, "percentiles": None},
        }
        for name in ("c", "e#ephemeral")
    ],
}  # fmt: skip


def test_the_largest_quantile_comes_first() -> None:
    """nsqd's page has their times without saying of which, and for 0.5,0.99 ours had the other order."""
    assert percentiles("0.5,0.99;0.95") == [0.99, 0.95, 0.5]


def test_what_is_made_anew_counts_from_nothing() -> None:
    """Of a topic deleted with ten messages, and made anew with three, statsd was told -7; and every name was kept for ever."""
    before: dict[str, int] = {}

    def told(*topics: dict[str, object]) -> list[str]:
        packets = statsd_packets("", statsd_lines(topics, False), before, 10_000)
        return [line for packet in packets for line in packet.decode().split() if ".t.message_count" in line]

    ten, three = TOPIC | {"message_count": 10}, TOPIC | {"message_count": 3}
    assert told(ten) == ["topic.t.message_count:10|c"]
    assert told() == []
    assert not before
    assert told(three) == ["topic.t.message_count:3|c"]
    assert told(ten) == ["topic.t.message_count:7|c"]
    assert told(three) == ["topic.t.message_count:3|c"]  # between two pushes


def test_names_and_differences() -> None:
    before: dict[str, int] = {}
    (packet,) = statsd_packets("p.", statsd_lines([TOPIC], True), before, 10_000)
    assert packet.decode().splitlines() == [
        "p.topic.t.message_count:7|c", "p.topic.t.message_bytes:70|c", "p.topic.t.depth:1|g",
        "p.topic.t.backend_depth:0|g", "p.topic.t.e2e_processing_latency_99:1500|g",
        "p.topic.t.channel.c.message_count:5|c", "p.topic.t.channel.c.requeue_count:1|c",
        "p.topic.t.channel.c.timeout_count:2|c", "p.topic.t.channel.c.depth:3|g",
        "p.topic.t.channel.c.backend_depth:0|g", "p.topic.t.channel.c.in_flight_count:4|g",
        "p.topic.t.channel.c.deferred_count:6|g", "p.topic.t.channel.c.clients:8|g",
    ]  # fmt: skip
    (packet,) = statsd_packets("p.", statsd_lines([TOPIC | {"message_count": 9}], False), before, 10_000)
    assert b"p.topic.t.message_count:2|c\np.topic.t.message_bytes:0|c\n" in packet
    assert b"p.topic.t.channel.e#ephemeral.message_count:5|c" in packet


def test_packets_are_limited_and_whole() -> None:
    lines = list(statsd_lines([TOPIC] * 20, False))
    packets = statsd_packets("p.", lines, {}, 508)
    assert max(map(len, packets)) <= 508
    assert all(packet.endswith(b"\n") for packet in packets)
    assert b"".join(packets).count(b"\n") == len(lines)


def test_prefix() -> None:
    assert statsd_prefix("nsq.%s", "a.b", 4151) == "nsq.a_b_4151."
    assert statsd_prefix("x.", "a.b", 4151) == "x."
    assert statsd_prefix("", "a.b", 4151) == ""


def test_durations_as_go_prints_them() -> None:
    assert [duration(s) for s in (0, 59, 75, 3600, 90061)] == ["0s", "59s", "1m15s", "1h0m0s", "25h1m1s"]


def test_a_push() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd:
        statsd.bind(("127.0.0.1", 0))
        statsd.settimeout(20)
        with Broker(
            statsd_address=f"127.0.0.1:{statsd.getsockname()[1]}", statsd_interval_ms=200, broadcast_address="me.here",
            lookup_port=-1, lookup_http_port=-1,
        ) as broker:  # fmt: skip
            ask(broker.http, "POST", "/pub?topic=t", b"x")
            got = b""
            port = broker.http.rpartition(":")[2].encode()
            while b"nsq.me_here_%s.topic.t.message_count:1|c\n" % port not in got or b"mem.gc_runs" not in got:
                got += statsd.recv(65536)
