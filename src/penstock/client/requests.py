"""The requests that more than one client sends, built in one place; each becomes one remoting command."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.client.routes import MessageQueue
from penstock.wire.codes import PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode
from penstock.wire.remoting import RemotingCommand


def _of_queue(queue: MessageQueue, **more: str) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id), **more}


def route(topic: str, kind: str = "") -> RemotingCommand:
    """Where a topic lives; answered with 17 when no broker serves it.

    `kind`, Penstock's own: "any" asks for queue topics too, "queue" also for where a new one may be made.
    """
    return RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic} | ({"kind": kind} if kind else {}))


def max_offset(queue: MessageQueue, *, durable: bool = False) -> RemotingCommand:
    """The queue offset that the next message gets; with `durable`, the end of what is flushed."""
    return RemotingCommand(RequestCode.GET_MAX_OFFSET, _of_queue(queue, **({"durable": "true"} if durable else {})))


def min_offset(queue: MessageQueue) -> RemotingCommand:
    """The queue offset of the oldest message still stored."""
    return RemotingCommand(RequestCode.GET_MIN_OFFSET, _of_queue(queue))


def offset_at(queue: MessageQueue, timestamp_ms: int, *, lower: bool = False) -> RemotingCommand:
    """The queue offset at a store time: RocketMQ's nearest message, or with `lower` the first one not before it."""
    more = {"boundaryType": "LOWER"} if lower else {}
    return RemotingCommand(
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, _of_queue(queue, timestamp=str(timestamp_ms), **more)
    )


def committed(group: str, queue: MessageQueue) -> RemotingCommand:
    """The group's committed offset; answered with 22 when there is none."""
    return RemotingCommand(
        RequestCode.QUERY_CONSUMER_OFFSET, _of_queue(queue, consumerGroup=group, setZeroIfNotFound="false")
    )


def commit(group: str, queue: MessageQueue, offset: int) -> RemotingCommand:
    """Set the group's committed offset."""
    return RemotingCommand(
        RequestCode.UPDATE_CONSUMER_OFFSET, _of_queue(queue, consumerGroup=group, commitOffset=str(offset))
    )


@dataclass(frozen=True)
class Pull:
    """A request for messages of a queue from an offset on. `expression` None: the subscription of the group's heartbeat.

    `hold_ms` is how long the broker may wait for the first message; `max_bytes` and `durable` are Penstock's own.
    """

    group: str
    queue: MessageQueue
    offset: int
    max_count: int = 32
    max_bytes: int | None = None
    expression: str | None = "*"
    kind: str = "TAG"
    version: int = 0
    hold_ms: int = 0
    durable: bool = False

    def command(self) -> RemotingCommand:
        """As a command."""
        flag = (PULL_SUBSCRIPTION if self.expression is not None else 0) | (PULL_SUSPEND if self.hold_ms else 0)
        ext = {
            "consumerGroup": self.group,
            "topic": self.queue.topic,
            "queueId": str(self.queue.queue_id),
            "queueOffset": str(self.offset),
            "maxMsgNums": str(self.max_count),
            "sysFlag": str(flag),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(self.hold_ms),
            "subVersion": str(self.version),
            "expressionType": self.kind,
        }
        if self.expression is not None:
            ext["subscription"] = self.expression
        if self.max_bytes is not None:
            ext["maxBytes"] = str(self.max_bytes)
        if self.durable:
            ext["durable"] = "true"
        return RemotingCommand(RequestCode.PULL_MESSAGE, ext)
