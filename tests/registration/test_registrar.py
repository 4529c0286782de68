"""`registrar`: a registry is told of what changed, and of everything when it may know nothing."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.app import Server
from penstock.broker.broker import Broker
from penstock.client.blockingadmin import Admin
from penstock.config import BrokerConfig, RegistryConfig
from penstock.embedded import ThreadedBroker
from penstock.fronts.namesrv import NameServer
from penstock.registration.registrar import News, Registration, RouteNeighbour
from penstock.testing import Broker as RunningBroker
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import CommandParser, RemotingCommand, encode
from polling import eventually


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    made = Broker(BrokerConfig(data=str(tmp_path / "data"), mapped_file_size_commit_log=1 << 20))
    made.open()
    yield made
    made.close()


def told(registration: Registration, news: News) -> tuple[set[str], list[str] | dict[str, bool] | None]:
    body: dict[str, Any] = json.loads(registration.request(news).body)
    wrapper = body["topicConfigSerializeWrapper"]
    assert wrapper["dataVersion"]["counter"] == registration.broker.topics.version["counter"]
    queues = body.get("nsq", {})
    return set(wrapper["topicConfigTable"]), queues.get("topics", queues.get("changes"))


def test_what_changed_is_told(broker: Broker) -> None:
    """Else a topic costs as much as there are topics already."""
    registration = Registration(broker, "127.0.0.1:1", "127.0.0.1:2")
    rings: list[int] = []
    news = News(registration, lambda: rings.append(1))
    other = News(registration, lambda: None)
    for n in range(5):
        broker.topics.create(b"before%d" % n, 4, 4)
    every, queues = told(registration, news)
    assert every >= {f"before{n}" for n in range(5)}
    assert queues == []
    rings.clear()
    broker.topics.create(b"new", 4, 4)
    broker.topics.create(b"before1", 8, 8)
    assert len(rings) == 2
    assert told(registration, news) == ({"new", "before1"}, None)
    broker.queueing.topic(b"jobs")
    assert told(registration, news) == (set(), {"jobs": True})
    broker.queueing.topic(b"jobs").channel(b"c")
    broker.topics.delete(b"new", 0)
    assert told(registration, news) == (set(), None)
    broker.queueing.topic(b"more")
    broker.queueing.delete(broker.queueing.topic(b"jobs"))
    assert told(registration, news) == (set(), {"more": True, "jobs": False})
    news.everything()
    assert told(registration, news) == (every, ["more"])
    broker.queueing.delete(broker.queueing.topic(b"more"))
    assert told(registration, news) == (set(), {"more": False})
    news.refused()  # a registry that is older than this
    broker.queueing.topic(b"jobs")
    assert told(registration, news) == (every, ["jobs"])
    broker.queueing.delete(broker.queueing.topic(b"jobs"))
    assert told(registration, news) == (set(), [])
    assert told(registration, other) == (every, [])  # another registry has news of its own


def test_the_registry_of_the_same_process_knows_all_of_it(broker: Broker, tmp_path: Path) -> None:
    names = NameServer(tmp_path / "names")
    neighbour = RouteNeighbour(Registration(broker, "127.0.0.1:1", "127.0.0.1:2"), names)
    now_ms = 1
    neighbour.tick(now_ms)
    for n in range(5):
        broker.topics.create(b"t%d" % n, 4, 4)
        broker.queueing.topic(b"q%d" % n)
        neighbour.tick(now_ms)
    assert set(names.routes.topics) >= {f"t{n}" for n in range(5)}
    assert set(names.routes.queue_route("q3")) == {broker.config.broker_name}
    broker.topics.create(b"t3", 9, 9)
    neighbour.tick(now_ms)
    assert names.routes.topics["t3"][broker.config.broker_name].read_count == 9
    names.routes.delete_topic("t1")  # by hand, and the broker still has it: it comes back with the next period
    neighbour.tick(now_ms)
    assert "t1" not in names.routes.topics
    broker.topics.create(b"t9", 1, 1)
    neighbour.tick(now_ms + broker.config.register_broker_period_ms)
    assert "t1" in names.routes.topics


def test_queue_topics_alone_go_straight_into_the_routes(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = NameServer(tmp_path / "names")
    neighbour = RouteNeighbour(Registration(broker, "127.0.0.1:1", "127.0.0.1:2"), names)
    neighbour.tick(1)
    handled: list[int] = []
    handle = names.handle
    monkeypatch.setattr(names, "handle", lambda *told: handled.append(1) or handle(*told))
    topic = broker.queueing.topic(b"jobs")
    neighbour.tick(1)
    assert set(names.routes.queue_route("jobs")) == {broker.config.broker_name}
    broker.queueing.delete(topic)
    neighbour.tick(1)
    assert (names.routes.queue_route("jobs"), handled) == ({}, [])
    names.routes.lost(neighbour)  # it knows nothing of us: all of it is told
    broker.queueing.topic(b"more")
    broker.topics.create(b"events", 4, 4)
    neighbour.tick(1)
    assert set(names.routes.queue_route("more")) == {broker.config.broker_name}
    assert handled == [1]
    broker.queueing.topic(b"jobs")
    names.routes.lost(neighbour)
    neighbour.tick(1)
    assert handled == [1, 1]  # and as a registration, when only they are new


class Registry(ThreadedBroker):
    """A registry alone, in a thread."""

    def __init__(self, port: int = 0) -> None:
        super().__init__()
        folder = str(self.folder)
        self._make = lambda: Server(
            None, RegistryConfig(data=folder, registry_port=port, lookup_port=-1, lookup_http_port=-1)
        )


def test_a_registry_that_was_away_is_told_everything() -> None:
    with Registry() as registry:
        port = int(registry.registry.rpartition(":")[2])
        with (
            RunningBroker(
                registry_port=-1, lookup_port=-1, lookup_http_port=-1, registry=f"127.0.0.1:{port}"
            ) as running,
            Admin(registry.registry) as admin,
        ):
            _until(admin, set(running.call(_topics)))
            for name in ("one", "two", "three"):
                admin.create_topic(name)
            _until(admin, {"one", "two", "three"})
            registry.stop()
            with Registry(port) as again, Admin(again.registry) as other:
                _until(other, {"one", "two", "three"})
                other.create_topic("four")
                _until(other, {"one", "two", "three", "four"})


def _topics(server: Server) -> list[str]:
    assert server.broker is not None
    return [name.decode() for name in server.broker.topics.by_name if not server.broker.topics.by_name[name].protected]


def _until(admin: Admin, wanted: set[str]) -> None:
    eventually(lambda: wanted <= set(admin.topics(system=True)))


def test_the_order_of_a_topic_is_the_registrys_order_configuration(broker: Broker) -> None:
    registration = Registration(broker, "127.0.0.1:1")
    news = News(registration, lambda: None)
    topic = broker.topics.create(b"T", 4, 4)

    def registered(*ordered: str) -> bool:
        request = registration.request(news)
        registration.take(request.reply(body=json.dumps({"table": dict.fromkeys(ordered, "broker-a:4")}).encode()))
        return bool(topic.order)

    assert not registered()
    assert registered("T", "U")
    registration.take(registration.request(news).reply())  # a registry that says nothing of it
    assert topic.order
    assert not registered("U")
    assert not registered()


@pytest.mark.parametrize("body", [b"no JSON", b"[1]", b'{"table": 5}'])
def test_a_registry_that_answers_nonsense_is_asked_again(body: bytes) -> None:
    """Another one may listen there by then; a broker that gave up would be out of every route, and say nothing."""
    asked = 0
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        nonlocal asked
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                parser = CommandParser()
                with connection:
                    while data := connection.recv(1 << 16):
                        for request in parser.feed(data):
                            asked += request.code == RequestCode.REGISTER_BROKER
                            connection.sendall(encode(request.reply(body=body)))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    own = {"registry_port": -1, "lookup_port": -1, "lookup_http_port": -1}
    with RunningBroker(registry=f"127.0.0.1:{listener.getsockname()[1]}", **own):
        eventually(lambda: asked > 1)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(30)


def test_a_collision_of_ids_is_an_error_when_it_lasts(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    registration = Registration(broker, "127.0.0.1:1")
    reply = RemotingCommand(0, {"freeBrokerId": "2"}, remark="two of one name")
    taken: list[int] = []
    registration.on_rival.append(taken.append)
    registration.take(reply)
    assert taken == [2]
    assert "two of one name" not in caplog.text
    registration.take(reply, "another registry")  # which says the same of the same moment
    assert "two of one name" not in caplog.text
    registration.take(reply)
    assert "the registry says: two of one name" in caplog.text
    other = Registration(broker, "127.0.0.1:1")  # that cannot take another id
    caplog.clear()
    other.take(reply)
    assert "the registry says: two of one name" in caplog.text
