"""Topics whose messages lie in memory: level `memory`, and everything ephemeral. Each channel has a copy of its own.

Without a channel, and while it is paused, a topic keeps its messages in a queue of its own. What gathered there is handed over a
piece a turn: ten million messages would keep everybody else waiting for many seconds. Until all of it is gone, new ones queue up
behind it.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import logging

import cython

from penstock.broker.levels import LEVEL_MEMORY
from penstock.broker.nsq.names import printable
from penstock.broker.nsq.sources import memory
from penstock.broker.nsq.topics import Owed, TopicRegistry, delete_channels
from penstock.disk.runs import Buffer
from penstock.errors import StoreError
from penstock.faults import Told
from penstock.octets import Readable
from penstock.wire.nsq import message_data

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.broker.nsq.topics import Topic
    from cython.cimports.penstock.delivery.channel import Channel
    from cython.cimports.penstock.delivery.source import MemorySource
    from cython.cimports.penstock.disk.runs import RunWriter, framed
    from cython.cimports.penstock.wire.nsq import put_fresh
else:
    from penstock import words
    from penstock.broker.nsq.topics import Topic
    from penstock.delivery.channel import Channel
    from penstock.delivery.source import MemorySource
    from penstock.disk.runs import RunWriter, framed
    from penstock.wire.nsq import put_fresh

log = logging.getLogger("penstock.queueing")

RETRY_MS = 1_000
SPILL_MS = 100  # what gathers behind a queue in memory, and rests, is in its files after twice that
_ID = slice(10, 26)  # where a message's data has its id
_HEX = 16


class MemoryTopic(Topic):
    """See the module."""

    def __init__(self, name: bytes, registry: TopicRegistry, source: MemorySource) -> None:
        Topic.__init__(self, name, LEVEL_MEMORY, registry)
        self._source = source
        self.pending: list[tuple[bytes, int]] = []  # deferred (message data, delay ms) until there is a channel
        self._writer = RunWriter()  # where this turn's messages lie
        self._last_id = 0
        self._keeps = False  # messages that its channels are to have
        self._spare = self._spare_bytes = 0  # what this turn may still bring before `settle`
        self._later = registry.later
        self._told = Told()

    @property
    def source(self) -> MemorySource:
        """Its own queue."""
        self.settle()
        return self._source

    def ready(self, size: int, count: int, gathers: bool = False) -> int:
        size += (words.SIZE_BYTES + words.DATA_BODY_AT) * count
        if gathers and count <= self._spare and size <= self._spare_bytes and self._writer.follow(size):
            return 0
        self.settle()
        if gathers and (self._keeps or self.paused or not self.channels):
            self._spare, self._spare_bytes = self._source.spare(), self._source.spare_bytes()
            if count > self._spare or size > self._spare_bytes:
                self._spare = 0
        return self._writer.ready(size)

    def put(self, now_ns: int, body: Readable, at: int, length: int, more: int) -> int:
        writer = self._writer
        to = writer.record(words.DATA_BODY_AT + length)
        put_fresh(writer.base, to, now_ns, self.new_id(now_ns), body, at, length)
        self.message_count += 1
        self.message_bytes += length
        return 0

    def new_id(self, now_ns: int) -> int:
        """A message id that this topic never had: the time, or the next one."""
        self._last_id = max(now_ns, self._last_id + 1)
        return self._last_id

    def settle(self) -> int:
        """What gathered in this turn is in the topic's queue from now on. Returns 0."""
        self._spare = 0
        writer = self._writer
        if writer.kept == 0:
            return 0
        buffer, begin, end, count = writer.buffer, writer.begin, writer.kept_end, writer.kept
        writer.place()
        return self._source.put_run(buffer, begin, end, count)

    def placed(self) -> int:
        """StoreError when the disk part of a queue cannot take it."""
        writer = self._writer
        if self._spare > 0:
            self._spare -= writer.count - writer.kept
            self._spare_bytes -= writer.keep()
            if not self.marked:
                self.mark()
            return 0
        buffer, begin, end, count = writer.buffer, writer.begin, writer.end, writer.count
        writer.place()  # a channel may look at it from now on
        if self._keeps or self.paused or not self.channels:
            self._source.put_run(buffer, begin, end, count)
        else:
            tight = False
            if len(self.channels) > 1:
                for channel in self.channels.values():
                    source = channel.source
                    tight = tight or source.to_write(count) > 0  # type: ignore[attr-defined]
            if tight:
                self._give([memory(channel) for channel in self.channels.values()], buffer, begin, end, count)
            for channel in self.channels.values():
                source = channel.source
                if not tight:
                    source.put_run(buffer, begin, end, count)  # type: ignore[attr-defined]
                channel.count(count)
        self.mark()
        return 0

    def _give(self, sources: list[MemorySource], buffer: Buffer, begin: int, end: int, count: int) -> None:
        """Messages into each of these, or with StoreError into none: whoever sends them again must not double them. Those that
        may have to write come first, whoever has most to write before the others; one that cannot, when another has them
        already, has them in memory.
        """
        tight = [source for source in sources if source.to_write(count) > 0]
        tight.sort(key=lambda source: -int(source.to_write(count)))
        had = False
        for source in tight:
            try:
                source.put_run(buffer, begin, end, count)
            except StoreError as error:
                if not had:
                    raise
                log.error("messages stay in memory for a channel topic=%s error=%s", printable(self.name), error)
                source.overflow.keep(buffer, begin, end, count)
            had = True
        for source in sources:
            if source not in tight:
                source.put_run(buffer, begin, end, count)

    def pump(self, mono_ms: int) -> None:
        self.settle()
        self._writer.leave()  # an idle topic keeps no room
        if self not in self._later:
            if self._keeps or self.pending:
                self._hand_over()
            self._spill(mono_ms)
        Topic.pump(self, mono_ms)

    def _spill(self, mono_ms: int) -> None:
        """What gathers behind its queues, and rests, goes to their files; while something gathers they are asked again."""
        again_ms = 0
        try:
            if self._source.overflow.spill():
                again_ms = SPILL_MS
            for channel in self.channels.values():
                source = channel.source
                if source.overflow.spill():  # type: ignore[attr-defined]
                    again_ms = SPILL_MS
        except StoreError as error:  # a full disk, perhaps
            again_ms = RETRY_MS
            if self._told.is_news("spill", mono_ms):
                log.error("messages stay in memory topic=%s error=%s", printable(self.name), error)
        if again_ms:
            self._later.setdefault(self, mono_ms + again_ms)

    def defer(self, now_ns: int, body: bytes, delay_ms: int) -> None:
        """DPUB: every channel waits with it in memory."""
        data = message_data(now_ns, 0, self.new_id(now_ns), body)
        self.message_count += 1
        self.message_bytes += len(body)
        if self.paused or not self.channels:
            self.pending.append((data, delay_ms))
            return
        self._defer(data, delay_ms)

    def _defer(self, data: bytes, delay_ms: int) -> None:
        for channel in self.channels.values():
            channel.count(1)
            channel.add_deferred(
                memory(channel).keep(data), int(data[_ID], _HEX), self.registry.time.mono_next_ms() + delay_ms
            )

    def redeliver(
        self, stamp_ns: int, message_id: int, attempts: int, body: bytes, claimants: Owed, schedule_id: int = 0
    ) -> int:
        """Deferred when the topic of this name had another level."""
        try:
            owed = [memory(self.channels[name]) for name in (self.channels if claimants is None else claimants)]
            run = framed((message_data(stamp_ns, attempts, message_id, body),))
            self._give(owed, run.buffer, run.at, run.end, run.count)
        except StoreError:
            return 1
        self.mark()
        return 0

    def depth(self) -> int:
        return self.source.depth() + len(self.pending)

    def backend_depth(self) -> int:
        return self.source.backend_depth()

    def _make_channel(self, name: bytes, ephemeral: bool) -> Channel:
        backend = None if ephemeral or self.ephemeral else self.registry.folder.backend(self.name + b":" + name)
        return self.registry.new_channel(name, self.name, MemorySource(self.registry.mem_queue_size, backend))

    def _took_channel(self, channel: Channel) -> None:
        self._hand_over()
        self.mark()

    def _paused(self) -> None:
        self._hand_over()

    def loaded(self, paused: bool) -> None:
        self.paused = paused
        self._hand_over()
        self.mark()

    def save(self) -> None:
        """A clean stop: what is in memory only goes to the disk queue, what is deferred, too."""
        for data, _ in self.pending:
            self.source.put([data])
        self.source.save(())

    def _hand_over(self) -> None:
        """As much of what the topic kept as a turn has time for goes to its channels; the rest later."""
        self.settle()
        if self.paused or not self.channels or not self.open:
            return
        due_ms, left = 0, words.HAND_OVER_MAX
        sources = [memory(channel) for channel in self.channels.values()]
        try:
            while left > 0 and (moved := self._source.pass_on(sources, left)):
                left -= moved
                for channel in self.channels.values():
                    channel.count(moved)
        except StoreError as error:  # a full disk, perhaps
            log.error("messages not handed over topic=%s error=%s", printable(self.name), error)
            due_ms, left = self.registry.time.mono_ms + RETRY_MS, 0
        for data, delay_ms in self.pending[:left]:
            self._defer(data, delay_ms)
        del self.pending[:left]
        self._keeps = self._source.depth() > 0
        if self._keeps or self.pending:
            self._later[self] = due_ms

    def _drop_channel(self, channel: Channel) -> None:
        channel.forget_hand()
        if memory(channel).give_up():
            self.registry.folder.drop_backend(self.name + b":" + channel.name)

    def empty(self) -> None:
        self.pending.clear()
        self._keeps = False
        self.source.empty()

    def remove(self) -> None:
        self.open = False
        self.pending.clear()
        try:
            delete_channels(self)
        finally:
            if self.source.give_up():
                self.registry.folder.drop_backend(self.name)
