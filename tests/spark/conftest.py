"""One broker and one Spark session for all tests of this folder; topics have names of their own."""

from __future__ import annotations

import asyncio
import os
import time
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Publish = Callable[..., str]


@pytest.fixture(scope="session")
def registry() -> Iterator[str]:
    """A running registry and broker; the registry's address."""
    from penstock.demo.command import broker

    with broker() as address:
        yield address


@pytest.fixture(scope="session")
def publish(registry: str) -> Publish:
    """`publish(topic, count, queues=4)`: n to queue n % queues, tag even or odd, key k<n>; waits until durable."""
    from penstock.client.aio.producer import Producer
    from penstock.client.reader import LogReader
    from penstock.message import Message

    async def send(topic: str, count: int, queues: int, first: int, size: int) -> None:
        async with Producer(registry) as producer:
            for queue in (await producer.queues(topic))[:queues]:
                numbers = range(first + queue.queue_id, first + count, queues)
                for at in range(0, len(numbers), 200):
                    messages = [
                        Message(topic, (b"%d" % n).ljust(size, b"."), keys=(f"k{n}",), tags="odd" if n % 2 else "even")
                        for n in numbers[at : at + 200]
                    ]
                    await producer.send_batch(messages, queue=queue)

    owners: dict[str, str] = {}

    def publish(topic: str, count: int, queues: int = 4, first: int = 0, size: int = 10) -> str:
        test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
        with LogReader(registry) as reader:
            before = 0
            if topic in reader.topics():
                before = sum(reader.offsets(queue, durable=False)[1] for queue in reader.queues(topic))
                owner = owners.get(topic, "something else") if before else test
                assert owner == test, f"{topic} has messages of {owner}: the log is the session's, take another name"
            asyncio.run(send(topic, count, queues, first, size))
            deadline = time.monotonic() + 60
            while sum(reader.offsets(queue)[1] for queue in reader.queues(topic)) < before + count:
                assert time.monotonic() < deadline, "not durable within 20 s"
                time.sleep(0.02)
        owners[topic] = test
        return topic

    return publish


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A quick local session, started the way users start it."""
    from penstock.errors import ConfigError
    from penstock.spark import session
    from penstock.spark.tools import java

    try:
        java.find()
    except ConfigError as error:
        pytest.skip(str(error))
    # PySpark's own sockets and pandas notices are not ours to fail on.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("tables")),
        }
        started = session("tests", master="local[2, 2]", quick=True, config=config)
        yield started
        started.stop()


@pytest.fixture
def child_environment(registry: str) -> dict[str, str]:
    """For a child process that is to be killed."""
    from pathlib import Path

    root = str(Path(__file__).parents[2] / "src")
    return {**os.environ, "PYTHONPATH": root, "PENSTOCK_REGISTRY": registry}
