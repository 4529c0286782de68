"""Giving a message back: the broker stores a copy that comes again later, or goes to the dead-letter topic."""

from __future__ import annotations

import logging

from penstock.client.aio.cluster import Cluster
from penstock.client.conversation import OK
from penstock.client.nsqsending import level_for
from penstock.client.results import Reject, Retry
from penstock.client.routes import MessageQueue
from penstock.client.sending import send_request
from penstock.errors import ClientError, NoRoute, WireError
from penstock.message import Message, ReceivedMessage
from penstock.wire import names
from penstock.wire.codes import RETRY_PREFIX, RequestCode
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.client")

REASON_CHARS_MAX = 1_000

# properties of one delivery, which the copy for the retry topic must not have
_NOT_CARRIED = frozenset(
    (
        names.MIN_OFFSET,
        names.MAX_OFFSET,
        names.CONSUME_START_TIME,
        names.HALF,
        names.DELAY,
        names.REAL_TOPIC,
        names.REAL_QUEUE,
        names.WAIT,
    )
)


class GiveBack:
    """Gives the messages of one group back."""

    def __init__(self, cluster: Cluster, group: str, attempts_max: int) -> None:
        self._cluster = cluster
        self._group = group
        self._attempts_max = attempts_max

    async def give(self, queue: MessageQueue, message: ReceivedMessage, outcome: Retry | Reject) -> bool:
        """Have the broker that stores a message bring it again, or send a copy; whether one of them worked."""
        delay = None if isinstance(outcome, Reject) else outcome.delay
        level = -1 if isinstance(outcome, Reject) else 0 if delay is None else level_for(delay)
        ext = {
            "offset": str(message.physical_offset),
            "group": self._group,
            "delayLevel": str(level),
            "originMsgId": message.offset_msg_id,
            "originTopic": message.topic,
            "unitMode": "false",
            "maxReconsumeTimes": str(self._attempts_max - 1),  # the first delivery is none again
        }
        if isinstance(outcome, Reject) and outcome.reason:
            ext["reason"] = outcome.reason[:REASON_CHARS_MAX]  # ours: it is kept with the dead letter
        if delay is not None:
            ext["delayMillis"] = str(round(delay * 1000))  # ours: to the millisecond; others go by the level
        elif isinstance(outcome, Reject):
            log.warning("group %s rejects %s of %s: %s", self._group, message.msg_id, message.topic, outcome.reason)
        try:
            await self._cluster.ask_queue(queue, RemotingCommand(RequestCode.CONSUMER_SEND_MSG_BACK, ext))
            return True
        except (ClientError, WireError) as error:
            log.warning("group %s could not give back %s: %s", self._group, message.msg_id, error)
        try:
            await self._send(message, level, queue.broker)
            return True
        except (ClientError, WireError, ValueError) as error:
            log.error("group %s could not send %s to its retry topic: %s", self._group, message.msg_id, error)
            return False

    async def _send(self, message: ReceivedMessage, level: int, broker: str) -> None:
        """The same by an ordinary send, to another broker where there is one: the message's own is away, or has it no longer."""
        topic = RETRY_PREFIX + self._group
        queues = (await self._cluster.route(topic)).publish_queues()
        if not queues:
            raise NoRoute(f"no broker takes messages for topic {topic!r}")
        queues = [queue for queue in queues if queue.broker != broker] or queues
        properties = {name: value for name, value in message.properties.items() if name not in _NOT_CARRIED}
        properties.setdefault(names.RETRY_TOPIC, message.topic)
        properties.setdefault(names.ORIGIN_ID, message.msg_id)
        delay = max(0, level or 3 + message.reconsume_times)
        again = Message(topic, message.body, properties=properties, flag=message.flag, delay_level=delay)
        queue = queues[message.queue_offset % len(queues)]
        request = send_request(self._group, again, queue, message.msg_id, self._cluster.clock.now_ms())
        request.ext["j"] = str(self._attempts_max if level < 0 else message.reconsume_times + 1)
        request.ext["l"] = str(self._attempts_max)
        await self._cluster.ask_queue(queue, request, (*OK, 10, 11, 12))
