"""The lanes of a producer: what is gathered in them leaves, and everybody who waits gets a receipt or an error."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import math
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from operator import index
from typing import cast

from penstock.client.aio.attempts import Attempts, late
from penstock.client.gathering import (
    BATCH_BYTES_MAX,
    Lane,
    Selector,
    Waiter,
    Waiting,
    join_all,
    messages_of,
    settle,
    settle_all,
    still_waited_for,
)  # fmt: skip
from penstock.client.outgoing import Outgoing
from penstock.client.results import SendReceipt
from penstock.client.routes import MessageQueue
from penstock.client.sending import by_sharding_key, is_tried_again
from penstock.errors import NOT_OPEN, BrokerRefused, BufferFull, Closed, ConnectionLost, NoRoute, TimedOut
from penstock.message import Message


class Lanes:
    """Where each send waits and when it leaves. Belongs to one event loop.

    Messages with longer bodies than `body_bytes` go by themselves: they travel compressed, or are too long for a batch.
    """

    def __init__(
        self,
        attempts: Attempts,
        *,
        blocks: bool,
        linger_s: float,
        batch_bytes: int,
        buffer_bytes: int,
        body_bytes: int,
    ) -> None:
        if not 0 < batch_bytes <= BATCH_BYTES_MAX:
            raise ValueError(f"batch_bytes is 1 to {BATCH_BYTES_MAX}, not {batch_bytes}")
        if buffer_bytes < batch_bytes:
            raise ValueError("buffer_bytes is at least batch_bytes")
        self._attempts = attempts
        self._blocks = blocks
        self._linger_s = linger_s
        self._batch_bytes = index(batch_bytes)
        self._buffer_bytes = index(buffer_bytes)
        self.body_bytes = body_bytes
        self._lanes: dict[str | MessageQueue, Lane] = {}
        self._alone: set[Lane] = set()  # of sends that wait for nobody
        self._by_themselves: set[asyncio.Future[None]] = set()  # of requests whose callers wait for them
        self._full: dict[Lane, asyncio.Event] = {}  # lanes that linger, until there is enough, or somebody flushes
        self._tasks: set[asyncio.Task[None]] = set()
        self._room: deque[asyncio.Future[None]] = deque()
        self._flushing: dict[Lane, deque[tuple[int, asyncio.Future[None]]]] = {}  # until so many of a lane are settled
        self.is_open = True
        self.under_way = 0  # bytes of sends in rows and under way
        self._freed: Callable[[], None] = _nothing

    def when_freed(self, tell: Callable[[], None]) -> None:
        """From now on call this when sends were settled."""
        self._freed = tell

    @property
    def full(self) -> bool:
        """Whether as much is under way as may be."""
        return self.under_way >= self._buffer_bytes

    @property
    def unsettled(self) -> int:
        """How many sends have neither a receipt nor an error yet."""
        return sum(lane.accepted - lane.settled for lane in (*self._lanes.values(), *self._alone))

    def check_open(self) -> None:
        """Closed after `close`."""
        if not self.is_open:
            raise Closed("the client is closed: make a new one")

    def check_send(self, topic: str, timeout_s: float | None = None) -> None:
        """Before anything else of a send: Closed before the start and after `close`, TimedOut where it is given no time."""
        self.check_open()
        if not (self._attempts.settings.nsqd or self._attempts.cluster.is_open):
            raise Closed(NOT_OPEN)
        if timeout_s is not None and not timeout_s > 0:
            raise TimedOut(f"not sent to {topic} in time: {timeout_s:g} s are none")

    def check_room(self) -> None:
        """BufferFull when as much is under way as may be."""
        if self.full:
            raise BufferFull(f"{self.under_way} bytes are under way, as many as buffer_bytes allows")

    # -- in

    async def send(
        self,
        messages: Sequence[Message],
        deadline: float,
        queue: MessageQueue | None,
        selector: Selector | None,
        apart: bool = False,
    ) -> SendReceipt:
        """The receipt of one message, or of a batch. `apart`: with a deadline of its own, in a request of its own."""
        batch = messages if len(messages) > 1 else None
        ordered = queue is not None or selector is not None or messages[0].sharding_key is not None
        if not ordered and (apart or batch is not None):  # any queue will do, and nothing can join it
            return await self.by_itself(self._attempts.outgoings.make(messages), deadline)
        waiter = asyncio.get_running_loop().create_future()
        send = Waiting(messages[0], waiter, deadline, self.body_bytes, queue, selector, batch, apart)
        while self.full:
            if not self._blocks:
                self.check_room()
            await self._wait_for_room(deadline, send.message.topic)
        lane = self._lane(send)
        if lane is None:
            return await self.by_itself(self._attempts.outgoings.make(messages), deadline, queue, selector)
        if lane.busy or self._linger_s:
            self._join(lane, send)
            if not apart:
                receipt: SendReceipt = await waiter
                return receipt
            try:
                async with asyncio.timeout_at(deadline):
                    return cast(SendReceipt, await waiter)
            except TimeoutError:
                raise TimedOut(late(send.message.topic, sent=send not in lane.row)) from None
        # Nothing is under way to there: no task, no row.
        lane.begin()
        lane.add(send)
        lane.row.pop()
        self.under_way += send.size
        try:
            return await self._attempts.send(self._attempts.outgoings.make(messages), deadline, queue, selector)
        finally:
            self._over(lane, [send])
            if lane.row and self.is_open:
                self._spawn(self._leave(lane))
            else:
                lane.rest()

    async def by_itself(
        self,
        sent: Outgoing,
        deadline: float,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> SendReceipt:
        """The receipt of a request that stands in no row: it waits for nobody, but `flush` and `close` wait for it."""
        over = asyncio.get_running_loop().create_future()
        self._by_themselves.add(over)
        try:
            return await self._attempts.send(sent, deadline, queue, selector)
        finally:
            self._by_themselves.discard(over)
            over.set_result(None)

    def begin_all(self, handed: list[Waiting], deadline: float) -> None:
        """Begin sends; each waiter gets its receipt or its error."""
        idle: list[Lane] = []
        if self.is_open:
            handed, size = join_all(handed, self._lanes, deadline, idle)
            self.under_way += size
        for send in handed:
            try:
                self._begin(send)
            except Exception as error:  # a selector's, or that the client is closed: no other send may suffer for it
                _fail(send.waiter, error)
        for lane in idle:
            self._go(lane)

    def _begin(self, send: Waiting) -> None:
        self.check_open()
        lane = self._lane(send)
        if lane is None:
            lane = Lane(None)
            self._alone.add(lane)
        self._join(lane, send)

    def _lane(self, send: Waiting) -> Lane | None:
        """Where a send waits for those before it; None: nowhere. ValueError for a queue of another topic."""
        message, to = send.message, send.queue
        topic_lane = self._lanes.get(message.topic)
        if topic_lane is None:
            topic_lane = self._lanes[message.topic] = Lane(None)
        if not send.ordered:
            return None if send.alone else topic_lane
        if to is not None:
            if to.topic != message.topic:
                raise ValueError(f"{to} is not a queue of topic {message.topic!r}")
        elif topic_lane.ordered or not (queues := self._attempts.choosing.queues(message.topic)):
            return topic_lane
        elif send.selector is not None:
            to = send.selector(queues, message)
        else:
            assert message.sharding_key is not None
            to = by_sharding_key(message.sharding_key, queues)
        lane = self._lanes.get(to)
        if lane is None:
            lane = self._lanes[to] = Lane(to)
        return lane

    def _join(self, lane: Lane, send: Waiting) -> None:
        lane.add(send)
        self.under_way += send.size
        self._go(lane)

    def _go(self, lane: Lane) -> None:
        if lane.begin():
            self._spawn(self._leave(lane))
        elif lane in self._full and self._is_enough(lane):
            self._full[lane].set()

    async def _wait_for_room(self, deadline: float, topic: str) -> None:
        loop = asyncio.get_running_loop()
        room: asyncio.Future[None] = loop.create_future()
        self._room.append(room)
        try:
            async with asyncio.timeout_at(deadline):
                await room
        except TimeoutError:
            raise TimedOut(f"not sent to {topic} in time: {self.under_way} bytes are under way") from None

    # -- out

    async def _leave(self, lane: Lane) -> None:
        """Let the row leave, request by request, until it is empty."""
        if self._linger_s and not self._is_enough(lane) and not self._is_flushed(lane):
            self._full[lane] = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._full[lane].wait(), self._linger_s)
            del self._full[lane]
        while lane.row:
            sends = lane.take(self._batch_bytes)
            try:
                if len(sends) == 1:
                    await self._one(sends[0])
                else:
                    await self._many(lane, sends)
            except asyncio.CancelledError:
                _fail_all(sends, Closed(NOT_OPEN))
                raise
            except Exception as error:  # nobody may wait for ever, whatever went wrong here
                _fail_all(sends, error)
            finally:
                self._over(lane, sends)
        lane.rest()
        self._alone.discard(lane)

    async def _one(self, send: Waiting) -> None:
        if send.waiter.done():  # given up
            return
        try:
            receipt = await self._attempts.send(
                self._attempts.outgoings.make(send.messages), send.deadline, send.queue, send.selector
            )
        except Exception as error:  # whatever it is, it belongs to whoever waits
            _fail(send.waiter, error)
        else:
            settle(send, receipt)

    async def _many(self, lane: Lane, sends: list[Waiting]) -> None:
        """One batch. What is refused as a batch, or has lost its queue, goes message by message, so that each gets an answer of
        its own; not what may be stored.
        """
        sends = still_waited_for(sends)
        if not sends:
            return
        outgoing = self._attempts.outgoings.make(messages_of(sends))
        try:
            receipt = await self._attempts.send(outgoing, sends[0].deadline, lane.queue)
        except BrokerRefused as error:
            apart = not is_tried_again(error)
            failed: Exception = error
        except ValueError as error:
            apart, failed = True, error
        except (ConnectionLost, NoRoute) as error:
            # The queue of a sharding key, or of a selector, may be another one by now.
            apart, failed = lane.queue is not None and sends[0].queue is None, error
        except Exception as error:
            apart, failed = False, error
        else:
            settle_all(sends, receipt)
            return
        if not apart or not self._attempts.may_go_again(outgoing):
            _fail_all(sends, failed)
            return
        for send in sends:
            await self._one(send)

    def _over(self, lane: Lane, sends: list[Waiting]) -> None:
        self.under_way -= lane.over(sends)
        while self._room and not self.full:
            room = self._room.popleft()
            if not room.done():
                room.set_result(None)
        if lane in self._flushing:
            self._tell_flushing(lane)
        self._freed()

    def _tell_flushing(self, lane: Lane) -> None:
        """Let those go on who wait for what the lane has settled by now; who came first waits for the fewest."""
        waiting = self._flushing[lane]
        while waiting and waiting[0][0] <= lane.settled:
            _, waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)
        if not waiting:
            del self._flushing[lane]

    # -- the end

    async def flush(self, timeout_s: float) -> None:
        """Let go what lingers, and wait until all that came so far is settled. TimedOut, or ValueError for a NaN."""
        if math.isnan(timeout_s):
            raise ValueError(f"timeout_s is a number of seconds, not {timeout_s}")
        loop = asyncio.get_running_loop()
        waiters = list(self._by_themselves)
        for lane in (*self._lanes.values(), *self._alone):
            if lane.settled < lane.accepted:
                waiter = loop.create_future()
                self._flushing.setdefault(lane, deque()).append((lane.accepted, waiter))
                waiters.append(waiter)
                if lane in self._full:
                    self._full[lane].set()
        if waiters:
            _, late = await asyncio.wait(waiters, timeout=timeout_s)
            if late:
                raise TimedOut(f"not all sends have a receipt within {timeout_s:g} s")

    def _is_enough(self, lane: Lane) -> bool:
        """Whether there is nothing to linger for: a whole batch, or one that goes alone and must not be late."""
        return lane.size >= self._batch_bytes or lane.row[-1].alone

    def _is_flushed(self, lane: Lane) -> bool:
        """Whether somebody waits for all that the lane has."""
        return lane in self._flushing

    async def close(self) -> None:
        """What still waits fails with Closed."""
        self.is_open = False
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for lane in (*self._lanes.values(), *self._alone):
            sends = list(lane.row)
            lane.row.clear()
            _fail_all(sends, Closed(NOT_OPEN))
            self._over(lane, sends)

    def _spawn(self, work: Coroutine[object, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _fail(waiter: Waiter, error: Exception) -> None:
    """Tell a waiter of an error, unless it has given the send up."""
    if not waiter.done():
        with contextlib.suppress(concurrent.futures.InvalidStateError):  # its thread gives it up at this moment
            waiter.set_exception(error)


def _fail_all(sends: list[Waiting], error: Exception) -> None:
    for send in sends:
        _fail(send.waiter, _twin(error) if len(sends) > 1 else error)


def _twin(error: Exception) -> Exception:
    """The same error as an object of its own: each who raises it adds a traceback to it."""
    twin: Exception = type(error).__new__(type(error))
    twin.args = error.args
    twin.__dict__.update(error.__dict__)
    return twin


def _nothing() -> None:
    """Nobody waits for room."""
