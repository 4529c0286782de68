"""Dead letters as an operator needs them: listed, looked at, sent again to the topics they came from, each once.

How far a dead-letter topic was sent again is a committed offset of a group of ours, whose name says which ones
(`deadrules`). A message was sent again when it lies below the offset of a group whose rule it matches. The offset is
committed when the messages before it are stored, and for a text or an id only where something was sent. Who was killed
in between sends the last ones again, and so do two at a time: each send has a number, the dead letter's offset, by which
a broker knows it (`log.sequences`) and stores it once.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from msgspec import structs

from penstock.client.blocking import Producer, PullConsumer
from penstock.client.blockingadmin import Admin
from penstock.client.deadqueues import SUFFIX, DeadQueues
from penstock.client.deadrules import GROUP, ID, Rule, matches, rule_of
from penstock.client.routes import Json, MessageQueue
from penstock.client.sending import by_sharding_key
from penstock.errors import BrokerRefused, ConnectionLost, NoRoute, NotFound, PenstockError, TimedOut
from penstock.message import Message, ReceivedMessage
from penstock.security import Security
from penstock.wire import names
from penstock.wire.codes import ResponseCode

Each = Callable[[ReceivedMessage, str], object]  # told of one, and of the topic it goes to
BATCH = 100  # at most so many are sent before the offset is committed
PULL_S = 2.0
_PREFIX = names.DEAD_PREFIX.decode()
# What belongs to the delivery that failed, or to the send before it.
_NOT_SENT_AGAIN = names.DEAD_PROPERTIES | {
    names.RETRY_TOPIC, names.WAIT, names.DELAY, names.HALF, names.PRODUCER_GROUP, names.REAL_TOPIC, names.REAL_QUEUE,
    names.MIN_OFFSET, names.MAX_OFFSET, names.CONSUME_START_TIME, names.CHECK_TIMES, names.SEQUENCE, names.UNIQUE_KEY,
}  # fmt: skip


@dataclass(frozen=True)
class DeadTopic:
    """A topic of dead letters: of a group (kind log), or of a queue topic's channel. `left` were not sent again by a call
    for all; None, as the times, where the broker does not say.
    """

    name: str
    topic: str
    kind: Literal["log", "queue"]
    count: int
    left: int | None = None
    oldest_ms: int | None = None
    newest_ms: int | None = None


@dataclass
class Redriven:
    """What was sent again, or would be: `topics` is how many to each. `unreadable`: their bodies cannot be decompressed.
    `missing`: the ids that no dead letter has.
    """

    count: int = 0
    unreadable: int = 0
    topics: dict[str, int] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    def add(self, topic: str) -> None:
        """One more."""
        self.count += 1
        self.topics[topic] = self.topics.get(topic, 0) + 1


def origin(message: ReceivedMessage) -> str:
    """The topic a dead letter came from; empty when it does not say."""
    return message.properties.get(names.RETRY_TOPIC, "")


def describe(message: ReceivedMessage, *, redriven: bool) -> Json:
    """A dead letter as a row; what its broker did not note is None, or for the time when it was stored."""
    told = message.properties
    died_ms, attempts = told.get(names.DEAD_TIME, ""), told.get(names.DEAD_ATTEMPTS, "")
    return {
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "broker": message.broker,
        "died_ms": int(died_ms) if died_ms.isdecimal() else message.store_ms,
        "reason": told.get(names.DEAD_REASON),
        "detail": told.get(names.DEAD_DETAIL),
        "group": told.get(names.DEAD_GROUP),
        "client": told.get(names.DEAD_CLIENT),
        "attempts": int(attempts) if attempts.isdecimal() else message.reconsume_times,
        "origin": origin(message) or None,
        "originId": told.get(names.ORIGIN_ID),
        "msgId": message.msg_id,
        "born_ms": message.born_ms,
        "tags": message.tags,
        "keys": list(message.keys),
        "redriven": redriven,
    }


def exported(message: ReceivedMessage, *, redriven: bool) -> Json:
    """A dead letter as a line of a file: times as text, the body as text or in base64, with all properties."""
    row = describe(message, redriven=redriven)
    try:
        body = {"body": message.body.decode()}
    except UnicodeDecodeError:
        body = {"bodyBase64": base64.b64encode(message.body).decode()}
    times = {"died": time_text(row.pop("died_ms")), "born": time_text(row.pop("born_ms"))}
    return row | times | body | {"properties": dict(message.properties)}


def time_text(ms: int) -> str:
    """A time as ISO 8601 has it."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


