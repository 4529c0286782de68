"""Browsing: the messages of a topic or channel of either kind, for people who look. Nothing is changed by it.

    log topic              from an offset, a moment, the first or the last message, or by key
    queue topic, channel   what is ready, in flight or deferred (`broker.nsq.looking`)

Everything goes by pages, as in `broker.delayed`: a call reads, decodes and answers so much at most, and says where to go
on. `next` is ``part/place``: the part is a channel, or empty for the topic itself, or `SCHEDULE`.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.delayed import Delayed
from penstock.broker.delayed import Wanted as WantedDelayed
from penstock.broker.nsq import looking
from penstock.broker.nsq.looking import Place, Seen, Steps
from penstock.broker.nsq.redrive import with_notes
from penstock.broker.nsq.topics import QueueTopic, Topic
from penstock.broker.topics import LogTopic
from penstock.delivery.channel import Channel
from penstock.errors import Refused
from penstock.log.stream import LogStream
from penstock.message import ReceivedMessage
from penstock.wire import names, record
from penstock.wire.codes import Fields, ResponseCode
from penstock.wire.fastjson import dumps

ROWS_MAX = 1_000
BODY_BYTES, BODY_BYTES_MAX = 64 << 10, 7 << 20  # twice that, escaped, still fits a frame
PAGE_BYTES_MAX = 4 << 20  # bytes of one page; the message that reaches it is still in it
READ_MAX = 16 << 20  # bytes that are read for it, where bodies are cut off
STEPS_MAX = 10_000  # places that are looked at
KEY_ROWS_MAX = 64
GAP = -(1 << 62)  # before any place
NS_A_MS = 1_000_000

DEAD_SUFFIX = names.DEAD_SUFFIX.decode()
READY, IN_FLIGHT, DEFERRED = STATES = ("ready", "in-flight", "deferred")
SCHEDULE = "~"  # behind every name
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")  # what does something to a terminal

_FIELDS = {
    "topic": "topic", "channel": "channel", "state": "state", "from": "begin", "key": "key", "queue": "queue",
    "limit": "limit", "after": "after", "bodyBytes": "body_bytes", "bodyFrom": "body_from",
}  # fmt: skip

Row = dict[str, object]
Run = Callable[[Place], Steps]


class Wanted(msgspec.Struct, frozen=True):
    """Which messages. `begin`, of a log topic: first, last, an offset, or ``time:MS``; `queue` of one queue alone."""

    topic: str
    channel: str = ""
    state: str = READY
    begin: str = "first"
    key: str = ""
    queue: int | None = None
    limit: int = 100
    after: str = ""
    body_bytes: int = BODY_BYTES
    body_from: int = 0  # of a body that was cut off, what is behind so many bytes

    def check(self) -> None:
        """Refused for what makes no sense."""
        if self.state not in STATES:
            raise Refused(f"state is none of {', '.join(STATES)}")
        if self.limit < 1:
            raise Refused("limit is 1 at least")
        if not 0 <= self.body_bytes <= BODY_BYTES_MAX:
            raise Refused(f"bodyBytes is 0 to {BODY_BYTES_MAX}")
        if self.body_from < 0:
            raise Refused("bodyFrom is 0 at least")

    @property
    def of_a_log(self) -> bool:
        """Whether it asks for what only a log topic has."""
        return self.begin != "first" or bool(self.key) or self.queue is not None


def browse_wanted(fields: Fields) -> Wanted:
    """What a request asks for, by its fields; what is left out is as `Wanted` has it."""
    told = {own: fields[name] for name, own in _FIELDS.items() if fields.get(name) is not None}
    return Wanted(**told)


class Part(NamedTuple):
    """What is gone through from one place to the next."""

    name: str
    channel: str
    begin: Place
    run: Run


class Page:
    """Rows, until there are enough."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.rows: list[Row] = []
        self._limit = min(wanted.limit, ROWS_MAX)
        self._steps = self._told = self._read = 0

    def too_much(self, seen: Seen | None) -> bool:
        """Whether a large message does not fit behind what is there."""
        size = 0 if seen is None else min(len(seen.body), self.wanted.body_bytes)
        return bool(self.rows) and self._told + size > BODY_BYTES_MAX

    def add(self, channel: str, seen: Seen | None) -> bool:
        """One step more; whether that is enough."""
        self._steps += 1
        if seen is not None:
            properties = seen.more.get("properties")
            told = len(dumps(properties)) if properties else 0
            self.rows.append(row(self.wanted, channel, seen))
            self._read += len(seen.body)
            self._told += min(len(seen.body), self.wanted.body_bytes) + told
        return (
            len(self.rows) >= self._limit
            or self._told >= PAGE_BYTES_MAX
            or self._read >= READ_MAX
            or self._steps >= STEPS_MAX
        )


