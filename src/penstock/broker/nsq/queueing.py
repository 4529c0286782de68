"""Queueing: the door of the NSQ side, and what it does at the end of a turn.

registry     topics and channels come and go        table        nsqd.dat      opening   read it, import an nsqd folder
publishing   messages in                            flush        one for all, and who waits for it
copied       what waits for slaves
turns        marks and timers of channels           deferral     into the schedule and out of it (`entry`, `claims`)
deadletters  what was given back too often          moving       nothing is let go of before its copy is durable
deathnotes   why that was                           redrive      it is sent again
topics*      queue topics, in memory, ephemeral     logchannels  log topics as NSQ sees them
folder       where the files are
"""

from __future__ import annotations

import logging
from typing import Protocol

import cython

from penstock.broker.acknowledged import Acknowledged
from penstock.broker.core import Core
from penstock.broker.nsq.claims import Claims
from penstock.broker.nsq.copied import Copied
from penstock.broker.nsq.deadletters import DeadLetters
from penstock.broker.nsq.deathnotes import DeathNotes
from penstock.broker.nsq.deferral import Deferral
from penstock.broker.nsq.folder import QueueFolder
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.moving import Moving
from penstock.broker.nsq.names import refusal
from penstock.broker.nsq.opening import Opening
from penstock.broker.nsq.publishing import Publishing
from penstock.broker.nsq.redrive import Redrive
from penstock.broker.nsq.registry import Registry
from penstock.broker.nsq.strays import Strays
from penstock.broker.retry import Retry
from penstock.errors import DiskFull, StoreError
from penstock.log.consumequeue import ConsumeQueue

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.broker.nsq.flush import GroupFlush
    from cython.cimports.penstock.broker.nsq.memorytopics import MemoryTopic
    from cython.cimports.penstock.broker.nsq.topics import QueueTopic, Topic
    from cython.cimports.penstock.broker.nsq.turns import Turns
    from cython.cimports.penstock.delivery.channel import Channel
    from cython.cimports.penstock.delivery.source import MemorySource
else:
    from penstock import words
    from penstock.broker.nsq.flush import GroupFlush
    from penstock.broker.nsq.memorytopics import MemoryTopic
    from penstock.broker.nsq.topics import QueueTopic, Topic
    from penstock.broker.nsq.turns import Turns
    from penstock.delivery.channel import Channel
    from penstock.delivery.source import MemorySource

log = logging.getLogger("penstock.queueing")

TICK_AT_LEAST_MS = 60_000


class Published(Protocol):
    """What a connection has published."""

    def any_to(self, topic: bytes) -> bool:
        """Whether something to this topic."""


class Producer(Protocol):
    """A connection that has published."""

    @property
    def publisher(self) -> Published:
        """What it has published."""

    def describe(self, now_s: int) -> dict[str, object]:
        """The connection in statistics."""

    def disconnect(self) -> None:
        """End the connection."""


