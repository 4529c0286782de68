"""The message queues of a push consumer: taken, pulled, handed out, committed, given up.

One task per queue pulls; an orderly consumer has another one per queue that hands the messages out in order. A message
that failed goes back to the broker, which brings it again later and in the end puts it into the dead-letter topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterable
from itertools import islice, takewhile
from math import inf

import msgspec

from penstock.client import requests
from penstock.client.aio.assigned import Assigned
from penstock.client.aio.cluster import Cluster
from penstock.client.aio.consumersettings import ConsumerSettings
from penstock.client.aio.delivery import Hand, Handed
from penstock.client.aio.dispatch import Dispatcher
from penstock.client.aio.giveback import GiveBack
from penstock.client.aio.locks import MemberLocks
from penstock.client.aio.offsets import BrokerOffsets, FileOffsets, Offsets
from penstock.client.aio.pulling import Puller
from penstock.client.aio.tracing import Tracer
from penstock.client.conversation import number
from penstock.client.results import Outcome, Reject, Retry
from penstock.client.routes import MessageQueue
from penstock.client.subscriptions import Subscription, start_ms
from penstock.errors import ClientError, Closed, WireError
from penstock.message import ReceivedMessage
from penstock.wire import names
from penstock.wire.codes import RETRY_PREFIX
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.client")

COMMIT_SOON_S = 0.02  # what is settled is committed so soon: a stopped process brings little of it again
COMMIT_FILE_S = 0.5
COMMIT_AGAIN_S = 5.0
GIVE_BACK_WAIT_S = 5.0
ORDERLY_WAIT_S = 1.0
RUN_COUNT_MAX = 100  # messages that go to a thread together, where order is kept
CLOSE_S = 5.0  # how long listeners may take when their queue is given up


class Pulled:
    """Messages in hand of one message queue (a `Hand`)."""

    __slots__ = ("_assigned", "_consumer")

    def __init__(self, consumer: LogConsumer, assigned: Assigned) -> None:
        self._consumer = consumer
        self._assigned = assigned

    @property
    def gone(self) -> bool:
        return self._assigned.dropped

    @property
    def owner(self) -> Pulled:
        return self

    def begin(self, for_s: float | None) -> None:
        """A pulled message has no timeout."""

    def finish(self, done: list[Handed]) -> None:
        self._consumer.finish(self._assigned, done)

    async def settle(self, message: ReceivedMessage, outcome: Outcome) -> None:
        await self._consumer.settle(self._assigned, message, outcome)

    async def extend(self, message: ReceivedMessage) -> None:
        """A pulled message has no timeout."""


class LogConsumer:
    """The queues that one member of a group reads now."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, dispatcher: Dispatcher) -> None:
        self.assigned: dict[MessageQueue, Assigned] = {}
        self.beginning: set[MessageQueue] = set()  # of these it is asked where to begin
        self.orderly = settings.orderly
        self._cluster = cluster
        self._settings = settings
        self._group = settings.group
        self._dispatcher = dispatcher
        self._offsets: Offsets = (
            BrokerOffsets(cluster, self._group)
            if settings.shared
            else FileOffsets(settings.offsets_folder / f"{self._group}.json")
        )
        self._locks = MemberLocks(cluster, self._group) if settings.orderly and settings.shared else None
        self._give_back = GiveBack(cluster, self._group, settings.attempts_max)
        self._puller = Puller(cluster, settings, self._hand_out)
        self._settled = asyncio.Event()
        self._committing: set[str] = set()  # brokers that are told offsets now, or were and have failed
        self._found: dict[str, tuple[set[MessageQueue], int]] = {}  # by topic: its queues at first, and when that was
        self._tracer: Tracer | None = None

    def trace_with(self, tracer: Tracer) -> None:
        """Tell it what becomes of messages that no listener takes; the listeners tell of theirs."""
        self._tracer = tracer

    # -- life

    async def open(self) -> None:
        """Read the offsets that are kept here."""
        await self._offsets.open()

    def start(self) -> None:
        """Keep committing, and keep the locks."""
        self._cluster.spawn(self._keep_offsets())
        if self._locks is not None:
            self._cluster.spawn(self._locks.keep(self.assigned))

    def stop(self) -> None:
        """Pull nothing more."""
        for assigned in list(self.assigned.values()):
            assigned.stop()

    async def close(self) -> None:
        """Commit and unlock every queue, when the listeners are done."""
        here, take = asyncio.current_task(), self._dispatcher.listeners.take
        await asyncio.gather(
            *(self._release(assigned, here, listened=take(queue.topic)) for queue, assigned in self.assigned.items())
        )
        self.assigned.clear()

    # -- queues come and go

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, float]:
        """Those of these queues that this member may read, and since when: all, or the ones it could lock."""
        if self._locks is not None:
            return await self._locks.lock(queues)
        return dict.fromkeys(queues, asyncio.get_running_loop().time())

    async def unlock(self, queue: MessageQueue) -> None:
        """Let another member have a queue that is not read here."""
        if self._locks is not None:
            await self._locks.unlock(queue)

    def found(self, topic: str, queues: Iterable[MessageQueue]) -> None:
        """These queues a topic has now: those that were not there the first time have come since."""
        if topic not in self._found:
            self._found[topic] = set(queues), self._cluster.clock.now_ms()

    async def start_offset(self, queue: MessageQueue) -> int:
        """Where to begin: the committed offset, else what the setting `start` says."""
        while True:
            self.beginning.add(queue)
            try:
                offset = await self._begin_at(queue)
                if queue in self.beginning:  # else it was moved, and this may be where it was before
                    return offset
            finally:
                self.beginning.discard(queue)

    async def _begin_at(self, queue: MessageQueue) -> int:
        committed = await self._offsets.get(queue)
        if committed is not None:
            return committed
        moment = start_ms(self._settings.start)
        if queue.topic.startswith(RETRY_PREFIX) or self._settings.start == "first":
            request = requests.min_offset(queue)
        elif moment is not None:
            request = requests.offset_at(queue, moment, lower=True)
        else:
            request = requests.max_offset(queue) if self._settings.shared else self._last_of_broadcast(queue)
        return number(await self._cluster.ask_queue(queue, request), "offset")

    def _last_of_broadcast(self, queue: MessageQueue) -> RemotingCommand:
        """What asks where a member that gets everything from its start on begins: what came before it saw a new queue is for it.

        A group's broker says so itself. One whose broker had none of the topic may be an old one that was away.
        """
        at_first, since_ms = self._found.get(queue.topic, ({queue}, 0))
        if self._offsets.had(queue.topic, queue.broker):
            return requests.min_offset(queue)
        if queue in at_first:
            return requests.max_offset(queue)
        if any(other.broker == queue.broker for other in at_first):
            return requests.min_offset(queue)
        return requests.offset_at(queue, since_ms, lower=True)

    def take(self, queue: MessageQueue, subscription: Subscription, offset: int, locked_s: float | None = None) -> None:
        """Read a queue from this offset on; `locked_s` as of `lock`."""
        assigned = self.assigned[queue] = Assigned(queue, subscription, offset, locked_s)
        assigned.pull_by(self._cluster.spawn(self._puller.run(assigned)))
        if self.orderly:
            assigned.work_by(self._cluster.spawn(self._work_in_order(assigned)))
        self._settled.set()  # a group that begins at the end must not begin behind what comes now, should this process die
        log.debug("group %s takes %s from %d on", self._group, queue, offset)

    async def drop(self, queue: MessageQueue) -> None:
        """Give a queue up."""
        assigned = self.assigned.pop(queue, None)
        if assigned is None:
            return
        assigned.stop()
        if self.orderly:
            self._cluster.spawn(self._release(assigned))  # not before the message in hand is done
        else:
            await self._release(assigned)

    async def drop_topic(self, topic: str) -> None:
        """Give the queues of a topic up, all of them also when the caller does not wait for it."""
        self._found.pop(topic, None)
        dropping = [self._cluster.spawn(self.drop(queue)) for queue in self.assigned if queue.topic == topic]
        if dropping:
            await asyncio.wait(dropping)

    def interrupt(self, subscription: Subscription) -> list[Assigned]:
        """Stop pulling the queues of a topic whose subscription changes; `go_on` with them afterwards."""
        again = [assigned for queue, assigned in self.assigned.items() if queue.topic == subscription.topic]
        for assigned in again:
            assigned.resubscribe(subscription)
        return again

    def go_on(self, interrupted: list[Assigned]) -> None:
        """Pull these queues again, those that were not dropped meanwhile."""
        for assigned in interrupted:
            if not assigned.dropped:
                assigned.pull_by(self._cluster.spawn(self._puller.run(assigned)))

    async def _release(
        self, assigned: Assigned, closer: asyncio.Task[object] | None = None, *, listened: bool = False
    ) -> None:
        """Commit, and unlock, a queue that was stopped; `listened`: its listeners were waited for."""
        if not listened:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await assigned.idle.wait()
        assigned.cancel(closer)
        try:
            await self._commit(assigned)
            await self.unlock(assigned.queue)
        except (ClientError, WireError, Closed) as error:
            log.warning("group %s could not commit %s: %s", self._group, assigned.queue, error)

    async def move(self, offsets: dict[MessageQueue, int]) -> None:
        """Stop reading those of these queues that are this member's, whose next reader begins at these offsets; messages in hand
        are let go. The others have readers that are told, too.
        """
        for queue, offset in offsets.items():
            assigned = self.assigned.pop(queue, None)
            if assigned is not None:
                assigned.forget_position()
                assigned.stop()
                assigned.cancel()
            elif queue not in self.beginning:
                continue
            self.beginning.discard(queue)
            await self._offsets.commit(queue, offset)

    # -- messages

    def _hand_out(self, assigned: Assigned, messages: list[ReceivedMessage], next_offset: int) -> None:
        assigned.window.add(messages, next_offset)
        if assigned.queue.topic.startswith(RETRY_PREFIX):
            messages = [_of_origin(message) for message in messages]
        if self._tracer is not None:
            take = self._dispatcher.listeners.take
            self._tracer.handed_out([message for message in messages if not take(message.topic)])
        if self.orderly:
            for message in messages:
                assigned.inbox.put_nowait(message)
        else:
            hands: list[Hand] = [Pulled(self, assigned)] * len(messages)
            self._dispatcher.offer(hands, messages)

    async def _work_in_order(self, assigned: Assigned) -> None:
        row: deque[ReceivedMessage] = deque()
        while not assigned.dropped:
            if not row:
                row.append(await assigned.inbox.get())
            while not assigned.inbox.empty():
                row.append(assigned.inbox.get_nowait())
            assigned.idle.clear()
            try:
                await self._settle_in_order(assigned, row)
            finally:
                assigned.idle.set()

    async def _settle_in_order(self, assigned: Assigned, row: deque[ReceivedMessage]) -> None:
        """Have the row's first messages worked on; one that fails is tried again and again in place, until it is settled."""
        listeners = self._dispatcher.listeners
        while row and not assigned.dropped:
            if self._locks is not None:
                await self._locks.wait(assigned)
            if not listeners.take(row[0].topic):
                await self._dispatcher.in_order(Pulled(self, assigned), row.popleft())
                return
            listeners.begin_work()
            try:
                if listeners.runs_in_thread(row[0].topic):
                    outcome = await self._run_in_order(assigned, row)
                    if outcome is None:
                        return
                else:
                    outcome = await listeners.call(row[0])
                message = row.popleft()
                if not isinstance(outcome, Retry) or message.attempts >= self._settings.attempts_max:
                    await self.settle(assigned, message, Reject("attempts") if isinstance(outcome, Retry) else outcome)
                    return
            finally:
                listeners.end_work()
            row.appendleft(msgspec.structs.replace(message, reconsume_times=message.reconsume_times + 1))
            await asyncio.sleep(ORDERLY_WAIT_S if outcome.delay is None else outcome.delay)

    async def _run_in_order(self, assigned: Assigned, row: deque[ReceivedMessage]) -> Outcome:
        """In a thread: those of the row's first messages that are done leave it; what became of the next, if it failed."""
        topic = row[0].topic
        run = list(takewhile(lambda message: message.topic == topic, islice(row, RUN_COUNT_MAX)))
        until_s = inf if self._locks is None else self._locks.surely_until_s(assigned)
        done, outcome = await self._dispatcher.run_in_order(Pulled(self, assigned), run, until_s)
        for _ in range(done):
            row.popleft()
        return outcome

    async def settle(self, assigned: Assigned, message: ReceivedMessage, outcome: Outcome) -> None:
        """A message is done or goes back to the broker, and only then its offset may move on."""
        if self._tracer is not None:
            self._tracer.settled(message, outcome)
        if outcome is not None:
            if not self._settings.shared:
                log.error("broadcast group %s gives up %s of %s", self._group, message.msg_id, message.topic)
            else:
                while not await self._give_back.give(assigned.queue, message, outcome):
                    if assigned.dropped:
                        return
                    await asyncio.sleep(GIVE_BACK_WAIT_S)
        assigned.settle(message.queue_offset)
        self._settled.set()

    def finish(self, assigned: Assigned, done: list[Handed]) -> None:
        """These messages are done: their offsets may move on."""
        if self._tracer is not None:
            for handed in done:
                self._tracer.settled(handed.message, None)
        assigned.settle_all(done)
        self._settled.set()

    # -- offsets

    async def _keep_offsets(self) -> None:
        soon_s = COMMIT_SOON_S if self._settings.shared else COMMIT_FILE_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COMMIT_AGAIN_S):  # positions move without a message, too
                    await self._settled.wait()
            await asyncio.sleep(soon_s)  # those that are settled meanwhile go with it
            self._settled.clear()
            for broker in {queue.broker for queue in self.assigned} - self._committing:
                self._committing.add(broker)
                self._cluster.spawn(self._commit_at(broker))

    async def _commit_at(self, broker: str) -> None:
        """Commit what is settled of the queues of one broker, by itself: one that says nothing holds up no other."""
        outages, failed = self._cluster.outages, False
        try:
            for assigned in self._read_at(broker):
                if self.assigned.get(assigned.queue) is not assigned:
                    continue  # given up meanwhile: another one may read it by now, or it was moved
                try:
                    await self._commit(assigned)
                    outages.answered(f"broker {broker}")
                except (ClientError, WireError) as error:
                    outages.failed(f"broker {broker}", f"group {self._group} commits {assigned.queue}", error)
                    failed = True
                except Exception:  # whatever it is, the other queues' offsets are committed, and this one's later
                    log.exception("group %s commits %s, tried again", self._group, assigned.queue)
                    failed = True
            if failed:
                await asyncio.sleep(COMMIT_AGAIN_S)
        finally:
            self._committing.discard(broker)
        if any(assigned.uncommitted is not None for assigned in self._read_at(broker)):
            self._settled.set()

    def _read_at(self, broker: str) -> list[Assigned]:
        return [assigned for queue, assigned in self.assigned.items() if queue.broker == broker]

    async def _commit(self, assigned: Assigned) -> None:
        """Tell the committed offset to the broker, or write it to the file."""
        offset = assigned.uncommitted
        if offset is not None:
            await self._offsets.commit(assigned.queue, offset)
            assigned.committed(offset)


def _of_origin(message: ReceivedMessage) -> ReceivedMessage:
    """A message of a retry topic under the topic it was given back from."""
    origin = message.properties.get(names.RETRY_TOPIC)
    return msgspec.structs.replace(message, topic=origin) if origin else message