def row(wanted: Wanted, channel: str, seen: Seen) -> Row:
    """A message for JSON: text where it is text, else base64."""
    excerpt = seen.body[wanted.body_from :][: wanted.body_bytes]
    cut = wanted.body_from + len(excerpt) < len(seen.body)
    text = _text(excerpt, cut)
    return {
        "topic": wanted.topic,
        "channel": channel,
        "state": wanted.state,
        "id": seen.id,
        "stored": seen.stamp_ns // NS_A_MS,
        "attempts": seen.attempts,
        **seen.more,
        "size": len(seen.body),
        "cut": cut,
        "encoding": "base64" if text is None else "text",
        "body": b64encode(excerpt).decode() if text is None else text,
    }


def _text(excerpt: bytes, cut: bool) -> str | None:
    """The bytes as text; None when they are none. A character that was cut off at the end is left away."""
    try:
        text = excerpt.decode()
    except UnicodeDecodeError as error:
        if not cut or error.reason != "unexpected end of data":
            return None
        text = excerpt[: error.start].decode()
    return None if _CONTROL.search(text) else text


class Browse:
    """The messages of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def page(self, wanted: Wanted) -> dict[str, object]:
        """Up to `limit` rows, and where to go on, or None. Refused 404 when there is no such topic or channel."""
        wanted.check()
        parts = self._parts(wanted)
        page = Page(wanted)
        name, slash, place = wanted.after.rpartition("/")
        if wanted.after and not slash:
            raise Refused("after is what next was in the answer before")
        queueing, dead = self.broker.queueing, wanted.topic.encode()
        for part in parts:
            if slash and part.name < name:
                continue
            begin = looking.read_place(place) if slash and part.name == name else part.begin
            steps = part.run(begin)
            if wanted.topic.endswith(DEAD_SUFFIX) and part.name != SCHEDULE:
                steps = with_notes(queueing.notes, dead, steps)
            last = begin
            for behind, seen in steps:
                if page.too_much(seen):
                    return {"rows": page.rows, "next": f"{part.name}/{last.text()}"}
                last = behind
                if page.add(part.channel, seen):
                    return {"rows": page.rows, "next": f"{part.name}/{behind.text()}"}
        return {"rows": page.rows, "next": None}

    def _parts(self, wanted: Wanted) -> list[Part]:
        """In the order of their names."""
        name = wanted.topic.encode()
        stored, topic = self.broker.topics.get(name), self.broker.queueing.topics.get(name)
        if stored is None and topic is None:
            raise _unknown(f"no topic {wanted.topic}")
        if stored is not None and not wanted.channel and wanted.state == READY:
            return [Part("", "", Place("q"), lambda begin: self._log(stored, wanted, begin))]
        if wanted.of_a_log:
            raise Refused("only a log topic, without a channel, is read from an offset, a moment, its end, or by key")
        if wanted.channel:
            channel = None if topic is None else topic.channels.get(wanted.channel.encode())
            if channel is None:
                raise _unknown(f"topic {wanted.topic} has no channel {wanted.channel}")
            parts = [self._of_channel(channel, wanted.state)]
        else:
            parts = [] if topic is None else self._of_topic(topic, wanted.state)
        if wanted.state == DEFERRED:
            parts.append(Part(SCHEDULE, wanted.channel, Place("d"), lambda begin: self._scheduled(wanted, begin)))
        return parts

    def _of_topic(self, topic: Topic, state: str) -> list[Part]:
        """The topic, and its channels where each has messages of its own."""
        parts = []
        if state == READY:
            parts.append(Part("", "", Place("q"), lambda begin: looking.ready_in_topic(topic, begin)))
            if isinstance(topic, QueueTopic):
                return parts
        elif state == DEFERRED:
            parts.append(Part("", "", Place("p"), lambda begin: looking.deferred_in_topic(topic, begin)))
        return parts + [self._of_channel(channel, state) for _, channel in sorted(topic.channels.items())]

    def _of_channel(self, channel: Channel, state: str) -> Part:
        name, time = channel.name.decode(), self.broker.time
        if state == READY:
            return Part(name, name, Place("w"), lambda begin: looking.ready(channel, begin))
        if state == IN_FLIGHT:
            return Part(name, name, Place("i"), lambda begin: looking.in_flight(channel, begin, time))
        return Part(name, name, Place("i"), lambda begin: looking.deferred_in_memory(channel, begin, time))

    def _scheduled(self, wanted: Wanted, begin: Place) -> Steps:
        """What waits in the schedule, by due time."""
        delayed = Delayed(self.broker)
        chosen = WantedDelayed(wanted.topic, wanted.channel)
        for due in self.broker.schedule.entries(begin.number(), begin_id=begin.number(1)):
            found = delayed.row(due, chosen)
            message = None if found is None else record.decode_record(due.record, 0)
            seen = None
            if found is not None and message is not None:
                more: dict[str, object] = {"due": due.due_ms, "delayedId": due.id, "for": found["channel"]}
                attempts = found["attempts"]
                assert isinstance(attempts, int)
                seen = Seen(str(found["msgId"]), message.store_ms * NS_A_MS, attempts, message.body, more)
            yield Place("d", [due.due_ms, due.id + 1]), seen

    # -- log topics ----------------------------------------------------------------------------------------------

    def _log(self, topic: LogTopic, wanted: Wanted, begin: Place) -> Steps:
        """Messages of a log topic, in the order in which they were stored."""
        if wanted.key:
            yield from self._by_key(wanted, begin.number())
            return
        store = self.broker.store
        streams = [LogStream(store, queue, topic.level) for queue in topic.queues]
        chosen = [n for n in range(len(streams)) if wanted.queue in (None, n)]
        if not chosen:
            raise _unknown(f"topic {wanted.topic} has no queue {wanted.queue}")
        if len(begin.numbers) == len(streams):
            at = [stream.next(number) for stream, number in zip(streams, begin.numbers, strict=True)]
        else:
            at = self._begins(streams, chosen, wanted)
        heap = [(_position(streams[n], at[n]), n) for n in chosen if at[n] < streams[n].end()]
        heapify(heap)
        while heap:
            _, n = heappop(heap)
            seen = self._stored(streams[n], at[n])
            at[n] += 1
            if at[n] < streams[n].end():
                heappush(heap, (_position(streams[n], at[n]), n))
            yield Place("q", at), seen

    def _begins(self, streams: list[LogStream], chosen: list[int], wanted: Wanted) -> list[int]:
        """Where each queue is read from."""
        begin, store = wanted.begin, self.broker.store
        kind, _, number = begin.rpartition(":")
        if begin == "first":
            return [stream.begin() for stream in streams]
        if begin == "last":
            return _last(streams, chosen, min(wanted.limit, ROWS_MAX))
        if kind not in ("", "time") or not (number.isascii() and number.isdigit() and len(number) < 19):
            raise Refused("from is first, last, an offset, or time:MS")
        if kind:
            return [store.offset_by_time(stream.queue, int(number), lower=True) for stream in streams]
        return [stream.next(int(number)) for stream in streams]

    def _stored(self, stream: LogStream, offset: int) -> Seen | None:
        entry = stream.queue.entry(offset)
        data = None if entry is None else self.broker.store.record_at(entry[0])
        return None if data is None else self._of_record(data)

    def _of_record(self, data: bytes) -> Seen | None:
        message = None if self.broker.hides(data) else record.decode_record(data, 0)
        return None if message is None else _seen(message)

    def _by_key(self, wanted: Wanted, at: int) -> Steps:
        """The newest with this key, oldest first."""
        found = self.broker.store.query(wanted.topic.encode(), wanted.key.encode(), KEY_ROWS_MAX, 0, 1 << 62)
        for n, data in enumerate(found[::-1][at:], at + 1):
            yield Place("q", [n]), self._of_record(data)


def _position(stream: LogStream, offset: int) -> int:
    """Where in the log a message lies, which tells the order among queues; -1 for one that was never written."""
    entry = stream.queue.entry(offset)
    return -1 if entry is None else entry[0]


def _last(streams: list[LogStream], chosen: list[int], limit: int) -> list[int]:
    """Where the newest `limit` messages of these queues begin."""
    at = [stream.end() for stream in streams]

    def before(n: int) -> tuple[int, int]:
        position = _position(streams[n], at[n] - 1)
        return -position if position >= 0 else GAP, n

    heap = [before(n) for n in chosen if at[n] > streams[n].begin()]
    heapify(heap)
    for _ in range(STEPS_MAX):
        if not heap or not limit:
            break
        place, n = heappop(heap)
        at[n] -= 1
        limit -= place != GAP
        if at[n] > streams[n].begin():
            heappush(heap, before(n))
    return at


def _seen(message: ReceivedMessage) -> Seen:
    more: dict[str, object] = {
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "tags": message.tags or "",
        "keys": list(message.keys),
        "properties": dict(message.properties),
    }
    return Seen(message.msg_id, message.store_ms * NS_A_MS, message.reconsume_times, message.body, more)


def _unknown(text: str) -> Refused:
    return Refused(text, remoting=ResponseCode.TOPIC_NOT_EXIST, http=404)
