"""Dead letters of channels: a copy elsewhere, then the original is done."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Quick, Reader, Side
from penstock.broker.nsq.deadletters import DeadLetters
from penstock.broker.retry import dead_letter_name
from penstock.errors import DiskFull
from penstock.wire.record import decode_record
from penstock.words import DONE, NOT_IN_FLIGHT

RULES = ({"name": "log*", "kind": "log", "queues": 1},)


def delivered(side: Side, name: bytes) -> tuple[object, Reader, int]:
    topic = side.queueing.topic(name)
    channel, reader = topic.channel(b"c"), Reader()
    reader.ready_count = 10
    channel.add(reader)
    side.queueing.publish(topic, [b"bad"])
    side.turn()
    (delivery,) = reader.deliveries()
    return channel, reader, delivery.id


@pytest.mark.parametrize("level", ["memory", "os", "disk"])
def test_a_rejected_message_lies_in_the_dead_letter_topic(tmp_path: Path, level: str) -> None:
    side = Side(tmp_path, level=level)
    assert isinstance(side.queueing.dead_letters, DeadLetters)
    channel, reader, id_ = delivered(side, b"t")
    assert channel.reject(reader, id_) == DONE  # type: ignore[attr-defined]
    side.turn(1_000)
    dead = side.queueing.find(dead_letter_name(b"t", b"c"))
    assert dead is not None
    assert (dead.depth(), channel.depth(), channel.buried_count) == (1, 0, 1)  # type: ignore[attr-defined]
    assert channel.leaving == {}  # type: ignore[attr-defined]
    side.close()


def test_of_a_log_topic_they_are_its_groups(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=RULES)
    channel, reader, id_ = delivered(side, b"log-t")
    assert channel.reject(reader, id_) == DONE  # type: ignore[attr-defined]
    dead = side.broker.topics.get(b"%DLQ%c")
    assert dead is not None
    assert sum(queue.max_offset for queue in dead.queues) == 1
    data = side.broker.store.record_at(dead.queues[0].entry(0)[0])
    assert data is not None
    message = decode_record(data, 0)
    assert message is not None
    told = {name: message.properties.get(name) for name in ("DLQ_REASON", "DLQ_GROUP", "DLQ_ATTEMPTS")}
    assert told == {"DLQ_REASON": "rejected", "DLQ_GROUP": "c", "DLQ_ATTEMPTS": "1"}
    assert message.properties["DLQ_TIME"] == str(side.broker.now_ms)
    side.close()


def test_what_cannot_be_stored_now_stays_in_flight(tmp_path: Path) -> None:
    class Full(Quick):
        full = False

        def allocate(self, fd: int, at: int, length: int) -> None:
            if self.full:
                raise DiskFull("no space left")
            super().allocate(fd, at, length)

    files = Full()
    side = Side(tmp_path, files=files)
    channel, reader, id_ = delivered(side, b"t")
    files.full = True
    assert channel.reject(reader, id_) == NOT_IN_FLIGHT  # type: ignore[attr-defined]
    assert channel.in_flight_count == 1  # type: ignore[attr-defined]
    files.full = False
    assert channel.reject(reader, id_) == DONE  # type: ignore[attr-defined]
    side.close()
