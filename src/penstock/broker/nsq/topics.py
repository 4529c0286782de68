"""Topics as NSQ sees them: publish, channels, pause, empty. `QueueTopic` keeps its messages in a ready queue, one copy
for all channels; a `MemoryTopic` (`memorytopics`) hands each channel a copy of its own.

Publishing is three steps, so that MPUB is all or nothing: `ready` (is there room for all of it), `put` for each
message, `placed` (readers may see them). Between the first and the last nothing can fail.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Protocol

import cython

from penstock.broker.clock import BrokerClock
from penstock.broker.levels import LEVEL_DISK, LEVEL_OS
from penstock.broker.nsq.folder import QueueFolder
from penstock.broker.nsq.names import EPHEMERAL, bad_channel, printable, too_many_channels, valid_nsq_name
from penstock.broker.nsq.sources import cursors, finish_ahead, lanes
from penstock.delivery.channel import Channel
from penstock.delivery.passing import PassingSource
from penstock.delivery.source import Source
from penstock.disk.cursorfile import CursorFile
from penstock.disk.readyqueue import mark_of
from penstock.limits import Limits
from penstock.octets import Readable

if cython.compiled:
    from cython.cimports.penstock.delivery.cursor import CursorSource, Lane
    from cython.cimports.penstock.disk.readyqueue import ReadyQueue
else:
    from penstock.delivery.cursor import CursorSource, Lane
    from penstock.disk.readyqueue import ReadyQueue

log = logging.getLogger("penstock.queueing")

Owed = set[bytes] | None  # the channels that a deferred message is for; None: all there are

_ID_MAX = 1 << 62  # the nanoseconds of a time in 2116
_RECORD_BYTES = 19  # of a record in a ready queue, beside the body


class TopicRegistry(Protocol):
    """What a topic needs of the queue side that keeps it."""

    @property
    def folder(self) -> QueueFolder:
        """Where its files are."""

    @property
    def limits(self) -> Limits:
        """How much there may be."""

    @property
    def mem_queue_size(self) -> int:
        """How many messages a queue in memory holds."""

    @property
    def time(self) -> BrokerClock:
        """The broker's."""

    @property
    def marks(self) -> list[Topic]:
        """The topics whose channels are looked at when the turn ends; each puts itself there, once."""

    @property
    def later(self) -> dict[Topic, int]:
        """Topics that have more to hand over to their channels, and when they are marked for it (monotonic ms)."""

    def changed(self, topic: Topic, stored: bool, *, announce: bool = True) -> None:
        """It or a channel of it came, went, or was paused."""

    def delete(self, topic: Topic) -> None:
        """It is ephemeral, and its last channel is gone."""

    def want_flush(self, topic: Topic) -> int:
        """Flush it as soon as can be."""

    def window(self, topic: Topic) -> int:
        """How far a channel of it may run past its first unfinished message."""

    def new_channel(self, name: bytes, topic: bytes, source: Source) -> Channel:
        """A channel with the broker's limits."""

    def forgotten(self, topic: Topic, channel: Channel) -> None:
        """A channel is deleted."""

    def forget_deferred(self, topic: Topic, channel: Channel) -> None:
        """A channel was emptied: what was deferred for it so far is not its own any more."""

    def forget_unclaimed(self, topic: Topic) -> None:
        """What was deferred in a topic without channels is owed to nobody any more."""

    def unclaimed(self, topic: Topic) -> int:
        """How many deferred messages are owed to its first channel."""

    def copied(
        self, schedule_id: int, topic: Topic, stream: ReadyQueue, ordinal: int, finished_in: CursorFile | None = None
    ) -> None:
        """An entry of the schedule is in this stream now; it is not over before this cursor has finished it there."""

    def forget_copies(self, stream: ReadyQueue) -> None:
        """Nobody is owed what this stream holds."""