class DeadLetters:
    """See the module. As a context manager. With `partial` those of brokers that do not answer are missing in `topics` and
    `letters`, and `missed` says which brokers those are, as of `Admin`. Nothing is sent again, nor deleted, while one is.
    """

    def __init__(
        self,
        registry: str = "127.0.0.1:9876",
        *,
        timeout_s: float = 10.0,
        security: Security | str | Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        partial: bool = False,
    ) -> None:
        self._registry = registry
        self._timeout_s = timeout_s
        self._security = security
        self._clock = clock
        self._sleep = sleep
        self._partial = partial
        self._admin = Admin(registry, timeout_s=timeout_s, security=security, partial=partial)

    def __enter__(self) -> Self:
        self._admin.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._admin.close()

    # -- which there are

    @property
    def missed(self) -> dict[str, PenstockError]:
        """The brokers that did not answer, and why."""
        return self._admin.missed

    def topics(self) -> list[DeadTopic]:
        """All topics of dead letters, by name."""
        logs = [topic for topic in self._admin.topics(system=True) if topic.startswith(_PREFIX)]
        return sorted([*map(self._log, logs), *self._queues()], key=lambda one: (one.name, one.topic))

    def _log(self, topic: str) -> DeadTopic:
        stats = self._admin.topic_stats(topic)
        done = self._admin.group_stats(GROUP, topic)
        count = left = 0
        for queue, s in stats.items():
            count += s.max_offset - s.min_offset
            at = done[queue].committed if queue in done else 0
            left += s.max_offset - min(s.max_offset, max(at, s.min_offset))
        newest = max((s.last_ms for s in stats.values()), default=0) or None
        oldest = self._admin.oldest_ms(topic) if count else None
        return DeadTopic(topic.removeprefix(_PREFIX), topic, "log", count, left, oldest, newest if count else None)

    def _queues(self) -> Iterator[DeadTopic]:
        rows = self._admin.queue_topics()
        origins = {
            names.dead_letter_name(row["topic"].encode(), one["channel"].encode()).decode(): (
                row["topic"],
                one["channel"],
            )
            for row in rows
            for one in row["channels"]
        }
        counts: dict[str, int] = {}
        for row in rows:
            if row["kind"] == "queue" and row["topic"].endswith(SUFFIX):
                waiting = [one["depth"] + one["inFlight"] + one["deferred"] for one in row["channels"]]
                counts[row["topic"]] = counts.get(row["topic"], 0) + row["depth"] + max(waiting, default=0)
        for topic, count in counts.items():
            name = ".".join(origins[topic]) if topic in origins else topic.removesuffix(SUFFIX)
            yield DeadTopic(name, topic, "queue", count, count)

    def find(self, name: str) -> str | DeadQueues:
        """The dead-letter topic of a group, named with `%DLQ%` or without; or of a queue topic's channel, named with
        `.dead` or without. NotFound.
        """
        topic = _PREFIX + name.removeprefix(_PREFIX)
        try:
            self._admin.route(topic)
            return topic
        except NoRoute:
            found = self._queue(name)
        if found is None:
            raise self._unknown(name)
        return found

    def _queue(self, name: str) -> DeadQueues | None:
        try:
            topic = name.removesuffix(SUFFIX) + SUFFIX
            found = DeadQueues(self._admin, topic, self.missed.__setitem__ if self._partial else None)
        except BrokerRefused:  # who may not know of it
            return None
        return found if found.there else None

    def _unknown(self, name: str) -> PenstockError:
        """What to say of a name, as far as this user may know which there are."""
        try:
            known = [one.name for one in self.topics()]
        except BrokerRefused:
            return NotFound(f"group {name!r} has no dead letters")
        near = difflib.get_close_matches(name, known, 1)
        hint = f"Did you mean {near[0]}?" if near else "`penstock dlq ls` lists those that have some."
        return NotFound(f"group {name!r} has no dead letters", hint)

    # -- what they are

    def letters(self, name: str, text: str = "") -> Iterator[tuple[ReceivedMessage, bool]]:
        """The dead letters of a group that match a text, oldest first in each queue, and whether each was sent again."""
        topic = self.find(name)
        if isinstance(topic, DeadQueues):
            yield from ((letter, False) for letter in topic.letters() if matches(letter, text))
            return
        sent = _Sent(self._offsets(topic))
        with self._reader(GROUP) as reader:
            for queue in reader.queues(topic):
                if queue.broker in self.missed:
                    continue
                try:
                    low, high = reader.offsets(queue)
                    for message in _read(reader, queue, low, high):
                        if matches(message, text):
                            yield message, sent.has(queue, message)
                except (ConnectionLost, TimedOut) as error:
                    if not self._partial:
                        raise
                    self.missed[queue.broker] = error

    # -- sent again

    def _check_all(self) -> None:
        """The error of a broker that was missed: what it would say of what was sent is not known."""
        for error in self.missed.values():
            raise error

    def redrive(
        self,
        name: str,
        *,
        to: str = "",
        text: str = "",
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        each: Each | None = None,
    ) -> Redriven:
        """Send the dead letters of a group again that match a text and were not sent before: `limit` of them at most,
        `rate` a second; to the topics they came from, or all to one. `each` is told of every one and its topic.

        NotFound when a topic is not there (any more): nothing behind that message is sent.
        """
        topic, rule = self.find(name), Rule(text)
        done = Redriven()
        pace = _Pace(rate, self._clock, self._sleep)
        self._check_all()
        if isinstance(topic, DeadQueues):
            _redrive_queue(topic, {"to": to, "text": text}, limit, pace, dry_run, each, done)
            return done
        if to:
            self._check_topic(to)
        if not dry_run:
            _ = rule.group  # ValueError, before anything is sent
        with self._sending(topic, to, dry_run, each, done, pace) as sending:
            for queue in sending.queues():
                if limit is None or done.count < limit:
                    sending.run(queue, rule, limit)
        return done

    def resend(
        self, name: str, ids: Iterable[str], *, to: str = "", dry_run: bool = False, each: Each | None = None
    ) -> Redriven:
        """Send the dead letters with these ids again, each that was not sent before; `missing` are the ids of none. NotFound:
        no topic.
        """
        topic, wanted, done = self.find(name), list(dict.fromkeys(ids)), Redriven()
        pace = _Pace(None, self._clock, self._sleep)
        self._check_all()
        if isinstance(topic, DeadQueues):
            there = {letter.msg_id for letter in topic.letters()}
            for id_ in wanted:
                if id_ in there:
                    _redrive_queue(topic, {"to": to, "text": id_, "id": id_}, None, pace, dry_run, each, done)
            done.missing = [id_ for id_ in wanted if id_ not in there]
            return done
        if to:
            self._check_topic(to)
        with self._sending(topic, to, dry_run, each, done, pace) as sending:
            places: dict[str, list[tuple[MessageQueue, int]]] = {}
            for queue in sending.queues():
                for message in _read(sending.reader, queue, *sending.reader.offsets(queue)):
                    places.setdefault(message.msg_id, []).append((queue, message.queue_offset))
            for id_ in wanted:
                for queue, offset in places.get(id_, ()):
                    sending.run(queue, Rule(id_, ID), None, offset, offset + 1)
        done.missing = [id_ for id_ in wanted if id_ not in places]
        return done

    def delete_sent(self, name: str) -> int:
        """Take those out of sight that were sent again and lie before all that were not; how many. Of a queue topic none
        is left that was sent again.
        """
        topic = self.find(name)
        if isinstance(topic, DeadQueues):
            return 0
        offsets = self._offsets(topic)
        self._check_all()
        sent, gone = _Sent(offsets), 0
        with self._reader(GROUP) as reader:
            for queue in reader.queues(topic):
                low, high = reader.offsets(queue)
                end = high
                for message in _read(reader, queue, low, min(high, sent.reach(queue))):
                    if not sent.has(queue, message):
                        end = message.queue_offset
                        break
                else:
                    end = min(high, sent.reach(queue))
                if end > low:
                    rows = self._admin.purge_topic(topic, end, queue=queue.queue_id, broker=queue.broker)
                    gone += sum(row["messages"] for row in rows)
        return gone

    def check_origin(self, topic: str, known: set[str]) -> None:
        """NotFound when a message cannot be sent to the topic it came from."""
        if topic not in known:
            if not topic:
                raise NotFound("a dead letter does not say which topic it came from", "Say where to with --to.")
            self._check_topic(topic)
            known.add(topic)

    def _check_topic(self, topic: str) -> None:
        try:
            kind = self._admin.route(topic).kind
        except NoRoute:
            raise NotFound(f"no broker has the topic {topic!r}", "Make it, or say another one with --to.") from None
        if kind != "log":
            raise NotFound(
                f"{topic} is a queue topic, which keeps no keys and properties", "Say a log topic with --to."
            )

    def _offsets(self, topic: str) -> list[tuple[Rule, dict[MessageQueue, int]]]:
        """(rule, how far) of each call that sent some again."""
        found = []
        for group in self._admin.groups_of(topic):
            rule = rule_of(group)
            if rule is not None:
                stats = self._admin.group_stats(group, topic)
                found.append((rule, {queue: one.committed for queue, one in stats.items()}))
        return found

    def _reader(self, group: str) -> PullConsumer:
        return PullConsumer(self._registry, group=group, timeout_s=self._timeout_s, security=self._security)

    def _sending(self, topic: str, to: str, dry_run: bool, each: Each | None, done: Redriven, pace: _Pace) -> _Sending:
        producer = Producer(self._registry, send_timeout_s=self._timeout_s, security=self._security)
        sent = _Sent(self._offsets(topic))
        self._check_all()
        return _Sending(self._reader, producer, self.check_origin, topic, sent, to, dry_run, each, done, pace)


