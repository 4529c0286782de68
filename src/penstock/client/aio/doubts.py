"""Whether a broker that owes answers is the master still: a machine that is cut off closes no connection, it says nothing."""

from __future__ import annotations

import asyncio
import logging

from penstock.client.aio.cluster import Cluster
from penstock.client.routes import MessageQueue
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.client")

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
    connection is closed, and whoever waited there has ConnectionLost.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._owing: dict[str, Owing] = {}
        self._looks = False

    async def call(
        self, queue: MessageQueue, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """The answer of a queue's master, whatever its code."""
        owing = self._owing.get(address)
        if owing is None:
            owing = self._owing[address] = Owing()
        owing.begin(queue)
        if not self._looks:
            self._looks = True
            self._cluster.spawn(self._look())
        try:
            answer = await self._cluster.call(address, command, timeout_s)
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
                        await self._ask(address, owing.queue)
                    elif not owing.waiting:
                        del self._owing[address]
        finally:
            self._looks = False

    async def _ask(self, address: str, queue: MessageQueue) -> None:
        await self._cluster.refresh(queue.topic)
        route = self._cluster.routes.get(queue.topic)
        now = None if route is None else route.address(queue.broker)
        if now not in (None, address):
            log.warning("%s says nothing, and %s has its place as the master of %s", address, now, queue.broker)
            self._cluster.part(address)
