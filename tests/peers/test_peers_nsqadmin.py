"""NSQ's own nsqadmin and nsq_stat 1.3.0, and RocketMQ's mqadmin, show the numbers that the console shows."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fronts.nsq_peer import NsqPeer, sized
from peers.nsq_apps import apps
from peers.rocketmq_broker import Installed
from penstock import Admin, Message, Producer, PullConsumer
from penstock.console.server import Settings, console_of
from penstock.security import PLAIN
from penstock.testing import Broker
from polling import eventually


@pytest.fixture(scope="session")
def tools() -> Path:
    return apps()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    """The queue topic `audit`: the channel `c` has 2 in flight, 1 deferred, 4 ready, 1 finished; `d` all 8. The log topic
    `orders`: the group `billing` has read 3 of 10.
    """
    with Broker() as broker, Admin(broker.registry) as admin, Producer(broker.registry) as producer:
        admin.change_queue("audit", "add")
        for channel in ("c", "d"):
            admin.change_queue("audit", "add", channel=channel)
        peer = NsqPeer(broker.nsq)
        peer.publish(b"audit", *(b"%d" % n for n in range(8)))
        reader = NsqPeer(broker.nsq)
        about = b'{"msg_timeout": 900000}'
        assert reader.ask(b"IDENTIFY\n" + sized(about)) == b"OK"
        reader.subscribe(b"audit", b"c", 4)
        taken = [reader.message() for _ in range(4)]
        reader.send(b"RDY 0\nREQ " + taken[0].id + b" 600000\n")
        reader.finish(taken[1])
        for name in (
            "orders",
            "%RETRY%billing",
        ):  # which mqadmin asks for, as of a group that a push consumer has joined
            admin.create_topic(name, 1)
        for _ in range(10):
            producer.send(Message("orders", b"x"))
        with PullConsumer(broker.registry, group="billing") as consumer:
            consumer.commit(dict.fromkeys(consumer.queues("orders"), 3))
        eventually(
            lambda: shown(next(one for one in snapshot(broker, "audit")["readers"] if one["name"] == "c")) == CHANNEL
        )
        yield broker
        peer.close()
        reader.close()


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read())


def snapshot(broker: Broker, topic: str) -> Any:
    (row,) = get(f"http://{broker.http}/api/snapshot?parts=topics&topic={topic}")["topics"]
    return row


async def page(broker: Broker, path: str) -> Any:
    """What a page of the console shows."""
    from console.browser import Browser

    told = await Browser(console_of(Settings(broker.http, broker.registry), PLAIN).app()).get(path)
    assert told.status == 200
    return json.loads(told.text)


def shown(reader: Any) -> dict[str, int]:
    """Of a channel, under the names of the console."""
    return {name: reader[name] for name in ("depth", "in_flight", "deferred", "requeued", "timed_out", "consumers")}


CHANNEL = {"depth": 4, "in_flight": 2, "deferred": 1, "requeued": 1, "timed_out": 0, "consumers": 1}


async def test_nsqadmin(broker: Broker, tools: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [tools / "nsqadmin", f"-http-address={address}", f"-lookupd-http-address={broker.lookup_http}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:

            def told() -> Any:
                try:
                    return get(f"http://{address}/api/topics/audit")
                except OSError:
                    return None

            eventually(lambda: len((told() or {}).get("channels") or ()) == 2)
            theirs = told()
            assert [node["hostname"] for node in get(f"http://{address}/api/nodes")["nodes"]] == [socket.gethostname()]
            counter = get(f"http://{address}/api/counter")["stats"]
        finally:
            process.terminate()
    row = (await page(broker, "/topics/audit/about.json"))["row"]
    ours = {reader["name"]: reader for reader in row["readers"]}
    for channel in theirs["channels"]:
        mine = ours[channel["channel_name"]]
        assert shown(mine) == {
            "depth": channel["depth"], "in_flight": channel["in_flight_count"], "deferred": channel["deferred_count"],
            "requeued": channel["requeue_count"], "timed_out": channel["timeout_count"], "consumers": channel["client_count"],
        }  # fmt: skip
        assert mine["lag"] == channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]
    assert shown(ours["c"]) == CHANNEL
    assert (theirs["message_count"], theirs["depth"], row["depth"]) == (8, 0, 0)
    assert sum(one["message_count"] for one in counter.values()) == 16


async def test_nsq_stat(broker: Broker, tools: Path) -> None:
    command = [
        tools / "nsq_stat", "-topic=audit", "-channel=c", f"-lookupd-http-address={broker.lookup_http}", "-interval=100ms",
        "-count=2",
    ]  # fmt: skip
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    line = next(line for line in told.stdout.splitlines() if re.match(r"^\s*\d", line))
    _in, _out, depth, _mem, _disk, flying, deferred, *others = map(int, re.findall(r"\d+", line))
    requeued, timed_out, messages, clients = others
    about = (await page(broker, "/topics/audit/channel/c/about.json"))["row"]
    found = {"depth": depth, "in_flight": flying, "deferred": deferred, "requeued": requeued, "timed_out": timed_out}
    assert found | {"consumers": clients} == shown(about) == CHANNEL
    assert messages == 8


async def test_mqadmin(broker: Broker, tmp_path: Path) -> None:
    installed = Installed()
    progress = installed.admin(broker.registry, tmp_path, "consumerProgress", "-g", "billing")
    (line,) = [line.split() for line in progress.splitlines() if line.startswith("orders")]
    about = await page(broker, "/topics/orders/group/billing/about.json")
    assert [int(cell) for cell in line[3:6]] == [10, 3, 7] == [
        about["offsets"][0][name] for name in ("end", "at", "lag")
    ]  # fmt: skip
    assert about["row"]["lag"] == 7
    status = installed.admin(broker.registry, tmp_path, "topicStatus", "-t", "orders")
    (row,) = [line.split() for line in status.splitlines() if line.startswith("broker-a")]
    queue = (await page(broker, "/topics/orders/about.json"))["row"]["offsets"][0]
    assert [int(cell) for cell in row[1:4]] == [queue["queue"], queue["first"], queue["end"]]
