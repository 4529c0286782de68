"""Deferral: messages of queue topics and channels that wait for their time.

    REQ, 1 s     channel ─ give_back ─▶ entry in the log (timer topic) ─▶ schedule          this append is acknowledged
                 its old place is finished when the entry is flushed (`moving.leave`)
    DPUB         the same entry, with no channel and no old place: for every channel that is owed it (`claims`)
    due          schedule ─ deliver ─▶ copy in a ready queue, with the entry's mark         flush of the entry comes first,
                 and of a paused queue topic with channels its going on
                 queue topic: one copy in the topic's queue      log topic: one in the channel's own queue, `.again`
    over         "done" record in the log ─▶ schedule forgets     when the copy is flushed (`moving.arrive`, `settle`)

Level `memory` defers in memory. A message is at one place or on its way between two; what is on its way stands in both,
and a start tells which of the two counts by what the second one says of the first:

    dead letter sent again   its channel ─ take_out ─▶ the same entry, with the place it leaves; that is finished before `deliver`

    killed between               is found                                   a start
    entry and old place          an entry that names channel and place,     finishes that place
                                 or the place it left
    copy and "done"              a copy with the mark of an entry           hands the entry out as copied, settles it later

So a message comes once wherever the process ends. A power cut may take the copy and not the entry, or the entry and not
the end of the old place, never both: each is let go of when the other is on the disk.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock import words
from penstock.broker.core import Core
from penstock.broker.levels import LEVEL_MEMORY
from penstock.broker.nsq.claims import Claims
from penstock.broker.nsq.entry import AGAIN_LANE, Deferred, Left, deferred_of
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.memorytopics import MemoryTopic
from penstock.broker.nsq.moving import Moving
from penstock.broker.nsq.sources import finish_ahead
from penstock.broker.nsq.topics import QueueTopic, Topic
from penstock.broker.sending import Placed
from penstock.broker.topics import TIMER_TOPIC
from penstock.delivery.channel import Channel
from penstock.delivery.cursor import CursorSource
from penstock.delivery.source import MemorySource
from penstock.disk.readyqueue import ReadyQueue, mark_of
from penstock.errors import Refused
from penstock.wire import names

SOON_MS = 1
AGAIN_MS = 100  # what could not be put where it goes is tried again
Copies = list[tuple[ReadyQueue, int]]
EntryOf = dict[tuple[ReadyQueue, int], int]
"""The id of the last entry of the schedule that has its copy at a place."""


class Deferral:
    """See the module."""

    def __init__(self, core: Core, topics: dict[bytes, Topic], claims: Claims, moving: Moving) -> None:
        self._core = core
        self._topics = topics
        self._claims = claims
        self._moving = moving
        self.early: dict[int, tuple[Deferred, bytes]] = {}  # due, and not on the disk yet
        self.held: dict[bytes, set[int]] = {}  # due, and of a paused topic's channels
        self._when_copied: dict[int, list[Callable[[], None]]] = {}
        self.leaving: set[Left] = set()  # dead letters on their way to another topic

    # -- into the schedule ---------------------------------------------------------------------------------------

    def demand_room(self, count: int) -> None:
        """Refused where so many more messages could not be deferred."""
        self._core.sending.demand_delay({names.TIMER_DELIVER_MS: str(self._core.time.now_ms + SOON_MS)}, count)

    def publish(self, topic: Topic, body: bytes, delay_ms: int) -> None:
        """DPUB: the message reaches its channels after `delay_ms`, and there is room for it. Refused when it cannot be stored."""
        core = self._core
        now_ns = core.time.now_ns
        if isinstance(topic, MemoryTopic):
            topic.defer(now_ns, body, delay_ms)
            return
        due_ms = core.time.next_ms() + delay_ms
        topic.count(len(body))
        if isinstance(topic, LogChannels):
            due = {names.TIMER_DELIVER_MS: str(due_ms)}
            core.sending.put(topic.stored, 0, body, due, born_host=core.store_host, born_ms=core.time.now_ms)
            return
        assert isinstance(topic, QueueTopic)
        message_id = topic.new_id(now_ns)
        self._append(Deferred(topic.name, b"", message_id, 0, message_id), body, due_ms)
        self._count(topic)

    def give_back(self, channel: Channel, slot: int, delay_ms: int) -> bool:
        """REQ with a delay: the schedule takes it over. False: the channel keeps it in memory."""
        source = channel.source
        if isinstance(source, MemorySource):
            return False
        slots = channel.slots
        lane, place = slots.lane[slot], slots.place[slot]
        if not source.point_at(lane, place):
            return False
        topic = self._topics.get(channel.topic_name)
        about = Deferred(
            channel.topic_name,
            channel.name,
            slots.id[slot],
            slots.attempts[slot],
            source.stamp_ns,
            AGAIN_LANE if isinstance(topic, LogChannels) and topic.is_again(channel, lane) else lane,
            place,
        )
        try:
            self._append(about, source.body(), self._core.time.next_ms() + delay_ms)
        except Refused:
            return False
        self._moving.leave(channel, lane, place, position=self._core.store.end_position)
        return True

    def put_again(self, channel: Channel, lane: int, place: int) -> None:
        """What came again, and is not in hand, goes back into the schedule and comes at once. Its place is not finished here.
        Refused.
        """
        source = channel.source
        assert isinstance(source, CursorSource)
        if source.point_at(lane, place):
            about = Deferred(
                channel.topic_name, channel.name, source.message_id, source.attempts, source.stamp_ns, AGAIN_LANE, place
            )
            self._append(about, source.body(), self._core.time.next_ms() + SOON_MS)
            channel.count_deferred(1)

    def take_out(self, left: Left, body: bytes, topic: QueueTopic) -> None:
        """A dead letter goes to another topic, once: it leaves its own when the entry is durable. Refused."""
        message_id = topic.new_id(self._core.time.now_ns)
        self._append(
            Deferred(topic.name, b"", message_id, 0, message_id, left=left), body, self._core.time.next_ms() + SOON_MS
        )
        self.leaving.add(left)
        topic.count(len(body))
        self._count(topic)

    def _count(self, topic: Topic) -> None:
        """One more message for its channels, or the first one that is to come, which comes later."""
        self._claims.count(topic.name)
        for channel in topic.channels.values():
            channel.count_deferred(1)
            channel.count_ahead(1)

    def finish_left(self, left: Left) -> None:
        """The place that a dead letter has left is done, if it is not yet."""
        self.leaving.discard(left)
        topic = self._topics.get(left.topic)
        channel = None if topic is None else topic.channels.get(left.channel)
        if channel is None or not isinstance(channel.source, CursorSource) or not _is_there(channel, left):
            return
        slot = channel.slots.find(left.id)
        if slot >= 0 and channel.slots.state[slot] == words.WAITING:
            channel.withdraw(slot)
        else:
            channel.source.finish_ahead(0, left.place)

    def move(self, about: Deferred, body: bytes, schedule_id: int, due_ms: int) -> Placed:
        """It is due at another time: the same entry again, and the former one is over with the record that says so. Whom it
        is owed to stays. Refused.
        """
        again = msgspec.structs.replace(about, since=about.since or schedule_id)
        return self._append(again, body, due_ms, replaces=schedule_id)

    def _append(self, about: Deferred, body: bytes, due_ms: int, replaces: int = 0) -> Placed:
        due = {names.TIMER_DELIVER_MS: str(due_ms)}
        return self._core.sending.put_own(TIMER_TOPIC, body, about.properties() | due, prepared=replaces)

    # -- out of it -----------------------------------------------------------------------------------------------

    def deliver(self, about: Deferred, body: bytes, schedule_id: int) -> bool:
        """A deferred message is due: to its topic, for the channels it is owed to. False: try again."""
        core = self._core
        topic = self._topics.get(about.topic)
        if topic is None:  # and a dead letter on its way there stays where it is
            if about.left is not None:
                self.leaving.discard(about.left)
            return core.sending.put_over(schedule_id)
        if schedule_id > core.store.flushed_position:  # a copy without its entry would belong to nobody
            self.early[schedule_id] = (about, body)
            core.store.want_flush()
            return True
        if about.left is not None:
            self.finish_left(about.left)
        claimants = self._claims.claimants(topic, about, schedule_id)
        if claimants is not None and not claimants:
            self._claims.count_entry(about, schedule_id, -1)
            return core.sending.put_over(schedule_id)
        if isinstance(topic, QueueTopic) and topic.paused and topic.channels:
            # A copy would stand behind what the topic holds, and go with it when the topic is emptied: it is the channels' own.
            self.held.setdefault(topic.name, set()).add(schedule_id)
            return True
        if topic.redeliver(about.stamp_ns, about.id, about.attempts, body, claimants, schedule_id):
            return False
        self.stop_counting(about, schedule_id)
        return core.sending.put_over(schedule_id) if topic.level == LEVEL_MEMORY else True

    def deliver_early(self) -> None:
        """What was due before the flush of its record, and is durable now. At the end of every turn."""
        flushed = self._core.store.flushed_position
        for schedule_id in [id_ for id_ in self.early if id_ <= flushed]:
            about, body = self.early.pop(schedule_id)
            if not self.deliver(about, body, schedule_id):
                self._core.schedule.put_back(schedule_id)
                self._core.alarm.at_latest(self._core.time.mono_ms + AGAIN_MS)
            for call in self._when_copied.pop(schedule_id, ()):
                call()

    def release(self) -> None:
        """What is due goes to the channels of topics that go on. At the end of every turn."""
        for name in [name for name in self.held if (topic := self._topics.get(name)) is None or not topic.paused]:
            for schedule_id in self.held.pop(name):
                self._core.schedule.put_back(schedule_id)
            self._core.alarm.set(self._core.time.mono_ms)

    def take_back(self, topic: bytes, schedule_id: int) -> None:
        """One that is held may be handed out again: it is fired, moved or cancelled."""
        held = self.held.get(topic, set())
        if schedule_id in held:
            held.remove(schedule_id)
            self._core.schedule.put_back(schedule_id)

    def when_copied(self, schedule_id: int, call: Callable[[], None]) -> None:
        """Call once a message that was fired is in its queue: now, or behind the flush of its entry."""
        if schedule_id in self.early:
            self._when_copied.setdefault(schedule_id, []).append(call)
        else:
            call()

    def is_copied(self, schedule_id: int) -> bool:
        """Whether an entry of the schedule is in its topic's queue already and only waits for that to be durable."""
        return schedule_id in self.early or self._moving.has(schedule_id)

    def waiting_channels(self, about: Deferred, schedule_id: int) -> tuple[Topic, list[bytes]] | None:
        """The topic and channels that wait for a deferred message; None when nobody does any more."""
        topic = self._topics.get(about.topic)
        claimants = set() if topic is None else self._claims.claimants(topic, about, schedule_id)
        if topic is None or (claimants is not None and not claimants):
            return None
        return topic, sorted(topic.channels if claimants is None else claimants)

    def stop_counting(self, about: Deferred, schedule_id: int) -> None:
        """Its channels do not wait for a deferred message any more."""
        if about.left is not None:
            self.leaving.discard(about.left)
        self._claims.count_entry(about, schedule_id, -1)
        topic, names = self.waiting_channels(about, schedule_id) or (None, [])
        for name in names:
            channel = None if topic is None else topic.channels.get(name)
            if channel is not None:
                channel.count_deferred(-1)

    # -- after a start -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """How many deferred messages each channel waits for, and which are copied already."""
        entries: list[tuple[int, Deferred, Topic]] = []
        for due in self._core.schedule.entries():
            about = deferred_of(due)
            found = None if about is None else self._topics.get(about.topic)
            if about is not None and found is not None:
                entries.append((due.id, about, found))
                if isinstance(found, QueueTopic):
                    found.know_id(about.id)
                if about.channel:
                    self._claims.replace(about, due.id)
        found_copies = self._copies_of(entries)
        entry_of: EntryOf = {}
        for (id_, _, _), copies in zip(entries, found_copies, strict=True):
            for copy in copies:
                entry_of[copy] = max(id_, entry_of.get(copy, 0))
        for (id_, about, topic), copies in zip(entries, found_copies, strict=True):
            claimants = self._claims.claimants(topic, about, id_)
            names = set(topic.channels) if claimants is None else claimants
            if not (isinstance(topic, LogChannels) and self._claims.is_before(about, id_)):
                self._finish_original(topic, about, id_, entry_of)
            if about.left is not None:
                self.finish_left(about.left)
            if copies:
                for stream, ordinal in copies:
                    finished_in = topic.owed_in(stream) if isinstance(topic, LogChannels) else None
                    self._moving.arrive(id_, topic, stream, ordinal, finished_in)
                self._core.schedule.fire_now(id_)
                self._hide_copies(topic, copies, names)
                continue
            self._claims.count_entry(about, id_, 1)
            for name in names:
                topic.channels[name].count_deferred(1)
                if not about.channel:
                    topic.channels[name].count_ahead(1)

    def _copies_of(self, entries: list[tuple[int, Deferred, Topic]]) -> list[Copies]:
        """Where the copies of each are, in the ready queues of its topic."""
        marked: dict[tuple[int, int], list[tuple[Topic, ReadyQueue, int]]] = {}  # by mark and message id
        for topic in self._topics.values():
            for stream in topic.streams():
                for mark, message_id, ordinal in stream.marked():
                    marked.setdefault((mark, message_id), []).append((topic, stream, ordinal))
        return [
            [(stream, ordinal) for of, stream, ordinal in marked.get((mark_of(id_), about.id), ()) if of is topic]
            for id_, about, topic in entries
        ]

    @staticmethod
    def _finish_original(topic: Topic, about: Deferred, id_: int, entry_of: EntryOf) -> None:
        """The schedule has what was given back with a delay: its old place is done, if a crash came before that.

        Also where the entry is owed to nobody any more: what is newer than the entry is newer than that place. But a log topic's
        channel that was emptied since may have been reset to a place below, and is owed what stands there. And where it was given
        back at another node, a place in the queue of deferred messages is one of that node: here its own copy may stand there.
        """
        channel = topic.channels.get(about.channel) if about.place >= 0 else None
        if channel is None or not isinstance(channel.source, CursorSource):
            return
        source = channel.source
        if about.lane == AGAIN_LANE:
            found = [lane for lane in source.lanes if isinstance(lane.stream, ReadyQueue)]
        else:
            found = source.lanes[about.lane : about.lane + 1]
        for lane in found:
            file, stream = lane.file, lane.stream
            unfinished = file.committed <= about.place < stream.end() and not file.finished(about.place)
            if isinstance(stream, ReadyQueue) and entry_of.get((stream, about.place), 0) >= id_:
                continue
            if unfinished and stream.find(about.place) and stream.message_id == about.id:
                source.finish_ahead(lane.number, about.place)

    @staticmethod
    def _hide_copies(topic: Topic, copies: Copies, names: set[bytes]) -> None:
        """A copy in the queue of all channels is nothing to those it is not owed to."""
        if isinstance(topic, QueueTopic):
            for name, channel in topic.channels.items():
                for _, ordinal in copies:
                    if name not in names and not topic.has_finished(name, ordinal):
                        finish_ahead(channel, 0, ordinal)


def _is_there(channel: Channel, left: Left) -> bool:
    """Whether the channel still has this very message at that place."""
    source = channel.source
    assert isinstance(source, CursorSource)
    file, stream = source.lanes[0].file, source.lanes[0].stream
    unfinished = file.committed <= left.place < stream.end() and not file.finished(left.place)
    return bool(unfinished and stream.find(left.place) and stream.message_id == left.id)
