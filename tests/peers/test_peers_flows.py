"""What users of RocketMQ's Java client do, with two of its versions: the same with our broker as with RocketMQ's own."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from peers.both_brokers import original, own
from peers.conftest import Lines
from peers.rocketmq_broker import Installed, Rocketmq
from penstock import Admin
from penstock.testing import Broker
from polling import eventually

CLIENTS = ("4.9.8", "5.3.3")
FLOWS = (
    "kinds", "batches", "refusals", "orderly", "broadcast", "lite", "pull", "retry", "delay", "transactions", "tags",
    "sql", "sharing", "namespace", "trace", "looking", "returned", "paused",
)  # fmt: skip
# What a client of 5.x asks of a broker of 4.9 and gets no good answer to.
BY_ANOTHER_CLIENT = {("5.3.3", "lite"): "4.9.8"}  # the lite pull consumer is given nothing there
BETTER = {
    ("5.3.3", "looking"): ({"tomorrow": 9}, {"tomorrow": 10})
}  # it asks for the lower bound, which 4.9 does not know
_numbers = itertools.count()


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rocketmq]:
    with original(tmp_path_factory.mktemp("rocketmq")) as broker:
        yield broker


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with own(tmp_path_factory.mktemp("data")) as broker:
        yield broker


def client(version: str) -> Installed:
    return Installed("RocketmqFlows", ("rocketmq-client",), version)


@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("version", CLIENTS)
def test_a_flow_goes_as_with_the_original(
    theirs: Rocketmq, ours: Broker, version: str, flow: str, tmp_path: Path
) -> None:
    topic = f"Flow{next(_numbers)}"
    found: list[Lines] = []
    for broker, used in ((theirs, BY_ANOTHER_CLIENT.get((version, flow), version)), (ours, version)):
        with Admin(broker.registry) as admin:
            for name in (topic, f"MQ_INST_1%{topic}"):
                admin.create_topic(name, 4)
                eventually(lambda admin=admin, name=name: name in admin.topics(system=True))
        home = tmp_path / type(broker).__name__
        home.mkdir()
        found.append(client(used).client(broker.registry, home).run(flow, topic))
    expected, seen = found
    assert expected, "the flow told nothing"
    before, after = BETTER.get((version, flow), ({}, {}))
    assert seen == [after if line == before else line for line in expected]
