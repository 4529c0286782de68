"""Where a group's committed offsets are kept: at the brokers for a cluster group, in a file for a broadcast one."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Protocol

from penstock.client import requests
from penstock.client.aio.cluster import Cluster
from penstock.client.conversation import OK, number
from penstock.client.routes import MessageQueue
from penstock.disk.files import Files
from penstock.disk.tables import load, save
from penstock.errors import StoreError
from penstock.wire.codes import ResponseCode

log = logging.getLogger("penstock.client")


class Offsets(Protocol):
    """The committed offsets of one group."""

    async def open(self) -> None:
        """Before the first use."""

    async def get(self, queue: MessageQueue) -> int | None:
        """The committed offset, None when there is none."""

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Set it."""

    def had(self, topic: str, broker: str) -> bool:
        """Whether some queue of the topic there was read before this start, as far as is known here."""


class BrokerOffsets:
    """Kept by the broker of each queue."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group

    async def open(self) -> None:
        """Nothing to do."""

    async def get(self, queue: MessageQueue) -> int | None:
        request = requests.committed(self._group, queue)
        answer = await self._cluster.ask_queue(queue, request, (*OK, ResponseCode.QUERY_NOT_FOUND))
        return number(answer, "offset") if answer.code == ResponseCode.SUCCESS else None

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        await self._cluster.ask_queue(queue, requests.commit(self._group, queue, offset))

    def had(self, topic: str, broker: str) -> bool:
        return False  # the broker itself says where to begin in a young queue


class FileOffsets:
    """Kept in a file of this machine: ``{"offsetTable": {"topic@broker@queue id": offset}}``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offsets: dict[str, int] = {}
        self._saved: dict[str, int] = {}
        self._had: set[str] = set()
        self._lock = asyncio.Lock()

    async def open(self) -> None:
        table = await asyncio.to_thread(load, Files(), self._path)
        self._offsets = {str(key): int(offset) for key, offset in ((table or {}).get("offsetTable") or {}).items()}
        self._had = {key.rpartition("@")[0] for key in self._offsets}

    def had(self, topic: str, broker: str) -> bool:
        return f"{topic}@{broker}" in self._had

    async def get(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(_key(queue))

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        self._offsets[_key(queue)] = offset
        async with self._lock:  # one write at a time; it carries whatever came meanwhile
            if self._saved == self._offsets:
                return
            now = dict(self._offsets)
            try:
                await asyncio.to_thread(save, Files(), self._path, {"offsetTable": now})
                self._saved = now
            except StoreError as error:
                log.error("offsets not kept in %s: %s", self._path, error)


def _key(queue: MessageQueue) -> str:
    return f"{queue.topic}@{queue.broker}@{queue.queue_id}"
