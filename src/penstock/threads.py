"""Threads that end with the program: a function that does not return holds up nobody's exit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from operator import index
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Threads(Executor):
    """At most `most` threads, each made when there is work that no idle one will take."""

    def __init__(self, most: int, name: str) -> None:
        self._most = index(most)
        self._name = name
        self._row: SimpleQueue[tuple[Future[Any], Callable[[], object]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0
        self._idle = 0  # threads that wait for work which is still to come
        self._open = True
        self._members: set[threading.Thread] = set()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Do this in one of the threads; the future has what becomes of it. RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._lock:
            if not self._open:
                raise RuntimeError(f"the threads {self._name} take no more work")
            self._row.put((future, partial(fn, *args, **kwargs)))
            if self._idle:
                self._idle -= 1
            elif self._count < self._most:
                self._count += 1
                thread = threading.Thread(target=self._work, name=f"{self._name}_{self._count}", daemon=True)
                self._members.add(thread)
                thread.start()
        return future

    def has_caller(self) -> bool:
        """Whether the caller is in one of the threads."""
        return threading.current_thread() in self._members

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Take no more work; what is there is done, and only `wait` waits for it."""
        with self._lock:
            self._open = False
        self._row.put(None)
        if wait:
            for thread in list(self._members):
                thread.join()

    def _work(self) -> None:
        while (task := self._row.get()) is not None:
            _carry_out(*task)
            del task  # an idle thread keeps nothing alive
            with self._lock:
                self._idle += self._row.empty()
        self._members.discard(threading.current_thread())
        self._row.put(None)  # for the next one


def _carry_out(future: Future[Any], work: Callable[[], object]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = work()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
