"""Pulling queues for a push consumer: one loop per queue, held at the broker until something comes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

from penstock.client import requests
from penstock.client.aio.assigned import Assigned
from penstock.client.aio.cluster import Cluster
from penstock.client.aio.consumersettings import ConsumerSettings
from penstock.client.conversation import number
from penstock.client.received import cut_records
from penstock.errors import BrokerRefused, ClientError, WireError
from penstock.message import ReceivedMessage
from penstock.wire.codes import MASTER_ID, ResponseCode

log = logging.getLogger("penstock.client")

HOLD_MS = 15_000
TIMEOUT_S = 30.0
ERROR_WAIT_S = 1.0
ERROR_WAIT_MAX_S = 5.0
FORGOTTEN_WAIT_S = 0.1
SPAN_MAX = 2_000  # offsets between the oldest unsettled message and the next pull, beyond a full window
BYTES_MAX = 1 << 20
COUNT_MIN, COUNT_MAX = 256, 1_024  # a pull asks for what the window has room for, within these
RESULTS = (
    ResponseCode.SUCCESS,
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)

HandOut = Callable[[Assigned, list[ReceivedMessage], int], None]


class Puller:
    """Pulls for one member of a group and hands out what it wants: (queue, messages, next offset)."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, hand_out: HandOut) -> None:
        self._cluster = cluster
        self._group = settings.group
        self._hand_out = hand_out
        self._count_max = settings.window_count
        self._bytes_max = settings.window_bytes
        self._orderly = settings.orderly

    async def run(self, assigned: Assigned) -> None:
        """Pull a queue, with hold, as long as its window has room and it is not dropped."""
        pause_s, outages, broker = ERROR_WAIT_S, self._cluster.outages, f"broker {assigned.queue.broker}"
        while not assigned.dropped:
            window = assigned.window
            assigned.room.clear()
            if (
                len(window) >= self._count_max
                or window.bytes_ >= self._bytes_max
                or (window.span > SPAN_MAX + self._count_max and not self._orderly)
            ):
                await assigned.room.wait()
                continue
            try:
                await self._once(assigned)
                pause_s = ERROR_WAIT_S
                outages.answered(broker)
            except BrokerRefused as error:
                if error.code in (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST):
                    log.info("group %s pulls %s: %s", self._group, assigned.queue, error)
                    await self._cluster.send_heartbeats()  # the broker forgot us, or heard an older member since
                    await asyncio.sleep(FORGOTTEN_WAIT_S)
                    continue
                outages.failed(f"{assigned.queue}", f"group {self._group} pulls", error)
                pause_s = await _pause(pause_s)
            except (ClientError, WireError) as error:
                outages.failed(broker, f"group {self._group} pulls {assigned.queue}", error)
                assigned.pull_next_from(MASTER_ID)
                pause_s = await _pause(pause_s)
                await self._cluster.refresh(assigned.queue.topic)
            except Exception:  # whatever it is, nobody else would go on with this queue
                log.exception("group %s pulls %s, tried again", self._group, assigned.queue)
                pause_s = await _pause(pause_s)

    async def _once(self, assigned: Assigned) -> None:
        loop = asyncio.get_running_loop()
        queue, window = assigned.queue, assigned.window
        asked_s = assigned.pulls_now()
        request = requests.Pull(
            self._group,
            queue,
            window.next_offset,
            max_count=min(max(COUNT_MIN, self._count_max - len(window)), COUNT_MAX),
            max_bytes=BYTES_MAX,
            expression=None,
            kind=assigned.subscription.kind,
            version=assigned.subscription.version,
            hold_ms=HOLD_MS,
        ).command()
        address = await self._cluster.address(queue, assigned.broker_id)
        answer = await self._cluster.ask(address, request, RESULTS, TIMEOUT_S)
        if assigned.dropped:
            return
        suggested = "suggestWhichBrokerId" in answer.ext
        assigned.pull_next_from(number(answer, "suggestWhichBrokerId") if suggested else MASTER_ID)
        next_offset = number(answer, "nextBeginOffset")
        if answer.code == ResponseCode.SUCCESS:
            found = cut_records(answer.body, queue.broker, window.next_offset, assigned.subscription.tags)
            self._hand_out(assigned, self._readable(assigned, found), next_offset)
        elif answer.code == ResponseCode.PULL_OFFSET_MOVED:
            log.warning(
                "group %s: %s has no offset %d, goes on at %d", self._group, queue, window.next_offset, next_offset
            )
            window.go_on_at(next_offset)
        else:
            window.go_on_at(max(window.next_offset, next_offset))
            if answer.code == ResponseCode.PULL_NOT_FOUND and loop.time() - asked_s < 0.05:
                await asyncio.sleep(0.1)  # a broker that does not hold pulls

    def _readable(self, assigned: Assigned, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """Those whose bodies could be decompressed; the others are named in the log."""
        for message in messages:
            if message.undecodable is not None:
                where = (message.topic, assigned.queue.queue_id, message.queue_offset)
                log.error("message at %s is given up: its body is %s", where, message.undecodable)
        return [message for message in messages if message.undecodable is None]


async def _pause(pause_s: float) -> float:
    """Wait, a little less or more than the others do; how long to wait the next time."""
    await asyncio.sleep(pause_s * random.uniform(0.7, 1.0))
    return min(2 * pause_s, ERROR_WAIT_MAX_S)
