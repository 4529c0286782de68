"""The same clients for programs without an event loop: each call waits. The work is done by `client.aio`.

Any thread may call them. After a fork make new ones.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Literal

from penstock.client import aio
from penstock.client.aio.listening import Listener
from penstock.client.aio.producer import RETRIES, SEND_TIMEOUT_S, report
from penstock.client.direct import DirectSends
from penstock.client.face import Client, OfParent
from penstock.client.gathering import BATCH_BYTES, BUFFER_BYTES, Selector, WhenFull
from penstock.client.handout import Delivery, Handout, Iteration
from penstock.client.handover import Handover, Sending
from penstock.client.portal import portal
from penstock.client.rebalance import Allocate, average
from penstock.client.results import SendReceipt
from penstock.client.routes import MessageQueue
from penstock.client.sending import COMPRESS_OVER_BYTES, check_batch
from penstock.client.subscriptions import Start
from penstock.errors import PenstockError, TimedOut
from penstock.message import Message, ReceivedMessage
from penstock.security import Security

SIGTERM_S = 5.0
ASK_S = 1.0  # so long may the registry take to say who is the master, after a send without an answer


class Producer(Client):
    """Sends messages. See `penstock.aio.Producer` for the settings.

    with Producer("127.0.0.1:9876") as producer:
        producer.send(Message("orders", b"…", keys=("42",)))
    """

    def __init__(
        self,
        registry: str = "127.0.0.1:9876",
        *,
        group: str = "DEFAULT_PRODUCER",
        kind: Literal["log", "queue"] = "log",
        nsqd: str | None = None,
        send_timeout_s: float = SEND_TIMEOUT_S,
        retries: int = RETRIES,
        retry_unsure: bool = False,
        compress_over: int = COMPRESS_OVER_BYTES,
        idempotent: bool = False,
        linger_ms: float = 0.0,
        batch_bytes: int = BATCH_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
        when_full: WhenFull = "block",
        security: Security | str | Path | None = None,
        trace: bool = False,
    ) -> None:
        self._inner: aio.Producer = aio.Producer(
            registry,
            group=group,
            kind=kind,
            nsqd=nsqd,
            send_timeout_s=send_timeout_s,
            retries=retries,
            retry_unsure=retry_unsure,
            compress_over=compress_over,
            idempotent=idempotent,
            linger_ms=linger_ms,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            when_full=when_full,
            security=security,
            trace=trace,
        )
        self._timeout_s = send_timeout_s
        self._retry_unsure = retry_unsure
        self._lanes, self._outgoings = self._inner.lanes, self._inner.attempts.outgoings
        self._direct = DirectSends(self._inner.attempts, send_timeout_s)
        self._handover = Handover(self._lanes, buffer_bytes, when_full, send_timeout_s)

    def start(self) -> Producer:
        """Connect to a name server. ConnectionLost when none answers."""
        super().start()
        self._direct.start()
        portal().watch(self._lanes)
        return self

    def close(self) -> None:
        """Wait for the sends under way, say goodbye and close. What has no receipt within the send timeout fails."""
        try:
            if not isinstance(self._inner, OfParent):
                self._handover.hasten()
            super().close()
        finally:
            self._direct.close()

    def queues(self, topic: str) -> list[MessageQueue]:
        """The message queues that can be sent to."""
        return portal().run(self._inner.queues(topic))

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send and wait for the receipt."""
        return self._send((message,), queue, selector, timeout_s)

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> SendReceipt:
        """Send messages of one topic as one: stored in one message queue, or queue topic, in order, all or none.

        ValueError for messages of several sharding keys without a `queue` or a `selector`, which is asked for the first message.
        """
        check_batch(messages, queue is not None or selector is not None)
        return self._send(messages, queue, selector, timeout_s)

    def _send(
        self,
        messages: Sequence[Message],
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_s: float | None,
    ) -> SendReceipt:
        inner, lanes = self._inner, self._lanes
        if timeout_s is not None or not (lanes.is_open and self._direct.is_open):
            lanes.check_send(messages[0].topic, timeout_s)
        if lanes.under_way or not self._handover.empty:  # it must not overtake what this thread sent before
            self._handover.hasten()
            if len(messages) == 1:
                work = inner.send(messages[0], queue=queue, selector=selector, timeout_s=timeout_s)
            else:
                work = inner.send_batch(messages, queue=queue, selector=selector, timeout_s=timeout_s)
            return portal().run(work)
        deadline = time.monotonic() + (self._timeout_s if timeout_s is None else timeout_s)
        sent = self._outgoings.make(messages)
        try:
            receipt = self._direct.send(sent, deadline, queue, selector)
        except TimedOut:
            if not inner.attempts.settings.nsqd:
                asked = portal().begin(inner.attempts.cluster.refresh(messages[0].topic))
                with contextlib.suppress(TimeoutError, PenstockError):
                    asked.result(ASK_S)  # another node may have its place: the next send knows
            raise
        if receipt is None:
            receipt = portal().run(lanes.by_itself(sent, deadline, queue, selector))
        return receipt

    def request(
        self,
        message: Message,
        timeout_s: float,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> ReceivedMessage:
        """Send a message to a log topic and wait for what one of its consumers replies. See `penstock.aio.Producer`."""
        return portal().run(self._inner.request(message, timeout_s, queue=queue, selector=selector))

    def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> str:
        """Write the message to the connection and promise nothing; its msg_id, empty for a queue topic."""
        inner = self._inner
        inner.lanes.check_send(message.topic)
        if not inner.lanes.under_way and self._handover.empty:
            sent = inner.attempts.outgoings.make((message,))
            if self._direct.send_oneway(sent, queue, selector):
                return sent.keys[0]
        self._handover.hasten()
        return portal().run(self._inner.send_oneway(message, queue=queue, selector=selector))

    def send_nowait(
        self, message: Message, callback: Callable[[SendReceipt | PenstockError], object] | None = None
    ) -> concurrent.futures.Future[SendReceipt]:
        """Begin a send. The future has the receipt; `callback` gets it, or the error, in the client's thread.

        When `buffer_bytes` are under way this waits for room, or raises BufferFull with `when_full="raise"`.
        """
        sending = Sending()
        if callback is not None:
            sending.add_done_callback(partial(report, callback))
        self._handover.put(message, sending)
        return sending

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every send begun so far has its receipt or its error. TimedOut when that takes longer."""
        self._handover.hasten()
        portal().run(self._inner.flush(timeout_s))


_terminated: weakref.WeakSet[PushConsumer] = weakref.WeakSet()  # to be closed at SIGTERM


def _on_sigterm(number: int, frame: object) -> None:
    """Commit what was acknowledged and leave the groups; then the signal ends the process as it would have."""
    for consumer in list(_terminated):
        with contextlib.suppress(PenstockError, TimeoutError, RuntimeError):
            portal().begin(consumer._inner.close()).result(SIGTERM_S)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _close_at_sigterm(consumer: PushConsumer) -> None:
    """Where the program has no handler of its own: one that has is expected to close its consumers."""
    _terminated.add(consumer)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _on_sigterm)


class PushConsumer(Client):
    """Receives the messages of the topics it subscribed to. See `penstock.aio.PushConsumer` for the settings.

    with PushConsumer("billing", listener=print) as consumer:
        consumer.subscribe("orders")
    """

    def __init__(
        self,
        group: str,
        registry: str = "127.0.0.1:9876",
        *,
        listener: Listener | None = None,
        model: Literal["cluster", "broadcast"] = "cluster",
        start: Start = "last",
        orderly: bool = False,
        concurrency: int = 16,
        attempts_max: int = 16,
        window_count: int = 1_000,
        window_bytes: int = 100 << 20,
        in_flight_max: int | None = None,
        kind: Literal["log", "queue"] = "log",
        nsqd: str | None = None,
        consume_timeout_s: float = 900.0,
        allocate: Allocate = average,
        offsets_folder: str | Path | None = None,
        timeout_s: float = 10.0,
        security: Security | str | Path | None = None,
        trace: bool = False,
    ) -> None:
        self._inner: aio.PushConsumer = aio.PushConsumer(
            group,
            registry,
            listener=listener,
            model=model,
            start=start,
            orderly=orderly,
            concurrency=concurrency,
            attempts_max=attempts_max,
            window_count=window_count,
            window_bytes=window_bytes,
            in_flight_max=in_flight_max,
            kind=kind,
            nsqd=nsqd,
            consume_timeout_s=consume_timeout_s,
            allocate=allocate,
            offsets_folder=offsets_folder,
            timeout_s=timeout_s,
            security=security,
            trace=trace,
        )
        self._inner.dispatcher.iterate_as(Delivery)
        self._handout = Handout(self._inner.dispatcher)

    def start(self) -> PushConsumer:
        """Connect to a name server; from now on SIGTERM closes this consumer. ConnectionLost when none answers."""
        super().start()
        _close_at_sigterm(self)
        return self

    def close(self) -> None:
        """Stop pulling, commit what was acknowledged, leave the group."""
        _terminated.discard(self)
        if not isinstance(self._inner, OfParent):
            with self._inner.dispatcher.listeners.leaving():
                super().close()

    def _leave_to_parent(self) -> None:
        """SIGTERM for the child is none for the parent's consumer."""
        _terminated.discard(self)
        super()._leave_to_parent()

    @property
    def client_id(self) -> str:
        """This member's name in its group; empty before the start."""
        return self._inner.client_id

    def subscribe(
        self,
        topic: str,
        expression: str = "*",
        *,
        where: str | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Read a topic: all messages, those with one of some tags (``a || b``), or those that `where` selects."""
        portal().run(self._inner.subscribe(topic, expression, where=where, listener=listener))

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no longer."""
        portal().run(self._inner.unsubscribe(topic))

    def __iter__(self) -> Iterator[Delivery]:
        aiter(self._inner)  # Closed before the start
        return Iteration(self._handout)


class PullConsumer(Client):
    """Reads assigned message queues from positions of its own. See `penstock.aio.PullConsumer`."""

    def __init__(
        self,
        registry: str = "127.0.0.1:9876",
        *,
        group: str = "DEFAULT_CONSUMER",
        timeout_s: float = 10.0,
        security: Security | str | Path | None = None,
    ) -> None:
        self._inner: aio.PullConsumer = aio.PullConsumer(registry, group=group, timeout_s=timeout_s, security=security)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The message queues of a topic, sorted. NoRoute when it is unknown."""
        return portal().run(self._inner.queues(topic))

    def assign(
        self,
        topic: str,
        queues: Iterable[MessageQueue] | None = None,
        *,
        tags: str = "*",
        where: str | None = None,
        start: str | int | datetime = "committed",
    ) -> list[MessageQueue]:
        """Read these queues of a topic, by default all of them; with `tags`, or with what `where` selects."""
        return portal().run(self._inner.assign(topic, queues, tags=tags, where=where, start=start))

    def unassign(self, *queues: MessageQueue) -> None:
        """Read these queues no longer; none named: all."""
        portal().run(self._inner.unassign(*queues))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues being read."""
        return self._inner.assignment

    def position(self, queue: MessageQueue) -> int:
        """The queue offset of the next message that `getmany` gives."""
        return portal().call(self._inner.position, queue)

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at a queue offset."""
        portal().call(self._inner.seek, queue, offset)

    def seek_to_time(self, moment: datetime | int, *queues: MessageQueue) -> None:
        """Go on at the first message stored at or after a moment (aware datetime, or ms); none named: all queues."""
        portal().run(self._inner.seek_to_time(moment, *queues))

    def seek_to_start(self, *queues: MessageQueue) -> None:
        """Go back to the oldest message still stored."""
        portal().run(self._inner.seek_to_start(*queues))

    def seek_to_end(self, *queues: MessageQueue) -> None:
        """Skip what is stored now."""
        portal().run(self._inner.seek_to_end(*queues))

    def pause(self, *queues: MessageQueue) -> None:
        """Give nothing of these queues until `resume`; none named: all."""
        portal().call(self._inner.pause, *queues)

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with paused queues; none named: all."""
        portal().call(self._inner.resume, *queues)

    def offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """(oldest offset, end offset)."""
        return portal().run(self._inner.offsets(queue))

    def offset_at(self, queue: MessageQueue, moment: datetime | int) -> int:
        """The offset of the first message stored at or after a moment; the end offset when there is none."""
        return portal().run(self._inner.offset_at(queue, moment))

    def lag(self, queue: MessageQueue) -> int:
        """Messages between the position and the end of the queue."""
        return portal().run(self._inner.lag(queue))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset, None when it has none."""
        return portal().run(self._inner.committed(queue))

    def commit(self, offsets: dict[MessageQueue, int] | None = None) -> None:
        """Store positions under the group; by default those of all assigned queues."""
        portal().run(self._inner.commit(offsets))

    def getmany(self, timeout_s: float = 1.0, max_count: int = 1_000) -> dict[MessageQueue, list[ReceivedMessage]]:
        """Messages of the assigned queues, oldest first in each, waiting up to timeout_s for the first.

        An interrupt loses none: what was on its way to this thread is given by the next call.
        """
        getmany, over = self._inner.getmany, False
        given: dict[MessageQueue, list[ReceivedMessage]] = {}

        async def give() -> dict[MessageQueue, list[ReceivedMessage]]:
            given.update(await getmany(timeout_s, max_count))
            if over:
                self._go_back(given)
            return given

        try:
            return portal().run(give())
        except BaseException:
            over = True
            portal().call(self._go_back, given)
            raise

    def _go_back(self, given: dict[MessageQueue, list[ReceivedMessage]]) -> None:
        """In the loop: nobody has got these, and `commit` must not tell the broker otherwise."""
        for queue, messages in given.items():
            first = messages[0].queue_offset
            if queue in self._inner.assignment and self._inner.position(queue) > first:
                self._inner.seek(queue, first)
        given.clear()
