"""What a consumer could not do: the retry topic of its group, and the dead letters behind that.

a group             %RETRY%group with a delay ─▶ retry_max in vain ─▶ %DLQ%group
a queue's channel   a topic <topic>.<channel>.dead, beside the others
a log's channel     %DLQ%channel, as a group of the same name
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from penstock.broker.groups import Group, GroupTable
from penstock.broker.sending import Placed, Sending
from penstock.broker.topics import DEAD_PREFIX, RETRY_PREFIX, LogTopic
from penstock.errors import Refused
from penstock.message import ReceivedMessage
from penstock.schedule.delays import LEVEL, TIMER_PROPERTIES
from penstock.wire import names, record

DEAD_SUFFIX = b".dead"
DEAD_NAME_BYTES = 64
FIRST_LEVEL = 3  # of the first retry; each one more is a level more
_NOT_IN_GROUPS = re.compile(rb"[^%|a-zA-Z0-9_-]")


def dead_letter_name(topic: bytes, channel: bytes) -> bytes:
    """The dead-letter topic of a channel, at most 64 characters."""
    topic, channel = topic.partition(b"#")[0], channel.partition(b"#")[0]
    name = topic + b"." + channel
    return name[: DEAD_NAME_BYTES - len(DEAD_SUFFIX)] + DEAD_SUFFIX


def is_dead(group: Group, times: int, retry_max: int | None) -> bool:
    """Whether a message given back so often goes to the dead letters; `retry_max` as its consumer says it, if it does."""
    return times >= (group.retry_max if retry_max is None or retry_max < 0 else retry_max)


class Retry:
    """See the module."""

    def __init__(self, sending: Sending, groups: GroupTable) -> None:
        self._sending = sending
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
    ) -> Placed | None:
        """A consumer gives a message back (rocketmq.md §13): to the retry topic with a delay, or to the dead letters.

        `delay_ms`, which only our client sends, is more exact than the level.

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
        properties = without_delay(message.properties)
        properties.setdefault(names.RETRY_TOPIC, message.topic)
        properties[names.WAIT] = "false"
        if level < 0 or is_dead(group, message.reconsume_times, retry_max):
            topic = self.dead_letters_of(group_name.encode())
            queue_id = 0
        else:
            topic = self._retry_topic(group_name, group.retry_queues)
            queue_id = random.randrange(topic.queue_count)
            if delay_ms is not None:
                properties[names.TIMER_DELAY_MS] = str(delay_ms)
            else:
                properties[LEVEL] = str(level or FIRST_LEVEL + message.reconsume_times)
        properties.setdefault("ORIGIN_MESSAGE_ID", origin_id or message.offset_msg_id)
        group.was_sent_back()
        return sending.put_again(topic, queue_id, message, properties, given_back=1)

    def retry_topic_of(self, group_name: str) -> LogTopic:
        """`%RETRY%group`, made if need be."""
        group = self._groups.find(group_name, self._sending.time.now_ms)
        return self._retry_topic(group_name, max(1, group.retry_queues))

    def _retry_topic(self, group_name: str, queues: int) -> LogTopic:
        topics, name = self._sending.topics, RETRY_PREFIX + group_name.encode()
        return topics.get(name) or topics.create(name, queues, queues, now_ms=self._sending.time.now_ms)

    def bury(self, channel: bytes, origin: bytes, message: ReceivedMessage | None, body: bytes, attempts: int) -> None:
        """Store a message of a log topic's channel with the dead letters of the group of that name: in a log topic, so
        that RocketMQ's clients, the tools and Spark read it. `message`: as the log has it, if it does. Refused.
        """
        sending = self._sending
        dead = self.dead_letters_of(_NOT_IN_GROUPS.sub(lambda found: b"%%%02X" % found[0][0], channel))
        if message is None:  # a copy that was deferred: the original may be gone
            properties = {names.RETRY_TOPIC: origin.decode()}
            sending.put(dead, 0, body, properties, born_host=sending.store_host, born_ms=sending.time.now_ms)
            return
        properties = without_delay(message.properties)
        properties.setdefault(names.RETRY_TOPIC, origin.decode())
        properties.setdefault("ORIGIN_MESSAGE_ID", message.offset_msg_id)
        sending.put_again(dead, 0, message, properties, given_back=attempts)


def without_delay(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a message that was delayed before."""
    return {name: value for name, value in properties.items() if name != LEVEL and name not in TIMER_PROPERTIES}
