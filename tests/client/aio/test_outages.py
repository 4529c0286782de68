"""What clients do and say while their broker is away, and what they leave behind when they are told to stop."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from client.conftest import SRC, Cluster
from fronts.raw_peer import RawPeer
from penstock import Message, Producer, PushConsumer
from penstock.client.aio.outages import Outages
from penstock.client.reader import LogReader
from penstock.client.routes import MessageQueue
from penstock.errors import BrokerRefused, NotConnected
from polling import eventually

CONSUMER = """
    import signal, sys, threading
    import penstock
    from penstock.client.portal import portal

    def to_the_loop():  # as the kernel may choose, where the process is stopped when the signal comes
        if sys.stdin.readline():
            signal.pthread_kill(portal()._thread.ident, signal.SIGTERM)

    threading.Thread(target=to_the_loop, daemon=True).start()
    with penstock.PushConsumer("stopped", sys.argv[1], start="first") as consumer:
        consumer.subscribe("to-stop")
        for delivery in consumer:
            delivery.ack()
            print(delivery.body.decode(), flush=True)
"""


@pytest.mark.parametrize("how", ["at once", "a moment later", "to another thread"])
def test_sigterm_commits_what_was_acknowledged(cluster: Cluster, how: str) -> None:
    topic = "to-stop"
    with Producer(cluster.registry) as producer:
        for n in range(8):
            producer.send(Message(topic, f"{how} {n}".encode()))
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CONSUMER), cluster.registry],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SRC)},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        found = [process.stdout.readline().strip() for _ in range(8)]
        if how != "at once":
            with LogReader(cluster.registry) as watcher:  # all is committed before it is told to stop
                queues = watcher.queues(topic)
                eventually(lambda: all(
                    (watcher.committed("stopped", queue) or 0) == watcher.offsets(queue, durable=False)[1] for queue in queues
                ))  # fmt: skip
        if how == "to another thread":
            process.stdin.write("\n")
            process.stdin.flush()
        else:
            process.send_signal(signal.SIGTERM)
        try:
            assert process.wait(20) == -signal.SIGTERM  # as if nobody had listened to it
        finally:
            process.kill()
    assert sorted(found) == sorted(f"{how} {n}" for n in range(8))
    reader = LogReader(cluster.registry)
    try:
        for queue in reader.queues(topic):
            end = reader.offsets(queue, durable=False)[1]
            assert (reader.committed("stopped", queue) or 0) == end, queue
    finally:
        reader.close()


def test_one_line_for_an_outage_and_one_for_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.client")
    outages = Outages()
    for n in range(50):
        outages.failed("broker a", "a pull", NotConnected(f"no {n}"))
    outages.answered("broker b")
    outages.answered("broker a")
    outages.answered("broker a")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert lines[0] == "broker a is away, tried again until it is back: a pull: no 0"
    assert lines[1].startswith("broker a is back after")
    assert "50 failures" in lines[1]


def test_a_broker_that_is_away_costs_few_lines_and_few_tries(
    own_cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "penstock.client")
    with Producer(own_cluster.registry) as producer:
        for n in range(16):
            producer.send(Message("outage", b"%d" % n))
    seen: list[bytes] = []
    enough = threading.Event()

    def listener(message: object) -> None:
        seen.append(message.body)  # type: ignore[attr-defined]
        if len(seen) >= 16:
            enough.set()

    with PushConsumer("g", own_cluster.registry, start="first", listener=listener) as consumer:
        consumer.subscribe("outage")
        assert enough.wait(20)
        own_cluster.stop(signal.SIGKILL)
        time.sleep(5)
        lines = [r.getMessage() for r in caplog.records if r.name == "penstock.client" and r.levelno >= logging.WARNING]
        assert 1 <= len(lines) <= 3, lines  # the broker and the registry, which are one process here
        own_cluster.start()
        with Producer(own_cluster.registry) as producer:
            producer.send(Message("outage", b"afterwards"))
        eventually(lambda: b"afterwards" in seen)


def test_what_was_certainly_not_stored_is_sent_until_the_time_is_over(own_cluster: Cluster) -> None:
    with Producer(own_cluster.registry, send_timeout_s=120, retries=1) as producer:
        producer.send(Message("patient", b"before"))
        own_cluster.stop(signal.SIGKILL)
        done: list[object] = []

        def send() -> None:
            done.append(producer.send(Message("patient", b"while it was away")))

        thread = threading.Thread(target=send)
        thread.start()
        time.sleep(2)  # many times what two tries take
        own_cluster.start()
        thread.join(150)
        assert len(done) == 1
    reader = LogReader(own_cluster.registry)
    try:
        ends = sum(reader.offsets(queue, durable=False)[1] for queue in reader.queues("patient"))
    finally:
        reader.close()
    assert ends == 2


@pytest.mark.parametrize("idempotent", [False, True])
def test_an_illegal_name_is_not_worth_another_try(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, idempotent: bool
) -> None:
    caplog.set_level(logging.INFO, logger="penstock")
    with Producer(cluster.registry, idempotent=idempotent) as producer, pytest.raises(BrokerRefused) as refused:
        producer.send(Message("no good name", b"x"))
    assert not refused.value.retryable
    assert "illegal characters" not in caplog.text  # of a try that was made once more
    assert BrokerRefused(1, "[TIMEOUT] broker busy").retryable
    assert BrokerRefused(14, "service not available now").retryable


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_topic_that_nobody_may_write_to_is_not_worth_another_try(
    cluster: Cluster, fresh: Callable[[str], str], caplog: pytest.LogCaptureFixture, idempotent: bool
) -> None:
    caplog.set_level(logging.INFO, logger="penstock")
    topic = fresh("closed")
    with Producer(cluster.registry, send_timeout_s=300, idempotent=idempotent) as producer:
        producer.send(Message(topic, b"x"))
        with RawPeer(cluster.broker) as peer:
            fields = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 4}
            assert peer.ask(17, {**fields, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}).code == 0
        with pytest.raises(BrokerRefused) as refused:
            producer.send(Message(topic, b"y"))
        assert refused.value.code == 16
        with pytest.raises(BrokerRefused):
            producer.send_batch([Message(topic, b"y"), Message(topic, b"z")], queue=MessageQueue(topic, "broker-a", 0))
    tries = [record for record in caplog.records if "attempt" in record.getMessage()]
    assert len(tries) <= 4


def test_the_handler_of_a_program_is_left_alone(cluster: Cluster, tmp_path: Path) -> None:
    program = """
        import signal, sys
        import penstock
        def mine(number, frame):
            print("mine", flush=True)
            sys.exit(3)
        signal.signal(signal.SIGTERM, mine)
        with penstock.PushConsumer("other", sys.argv[1]) as consumer:
            consumer.subscribe("to-stop-otherwise")
            print("ready", flush=True)
            signal.pause()
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), cluster.registry],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SRC)},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 3
        assert process.stdout.readline() == "mine\n"
