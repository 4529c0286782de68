"""A registry and broker in one: it answers each request by a function of the test, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from client.steps import peer
from penstock.client.aio.cluster import Cluster
from penstock.client.aio.consumersettings import ConsumerSettings
from penstock.client.rebalance import average
from penstock.client.routes import MessageQueue
from penstock.message import ReceivedMessage
from penstock.wire.codes import RequestCode
from penstock.wire.fastjson import dumps
from penstock.wire.remoting import RemotingCommand, encode

QUEUE = MessageQueue("T", "a", 0)
Reply = Callable[[RemotingCommand], RemotingCommand]


class Scripted:
    """`asked` are the requests that are not about routes; `replies` what is answered, by code (else: done)."""

    def __init__(self) -> None:
        self.asked: list[RemotingCommand] = []
        self.replies: dict[int, Reply] = {}
        self.route: object = None  # the answer for any topic; None: two queues of a broker `a`, which is this one
        self.cluster: Cluster

    def codes(self) -> list[int]:
        return [command.code for command in self.asked]

    async def answer(self, command: RemotingCommand, writer: asyncio.StreamWriter) -> None:
        host, port = writer.get_extra_info("sockname")
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            queue = {"brokerName": "a", "perm": 6, "readQueueNums": 2, "topicSysFlag": 0, "writeQueueNums": 2}
            broker = {"brokerAddrs": {"0": f"{host}:{port}"}, "brokerName": "a", "cluster": "C"}
            route = {"brokerDatas": [broker], "queueDatas": [queue], "filterServerTable": {}}
            reply = command.reply(body=dumps(self.route or route))
        elif command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            table = {"a": {"brokerName": "a", "brokerAddrs": {"0": f"{host}:{port}"}}}
            reply = command.reply(body=dumps({"brokerAddrTable": table, "clusterAddrTable": {"C": ["a"]}}))
        else:
            self.asked.append(command)
            reply = self.replies.get(command.code, RemotingCommand.reply)(command)
        if not command.oneway:
            writer.write(encode(reply))


@asynccontextmanager
async def scripted() -> AsyncIterator[Scripted]:
    script = Scripted()
    async with peer(script.answer) as address:
        script.cluster = Cluster(address)
        await script.cluster.start()
        try:
            yield script
        finally:
            await script.cluster.close()


def settings(**more: Any) -> ConsumerSettings:
    given: dict[str, Any] = {
        "group": "G", "model": "cluster", "start": "first", "orderly": False, "concurrency": 1, "attempts_max": 16,
        "window_count": 10, "window_bytes": 1 << 20, "in_flight_max": 10, "kind": "log", "allocate": average,
        "offsets_folder": Path(), "timeout_s": 10.0,
    }  # fmt: skip
    return ConsumerSettings(**(given | more))


def message(offset: int = 0, **more: Any) -> ReceivedMessage:
    about: dict[str, Any] = {"store_host": "127.0.0.1:10911", "properties": {"KEYS": "k"}}
    return ReceivedMessage("T", b"m%d" % offset, 0, offset, offset * 100, **(about | more))


def body(command: RemotingCommand) -> Any:
    return json.loads(command.body)


CHANNEL = {
    "channel": "c", "paused": False, "depth": 1, "lagMillis": None, "onDisk": 0, "inFlight": 0, "deferred": 0,
    "messages": 1, "requeued": 0, "timedOut": 0, "rejected": 0, "consumers": 0,
}  # fmt: skip
TOPIC = {
    "topic": "t", "kind": "queue", "level": "os", "paused": False, "depth": 0, "onDisk": 0, "messages": 1, "bytes": 1,
    "channels": [CHANNEL],
}  # fmt: skip
MESSAGE = {
    "topic": "t", "channel": "", "state": "ready", "id": "1", "stored": 5, "attempts": 0, "queue": 1, "offset": 0,
    "tags": "", "keys": ["k"], "properties": {"KEYS": "k"}, "size": 1, "cut": False, "encoding": "text", "body": "b",
}  # fmt: skip
DELAYED = {
    "id": 1, "due": 5, "kind": "log", "topic": "t", "channel": "", "attempts": 0, "msgId": "m", "stored": 1, "keys": [],
    "size": 1, "body": "b",
}  # fmt: skip
CLIENT = {
    "address": "127.0.0.1:5", "protocol": "nsq", "role": "producer", "of": "t", "client": "c", "about": "",
    "inFlight": None,
}  # fmt: skip
