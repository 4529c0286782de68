"""A real broker with users: our clients, the command line, NSQ and HTTP over real sockets, with a right and without."""

from __future__ import annotations

import http.client
import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from access.people import SECRET, user, write
from fronts.nsq_peer import NsqPeer, sized
from penstock import Admin, Message, Producer, PullConsumer, PushConsumer, Security
from penstock.cli.main import main
from penstock.errors import BrokerRefused, ClientError
from penstock.testing import Broker

ROOT = Security(user="root", secret=SECRET + "root")
APP = Security(user="app", secret=SECRET + "app")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder = tmp_path_factory.mktemp("data")
    write(
        folder / "users.toml",
        user("root", "admin"),
        user(
            "app", "publish:orders", "subscribe:orders", "group:billing", "publish:jobs", "subscribe:jobs", "group:work"
        ),
    )
    with Broker(folder) as broker:
        yield broker


def test_who_says_nothing_gets_nothing(broker: Broker) -> None:
    with pytest.raises(ClientError, match="No accessKey is configured"), Producer(broker.registry) as producer:
        producer.send(Message("orders", b"x"))


def test_publish_and_consume_with_the_rights_for_it(broker: Broker) -> None:
    with Producer(broker.registry, security=APP) as producer:
        for number in range(20):
            producer.send(Message("orders", b"%d" % number))
        with pytest.raises(ClientError, match="No default permission for topic:other"):
            producer.send(Message("other", b"x"))
    with PushConsumer("billing", broker.registry, security=APP, start="first") as consumer:
        consumer.subscribe("orders")
        found = set()
        for delivery in consumer:
            found.add(delivery.message.body)
            delivery.ack()
            if len(found) == 20:
                break


def test_another_group_and_another_topic_are_not_read(broker: Broker) -> None:
    with Admin(broker.registry, security=ROOT) as admin:
        admin.create_topic("secrets")
    for group, topic in (("another", "orders"), ("billing", "secrets")):
        with (
            pytest.raises(ClientError, match="No default permission"),
            PullConsumer(broker.registry, group=group, security=APP) as consumer,
        ):
            consumer.assign(topic)
            consumer.getmany(timeout_s=30.0)


def test_queue_topics_by_name_and_secret(broker: Broker) -> None:
    with Producer(broker.registry, kind="queue", nsqd=broker.nsq, security=APP) as producer:
        producer.send(Message("jobs", b"do it"))
        with pytest.raises(ClientError):
            producer.send(Message("other", b"x"))
    peer = NsqPeer(broker.nsq)
    assert peer.ask(b"PUB jobs\n" + sized(b"x")).startswith(b"E_AUTH_FIRST")
    peer.close()


def test_administration_is_for_administrators(broker: Broker) -> None:
    with (
        Admin(broker.registry, security=APP) as admin,
        pytest.raises(BrokerRefused, match="permission"),
    ):
        admin.create_topic("mine")
    with Admin(broker.registry, security=ROOT) as admin:
        admin.create_topic("theirs")
        assert "theirs" in admin.topics()


def test_http_by_password(broker: Broker) -> None:
    def status(path: str, name: str = "", method: str = "GET", body: bytes = b"") -> int:
        connection = http.client.HTTPConnection(broker.http, timeout=30)
        headers = {"Authorization": "Basic " + b64encode(f"{name}:{SECRET}{name}".encode()).decode()} if name else {}
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        connection.close()
        return answer.status

    assert [status("/ping"), status("/stats"), status("/stats", "app"), status("/stats", "root")] == [
        200,
        401,
        403,
        200,
    ]
    assert status("/pub?topic=jobs", "app", "POST", b"x") == 200
    assert status("/pub?topic=other", "app", "POST", b"x") == 403
    assert status("/pub?topic=jobs", "", "POST", b"x") == 401
    assert status("/metrics", "root") == 200


def test_the_command_line_takes_its_user_from_the_environment(broker: Broker, tmp_path: Path) -> None:
    def run(name: str, *words: str) -> tuple[int, str]:
        file = tmp_path / "secret"
        file.touch(0o600)
        file.write_text(SECRET + name)
        environment = {"PENSTOCK_USER": name, "PENSTOCK_SECRET_FILE": str(file)} if name else {}
        result = CliRunner().invoke(main, [*words, "-n", broker.registry], env=environment)
        assert "Traceback" not in result.output
        return result.exit_code, result.output

    code, told = run("root", "topic", "ls", "--json")
    assert code == 0
    assert "orders" in {json.loads(line)["topic"] for line in told.splitlines()}
    for name in ("", "app"):
        code, told = run(name, "topic", "ls")
        assert code != 0
        assert "No accessKey" in told or "permission" in told
