"""Looking at what topics and channels of the NSQ side hold, and changing nothing: no attempts, no order, no place.

    ready       w  what waits to be given again          q  the queue: of each lane, or in memory
                s  what an ephemeral channel passes by   b  the disk queue   o  what the disk queue gets next
    in flight   i  by message id
    deferred    i  those in memory, by message id        p  of a topic that has no channel yet
                d  those in the schedule: `broker.browse` adds them

Everything is a run of steps: where to go on behind a message, and the message, None where there is none to be seen. A
place is a letter and numbers; a run may begin at any place, so that a page can go on where the one before ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from penstock import words
from penstock.broker.clock import BrokerClock
from penstock.broker.nsq.memorytopics import MemoryTopic
from penstock.broker.nsq.topics import QueueTopic, Topic
from penstock.delivery.channel import Channel
from penstock.delivery.cursor import CursorSource
from penstock.delivery.passing import PassingSource
from penstock.delivery.source import MemorySource
from penstock.disk.diskqueue import DiskQueue, look
from penstock.disk.stream import Stream
from penstock.errors import Refused

_PLACE = re.compile(r"[wqsboipd](?:[0-9]{1,19}(?:-[0-9]{1,19})*)?")
_NUMBER_MAX = (1 << 63) - 1
_ORDER = "wqsbo"


class Place(NamedTuple):
    """Where to go on."""

    part: str
    numbers: Sequence[int] = ()

    def number(self, n: int = 0) -> int:
        """One of its numbers, 0 when it has not so many."""
        return self.numbers[n] if n < len(self.numbers) else 0

    def text(self) -> str:
        """As `read_place` reads it."""
        return self.part + "-".join(map(str, self.numbers))


class Seen(NamedTuple):
    """One message. `more` is what is known of it beside, for JSON."""

    id: str
    stamp_ns: int
    attempts: int
    body: bytes
    more: dict[str, object]


Steps = Iterator[tuple[Place, Seen | None]]


def read_place(text: str) -> Place:
    """The place that `Place.text` wrote. Refused for anything else."""
    if not _PLACE.fullmatch(text):
        raise Refused("after is what next was in the answer before")
    numbers = [int(word) for word in text[1:].split("-") if word]
    if any(number > _NUMBER_MAX for number in numbers):
        raise Refused("after is what next was in the answer before")
    return Place(text[0], numbers)


# -- messages in hand ------------------------------------------------------------------------------------------------


def in_flight(channel: Channel, begin: Place, time: BrokerClock) -> Steps:
    """What consumers have, by message id: with whom, since when, and when it times out."""
    if channel.in_flight_count:
        for id_, slot in _held(channel, words.IN_FLIGHT, begin):
            consumer = channel.by_number.get(channel.slots.owner[slot])
            about = {} if consumer is None else consumer.describe(time.now_ms // 1000)
            more = {
                "client": about.get("client_id", ""),
                "address": about.get("remote_address", ""),
                "delivered": time.now_ms + channel.slots.since[slot] - time.mono_ms,
                "due": time.now_ms + channel.slots.due[slot] - time.mono_ms,
            }
            yield Place("i", [id_]), _of_slot(channel, slot, more)


def deferred_in_memory(channel: Channel, begin: Place, time: BrokerClock) -> Steps:
    """What the channel itself keeps until its time has come."""
    if channel.deferred_in_memory:
        for id_, slot in _held(channel, words.DEFERRED, begin):
            due: dict[str, object] = {"due": time.now_ms + channel.slots.due[slot] - time.mono_ms}
            yield Place("i", [id_]), _of_slot(channel, slot, due)


def _held(channel: Channel, state: int, begin: Place) -> list[tuple[int, int]]:
    """(id, slot) of what is in this state, by id."""
    after = begin.numbers[0] if begin.numbers else -1
    states, ids = memoryview(channel.slots.state).tolist(), memoryview(channel.slots.id).tolist()
    return sorted((ids[slot], slot) for slot, found in enumerate(states) if found == state and ids[slot] > after)


def _of_slot(channel: Channel, slot: int, more: dict[str, object]) -> Seen | None:
    source, slots = channel.source, channel.slots
    lane, place = slots.lane[slot], slots.place[slot]
    if isinstance(source, CursorSource):
        stream = source.lanes[lane].stream
        more |= {"queue": lane, "offset": place}
        return _of_stream(stream, place, more, slots.attempts[slot])
    if not isinstance(source, MemorySource) or not source.point_at(lane, place):
        return None
    return _of_data(source.data(), more)._replace(attempts=slots.attempts[slot])


def _of_stream(stream: Stream, ordinal: int, more: dict[str, object], attempts: int | None = None) -> Seen | None:
    if not stream.find(ordinal):
        return None
    tries = stream.attempts if attempts is None else attempts
    return Seen(f"{stream.message_id:016x}", stream.stamp_ns, tries, stream.body(), more)


def _of_data(data: bytes, more: dict[str, object]) -> Seen:
    """A message as it lies in a queue in memory, or in a disk queue."""
    return Seen(
        data[words.DATA_ID_AT : words.DATA_BODY_AT].decode("ascii", "backslashreplace"),
        int.from_bytes(data[: words.DATA_ATTEMPTS_AT]),
        int.from_bytes(data[words.DATA_ATTEMPTS_AT : words.DATA_ID_AT]),
        data[words.DATA_BODY_AT :],
        more,
    )


# -- messages that are ready -----------------------------------------------------------------------------------------


def ready(channel: Channel, begin: Place) -> Steps:
    """What the channel gives next: first what comes again, then its queue, of several lanes in turns."""
    if begin.part == "w":
        at = begin.number()
        for n, (slot, _) in enumerate(islice(channel.waiting, at, None), at + 1):
            yield Place("w", [n]), _of_slot(channel, slot, {})
        begin = Place("q")
    source = channel.source
    if isinstance(source, CursorSource):
        yield from _of_lanes(source, begin.numbers)
    elif isinstance(source, MemorySource):
        yield from _of_memory(source, begin)


def _of_lanes(source: CursorSource, begin: Sequence[int]) -> Steps:
    heads = [lane.head for lane in source.lanes]
    at = [max(head, begin[n] if n < len(begin) else 0) for n, head in enumerate(heads)]
    live = list(range(len(at)))
    while live:
        for n in list(live):
            lane = source.lanes[n]
            ordinal, end = lane.stream.next(at[n]), lane.stream.end()
            if ordinal >= end:
                live.remove(n)
                continue
            at[n] = ordinal + 1
            seen = None
            if not lane.file.finished(ordinal):
                tries = source.remembered.get((n, ordinal))
                seen = _of_stream(lane.stream, ordinal, {"queue": n, "offset": ordinal}, tries)
            yield Place("q", at), seen


def _of_memory(source: MemorySource, begin: Place) -> Steps:
    parts = _ORDER[max(0, _ORDER.find(begin.part)) :]
    if "q" in parts:
        at = begin.number() if begin.part == "q" else 0
        yield from _listed(source.queue, "q", at)
    if "s" in parts and isinstance(source, PassingSource):
        at = max(source.head, begin.number() if begin.part == "s" else 0)
        for ordinal in range(source.stream.next(at), source.stream.end()):
            seen = None if source.passes_over(ordinal) else _of_stream(source.stream, ordinal, {})
            yield Place("s", [ordinal + 1]), seen
    if "b" in parts and isinstance(source.overflow.backend, DiskQueue):
        place = (begin.number(), begin.number(1)) if begin.part == "b" else None
        for behind, payload in look(source.overflow.backend, place):
            yield Place("b", behind), None if payload is None else _of_data(payload, {"onDisk": True})
    yield from _listed(source.over, "o", begin.number() if begin.part == "o" else 0)


def _listed(payloads: Sequence[bytes], part: str, at: int) -> Steps:
    for n, payload in enumerate(islice(payloads, at, None), at + 1):
        yield Place(part, [n]), _of_data(payload, {})


# -- topics ----------------------------------------------------------------------------------------------------------


def ready_in_topic(topic: Topic, begin: Place) -> Steps:
    """What the topic itself holds: its ready queue, as far as some channel has not finished it, or, in memory, what no
    channel has.
    """
    if isinstance(topic, MemoryTopic):
        yield from _of_memory(topic.source, begin)
    elif isinstance(topic, QueueTopic):
        stream = topic.stream
        begins = [file.committed for file in topic.cursors()] + [source.head for source in topic.passing]
        at = stream.next(max(begin.number(), min(begins, default=topic.first())))
        while at < stream.total:
            yield Place("q", [at + 1]), _of_stream(stream, at, {"offset": at})
            at = stream.next(at + 1)


def deferred_in_topic(topic: Topic, begin: Place) -> Steps:
    """What was deferred before there was a channel: its time begins to run with the first one."""
    if isinstance(topic, MemoryTopic):
        at = begin.number()
        for n, (data, delay_ms) in enumerate(islice(topic.pending, at, None), at + 1):
            yield Place("p", [n]), _of_data(data, {"due": None, "delayMs": delay_ms})
