"""The registry: topics and channels come and go. It is what a topic knows of the rest of the queue side (`TopicRegistry`)."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Protocol

from penstock.broker.acknowledged import Acknowledged
from penstock.broker.clock import BrokerClock
from penstock.broker.core import Core
from penstock.broker.lately import Lately
from penstock.broker.levels import LEVEL_MEMORY, LEVEL_NAMES, LEVEL_OS, LEVEL_PAIR, LEVELS
from penstock.broker.nsq.claims import Claims
from penstock.broker.nsq.flush import GroupFlush
from penstock.broker.nsq.folder import QueueFolder
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.memorytopics import MemoryTopic
from penstock.broker.nsq.moving import Moving
from penstock.broker.nsq.names import EPHEMERAL, printable, valid_nsq_name
from penstock.broker.nsq.table import Table
from penstock.broker.nsq.topics import QueueTopic, Topic
from penstock.broker.nsq.turns import Turns
from penstock.broker.replica import of_a_set
from penstock.broker.systemtopics import is_system_topic
from penstock.broker.topics import check_topic_name
from penstock.delivery.channel import Channel
from penstock.delivery.latency import Latency
from penstock.delivery.source import MemorySource, Source
from penstock.disk.cursorfile import WINDOW_MAX, CursorFile
from penstock.disk.readyqueue import ReadyQueue
from penstock.errors import LimitReached, Refused, StoreError
from penstock.wire.codes import ResponseCode

log = logging.getLogger("penstock.queueing")

SLAVE = "this broker is a slave, not master"


class ChannelOwner(Protocol):
    """Who a channel asks for what is beyond it."""

    def due(self, channel: Channel) -> None:
        """Its next moment may be earlier than known."""

    def filled(self, channel: Channel) -> None:
        """It has as much in hand as it may."""

    def bury(self, channel: Channel, slot: int, why: str) -> bool:
        """Store a message with the dead letters."""

    def defer(self, channel: Channel, slot: int, delay_ms: int) -> bool:
        """REQ with a delay."""

    def handed(self, stamp_ns: int) -> None:
        """It has handed out what was stored then."""

    @property
    def acknowledged(self) -> Acknowledged:
        """What is told of messages that are finished."""


class Registry:
    """See the module."""

    def __init__(
        self,
        core: Core,
        folder: QueueFolder,
        claims: Claims,
        turns: Turns,
        flush: GroupFlush,
        moving: Moving,
        owner: ChannelOwner,
    ) -> None:
        config = core.config
        self._core = core
        self.limits = core.limits
        self.folder = folder
        self.mem_queue_size = config.mem_queue_size
        self.topics: dict[bytes, Topic] = {}
        self.table = Table(core, claims)
        self.announce: list[Callable[[bytes], None]] = []  # told of each topic that changed, by name
        # Log topics that came, went, or were paused, or of which a channel that is kept did.
        self.lately: Lately[bytes] = Lately()
        self.fresh_topic: list[Callable[[Topic], None]] = []
        self.percentiles = [
            float(part) for part in re.split("[;,]", config.e2e_processing_latency_percentile) if part.strip()
        ]
        self._claims = claims
        self._turns = turns
        self.marks = turns.topics
        self.later = turns.later
        self._flush = flush
        self._moving = moving
        self._owner = owner
        self._default_level = LEVELS[config.level]
        core.topics.changed.append(self._stored_changed)

    # -- finding -------------------------------------------------------------------------------------------------

    def has_queue(self, name: bytes) -> bool:
        """Whether a topic of kind `queue` has this name."""
        topic = self.topics.get(name)
        return topic is not None and topic.kind == "queue"

    def log_channels(self, topic: bytes, channel: bytes) -> LogChannels | None:
        """The face of a log topic, if it has this channel."""
        found = self.topics.get(topic)
        return found if isinstance(found, LogChannels) and channel in found.channels else None

    def find(self, name: bytes) -> Topic | None:
        """The topic of that name, if NSQ knows it: a log topic is known as soon as it exists."""
        topic = self.topics.get(name)
        if topic is None and name in self._core.topics.by_name:
            topic = self.log_face(name)
        return topic

    def all(self) -> list[Topic]:
        """Every topic that NSQ sees, by name. Log topics of other protocols appear once an NSQ client named them."""
        found = [self.topics[name] for name in sorted(self.topics)]
        for topic in found:
            topic.refresh()
        return found

    def _stored_changed(self, name: bytes) -> None:
        """A log topic was made or changed: its channels may have more queues to read, and another level. Or it was deleted, and
        they with it: they were there without a topic, and a start made it anew for them.
        """
        face = self.topics.get(name)
        if not isinstance(face, LogChannels):
            return
        if face.stored.open:
            face.take_level()
            face.mark()
            return
        del self.topics[name]
        try:
            face.remove()
        finally:
            self._gone(face)

    # -- coming --------------------------------------------------------------------------------------------------

    def topic(self, name: bytes, level: str | None = None, *, queue: bool = False, hasty: bool = False) -> Topic:
        """The topic of that name, made when it is new, at this level or what the rules say. Refused E_BAD_TOPIC.

        Where slaves may follow it becomes a log topic, so that they have it, unless a rule says otherwise, or `queue`.
        `hasty`: for a message, so that at level `os` a power cut may take it as it may take the message.
        """
        if self._core.store.following:
            raise Refused(SLAVE, nsq="E_INVALID", http=503)
        topic = self.topics.get(name)
        if isinstance(topic, LogChannels) and not topic.stored.open:
            self.let_go(topic)  # it was deleted by its log topic's name
            topic = None
        if topic is not None:
            return topic
        if not valid_nsq_name(name):
            raise Refused(f'topic name "{printable(name)}" is not valid', nsq="E_BAD_TOPIC", http=400)
        rule = self._core.topics.rule(name)
        known = name in self._core.topics.by_name
        copied = not queue and level is None and self._is_copied(name)
        if known or rule.get("kind") == "log" or copied:
            face = self.log_face(name, 1 if copied else None)  # channels get what is in one queue in its order
            if face is not None:
                for call in [] if known else self.fresh_topic:
                    call(face)
                return face
        if self._is_full():
            self.limits.count("topics")
            raise LimitReached(f"no more than {self.limits.max_topics} topics", nsq="E_BAD_TOPIC", http=503)
        number = self.level_of(name) if level is None else LEVELS[level]
        if number >= LEVEL_PAIR:
            raise Refused(
                f"{printable(name)} would be a queue topic of level {LEVEL_NAMES[number]}, and queue topics have no copies: "
                "make it a log topic, or give it another level", nsq="E_BAD_TOPIC", http=400,
            )  # fmt: skip
        self._core.topics.demand_creation(self._core.time.now_ms)
        topic = None
        try:
            self._core.files.demand_descriptors()
            topic = self.make(name, number, 0)
            self._claims.begin_topic(name, self._core.store.end_position)
            self.changed(topic, not topic.ephemeral)
            if hasty and topic.level == LEVEL_OS:
                self.table.write(self.topics, name)
                self._flush.note_file(self.table.path, topic)
            else:
                self.write_table()
        except StoreError as error:  # a message in a topic that a restart forgets would be lost with it
            if topic is not None:
                self.delete(topic)
            raise Refused(
                f"topic not stored: {error}", remoting=ResponseCode.SERVICE_NOT_AVAILABLE, nsq="E_PUB_FAILED", http=503
            ) from error
        log.info("topic made name=%s kind=%s level=%s", printable(name), topic.kind, LEVEL_NAMES[topic.level])
        for call in self.fresh_topic:
            call(topic)
        return topic

    def _is_copied(self, name: bytes) -> bool:
        """Whether a new topic of this name is to be one that slaves have."""
        by_rule = "kind" not in self._core.topics.rule(name) and self.level_of(name) != LEVEL_MEMORY
        return by_rule and of_a_set(self._core.config) and not name.endswith(EPHEMERAL)

    def level_of(self, name: bytes) -> int:
        """The level of a new topic."""
        rule = self._core.topics.rule(name)
        return LEVELS[rule["level"]] if "level" in rule else self._default_level

    def make(self, name: bytes, level: int, floor: int) -> Topic:
        """A topic of kind `queue`; nothing below the ordinal `floor` is owed to anybody."""
        if level == LEVEL_MEMORY or name.endswith(EPHEMERAL):
            backend = None if name.endswith(EPHEMERAL) else self.folder.backend(name)
            topic: Topic = MemoryTopic(name, self, MemorySource(self.mem_queue_size, backend))
        else:
            topic = QueueTopic(name, level, self, self.folder.topic_stream(name, floor), floor)
        self.topics[name] = topic
        return topic

    def _is_full(self) -> bool:
        """Whether there are as many queue topics as may be. Log topics that NSQ sees are counted where they are made."""
        most = self.limits.max_topics
        return len(self.topics) >= most and sum(topic.kind == "queue" for topic in self.topics.values()) >= most

    def log_face(self, name: bytes, queues: int | None = None) -> Topic | None:
        """A log topic as NSQ sees it, made if need be. None where no log topic can have this name, or NSQ can have no topic of
        this name, as `%RETRY%group`: nsqd.dat and nsqlookupd are told of none such. Refused when it is new and may not be made.
        `queues`: one in place of a queue topic, with so many queues unless a rule says; it keeps for its channels what they
        have not finished, as that would.
        """
        topic = self.topics.get(name)
        if topic is not None or not valid_nsq_name(name):
            return topic
        fresh = name not in self._core.topics.by_name
        if fresh:
            try:
                check_topic_name(name)
            except Refused:
                return None
        sending, topics = self._core.sending, self._core.topics
        stored = sending.topic_to_write(name) if queues is None else sending.topic_to_write(name, queues=queues)
        if fresh and queues is not None:
            topics.keep(stored, stored.settings().more._replace(owed=True), self._core.time.now_ms)
        topic = LogChannels(stored, self, self._core)
        self.topics[name] = topic
        self.changed(topic, True)
        return topic

    def new_channel(self, name: bytes, topic: bytes, source: Source) -> Channel:
        """A channel with this broker's limits."""
        config = self._core.config
        known = self.topics.get(topic)
        # The first one is owed all there is; but what a log topic has deferred is a channel's own, and this is a new one.
        first = known is None or (known.kind == "queue" and not known.channels)
        self._claims.begin_once(
            topic, name, self._claims.since_topic(topic) if first else self._core.store.end_position
        )
        channel = Channel(
            name,
            topic,
            source,
            in_hand_max=config.max_in_flight_per_channel,
            msg_timeout_max_ms=config.max_msg_timeout_ms,
            attempts_max=self._core.topics.rule(topic).get("max_attempts", config.max_attempts),
            latency=Latency(config.e2e_processing_latency_window_time_ms) if self.percentiles else None,
            owner=self._owner,
        )
        channel.let_unread(config.max_unread_bytes)
        channel.tell_handed(self._owner.handed)
        channel.count_acknowledged(self._owner.acknowledged.queue)
        return channel

    def window(self, topic: Topic) -> int:
        """How far a channel may run past its first unfinished message."""
        return WINDOW_MAX if topic.kind == "queue" else self._core.config.channel_window

    # -- changing and going --------------------------------------------------------------------------------------

    def delete(self, topic: Topic) -> None:
        """Delete a topic with all its channels and messages. Refused for what the broker needs for itself."""
        if topic.kind == "log" and is_system_topic(self._core.config, topic.name.decode()):
            raise Refused(f"topic {printable(topic.name)} is the broker's own", http=403)
        if self.topics.pop(topic.name, None) is None:
            return
        log.info("topic deleted name=%s kind=%s", printable(topic.name), topic.kind)
        try:
            topic.remove()
        finally:  # it is gone, whatever a disk refuses
            self._gone(topic)

    def _gone(self, topic: Topic) -> None:
        self.folder.forget(topic.name)
        self._claims.forget_topic(topic.name)
        self._flush.forget(topic)
        self.changed(topic, not topic.ephemeral)

    def let_go(self, topic: LogChannels) -> None:
        """Its log topic is gone, or another one."""
        self.topics.pop(topic.name, None)
        try:
            topic.close()
        finally:
            self._flush.forget(topic)
            self.changed(topic, True)

    def forgotten(self, topic: Topic, channel: Channel) -> None:
        """A channel is deleted: nothing here keeps its name, nor itself."""
        self._owner.acknowledged.gone(topic.kind, channel.again.with_all(channel.finish_count))
        self._claims.forget(topic.name, channel.name)
        if not topic.channels and not topic.paused:
            self.forget_unclaimed(topic)
        self._turns.forget(channel)
        if topic.level != LEVEL_MEMORY and not channel.ephemeral:
            self._flush.note_removed(self.folder.cursor_path(topic.name, channel.name))

    def changed(self, topic: Topic, stored: bool, *, announce: bool = True) -> None:
        """A topic or a channel of it came, went, or was paused."""
        if stored and topic.kind == "log":
            self.lately.note(topic.name)
        self.table.changed(topic.name, stored)
        if announce:
            for call in self.announce:
                call(topic.name)

    def since(self, topic: Topic, channel: Channel) -> int:
        """Where in the log the channel's claims to deferred messages begin."""
        return self._claims.since(topic.name, channel.name)

    def owe_since(self, topic: Topic, channel: bytes, position: int) -> None:
        """They begin here, says the master; where that has emptied the channel, perhaps later than they did."""
        if self._claims.since(topic.name, channel) != position or channel not in topic.channels:
            self._claims.begin(topic.name, channel, position)
            self.table.changed(topic.name, True)

    def forget_deferred(self, topic: Topic, channel: Channel) -> None:
        """The channel was emptied: what was deferred for it so far is not its own any more."""
        self._claims.begin(topic.name, channel.name, self._core.store.end_position)
        channel.forget_deferred()
        self.changed(topic, True, announce=False)

    def forget_unclaimed(self, topic: Topic) -> None:
        """What was deferred in a topic without channels is owed to nobody any more."""
        self._claims.begin_topic(topic.name, self._core.store.end_position)

    def unclaimed(self, topic: Topic) -> int:
        """How many deferred messages are owed to the topic's first channel."""
        return self._claims.unclaimed(topic.name)

    def write_table(self) -> None:
        """The table of topics, when it changed. StoreError."""
        self.table.write(self.topics)

    # -- what a topic asks for -----------------------------------------------------------------------------------

    @property
    def time(self) -> BrokerClock:
        """The broker's."""
        return self._core.time

    def want_flush(self, topic: Topic) -> int:
        """Flush it as soon as can be; the number of that flush."""
        return self._flush.want(topic)

    def copied(
        self, schedule_id: int, topic: Topic, stream: ReadyQueue, ordinal: int, finished_in: CursorFile | None = None
    ) -> None:
        """An entry of the schedule is in this stream now; it is not over before this cursor has finished it there."""
        self._moving.arrive(schedule_id, topic, stream, ordinal, finished_in)

    def forget_copies(self, stream: ReadyQueue) -> None:
        """Nobody is owed what this stream holds."""
        self._moving.forget(stream)
