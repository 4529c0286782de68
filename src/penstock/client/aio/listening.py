"""Calling a consumer's listeners: plain functions in threads, coroutine functions in the loop."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Protocol, TypeVar, cast

from penstock.client.results import Outcome, Reject, Retry
from penstock.client.tracecontext import context_of, used
from penstock.message import ReceivedMessage
from penstock.threads import Threads

log = logging.getLogger("penstock.client")

T = TypeVar("T")
Listener = Callable[[ReceivedMessage], object] | Callable[[ReceivedMessage], Awaitable[object]]


def check_listener(listener: object) -> None:
    """TypeError for what cannot be called; None is none."""
    if listener is not None and not callable(listener):
        raise TypeError(f"a listener is a function, not {type(listener).__name__}")


class Tracing(Protocol):
    """Who is told of messages that are worked on."""

    def before(self, message: ReceivedMessage) -> tuple[str, int]:
        """It begins."""

    def after(self, message: ReceivedMessage, begun: tuple[str, int], outcome: Outcome) -> None:
        """It is over."""


class Listeners:
    """The listeners of one consumer: by topic, or one for all. A coroutine is given up after `timeout_s`."""

    def __init__(self, group: str, default: Listener | None, *, threads: int, timeout_s: float) -> None:
        self.by_topic: dict[str, Listener] = {}
        self._group = group
        self._default = default
        self.timeout_s = timeout_s
        self._threads = Threads(threads, f"penstock-{group}")
        self._count = 0
        self._none = asyncio.Event()  # nobody is at work, or only those who close the consumer
        self._tasks: set[asyncio.Task[object]] = set()  # that a coroutine is called in
        self._leaving: set[object] = set()  # threads and tasks of listeners that close the consumer
        self._reply: Callable[[ReceivedMessage, bytes], None] = lambda message, body: None
        self._tracing: Tracing | None = None

    def trace_with(self, tracing: Tracing) -> None:
        """Tell it of every call."""
        self._tracing = tracing

    def take(self, topic: str) -> bool:
        """Whether a listener takes this topic's messages, rather than an iterator."""
        return self.by_topic.get(topic, self._default) is not None

    def begin_work(self) -> None:
        """Somebody calls listeners from now on, until `end_work`."""
        self._count += 1

    def end_work(self) -> None:
        """It is over."""
        self._count -= 1
        self.look_who_works()

    @contextlib.contextmanager
    def leaving(self) -> Iterator[None]:
        """Its caller closes the consumer; if that is a listener, of whichever thread, nobody waits for it."""
        who = threading.current_thread() if self._threads.has_caller() else self._task()
        if who is None or who in self._leaving:
            yield
            return
        self._leaving.add(who)
        try:
            yield
        finally:
            self._leaving.discard(who)

    def _task(self) -> asyncio.Task[object] | None:
        try:
            task = asyncio.current_task()
        except RuntimeError:  # a thread without a loop
            return None
        return task if task in self._tasks else None

    def look_who_works(self) -> None:
        """Whoever waits until nobody works may go on, if only those who wait themselves are left."""
        if self._count <= len(self._leaving):
            self._none.set()

    async def wait_done(self, timeout_s: float) -> None:
        """Wait until no message is worked on but by listeners that close the consumer, at most so long."""
        if self._count > len(self._leaving):
            self._none.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._none.wait()

    def runs_in_thread(self, topic: str) -> bool:
        """Whether the topic's listener is a plain function, which must not keep the loop."""
        listener = self.by_topic.get(topic, self._default)
        return not (inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__))

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do work in one of the threads of the listeners."""
        return asyncio.get_running_loop().run_in_executor(self._threads, work)

    def call_here(self, message: ReceivedMessage) -> Outcome:
        """Hand a message to its plain function, in the thread of the caller: what it made of it."""
        tracing = self._traced(message)
        if tracing is None:
            return self._call_here(message)
        begun = tracing.before(message)
        outcome = self._call_here(message)
        tracing.after(message, begun, outcome)
        return outcome

    def _traced(self, message: ReceivedMessage) -> Tracing | None:
        """Who is told of it; messages of queue topics have no ids."""
        return self._tracing if message.queue_offset >= 0 else None

    def _call_here(self, message: ReceivedMessage) -> Outcome:
        listener = self.by_topic.get(message.topic, self._default)
        assert listener is not None
        try:
            done = self._within(listener, message)
            if inspect.iscoroutine(done):
                done.close()
                raise TypeError("the listener returned a coroutine that nobody awaits: make it an `async def` itself")
        except BaseException as error:  # SystemExit, too: the message is given back, and whoever called works on
            return self._outcome(error, message)
        return self._made_of(done, message)

    @staticmethod
    def _within(listener: Listener, message: ReceivedMessage) -> object:
        """Call it within the trace context of the message."""
        if not used():
            return listener(message)
        with context_of(message):
            return listener(message)

    def answer_with(self, reply: Callable[[ReceivedMessage, bytes], None]) -> None:
        """Call `reply`, in whichever thread, with what a listener returns as bytes."""
        self._reply = reply

    def _made_of(self, done: object, message: ReceivedMessage) -> Outcome:
        if isinstance(done, bytes):
            self._reply(message, done)
        if isinstance(done, (Retry, Reject)):  # returned, not raised: what is meant is plain
            return done
        return Retry() if done is False else None

    def _outcome(self, error: BaseException, message: ReceivedMessage) -> Outcome:
        if isinstance(error, (Retry, Reject)):
            return error.with_traceback(None)
        log.error(
            "group %s: the listener failed on %s of %s", self._group, message.msg_id, message.topic, exc_info=error
        )
        return Retry()

    def close(self) -> None:
        """Start no more threads; those at work go on to their end."""
        self._threads.shutdown()

    async def call(self, message: ReceivedMessage) -> Outcome:
        """Hand a message to its listener: what it made of it."""
        tracing = self._traced(message)
        if tracing is None:
            return await self._call(message)
        begun = tracing.before(message)
        outcome = await self._call(message)
        tracing.after(message, begun, outcome)
        return outcome

    async def _call(self, message: ReceivedMessage) -> Outcome:
        listener = self.by_topic.get(message.topic, self._default)
        assert listener is not None
        if self.runs_in_thread(message.topic):
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._call_here, message)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            with context_of(message):
                async with asyncio.timeout(self.timeout_s):
                    done: object = await cast(Awaitable[object], listener(message))
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError) and task.cancelling():
                raise  # the consumer closes; else something was cancelled that the listener waited for
            return self._outcome(error, message)
        finally:
            self._tasks.discard(task)
        return self._made_of(done, message)