class _Sent:
    """Which messages were sent again."""

    def __init__(self, offsets: list[tuple[Rule, dict[MessageQueue, int]]]) -> None:
        self._offsets = offsets

    def has(self, queue: MessageQueue, message: ReceivedMessage) -> bool:
        """Whether this one was."""
        return any(message.queue_offset < at.get(queue, 0) and rule.matches(message) for rule, at in self._offsets)

    def by(self, rule: Rule, queue: MessageQueue) -> int:
        """How far calls with this rule came."""
        return next((at.get(queue, 0) for known, at in self._offsets if known == rule), 0)

    def reach(self, queue: MessageQueue) -> int:
        """Nothing from here on was."""
        return max((at.get(queue, 0) for _, at in self._offsets), default=0)


class _Pace:
    """So many a second."""

    def __init__(self, rate: float | None, clock: Callable[[], float], sleep: Callable[[float], object]) -> None:
        if rate is not None and not 0 < rate < math.inf:
            raise ValueError(f"rate is a number above 0, not {rate}")
        self.step = 0.0 if rate is None else 1 / rate
        self.batch = BATCH if rate is None else max(1, min(BATCH, int(rate)))  # a second's
        self._clock = clock
        self._sleep = sleep
        self._next = clock()

    def some(self, count: int) -> int:
        """Wait until some may go, at most so many; how many."""
        allowed = min(count, self.batch)
        for _ in range(allowed if self.step else 0):
            self.wait()
        return allowed

    def wait(self) -> None:
        """Until the next one's time."""
        if self.step:
            early = self._next - self._clock()
            if early > 0:
                self._sleep(early)
            self._next = max(self._next, self._clock() - self.step) + self.step


