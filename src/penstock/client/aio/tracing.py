"""A client's traces: what it sent, received and made of a message is told to the trace topic, soon and in few messages.

Traces never hold up, nor fail, what they tell of: when they cannot be sent they are dropped, and the log says so.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from collections import deque

from penstock import msgid
from penstock.client.aio.attempts import Attempts, SendSettings
from penstock.client.aio.cluster import Cluster
from penstock.client.aio.nsqsending import QueueSender
from penstock.client.outgoing import Outgoing
from penstock.client.results import Outcome, SendReceipt
from penstock.errors import ClientError, Closed, WireError
from penstock.message import Message, ReceivedMessage
from penstock.wire import traces
from penstock.wire.names import TRACE_TOPIC
from penstock.wire.traces import Trace

log = logging.getLogger("penstock.client")

GROUP = "_INNER_TRACE_PRODUCER"  # as of RocketMQ's clients
TOPIC = TRACE_TOPIC.decode()
FLUSH_S = 0.2
TIMEOUT_S = 5.0
RECORDS = 100  # of one trace message: its keys must fit its properties
BODY_BYTES = 128_000
WAITING_MAX = 20_000
_Place = tuple[str, int, int, str]


class Tracer:
    """Takes what a client tells, from any thread, and sends it from time to time."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group
        self._waiting: deque[Trace] = deque(maxlen=WAITING_MAX)
        self._in_hand: dict[_Place, tuple[str, int]] = {}  # of an iteration: request id, when it was handed out
        self._requests = itertools.count(1)
        self._run = os.urandom(12).hex().upper()
        settings = SendSettings(GROUP, False, {}, 2, False, BODY_BYTES, False)
        self._attempts = Attempts(cluster, QueueSender(cluster.clock, TIMEOUT_S), settings)
        self._attempts.outgoings.start(os.urandom(4))

    def start(self) -> None:
        """Send from now on."""
        self._cluster.spawn(self._keep_sending())

    async def close(self) -> None:
        """Send what is left."""
        await self._send()

    # -- what is told

    def now_ms(self) -> int:
        return self._cluster.clock.now_ms()

    def sent(self, sent: Outgoing, receipt: SendReceipt | None, began_ms: int) -> None:
        """A send has its receipt, or has failed."""
        if receipt is not None and receipt.queue_offset < 0:
            return  # messages of a queue topic have no ids
        cost_ms = self.now_ms() - began_ms
        places = receipt.offset_msg_ids if receipt is not None else ("",) * len(sent.messages)
        for message, msg_id, place in zip(sent.messages, sent.keys, places, strict=False):
            host = msgid.parse_offset_msg_id(place)[0] if place else ""
            delayed = bool(message.delay_level or message.deliver_at_ms)
            self._waiting.append(
                Trace(
                    "Pub", msg_id, began_ms, self._group, message.topic, message.tags or "", " ".join(message.keys), host,
                    len(message.body), cost_ms, traces.DELAYED if delayed else traces.NORMAL, place, receipt is not None,
                )
            )  # fmt: skip

    def before(self, message: ReceivedMessage) -> tuple[str, int]:
        """Work on a message begins: its request id, and when."""
        request, now_ms = f"{self._run}{next(self._requests):08X}", self.now_ms()
        self._waiting.append(
            Trace(
                "SubBefore", message.msg_id, now_ms, self._group, keys=" ".join(message.keys), request_id=request,
                retry_times=message.reconsume_times,
            )
        )  # fmt: skip
        return request, now_ms

    def after(self, message: ReceivedMessage, begun: tuple[str, int], outcome: Outcome) -> None:
        """It is over."""
        request, began_ms = begun
        now_ms, good = self.now_ms(), outcome is None
        self._waiting.append(
            Trace(
                "SubAfter", message.msg_id, now_ms, self._group, keys=" ".join(message.keys), cost_ms=now_ms - began_ms,
                success=good, request_id=request, code=traces.DONE if good else traces.FAILED,
            )
        )  # fmt: skip

    def handed_out(self, messages: list[ReceivedMessage]) -> None:
        """Who iterates gets these."""
        for message in messages:
            self._in_hand[_place(message)] = self.before(message)
        while len(self._in_hand) > WAITING_MAX:  # of queues that were lost meanwhile
            del self._in_hand[next(iter(self._in_hand))]

    def settled(self, message: ReceivedMessage, outcome: Outcome) -> None:
        """Who iterates has said what became of one."""
        begun = self._in_hand.pop(_place(message), None)
        if begun is not None:
            self.after(message, begun, outcome)

    # -- sending

    async def _keep_sending(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self._send()

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            message, count = self._next()
            try:
                await self._attempts.send(self._attempts.outgoings.make([message]), loop.time() + TIMEOUT_S)
                self._cluster.outages.answered(f"topic {TOPIC}")
            except (ClientError, WireError, Closed, ValueError) as error:
                self._cluster.outages.failed(f"topic {TOPIC}", f"{count} traces of {self._group} are lost", error)

    def _next(self) -> tuple[Message, int]:
        """The next trace message, and how many records it has."""
        body, keys, count = "", dict[str, None](), 0
        while self._waiting and count < RECORDS and len(body) < BODY_BYTES // 2:
            trace = self._waiting.popleft()
            body += trace.encode()
            keys.update(dict.fromkeys(key for key in trace.index_keys if key))
            count += 1
        return Message(TOPIC, body.encode(), keys=tuple(keys)), count


def _place(message: ReceivedMessage) -> _Place:
    return message.topic, message.queue_id, message.queue_offset, message.broker
