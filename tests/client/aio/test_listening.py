"""Listeners: what their end means, in threads and in the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from client.scripted import message
from penstock.client.aio.listening import Listeners, check_listener
from penstock.client.results import Reject, Retry
from penstock.message import ReceivedMessage


def raises(error: BaseException) -> Callable[[ReceivedMessage], object]:
    def listener(message: ReceivedMessage) -> object:
        raise error

    return listener


@pytest.mark.parametrize(
    ("listener", "outcome"),
    [
        (lambda message: None, None),
        (lambda message: True, None),
        (lambda message: False, Retry),
        (raises(Retry(3)), Retry),
        (raises(Reject("bad")), Reject),
        (lambda message: Retry(3), Retry),  # returned, which acknowledges nothing
        (lambda message: Reject("bad"), Reject),
        (raises(ValueError("a mistake")), Retry),
        (raises(StopIteration()), Retry),  # of a `next` without a default
        (raises(SystemExit(1)), Retry),
        (raises(asyncio.CancelledError()), Retry),
    ],
)
async def test_what_the_end_of_a_listener_means(listener: Callable[..., object], outcome: type | None) -> None:
    listeners = Listeners("G", listener, threads=1, timeout_s=20)
    async with asyncio.timeout(20):
        found = await listeners.call(message())
    assert found is None if outcome is None else isinstance(found, outcome)
    found = listeners.call_here(message())
    assert found is None if outcome is None else isinstance(found, outcome)
    listeners.close()


async def test_a_function_that_returns_a_coroutine_has_not_done_its_work(caplog: pytest.LogCaptureFixture) -> None:
    """A lambda around a coroutine function, say: the message comes again, instead of being done with."""

    async def work(message: ReceivedMessage) -> None:
        raise AssertionError("nobody awaits it")

    listeners = Listeners("G", lambda message: work(message), threads=1, timeout_s=20)
    assert isinstance(await listeners.call(message()), Retry)
    assert isinstance(listeners.call_here(message()), Retry)
    assert "make it an `async def` itself" in caplog.text
    listeners.close()


async def cancelled(message: ReceivedMessage) -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task


async def exits(message: ReceivedMessage) -> None:
    raise SystemExit(1)


@pytest.mark.parametrize("listener", [cancelled, exits])
async def test_a_coroutine_that_ends_as_if_it_were_the_consumer(listener: Callable[..., object]) -> None:
    """What it waited for was cancelled, not the consumer, which gives the message back and goes on."""
    listeners = Listeners("G", listener, threads=1, timeout_s=20)
    assert isinstance(await listeners.call(message()), Retry)
    listeners.close()


async def test_a_consumer_that_is_cancelled_is() -> None:
    begun = asyncio.Event()

    async def listener(message: ReceivedMessage) -> None:
        begun.set()
        await asyncio.Event().wait()

    listeners = Listeners("G", listener, threads=1, timeout_s=20)
    task = asyncio.create_task(listeners.call(message()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    listeners.close()


def test_a_listener_is_a_function() -> None:
    for listener in (5, "print", message()):
        with pytest.raises(TypeError):
            check_listener(listener)
    check_listener(None)
    check_listener(print)


async def test_functions_run_in_threads_and_coroutines_in_the_loop() -> None:
    ran: list[int] = []

    async def coroutine(message: ReceivedMessage) -> None:
        ran.append(threading.get_ident())

    listeners = Listeners("G", lambda message: ran.append(threading.get_ident()), threads=1, timeout_s=20)
    listeners.by_topic["T"] = coroutine
    await listeners.call(message())
    del listeners.by_topic["T"]
    await listeners.call(message())
    assert ran[0] == threading.get_ident() != ran[1]
    listeners.close()


async def test_a_coroutine_that_takes_too_long_is_given_up() -> None:
    ended = asyncio.Event()

    async def slow(message: ReceivedMessage) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    listeners = Listeners("G", slow, threads=1, timeout_s=0.01)
    assert isinstance(await listeners.call(message()), Retry)
    assert ended.is_set()
    listeners.close()


async def test_a_topic_without_a_listener_is_iterated() -> None:
    listeners = Listeners("G", None, threads=1, timeout_s=20)
    assert not listeners.take("T")
    listeners.by_topic["T"] = print
    assert listeners.take("T")
    listeners.begin_work()
    waiting = asyncio.create_task(listeners.wait_done(20))
    await asyncio.sleep(0)
    assert not waiting.done()
    listeners.end_work()
    await asyncio.wait_for(waiting, 10)
    listeners.close()


async def test_only_the_listeners_that_close_the_consumer_are_not_waited_for() -> None:
    go_on, left = asyncio.Event(), asyncio.Event()

    async def listener(received: ReceivedMessage) -> None:
        if received.queue_offset:
            await go_on.wait()
            return
        with listeners.leaving(), listeners.leaving():
            left.set()
            await listeners.wait_done(600)

    async def work(offset: int) -> None:
        listeners.begin_work()
        await listeners.call(message(offset))
        listeners.end_work()

    listeners = Listeners("G", listener, threads=1, timeout_s=600)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(work(1))
        closes = tasks.create_task(work(0))
        await left.wait()
        await asyncio.sleep(0)
        assert not closes.done()
        go_on.set()
    listeners.close()
