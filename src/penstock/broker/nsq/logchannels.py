"""LogChannels: a log topic as NSQ sees it. A channel is a group that acknowledges message by message, with a cursor in
each message queue; a group of the same name shows its committed offsets, and can be reset by time like any other.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack

from penstock.broker.core import Core
from penstock.broker.nsq.copied import demand_set
from penstock.broker.nsq.holding import Holding
from penstock.broker.nsq.loglanes import LogLanes
from penstock.broker.nsq.sources import cursors, lanes, queue_lanes
from penstock.broker.nsq.topics import Topic, TopicRegistry, delete_channels
from penstock.broker.replica import of_a_set
from penstock.broker.topics import LogTopic
from penstock.delivery.channel import Channel
from penstock.delivery.cursor import CursorSource, Lane
from penstock.disk.cursorfile import CursorFile
from penstock.disk.quarantine import try_quarantine
from penstock.disk.readyqueue import ReadyQueue, mark_of
from penstock.errors import Refused, StoreError
from penstock.message import ReceivedMessage
from penstock.wire import record

log = logging.getLogger("penstock.queueing")


class LogChannels(Topic):
    """The NSQ face of one log topic."""

    kind = "log"

    def __init__(self, stored: LogTopic, registry: TopicRegistry, core: Core) -> None:
        Topic.__init__(self, stored.name, stored.level, registry)
        self.stored = stored
        self._core = core
        self._batch: list[bytes] = []
        self._turn = 0
        self.changes = 0  # rises whenever a place of a channel may be another
        self.holding = Holding()
        self._lanes = LogLanes(stored, core, registry.folder, self.holding)
        self.stray: dict[bytes, int] = {}  # how many of those are in no schedule
        self.again: dict[bytes, ReadyQueue] = {}  # a channel's deferred messages when they come again
        for queue in stored.queues:
            queue.watch()

    def ready(self, size: int, count: int, gathers: bool = False) -> int:
        self._batch = []
        return 0

    def put_bytes(self, now_ns: int, body: bytes, more: bool) -> None:
        self._batch.append(body)

    def take_level(self) -> None:
        """The log topic may have another level: from now on answers wait for that, and channels read what has reached it."""
        self.level = self.stored.level
        for channel in self.channels.values():
            for lane in queue_lanes(channel):
                lane.stream.read_at(self.level)  # type: ignore[attr-defined]

    def demand_writable(self) -> None:
        """Refused where nobody may publish by RocketMQ's door: to the broker's own, and where the permission says so."""
        if self.stored.protected or not self.stored.writable():
            raise Refused(f"topic {self.name.decode()} is closed to senders", nsq="E_PUB_FAILED", http=403)

    def placed(self) -> int:
        """Append the batch to one message queue, all or nothing. Refused when it cannot be stored."""
        batch, self._batch = self._batch, []
        if not self.stored.open:
            raise Refused(f"topic {self.name.decode()} was deleted", nsq="E_PUB_FAILED", http=503)
        self.demand_writable()
        demand_set(self._core, self)
        self._turn += 1
        queue_id = self._turn % max(1, self.stored.write_queues)
        self._core.sending.put_batch(self.stored, queue_id, batch)
        self.mark()
        return 0

    def depth(self) -> int:
        if not self.channels:
            return sum(queue.visible_end() - self.holding.first(queue) for queue in self.stored.queues)
        queues = self.stored.queues if self.paused else []
        return sum(max(0, q.visible_end() - max(q.min_offset, self.holding.limit(q.queue_id))) for q in queues)

    def refresh(self) -> None:
        """Whoever published, by whichever protocol, is counted."""
        self.message_count = self.stored.message_count
        self.message_bytes = self.stored.put_bytes
        for channel in self.channels.values():
            channel.count_up_to(sum([lane.stream.end() for lane in queue_lanes(channel)]))

    def rewatch(self) -> bool:
        """Hear of the next message, too; whether there are some that may not be read yet."""
        lagging = False
        for queue in self.stored.queues:
            queue.watch()
        for channel in self.channels.values():
            here = queue_lanes(channel)
            if len(here) < len(self.stored.queues):
                lagging = not self._read_more(channel, len(here)) or lagging
            for lane in [] if self.paused else here:
                lagging = lagging or lane.stream.end() < lane.stream.queue.max_offset  # type: ignore[attr-defined]
        return lagging

    def _read_more(self, channel: Channel, have: int) -> bool:
        """The topic has more queues than the channel reads: it reads them from their beginning. A lane's number is its queue's,
        so the lane of deferred messages goes behind them, and what it has in hand comes again. False: not while something
        leaves it.
        """
        source = cursors(channel)
        if any(number >= have for number, _ in channel.leaving):
            return False
        again = source.lanes[have:]
        for lane in again:
            channel.forget_hand(lane.number)
        del source.lanes[have:]
        for number in range(have, len(self.stored.queues)):
            source.add(self._lanes.of_queue(channel.name, number, self.stored.queues[number].min_offset))
        for lane in again:
            source.add(Lane(lane.stream, lane.file, len(source.lanes)))
        self.mark()
        return True

    # -- paused --------------------------------------------------------------------------------------------------

    def _paused(self) -> None:
        self.hold([queue.visible_end() for queue in self.stored.queues] if self.paused else [])

    def loading(self) -> None:
        Topic.loading(self)
        self.holding.begin()

    def loaded(self, paused: bool) -> None:
        Topic.loaded(self, paused)
        self._paused()

    def hold(self, ends: list[int]) -> None:
        """The topic is paused: its channels get what lies below these places of its queues, and no more. Or it is not."""
        if self.paused:
            self.holding.hold(ends)
        else:
            self.holding.release()
        for channel in self.channels.values():
            for lane in queue_lanes(channel):
                lane.stream.hold(self.holding.limit(lane.number))  # type: ignore[attr-defined]

    def restore(self, held: list[int], floors: list[int]) -> None:
        """As it was when this was written, here or at the master, whose log may be longer. Nothing: it is not known."""
        self.holding.raise_floors(floors)
        if held and self.paused:
            self.hold(held)

    # -- channels ------------------------------------------------------------------------------------------------

    def _make_channel(self, name: bytes, ephemeral: bool) -> Channel:
        commit = None if ephemeral else self._lanes.committed_by(name)
        source = CursorSource(self.registry.window(self), commit)
        group = self._core.offsets.table.get((self.name.decode(), name.decode()), {})
        if ephemeral:
            self._lanes.forget(name)
        if self.paused and not self.channels:  # it gets nothing yet, neither what came before the pause
            self.hold([self.holding.first(queue) for queue in self.stored.queues])
        for number, queue in enumerate(self.stored.queues):
            begin = self.holding.first(queue)
            if self.channels:
                begin = min(queue.visible_end(), self.holding.limit(number))
            lane = self._lanes.of_queue(name, number, group.get(number, begin))
            source.add(lane)
            if commit is not None:
                commit(lane)  # the file is newer than the table of offsets
            queue.watch()
        channel: Channel = self.registry.new_channel(name, self.name, source)
        channel.count_from(sum([lane.head for lane in source.lanes]))
        if not ephemeral and self.registry.folder.has_stream(self.name, name):
            self._add_again(channel)
        return channel

    def _add_again(self, channel: Channel) -> ReadyQueue:
        lane, stream = self._lanes.of_deferred(channel.name, len(lanes(channel)))
        self.again[channel.name] = stream
        cursors(channel).add(lane)
        return stream

    def is_again(self, channel: Channel, lane: int) -> bool:
        """Whether this lane of the channel is the one of messages that were deferred."""
        stream = self.again.get(channel.name)
        return stream is not None and lanes(channel)[lane].stream is stream

    def owed_in(self, stream: ReadyQueue) -> CursorFile | None:
        """Where it stands which of these deferred messages their channel has finished, if that counts: where slaves may follow,
        their entries of the schedule stay until then.
        """
        if not of_a_set(self._core.config):
            return None
        return next(lanes(self.channels[name])[-1].file for name, mine in self.again.items() if mine is stream)

    def streams(self) -> list[ReadyQueue]:
        return list(self.again.values())

    def forget_again(self, name: bytes) -> None:
        """The master says which of a channel's deferred messages are not finished: what lies here may be long over."""
        stream = self.again.pop(name, None)
        if stream is not None:
            self.channels[name].forget_hand()
            lanes(self.channels[name]).pop().file.remove()
            self.registry.forget_copies(stream)
            alone = self.stray.pop(name, 0)
            if alone:
                stream.close(False)
                why = f"{alone} messages given back, or published, with a delay have come again here, and no other node has them"
                try_quarantine(self.registry.folder.files, self._core.folder, stream.folder, why)
            else:
                stream.drop_all()

    def close(self) -> None:
        """The log topic is gone, or another one: so are the channels, and nobody is told that a topic was deleted."""
        self.open = False
        delete_channels(self)

    def trim(self) -> int:
        self.changes += 1
        for name, stream in self.again.items():
            if len(stream.segments) > 1:
                stream.drop_below(lanes(self.channels[name])[-1].file.committed)
        return 0

    def reset(self, name: bytes, offsets: dict[int, int]) -> bool:
        """Set a channel to other places, as the admin tools do with a group; False when there is no such channel."""
        channel = self.channels.get(name)
        if channel is None:
            return False
        for number, offset in offsets.items():
            if number < len(queue_lanes(channel)):
                channel.forget_hand(number)
                cursors(channel).restart(number, offset)
        self.mark()
        return True

    def purge(self, places: dict[int, int]) -> None:
        """The channels that are behind these places (queue id → offset) go on there. What such a channel has in hand of that
        queue, or finished above the place, may come again."""
        for channel in self.channels.values():
            for number, place in places.items():
                if number < len(queue_lanes(channel)) and lanes(channel)[number].file.committed < place:
                    channel.forget_hand(number)
                    cursors(channel).restart(number, place)
        self.mark()

    def _drop_channel(self, channel: Channel) -> None:
        channel.forget_hand()
        stream = self.again.pop(channel.name, None)
        if stream is not None:
            self.registry.forget_copies(stream)
            stream.drop_all()
        with ExitStack() as steps:  # each of them, whatever a disk refuses
            for lane in lanes(channel):
                steps.callback(lane.file.remove)

    def empty(self) -> None:
        """A log keeps what it has, and groups read it. Where the topic stands in place of a queue, what no channel has yet is
        owed to none any more: all there is to the first channel, what came since the pause to those of a paused topic.
        """
        if not self.stored.owed:
            raise Refused("a log topic is not emptied: its messages go by retention", nsq="E_INVALID", http=400)
        ends = [queue.visible_end() for queue in self.stored.queues]
        if not self.channels:
            self.holding.raise_floors(ends)
        elif self.paused:
            _pass_over(self, ends)
        self.registry.changed(self, True, announce=False)

    def redeliver(
        self,
        stamp_ns: int,
        message_id: int,
        attempts: int,
        body: bytes,
        claimants: set[bytes] | None,
        schedule_id: int = 0,
    ) -> int:
        try:
            streams = [
                self.again.get(name) or self._add_again(self.channels[name])
                for name in (self.channels if claimants is None else claimants)
            ]
        except StoreError as error:  # no room for a channel's own queue: the message waits in the schedule
            log.warning("deferred message of a log topic waits topic=%s error=%s", self.name.decode(), error)
            return 1
        for stream in streams:
            answer = stream.ready(len(body) + 27, 1)
            if answer:
                return answer
        for stream in streams:
            mark, place = mark_of(schedule_id) if schedule_id else 0, stream.total
            stream.append_bytes(message_id, attempts, stamp_ns.to_bytes(8) + body, False, mark)
            stream.all_visible()
            if schedule_id:
                self.registry.copied(schedule_id, self, stream, place, self.owed_in(stream))
        self.mark()
        return 0

    def message(self, lane: int, place: int) -> ReceivedMessage | None:
        """What the log has at a channel's place; None when it is gone, or, where the channel reads every queue, a message that
        was deferred.
        """
        if lane >= len(self.stored.queues):
            return None
        entry = self.stored.queues[lane].entry(place)
        data = None if entry is None else self._core.store.record_at(entry[0])
        return None if data is None else record.decode_record(data, 0, decompress=False)

    def remove(self) -> None:
        self.open = False
        try:
            delete_channels(self)
        finally:
            if self.stored.open:  # else it is gone, and perhaps made anew under its name
                self._core.topics.delete(self.name, self._core.time.now_ms)


def _pass_over(topic: LogChannels, ends: list[int]) -> None:
    """What came since the pause is owed to none of the channels. Refused where one has not finished what came before."""
    places = [(channel, lane) for channel in topic.channels.values() for lane in queue_lanes(channel)]
    for channel, lane in places:
        if lane.file.committed < min(topic.holding.limit(lane.number), ends[lane.number]):
            raise Refused(
                f"channel {channel.name.decode()} has not finished what came before the pause: wait for it, or empty it",
                nsq="E_INVALID", http=400,
            )  # fmt: skip
    topic.hold(ends)
    for channel, lane in places:
        if lane.file.committed < ends[lane.number]:
            channel.forget_hand(lane.number)
            cursors(channel).restart(lane.number, ends[lane.number])
    topic.mark()
