"""Threads that end with the program."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import wait
from pathlib import Path

import pytest

import penstock
from penstock.threads import Threads

ENDS = """
import threading
from penstock.threads import Threads
begun = threading.Event()
threads = Threads(1, "never")
threads.submit(lambda: (begun.set(), threading.Event().wait()))
begun.wait()
threads.shutdown()
print("the end")
"""


def test_there_are_as_many_as_work_at_once_and_no_more() -> None:
    threads = Threads(3, "three")
    together = threading.Barrier(3)
    work = [threads.submit(lambda: (together.wait(60), threading.get_ident())) for _ in range(9)]
    assert len({future.result()[1] for future in work}) == 3
    threads.shutdown()


def test_the_future_has_what_becomes_of_it() -> None:
    threads = Threads(1, "one")
    gate = threading.Event()
    waits, dropped = threads.submit(gate.wait, 60), threads.submit(int)
    broken = threads.submit(int, "x")
    assert dropped.cancel()
    gate.set()
    wait([broken])
    assert waits.result()
    assert isinstance(broken.exception(), ValueError)
    threads.shutdown()
    with pytest.raises(RuntimeError, match="no more"):
        threads.submit(int)


def test_what_was_begun_before_the_shutdown_is_done() -> None:
    threads = Threads(2, "two")
    work = [threads.submit(pow, 2, n) for n in range(100)]
    threads.shutdown()
    assert [future.result() for future in work] == [2**n for n in range(100)]


def test_work_that_does_not_end_holds_up_no_program() -> None:
    where = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, "-c", ENDS], capture_output=True, timeout=60, check=True, text=True, env=where
    )
    assert done.stdout == "the end\n"


def test_who_asks_from_one_of_them() -> None:
    threads, others = Threads(1, "ours"), Threads(1, "others")
    assert threads.submit(threads.has_caller).result(60)
    assert not others.submit(threads.has_caller).result(60)
    assert not threads.has_caller()
    for each in (threads, others):
        each.shutdown()


def test_a_shutdown_may_wait() -> None:
    threads, ended = Threads(2, "two"), list[int]()
    begun, gate = threading.Barrier(3), threading.Event()

    def work() -> None:
        begun.wait(60)
        assert gate.wait(60)
        ended.append(1)

    for _ in range(2):
        threads.submit(work)
    begun.wait(60)
    threading.Timer(0.01, gate.set).start()
    threads.shutdown(wait=True)
    assert ended == [1, 1]
