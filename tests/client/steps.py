"""Steps that several tests of the client take."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

from penstock.aio import Producer
from penstock.message import Message


async def until(condition: Callable[[], Any], timeout_s: float = 15.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


async def send(registry: str, topic: str, *bodies: bytes, **more: Any) -> None:
    async with Producer(registry) as producer:
        for body in bodies:
            await producer.send(Message(topic, body, **more))


def numbered(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % i for i in range(start, start + count)]
