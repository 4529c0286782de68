"""Queueing: the NSQ side of a broker. Its topics and channels of both kinds, their timers, flushes and deferred messages.

A deferred message is appended to the commit log under the timer topic (that append is what is acknowledged) and kept
by the schedule like any delayed one; when it is due it goes into the ready queue of its topic, to the channels it is
owed to. A channel is owed those that were appended since it began or was last emptied. Level `memory` defers in memory.
Until the copy is durable the entry stays in the schedule (`moving`): a start finds the copy by its mark.

The table of topics and channels is nsqd's own `nsqd.dat`, with fields of ours that nsqd does not read.
"""

from __future__ import annotations

import heapq
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.broker.deferred import AGAIN_LANE, Deferred
from penstock.broker.logchannels import LogChannels
from penstock.broker.moving import Moving
from penstock.broker.queuetopics import (
    LEVEL_DISK,
    LEVEL_MEMORY,
    LEVEL_NAMES,
    LEVEL_OS,
    MemoryTopic,
    QueueTopic,
    Topic,
    shown,
    valid_nsq_name,
)
from penstock.broker.topics import TIMER_TOPIC
from penstock.delivery.channel import Channel
from penstock.delivery.cursor import CursorSource
from penstock.delivery.latency import Latency
from penstock.delivery.source import MemorySource, Source
from penstock.delivery.waiters import Outcome, Positions
from penstock.disk.cursorfile import WINDOW_MAX, CursorFile
from penstock.disk.diskqueue import DiskQueue
from penstock.disk.nsqdata import ChannelEntry, TopicEntry, read_nsqd_dat, row, write_rows
from penstock.disk.readyqueue import Pool, ReadyQueue, mark_of
from penstock.disk.readysegment import FULL
from penstock.errors import DiskFull, Refused, StoreError
from penstock.log.durability import Job, run_now
from penstock.wire.names import EPHEMERAL, NSQD_VERSION

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.queueing")

FLUSH_INTERVAL_MS = 500
FLUSH_WINDOW_MS = 1_000
TABLE_RETRY_MS = 1_000
FAR_MS = 1 << 62
TOPICS_MAX = 10_000
DONE_TOPIC = b"rmq_sys_penstock_done"  # records here say which entries of the schedule are over
DEAD_SUFFIX = b".dead"
_LEVELS = {name: number for number, name in enumerate(LEVEL_NAMES)}
_ESCAPED = re.compile(rb"[^a-zA-Z0-9_.-]|^\.")


def file_name(name: bytes) -> str:
    """A topic's or channel's name as part of a file name: letters, digits, `_`, `-`, inner dots; all else as %XX."""
    return _ESCAPED.sub(lambda m: b"%%%02X" % m[0][0], name).decode()


def _unless_gone(path: Path, flush: Callable[[], None]) -> None:
    """Flush what may be deleted at any moment."""
    try:
        flush()
    except StoreError:
        if path.exists():
            raise


class Ticket:
    """An answer that waits for a flush."""

    def __init__(self, number: int, queueing: Queueing) -> None:
        self.number = number
        self._queueing = queueing

    def then(self, call: Callable[[bool], None]) -> None:
        """`call(True)` once it is flushed, `call(False)` when the flush failed."""
        self._queueing.wait(self.number, call)


