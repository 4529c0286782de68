"""LogLanes: where the channels of a log topic read, also queues that the topic is given later."""

from __future__ import annotations

from pathlib import Path

from broker.queueside import Reader, Side
from penstock.broker.nsq.holding import Holding
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.loglanes import LogLanes


def test_lanes_remember_what_was_finished_and_end_where_the_topic_is_held(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=({"name": "*", "kind": "log", "queues": 1},))
    topic = side.queueing.topic(b"t")
    assert isinstance(topic, LogChannels)
    for _ in range(5):
        side.queueing.publish(topic, [b"m"])
    side.turn(1)
    holding = Holding()
    lanes = LogLanes(topic.stored, side.broker, side.queueing.folder, holding)
    holding.hold([3])
    first = lanes.of_queue(b"apart", 0, 1)
    assert (first.head, first.stream.end(), first.depth()) == (1, 3, 2)
    first.file.commit(2)
    assert lanes.of_queue(b"apart", 0, 0).head == 2  # where its file says
    holding.release()
    lanes.forget(b"apart")
    again = lanes.of_queue(b"apart", 0, 0)
    assert (again.head, again.stream.end()) == (0, 5)
    lanes.forget(b"apart")
    side.close()


def test_channels_read_queues_that_come_later_from_their_beginning(tmp_path: Path) -> None:
    side = Side(tmp_path, topic=({"name": "*", "kind": "log", "queues": 1},))
    topic = side.queueing.topic(b"t")
    early, reader = topic.channel(b"early"), Reader()
    other = topic.channel(b"other")
    side.queueing.publish(topic, [b"held"])
    side.queueing.publish(topic, [b"again"])
    reader.ready_count = 50
    early.add(reader)
    side.queueing.mark_channel(early)
    side.turn(1)
    first = {d.body: d for d in reader.deliveries()}
    assert set(first) == {b"held", b"again"}
    early.requeue(reader, first[b"again"].id, 1_000, side.broker.mono_ms)
    for _ in range(3):
        side.turn(1_000)  # it comes again, out of the channel's own queue
    assert [d.body for d in reader.deliveries()] == [b"again"]
    stored = side.broker.topics.by_name[b"t"]
    side.broker.topics.create(b"t", 4, 4, more=stored.settings().more, now_ms=side.broker.now_ms)
    for n in range(8):
        side.queueing.publish(topic, [b"%d" % n])
        side.turn(1)
    for _ in range(3):
        side.turn(1_000)
    got = list(reader.deliveries())
    assert sorted(d.body for d in got) == [b"%d" % n for n in range(8)] + [b"again"]  # that one was in hand
    for delivery in (first[b"held"], *got):
        assert early.finish(reader, delivery.id, side.broker.now_ns, side.broker.mono_ms) == 0
    side.turn(1_000)
    assert (early.depth(), early.in_flight_count, other.depth()) == (0, 0, 10)
    for clean in (False, True):
        early.remove(reader)
        side.broker.save_tables()
        side.reopen(clean)
        early = side.queueing.topic(b"t").channels[b"early"]
        assert (early.depth(), side.queueing.topic(b"t").channels[b"other"].depth()) == (0, 10)
        reader = Reader()
        early.add(reader)
    side.close()