@dataclass
class _Sending:
    """One topic of dead letters being sent again. As a context manager."""

    reader_of: Callable[[str], PullConsumer]  # by group
    producer: Producer
    check_origin: Callable[[str, set[str]], None]
    topic: str
    sent: _Sent
    to: str
    dry_run: bool
    each: Each | None
    done: Redriven
    pace: _Pace
    known: set[str] = field(default_factory=set)
    notes: dict[str, PullConsumer] = field(default_factory=dict)  # by group: who commits for it
    stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        self.reader = self.stack.enter_context(self.reader_of(GROUP))
        self.stack.enter_context(self.producer)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stack.close()

    def queues(self) -> list[MessageQueue]:
        """Those that the topic has."""
        return self.reader.queues(self.topic)

    def run(self, queue: MessageQueue, rule: Rule, limit: int | None, begin: int = 0, end: int | None = None) -> None:
        """Send what a rule names of one queue, and was not sent; the offset is committed after each batch, and when something
        fails.
        """
        low, high = self.reader.offsets(queue)
        low = committed = max(low, begin, self.sent.by(rule, queue))
        high = high if end is None else min(high, end)
        unsaved, noted, number = 0, not rule.text, _producer_id(queue, rule)
        try:
            for message in _read(self.reader, queue, low, high):
                if rule.matches(message) and not self.sent.has(queue, message):
                    if limit is not None and self.done.count >= limit:
                        break
                    if message.undecodable is None:
                        self._send(message, number)
                        unsaved, noted = unsaved + 1, True
                    else:
                        self.done.unreadable += 1
                low = message.queue_offset + 1
                if unsaved >= self.pace.batch:
                    committed, unsaved = self._commit(queue, rule, committed, low), 0
            else:
                low = high
        finally:
            if noted:
                self._commit(queue, rule, committed, low)

    def _send(self, message: ReceivedMessage, number: str) -> None:
        topic = self.to or origin(message)
        self.check_origin(topic, self.known)
        if not self.dry_run:
            self.pace.wait()
            if not self._stored(again(message, topic), f"{number}.{message.queue_offset + 1}.1", message.queue_offset):
                return
        self.done.add(topic)
        if self.each is not None:
            self.each(message, topic)

    def _stored(self, letter: Message, number: str, offset: int) -> bool:
        """Send it under its number, always to the same queue; False when it is known that another call did."""
        numbered = dict(letter.properties) | {names.SEQUENCE: number}
        queues = sorted(self.producer.queues(letter.topic))
        if letter.sharding_key is None:
            queue = queues[offset % len(queues)]
        else:
            queue = by_sharding_key(letter.sharding_key, queues)
        try:
            self.producer.send(structs.replace(letter, properties=numbered), queue=queue)
        except BrokerRefused as refused:
            if refused.code != ResponseCode.SEQUENCE_TOO_OLD:
                raise
            return False
        return True

    def _commit(self, queue: MessageQueue, rule: Rule, before: int, at: int) -> int:
        if at > before and not self.dry_run:
            noted = self.notes.get(rule.group)
            if noted is None:
                noted = self.notes[rule.group] = self.stack.enter_context(self.reader_of(rule.group))
            noted.commit({queue: at})
        return at


