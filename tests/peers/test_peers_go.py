"""RocketMQ's Go client, unchanged: its flows as with RocketMQ's own broker, and at a broker with users what it may."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest

from access.people import SECRET, user, write
from peers.both_brokers import original, own
from peers.conftest import CACHE, HERE, Program, install
from peers.rocketmq_broker import Rocketmq
from penstock import Admin, Security
from penstock.testing import Broker
from polling import eventually

CLIENT = "github.com/apache/rocketmq-client-go/v2@v2.1.2"
FLOWS = (
    "kinds", "orderly", "retry", "delay", "transactions", "broadcast", "tags", "sql", "requests", "namespace", "trace", "dead",
    "resumed", "pull",
)  # fmt: skip
_numbers = itertools.count()


@pytest.fixture(scope="module")
def program() -> Path:
    source = HERE / "rocketmq_flows.go"
    folder = install(
        CACHE / f"rocketmq-go-{crc32(source.read_bytes()):08x}",
        ["go", "version"],
        ["cp", str(source), "FOLDER/main.go"],
        ["sh", "-c", f"cd FOLDER && go mod init peer && go get {CLIENT} && go build -o peer ."],
    )
    return folder / "peer"


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rocketmq]:
    with original(tmp_path_factory.mktemp("rocketmq")) as broker:
        yield broker


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with own(tmp_path_factory.mktemp("data")) as broker:
        yield broker


def new_topic(registry: str, name: str, security: Security | None = None) -> None:
    with Admin(registry, security=security) as admin:
        admin.create_topic(name, 4)
        eventually(lambda: name in admin.topics(system=True))


@pytest.mark.parametrize("flow", FLOWS)
def test_a_flow_goes_as_with_the_original(program: Path, theirs: Rocketmq, ours: Broker, flow: str) -> None:
    topic = f"Go{next(_numbers)}"
    expected, found = [], []
    for broker, told in ((theirs, expected), (ours, found)):
        for name in (topic, f"MQ_INST_1%{topic}"):
            new_topic(broker.registry, name)
        told += Program([str(program)], {}, broker.registry).run(flow, topic)
    assert expected, "the flow told nothing"
    assert found == expected


def test_it_may_what_it_was_granted(program: Path, tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    write(
        path,
        user("application", "publish:Peer", "subscribe:Peer", "group:go-readers"),
        user("stranger", "publish:Other"),
        user("administrator", "admin"),
    )
    with Broker(tmp_path / "data", users=str(path)) as broker:
        new_topic(broker.registry, "Peer", Security(user="administrator", secret=SECRET + "administrator"))

        def run(name: str, secret: str) -> str:
            told = Program([str(program)], {"PEER_USER": name, "PEER_SECRET": secret}, broker.registry).run(
                "rights", "Peer"
            )
            return " ".join(map(str, told))

        assert "body 1" in run("application", SECRET + "application")
        for name, secret in (("", ""), ("application", "another-secret"), ("stranger", SECRET + "stranger")):
            told = run(name, secret)
            assert "refused" in told
            assert "body 1" not in told
