"""One event loop in a background thread, through which all blocking clients of a process work."""

from __future__ import annotations

import _thread
import asyncio
import atexit
import concurrent.futures
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import suppress
from importlib import import_module
from typing import ParamSpec, Protocol, TypeVar

log = logging.getLogger("penstock.client")

T = TypeVar("T")
P = ParamSpec("P")

GREEN = ("gevent", "eventlet")  # by name: debuggers replace the same function, by one that starts threads
SIGNALS_S = 1.0  # so often does the main thread look for signals while it waits
STILL_S = 1.0  # for the loop to stand still in, when the program ends

_lock = threading.RLock()  # a signal handler may come while its own thread has it
_current: Portal | None = None
_of_parent: list[Portal | None] = []  # never let go of: what its loop waits at is shared with the parent


class Sends(Protocol):
    """The sends of a producer."""

    @property
    def unsettled(self) -> int: ...


class Portal:
    """Runs coroutines for threads that wait."""

    def __init__(self) -> None:
        _demand_threads()
        self.pid = os.getpid()
        self.loop = _new_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="penstock-client", daemon=True)
        self._thread.start()
        self._ended = False
        self._still = threading.Lock()  # what the loop waits for once the program has ended
        self._sends: weakref.WeakSet[Sends] = weakref.WeakSet()  # whoever has some under way is kept by its tasks

    def run(self, work: Coroutine[object, None, T]) -> T:
        """The result of a coroutine, waited for. An interrupt cancels it."""
        ended = self._ended
        future = self.begin(work)
        try:
            return _result(future)
        except BaseException:
            future.cancel()
            raise
        finally:
            if ended:
                self.stand_still()

    def stand_still(self) -> None:
        """Let the loop do nothing more, but for who asks it to. Its thread must not come back to Python while the interpreter
        goes: uvloop then asks one that is gone for a lock, and the process ends by SIGSEGV.
        """
        if self._ended:
            return
        self._ended = self._still.acquire()
        stands = threading.Event()

        def wait() -> None:
            stands.set()
            with self._still:
                """Who asks for something lets go of it."""

        with suppress(RuntimeError):  # the loop is closed
            self.soon(wait)
            stands.wait(STILL_S)

    def watch(self, sends: Sends) -> None:
        """Tell of those that are under way when the program ends."""
        self._sends.add(sends)

    def tell_unsettled(self) -> None:
        """A warning where the program ends before sends have their receipts; the loop stands still."""
        count = sum(sends.unsettled for sends in self._sends)
        if count:
            log.warning(
                "the program ends with %d sends under way, without flush or close: what is not stored by now is lost",
                count,
            )

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
        if self._ended:
            self._ended = False
            self._still.release()
        return asyncio.run_coroutine_threadsafe(work, self.loop)


def _result(future: concurrent.futures.Future[T]) -> T:
    """Its result. A signal that came while the process was stopped may reach the loop's thread: only the main one carries its
    handler out, and is not woken for it.
    """
    if threading.current_thread() is not threading.main_thread():
        return future.result()
    while True:
        try:
            return future.result(SIGNALS_S)
        except TimeoutError:
            if future.done():  # its own
                return future.result()


def _demand_threads() -> None:
    """RuntimeError where threads are greenlets: the loop would have the only real one for ever, and nobody would be told."""
    patched = _thread.start_new_thread.__module__.partition(".")[0]
    if patched in GREEN:
        raise RuntimeError(
            f"{patched} has replaced threads, and this client's event loop needs one: patch without them, in gevent with"
            " monkey.patch_all(thread=False, queue=False), in eventlet with monkey_patch(thread=False)"
        )


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


def _ending() -> None:
    if _current is not None and _current.pid == os.getpid():
        _current.stand_still()


def _ended() -> None:
    if _current is not None and _current.pid == os.getpid():
        _current.tell_unsettled()


atexit.register(_ended)  # before the others, so behind them, and behind a program that closes its clients at its end
atexit.register(_ending)  # when this is imported: before a program says what it does at its end, so behind that


def portal() -> Portal:
    """The portal of this process; a forked child gets its own, and must create its clients again."""
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = Portal()
            atexit.register(
                _ending
            )  # once more: before a broker in this program stops, which would be told as an outage
        return _current
