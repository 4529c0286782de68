"""The portal: coroutines for threads that wait."""

from __future__ import annotations

import _thread
import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.client.portal import Portal, portal


def test_one_for_the_process_and_its_child_another() -> None:
    first = portal()
    assert portal() is first
    first.pid = os.getpid() + 1  # as a forked child finds it
    try:
        assert portal() is not first
    finally:
        first.pid = os.getpid()


def test_results_and_errors_come_through() -> None:
    async def work(fails: bool) -> int:
        await asyncio.sleep(0)
        if fails:
            raise KeyError("no")
        return threading.get_ident()

    one = Portal()
    assert one.run(work(False)) != threading.get_ident()
    assert one.call(lambda a, b: a + b, 2, b=3) == 5
    with pytest.raises(KeyError):
        one.run(work(True))


def test_a_blocking_call_in_its_own_loop_is_refused() -> None:
    one = Portal()

    async def inner() -> None:
        """Never awaited."""

    async def outer() -> str:
        with pytest.raises(RuntimeError, match=r"penstock\.aio"):
            one.run(inner())
        return "refused"

    assert one.run(outer()) == "refused"


@pytest.mark.parametrize("who", ["gevent.thread", "eventlet.green.thread", "pydevd_monkey"])
def test_threads_that_are_none_are_refused(monkeypatch: pytest.MonkeyPatch, who: str) -> None:
    """The program stood still at its first call. A debugger's are threads."""
    real = _thread.start_new_thread

    def start(*given: Any) -> int:
        return real(*given)

    start.__module__ = who
    monkeypatch.setattr(_thread, "start_new_thread", start)
    if who == "pydevd_monkey":
        assert Portal().call(lambda: 5) == 5
        return
    with pytest.raises(RuntimeError, match="has replaced threads"):
        Portal()


def test_its_loop_is_uvloops_where_that_is_installed_and_no_other_loop_is(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("uvloop")
    assert type(Portal().loop).__module__.startswith("uvloop")

    async def of_the_program() -> str:
        return type(asyncio.get_running_loop()).__module__

    assert asyncio.run(of_the_program()).startswith("asyncio")
    monkeypatch.setitem(sys.modules, "uvloop", None)
    one = Portal()
    assert type(one.loop).__module__.startswith("asyncio")
    assert one.call(lambda: 5) == 5


def test_a_loop_that_stands_still_goes_on_for_who_asks() -> None:
    async def number() -> int:
        return 5

    one = Portal()
    came = threading.Event()
    for _ in range(2):
        one.stand_still()
        one.stand_still()
        one.soon(came.set)
        assert not came.wait(0.02)
        assert one.run(number()) == 5
        assert came.is_set()
        came.clear()
    assert one.begin(number()).result(60) == 5
    one.call(one.loop.stop)


ENDS = """
import atexit, sys, threading

def at_end():
    came = threading.Event()
    portal().soon(came.set)
    print("goes on" if came.wait(0.04) else "stands still")
    print(producer.send(Message(sys.argv[2], b"in the end")).status.name)
    producer.close()

atexit.register(at_end)  # before anything of ours is imported, so called behind all that is ours

from penstock import Message, Producer
from penstock.client.portal import portal

producer = Producer(sys.argv[1]).start()
"""


def test_the_loop_stands_still_when_the_program_ends(registry: str, fresh: Callable[[str], str]) -> None:
    command = [sys.executable, "-c", ENDS, registry, fresh("ends")]
    where = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parent.parent)}
    told = subprocess.run(command, capture_output=True, text=True, env=where, timeout=120)
    assert (told.stdout, told.returncode, told.stderr) == ("stands still\nSEND_OK\n", 0, "")


FORKS = """
import os, sys
from penstock import Message, Producer, PushConsumer

registry, topic, kind = sys.argv[1:]
seen = []
with PushConsumer("forks", registry, start="first", kind=kind, in_flight_max=100) as consumer:
    consumer.subscribe(topic)
    with Producer(registry, kind=kind) as producer:
        producer.send_batch([Message(topic, b"%d" % number) for number in range(100)])
        for delivery in consumer:
            if len(seen) == 5:
                child = os.fork()
                if child == 0:
                    delivery.ack()  # of no use, and of no harm
                    with Producer(registry, kind=kind) as own:
                        own.send(Message(topic, b"100"))
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
            delivery.ack()
            seen.append(int(delivery.body))
            if len(seen) == 101:
                break
assert sorted(seen) == list(range(101)), seen
print("whole")
"""


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_a_fork_while_iterating_harms_nothing(registry: str, fresh: Callable[[str], str], kind: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", FORKS, registry, fresh("forks"), kind], capture_output=True, text=True, timeout=120
    )
    assert (told.stdout, told.returncode) == ("whole\n", 0), told.stderr


def test_a_process_ends_with_clients_that_were_not_closed(registry: str, fresh: Callable[[str], str]) -> None:
    code = """
import sys
from penstock import Message, Producer, PushConsumer
producer, consumer = Producer(sys.argv[1]).start(), PushConsumer("left", sys.argv[1], start="first").start()
for number in range(50):
    producer.send_nowait(Message(sys.argv[2], b"x"))
producer.flush()
consumer.subscribe(sys.argv[2])
print(next(iter(consumer)).body)
"""
    told = subprocess.run(
        [sys.executable, "-c", code, registry, fresh("left")], capture_output=True, text=True, timeout=120
    )
    assert (told.stdout, told.returncode) == ("b'x'\n", 0), told.stderr


LEAVES = """
import atexit, sys
from penstock import Message, Producer

def work():
    producer = Producer(sys.argv[1], linger_ms=5_000).start()
    for number in range(30):
        producer.send_nowait(Message(sys.argv[2], b"x"))
    return producer

if sys.argv[3] == "closed at the end":
    atexit.register(lambda: producer.close())
producer = work()
if sys.argv[3] == "out of sight":
    producer = None
elif sys.argv[3] == "flushed":
    producer.flush()
"""


@pytest.mark.parametrize(
    ("how", "lost"), [("in sight", True), ("out of sight", True), ("flushed", False), ("closed at the end", False)]
)
def test_a_program_that_leaves_its_sends_is_told(
    registry: str, fresh: Callable[[str], str], how: str, lost: bool
) -> None:
    told = subprocess.run(
        [sys.executable, "-c", LEAVES, registry, fresh("left"), how], capture_output=True, text=True, timeout=120
    )
    said = "the program ends with 30 sends under way, without flush or close: what is not stored by now is lost\n"
    assert (told.stdout, told.returncode, told.stderr) == ("", 0, said if lost else "")
