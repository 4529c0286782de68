"""`client.reader` against a real broker: blocking sockets, raw records."""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.client import reader as reader_module
from penstock.client.blocking import Producer
from penstock.client.blockingadmin import Admin
from penstock.client.line import Line
from penstock.client.reader import LogReader
from penstock.client.routes import MessageQueue
from penstock.client.staging import StageClient
from penstock.client.subscriptions import Subscription
from penstock.errors import BrokerRefused, ClientError, ConnectionLost, NoRoute, TimedOut, WireError
from penstock.message import Message
from penstock.wire.record import iter_records
from penstock.wire.remoting import RemotingCommand
from polling import eventually, later_ms

Fresh = Callable[[str], str]


def fill(registry: str, topic: str, count: int, body: bytes = b"", tags: str | None = None) -> MessageQueue:
    with Producer(registry) as producer, Admin(registry) as admin:
        admin.create_topic(topic, 2)
        wait_for_route(registry, topic)
        queue = MessageQueue(topic, "broker-a", 0)
        producer.send_batch([Message(topic, body or b"%d" % i, tags=tags) for i in range(count)], queue=queue)
    return queue


def wait_for_route(registry: str, topic: str) -> None:
    with LogReader(registry) as reader:
        for _ in range(500):
            try:
                reader.queues(topic)
                return
            except NoRoute:
                time.sleep(0.01)
    raise AssertionError(f"{topic} was not registered")


def test_reading(registry: str, fresh: Fresh) -> None:
    topic = fresh("reader")
    queue = fill(registry, topic, 50)
    with LogReader(registry) as reader:
        assert topic in reader.topics()
        assert "TBW102" not in reader.topics()
        assert reader.queues(topic) == [queue, MessageQueue(topic, "broker-a", 1)]
        assert reader.offsets(queue, durable=False) == (0, 50)
        fetched = reader.fetch(queue, 10, durable=False)
        assert (fetched.status, fetched.next_offset, fetched.max_offset) == (0, 50, 50)
        assert [m.body for m in iter_records(fetched.records)] == [b"%d" % i for i in range(10, 50)]
        assert reader.fetch(queue, 0, max_count=7, durable=False).next_offset == 7
        assert reader.fetch(queue, 50, durable=False).status == 19
        assert reader.fetch(queue, 99, durable=False)[:2] == (21, 50)


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e300, 30 * 86_400.0])
def test_an_answer_may_take_any_time(registry: str, timeout_s: float) -> None:
    with LogReader(registry, timeout_s=timeout_s) as reader:
        reader.topics()


def test_queues_that_are_added(registry: str, fresh: Fresh) -> None:
    topic = fresh("grows")
    fill(registry, topic, 1)
    with LogReader(registry) as reader, Admin(registry) as admin:
        assert len(reader.queues(topic)) == 2
        admin.create_topic(topic, 4)

        def grown() -> bool:
            reader.forget_routes()
            return len(reader.queues(topic)) == 4

        eventually(grown)


def test_a_queue_topic_is_told_from_none(registry: str, fresh: Fresh) -> None:
    topic = fresh("of-queues")
    with Producer(registry, kind="queue") as producer:
        producer.send(Message(topic, b"work"))
    with LogReader(registry) as reader:
        for _ in range(2):
            with pytest.raises(ClientError, match="is a queue topic, which has no offsets"):
                reader.queues(topic)
        assert topic not in reader.topics()
    with StageClient(registry, patience_s=20) as client, pytest.raises(ClientError, match="is a queue topic"):
        client.queues_to_write(topic)