class Queueing:
    """See the module. `open` after the broker's store and tables; every method on the loop's thread."""

    def __init__(self, broker: Broker) -> None:
        config = broker.config
        self.broker = broker
        self.files = broker.files
        self.folder = Path(config.data)
        self.queues = self.folder / "queues"
        self.pool = Pool(self.queues, self.files)
        self.mem_queue_size = config.mem_queue_size
        self.topics: dict[bytes, Topic] = {}
        self.default_level = _LEVELS[config.level]
        self.started_ms = broker.now_ms
        self.healthy = True
        self.error = ""
        self.producers: set[Any] = set()
        self.announce: list[Callable[[bytes], None]] = []  # told of each topic that changed, by name
        self.fresh_topic: list[Callable[[Topic], None]] = []
        self.marked_topics: list[Topic] = []
        self.marked_channels: list[Channel] = []
        self._timers: list[tuple[int, int]] = []  # (due ms, number)
        self._timed: dict[int, Channel] = {}  # number → whose
        self._timer_of: dict[Channel, int] = {}
        self._timer_number = 0
        self._lagging: list[LogChannels] = []  # with messages that readers may not see yet
        self._log_flushed = self._log_reserved = 0
        self._dat_dirty = False
        self._dat_retry_ms = 0
        self._closing = False
        self._backends: dict[bytes, DiskQueue] = {}
        self._since: dict[tuple[bytes, bytes], int] = {}  # (topic, channel): deferred records from here on are its own
        self._dirty: dict[Topic, None] = {}
        self.dirty_since = -1  # when the oldest byte came that no finished flush has taken
        self.moving = Moving(self)
        self._early: dict[int, tuple[Deferred, bytes]] = {}  # due, and not on the disk yet
        self._when_copied: dict[int, list[Callable[[], None]]] = {}
        self._newer: dict[
            tuple[bytes, int, bytes], int
        ] = {}  # (topic, message, channel): the entry that a crash left last
        self._flush_running = False
        self.flush_wanted = False
        self._flush_started = 0  # number of the last flush that was begun
        self.flush_done = 0  # every flush up to this number succeeded
        self._flush_log: tuple[int, int] | None = None  # a flush that still waits for the log: (number, position)
        self.flushes = Positions()  # answers, by the number of the flush they wait for
        self._quantiles = [
            float(part) for part in re.split("[;,]", config.e2e_processing_latency_percentile) if part.strip()
        ]
        self._latency_ms = config.e2e_processing_latency_window_time_ms

    @property
    def mono_ms(self) -> int:
        return self.broker.mono_ms

    @property
    def percentiles(self) -> list[float]:
        """The quantiles of end-to-end times that are kept."""
        return self._quantiles

    # -- life ----------------------------------------------------------------------------------------------------

    def open(self, clean: bool = False) -> None:
        """Take up the topics and channels of `nsqd.dat`, ours or nsqd's own; `clean`: all files were flushed."""
        self.pool.sweep()
        for entry in read_nsqd_dat(self.files, self.folder):
            self._load(entry)
        self._count_deferred()
        if not clean:
            self._flush_again()
        self._dat_dirty = bool(self.topics)
        try:
            self.write_table()
        except DiskFull as error:
            log.error("nsqd.dat not written, tried again every second error=%s", error)

    def _load(self, entry: TopicEntry) -> None:
        name, more = entry.name.encode(), entry.more
        topic: Topic | None
        if more.get("kind") == "log":
            topic = self._log_face(name)
            if topic is None:
                return
        else:
            topic = self._make(name, _LEVELS.get(more.get("level", ""), self._level_of(name)), more.get("floor", 0))
            self.topics[name] = topic
        topic.paused = True  # nothing is handed over before every channel is there
        for part in entry.channels:
            channel_name = part.name.encode()
            # A power cut takes the log's last second: what is appended there anew is owed, too.
            self._since[name, channel_name] = min(int(part.more.get("since", 0)), self.broker.store.end_position)
            if isinstance(topic, QueueTopic):
                topic.channels[channel_name] = topic.load_channel(channel_name, topic.first())
            channel = topic.channel(channel_name)
            channel.paused = part.paused
            if isinstance(channel.source, CursorSource):
                channel.source.remembered = {
                    (lane, place): count for lane, place, count in part.more.get("attempts", ())
                }
        topic.paused = entry.paused
        if isinstance(topic, MemoryTopic):
            topic.hand_over()
        if isinstance(topic, QueueTopic):
            if entry.paused:
                topic.stream.visible = min(topic.stream.total, int(more.get("visible", topic.stream.total)))
            if "level" not in more:
                self._import(topic)
        topic.mark()

    def _flush_again(self) -> None:
        """The former process was killed: what it wrote is with the kernel, and is flushed before anything is answered."""
        for topic in self.topics.values():
            for channel in topic.channels.values():
                for lane in channel.source.lanes if isinstance(channel.source, CursorSource) else ():
                    lane.file.dirty, lane.file.named = True, False
            if topic.level != LEVEL_MEMORY:
                self._note_dirty(topic)
        self.moving.settle()
        if self._dirty:
            run_now([self._flush_job()], self.mono_ms)

    def close(self, clean: bool) -> None:
        """A clean stop writes out what is only in memory; everything is let go of. The log is flushed behind it."""
        clean = clean and self.healthy
        if clean:
            self._closing = True
            for topic in self.topics.values():
                topic.row = None  # they say now how often each message was tried
            self._dat_dirty = bool(self.topics)
            self.broker.flush_log()
            self.moving.settle()  # what went into the log is over here, then the other way round
            self.write_table()
            self._write_memory()
            for topic in self.topics.values():
                if topic.level != LEVEL_MEMORY:
                    self._note_dirty(topic)
            run_now([self._flush_job()], self.mono_ms)
            self.flush_done = max(self.flush_done, self._flush_started if self.healthy else 0)
            self.moving.settle()
            clean = self.healthy and not len(self.moving)
        for topic in self.topics.values():
            for stream in topic.streams():
                stream.close(clean)
        for backend in self._backends.values():
            try:
                backend.close()
            except StoreError as error:
                log.error("disk queue not closed cleanly name=%s error=%s", backend.name, error)
        self.pool.shrink()
        self.pool.remove(self.pool.take_gone())

    def _write_memory(self) -> None:
        for topic in self.topics.values():
            if not isinstance(topic, MemoryTopic) or topic.ephemeral:
                continue
            for channel in topic.channels.values():
                source = channel.source
                if isinstance(source, MemorySource) and not channel.ephemeral:
                    source.save((place, attempts) for _, place, _, attempts in channel.in_hand())
            for data, _ in topic.pending:
                topic.source.put([data])
            topic.source.save(())

    # -- topics --------------------------------------------------------------------------------------------------

    def holds(self, name: bytes) -> bool:
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
        if topic is None and name in self.broker.topics.by_name:
            topic = self._log_face(name)
        return topic

    def all(self) -> list[Topic]:
        """Every topic that NSQ sees, by name. Log topics of other protocols appear once an NSQ client named them."""
        found = [self.topics[name] for name in sorted(self.topics)]
        for topic in found:
            topic.refresh()
        return found

    def topic(self, name: bytes, level: str | None = None) -> Topic:
        """The topic of that name, made when it is new, at this level or what the rules say. Refused E_BAD_TOPIC."""
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        if not valid_nsq_name(name):
            raise Refused(f'topic name "{shown(name)}" is not valid', nsq="E_BAD_TOPIC", http=400)
        rule = self.broker.topics.rule(name)
        if name in self.broker.topics.by_name or rule.get("kind") == "log":
            face = self._log_face(name)
            if face is not None:
                return face
        if len(self.topics) >= TOPICS_MAX:
            raise Refused(f"no more than {TOPICS_MAX} topics", nsq="E_BAD_TOPIC", http=503)
        topic = self._make(name, self._level_of(name) if level is None else _LEVELS[level], 0)
        self.topics[name] = topic
        self.changed(topic, not topic.ephemeral)
        try:
            self.write_table()
        except StoreError as error:  # a message in a topic that a restart forgets would be lost with it
            self.delete(topic)
            raise Refused(f"topic not stored: {error}", remoting=14, nsq="E_PUB_FAILED", http=503) from error
        log.info("topic made name=%s kind=%s level=%s", shown(name), topic.kind, LEVEL_NAMES[topic.level])
        for call in self.fresh_topic:
            call(topic)
        return topic

    def _level_of(self, name: bytes) -> int:
        rule = self.broker.topics.rule(name)
        return _LEVELS[rule["level"]] if "level" in rule else self.default_level

    def _make(self, name: bytes, level: int, floor: int) -> Topic:
        if level == LEVEL_MEMORY or name.endswith(EPHEMERAL):
            backend = None if name.endswith(EPHEMERAL) else self.backend(name)
            return MemoryTopic(name, self, MemorySource(self.mem_queue_size, backend))
        stream = ReadyQueue(
            self.queues / file_name(name),
            file_name(name),
            self.broker.config.queue_segment_bytes,
            self.pool,
            self.files,
        )
        stream.open(max([floor, *self._committed(name)]))
        topic = QueueTopic(name, level, self, stream)
        topic.floor = floor
        return topic

    def _committed(self, name: bytes) -> Iterator[int]:
        """How far the channels of a topic have come: no new message may get an ordinal below."""
        folder = self.queues / file_name(name)
        for file in self.files.names(folder):
            if file.endswith(".cursor"):
                cursor = CursorFile(folder / file, self.files)
                cursor.open(0)
                yield cursor.reach()

    def _log_face(self, name: bytes) -> Topic | None:
        topic = self.topics.get(name)
        if topic is not None:
            return topic
        try:
            stored = self.broker.topics.get(name) or self.broker.topic_to_write(name)
        except Refused:
            return None
        topic = LogChannels(stored, self)
        self.topics[name] = topic
        self.changed(topic, True)
        return topic

    def delete(self, topic: Topic) -> None:
        """Delete a topic with all its channels and messages."""
        if self.topics.pop(topic.name, None) is None:
            return
        log.info("topic deleted name=%s kind=%s", shown(topic.name), topic.kind)
        topic.remove()
        self._dirty.pop(topic, None)
        self.changed(topic, not topic.ephemeral)

    def forgotten(self, topic: Topic, channel: Channel) -> None:
        """A channel is deleted: nothing here keeps its name, nor itself."""
        self._since.pop((topic.name, channel.name), None)
        self._forget_timer(channel)

    def changed(self, topic: Topic, stored: bool, *, announce: bool = True) -> None:
        """A topic or a channel of it came, went, or was paused."""
        topic.row = None
        if stored:
            self._dat_dirty = True
        if announce:
            for call in self.announce:
                call(topic.name)

    def save_table(self) -> None:
        """`write_table` for what nobody asked for by name, at the end of each turn; after a failure once a second."""
        if self._dat_dirty and self.mono_ms >= self._dat_retry_ms:
            try:
                self.write_table()
            except StoreError as error:
                self._dat_retry_ms = self.mono_ms + TABLE_RETRY_MS
                log.error("nsqd.dat not written, tried again every second error=%s", error)

    def write_table(self) -> None:
        """`nsqd.dat`, when it changed, before anybody is told of the change. StoreError; the next call tries again."""
        if self._dat_dirty:
            rows = [topic.row or self._row(topic) for topic in self.topics.values() if not topic.ephemeral]
            ours = any(topic.level != LEVEL_MEMORY for topic in self.topics.values())
            write_rows(self.files, self.folder, rows, NSQD_VERSION, ours=ours)
            self._dat_dirty = False

    def _row(self, topic: Topic) -> bytes:
        """A topic in the table. It is kept until `changed`, unless it says what changes with every message."""
        made = row(self._entry(topic))
        if not self._closing and not (isinstance(topic, QueueTopic) and (topic.paused or topic.passing)):
            topic.row = made
        return made

    def _entry(self, topic: Topic) -> TopicEntry:
        more: dict[str, Any] = {"level": LEVEL_NAMES[topic.level]}
        if topic.kind == "log":
            more["kind"] = "log"
        if isinstance(topic, QueueTopic):
            more["floor"] = topic.floor
            if topic.passing and not topic.cursors():  # ephemeral channels had it all, and nobody else is owed it
                more["floor"] = topic.stream.visible
            if topic.paused:
                more["visible"] = topic.stream.visible
        channels = []
        for channel in topic.channels.values():
            if not channel.ephemeral:
                about: dict[str, Any] = {"since": self._since.get((topic.name, channel.name), 0)}
                if self._closing and isinstance(channel.source, CursorSource):
                    about["attempts"] = [[lane, at, count] for lane, at, _, count in channel.in_hand() if count]
                channels.append(ChannelEntry(channel.name.decode(), bool(channel.paused), about))
        return TopicEntry(topic.name.decode(), bool(topic.paused), tuple(channels), more)

    # -- what topics ask for -------------------------------------------------------------------------------------

    def new_channel(self, name: bytes, topic: bytes, source: Source) -> Channel:
        """A channel with this broker's limits."""
        config = self.broker.config
        self._since.setdefault((topic, name), self.broker.store.end_position if self._has_channels(topic) else 0)
        return Channel(
            name,
            topic,
            source,
            msg_timeout_max_ms=config.max_msg_timeout_ms,
            attempts_max=self.broker.topics.rule(topic).get("max_attempts", config.max_attempts),
            latency=Latency(self._latency_ms) if self._quantiles else None,
            owner=self,
        )

    def _has_channels(self, name: bytes) -> bool:
        topic = self.topics.get(name)
        return topic is not None and bool(topic.channels)

    def cursor_path(self, topic: bytes, channel: bytes, lane: str = "") -> Path:
        """Where a channel's place in a stream is kept."""
        return self.queues / file_name(topic) / f"{file_name(channel)}{lane}.cursor"

    def has_stream(self, topic: bytes, channel: bytes) -> bool:
        """Whether a channel of a log topic has a ready queue of its own."""
        return (self.queues / file_name(topic) / f"{file_name(channel)}.again").is_dir()

    def stream(self, topic: bytes, channel: bytes, ordinal: int) -> ReadyQueue:
        """The ready queue of a channel of a log topic, opened."""
        folder = self.queues / file_name(topic) / f"{file_name(channel)}.again"
        stream = ReadyQueue(folder, file_name(channel), self.broker.config.queue_segment_bytes, self.pool, self.files)
        stream.open(ordinal)
        stream.stamped = True
        return stream

    def window(self, topic: Topic) -> int:
        """How far a channel may run past its first unfinished message."""
        return WINDOW_MAX if topic.kind == "queue" else self.broker.config.channel_window

    def backend(self, name: bytes) -> DiskQueue:
        """The diskqueue of a topic (`t`) or channel (`t:c`), opened."""
        found = self._backends.get(name)
        if found is None:
            config = self.broker.config
            found = self._backends[name] = DiskQueue(
                self.folder,
                name.decode(),
                self.files,
                max_bytes_per_file=config.max_bytes_per_file,
                sync_every=config.sync_every,
                sync_timeout_ms=config.sync_timeout_ms,
                payload_bytes=(26, config.max_msg_size + 26),
            )
        return found

    # -- publishing ----------------------------------------------------------------------------------------------

    def refusal(self, answer: int) -> Refused:
        """Why a publish cannot be stored."""
        if answer == FULL:
            return Refused("the disk is full: nothing is stored until there is room", nsq="E_PUB_FAILED", http=503)
        return Refused("the disk failed: restart the broker", nsq="E_PUB_FAILED", http=503)

    def now_ns(self) -> int:
        """The time for ids and timestamps: the broker's own, in ns."""
        return self.broker.now_ns

    def publish(self, topic: Topic, bodies: Sequence[bytes], defer_ms: int = 0) -> Ticket | None:
        """Store messages, all or none; a ticket where the answer must wait for a flush. Refused E_PUB_FAILED."""
        if not self.healthy and topic.level != LEVEL_MEMORY:
            raise self.refusal(2)
        now_ns = self.now_ns()
        if defer_ms > 0:
            for body in bodies:
                self.defer_publish(topic, body, defer_ms)
            return self.ticket(topic)
        answer = topic.ready(sum(map(len, bodies)), len(bodies))
        if answer:
            raise self.refusal(answer)
        last = len(bodies) - 1
        try:
            for number, body in enumerate(bodies):
                self._put(topic, now_ns, body, number < last)
            topic.placed()
        except StoreError as error:
            raise Refused(str(error), nsq="E_PUB_FAILED", http=503) from error
        return self.ticket(topic)

    @staticmethod
    def _put(topic: Any, now_ns: int, body: bytes, more: bool) -> None:
        topic.put_bytes(now_ns, body, more)

    def ticket(self, topic: Topic) -> Ticket | None:
        """What the answer to a publish must wait for."""
        if topic.level == LEVEL_DISK or (topic.level == LEVEL_OS and self.blocked()):
            return Ticket(self.want_flush(topic), self)
        return None

    def blocked(self) -> bool:
        """Whether something acknowledged has been unflushed for longer than level `os` allows."""
        if 0 <= self.dirty_since < self.mono_ms - FLUSH_WINDOW_MS:
            return True
        return self.broker.store.blocked(self.mono_ms)  # deferred messages are the log's

    def defer_publish(self, topic: Topic, body: bytes, defer_ms: int) -> None:
        """DPUB: the message reaches its channels after `defer_ms`. Refused when it cannot be stored."""
        now_ns = self.now_ns()
        if isinstance(topic, MemoryTopic):
            topic.defer(now_ns, body, defer_ms)
            return
        topic.message_count += 1
        topic.message_bytes += len(body)
        if isinstance(topic, LogChannels):
            due = {"TIMER_DELIVER_MS": str(self.broker.now_ms + defer_ms)}
            store_host, now_ms = self.broker.store_host, self.broker.now_ms
            self.broker.put(topic.stored, 0, body, due, born_host=store_host, born_ms=now_ms)
            return
        assert isinstance(topic, QueueTopic)
        message_id = topic.new_id(now_ns)
        self._append_deferred(Deferred(topic.name, b"", message_id, 0, message_id), body, defer_ms)
        for channel in topic.channels.values():
            channel.deferred_elsewhere += 1

    def _append_deferred(self, about: Deferred, body: bytes, delay_ms: int) -> None:
        broker = self.broker
        timer = broker.topics.by_name[TIMER_TOPIC]
        properties = about.properties() | {"TIMER_DELIVER_MS": str(broker.now_ms + delay_ms)}
        broker.put(timer, 0, body, properties, born_host=broker.store_host, born_ms=broker.now_ms)

    # -- deferred messages ---------------------------------------------------------------------------------------

    def defer(self, channel: Channel, slot: int, delay_ms: int) -> bool:
        """REQ with a delay: the schedule takes it over. False: the channel keeps it in memory."""
        if isinstance(channel.source, MemorySource):
            return False
        slots, source = channel.slots, channel.source
        lane, place = slots.lane[slot], slots.place[slot]
        if not source.show(lane, place):
            return False
        topic = self.topics.get(channel.topic_name)
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
            self._append_deferred(about, self._body(source), delay_ms)
        except Refused:
            return False
        self.moving.leave(channel, lane, place, position=self.broker.store.end_position)
        return True

    @staticmethod
    def _body(source: Any) -> bytes:
        body: bytes = source.body()
        return body

    def deliver(self, about: Deferred, body: bytes, schedule_id: int) -> bool:
        """A deferred message is due: to its topic, for the channels it is owed to. False: try again."""
        topic = self.topics.get(about.topic)
        if topic is None:
            return self.over(schedule_id)
        if schedule_id > self.broker.store.flushed_position:  # a copy without its entry would belong to nobody
            self._early[schedule_id] = (about, body)
            self.broker.store.want_flush()
            return True
        owed = self._owed(topic, about, schedule_id - 1)
        if owed is not None and not owed:
            return self.over(schedule_id)
        if topic.redeliver(about.stamp_ns, about.id, about.attempts, body, owed, schedule_id):
            return False
        self.cancelled(about, schedule_id)
        return self.over(schedule_id) if topic.level == LEVEL_MEMORY else True

    def owed(self, about: Deferred, schedule_id: int) -> tuple[Topic, list[bytes]] | None:
        """The topic and channels that wait for a deferred message; None when nobody does any more."""
        topic = self.topics.get(about.topic)
        owed = set() if topic is None else self._owed(topic, about, schedule_id - 1)
        if topic is None or (owed is not None and not owed):
            return None
        return topic, sorted(topic.channels if owed is None else owed)

    def cancelled(self, about: Deferred, schedule_id: int) -> None:
        """Its channels do not wait for a deferred message any more."""
        topic, names = self.owed(about, schedule_id) or (None, [])
        for name in names:
            channel = None if topic is None else topic.channels.get(name)
            if channel is not None and channel.deferred_elsewhere > 0:
                channel.deferred_elsewhere -= 1

    def _owed(self, topic: Topic, about: Deferred, physical: int) -> set[bytes] | None:
        """The channels a deferred message is meant for; None: all there are."""
        name = about.channel
        if name:
            newer = self._newer.get((topic.name, about.id, name), 0) > physical + 1
            since = self._since.get((topic.name, name), 0)
            return {name} if name in topic.channels and physical >= since and not newer else set()
        owed = {name for name in topic.channels if physical >= self._since.get((topic.name, name), 0)}
        if self._newer:
            owed = {name for name in owed if self._newer.get((topic.name, about.id, name), 0) <= physical + 1}
        return None if len(owed) == len(topic.channels) else owed

    def is_copied(self, schedule_id: int) -> bool:
        """Whether an entry of the schedule is in its topic's queue already and only waits for that to be durable."""
        return schedule_id in self._early or self.moving.has(schedule_id)

    def _deliver_early(self) -> None:
        """What was due before the flush of its record, and is durable now."""
        flushed = self.broker.store.flushed_position
        for schedule_id in [id_ for id_ in self._early if id_ <= flushed]:
            about, body = self._early.pop(schedule_id)
            if not self.deliver(about, body, schedule_id):
                self.broker.schedule.put_back(schedule_id)
            for call in self._when_copied.pop(schedule_id, ()):
                call()

    def when_copied(self, schedule_id: int, call: Callable[[], None]) -> None:
        """Call once a message that was fired is in its queue: now, or behind the flush of its entry."""
        if schedule_id in self._early:
            self._when_copied.setdefault(schedule_id, []).append(call)
        else:
            call()

    def over(self, schedule_id: int) -> bool:
        """Tell the log that an entry of the schedule is delivered or cancelled. False when it cannot be told now."""
        broker = self.broker
        topic = broker.topics.by_name[DONE_TOPIC]
        try:
            broker.put(topic, 0, b"", {}, born_host=broker.store_host, born_ms=broker.now_ms, prepared=schedule_id)
        except Refused:
            return False
        return True

    def forget_deferred(self, topic: Topic, channel: Channel) -> None:
        """The channel was emptied: what was deferred for it so far is not its own any more."""
        self._since[topic.name, channel.name] = self.broker.store.end_position
        channel.deferred_elsewhere = 0
        self.changed(topic, True, announce=False)

    def _count_deferred(self) -> None:
        """After a start: how many deferred messages each channel waits for, and which are copied already."""
        marked: dict[tuple[int, int], list[tuple[Topic, ReadyQueue, int]]] = {}
        for topic in self.topics.values():
            for stream in topic.streams():
                for mark, message_id, ordinal in stream.marked():
                    marked.setdefault((mark, message_id), []).append((topic, stream, ordinal))
        entries: list[tuple[int, Deferred, Topic]] = []
        for due in self.broker.schedule.entries():
            about = self.broker.delayed_entry(due)
            found = None if about is None else self.topics.get(about.topic)
            if about is not None and found is not None:
                entries.append((due.id, about, found))
                if about.channel:  # given back again: what it was given back from is over, even where it lost its copy
                    key = about.topic, about.id, about.channel
                    self._newer[key] = max(due.id, self._newer.get(key, 0))
        for id_, about, topic_of in entries:
            owed = self._owed(topic_of, about, id_ - 1)
            names = set(topic_of.channels) if owed is None else owed
            copies = [
                (stream, ordinal)
                for topic, stream, ordinal in marked.get((mark_of(id_), about.id), ())
                if topic is topic_of
            ]
            self._finish_original(topic_of, about)
            if copies:
                for stream, ordinal in copies:
                    self.moving.arrive(id_, topic_of, stream, ordinal)
                self.broker.schedule.fire_now(id_)
                self._hide_copies(topic_of, copies, names)
                continue
            for name in names:
                topic_of.channels[name].deferred_elsewhere += 1

    @staticmethod
    def _finish_original(topic: Topic, about: Deferred) -> None:
        """The schedule has what was given back with a delay: its old place is done, if a crash came before that.

        Also where the entry is owed to nobody any more: what is newer than the entry is newer than that place.
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
            if unfinished and stream.find(about.place) and stream.message_id == about.id:
                source.finish_ahead(lane.number, about.place)

    @staticmethod
    def _hide_copies(topic: Topic, copies: list[tuple[ReadyQueue, int]], names: set[bytes]) -> None:
        """A copy in the queue of all channels is nothing to those it is not owed to."""
        if isinstance(topic, QueueTopic):
            for name, channel in topic.channels.items():
                for _, ordinal in copies:
                    if name not in names and not topic.has_finished(name, ordinal):
                        channel.source.finish_ahead(0, ordinal)

    # -- dead letters --------------------------------------------------------------------------------------------

    def bury(self, channel: Channel, slot: int, why: str) -> bool:
        """Store a message with the dead letters of its channel; False when it cannot be now."""
        slots, source = channel.slots, channel.source
        if not source.show(slots.lane[slot], slots.place[slot]):
            return True  # damaged: there is nothing to keep
        origin = self.topics.get(channel.topic_name)
        try:
            if isinstance(origin, LogChannels):
                origin.bury(channel, slots.lane[slot], slots.place[slot], slots.attempts[slot], self._body(source))
                position = self.broker.store.end_position
                self.moving.leave(channel, slots.lane[slot], slots.place[slot], position=position, flush=0)
                return True
            dead = self.topic(dead_letter_name(channel.topic_name, channel.name))
            if dead.name == channel.topic_name:
                return False
            self.publish(dead, [self._body(source)])
        except Refused as refused:
            log.warning("dead letter not stored topic=%s error=%s", shown(channel.topic_name), refused)
            return False
        if dead.level != LEVEL_MEMORY:
            flush = 0 if dead.kind == "log" else self.want_flush(dead)
            position = self.broker.store.end_position if dead.kind == "log" else 0
            self.moving.leave(channel, slots.lane[slot], slots.place[slot], position=position, flush=flush)
        return True

    # -- turns ---------------------------------------------------------------------------------------------------

    def mark_channel(self, channel: Channel) -> None:
        """Look at a channel when the turn ends."""
        if not channel.marked:
            channel.marked = True
            self.marked_channels.append(channel)

    def due(self, channel: Channel) -> None:
        """The channel's next moment may be earlier than known."""
        due_ms = channel.due_ms()
        if due_ms and (not channel.timer_ms or due_ms < channel.timer_ms):
            channel.timer_ms = due_ms
            self._forget_timer(channel)
            self._timer_number += 1
            self._timed[self._timer_number] = channel
            self._timer_of[channel] = self._timer_number
            heapq.heappush(self._timers, (due_ms, self._timer_number))

    def _forget_timer(self, channel: Channel) -> None:
        """A deleted channel's messages were in flight for a minute yet: nothing here keeps it, and its files, alive."""
        self._timed.pop(self._timer_of.pop(channel, 0), None)

    def arrived(self, queues: list[Any]) -> None:
        """These message queues of log topics have something new."""
        for queue in queues:
            topic = self.topics.get(queue.topic)
            if topic is not None:
                topic.mark()

    def end_turn(self) -> None:
        """Hand out messages, note what must be flushed."""
        mono_ms = self.mono_ms
        self.moving.settle()
        if self._early:
            self._deliver_early()
        if self._lagging and (self._log_flushed, self._log_reserved) != self._log_state():
            self._log_flushed, self._log_reserved = self._log_state()
            for face in self._lagging:
                face.mark()
            self._lagging = []
        while self.marked_topics or self.marked_channels:
            topics, self.marked_topics = self.marked_topics, []
            for topic in topics:
                topic.marked = False
                for channel in topic.channels.values():
                    channel.pump(mono_ms)
                if isinstance(topic, LogChannels) and topic.rewatch():
                    self._lagging.append(topic)
                if topic.level != LEVEL_MEMORY:
                    self._note_dirty(topic)
            channels, self.marked_channels = self.marked_channels, []
            for channel in channels:
                if channel.marked:
                    channel.pump(mono_ms)
                topic = self.topics.get(channel.topic_name)  # type: ignore[assignment]
                if topic is not None and topic.level != LEVEL_MEMORY:
                    self._note_dirty(topic)
        if self._flush_log is not None:
            self._flush_finished()
        if not self.healthy:
            self.flushes.fail()  # who began to wait after the failure
        self.moving.settle()
        if self._dat_dirty:
            self.save_table()

    def _log_state(self) -> tuple[int, int]:
        store = self.broker.store
        return store.flushed_position, sum(queue.reserved for topic in self._lagging for queue in topic.stored.queues)

    def _note_dirty(self, topic: Topic) -> None:
        if not topic.dirty:
            topic.dirty = True
            self._dirty[topic] = None
            if self.dirty_since < 0:
                self.dirty_since = self.mono_ms
        topic.trim()

    def tick(self) -> int:
        """What is due now; when something will be again."""
        mono_ms = self.mono_ms
        timers = self._timers
        while timers and timers[0][0] <= mono_ms:
            number = heapq.heappop(timers)[1]
            channel = self._timed.pop(number, None)
            if channel is None:
                continue
            self._timer_of.pop(channel, None)
            channel.timer_ms = 0
            if channel.tick(mono_ms):
                self.mark_channel(channel)
            self.due(channel)
        next_ms = timers[0][0] if timers else mono_ms + 60_000
        for backend in self._backends.values():
            try:
                due = backend.tick(mono_ms)
            except DiskFull:
                due = mono_ms + FLUSH_WINDOW_MS  # it stays as it was on disk, and is tried again
            except StoreError as error:
                self.fail(error)
                break
            if due is not None:
                next_ms = min(next_ms, due)
        flush_ms = self.flush_due_ms()
        return next_ms if flush_ms is None else min(next_ms, max(mono_ms, flush_ms))

    def next_due_ms(self) -> int:
        """The earliest moment this turn may have added; far away when there is none."""
        due_ms = self._timers[0][0] if self._timers else FAR_MS
        if self.dirty_since < 0 and not self.flush_wanted:
            return due_ms
        flush_ms = self.flush_due_ms()
        return due_ms if flush_ms is None or due_ms < flush_ms else flush_ms

    # -- flushing ------------------------------------------------------------------------------------------------

    def want_flush(self, topic: Topic) -> int:
        """Somebody waits: flush as soon as can be. The number of the flush that covers everything so far."""
        self.flush_wanted = True
        self._note_dirty(topic)
        self.broker.store.want_flush()
        return self._flush_started + 1

    def next_flush(self, topic: Topic) -> int:
        """The number of the flush that takes what the topic has now; 0 when it is gone."""
        if not topic.open:
            return 0
        self._note_dirty(topic)
        return self._flush_started + 1

    def wait(self, number: int, call: Callable[[bool], None]) -> None:
        """`call` when flush `number` is done, or has failed."""
        if not self.healthy:
            call(False)
        elif number <= self.flush_done:
            call(True)
        else:
            self.flushes.wait(number, self, lambda outcome: call(outcome == Outcome.REACHED))

    def flush_due_ms(self) -> int | None:
        """When the next flush must begin, or None."""
        if self._flush_running or not self.healthy or self._flush_log is not None:
            return None
        if self.flush_wanted:
            return 0
        return None if self.dirty_since < 0 else self.dirty_since + FLUSH_INTERVAL_MS

    def take_jobs(self) -> list[Job]:
        """The flush that is due, and files to be removed."""
        jobs = []
        # A flush may still be at work on what was let go of since it began: its files stay open until it is done.
        gone = [] if self._flush_running else self.pool.take_gone()
        due_ms = self.flush_due_ms()
        if due_ms is not None and due_ms <= self.mono_ms:
            jobs.append(self._flush_job())
        if gone:
            jobs.append(Job("clean", lambda: self.pool.remove(gone)))
        return jobs

    def _flush_job(self) -> Job:
        segments: list[Any] = []
        cursors: list[CursorFile] = []
        committed: list[int] = []
        folders: set[Path] = set()
        totals: list[tuple[Topic, int]] = []
        for topic in self._dirty:
            topic.dirty = False
            for stream in topic.streams():
                if stream.unflushed and not (topic.level == LEVEL_OS and topic.idle()):
                    segments += stream.take_flush()
                    totals.append((topic, stream.total))
                    if stream.renamed:
                        stream.renamed = False
                        folders |= {stream.folder, stream.folder.parent, self.queues, self.folder}
            for channel in topic.channels.values():
                for lane in channel.source.lanes:
                    file = lane.file
                    if file.dirty:
                        file.dirty = False
                        cursors.append(file)
                        committed.append(file.committed)
                        if not file.named:
                            file.named = True
                            folders |= {file.path.parent, self.queues, self.folder}
        self._dirty = {}
        began_ms = self.mono_ms
        self.flush_wanted = False
        self._flush_running = True
        self._flush_started += 1
        number, position = self._flush_started, self.broker.store.end_position
        files = self.files

        def run() -> None:
            for segment in segments:
                segment.datasync()
            for cursor in cursors:
                _unless_gone(cursor.path, cursor.datasync)
            for folder in sorted(folders, reverse=True):
                _unless_gone(folder, partial(files.sync_folder, folder))

        def finish(error: BaseException | None, mono_ms: int) -> None:
            self._flush_running = False
            if error is not None:
                self.fail(error)
                return
            self.dirty_since = began_ms if self._dirty else -1
            for cursor, ordinal in zip(cursors, committed, strict=True):
                cursor.durable = ordinal
            for topic, total in totals:
                topic.flushed(total)
            self._flush_log = (number, position)
            self._flush_finished()

        return Job("flush", run, finish)

    def _flush_finished(self) -> None:
        """The queue files are durable; so must be what was deferred through the log meanwhile."""
        assert self._flush_log is not None
        number, position = self._flush_log
        store = self.broker.store
        if not store.healthy:
            self.fail(StoreError("the flush of the log failed"))
            return
        if store.flushed_position < position:  # sessions wait for the number alone: nobody need be in `flushes`
            store.want_flush()
            return
        self._flush_log = None
        self.flush_done = number
        self.moving.settle()
        self.flushes.settle(number)

    def fail(self, error: BaseException) -> None:
        """A flush failed: nothing is acknowledged any more (rule W5)."""
        self.healthy = False
        self.error = str(error)
        self._flush_log = None
        log.error("flush failed, no publish is accepted until a restart error=%s", error)
        self.flushes.fail()

    # -- taking over an nsqd folder ------------------------------------------------------------------------------

    def _import(self, topic: QueueTopic) -> None:
        """Messages in nsqd's diskqueue files move into the ready queue, each for the channel it waited in."""
        sources = [(topic.name, None), *((topic.name + b":" + name, {name}) for name in topic.channels)]
        moved = 0
        for name, owed in sources:
            if not any(file.startswith(name.decode() + ".diskqueue.") for file in self.files.names(self.folder)):
                continue
            backend = self.backend(name)
            while True:
                payloads = backend.take(1000)
                if not payloads:
                    break
                for data in payloads:
                    if len(data) < 27:
                        continue
                    stamp = max(1, int.from_bytes(data[:8], signed=True), topic.stream.last_id + 1)
                    topic.stream.last_id = stamp
                    answer = topic.redeliver(stamp, stamp, int.from_bytes(data[8:10]), data[26:], owed)
                    if answer:
                        raise self.refusal(answer)
                    moved += 1
                for segment in topic.stream.take_flush():
                    segment.datasync()
                for cursor in topic.cursors():
                    cursor.datasync()
                for folder in (topic.stream.folder, self.queues, self.folder):  # nsqd's files go: ours have names now
                    self.files.sync_folder(folder)
                backend.done(len(payloads))
            self._backends.pop(name).delete()
        if moved:
            log.info("messages taken over from nsqd's files topic=%s count=%d", shown(topic.name), moved)


def dead_letter_name(topic: bytes, channel: bytes) -> bytes:
    """The dead-letter topic of a channel, at most 64 characters."""
    topic, channel = topic.partition(b"#")[0], channel.partition(b"#")[0]
    name = topic + b"." + channel
    return name[: 64 - len(DEAD_SUFFIX)] + DEAD_SUFFIX
