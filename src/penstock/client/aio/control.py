"""What brokers ask of a push consumer on behalf of the admin tools: resets, positions, a look inside, one message."""

from __future__ import annotations

import time

from penstock.client.aio.listening import Listeners
from penstock.client.aio.logconsumer import LogConsumer
from penstock.client.aio.membership import Membership
from penstock.client.routes import Json
from penstock.client.subscriptions import mq_table, read_offsets
from penstock.errors import WireError
from penstock.version import __version__
from penstock.wire.codes import ResponseCode
from penstock.wire.fastjson import dumps, loads
from penstock.wire.record import decode_record
from penstock.wire.remoting import RemotingCommand


class Control:
    """The answers of one push consumer."""

    def __init__(self, logs: LogConsumer, group: Membership, listeners: Listeners) -> None:
        self._logs = logs
        self._group = group
        self._listeners = listeners
        self._started_ms = time.time_ns() // 1_000_000

    async def reset_offsets(self, command: RemotingCommand) -> RemotingCommand:
        """220: go on at these offsets."""
        topic = command.ext.get("topic", "")
        offsets = {queue: offset for queue, offset in read_offsets(loads(command.body)) if queue.topic == topic}
        await self._logs.move(offsets)
        self._group.rebalance_soon()
        return command.reply()

    async def status(self, command: RemotingCommand) -> RemotingCommand:
        """221: how far each queue is."""
        topic = command.ext.get("topic")
        offsets = {
            queue: assigned.window.committed
            for queue, assigned in self._logs.assigned.items()
            if topic in (None, queue.topic)
        }
        return command.reply(body=dumps({"messageQueueTable": mq_table(offsets)}))

    async def running_info(self, command: RemotingCommand) -> RemotingCommand:
        """307: subscriptions, queues, and what is in hand."""
        info: Json = {
            "jstack": "",
            "mqTable": mq_table(
                {
                    queue: {
                        "cachedMsgCount": len(assigned.window),
                        "cachedMsgMaxOffset": assigned.window.next_offset,
                        "cachedMsgMinOffset": assigned.window.committed,
                        "cachedMsgSizeInMiB": assigned.window.bytes_ >> 20,
                        "commitOffset": assigned.window.committed,
                        "droped": assigned.dropped,
                        "lastConsumeTimestamp": int(assigned.consumed_s * 1000),
                        "lastLockTimestamp": int(assigned.locked_s * 1000),
                        "lastPullTimestamp": int(assigned.pulled_s * 1000),
                        "locked": self._logs.orderly,
                        "transactionMsgCount": 0,
                        "transactionMsgMaxOffset": 0,
                        "transactionMsgMinOffset": 0,
                        "tryUnlockTimes": 0,
                    }
                    for queue, assigned in self._logs.assigned.items()
                }
            ),
            "properties": {
                "PROP_CLIENT_VERSION": f"penstock {__version__}",
                "PROP_CONSUMEORDERLY": str(self._logs.orderly).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(self._started_ms),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_NAMESERVER_ADDR": "",
                "PROP_THREADPOOL_CORE_SIZE": "0",
            },
            "statusTable": {},
            "subscriptionSet": [subscription.as_json() for subscription in self._group.subscriptions.values()],
        }
        return command.reply(body=dumps(info))

    async def consume_directly(self, command: RemotingCommand) -> RemotingCommand:
        """309: hand this one message to the listener, now, and say what came of it."""
        message = decode_record(command.body, broker=command.ext.get("brokerName", ""))
        if message is None:
            raise WireError("the body is no record")
        if not self._listeners.take(message.topic):
            return command.reply(ResponseCode.SYSTEM_ERROR, remark="this consumer has no listener")
        began_s = time.monotonic()
        self._listeners.begin_work()
        try:
            give_back = await self._listeners.call(message)
        finally:
            self._listeners.end_work()
        result = {
            "autoCommit": True,
            "consumeResult": "CR_SUCCESS" if give_back is None else "CR_LATER",
            "order": self._logs.orderly,
            "spentTimeMills": int((time.monotonic() - began_s) * 1000),
        }
        return command.reply(body=dumps(result))
