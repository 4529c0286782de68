"""Queue locks: an orderly consumer reads a queue only while its broker keeps it for this client."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from penstock.client.aio.assigned import Assigned
from penstock.client.aio.cluster import Cluster
from penstock.client.routes import MessageQueue
from penstock.errors import ClientError, WireError
from penstock.wire.codes import RequestCode
from penstock.wire.fastjson import dumps, loads
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.client")

RENEW_S = 20.0
LIFE_S = 30.0  # the broker keeps a lock for 60 s; we trust it for half of that
AGAIN_S = 1.0


class MemberLocks:
    """The locks of one member of a group."""

    def __init__(self, cluster: Cluster, group: str) -> None:
        self._cluster = cluster
        self._group = group

    async def lock(self, queues: Iterable[MessageQueue]) -> dict[MessageQueue, float]:
        """Lock queues, or renew; those that are ours now, and since when by the loop's clock: the broker counts from when it was
        asked, however late its answer is heard. A broker that does not answer grants none of its own.
        """
        return await self._ask(RequestCode.LOCK_BATCH_MQ, queues)

    async def unlock(self, queue: MessageQueue) -> None:
        """Let another member have it."""
        await self._ask(RequestCode.UNLOCK_BATCH_MQ, [queue])

    async def _ask(self, code: int, queues: Iterable[MessageQueue]) -> dict[MessageQueue, float]:
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            by_broker.setdefault(queue.broker, []).append(queue)
        held: dict[MessageQueue, float] = {}
        asked = (self._ask_one(code, broker, some) for broker, some in by_broker.items())
        for granted in await asyncio.gather(*asked):  # side by side, for one may say nothing
            held.update(granted)
        return held

    async def _ask_one(self, code: int, broker: str, some: list[MessageQueue]) -> dict[MessageQueue, float]:
        body = {
            "clientId": self._cluster.client_id,
            "consumerGroup": self._group,
            "mqSet": [queue.as_json() for queue in some],
        }
        asked_s = asyncio.get_running_loop().time()
        try:
            answer = await self._cluster.ask_queue(some[0], RemotingCommand(code, body=dumps(body)))
        except (ClientError, WireError) as error:
            self._cluster.outages.failed(f"the queue locks of {broker}", f"group {self._group}", error)
            return {}
        self._cluster.outages.answered(f"the queue locks of {broker}")
        if not answer.body:
            return {}
        return dict.fromkeys(map(MessageQueue.from_json, loads(answer.body).get("lockOKMQSet") or ()), asked_s)

    async def keep(self, assigned: dict[MessageQueue, Assigned]) -> None:
        """Renew all locks every 20 s, until cancelled."""
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                held = await self.lock(list(assigned))
            except Exception:  # whatever it is, they run out unless somebody renews them
                log.exception("group %s renews its locks, tried again", self._group)
                continue
            for queue in held.keys() & assigned.keys():
                assigned[queue].lock_since(held[queue])

    async def wait(self, assigned: Assigned) -> None:
        """Return when the queue is surely ours, or dropped."""
        loop = asyncio.get_running_loop()
        while not assigned.dropped and loop.time() - assigned.locked_s > LIFE_S:
            held = await self.lock([assigned.queue])
            if assigned.queue in held:
                assigned.lock_since(held[assigned.queue])
            else:
                await asyncio.sleep(AGAIN_S)

    def surely_until_s(self, assigned: Assigned) -> float:
        """Until when, by the loop's clock, the queue is surely ours."""
        return assigned.locked_s + LIFE_S
