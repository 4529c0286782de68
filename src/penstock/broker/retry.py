"""What a consumer could not do: the retry topic of its group, and the dead letters behind that.

a group             %RETRY%group with a delay ─▶ retry_max in vain ─▶ %DLQ%group
a queue's channel   a topic <topic>.<channel>.dead, beside the others
a log's channel     %DLQ%channel, as a group of the same name
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from typing import NamedTuple

from penstock.broker.groups import Group, GroupTable
from penstock.broker.sending import Marks, Placed, Sending
from penstock.broker.topics import DEAD_PREFIX, RETRY_PREFIX, LogTopic
from penstock.broker.tracing import Tracing
from penstock.errors import Refused
from penstock.message import ReceivedMessage
from penstock.schedule.delays import LEVEL, TIMER_PROPERTIES
from penstock.wire import names, record
from penstock.wire.codes import ResponseCode
from penstock.wire.names import dead_letter_name as dead_letter_name

DETAIL_BYTES_MAX = 1_000
BY_ATTEMPTS, BY_REJECTION = "attempts", "rejected"  # as channels say it
BY_SIZE = "properties"  # it has so many bytes of them that none of a retry fit in
FIRST_LEVEL = 3  # of the first retry; each one more is a level more
_ROOM = record.PROPERTIES_BYTES_MAX
_NOT_IN_GROUPS = re.compile(rb"[^%|a-zA-Z0-9_-]")
_NOT_IN_VALUES = re.compile(r"[\x00-\x1f\x7f]")


class Death(NamedTuple):
    """What is known of a message that becomes a dead letter: `client` had it last and said `detail`."""

    reason: str
    group: str
    attempts: int
    client: str = ""
    detail: str = ""

    def mark(self, properties: Mapping[str, str], now_ms: int) -> dict[str, str]:
        """The properties of the dead letter: those of the message, and of these as many as there is room for."""
        found = {name: value for name, value in properties.items() if name not in names.DEAD_PROPERTIES}
        room = record.PROPERTIES_BYTES_MAX - len(record.restore_properties(found).encode())
        told = (
            (names.DEAD_REASON, self.reason),
            (names.DEAD_TIME, str(now_ms)),
            (names.DEAD_GROUP, self.group),
            (names.DEAD_ATTEMPTS, str(self.attempts)),
            (names.DEAD_CLIENT, self.client),
            (names.DEAD_DETAIL, self.detail),
        )
        for name, text in told:
            value = (
                _NOT_IN_VALUES.sub(" ", text).encode("utf-8", "replace")[:DETAIL_BYTES_MAX].decode("utf-8", "ignore")
            )
            size = len(name) + len(value.encode()) + 2  # and the two that separate them
            if value and size <= room:
                found[name] = value
                room -= size
        return found


def is_dead(group: Group, times: int, retry_max: int | None) -> bool:
    """Whether a message given back so often goes to the dead letters; `retry_max` as its consumer says it, if it does."""
    return times >= (group.retry_max if retry_max is None or retry_max < 0 else retry_max)


def _added(properties: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """The properties, and of those that they have not these as many as there is room for."""
    found = dict(properties)
    for name, value in more.items():
        if name not in found and len(record.restore_properties(found | {name: value}).encode()) <= _ROOM:
            found[name] = value
    return found


class Retry:
    """See the module."""

    def __init__(self, sending: Sending, groups: GroupTable, tracing: Tracing) -> None:
        self._sending = sending
        self._tracing = tracing
        self._groups = groups

    def dead_letters_of(self, group_name: bytes) -> LogTopic:
        """`%DLQ%group`, made if need be. Refused."""
        return self._sending.topic_to_write(DEAD_PREFIX + group_name)

    def send_back(
        self,
        physical: int,
        group_name: str,
        level: int,
        retry_max: int | None,
        origin_id: str,
        delay_ms: int | None = None,
        client: str = "",
        detail: str = "",
    ) -> Placed | None:
        """A consumer gives a message back (rocketmq.md §13): to the retry topic with a delay, or to the dead letters.

        `delay_ms`, which only our client sends, is more exact than the level. `client` is who gives it back, `detail` why.

        None when the group keeps no retry queue. Refused when the message is gone or cannot be stored.
        """
        sending = self._sending
        now_ms = sending.time.now_ms
        group = self._groups.find(group_name, now_ms)
        if group.retry_queues <= 0:
            return None
        data = sending.store.record_at(physical)
        message = None if data is None else record.decode_record(data, 0, decompress=False)
        if message is None:
            raise Refused(f"look message by offset failed, {physical}")
        own = without_delay(message.properties)
        own.pop(names.WAIT, None)
        more = {
            names.RETRY_TOPIC: message.topic,
            names.ORIGIN_ID: origin_id or message.offset_msg_id,
            names.WAIT: "false",
        }
        reason = (
            BY_REJECTION if level < 0 else BY_ATTEMPTS if is_dead(group, message.reconsume_times, retry_max) else ""
        )
        placed = None
        if not reason:
            topic = self._retry_topic(group_name, group.retry_queues)
            queue_id = random.randrange(topic.queue_count)
            if delay_ms is not None:
                delay = {names.TIMER_DELAY_MS: str(delay_ms)}
            else:
                delay = {LEVEL: str(level or FIRST_LEVEL + message.reconsume_times)}
            sending.due_ms(delay)
            try:
                placed = sending.put_again(topic, queue_id, message, more | own | delay, given_back=1)
            except Refused as error:
                if error.remoting != ResponseCode.MESSAGE_ILLEGAL:
                    raise
                reason = BY_SIZE  # its consumer would give it back for ever
        if placed is None:
            topic = self.dead_letters_of(group_name.encode())
            death = Death(reason, group_name, message.reconsume_times + 1, client, detail)
            placed = sending.put_again(topic, 0, message, death.mark(_added(own, more), now_ms), given_back=1)
        group.was_sent_back()
        self._tracing.given_back(message, topic, group_name, client)
        return placed

    def retry_topic_of(self, group_name: str) -> LogTopic:
        """`%RETRY%group`, made if need be."""
        group = self._groups.find(group_name, self._sending.time.now_ms)
        return self._retry_topic(group_name, max(1, group.retry_queues))

    def _retry_topic(self, group_name: str, queues: int) -> LogTopic:
        topics, name = self._sending.topics, RETRY_PREFIX + group_name.encode()
        return topics.get(name) or topics.create(name, queues, queues, now_ms=self._sending.time.now_ms)

    def bury(self, channel: bytes, origin: bytes, message: ReceivedMessage | None, body: bytes, death: Death) -> None:
        """Store a message of a log topic's channel with the dead letters of the group of that name: in a log topic, so
        that RocketMQ's clients, the tools and Spark read it. `message`: as the log has it, if it does. Refused.
        """
        sending, now_ms = self._sending, self._sending.time.now_ms
        dead = self.dead_letters_of(_NOT_IN_GROUPS.sub(lambda found: b"%%%02X" % found[0][0], channel))
        if message is None:  # a copy that was deferred: the original may be gone
            properties = death.mark({names.RETRY_TOPIC: origin.decode()}, now_ms)
            marks = Marks(reconsume_times=death.attempts)
            sending.put(dead, 0, body, properties, born_host=sending.store_host, born_ms=now_ms, marks=marks)
            return
        more = {names.RETRY_TOPIC: origin.decode(), names.ORIGIN_ID: message.offset_msg_id}
        properties = _added(without_delay(message.properties), more)
        sending.put_again(dead, 0, message, death.mark(properties, now_ms), given_back=death.attempts)


def without_delay(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a message that was delayed before."""
    return {name: value for name, value in properties.items() if name != LEVEL and name not in TIMER_PROPERTIES}
