"""The `rocketmq` wheel and `ali-ons`, unchanged, at a broker with users: what was granted works, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from access.people import SECRET, user, write
from peers.conftest import Program
from penstock import Admin, Security
from penstock.client.reader import LogReader
from penstock.testing import Broker

TOPIC, GROUP = "Guarded", "readers"


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Broker]:
    path = tmp_path / "users.toml"
    granted = (f"publish:{TOPIC}", f"subscribe:{TOPIC}", f"group:{GROUP}")
    write(path, user("application", *granted), user("stranger", "publish:Other"), user("root", "admin"))
    with Broker(tmp_path / "data", users=str(path), failed_logins_per_minute=0) as broker:
        with Admin(broker.registry, security=Security(user="root", secret=SECRET + "root")) as admin:
            admin.create_topic(TOPIC, 2)
        yield broker


@pytest.mark.parametrize("package", ["wheel", "ali_ons"])
def test_who_may_does_and_nobody_else(package: str, guarded: Broker, request: pytest.FixtureRequest) -> None:
    installed: Program = request.getfixturevalue(package)

    def client(name: str, secret: str) -> Program:
        environment = installed._environment | {"PEER_USER": name, "PEER_SECRET": secret}
        return Program(installed._command, environment, guarded.registry)

    me = client("application", SECRET + "application")
    assert len(me.run("send", TOPIC, "writers", 3)) == 3
    assert len(me.run("push", TOPIC, GROUP, 3)) == 3
    for other in (client("application", "another-secret"), client("stranger", SECRET + "stranger")):
        with pytest.raises(AssertionError, match=r"it failed|it did not end"):
            other.run("send", TOPIC, "writers", 1)
    with LogReader(guarded.registry, security=Security(user="root", secret=SECRET + "root")) as reader:
        assert sum(reader.offsets(queue, durable=False)[1] for queue in reader.queues(TOPIC)) == 3