class Topic:
    """What every kind has in common. What a kind must bring raises NotImplementedError here: a compiled class, which sessions
    call without a look-up, can be neither a protocol nor abstract.
    """

    kind = "queue"

    def __init__(self, name: bytes, level: int, registry: TopicRegistry) -> None:
        self.name = name
        self.level = level
        self.registry = registry
        self._marks = registry.marks
        self.ephemeral = name.endswith(EPHEMERAL)
        self.paused = False
        self.open = True
        self.marked = False
        self.channels: dict[bytes, Channel] = {}
        self.message_count = 0
        self.message_bytes = 0

    def ready(self, size: int, count: int, gathers: bool = False) -> int:
        """Room for `count` messages whose bodies have `size` bytes together: 0, FULL (1) or BROKEN (2). `gathers`: the caller
        answers nobody before `Gathering.settle`, and the system may have what is put only then.
        """
        raise NotImplementedError

    def put(self, now_ns: int, body: Readable, at: int, length: int, more: int) -> int:
        """One message; `more` says that messages of the same batch follow. Returns 0."""
        if cython.compiled:
            data: bytes = body[at : at + length]  # type: ignore[assignment]
        else:
            data = bytes(body[at : at + length])
        self.put_bytes(now_ns, data, bool(more))
        return 0

    def put_bytes(self, now_ns: int, body: bytes, more: bool) -> None:
        """`put` for a whole object."""
        self.put(now_ns, body, 0, len(body), more)

    def placed(self) -> int:
        """The batch is whole. Returns 0."""
        raise NotImplementedError

    def pump(self, mono_ms: int) -> None:
        """The turn ends: the channels hand out what they have."""
        self.marked = False
        for channel in self.channels.values():
            channel.pump(mono_ms)

    def mark(self) -> int:
        """The channels have something to look at when the turn ends."""
        if not self.marked:
            self.marked = True
            self._marks.append(self)
        return 0

    def count(self, size: int) -> None:
        """A message of `size` bytes was published by another way."""
        self.message_count += 1
        self.message_bytes += size

    def loading(self) -> None:
        """Nothing is handed over before every channel of the table is there."""
        self.paused = True

    def loaded(self, paused: bool) -> None:
        """Every channel of the table is there."""
        self.paused = paused

    def depth(self) -> int:
        """Messages that no channel has: there is none, or the topic is paused."""
        raise NotImplementedError

    def backend_depth(self) -> int:
        """How many of those lie on disk only."""
        return 0

    def streams(self) -> list[ReadyQueue]:
        """The ready queues of this topic, which must be flushed."""
        return []

    def trim(self) -> int:
        """Let go of segments that every channel has finished. Returns 0."""
        return 0

    def idle(self) -> bool:
        """Nothing is owed to anybody: no flush of messages is needed."""
        return False

    def flushed(self, total: int) -> None:
        """Everything of the ready queue below this ordinal is durable."""

    def refresh(self) -> None:
        """Bring figures up to date that are not kept message by message."""

    # -- channels ------------------------------------------------------------------------------------------------

    def channel(self, name: bytes) -> Channel:
        """The channel of that name, made when it is new. Refused E_BAD_CHANNEL."""
        channel = self.channels.get(name)
        if channel is None:
            if not valid_nsq_name(name):
                raise bad_channel(name)
            limits = self.registry.limits
            if len(self.channels) >= limits.max_channels_per_topic:
                limits.count("channels")
                raise too_many_channels(limits.max_channels_per_topic)
            channel = self._make_channel(name, name.endswith(EPHEMERAL))
            self.channels[name] = channel
            self._took_channel(channel)
            log.info("channel made topic=%s name=%s", printable(self.name), printable(name))
            self.registry.changed(self, not channel.ephemeral)
        return channel

    def _make_channel(self, name: bytes, ephemeral: bool) -> Channel:
        raise NotImplementedError

    def _took_channel(self, channel: Channel) -> None:
        """The channel is in the table now."""
        self.mark()

    def delete_channel(self, name: bytes) -> bool:
        """Drop a channel and all it holds, end its consumers' connections; False when there was none."""
        channel = self.channels.pop(name, None)
        if channel is None:
            return False
        channel.end()
        log.info("channel deleted topic=%s name=%s", printable(self.name), printable(name))
        self.registry.forgotten(self, channel)
        try:
            self._drop_channel(channel)
        finally:  # it is gone, whatever a disk refuses
            for consumer in list(channel.consumers):
                consumer.close()
            self.registry.changed(self, not channel.ephemeral)
            if self.ephemeral and not self.channels:
                self.registry.delete(self)
        return True

    def _drop_channel(self, channel: Channel) -> None:
        raise NotImplementedError

    def pause(self) -> None:
        """Channels get nothing more; publishing goes on."""
        if not self.paused:
            self.paused = True
            self._paused()
            self.registry.changed(self, True, announce=False)

    def unpause(self) -> None:
        """Channels get what came meanwhile."""
        if self.paused:
            self.paused = False
            self._paused()
            self.mark()
            self.registry.changed(self, True, announce=False)

    def _paused(self) -> None:
        """`paused` was changed."""

    def empty(self) -> None:
        """Drop what no channel has yet."""
        raise NotImplementedError

    def empty_channel(self, channel: Channel) -> None:
        """Drop all that a channel holds: queue, in flight, deferred."""
        channel.empty()
        self.registry.forget_deferred(self, channel)
        self.mark()

    def pause_channel(self, channel: Channel, paused: bool) -> None:
        """Stop or resume a channel's deliveries."""
        if channel.paused != paused:
            channel.pause(paused)
            self.mark()
            self.registry.changed(self, not channel.ephemeral, announce=False)

    def redeliver(
        self, stamp_ns: int, message_id: int, attempts: int, body: bytes, claimants: Owed, schedule_id: int = 0
    ) -> int:
        """A deferred message is due: put it where these channels (None: all) find it. 0, FULL or BROKEN."""
        raise NotImplementedError

    def remove(self) -> None:
        """The topic is deleted: drop files and everything. StoreError behind that, when a file could not be deleted."""
        raise NotImplementedError


