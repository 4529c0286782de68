"""Whether a broker that owes answers is the master still: a machine that is cut off closes no connection, it says nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TypeVar

from penstock.client.aio.cluster import Cluster
from penstock.client.aio.nsqsending import QueueSender
from penstock.client.routes import MessageQueue

log = logging.getLogger("penstock.client")

T = TypeVar("T")

DOUBT_S = 1.5  # an address that owes answers, and gave none for so long, is asked about


class Owing:
    """What one address owes."""

    def __init__(self) -> None:
        self.queue: MessageQueue | None = None  # of the last request
        self.waiting = 0
        self._heard = True

    def begin(self, queue: MessageQueue) -> None:
        """One answer more."""
        self.queue = queue
        self.waiting += 1

    def hear(self) -> None:
        """There was one."""
        self._heard = True

    def end(self) -> None:
        """One less, whether it came or not."""
        self.waiting -= 1

    def is_silent(self) -> bool:
        """Whether it owes something, and gave nothing since this was asked last."""
        silent = self.waiting > 0 and not self._heard
        self._heard = False
        return silent


class Doubts:
    """Calls of brokers' masters. While one says nothing, the registry is asked whether another node has its place: then its
    connection is closed, and whoever waited there, or for there to be one, has ConnectionLost.
    """

    def __init__(self, cluster: Cluster, sender: QueueSender) -> None:
        self._cluster, self._sender = cluster, sender
        self._owing: dict[str, Owing] = {}
        self._looks = False

    async def watch(self, queue: MessageQueue, address: str, call: Coroutine[object, None, T]) -> T:
        """The result of a call to a queue's master."""
        owing = self._owing.get(address)
        if owing is None:
            owing = self._owing[address] = Owing()
        owing.begin(queue)
        if not self._looks:
            self._looks = True
            self._cluster.spawn(self._look())
        try:
            answer = await call
            owing.hear()
            return answer
        finally:
            owing.end()

    async def _look(self) -> None:
        """While anything is owed."""
        try:
            while self._owing:
                await asyncio.sleep(DOUBT_S)
                for address, owing in list(self._owing.items()):
                    if owing.is_silent():
                        assert owing.queue is not None
                        if await self.is_replaced(owing.queue, address):
                            self._cluster.part(address)
                            self._sender.part(address)
                    elif not owing.waiting:
                        del self._owing[address]
        finally:
            self._looks = False

    async def is_replaced(self, queue: MessageQueue, address: str) -> bool:
        """Whether the registry says that what is sent to a queue goes to another address."""
        if self._other(queue, address) is None:
            await self._cluster.refresh(queue.topic)
            now = self._other(queue, address)
            if now is None:
                return False
            log.warning("%s says nothing, and what is sent to %s goes to %s now", address, queue.broker, now)
        return True

    def _other(self, queue: MessageQueue, address: str) -> str | None:
        """Where a queue is sent to as far as is known, unless that is this address."""
        route = self._cluster.routes.get(queue.topic)
        now = None if route is None else route.publish_address(queue.broker)
        return None if now == address else now
