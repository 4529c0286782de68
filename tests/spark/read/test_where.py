"""The option `where`: a broker, its files, and the log in bulk select the same rows, for any expression."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from peers.expressions import Maker
from penstock import Admin, Message, Producer
from penstock.client.reader import LogReader
from penstock.client.routes import MessageQueue
from penstock.errors import Refused
from penstock.spark.log.source import LogSource
from penstock.spark.read.source import Source
from penstock.testing import Broker
from penstock.wire.sql92 import compile_selector

COUNT = 3_000
OFFSETS = StructType([StructField("offset", LongType())])

Stored = list[dict[str, str]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with Broker(tmp_path_factory.mktemp("store")) as broker:
        yield broker


@pytest.fixture(scope="module")
def stored(broker: Broker) -> Stored:
    """The properties of the messages of one queue, by offset; among messages of another topic."""
    maker, made = Maker(5), []
    with Admin(broker.registry) as admin, Producer(broker.registry) as producer:
        for topic in ("chosen", "other"):
            admin.create_topic(topic, 1)
        for at in range(0, COUNT, 100):
            batch = []
            for _ in range(100):
                properties = {name: value for name, value in maker.properties().items() if value}
                made.append(properties)
                tag = properties.get("TAGS")
                rest = {name: value for name, value in properties.items() if name != "TAGS"}
                batch.append(Message("chosen", b"%d" % at, tags=tag, properties=rest))
            producer.send_batch(batch)
            producer.send_batch([Message("other", b"x", tags="abc") for _ in range(3)])
    with LogReader(broker.registry) as reader:
        deadline = time.monotonic() + 60
        while reader.offsets(MessageQueue("chosen", "broker-a", 0))[1] < COUNT:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    return made


def offsets(reader: Any) -> list[int]:
    return [
        n for part in reader.partitions() for batch in reader.read(part) for n in batch.column("offset").to_pylist()
    ]


def test_every_way_of_reading_selects_the_same(broker: Broker, stored: Stored, tmp_path: Path) -> None:
    folder, maker, tried, found = str(broker.folder), Maker(6), 0, 0
    for part in ("commitlog", "consumequeue"):  # without the checkpoint, which is behind
        shutil.copytree(broker.folder / part, tmp_path / part)
    given = {"registry": broker.registry, "subscribe": "chosen", "pushdown": "false"}
    while tried < 25:
        where = maker.expression(2)
        try:
            selector = compile_selector(where)
        except Refused:
            continue
        tried += 1
        expected = [offset for offset, properties in enumerate(stored) if selector.matches(properties)]
        found += 0 < len(expected) < COUNT
        assert offsets(Source({**given, "where": where, "store": "none"}).reader(OFFSETS)) == expected, where
        assert offsets(Source({**given, "where": where, "store": folder}).reader(OFFSETS)) == expected, where
        for queues in ("true", "false"):
            bulk = LogSource({"path": str(tmp_path), "topics": "chosen", "where": where, "useConsumeQueue": queues})
            assert offsets(bulk.reader(OFFSETS)) == expected, where
    assert found > 10


def test_tags_and_an_expression_are_both_asked_for(broker: Broker, stored: Stored) -> None:
    expected = [n for n, p in enumerate(stored) if p.get("TAGS") == "abc" and p.get("a") == "1"]
    assert expected
    for store in ("none", str(broker.folder)):
        given = {"registry": broker.registry, "subscribe": "chosen", "where": "a = '1'", "tags": "abc", "store": store}
        assert offsets(Source(given).reader(OFFSETS)) == expected
