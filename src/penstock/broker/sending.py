"""Sending: what is stored in the log goes through here, but for the plain messages of the hot path.

may a producer write this topic     `open_to_senders`: the rule of every front and of staged rows
which topic, which queue            `topic_to_write`, made from the template when it is new
at once or later                    `put`: by way of a schedule topic when a property asks for a delay
"""

from __future__ import annotations

from collections.abc import Sized
from itertools import repeat
from typing import NamedTuple, NoReturn

from penstock import msgid
from penstock.broker.clock import Alarm, BrokerClock
from penstock.broker.copies import Copies
from penstock.broker.levels import LEVEL_PAIR
from penstock.broker.topics import (
    DONE_TOPIC,
    SCHEDULE_TOPIC,
    TEMPLATE_TOPIC,
    TIMER_TOPIC,
    LogTopic,
    TopicTable,
)
from penstock.errors import LimitReached, Refused
from penstock.log import status
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.draft import Draft
from penstock.log.store import LogStore
from penstock.message import ReceivedMessage
from penstock.schedule.delays import LEVEL, TIMER_PROPERTIES, DelayRule
from penstock.wire import names, record
from penstock.wire.codes import SYS_BORN_IPV6, SYS_STORE_IPV6, ResponseCode

# RocketMQ's code and words for what an append may answer.
APPEND_REFUSALS = {
    status.DISK_FULL: (
        14,
        "service not available now. The disk is full, or a limit for files: nothing is stored until there is room.",
    ),
    status.NOT_WRITABLE: (14, "service not available now. Nothing can be stored: the broker's log says why."),
    status.TOO_LARGE: (13, "the message is illegal, maybe msg body or properties length not matched."),
    status.ILLEGAL: (13, "the message is illegal, maybe the lengths within the batch do not add up."),
    status.NOT_MASTER: (14, "service not available now. It is a slave: messages are sent to its master."),
}
_BEHIND_MS = 500  # a delay that ends so much later is still on time
SHORT = (14, "service not available now. Fewer brokers are in sync than min_in_sync asks for: nothing is stored.")


class Placed(NamedTuple):
    """Where a message was stored."""

    physical: int
    queue_id: int
    queue_offset: int


class Marks(NamedTuple):
    """Numbers of a record that most messages have not."""

    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared: int = 0


UNMARKED = Marks()


def fill(
    draft: Draft, queue: ConsumeQueue, born_host: bytes, born_ms: int, marks: Marks, *, indexed: bool = True
) -> None:
    """What a draft says beside body and properties."""
    draft.set_born(born_host)
    draft.queue = queue
    draft.born_ms = born_ms
    draft.flag, draft.sys_flag, draft.reconsume_times, draft.prepared = marks
    draft.indexed = indexed