@pytest.mark.parametrize("timeout_s", [1e10, float("inf")])
def test_a_time_longer_than_the_system_counts(registry: str, timeout_s: float) -> None:
    with LogReader(registry, timeout_s=timeout_s) as reader:
        reader.topics()
    with Producer(registry, send_timeout_s=timeout_s) as producer:
        producer.send(Message("patient", b"log"))
    with Producer(registry, kind="queue", send_timeout_s=timeout_s) as producer:
        producer.send(Message("patient-work", b"queue"))


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan")])
def test_a_time_in_which_nothing_can_be_done(registry: str, timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout_s is above 0"):
        LogReader(registry, timeout_s=timeout_s)


def test_durable_end(registry: str, fresh: Fresh) -> None:
    queue = fill(registry, fresh("durable"), 5)
    with LogReader(registry) as reader:
        eventually(lambda: reader.offsets(queue) == (0, 5))  # the flush of level `os` comes within a second
        assert reader.fetch(queue, 0).next_offset == 5


def test_large_fetch(registry: str, fresh: Fresh) -> None:
    queue = fill(registry, fresh("bulk"), 3_000, b"x" * 500)
    with LogReader(registry) as reader:
        fetched = reader.fetch(queue, 0, durable=False)
        assert fetched.next_offset == 3_000
        assert len(fetched.records) > 1_500_000
        some = reader.fetch(queue, 0, max_bytes=100_000, durable=False)
        assert 0 < some.next_offset < 200
        assert len(some.records) <= 100_000


def test_the_next_fetch_is_asked_for_ahead(registry: str, fresh: Fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = fill(registry, fresh("ahead"), 100)
    sent: list[int] = []

    class Noted(Line):
        def ask(self, command: RemotingCommand, timeout_s: float) -> None:
            sent.append(command.code)
            super().ask(command, timeout_s)

    monkeypatch.setattr(reader_module, "Line", Noted)
    with LogReader(registry) as reader:

        def fetch(offset: int, count: int = 10) -> list[bytes]:
            got = reader.fetch(queue, offset, max_count=count, durable=False, until=95)
            return [m.body for m in iter_records(got.records)]

        def bodies(first: int, end: int) -> list[bytes]:
            return [b"%d" % i for i in range(first, end)]

        reader.queues(queue.topic)
        sent.clear()
        assert fetch(0) == bodies(0, 10)
        assert len(sent) == 2  # and offset 10 is under way
        assert fetch(10) == bodies(10, 20)
        assert len(sent) == 3
        assert reader.offsets(queue, durable=False) == (0, 100)  # passes over the answer it did not ask for
        assert fetch(40) == bodies(40, 50)
        assert fetch(50, count=5) == bodies(50, 55)  # other wishes than those asked for
        for line in reader._lines.values():
            line._socket.shutdown(socket.SHUT_RDWR)
        assert fetch(55, count=5) == bodies(55, 60)
        assert fetch(90) == bodies(90, 95)
        sent.clear()
        assert fetch(94) == bodies(94, 95)
        assert len(sent) == 1  # nothing is asked for behind the end


def test_the_data_folder_a_broker_names(own_cluster) -> None:  # type: ignore[no-untyped-def]
    queue = fill(own_cluster.registry, "T", 5)
    with LogReader(own_cluster.registry) as reader:
        assert (Path(reader.data_folder(queue)) / "commitlog").is_dir()


def test_time_tags_and_commit(registry: str, fresh: Fresh) -> None:
    topic = fresh("misc")
    queue = fill(registry, topic, 3, tags="a")
    moment = later_ms()
    fill(registry, topic, 4, tags="b")
    with LogReader(registry) as reader:
        assert reader.offset_at(queue, 0) == 0
        assert reader.offset_at(queue, moment) == 3
        assert reader.offset_at(queue, moment + 60_000) == 7
        fetched = reader.fetch(queue, 0, selection=Subscription(queue.topic, "b"), durable=False)
        assert [m.tags for m in iter_records(fetched.records)] == ["b"] * 4
        reader.commit("readers", queue, 5)
        assert reader.committed("readers", queue) == 5


def test_errors(registry: str) -> None:
    with LogReader(registry) as reader:
        with pytest.raises(NoRoute):
            reader.queues("nobody-made-this")
        with pytest.raises(BrokerRefused):
            reader.fetch(MessageQueue("TBW102", "broker-a", 99), 0)
        with pytest.raises(NoRoute):
            reader.offsets(MessageQueue("TBW102", "broker-z", 0))
    with pytest.raises(ConnectionLost):
        LogReader("127.0.0.1:1").topics()
    with pytest.raises(ValueError):
        LogReader("nonsense:x")


def test_a_deleted_topic_is_told_from_a_broker_that_is_away(registry: str, fresh: Fresh) -> None:
    topic = fresh("deleted")
    queue = fill(registry, topic, 1)
    with LogReader(registry) as reader, Admin(registry) as admin:
        assert not reader.is_gone(queue)
        admin.delete_topic(topic)
        assert reader.is_gone(queue)
        assert not reader.is_gone(MessageQueue(topic, "broker-z", 0))
        admin.create_topic(topic, 1)
        assert not reader.is_gone(queue)
        assert reader.is_gone(MessageQueue(topic, "broker-a", 1))  # it has one queue now


def test_second_registry(registry: str) -> None:
    with LogReader(f"127.0.0.1:1;{registry}") as reader:
        assert isinstance(reader.topics(), list)
        reader.close()
        assert isinstance(reader.topics(), list)


def test_a_restart_is_bridged(own_cluster) -> None:  # type: ignore[no-untyped-def]
    queue = fill(own_cluster.registry, "T", 5)
    with LogReader(own_cluster.registry) as reader:
        assert reader.fetch(queue, 0, durable=False).next_offset == 5
        own_cluster.stop(signal.SIGTERM)
        own_cluster.start()
        assert reader.fetch(queue, 0, durable=False).next_offset == 5


@pytest.mark.parametrize(("answer", "timeout_s", "error"), [(b"", 0.3, TimedOut), (b"\0\0\0\1junk", 60.0, WireError)])
def test_a_peer_that_misbehaves(answer: bytes, timeout_s: float, error: type[Exception]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(answer)
                peer.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        with LogReader(f"127.0.0.1:{server.getsockname()[1]}", timeout_s=timeout_s) as reader, pytest.raises(error):
            reader.topics()
        thread.join()


async def test_one_lock_for_two_threads(registry: str, fresh: Fresh) -> None:
    queue = await asyncio.to_thread(fill, registry, fresh("threads"), 20)
    with LogReader(registry) as reader:
        results = await asyncio.gather(
            *(asyncio.to_thread(reader.fetch, queue, i, max_count=1, durable=False) for i in range(20))
        )
    assert [r.next_offset for r in results] == list(range(1, 21))


FORKS = """
import os, sys
from penstock.client.reader import LogReader

registry, topic = sys.argv[1:]
reader = LogReader(registry)
queue = reader.queues(topic)[0]
assert reader.fetch(queue, 0, durable=False, max_count=1, until=2).next_offset == 1  # and the next is asked for ahead
ports = lambda: {line._socket.getsockname() for line in reader._lines.values()}
parents = ports()
child = os.fork()
if not child:
    assert reader.fetch(queue, 1, durable=False).next_offset == 2
    os._exit(not ports() or not parents.isdisjoint(ports()))
assert os.waitpid(child, 0)[1] == 0
assert reader.fetch(queue, 1, durable=False).next_offset == 2
reader.close()
print("whole")
"""


def test_a_child_process_reads_by_connections_of_its_own(registry: str, fresh: Fresh) -> None:
    queue = fill(registry, fresh("forked"), 2)
    arguments = [sys.executable, "-c", FORKS, registry, queue.topic]
    told = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert (told.stdout, told.returncode) == ("whole\n", 0), told.stderr


def test_name_servers_that_say_nothing_share_the_time_of_a_call() -> None:
    """Each had all of it, though every call is said to end within it."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        registry = ";".join(f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other))
        with LogReader(registry, timeout_s=0.6) as reader, pytest.raises(TimedOut) as told:
            reader.queues("T")
        assert float(str(told.value).split()[-2]) < 0.6
