"""The push to statsd: what one broker sends, and counters as differences."""

from __future__ import annotations

from pathlib import Path

from broker.queueside import Side
from penstock.fronts.http.nsqd import NsqHttp
from penstock.statsd import Statsd


def lines(statsd: Statsd) -> set[bytes]:
    return set(b"".join(statsd.packets()).splitlines())


def test_counters_count_from_the_last_push_on(tmp_path: Path) -> None:
    side = Side(tmp_path, statsd_prefix="nsq", statsd_mem_stats=True)
    statsd, topic = Statsd(NsqHttp(side.broker)), side.queueing.topic(b"t")
    topic.channel(b"c")
    side.queueing.publish(topic, [b"x"] * 3)
    first = lines(statsd)
    assert {b"nsq.topic.t.message_count:3|c", b"nsq.topic.t.channel.c.depth:3|g"} <= first
    assert any(line.startswith(b"nsq.mem.gc_runs:") for line in first)
    side.queueing.publish(topic, [b"x"])
    second = lines(statsd)
    assert {b"nsq.topic.t.message_count:1|c", b"nsq.topic.t.channel.c.depth:4|g"} <= second
    side.close()


def test_without_memory_and_without_ephemeral_channels(tmp_path: Path) -> None:
    side = Side(tmp_path, statsd_mem_stats=False, statsd_exclude_ephemeral=True)
    side.queueing.topic(b"t").channel(b"e#ephemeral")
    found = b"".join(Statsd(NsqHttp(side.broker)).packets())
    assert b"ephemeral" not in found
    assert b"mem." not in found
    assert b"topic.t." in found
    side.close()