class Queueing:
    """See the module. `open` after the broker's store and tables; every method on the broker's thread."""

    def __init__(self, core: Core, retry: Retry) -> None:
        self._core = core
        self._time = core.time
        self.folder = QueueFolder(core.config, core.files)
        self.turns = Turns()
        self.claims = Claims()
        self.moving = Moving(core.sending, self.turns.mark_channel)
        self.flush = GroupFlush(core, self.folder, self.moving)
        self.registry = Registry(core, self.folder, self.claims, self.turns, self.flush, self.moving, self)
        self.deferral = Deferral(core, self.registry.topics, self.claims, self.moving)
        self.strays = Strays(core, self.deferral, self.moving)
        self.copied = Copied(core, self.flush)
        self.publishing = Publishing(core, self.flush, self.deferral, self.copied)
        self.notes = DeathNotes(self.folder)
        self.dead_letters = DeadLetters(self.registry, self.publishing, self.flush, self.moving, retry, self.notes)
        self.redrive = Redrive(core, self.registry, self.deferral, self.notes)
        self.producers: set[Producer] = set()
        self.acknowledged = Acknowledged(core)
        self._handed = core.handed_queue
        self._lagging: list[LogChannels] = []  # with messages that readers may not see yet
        self._seen_of_log = (0, 0, 0, 0)
        self._leaving, self._arrived = self.moving.leaving, self.moving.arrived
        self._early, self._held = self.deferral.early, self.deferral.held
        # What fronts ask for, by the room that does it.
        self.table = self.registry.table
        self.topics = self.registry.topics
        self.topic = self.registry.topic
        self.find = self.registry.find
        self.all = self.registry.all
        self.delete = self.registry.delete
        self.log_channels = self.registry.log_channels
        self.write_table = self.registry.write_table
        self.announce = self.registry.announce
        self.fresh_topic = self.registry.fresh_topic
        self.publish = self.publishing.publish
        self.want_flush = self.flush.want
        self.flushes = self.flush.waiting
        self.take_jobs = self.flush.take_jobs
        self.mark_channel = self.turns.mark_channel
        self.when_copied = self.deferral.when_copied
        self.refusal = refusal

    @property
    def healthy(self) -> bool:
        """False after a failed flush: nothing is acknowledged any more."""
        return self.flush.healthy

    @property
    def error(self) -> str:
        """Why it is not healthy."""
        return self.flush.error

    @property
    def flush_done(self) -> int:
        """Every flush up to this number succeeded."""
        return self.flush.done

    # -- life ----------------------------------------------------------------------------------------------------

    def open(self, clean: bool = False, power_cut: bool = False) -> None:
        """Take up the topics and channels of `nsqd.dat`, ours or nsqd's own; `clean`: all files were flushed."""
        registry = self.registry
        self.folder.pool.begin(power_cut)
        Opening(self._core, registry, self.claims).load()
        self.deferral.open()
        self.strays.find(self.topics)
        if not clean:
            self.flush.flush_again(list(self.topics.values()))
        self.folder.watch()
        try:
            if self.topics:
                registry.table.all_changed()
            registry.write_table()
        except DiskFull as error:
            log.error("nsqd.dat not written, tried again every second error=%s", error)

    def close(self, clean: bool) -> None:
        """A clean stop writes out what is only in memory; everything is let go of. The log is flushed behind it."""
        clean = clean and self.healthy
        if clean:
            if self.topics or self.table.behind:
                self.table.all_changed(closing=True)
            self._core.flush_log()
            self.moving.settle(
                self.flush, len(self.moving)
            )  # what went into the log is over here, then the other way round
            self.registry.write_table()
            self._write_memory()
            self.flush.flush_last(list(self.topics.values()))
            clean = self.healthy and not len(self.moving)
            self.table.stopped()
        for topic in self.topics.values():
            for stream in topic.streams():
                stream.close(clean)
        self.table.release()
        self.folder.close()

    def _write_memory(self) -> None:
        for topic in self.topics.values():
            if not isinstance(topic, MemoryTopic) or topic.ephemeral:
                continue
            for channel in topic.channels.values():
                source = channel.source
                if isinstance(source, MemorySource) and not channel.ephemeral:
                    source.save((place, attempts) for _, place, _, attempts in channel.in_hand())
            topic.save()

    # -- what channels ask for -----------------------------------------------------------------------------------

    def due(self, channel: Channel) -> None:
        """The channel's next moment may be earlier than known."""
        self.turns.time(channel)

    def filled(self, channel: Channel) -> None:
        """A channel has as much in hand as it may, and more to deliver."""
        self._core.limits.count("in_flight")

    def bury(self, channel: Channel, slot: int, why: str) -> bool:
        """Store a message with the dead letters of its channel; False when it cannot be now."""
        return self.dead_letters.bury(channel, slot, why)

    def defer(self, channel: Channel, slot: int, delay_ms: int) -> bool:
        """REQ with a delay: the schedule takes it over. False: the channel keeps it in memory."""
        return self.deferral.give_back(channel, slot, delay_ms)

    def handed(self, stamp_ns: int) -> None:
        """A channel has handed out messages; the first of them was stored then."""
        self._handed.add_ns(self._time.now_ns - stamp_ns)

    # -- turns ---------------------------------------------------------------------------------------------------

    def mark_topics_of(self, queues: list[ConsumeQueue]) -> None:
        """These message queues of log topics have something new."""
        for queue in queues:
            topic = self.topics.get(queue.topic)
            if topic is not None:
                topic.mark()

    def end_turn(self) -> None:
        """Hand out messages, note what must be flushed."""
        turns, mono_ms = self.turns, self._time.mono_ms
        if self._leaving or self._arrived:
            self.moving.settle(self.flush)
        if self._early:
            self.deferral.deliver_early()
        if self._held:
            self.deferral.release()
        if self._lagging:
            self._look_at_lagging()
        while turns.marked():
            for topic in turns.take_topics():
                self._pump(topic, mono_ms)
            for channel in turns.take_channels():
                if channel.marked:
                    channel.pump(mono_ms)
                self._note(self.topics.get(channel.topic_name))
        self.flush.finish()
        if self._leaving or self._arrived:
            self.moving.settle(self.flush)
        if self.table.restless:
            self.table.save_changed(self.topics)

    def _pump(self, topic: Topic, mono_ms: int) -> None:
        topic.pump(mono_ms)
        # A compiled class is told at once; of one that is not, the interpreter looks for its class's word on it.
        if not isinstance(topic, QueueTopic) and isinstance(topic, LogChannels) and topic.rewatch():
            self._lagging.append(topic)
        self._note(topic)

    def _note(self, topic: Topic | None) -> None:
        if topic is not None and topic.level != words.LEVEL_MEMORY:
            self.flush.note(topic)

    def _look_at_lagging(self) -> None:
        """Log topics with messages that readers might not see: when the log was flushed, or more offsets reserved."""
        if self._seen_of_log != (seen := self._state_of_log()):
            self._seen_of_log = seen
            for topic in self._lagging:
                topic.mark()
            self._lagging = []

    def _state_of_log(self) -> tuple[int, int, int, int]:
        store = self._core.store
        reserved = sum(queue.reserved for topic in self._lagging for queue in topic.stored.queues)
        return store.flushed_position, reserved, store.confirmed, store.confirmed_flushed

    def tick(self) -> int:
        """What is due now; when something will be again."""
        mono_ms = self._time.mono_ms
        self.turns.tick(mono_ms)
        if self.strays.found:
            self.strays.adopt()
        self.table.tick()
        next_ms = min(self.turns.next_ms(), mono_ms + TICK_AT_LEAST_MS, self.moving.tick(mono_ms))
        try:
            disk_ms = self.folder.tick(mono_ms)
            if disk_ms is not None:
                next_ms = min(next_ms, disk_ms)
        except StoreError as error:
            self.flush.fail(error)
        return min(next_ms, max(mono_ms, self.flush.due_ms()))

    def next_due_ms(self) -> int:
        """The earliest moment this turn may have added; far away when there is none."""
        if self.moving.more:
            return 0
        return min(self.turns.next_ms(), self.flush.due_ms())
