"""Publishing: messages into a topic of either kind, all or none, and what the answer must wait for."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.broker.core import Core
from penstock.broker.levels import LEVEL_MEMORY
from penstock.broker.nsq.copied import Copied, CopyTicket, demand_set
from penstock.broker.nsq.deferral import Deferral
from penstock.broker.nsq.flush import GroupFlush, Ticket
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.names import refusal
from penstock.broker.nsq.topics import Topic
from penstock.errors import Refused, StoreError

DEFER_AT_ONCE_MAX = 10_000  # each of them is a record and an entry of the schedule: a quarter of a second of the loop


class Publishing:
    """See the module."""

    def __init__(self, core: Core, flush: GroupFlush, deferral: Deferral, copied: Copied) -> None:
        self._core = core
        self._flush = flush
        self._deferral = deferral
        self._copied = copied

    def publish(self, topic: Topic, bodies: Sequence[bytes], defer_ms: int = 0) -> Ticket | CopyTicket | None:
        """Store messages, all or none; a ticket where the answer must wait, for a flush or for slaves. Refused E_PUB_FAILED."""
        if not self._flush.healthy and topic.level != LEVEL_MEMORY:
            raise refusal(0)
        if defer_ms > 0:
            if isinstance(topic, LogChannels):
                topic.demand_writable()
            demand_set(self._core, topic)
            if len(bodies) > DEFER_AT_ONCE_MAX:
                text = f"a request defers at most {DEFER_AT_ONCE_MAX} messages: send them with several"
                raise Refused(text, nsq="E_PUB_FAILED", http=413)
            self._deferral.demand_room(len(bodies))
            for body in bodies:
                self._deferral.publish(topic, body, defer_ms)
            return self._copied.ticket(topic) or self._flush.ticket(topic)
        answer = topic.ready(sum(map(len, bodies)), len(bodies))
        if answer:
            raise refusal(answer)
        now_ns, last = self._core.time.now_ns, len(bodies) - 1
        try:
            for number, body in enumerate(bodies):
                topic.put_bytes(now_ns, body, number < last)
            topic.placed()
        except StoreError as error:
            raise Refused(str(error), nsq="E_PUB_FAILED", http=503) from error
        return self._copied.ticket(topic) or self._flush.ticket(topic)

    def log_end(self) -> int:
        """Where the log ends: behind what was just published to a log topic."""
        return self._core.store.end_position
