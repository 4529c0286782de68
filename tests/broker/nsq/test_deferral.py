"""REQ with a delay under kill -9: wherever the process ends on the way, the message comes once, on both kinds of topic."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.nsq.test_mirror import Couple, read
from broker.queueside import Delivery, Quick, Reader, Side
from disk.queue_parts import KeepingFiles
from penstock.broker.delayed import Delayed, Wanted
from penstock.broker.nsq.deferral import Deferral
from penstock.broker.nsq.redrive import Wanted as WantedDead
from penstock.clock import FakeClock
from penstock.errors import DiskFull


class Killed(BaseException):
    """The process ends here."""


def subscribe(side: Side, channel: bytes) -> Reader:
    reader = Reader()
    reader.ready_count = 100
    here = side.queueing.topic(b"t").channel(channel)
    here.add(reader)
    side.queueing.mark_channel(here)
    side.turn()
    return reader


def finish(side: Side, channel: bytes, reader: Reader, messages: list[Delivery]) -> None:
    here = side.queueing.topic(b"t").channel(channel)
    for message in messages:
        assert here.finish(reader, message.id, side.broker.now_ns, side.broker.mono_ms) == 0
    side.queueing.mark_channel(here)
    side.turn()


def all_that_comes(side: Side, channel: bytes, seconds: int = 4) -> list[Delivery]:
    """Every delivery to a fresh consumer that finishes what it gets."""
    reader = subscribe(side, channel)
    came: list[Delivery] = []
    for _ in range(seconds * 2):
        messages = list(reader.deliveries())
        came += messages
        finish(side, channel, reader, messages)
        side.turn(500)
    return came


# The steps of the way in their order: (part of the broker, method). See the head of `nsq.deferral`.
STEPS = [
    ("sending", "put_own"),
    ("moving", "leave"),
    ("deferral", "deliver"),
    ("moving", "arrive"),
    ("deferral", "stop_counting"),
    ("sending", "put_over"),
]


@pytest.mark.parametrize("again", [False, True], ids=["once", "twice"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", STEPS, ids=lambda step: ".".join(step))
@pytest.mark.parametrize("kind", ["queue", "log"])
def test_a_kill_on_the_way_neither_loses_nor_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, step: tuple[str, str], after: bool, again: bool
) -> None:
    side = Side(tmp_path, topic=({"name": "t", "kind": kind, "queues": 1},) if kind == "log" else ())
    topic = side.queueing.topic(b"t")
    for name in (b"a", b"b"):
        topic.channel(name)
    side.queueing.publish(topic, [b"one", b"two"])
    side.turn()
    reader = subscribe(side, b"a")
    first, second = reader.deliveries()
    finish(side, b"a", reader, [second])
    if again:  # it was deferred before: it comes from the lane of such messages
        topic.channel(b"a").requeue(reader, first.id, 500, side.broker.mono_ms)
        for _ in range(4):
            side.turn(600)
        (first,) = reader.deliveries()
    part = side.broker.sending if step[0] == "sending" else getattr(side.queueing, step[0])
    whole = getattr(part, step[1])

    def ends(*words: object, **more: object) -> None:
        if after:
            whole(*words, **more)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(part, step[1], ends)
        with pytest.raises(Killed):
            topic.channel(b"a").requeue(reader, first.id, 500, side.broker.mono_ms)
            for _ in range(8):
                side.turn(600)
    side.reopen(False)
    assert [message.body for message in all_that_comes(side, b"a")] == [b"one"]
    assert [message.body for message in all_that_comes(side, b"b")] == [b"one", b"two"]
    for name in (b"a", b"b"):
        channel = side.queueing.topic(b"t").channel(name)
        assert (channel.depth(), channel.in_flight_count, channel.deferred_count) == (0, 0, 0)
        channel.check()
    side.reopen(False)
    assert all_that_comes(side, b"a") == all_that_comes(side, b"b") == []
    side.close()


def test_who_waits_for_a_copy_is_told_when_it_is_durable(tmp_path: Path) -> None:
    side = Side(tmp_path)
    deferral: Deferral = side.queueing.deferral
    told: list[int] = []
    deferral.when_copied(77, lambda: told.append(77))
    side.turn()
    assert told == [77]  # nothing is on its way under this number
    side.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_deferred_message_is_counted_once_when_it_is_published(tmp_path: Path, clean: bool) -> None:
    side = Side(tmp_path)

    def counts() -> tuple[int, int, int]:
        here = side.queueing.topic(b"t").channel(b"a")
        side.queueing.topic(b"t").refresh()
        return here.message_count, here.deferred_count, here.depth()

    side.queueing.topic(b"t").channel(b"a")
    side.queueing.publish(side.queueing.topic(b"t"), [b"now"])
    for delay_ms in (100, 5_000):
        side.queueing.publish(side.queueing.topic(b"t"), [b"later"], delay_ms)
    side.turn()
    assert counts() == (3, 2, 1)
    for _ in range(3):
        side.turn(100)
    assert counts() == (3, 1, 2)
    side.reopen(clean)
    assert counts() == (3, 1, 2)
    for _ in range(3):
        side.turn(5_000)
    assert counts() == (3, 0, 3)
    side.close()


@pytest.mark.parametrize("again", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("what", ["topic", "channel", "emptied", "no channel"])
def test_what_was_deferred_before_does_not_come_again(tmp_path: Path, what: str, again: bool) -> None:
    """A topic, or its only channel, that is deleted and made again begins with nothing; what comes for no channel waits."""
    side = Side(tmp_path)
    topic = side.queueing.topic(b"t")
    if what in ("topic", "channel"):
        topic.channel(b"a")
    side.queueing.publish(topic, [b"before"], 2_000)
    side.turn()
    if what == "topic":
        side.queueing.delete(topic)
    elif what == "channel":
        topic.delete_channel(b"a")
    elif what == "emptied":
        topic.empty()
    topic = side.queueing.topic(b"t")
    side.queueing.publish(topic, [b"behind"], 2_000)
    side.turn(10)
    if again:
        side.reopen(clean=False)
    came = [message.body for message in all_that_comes(side, b"a")]
    assert sorted(came) == ([b"before", b"behind"] if what == "no channel" else [b"behind"])
    side.close()


@pytest.mark.parametrize("again", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("what", ["topic", "channel"])
def test_what_a_channel_of_a_log_topic_gave_back_does_not_come_to_the_next_of_its_name(
    tmp_path: Path, what: str, again: bool
) -> None:
    side = Side(tmp_path, topic=({"name": "t", "kind": "log", "queues": 1},))
    topic = side.queueing.topic(b"t")
    channel, reader = topic.channel(b"c"), subscribe(side, b"c")
    side.queueing.publish(topic, [b"before"])
    side.turn()
    (message,) = reader.deliveries()
    assert channel.requeue(reader, message.id, 2_000, side.broker.mono_ms) == 0
    side.turn()
    if what == "topic":
        side.queueing.delete(topic)
    else:
        topic.delete_channel(b"c")
        side.broker.offsets.drop_group("c")
        side.broker.topics.purge(side.broker.topics.by_name[b"t"], {0: 1}, 0)
    side.turn()
    if again:
        side.reopen(clean=True)
    side.queueing.publish(side.queueing.topic(b"t"), [b"behind"])
    assert [message.body for message in all_that_comes(side, b"c")] == [b"behind"]
    side.close()


def test_what_is_due_before_there_is_a_channel_again_is_gone(tmp_path: Path) -> None:
    side = Side(tmp_path)
    topic = side.queueing.topic(b"t")
    topic.channel(b"a")
    side.queueing.publish(topic, [b"before"], 100)
    side.turn()
    side.queueing.delete(topic)
    side.queueing.topic(b"t")
    for _ in range(3):
        side.turn(100)
    assert all_that_comes(side, b"a", 1) == []
    side.close()


def given_back_while_paused(side: Side) -> None:
    """A channel gives one of its messages back for a second; its topic is paused, and gets another."""
    topic = side.queueing.topic(b"t")
    channel = topic.channel(b"c")
    side.queueing.publish(topic, [b"own"])
    side.turn()
    reader = subscribe(side, b"c")
    (message,) = reader.deliveries()
    assert channel.requeue(reader, message.id, 1_000, side.broker.mono_ms) == 0
    topic.pause()
    side.queueing.publish(topic, [b"topic's"])
    side.turn()
    channel.remove(reader)
    for _ in range(4):
        side.turn(2_000)
    assert (topic.depth(), channel.depth(), channel.deferred_count) == (1, 0, 1)


@pytest.mark.parametrize("stop", ["none", "clean", "kill"])
@pytest.mark.parametrize("level", ["os", "disk"])
def test_what_a_channel_gave_back_is_not_emptied_with_its_paused_topic(tmp_path: Path, level: str, stop: str) -> None:
    """It comes when the topic goes on."""
    side = Side(tmp_path, level=level)
    given_back_while_paused(side)
    side.queueing.topics[b"t"].empty()
    if stop != "none":
        side.turn()
        side.reopen(stop == "clean")
        side.turn(2_000)
    topic = side.queueing.topics[b"t"]
    assert (topic.depth(), topic.channels[b"c"].deferred_count) == (0, 1)
    topic.unpause()
    assert [one.body for one in all_that_comes(side, b"c")] == [b"own"]
    assert topic.channels[b"c"].deferred_count == 0
    assert list(side.broker.schedule.entries()) == []
    side.close()


@pytest.mark.parametrize("how", ["cancelled", "channel emptied", "channel deleted", "topic deleted"])
def test_what_a_paused_topic_holds_back_goes_with_who_is_owed_it(tmp_path: Path, how: str) -> None:
    side = Side(tmp_path)
    given_back_while_paused(side)
    topic = side.queueing.topics[b"t"]
    if how == "cancelled":
        delayed = Delayed(side.broker)
        ((row, *_), _) = delayed.page(Wanted(), None, 10)
        delayed.cancel(row["id"])
    elif how == "channel emptied":
        topic.empty_channel(topic.channels[b"c"])
    elif how == "channel deleted":
        topic.delete_channel(b"c")
    else:
        side.queueing.delete(topic)
    side.turn()
    if how != "topic deleted":
        topic.unpause()
    for _ in range(4):
        side.turn(2_000)
    assert list(side.broker.schedule.entries()) == []
    assert side.queueing.deferral.held == {}
    if how in ("cancelled", "channel emptied"):
        assert [one.body for one in all_that_comes(side, b"c")] == [b"topic's"]
    side.close()


def test_a_message_that_is_fired_while_its_topic_is_paused_comes_when_it_goes_on(tmp_path: Path) -> None:
    side = Side(tmp_path)
    given_back_while_paused(side)
    delayed = Delayed(side.broker)
    ((row, *_), _) = delayed.page(Wanted(), None, 10)
    delayed.fire(row["id"])
    side.turn(2_000)
    topic = side.queueing.topics[b"t"]
    assert topic.channels[b"c"].depth() == 0
    topic.unpause()
    assert sorted(one.body for one in all_that_comes(side, b"c")) == [b"own", b"topic's"]


@pytest.mark.parametrize("again", ["no", "clean", "killed"])
@pytest.mark.parametrize("level", ["memory", "os", "disk"])
def test_what_is_deferred_before_the_first_channel_is_counted(tmp_path: Path, level: str, again: str) -> None:
    """With the topic, and then with its first channel, as at nsqd; memory keeps what it defers over no restart."""
    side = Side(tmp_path, level=level)
    topic = side.queueing.topic(b"t")
    for body in (b"one", b"two", b"three"):
        side.queueing.publish(topic, [body], 2_000)
    side.turn()
    assert topic.depth() == 3
    if again != "no" and level != "memory":
        side.reopen(clean=again == "clean")
        topic = side.queueing.topic(b"t")
    assert topic.depth() == 3
    if level != "memory":
        delayed = Delayed(side.broker)
        delayed.cancel(int(str(delayed.page(Wanted("t"), None, 1)[0][0]["id"])))
    left = 3 if level == "memory" else 2
    assert topic.depth() == left
    first, second = topic.channel(b"a"), topic.channel(b"b")
    assert (topic.depth(), first.deferred_count, second.deferred_count) == (0, left, 0)
    topic.refresh()
    assert (first.message_count, second.message_count) == (left, 0)
    for _ in range(4):
        side.turn(1_000)
    topic.refresh()
    assert (topic.depth(), first.deferred_count, first.depth(), first.message_count) == (0, 0, left, left)
    assert (second.deferred_count, second.depth(), second.message_count) == (0, 0, 0)
    side.close()


def test_what_is_deferred_and_owed_to_nobody_is_not_counted(tmp_path: Path) -> None:
    side = Side(tmp_path)
    topic = side.queueing.topic(b"t")
    side.queueing.publish(topic, [b"one"], 2_000)
    topic.empty()
    assert topic.depth() == 0
    topic.channel(b"a")
    side.queueing.publish(topic, [b"two"], 2_000)
    topic.delete_channel(b"a")
    assert topic.depth() == 0
    topic.channel(b"b")
    side.queueing.publish(topic, [b"three"], 2_000)
    topic.pause()
    topic.delete_channel(b"b")  # of a paused topic: the next channel gets it
    assert topic.depth() == 1
    assert topic.channel(b"c").deferred_count == 1
    topic.unpause()
    assert [message.body for message in all_that_comes(side, b"c")] == [b"three"]
    side.queueing.publish(topic, [b"four"], 2_000)
    side.queueing.delete(topic)
    assert side.queueing.topic(b"t").depth() == 0
    side.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_channel_that_was_emptied_and_set_back_gets_what_it_gave_back_with_a_delay(
    tmp_path: Path, clean: bool
) -> None:
    """A start finds the entry of the schedule, which is owed to nobody: it says nothing of the place that is."""
    side = Side(tmp_path, topic=({"name": "t", "kind": "log", "queues": 1},))
    topic = side.queueing.topic(b"t")
    channel, reader = topic.channel(b"c"), subscribe(side, b"c")
    side.queueing.publish(topic, [b"x"])
    side.turn()
    (message,) = reader.deliveries()
    assert channel.requeue(reader, message.id, 60_000, side.broker.mono_ms) == 0
    for _ in range(8):
        side.turn(250)  # everything is flushed
    topic.empty_channel(channel)
    topic.reset(b"c", {0: 0})
    side.turn()
    side.reopen(clean)
    assert [message.body for message in all_that_comes(side, b"c")] == [b"x"]
    side.close()


class Full(Quick):
    full = False

    def allocate(self, fd: int, at: int, length: int) -> None:
        if self.full:
            raise DiskFull("no room (by order of the test)")
        super().allocate(fd, at, length)


def test_what_is_due_on_a_full_disk_waits_for_room(tmp_path: Path) -> None:
    """The channel of a log topic needs a queue of its own for it, which cannot be made now."""
    files = Full()
    side = Side(tmp_path, files=files, topic=({"name": "t", "kind": "log", "queues": 1},))
    topic = side.queueing.topic(b"t")
    reader = subscribe(side, b"c")
    side.queueing.publish(topic, [b"a"])
    side.turn()
    (message,) = reader.deliveries()
    topic.channels[b"c"].requeue(reader, message.id, 500, side.broker.mono_ms)
    side.turn()
    files.full = True
    for _ in range(10):
        side.turn(200)
    assert not list(reader.deliveries())
    files.full = False
    for _ in range(5):
        side.turn(200)
    assert [(again.id, again.body, again.attempts) for again in reader.deliveries()] == [(message.id, b"a", 2)]
    assert not (tmp_path / "lost+found").exists()
    side.close()


@pytest.mark.parametrize("kind", ["queue", "log"])
def test_what_becomes_of_a_deferred_publish_whose_topic_was_deleted(tmp_path: Path, kind: str) -> None:
    """As docs/operate.md has it: a queue topic's goes with it; a log topic's waits on, as any delayed message of it, and what
    a channel gave back with a delay goes with the channel in both.
    """
    side = Side(tmp_path, topic=({"name": "t", "kind": kind, "queues": 1},) if kind == "log" else ())
    topic = side.queueing.topic(b"t")
    topic.channel(b"a")
    side.queueing.publish(topic, [b"given back"])
    side.turn()
    reader = subscribe(side, b"a")
    (first,) = reader.deliveries()
    topic.channel(b"a").requeue(reader, first.id, 1_000, side.broker.mono_ms)
    side.queueing.publish(topic, [b"published"], 1_000)
    side.turn()
    side.queueing.delete(topic)
    side.turn()
    side.queueing.topic(b"t").channel(b"a")
    side.turn()
    assert [message.body for message in all_that_comes(side, b"a")] == ([b"published"] if kind == "log" else [])
    assert len(side.broker.schedule) == 0
    side.close()


@pytest.mark.parametrize("seed", range(6))
def test_what_was_finished_before_a_kill_does_not_come_behind_the_power_cut_after_it(tmp_path: Path, seed: int) -> None:
    """Nothing is owed to anybody. But the entry is over when its copy is durable, so the start must flush the copy."""
    folder = tmp_path / "before"
    folder.mkdir()
    files = KeepingFiles(folder, seed)
    side = Side(folder, files=files)
    reader = subscribe(side, b"c")
    side.turn(600)
    side.queueing.publish(side.queueing.topic(b"t"), [b"x" * 9_000], 100)
    came: list[Delivery] = []
    while not came:
        side.turn(50)
        came += reader.deliveries()
    finish(side, b"c", reader, came)
    side.reopen(clean=False)
    files.power_cut(tmp_path / "after")
    side.broker.close(clean=False)
    files.let_go()
    files = KeepingFiles(tmp_path / "after")
    files.adopt()
    side = Side(tmp_path / "after", side.clock, files)
    assert all_that_comes(side, b"c") == []
    side.close()
    files.let_go()


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("copied", [True, False], ids=["in the stream", "in the schedule"])
def test_no_two_messages_have_one_id_after_the_clock_was_set_back(tmp_path: Path, clean: bool, copied: bool) -> None:
    """Ids are times, and go on behind the highest there is: of what is deferred, too, and before a copy that came later."""
    side = Side(tmp_path)
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    side.queueing.publish(topic, [b"first"], 0)
    side.turn()
    side.clock.jump(-3_600_000)
    side.reopen(clean)
    topic = side.queueing.topic(b"t")
    side.queueing.publish(topic, [b"deferred"], 1_000)
    if copied:
        side.queueing.publish(topic, [b"plain"], 0)
    for _ in range(4 if copied else 1):
        side.turn(500)
    side.reopen(clean)
    topic = side.queueing.topic(b"t")
    for n in range(3):
        side.queueing.publish(topic, [b"later %d" % n], 700 * n)
    side.turn()
    came = all_that_comes(side, b"c")
    assert sorted(message.body for message in came) == sorted(
        [b"first", b"deferred", b"later 0", b"later 1", b"later 2", *([b"plain"] if copied else [])]
    )
    assert len({message.id for message in came}) == len(came)
    side.close()


@pytest.mark.parametrize("clean", [False, True])
def test_what_was_given_back_twice_at_another_node_outlives_the_starts_of_the_new_master(
    tmp_path: Path, clean: bool
) -> None:
    """The entry names a place in the old master's queue of deferred messages; here its own copy stands at that number."""
    couple = Couple(tmp_path)
    master = couple.master
    topic = master.queueing.topic(b"t")
    channel = topic.channel(b"c")
    master.queueing.publish(topic, [b"job"])
    for delay_ms, wait_ms in ((700, 2_000), (6_000, 0)):
        reader, found = read(master, b"c")
        channel.requeue(reader, found[b"job"], delay_ms, master.broker.mono_ms)
        channel.remove(reader)
        master.turn(wait_ms)
    couple.copy_log()
    couple.tell()
    couple.tell()
    master.broker.close(False)
    promoted = couple.promote()
    promoted.turn(20_000)
    promoted.turn()
    for _ in range(2):
        promoted.reopen(clean)
    _, found = read(promoted, b"c")
    assert list(found) == [b"job"]
    promoted.close()


