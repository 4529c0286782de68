"""The requests that more than one client sends, built in one place; each becomes one remoting command."""

from __future__ import annotations

from penstock.client.routes import MessageQueue
from penstock.wire.codes import PULL_COMMIT_OFFSET, PULL_SUBSCRIPTION, PULL_SUSPEND, RequestCode
from penstock.wire.remoting import RemotingCommand


def _of_queue(queue: MessageQueue, **more: str) -> dict[str, str]:
    return {"topic": queue.topic, "queueId": str(queue.queue_id), **more}


def route(topic: str, kind: str = "") -> RemotingCommand:
    """Where a topic lives; answered with 17 when nobody serves it.

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


def pull(
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    max_count: int = 32,
    max_bytes: int | None = None,
    tags: str | None = "*",
    kind: str = "TAG",
    version: int = 0,
    hold_ms: int = 0,
    commit_offset: int | None = None,
    durable: bool = False,
) -> RemotingCommand:
    """Messages of a queue from an offset on. `tags` None means the subscription of the group's heartbeat.

    `hold_ms` is how long the broker may wait for the first message; `max_bytes` and `durable` are Penstock's own.
    """
    flag = PULL_SUBSCRIPTION if tags is not None else 0
    if hold_ms:
        flag |= PULL_SUSPEND
    if commit_offset is not None:
        flag |= PULL_COMMIT_OFFSET
    ext = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": str(queue.queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": str(max_count),
        "sysFlag": str(flag),
        "commitOffset": str(commit_offset or 0),
        "suspendTimeoutMillis": str(hold_ms),
        "subVersion": str(version),
        "expressionType": kind,
    }
    if tags is not None:
        ext["subscription"] = tags
    if max_bytes is not None:
        ext["maxBytes"] = str(max_bytes)
    if durable:
        ext["durable"] = "true"
    return RemotingCommand(RequestCode.PULL_MESSAGE, ext)
