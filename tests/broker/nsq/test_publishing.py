"""Publishing: all or none, and a ticket where the answer must wait for a flush."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Quick, Reader, Side
from penstock.broker.nsq import publishing as publishing_module
from penstock.broker.nsq.publishing import Publishing
from penstock.errors import DiskFull, LimitReached, Refused, StoreError

RULES = ({"name": "log*", "kind": "log", "queues": 1},)


def bodies(side: Side, topic: bytes) -> list[bytes]:
    reader = Reader()
    reader.ready_count = 1_000
    channel = side.queueing.topic(topic).channel(b"c")
    channel.add(reader)
    side.queueing.mark_channel(channel)
    side.turn()
    return [delivery.body for delivery in reader.deliveries()]


@pytest.mark.parametrize(("name", "level"), [(b"t", "memory"), (b"t", "os"), (b"t", "disk"), (b"log-t", "os")])
def test_what_is_published_comes_in_order(tmp_path: Path, name: bytes, level: str) -> None:
    side = Side(tmp_path, level=level, topic=RULES)
    publishing: Publishing = side.queueing.publishing
    topic = side.queueing.topic(name)
    ticket = publishing.publish(topic, [b"a", b"b"])
    assert (ticket is not None) == (level == "disk")
    publishing.publish(topic, [b"c"])
    assert bodies(side, name) == [b"a", b"b", b"c"]
    side.close()


def test_a_deferred_message_comes_when_it_is_due(tmp_path: Path) -> None:
    side = Side(tmp_path)
    topic = side.queueing.topic(b"t")
    side.queueing.publish(topic, [b"later"], 5_000)
    side.queueing.publish(topic, [b"now"])
    assert bodies(side, b"t") == [b"now"]
    side.turn(5_000)
    side.turn(100)
    assert topic.message_count == 2
    side.close()


@pytest.mark.parametrize("name", [b"t", b"log-t"])
def test_of_messages_deferred_together_all_have_room_or_none(
    tmp_path: Path, name: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing_module, "DEFER_AT_ONCE_MAX", 4)
    side = Side(tmp_path, topic=RULES, max_delayed_messages=5)
    topic = side.queueing.topic(name)
    with pytest.raises(Refused, match="at most 4 messages") as refused:
        side.queueing.publish(topic, [b"x"] * 5, 5_000)
    assert (refused.value.nsq, refused.value.http) == ("E_PUB_FAILED", 413)
    side.queueing.publish(topic, [b"x"] * 3, 5_000)
    side.turn()
    with pytest.raises(LimitReached, match="no more than 5"):
        side.queueing.publish(topic, [b"x"] * 3, 5_000)
    side.turn()
    assert len(side.broker.schedule) == 3
    side.queueing.publish(topic, [b"x"] * 2, 5_000)
    side.turn()
    assert len(side.broker.schedule) == 5
    side.close()


def test_no_room_is_refused_and_nothing_is_half_there(tmp_path: Path) -> None:
    class Full(Quick):
        full = False

        def allocate(self, fd: int, at: int, length: int) -> None:
            if self.full:
                raise DiskFull("no space left")
            super().allocate(fd, at, length)

    files = Full()
    side = Side(tmp_path, files=files)
    topic = side.queueing.topic(b"t")
    side.queueing.publish(topic, [b"before"])
    files.full = True
    with pytest.raises(Refused, match="disk is full") as refused:
        for _ in range(10):
            side.queueing.publish(topic, [b"x" * 10_000] * 3)
    assert refused.value.nsq == "E_PUB_FAILED"
    stored = topic.message_count
    assert stored % 3 == 1
    files.full = False
    side.queueing.publish(topic, [b"after"])
    assert topic.message_count == stored + 1
    side.close()


def test_after_a_failed_flush_only_memory_takes_messages(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=({"name": "mem*", "kind": "queue", "level": "memory"},))
    stored, memory = side.queueing.topic(b"t"), side.queueing.topic(b"mem")
    side.queueing.flush.fail(StoreError("a flush failed"))
    with pytest.raises(Refused, match="restart the broker"):
        side.queueing.publish(stored, [b"x"])
    assert side.queueing.publish(memory, [b"x"]) is None
    side.broker.close(False)