def _producer_id(queue: MessageQueue, rule: Rule) -> str:
    """The same one whenever this queue is sent again by the same rule."""
    about = f"{queue.topic}\0{queue.broker}\0{queue.queue_id}\0{rule.group}"
    return hashlib.sha256(about.encode()).hexdigest()[:16]


def _redrive_queue(
    letters: DeadQueues, wanted: dict[str, str], limit: int | None, pace: _Pace, dry_run: bool, each: Each | None, done: Redriven
) -> None:  # fmt: skip
    """Those of a queue topic: the broker sends them."""
    fields = wanted | {"dryRun": str(dry_run).lower()}

    def tell(message: ReceivedMessage, topic: str) -> None:
        done.add(topic)
        if each is not None:
            each(message, topic)

    letters.redrive(fields, pace.some if not dry_run else lambda count: count, limit, tell)


def again(message: ReceivedMessage, topic: str) -> Message:
    """A dead letter as it is sent again: without what its delivery, its death and its first send added."""
    kept = {
        name: value
        for name, value in message.properties.items()
        if name not in _NOT_SENT_AGAIN and not name.startswith((names.RESERVED_PREFIX, names.TIMER_PREFIX))
    }
    return Message(topic, message.body, properties=kept, flag=message.flag, sharding_key=message.sharding_key)


def _read(reader: PullConsumer, queue: MessageQueue, low: int, high: int) -> Iterator[ReceivedMessage]:
    """The messages of a queue between two offsets."""
    if low >= high:
        return
    reader.assign(queue.topic, [queue], start="first")
    reader.seek(queue, low)
    try:
        while reader.position(queue) < high:
            for message in reader.getmany(PULL_S).get(queue, ()):
                if message.queue_offset >= high:
                    return
                yield message
    finally:
        reader.unassign(queue)
