"""One event loop in a background thread, through which all blocking clients of a process work."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import threading
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")

_lock = threading.RLock()  # a signal handler may come while its own thread has it
_current: Portal | None = None
_of_parent: list[Portal | None] = []  # never let go of: what its loop waits at is shared with the parent


class Portal:
    """Runs coroutines for threads that wait."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="penstock-client", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[object, None, T]) -> T:
        """The result of a coroutine, waited for. An interrupt cancels it."""
        future = self.begin(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
        """The result of a plain function that must run in the loop's thread."""

        async def work() -> T:
            return function(*arguments, **named)

        return self.run(work())

    def is_here(self) -> bool:
        """Whether the caller is in the loop's thread."""
        return threading.current_thread() is self._thread

    def soon(self, function: Callable[[], object]) -> None:
        """Call a function in the loop, soon."""
        self.loop.call_soon_threadsafe(function)

    def begin(self, work: Coroutine[object, None, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine; the future has its result. RuntimeError from within the loop itself, which would wait
        for itself for ever: callbacks and coroutines use `penstock.aio`."""
        if self.is_here():
            work.close()
            raise RuntimeError("a blocking call inside the client's own event loop; use penstock.aio there")
        return asyncio.run_coroutine_threadsafe(work, self.loop)


def _new_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed: this loop is ours, whatever loops the program runs."""
    try:
        uvloop = import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def _forked() -> None:
    """In the child: the lock may be held by a thread that is not there any more."""
    global _lock, _current
    _of_parent.append(_current)
    _lock, _current = threading.RLock(), None


os.register_at_fork(after_in_child=_forked)


def portal() -> Portal:
    """The portal of this process; a forked child gets its own, and must create its clients again."""
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = Portal()
        return _current
