"""Reading queues at positions that the caller keeps: no group membership, no listener."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from datetime import datetime
from operator import index
from pathlib import Path
from types import TracebackType

from penstock.client import requests
from penstock.client.aio.cluster import Cluster
from penstock.client.conversation import OK, number
from penstock.client.received import cut_records
from penstock.client.routes import MessageQueue
from penstock.client.subscriptions import Subscription, check_group, selection, start_ms
from penstock.clock import Clock
from penstock.errors import NOT_OPEN, ClientError, Closed, ConnectionLost, NoRoute, TimedOut, WireError
from penstock.message import ReceivedMessage
from penstock.security import Security
from penstock.wire.codes import MASTER_ID, ResponseCode

HOLD_MAX_S = 15.0
PULL_TIMEOUT_S = 30.0
PULL_BYTES = 1 << 20
PULL_COUNT = 4_096
_PULLED = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)


class _Position:
    """One assigned queue: what was pulled and not yet taken, and the pull under way."""

    def __init__(self, subscription: Subscription, offset: int) -> None:
        self.subscription = subscription
        self.offset = offset  # of the next pull
        self.ready: list[ReceivedMessage] = []
        self.pull: asyncio.Task[None] | None = None
        self.failure: Exception | None = None  # of the last pull, until somebody is told
        self.fails = False  # the last pull has failed, told or not
        self.paused = False
        self.broker_id = MASTER_ID  # which member of the broker is asked

    @property
    def next_offset(self) -> int:
        """Of the next message the caller gets."""
        return self.ready[0].queue_offset if self.ready else self.offset

    def pause(self, paused: bool) -> None:
        """Give nothing until it goes on, or go on."""
        self.paused = paused

    def take(self, max_count: int) -> list[ReceivedMessage]:
        """At most `max_count` of the messages that are ready."""
        taken = self.ready[:max_count]
        del self.ready[:max_count]
        return taken

    def pulled(self, messages: list[ReceivedMessage], next_offset: int, broker_id: int) -> None:
        """A pull brought these; the next one is from there on, of this member of the broker."""
        self.broker_id = broker_id
        self.ready += messages
        self.offset = next_offset
        self.fails = False

    def ask_master(self) -> None:
        """What was suggested last does not answer."""
        self.broker_id = MASTER_ID

    def fail(self, error: Exception) -> None:
        """A pull has failed."""
        self.failure = error
        self.fails = True

    def take_failure(self) -> Exception | None:
        """Why the last pull has failed, told once."""
        failure, self.failure = self.failure, None
        return failure

    def pulling(self, pull: Callable[[], Coroutine[object, None, None]]) -> asyncio.Task[None]:
        """The pull under way, or a new one."""
        if self.pull is None or self.pull.done():
            self.pull = asyncio.create_task(pull())
        return self.pull

    def select(self, wanted: Subscription) -> None:
        """Read these of the messages from now on: what is ready was chosen by another wish."""
        if wanted != self.subscription:
            self.move(self.next_offset)
            self.subscription = wanted

    def move(self, offset: int) -> None:
        """Go on elsewhere: what is ready, or on its way, is let go."""
        if self.pull is not None:
            self.pull.cancel()
            self.pull = None
        self.ready.clear()
        self.failure = None
        self.fails = False
        self.offset = offset


class PullConsumer:
    """Reads assigned message queues from positions of its own; of one event loop, one task at a time.

        async with PullConsumer(registry) as consumer:
            await consumer.assign("orders", start="first")
            for queue, messages in (await consumer.getmany(timeout_s=1.0)).items():
                ...

    Positions are the caller's to keep; `commit` and `committed` store them at the broker under `group`.
    """

    def __init__(
        self,
        registry: str = "127.0.0.1:9876",
        *,
        group: str = "DEFAULT_CONSUMER",
        timeout_s: float = 10.0,
        security: Security | str | Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        self._cluster = Cluster(registry, timeout_s=timeout_s, clock=clock, security=security)
        self._positions: dict[MessageQueue, _Position] = {}
        self._closed = asyncio.Event()

    async def start(self) -> PullConsumer:
        """Connect to a name server. ConnectionLost when none answers."""
        await self._cluster.start()
        self._closed.clear()
        return self

    async def close(self) -> None:
        """Close the connections; nothing is committed by itself. Who waits in `getmany` gets Closed."""
        self._closed.set()
        self._drop(list(self._positions))
        await self._cluster.close()

    async def __aenter__(self) -> PullConsumer:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The message queues of a topic, sorted. NoRoute when it is unknown."""
        if topic in self._cluster.routes:  # which stays while nobody answers
            await self._cluster.refresh(topic)
        return (await self._cluster.route(topic)).subscribe_queues()

    async def assign(
        self,
        topic: str,
        queues: Iterable[MessageQueue] | None = None,
        *,
        tags: str = "*",
        where: str | None = None,
        start: str | int | datetime = "committed",
    ) -> list[MessageQueue]:
        """Read these queues of a topic, by default all of them; of their messages those with one of the `tags`
        (``a || b``), or those for whose properties the expression `where` is true. ValueError when it is none.

        `start` is "first", "last", "committed" (where the group committed, else the first), or a time: an aware
        datetime or ms since the epoch. Queues already assigned keep their position; what is read of them may change.
        """
        wanted = selection(topic, tags, where)
        chosen = list(await self.queues(topic) if queues is None else queues)
        for queue in chosen:
            if queue in self._positions:
                self._positions[queue].select(wanted)
            else:
                self._positions[queue] = _Position(wanted, await self._offset(queue, start))
        return chosen

    async def unassign(self, *queues: MessageQueue) -> None:
        """Read these queues no longer; none named: all."""
        self._drop(list(queues or self._positions))

    def _drop(self, queues: list[MessageQueue]) -> None:
        for queue in queues:
            position = self._positions.pop(queue, None)
            if position is not None:
                position.move(0)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues being read."""
        return list(self._positions)

    async def _offset(self, queue: MessageQueue, start: str | int | datetime) -> int:
        if start == "committed":
            committed = await self.committed(queue)
            if committed is not None:
                return committed
            start = "first"
        if start == "first":
            return (await self.offsets(queue))[0]
        if start == "last":
            return (await self.offsets(queue))[1]
        if isinstance(start, str):
            raise ValueError(f"start is first, last, committed or a time, not {start!r}")
        return await self.offset_at(queue, start)

    # -- positions

    def position(self, queue: MessageQueue) -> int:
        """The queue offset of the next message that `getmany` gives. KeyError when the queue is not assigned."""
        return self._positions[queue].next_offset

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at a queue offset."""
        self._positions[queue].move(index(offset))

    async def seek_to_time(self, moment: datetime | int, *queues: MessageQueue) -> None:
        """Go on at the first message stored at or after a moment (aware datetime, or ms); none named: all queues."""
        for queue in queues or list(self._positions):
            self.seek(queue, await self.offset_at(queue, moment))

    async def seek_to_start(self, *queues: MessageQueue) -> None:
        """Go back to the oldest message still stored."""
        for queue in queues or list(self._positions):
            self.seek(queue, (await self.offsets(queue))[0])

    async def seek_to_end(self, *queues: MessageQueue) -> None:
        """Skip what is stored now."""
        for queue in queues or list(self._positions):
            self.seek(queue, (await self.offsets(queue))[1])

    def pause(self, *queues: MessageQueue) -> None:
        """Give nothing of these queues until `resume`; none named: all."""
        for queue in queues or list(self._positions):
            self._positions[queue].pause(True)

    def resume(self, *queues: MessageQueue) -> None:
        """Go on with paused queues; none named: all."""
        for queue in queues or list(self._positions):
            self._positions[queue].pause(False)

    async def offsets(self, queue: MessageQueue) -> tuple[int, int]:
        """(oldest offset, end offset)."""
        low = await self._cluster.ask_queue(queue, requests.min_offset(queue))
        high = await self._cluster.ask_queue(queue, requests.max_offset(queue))
        return number(low, "offset"), number(high, "offset")

    async def offset_at(self, queue: MessageQueue, moment: datetime | int) -> int:
        """The offset of the first message stored at or after a moment; the end offset when there is none."""
        when_ms = start_ms(moment)
        if when_ms is None:
            raise ValueError(f"a time is an aware datetime, or ms, not {moment!r}")
        return number(await self._cluster.ask_queue(queue, requests.offset_at(queue, when_ms, lower=True)), "offset")

    async def lag(self, queue: MessageQueue) -> int:
        """Messages between the position and the end of the queue."""
        return (await self.offsets(queue))[1] - self.position(queue)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The group's committed offset, None when it has none."""
        answer = await self._cluster.ask_queue(
            queue, requests.committed(self.group, queue), (*OK, ResponseCode.QUERY_NOT_FOUND)
        )
        return number(answer, "offset") if answer.code == ResponseCode.SUCCESS else None

    async def commit(self, offsets: dict[MessageQueue, int] | None = None) -> None:
        """Store positions under the group; by default those of all assigned queues."""
        if offsets is None:
            offsets = {queue: self.position(queue) for queue in self._positions}
        for queue, offset in offsets.items():
            await self._cluster.ask_queue(queue, requests.commit(self.group, queue, offset))

    # -- messages

    async def getmany(
        self, timeout_s: float = 1.0, max_count: int = 1_000
    ) -> dict[MessageQueue, list[ReceivedMessage]]:
        """Messages of the assigned queues, oldest first in each, waiting up to timeout_s for the first.

        Empty when the time is over. While a broker is away, the queues of the others are read on; ConnectionLost, or what else it
        may be, only when none of the queues can be read: positions stay, and the next call tries again. A refusal that trying
        again does not help is raised when nothing else is there. Closed before the start, and after `close`. ValueError for a
        time that is no number, and for fewer messages than one.
        """
        if math.isnan(timeout_s):  # no time would be over
            raise ValueError(f"timeout_s is a number of seconds, not {timeout_s}")
        if not max_count > 0:  # what is pulled would never be taken, and be pulled all the same
            raise ValueError(f"max_count is 1 at least, not {max_count}")
        deadline = asyncio.get_running_loop().time() + timeout_s
        while True:
            if self._closed.is_set() or not self._cluster.is_open:
                raise Closed(NOT_OPEN)
            if found := self._take(max_count):
                return found
            self._tell_failure()
            left = deadline - asyncio.get_running_loop().time()
            pulls = [self._pulling(q, p, max(left, 0.0)) for q, p in self._positions.items() if not p.paused]
            if left <= 0:
                return {}
            if not pulls:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._closed.wait(), left)
                    continue
                return {}
            await asyncio.wait(pulls, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _tell_failure(self) -> None:
        """Raise what a pull has failed with, be it one that an earlier call began; not that a broker is away, while another is
        not.
        """
        read = [position for position in self._positions.values() if not position.paused]
        alone = all(position.fails for position in read)
        told = [position.take_failure() for position in read]
        for failure in told:
            if failure is not None and (alone or not _is_away(failure)):
                raise failure

    def _take(self, max_count: int) -> dict[MessageQueue, list[ReceivedMessage]]:
        found: dict[MessageQueue, list[ReceivedMessage]] = {}
        for queue, position in self._positions.items():
            if position.ready and not position.paused and max_count > 0:
                found[queue] = position.take(max_count)
                max_count -= len(found[queue])
        return found

    def _pulling(self, queue: MessageQueue, position: _Position, left_s: float) -> asyncio.Task[None]:
        return position.pulling(lambda: self._pull(queue, position, left_s))

    async def _pull(self, queue: MessageQueue, position: _Position, left_s: float) -> None:
        try:
            await self._pull_once(queue, position, left_s)
        except Exception as error:
            position.fail(error)
            if _is_away(error):
                self._cluster.outages.failed(f"broker {queue.broker}", f"group {self.group} pulls {queue}", error)
        else:
            self._cluster.outages.answered(f"broker {queue.broker}")

    async def _pull_once(self, queue: MessageQueue, position: _Position, left_s: float) -> None:
        request = requests.Pull(
            self.group,
            queue,
            position.offset,
            max_count=PULL_COUNT,
            max_bytes=PULL_BYTES,
            expression=position.subscription.expression,
            kind=position.subscription.kind,
            hold_ms=max(1, int(min(left_s, HOLD_MAX_S) * 1000)),
        ).command()
        try:
            answer = await self._cluster.ask(
                await self._cluster.address(queue, position.broker_id), request, _PULLED, PULL_TIMEOUT_S
            )
        except (ClientError, WireError):
            position.ask_master()
            await asyncio.sleep(min(left_s, 0.5))  # a broker that is away is not asked in a circle
            await self._cluster.refresh(queue.topic)
            raise
        next_offset = number(answer, "nextBeginOffset")
        found: list[ReceivedMessage] = []
        if answer.code == ResponseCode.SUCCESS:
            found = cut_records(answer.body, queue.broker, position.offset, position.subscription.tags)
        elif answer.code == ResponseCode.PULL_NOT_FOUND:
            await asyncio.sleep(min(left_s, 0.02))  # held for its time, or a broker that does not hold
        suggested = "suggestWhichBrokerId" in answer.ext
        position.pulled(found, next_offset, number(answer, "suggestWhichBrokerId") if suggested else MASTER_ID)


def _is_away(error: Exception) -> bool:
    """Whether it is an outage, which ends by itself."""
    return isinstance(error, (ConnectionLost, NoRoute, TimedOut))
