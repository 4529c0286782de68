"""The unchanged `mqadmin` of RocketMQ 4.9.7 and our broker: exports, the state of the broker, queues and traces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from peers.rocketmq_broker import Installed
from penstock import Admin, Message, Producer, PushConsumer
from penstock.errors import NotFound
from penstock.testing import Broker
from polling import eventually

Ask = Callable[..., str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("data")) as broker:
        yield broker


@pytest.fixture
def mqadmin(broker: Broker, tmp_path: Path) -> Ask:
    installed = Installed()
    return lambda *words: installed.admin(broker.registry, tmp_path, *words)


def test_what_it_exports(mqadmin: Ask, tmp_path: Path) -> None:
    for what in ("Configs", "Metrics"):
        assert "success" in mqadmin(f"export{what}", "-c", "DefaultCluster", "-f", str(tmp_path))
    configs = json.loads((tmp_path / "configs.json").read_text())
    assert configs["brokerConfigs"]["broker-a"]["traceTopicEnable"] == "true"
    assert "cpuNum" in (tmp_path / "metrics.json").read_text()


def test_what_it_shows_of_the_broker_and_a_queue(broker: Broker, mqadmin: Ask) -> None:
    with Producer(broker.registry) as producer:
        queue = producer.send(Message("shown", b"x", tags="TagA")).queue
    status = mqadmin("brokerStatus", "-b", broker.remoting)
    assert "commitLogDirCapacity            : Total : " in status
    entries = mqadmin("queryCq", "-t", "shown", "-q", str(queue.queue_id), "-i", "0")
    assert "max: 1, min: 0" in entries
    assert "tagsCode=2598919" in entries


def test_it_reads_our_traces(broker: Broker, mqadmin: Ask) -> None:
    with (
        PushConsumer("readers", broker.registry, listener=lambda found: None, start="first", trace=True) as consumer,
        Producer(broker.registry, group="writers", trace=True) as producer,
        Admin(broker.registry) as admin,
    ):
        consumer.subscribe("traced")
        msg_id = producer.send(Message("traced", b"x")).msg_id

        def told() -> bool:
            try:
                return len(admin.traces(msg_id)) == 3
            except NotFound:
                return False

        eventually(told)
    shown = [line.split() for line in mqadmin("queryMsgTraceById", "-i", msg_id).splitlines()]
    assert [(line[0], line[1], line[-1]) for line in shown if line and line[0] in ("Pub", "Sub")] == [
        ("Pub", "writers", "success"), ("Sub", "readers", "success")
    ]  # fmt: skip
