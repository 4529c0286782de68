"""What says that something is over reaches the disk behind it: each pair, with one side's flushes held back.

After a power cut all that was acknowledged more than a second before is there; after kill -9 nothing finished comes again.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from broker.cutside import LOG, QUEUES, CutSide

SEEDS = range(4)
LEVELS = ["os", "disk", "log"]


def side(folder: Path, seed: int, patch: pytest.MonkeyPatch, level: str, **settings: object) -> CutSide:
    topic = ({"name": "t", "kind": "log", "queues": 2},) if level == "log" else ()
    made = CutSide(folder, seed, patch, level="os" if level == "log" else level, topic=topic, **settings)
    for name in (b"a", b"b"):
        made.queueing.topic(b"t").channel(name)
    made.settle()
    return made


def publish(side: CutSide, bodies: list[bytes], delay_ms: int = 0, topic: bytes = b"t") -> None:
    side.queueing.publish(side.queueing.topic(topic), bodies, delay_ms)
    side.turn()


def drained(side: CutSide, channel: bytes, topic: bytes = b"t", seconds: int = 8) -> list[bytes]:
    """What a channel gives, everything finished at once."""
    reader = side.reader(topic, channel)
    found = []
    for _ in range(seconds * 4):
        for message in reader.deliveries():
            found.append(message.body)
            side.finish(topic, channel, reader, message.id)
        side.turn(250)
    side.queueing.topic(topic).channel(channel).remove(reader)
    return found


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", ["os", "disk"])
@pytest.mark.parametrize("held", [None, QUEUES, LOG])
def test_due_messages_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, level: str, held: str | None
) -> None:
    here = side(tmp_path, seed, monkeypatch, level)
    bodies = [b"%d " % n + bytes(100) for n in range(200)]
    for body in bodies:
        publish(here, [body], 10_000)
    here.settle()
    here.turn(6_500)
    if held is not None:
        here.held = {held}
    for _ in range(8):
        here.turn(100)
        publish(here, [b"other traffic"], topic=b"log" if seed % 2 else b"u")
        if held is None:
            here.broker.store.want_flush()
    here.cut()
    for channel in (b"a", b"b"):
        assert set(drained(here, channel)) == set(bodies)
    here.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("held", [QUEUES, LOG])
def test_given_back_with_a_delay_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, level: str, held: str
) -> None:
    here = side(tmp_path, seed, monkeypatch, level)
    bodies = [b"%d" % n for n in range(50)]
    publish(here, bodies)
    here.settle()
    reader = here.reader(b"t", b"a")
    flying = list(reader.deliveries())
    assert len(flying) == 50
    here.held = {held}
    channel = here.queueing.topic(b"t").channel(b"a")
    for message in flying:
        assert channel.requeue(reader, message.id, 3_000, here.broker.mono_ms) == 0
    here.queueing.mark_channel(channel)
    for _ in range(6):
        here.turn(150)
    here.cut()
    assert set(drained(here, b"a")) == set(bodies)
    assert set(drained(here, b"b")) == set(bodies)
    here.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", LEVELS)
def test_deferred_again_and_due_survives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, level: str
) -> None:
    here = side(tmp_path, seed, monkeypatch, level)
    publish(here, [b"x"])
    here.settle()
    for round_ in range(3):
        reader = here.reader(b"t", b"a")
        channel = here.queueing.topic(b"t").channel(b"a")
        (message,) = reader.deliveries()
        assert channel.requeue(reader, message.id, 1_000, here.broker.mono_ms) == 0
        here.queueing.mark_channel(channel)
        channel.remove(reader)
        here.settle(1)
        here.held = {QUEUES}
        here.turn(1_000)  # due: copied into the queue
        for _ in range(3):
            here.broker.store.want_flush()
            here.turn(200)
        if round_ == seed % 3:
            here.cut()
        else:
            here.release()
            here.settle(1)
    assert drained(here, b"a") == [b"x"]
    here.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", LEVELS)
def test_dead_letters_survive_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, level: str
) -> None:
    here = side(tmp_path, seed, monkeypatch, level)
    bodies = [b"%d" % n for n in range(50)]
    publish(here, bodies)
    here.settle()
    reader = here.reader(b"t", b"a")
    flying = list(reader.deliveries())
    here.held = {LOG, QUEUES}
    channel = here.queueing.topic(b"t").channel(b"a")
    for message in flying:
        assert channel.reject(reader, message.id) == 0
    here.queueing.mark_channel(channel)
    for _ in range(4):
        here.turn(200)
    here.cut()
    dead = drained(here, b"d", b"t.a.dead") if here.queueing.find(b"t.a.dead") else []
    assert set(drained(here, b"a")) | set(dead) == set(bodies)
    here.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", ["os", "disk"])
def test_what_another_channel_finished_long_ago_does_not_come_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, level: str
) -> None:
    """The copy of what one channel gave back stands in the queue of both."""
    here = side(tmp_path, seed, monkeypatch, level)
    bodies = [b"%d" % n for n in range(20)]
    publish(here, bodies)
    reader = here.reader(b"t", b"a")
    channel = here.queueing.topic(b"t").channel(b"a")
    flying = list(reader.deliveries())
    assert set(drained(here, b"b", seconds=1)) == set(bodies)
    for message in flying:
        assert channel.requeue(reader, message.id, 2_000, here.broker.mono_ms) == 0
    here.queueing.mark_channel(channel)
    channel.remove(reader)
    here.settle(1)
    here.held = {QUEUES}
    for _ in range(4):
        here.turn(400)
    here.cut()
    assert drained(here, b"b") == []
    assert sorted(drained(here, b"a")) == sorted(bodies)
    here.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_channel_made_in_the_lost_second_is_owed_what_comes_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    here = side(tmp_path, seed, monkeypatch, "os")
    here.held = {LOG}
    for _ in range(20):
        publish(here, [bytes(500)], 60_000)
    here.queueing.topic(b"t").channel(b"late")
    here.turn(10)
    here.cut()
    publish(here, [b"after"], 1_000)
    assert b"after" in drained(here, b"late")
    here.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_s_offset_is_not_ahead_of_what_it_gave_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    here = CutSide(tmp_path, seed, monkeypatch)
    topic = here.broker.topic_to_write(b"orders")
    placed = here.broker.put(topic, 0, b"order", {}, born_host=here.broker.store_host, born_ms=here.broker.now_ms)
    here.settle(6)
    here.held = {LOG}
    assert here.broker.send_back(placed.physical, "g", 3, None, "") is not None
    here.broker.offsets.commit("g", "orders", 0, placed.queue_offset + 1)
    for _ in range(7):
        here.turn(1_000)
    here.cut()
    offset = here.broker.offsets.get("g", "orders", 0) or 0
    given_back = len(here.broker.schedule)
    assert offset <= placed.queue_offset or given_back == 1
    assert offset == 0, "only after the flush"
    here.close()


def test_a_group_s_offset_is_saved_behind_the_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = CutSide(tmp_path, 0, monkeypatch)
    topic = here.broker.topic_to_write(b"orders")
    here.broker.put(topic, 0, b"order", {}, born_host=here.broker.store_host, born_ms=here.broker.now_ms)
    here.broker.offsets.commit("g", "orders", 0, 1)
    here.settle(6)
    here.cut()
    assert here.broker.offsets.get("g", "orders", 0) == 1
    here.close()


# -- kill -9 -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("held", [QUEUES, LOG])
def test_a_kill_repeats_nothing_that_was_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str, finished: bool, held: str
) -> None:
    """Copied into the queue or out of it, nothing flushed yet, more behind the copies, then the kill."""
    here = side(tmp_path, 0, monkeypatch, level)
    bodies = [b"%d" % n for n in range(40)]
    publish(here, bodies)
    reader = here.reader(b"t", b"a")
    channel = here.queueing.topic(b"t").channel(b"a")
    here.held = {held}
    for message in list(reader.deliveries()):
        assert channel.requeue(reader, message.id, 1_000, here.broker.mono_ms) == 0
    here.queueing.mark_channel(channel)
    channel.remove(reader)
    here.turn(500)
    for _ in range(3):
        here.turn(300)
        publish(here, [b"behind"])
    assert len(here.queueing.moving) > 0
    came: list[bytes] = []
    if finished and level != "disk":  # there they are not to be seen before they are flushed
        came += drained(here, b"a", seconds=1)
        assert len(came) == (43 if held == QUEUES else 3)  # no copy before the entry is durable
    here.kill()
    assert sorted(came + drained(here, b"a")) == sorted([*bodies, b"behind", b"behind", b"behind"])
    assert sorted(drained(here, b"b")) == sorted([*bodies, b"behind", b"behind", b"behind"])
    assert here.queueing.topic(b"t").channel(b"a").deferred_count == 0
    here.settle()
    assert len(here.broker.schedule) == 0
    here.kill()
    assert drained(here, b"a") == drained(here, b"b") == []
    here.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("level", ["os", "disk"])
def test_finished_copies_whose_segment_is_full_do_not_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: bool, level: str
) -> None:
    here = side(tmp_path, 0, monkeypatch, level, queue_segment_bytes=4096)
    bodies = [b"%d " % n + bytes(300) for n in range(60)]
    for body in bodies:
        publish(here, [body], 1_000)
    here.settle(0)
    if not clean:
        here.held = {QUEUES}
    here.turn(1_100)
    if level == "os":
        assert sorted(drained(here, b"a", seconds=1)) == sorted(drained(here, b"b", seconds=1)) == sorted(bodies)
    if clean:
        here.broker.close(True)
        here.open()
        here.turn()
    else:
        here.kill()
    assert sorted(drained(here, b"a")) == ([] if level == "os" else sorted(bodies))
    here.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_a_killed_process_wrote_is_flushed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    here = side(tmp_path, seed, monkeypatch, "os", queue_segment_bytes=4096)
    here.held = {QUEUES}
    bodies = [b"%d " % n + bytes(300) for n in range(60)]
    publish(here, bodies[:1])
    for body in bodies[1:]:
        publish(here, [body])
    here.kill()
    here.cut()
    assert drained(here, b"a") == drained(here, b"b") == bodies
    here.close()


def test_the_promised_second_counts_while_a_flush_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = side(tmp_path, 0, monkeypatch, "os")
    publish(here, [b"x"])
    here.turn(500)
    here.held = {QUEUES}
    publish(here, [b"y"])
    here.turn(600)  # begun, and takes long
    assert len(here.waiting) == 1
    here.turn(500)
    assert here.queueing.flush.blocked()
    here.release()
    here.turn()
    assert not here.queueing.flush.blocked()
    here.close()


@pytest.mark.parametrize("level", LEVELS)
def test_a_clean_stop_leaves_nothing_half_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    here = side(tmp_path, 0, monkeypatch, level)
    publish(here, [b"%d" % n for n in range(20)])
    reader = here.reader(b"t", b"a")
    channel = here.queueing.topic(b"t").channel(b"a")
    flying = list(reader.deliveries())
    here.held = {QUEUES, LOG}
    for number, message in enumerate(flying):
        assert channel.requeue(reader, message.id, 100 if number % 2 else 60_000, here.broker.mono_ms) == 0
    here.queueing.mark_channel(channel)
    channel.remove(reader)
    here.turn(150)
    assert len(here.queueing.moving)
    here.waiting.clear()
    here.broker.close(True)
    here.held.clear()
    here.open()
    here.turn()
    assert here.queueing.topic(b"t").channel(b"a").depth() == 10
    assert here.queueing.topic(b"t").channel(b"a").deferred_count == 10
    assert len(drained(here, b"a", seconds=70)) == 20
    here.close()


def test_a_deferred_publish_at_disk_waits_for_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions look at the number of the last flush; nobody is called back."""
    here = side(tmp_path, 0, monkeypatch, "disk")
    here.held = {LOG}
    here.queueing.publish(here.queueing.topic(b"t"), [b"x"], 60_000)
    number = here.queueing.want_flush(here.queueing.topic(b"t"))
    for _ in range(4):
        here.turn(200)
    assert here.queueing.flush_done < number
    here.release()
    here.turn()
    assert here.queueing.flush_done >= number
    here.close()