def delete_channels(topic: Topic) -> None:
    """All of them, whatever a disk refuses. StoreError behind that."""
    with ExitStack() as steps:
        for name in topic.channels:
            steps.callback(topic.delete_channel, name)


class QueueTopic(Topic):
    """Level `os` or `disk`: a ready queue and a cursor for each channel."""

    def __init__(self, name: bytes, level: int, registry: TopicRegistry, stream: ReadyQueue, floor: int = 0) -> None:
        Topic.__init__(self, name, level, registry)
        self.stream = stream
        self.floor = floor  # what lies below is owed to nobody
        self.passing: list[PassingSource] = []  # sources of ephemeral channels
        self.durable = stream.total

    def ready(self, size: int, count: int, gathers: bool = False) -> int:
        if gathers:
            return self.stream.gather(size + _RECORD_BYTES * count, count)
        return self.stream.ready(size + _RECORD_BYTES * count, count)

    def put(self, now_ns: int, body: Readable, at: int, length: int, more: int) -> int:
        self.stream.append(now_ns, 0, 0, body, at, length, more)
        self.message_count += 1
        self.message_bytes += length
        return 0

    def placed(self) -> int:
        self._make_visible()
        if not self.marked:
            self.mark()
        return 0

    def _make_visible(self) -> None:
        if self.level == LEVEL_OS and not self.paused:
            self.stream.all_visible()

    def new_id(self, now_ns: int) -> int:
        """A message id that this topic never had: the time, or the next one."""
        return int(self.stream.next_id(now_ns))

    def know_id(self, message_id: int) -> None:
        """A message of this topic has this id, which may not be in its stream."""
        if message_id < _ID_MAX:  # else somebody else made the entry
            self.stream.next_id(message_id)

    def flushed(self, total: int) -> None:
        """Everything below is durable: readers of a `disk` topic may see it."""
        self.durable = max(self.durable, total)
        self._durable_visible()

    def _durable_visible(self) -> None:
        if self.level == LEVEL_DISK and not self.paused and self.durable > self.stream.visible:
            self.stream.visible_to(self.durable)
            self.mark()

    def depth(self) -> int:
        if not self.channels:
            waiting = self.registry.unclaimed(self)
            return waiting + (self.stream.total - self.first() if self.stream.segments else 0)
        return max(0, self.stream.total - max(self.stream.visible, self.floor))  # a paused one may have been purged

    def first(self) -> int:
        """The oldest message that is owed to the first channel."""
        return max(self.floor, self.stream.begin())

    def _make_channel(self, name: bytes, ephemeral: bool) -> Channel:
        if self.paused and not self.channels:  # it gets nothing yet, neither what came before the pause
            self.stream.visible_to(self.first())
        begin = self.stream.visible if self.channels else self.first()
        waiting = 0 if self.channels else self.registry.unclaimed(self)
        channel = self.load_channel(name, begin)
        channel.count_deferred(waiting)
        channel.count_ahead(waiting)
        return channel

    def restore_channel(self, name: bytes) -> None:
        """A channel of the table of topics."""
        self.channels[name] = self.load_channel(name, self.first())

    def restore_visible(self, visible: int) -> None:
        """A paused topic shows its channels what came before the pause."""
        self.stream.visible_to(visible)

    def load_channel(self, name: bytes, begin: int) -> Channel:
        """A channel that goes on where its file says, or begins at `begin`."""
        file = CursorFile(self.registry.folder.cursor_path(self.name, name), self.registry.folder.files)
        if name.endswith(EPHEMERAL):
            file.remove()  # a former version kept one
            return self._passing_channel(name, begin)
        file.open(begin)
        file.settle(self.stream.total, self.stream)
        source = CursorSource(self.registry.window(self))
        source.add(Lane(self.stream, file, 0))
        channel: Channel = self.registry.new_channel(name, self.name, source)
        channel.count_from(source.lanes[0].head)
        return channel

    def _passing_channel(self, name: bytes, begin: int) -> Channel:
        source = PassingSource(self.stream, self.registry.mem_queue_size, begin)
        channel: Channel = self.registry.new_channel(name, self.name, source)
        channel.count_from(begin)
        self.passing.append(source)
        return channel

    def has_finished(self, name: bytes, place: int) -> bool:
        """Whether a channel has finished the record at this place."""
        if self.channels[name].ephemeral:
            return True
        file = lanes(self.channels[name])[0].file
        return place < file.committed or bool(file.finished(place))

    def refresh(self) -> None:
        for channel in self.channels.values():
            channel.count_up_to(self.stream.visible)

    def _drop_channel(self, channel: Channel) -> None:
        channel.forget_hand()
        if channel.ephemeral:
            self.passing.remove(channel.source)  # type: ignore[arg-type]
        if not self.channels:
            self.floor = self.stream.visible if self.paused else self.stream.total  # what is held is the topic's own
            self.stream.all_visible()
        self.trim()
        for lane in lanes(channel):
            lane.file.remove()

    def streams(self) -> list[ReadyQueue]:
        return [self.stream]

    def cursors(self) -> list[CursorFile]:
        """The cursor files of the channels."""
        return [lane.file for channel in self.channels.values() for lane in lanes(channel)]

    def trim(self) -> int:
        """Let go of segments that every channel has finished."""
        stream = self.stream
        for source in self.passing:
            source.settle()
        if len(stream.segments) > 1 or (stream.segments and not self.channels):
            floor = self.floor
            if self.channels:  # where those without a cursor stand nothing is kept
                floor = min([stream.visible] + [file.committed for file in self.cursors()])
            if self.paused and floor > stream.visible:
                floor = stream.visible
            stream.drop_below(floor)
        return 0

    def idle(self) -> bool:
        """Nothing is owed to anybody: no flush of messages is needed. But a copy whose entry is not over is: what the cursors say
        of it would be lost with it, and the entry hands out another.
        """
        if self.stream.kept_from < self.stream.total:
            return False
        if not self.channels:
            return self.floor >= self.stream.total
        return all(file.committed >= self.stream.total for file in self.cursors())

    def _paused(self) -> None:
        self._make_visible()
        self._durable_visible()

    def empty(self) -> None:
        stream = self.stream
        if not self.channels:
            self.floor = stream.total
            self.registry.forget_copies(stream)
            self.registry.forget_unclaimed(self)
            stream.drop_all()
        elif self.paused and stream.total > stream.visible:
            for channel in self.channels.values():
                for ordinal in range(stream.visible, stream.total):
                    finish_ahead(channel, 0, ordinal)
            stream.all_visible()
            self.mark()  # the cursors are to be flushed, though nothing is handed out
        self.registry.changed(self, True, announce=False)

    def purge(self, place: int) -> None:
        """What lies below the place is owed to nobody any more. A channel that is behind it begins there: what it has in
        hand or finished above may come again. Ephemeral channels, whose messages are in memory, change at the end only."""
        self.floor = max(self.floor, min(place, self.stream.total))
        for channel in self.channels.values():
            if not lanes(channel):
                if place >= self.stream.total:
                    channel.empty()
            elif lanes(channel)[0].file.committed < place:
                channel.forget_hand(0)
                cursors(channel).restart(0, min(place, self.stream.total))
        if not self.channels and self.floor >= self.stream.total:
            self.registry.forget_copies(self.stream)
            self.stream.drop_all()
        self.trim()
        self.mark()
        self.registry.changed(self, True, announce=False)

    def redeliver(
        self, stamp_ns: int, message_id: int, attempts: int, body: bytes, claimants: Owed, schedule_id: int = 0
    ) -> int:
        stream = self.stream
        answer = stream.ready(len(body) + _RECORD_BYTES, 1)
        if answer:
            return answer
        place = stream.total
        if claimants is not None:
            for name, channel in self.channels.items():  # before it is there: a kill between would show it to them
                if name not in claimants:
                    finish_ahead(channel, 0, place)
        stream.append_bytes(message_id, attempts, body, False, mark_of(schedule_id) if schedule_id else 0)
        if schedule_id:
            self.registry.copied(schedule_id, self, stream, place)
        for channel in self.channels.values():
            channel.count_ahead(-1)  # it was counted when it was published
        self._make_visible()
        if self.level == LEVEL_DISK:
            self.registry.want_flush(self)
        self.mark()
        return 0

    def remove(self) -> None:
        self.open = False
        try:
            delete_channels(self)
        finally:
            self.registry.forget_copies(self.stream)
            self.stream.drop_all()