class Sending:
    """See the module. Every method on the broker's thread."""

    def __init__(
        self,
        time: BrokerClock,
        store: LogStore,
        topics: TopicTable,
        delays: DelayRule,
        alarm: Alarm,
        copies: Copies,
        schedule: Sized = (),
    ) -> None:
        self.limits = topics.limits
        self._schedule = schedule
        self.time = time
        self.store = store
        self.topics = topics
        self.delays = delays
        self.store_host: bytes = store.options.store_host
        self._copies = copies
        self._alarm = alarm
        self._draft = Draft()

    # -- which topic ---------------------------------------------------------------------------------------------

    def open_to_senders(self, name: bytes, template: bytes = TEMPLATE_TOPIC, queues: int = 4) -> LogTopic:
        """The topic a producer writes to, made when it is new. Refused 16 when no producer may, or 17."""
        topic = self.topics.get(name)
        if topic is not None and topic.protected:
            raise Refused(
                f"Sending message to topic[{name.decode()}] is forbidden.", remoting=ResponseCode.NO_PERMISSION
            )
        if topic is None:
            topic = self.topic_to_write(name, template, queues)
        if not topic.writable():
            raise Refused(
                f"the topic[{name.decode()}] sending message is forbidden", remoting=ResponseCode.NO_PERMISSION
            )
        return topic

    def topic_to_write(self, name: bytes, template: bytes = TEMPLATE_TOPIC, queues: int = 4) -> LogTopic:
        """The topic a message is for, made from the template when it is new. Refused 16 or 17; 14 when a slave would make it."""
        topic = self.topics.get(name)
        if topic is None:
            if self.store.following:  # its topics are its master's
                self._refuse_append(status.NOT_MASTER)
            topic = self.topics.create_from_template(name, template, queues, self.time.now_ms)
            if topic is None:
                raise Refused(
                    f"topic[{name.decode()}] not exist, apply first please!",
                    remoting=ResponseCode.TOPIC_NOT_EXIST,
                    nsq="E_BAD_TOPIC",
                    http=404,
                )
        return topic

    # -- storing -------------------------------------------------------------------------------------------------

    def append(self, draft: Draft) -> None:
        """Append to the log. Refused when it cannot be."""
        outcome = self.store.append(draft)
        if outcome:
            self._refuse_append(outcome)

    @staticmethod
    def _refuse_append(outcome: int) -> NoReturn:
        code, text = APPEND_REFUSALS[outcome]
        raise Refused(text, remoting=code, nsq="E_PUB_FAILED", http=500)

    def _demand_copies(self, topic: LogTopic) -> None:
        """Refused where the topic's level asks for more brokers than are in sync."""
        if topic.level >= LEVEL_PAIR and self._copies.short:
            raise Refused(SHORT[1], remoting=SHORT[0], nsq="E_PUB_FAILED", http=503)

    def due_ms(self, properties: dict[str, str]) -> int | None:
        """When a message with these properties is due, or None: at once. Refused (13) when a number is none."""
        return self.delays.due_ms(properties, self.time.now_ms)

    def demand_delay(self, properties: dict[str, str], count: int = 1) -> None:
        """A producer sends messages with these properties. Refused when it asks for a delay, and too many are delayed."""
        most = self.limits.max_delayed_messages
        if most and len(self._schedule) + count > most and self.due_ms(properties) is not None:
            self.limits.count("delayed")
            raise LimitReached(
                f"no more than {most} delayed messages",
                remoting=ResponseCode.SERVICE_NOT_AVAILABLE,
                nsq="E_PUB_FAILED",
                http=503,
            )

    def put(
        self,
        topic: LogTopic,
        queue_id: int,
        body: bytes,
        properties: dict[str, str],
        *,
        born_host: bytes,
        born_ms: int,
        marks: Marks = UNMARKED,
        half: bool = False,
    ) -> Placed:
        """Store one message, by way of the schedule when it asks for a delay. Refused when it cannot be stored.

        Half messages are not delayed: what they become on commit is. Nor are those whose delay is over.
        """
        self._demand_copies(topic)
        return self.put_begun(
            topic, queue_id, body, properties, born_host=born_host, born_ms=born_ms, marks=marks, half=half
        )

    def put_begun(
        self,
        topic: LogTopic,
        queue_id: int,
        body: bytes,
        properties: dict[str, str],
        *,
        born_host: bytes,
        born_ms: int,
        marks: Marks = UNMARKED,
        half: bool = False,
    ) -> Placed:
        """As `put`, however many copies there may be: of what is begun, and must come to its end."""
        due_ms = None if half else self.due_ms(properties)
        if due_ms is not None:
            # It may have been sent after this turn's time was read, and by the sender's clock it must not come early. Its moment
            # may have come meanwhile: what is delayed goes by way of the schedule all the same.
            self.time.catch_up()
            self.store.catch_up(self.time.now_ms)
            due_ms = self.due_ms(properties) or self.time.now_ms
        queue = topic.queues[queue_id]
        if due_ms is not None:
            queue, properties = self.as_delayed(topic, queue_id, properties, due_ms)
        draft = self._draft
        draft.set_body(body)
        draft.set_properties(record.restore_properties(properties).encode())
        fill(draft, queue, born_host, born_ms, marks)
        if due_ms is not None:
            draft.tags_code = due_ms
            self._alarm.at_latest(self.time.mono_ms + due_ms - self.time.now_ms)
        self.append(draft)
        topic.count_put(1, draft.size)
        return Placed(draft.physical, queue_id, draft.queue_offset)

    def as_delayed(
        self, topic: LogTopic, queue_id: int, properties: dict[str, str], due_ms: int
    ) -> tuple[ConsumeQueue, dict[str, str]]:
        """Where a delayed message waits, and its properties there: they say where it is for, too.

        A delay is counted from the store time. After a clock was set back between two starts that stands still until it is
        reached: the moment itself is told meanwhile, unless the properties leave no room for it.
        """
        told = {**properties, names.REAL_TOPIC: topic.name.decode(), names.REAL_QUEUE: str(queue_id)}
        if self.store.log.store_ms - self.time.now_ms > _BEHIND_MS:
            moment = {name: text for name, text in told.items() if name not in TIMER_PROPERTIES}
            moment[names.TIMER_DELIVER_MS] = str(due_ms)
            if len(record.restore_properties(moment).encode()) <= record.PROPERTIES_BYTES_MAX:
                return self.topics.by_name[TIMER_TOPIC].queues[0], moment
        if LEVEL in properties:
            level = self.delays.level(properties[LEVEL])
            return self.topics.by_name[SCHEDULE_TOPIC].queues[level - 1], told
        return self.topics.by_name[TIMER_TOPIC].queues[0], told

    def put_own(self, topic: bytes, body: bytes, properties: dict[str, str], prepared: int = 0) -> Placed:
        """Store a record of the broker's own in a system topic. Refused when it cannot be stored."""
        return self.put(
            self.topics.by_name[topic],
            0,
            body,
            properties,
            born_host=self.store_host,
            born_ms=self.time.now_ms,
            marks=Marks(prepared=prepared),
        )

    def put_over(self, schedule_id: int) -> bool:
        """Tell the log that an entry of the schedule is delivered or cancelled. False when it cannot be told now."""
        try:
            self.put_own(DONE_TOPIC, b"", {}, prepared=schedule_id)
        except Refused:
            return False
        return True

    def put_batch(self, topic: LogTopic, queue_id: int, bodies: list[bytes]) -> None:
        """Store messages without properties, all or none. Refused when they cannot be stored."""
        if len(bodies) == 1:
            self.put(topic, queue_id, bodies[0], {}, born_host=self.store_host, born_ms=self.time.now_ms)
            return
        self._demand_copies(topic)
        draft = self._draft
        fill(draft, topic.queues[queue_id], self.store_host, self.time.now_ms, UNMARKED, indexed=False)
        batch = record.encode_batch(zip(bodies, repeat(b""), repeat(0), strict=False))  # there may be a million
        answer = self.store.append_batch_bytes(draft, batch)
        if answer < 0:
            code, text = APPEND_REFUSALS[-answer]
            raise Refused(text, remoting=code, nsq="E_MPUB_FAILED", http=500)
        topic.count_put(len(bodies), draft.size)

    def put_again(
        self,
        topic: LogTopic,
        queue_id: int,
        message: ReceivedMessage,
        properties: dict[str, str],
        *,
        prepared: int = 0,
        given_back: int = 0,
        sys_flag: int = 0,
        half: bool = False,
    ) -> Placed:
        """Store a message that was stored before in another place, with other properties; body and birth stay."""
        return self.put(
            topic,
            queue_id,
            message.body,
            properties,
            born_host=msgid.pack_host(message.born_host),
            born_ms=message.born_ms,
            marks=Marks(
                message.flag,
                message.sys_flag & ~(SYS_BORN_IPV6 | SYS_STORE_IPV6) | sys_flag,  # the record's own hosts say so
                message.reconsume_times + given_back,
                prepared,
            ),
            half=half,
        )