def test_the_promised_second_counts_for_the_log_of_deferred_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = side(tmp_path, 0, monkeypatch, "os")
    here.held = {LOG}
    publish(here, [b"x"], 60_000)
    here.turn(900)
    assert not here.queueing.flush.blocked()
    here.turn(300)
    assert here.queueing.flush.blocked()
    here.release()
    here.turn()
    assert not here.queueing.flush.blocked()
    here.close()


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", LEVELS)
def test_given_back_again_and_again_it_comes_once_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, level: str
) -> None:
    """Each copy is given back before the entry that it came from is over; then one more start before all is told."""
    here = side(tmp_path, seed, monkeypatch, level)
    bodies = [b"%d" % n for n in range(10)]
    publish(here, bodies)
    channel = here.queueing.topic(b"t").channel(b"a")
    reader = here.reader(b"t", b"a")
    if level != "disk":
        here.settle(1)
        here.held = {QUEUES}
    for _ in range(3):
        for message in list(reader.deliveries()):
            assert channel.requeue(reader, message.id, 100, here.broker.mono_ms) == 0
        here.queueing.mark_channel(channel)
        for _ in range(3):
            here.broker.store.want_flush()
            here.turn(100)
    channel.remove(reader)
    here.cut()
    if seed % 2:
        here.kill()
    came = drained(here, b"a")
    assert sorted(came) == sorted(bodies)
    here.cut()
    assert drained(here, b"a") == []
    here.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_finished_and_lost_is_not_taken_off_what_is_owed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The cursor reached the disk before the messages it speaks of: they are gone, and no record of the channel."""
    here = side(tmp_path, seed, monkeypatch, "os")
    publish(here, [b"owed %d" % n for n in range(10)])
    here.settle()
    reader = here.reader(b"t", b"a")
    assert len(list(reader.deliveries())) == 10
    here.held = {QUEUES}
    publish(here, [b"lost %d" % n for n in range(300)])
    for n, message in enumerate(list(reader.deliveries())):
        if n % 7 != 6:
            here.finish(b"t", b"a", reader, message.id)
    here.queueing.topic(b"t").channel(b"a").source.lanes[0].file.datasync()
    here.cut()
    topic = here.queueing.topic(b"t")
    channel = topic.channel(b"a")
    owed = channel.depth()
    assert owed >= 10
    publish(here, [b"new %d" % n for n in range(5)])
    assert channel.depth() == owed + 5
    got = drained(here, b"a")
    assert len(got) == owed + 5 - channel.source.damaged  # some of the lost ones left their sums
    assert set(got) >= {b"owed %d" % n for n in range(10)} | {b"new %d" % n for n in range(5)}
    assert channel.depth() == 0
    publish(here, [b"newer"])
    assert channel.depth() == 1
    here.close()


@pytest.mark.parametrize("seed", range(12))
def test_topics_are_as_they_were_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Made, changed, deleted and made again, of both kinds, through cuts and kills one behind the other."""
    here, noise = CutSide(tmp_path, seed, monkeypatch), random.Random(seed)
    logs: dict[bytes, tuple[int, int]] = {}  # name → (queues, permission)
    queues: set[bytes] = set()
    ends: dict[bytes, int] = {}
    for _ in range(4):
        for _ in range(noise.randrange(12)):
            broker, n = here.broker, noise.randrange(6)
            log, queue = b"log%d" % n, b"queue%d" % n
            if noise.random() < 0.5:
                if noise.random() < 0.3 and log in logs:
                    broker.topics.delete(log, 0)
                    del logs[log]
                else:
                    logs[log] = (noise.randrange(1, 5), noise.choice((2, 4, 6)))
                    topic = broker.topics.create(log, logs[log][0], logs[log][0], logs[log][1])
                    broker.put(topic, 0, b"x", {}, born_host=broker.store_host, born_ms=1)
                    ends[log] = topic.queues[0].max_offset
            elif noise.random() < 0.3 and queue in queues:
                here.queueing.delete(here.queueing.topic(queue))
                queues.discard(queue)
            else:
                here.queueing.topic(queue).channel(b"c%d" % noise.randrange(3))
                queues.add(queue)
            here.turn()
            here.broker.save_tables()  # here the answer goes out
            if noise.random() < 0.1:
                here.turn(11_000)  # long enough for the tables to be written whole
        here.settle()
        if noise.random() < 0.5:
            here.cut()
        else:
            here.kill()
        found = here.broker.topics.by_name
        assert {name: (found[name].write_queues, found[name].perm) for name in found if name.startswith(b"log")} == logs
        assert {name for name in here.queueing.topics if name.startswith(b"queue")} == queues
        assert all(found[name].queues[0].max_offset >= ends[name] for name in logs)
    here.close()


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("level", ["os", "disk"])
def test_a_topic_made_for_a_message_is_as_durable_as_the_message(
    tmp_path: Path, seed: int, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = CutSide(tmp_path, seed, monkeypatch, level=level)
    here.queueing.topic(b"first")
    here.settle()
    flushes = here.files.flushes
    here.queueing.publish(here.queueing.topic(b"t", hasty=True), [b"one"])
    assert (here.files.flushes == flushes) == (level == "os")  # nobody waited for a flush of the table
    if seed % 3 == 0:
        here.kill()
        assert drained_of(here) == [b"one"]
    elif seed % 3 == 1:
        here.settle(1)
        here.cut()
        assert drained_of(here) == [b"one"]
    else:  # within what a power cut may take at level `os`
        here.cut()
        assert b"first" in here.queueing.topics
        here.queueing.publish(here.queueing.topic(b"t", hasty=True), [b"two"])
        assert drained_of(here)[-1] == b"two"
    here.close()


def drained_of(here: CutSide) -> list[bytes]:
    """What a new channel of topic t gets; none when there is no such topic."""
    if b"t" not in here.queueing.topics:
        return []
    reader = here.reader(b"t", b"c")
    here.turn(2_000)
    return [delivery.body for delivery in reader.deliveries()]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("level", ["os", "disk"])
def test_what_a_paused_topic_was_emptied_of_does_not_come_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, level: str
) -> None:
    here = side(tmp_path, seed, monkeypatch, level)
    topic = here.queueing.topic(b"t")
    topic.pause()
    publish(here, [b"%d" % n for n in range(20)])
    here.settle()
    topic.empty()
    here.turn()
    here.settle()
    here.cut()
    here.queueing.topic(b"t").unpause()
    publish(here, [b"later"])
    for channel in (b"a", b"b"):
        assert drained(here, channel) == [b"later"]
    here.close()
