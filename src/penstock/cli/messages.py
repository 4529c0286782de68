"""`penstock message | tail`: messages of log topics, found or read as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime

import click

import penstock
from penstock.cli.tools import position, print_rows, with_json, with_registry
from penstock.client.routes import MessageQueue
from penstock.message import ReceivedMessage
from penstock.wire.traces import Trace


def _row(message: ReceivedMessage) -> dict[str, object]:
    return {
        "topic": message.topic,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "stored": message.stored_at.isoformat(timespec="milliseconds"),
        "tags": message.tags or "",
        "keys": " ".join(message.keys),
        "msgId": message.msg_id,
        "body": message.body.decode("utf-8", "backslashreplace"),
    }


@click.group()
def message() -> None:
    """Find messages."""


@message.command("get")
@with_registry
@with_json
@click.argument("msg_id")
@click.option("-t", "--topic", "topic", help="Where to look; without it in every topic.")
def message_get(registry: str, as_json: bool, msg_id: str, topic: str | None) -> None:
    """One message by id."""
    with penstock.Admin(registry) as admin:
        print_rows([_row(admin.message(msg_id, topic))], as_json)


@message.command("find")
@with_registry
@with_json
@click.argument("topic")
@click.argument("key")
def message_find(registry: str, as_json: bool, topic: str, key: str) -> None:
    """The messages with a key."""
    with penstock.Admin(registry) as admin:
        print_rows((_row(found) for found in admin.query_by_key(topic, key)), as_json)


@message.command("trace")
@with_registry
@with_json
@click.argument("msg_id")
def message_trace(registry: str, as_json: bool, msg_id: str) -> None:
    """Where a message went, as clients that trace have told: by its id, or a key of it."""
    with penstock.Admin(registry) as admin:
        print_rows((_step(trace) for trace in admin.traces(msg_id)), as_json)


def _step(trace: Trace) -> dict[str, object]:
    what = {"Pub": "sent", "SubBefore": "received", "SubAfter": "done"}.get(trace.what, trace.state.lower())
    return {
        "time": datetime.fromtimestamp(trace.time_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "what": what if trace.success else {"sent": "not sent", "done": "failed"}.get(what, what),
        "group": trace.group,
        "topic": trace.topic,
        "ms": trace.cost_ms if trace.what in ("Pub", "SubAfter") else "",
        "retries": trace.retry_times if trace.what == "SubBefore" else "",
        "host": trace.host,
        "msgId": trace.msg_id,
        "keys": trace.keys,
    }


@click.command()
@with_registry
@with_json
@click.argument("topic")
@click.option(
    "--where", metavar="EXPR", help="Only messages for whose properties this is true: price > 9 AND city <> 'Rome'."
)
@click.option("--tags", default="*", metavar="A||B", help="Only messages with one of these tags.")
@click.option(
    "--from", "start", default="last", show_default=True, help="first, last, or a moment: 2026-11-20T10:00:00+00:00."
)
@click.option("-l", "--limit", type=click.IntRange(1), help="Stop after so many.")
@click.option("--follow/--no-follow", default=True, help="Wait for what comes, or stop where the topic ends now.")
def tail(
    registry: str, as_json: bool, topic: str, where: str | None, tags: str, start: str, limit: int | None, follow: bool
) -> None:
    """The messages of a log topic as they come, without a group: a line each, until Ctrl-C."""
    goal = position(start, "--from")
    with suppress(KeyboardInterrupt), penstock.PullConsumer(registry) as consumer:  # it may come at any moment
        consumer.assign(topic, tags=tags, where=where, start=goal)
        for count, found in enumerate(_coming(consumer, follow), 1):
            click.echo(json.dumps(_row(found), ensure_ascii=False) if as_json else _line(found))
            if count == limit:
                return


def _coming(consumer: penstock.PullConsumer, follow: bool) -> Iterator[ReceivedMessage]:
    """What is read, by store time as far as it came together; without `follow` up to where the queues end now."""
    ends = {} if follow else {queue: consumer.offsets(queue)[1] for queue in consumer.assignment}
    while True:
        _leave(consumer, ends)
        if not consumer.assignment:
            return
        batch = consumer.getmany(0.2 if ends else 1.0)
        rows = [m for queue, messages in batch.items() for m in messages if m.queue_offset < _end(ends, queue)]
        yield from sorted(rows, key=lambda found: (found.store_ms, found.queue_id, found.queue_offset))


def _end(ends: dict[MessageQueue, int], queue: MessageQueue) -> int:
    return ends.get(queue, 1 << 63)


def _leave(consumer: penstock.PullConsumer, ends: dict[MessageQueue, int]) -> None:
    """Read no longer what has come to its end."""
    done = [queue for queue, end in ends.items() if queue in consumer.assignment and consumer.position(queue) >= end]
    if done:
        consumer.unassign(*done)


def _line(message: ReceivedMessage) -> str:
    row = _row(message)
    about = [str(row[name]) for name in ("tags", "keys") if row[name]]
    return "  ".join([f"{row['stored']} {row['queue']}/{row['offset']}", *about, str(row["body"])])
