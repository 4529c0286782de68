"""The trace of single messages, for the log topics that ask for it: given to whom and when, acknowledged, given back, dead.

What is told stands in messages of RocketMQ's trace topic, as its clients write them, so that `penstock message trace` and
mqadmin show both. It is gathered for as long as a turn of the loop takes and never holds up or fails what it tells of: what
the log does not take is lost. A message costs a record for each step, so a topic is traced while somebody looks.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable

from penstock.broker.core import Core
from penstock.broker.topics import LogTopic
from penstock.errors import Refused, StoreError
from penstock.message import ReceivedMessage
from penstock.wire import names, record, traces
from penstock.wire.traces import Trace

log = logging.getLogger("penstock.broker")

AT_ONCE = 100  # traces of one message
WAITING_MAX = 20_000
ACKNOWLEDGED_MAX = 1_000  # of one commit: who comes back after a week is not told message by message
GROUP = "penstock-broker"


class Tracing:
    """See the module."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: deque[Trace] = deque(maxlen=WAITING_MAX)

    def __len__(self) -> int:
        return len(self._waiting)

    def handed(self, topic: LogTopic, group: str, client: str, data: bytes) -> None:
        """These records were given to a client of the group."""
        for message in record.iter_records(data):
            if topic.is_retry and not self._wanted(message):
                continue
            self._tell("SubBefore", message, group, host=client)

    def committed(self, group: str, topic_name: str, queue_id: int, before: int | None, offset: int) -> None:
        """The group has done what lies between the offsets."""
        topic = self._core.topics.get(topic_name.encode())
        if topic is None or not topic.traced or queue_id >= len(topic.queues):
            return
        queue = topic.queues[queue_id]
        begin = max(queue.min_offset, offset - ACKNOWLEDGED_MAX, before or 0)
        for at in range(begin, min(offset, queue.max_offset)):
            entry = queue.entry(at)
            data = None if entry is None else self._core.store.record_at(entry[0])
            message = None if data is None else record.decode_record(data, 0, decompress=False)
            if message is not None and (not topic.is_retry or self._wanted(message)):
                self._tell("SubAfter", message, group)

    def given_back(self, message: ReceivedMessage, retry_topic: LogTopic, group: str, client: str) -> None:
        """A client of the group could not do it: it comes again from the retry topic, or that is the topic of dead letters."""
        if self._wanted(message):
            if retry_topic.is_retry:
                retry_topic.trace(True)
            self._tell("SubAfter", message, group, host=client, success=False)

    def _wanted(self, message: ReceivedMessage) -> bool:
        """Whether the topic that a message came from first is traced."""
        origin = self._core.topics.get(message.properties.get(names.RETRY_TOPIC, message.topic).encode())
        return origin is not None and origin.traced

    def _tell(self, what: str, message: ReceivedMessage, group: str, *, host: str = "", success: bool = True) -> None:
        request = f"{message.queue_id:08X}{message.queue_offset:016X}{group}"
        self._waiting.append(
            Trace(
                what, message.msg_id, self._core.time.now_ms, group, message.topic, keys=" ".join(message.keys), host=host,
                success=success, request_id=request, retry_times=message.reconsume_times,
                code=traces.DONE if success else traces.FAILED,
            )
        )  # fmt: skip

    def settle(self) -> None:
        """Write what was told in this turn."""
        core = self._core
        while self._waiting:
            told = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
            if core.store.following:
                return
            keys = " ".join(dict.fromkeys(key for trace in told for key in trace.index_keys if key))
            try:
                core.sending.put_own(names.TRACE_TOPIC, _body(told), {names.KEYS: keys})
            except (Refused, StoreError) as error:
                log.warning("traces of %d messages are not stored error=%s", len(told), error)


def _body(told: Iterable[Trace]) -> bytes:
    return "".join(trace.encode() for trace in told).encode()
