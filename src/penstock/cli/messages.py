"""`penstock message`: messages of log topics, found by id or key, and where they went."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime

import click

from penstock.cli.names import demand_log_topic
from penstock.cli.tools import Whole, looking, print_rows, printable, with_json, with_registry
from penstock.errors import PenstockError
from penstock.message import ReceivedMessage
from penstock.wire.traces import Trace

STORED_MAX = 20  # messages with one key whose store time is looked up


def row_of(message: ReceivedMessage) -> dict[str, object]:
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


def _print(messages: Iterable[ReceivedMessage], as_json: bool) -> None:
    """Rows; for people without what would do something to a terminal."""
    rows = [row_of(message) for message in messages]
    if not as_json:
        rows = [
            {name: printable(value) if isinstance(value, str) else value for name, value in r.items()} for r in rows
        ]
    print_rows(rows, as_json)


@click.group(cls=Whole)
def message() -> None:
    """Find messages."""


@message.command("get")
@with_registry
@with_json
@click.argument("msg_id")
@click.option("-t", "--topic", "topic", help="Where to look; without it in every topic.")
def message_get(registry: str, as_json: bool, msg_id: str, topic: str | None) -> None:
    """One message by id."""
    with looking(registry) as admin:
        try:
            found = admin.message(msg_id, topic)
        except ValueError as error:
            raise click.BadParameter(
                f"{error}: `peek`, `tail --json` and `message find` show ids", param_hint="MSG_ID"
            ) from None
        _print([found], as_json)


@message.command("find")
@with_registry
@with_json
@click.argument("topic")
@click.argument("key")
def message_find(registry: str, as_json: bool, topic: str, key: str) -> None:
    """The messages with a key."""
    with looking(registry) as admin:
        demand_log_topic(admin, topic, "keys", f"`penstock peek {topic}` shows its messages.")
        _print(admin.query_by_key(topic, key), as_json)


@message.command("trace")
@with_registry
@with_json
@click.argument("msg_id")
def message_trace(registry: str, as_json: bool, msg_id: str) -> None:
    """Where a message went: by its id, or a key of it. Stored, as its broker knows; sent, received and done as clients that
    trace, and brokers for topics with --trace, have told.
    """
    with looking(registry) as admin:
        steps = [_step(trace) for trace in admin.traces(msg_id)]
        topics = {str(step["msgId"]): str(step["topic"]) for step in sorted(steps, key=lambda one: bool(one["topic"]))}
        for id_, topic in list(topics.items())[:STORED_MAX]:
            if topic or len(topics) == 1:  # without its topic it is looked for in all there are
                with suppress(PenstockError, ValueError):  # it is gone, or somebody else's
                    steps.append(_stored(admin.message(id_, topic or None), id_))
        print_rows(sorted(steps, key=lambda step: str(step["time"])), as_json)


def _stored(message: ReceivedMessage, id_: str) -> dict[str, object]:
    return {
        "time": message.stored_at.isoformat(timespec="milliseconds"), "what": "stored", "group": "", "topic": message.topic,
        "ms": "", "retries": "", "host": f"{message.broker or ''} {message.queue_id}/{message.queue_offset}".strip(),
        "msgId": id_, "keys": " ".join(message.keys),
    }  # fmt: skip


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