class Between(FakeClock):
    """It is 0.9 ms past the millisecond that it says."""

    def now_ns(self) -> int:
        return super().now_ns() + 900_000

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + 900_000


def test_a_delay_is_not_shorter_than_was_asked_by_a_part_of_a_millisecond(tmp_path: Path) -> None:
    side = Side(tmp_path, clock=Between())
    topic = side.queueing.topic(b"t")
    channel = topic.channel(b"c")
    side.queueing.publish(topic, [b"again"])
    reader, found = read(side, b"c")
    assert channel.requeue(reader, found[b"again"], 700, side.broker.mono_ms) == 0
    side.queueing.publish(topic, [b"later"], 100)
    side.turn()
    begin_ms = side.clock.now_ms()
    assert [due.due_ms - begin_ms for due in side.broker.schedule.entries()] == [101, 701]
    side.close()


class Stalled(FakeClock):
    """The process is held up for 3 ms before each look at it."""

    def monotonic_ns(self) -> int:
        self.advance(3)
        return super().monotonic_ns()


WAYS = [(kind, way) for kind in ("queue", "log") for way in ("published", "given back", "moved")]


@pytest.mark.parametrize(("kind", "way"), [*WAYS, ("queue", "dead letter")])
def test_what_is_due_before_it_is_stored_comes(tmp_path: Path, kind: str, way: str) -> None:
    """It was no entry of the schedule then: it was set aside as one without sense when its turn came."""
    side = Side(tmp_path, clock=Stalled(), topic=({"name": "t", "kind": kind, "queues": 1},) if kind == "log" else ())
    topic = side.queueing.topic(b"t")
    channel = topic.channel(b"c")
    if way in ("published", "moved"):
        side.queueing.publish(topic, [b"one"], 1 if way == "published" else 60_000)
    else:
        side.queueing.publish(topic, [b"one"])
        reader, found = read(side, b"c")
        if way == "given back":
            assert channel.requeue(reader, found[b"one"], 1, side.broker.mono_ms) == 0
        else:
            channel.reject(reader, found[b"one"])
            side.turn()
        channel.remove(reader)
    if way == "moved":
        side.turn()
        ((row, *_), _) = Delayed(side.broker).page(Wanted(), None, 10)
        Delayed(side.broker).move(int(str(row["id"])), 1)
    if way == "dead letter":
        found_rows = side.queueing.redrive.page(WantedDead(b"t.c.dead"))["rows"]
        assert isinstance(found_rows, list)
        assert len(found_rows) == 1
    side.turn()
    side.turn()
    assert [message.body for message in all_that_comes(side, b"c")] == [b"one"]
    assert not list(tmp_path.glob("lost+found/schedule-*"))
    side.close()
