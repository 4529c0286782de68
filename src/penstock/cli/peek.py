"""`penstock peek | channel peek | channel info`: what a topic or channel holds, without taking anything."""

from __future__ import annotations

import re
from base64 import b64decode
from typing import Literal

import click

from penstock.cli.queues import channel
from penstock.cli.tools import Command, looking, position, print_rows, printable, time_text, with_json, with_registry
from penstock.client.routes import Json
from penstock.client.subscriptions import Start
from penstock.errors import NotFound

BODY_SHOWN = 60
COLUMNS = {"in-flight": ("client", "delivered", "due"), "deferred": ("due",), "ready": ()}
State = Literal["ready", "in-flight", "deferred"]


def _selection(command: Command) -> Command:
    for option in (
        click.option("-l", "--limit", type=click.IntRange(1, 1_000), default=10, show_default=True, help="So many."),
        click.option(
            "--state", type=click.Choice(["ready", "in-flight", "deferred"]), default="ready", show_default=True,
            help="Of queue topics and channels.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


@click.command()
@with_registry
@with_json
@_selection
@click.option("-c", "--channel", "channel_name", default="", help="What this channel holds.")
@click.option(
    "--from",
    "start",
    metavar="PLACE",
    help="Of a log topic: first, last or end, an offset, QUEUE/OFFSET, -1h, or a moment: 2026-11-20T10:00:00+00:00.",
)
@click.option("--key", default="", help="Of a log topic: the messages with this key.")
@click.argument("topic")
def peek(
    registry: str, as_json: bool, topic: str, channel_name: str, state: State, start: str | None, key: str, limit: int
) -> None:  # fmt: skip
    """Show messages of a topic of either kind, and change nothing: no attempts, no offsets, no order."""
    queue, begin = _start(start or "first")
    with looking(registry) as admin:
        if start or key:
            if channel_name or state != "ready":
                raise click.UsageError("--from and --key are for a log topic without a channel")
            if any(row["kind"] == "queue" for row in admin.queue_topics(topic)):
                raise click.UsageError(f"{topic} is a queue topic: --from and --key are for log topics")
        rows = admin.browse(topic, channel=channel_name, state=state, start=begin, key=key, queue=queue, limit=limit)
        _print(rows, state, as_json)


@channel.command("peek")
@with_registry
@with_json
@_selection
@click.argument("topic")
@click.argument("name", metavar="CHANNEL")
def channel_peek(registry: str, as_json: bool, topic: str, name: str, state: State, limit: int) -> None:
    """Show messages that a channel holds, and change nothing."""
    with looking(registry) as admin:
        _print(admin.browse(topic, channel=name, state=state, limit=limit), state, as_json)


@channel.command("info")
@with_registry
@with_json
@click.argument("topic")
@click.argument("name", metavar="CHANNEL")
def channel_info(registry: str, as_json: bool, topic: str, name: str) -> None:
    """The figures of one channel, at every broker that has it."""
    with looking(registry) as admin:
        _print_channel(admin.queue_topics(topic) if topic else [], topic, name, as_json)


def _print_channel(topics: list[Json], topic: str, name: str, as_json: bool) -> None:
    """NotFound."""
    if not topics:
        raise NotFound(f"no topic {topic!r} that NSQ clients know", "`penstock topic ls` lists the topics.")
    rows = [
        {"topic": row["topic"], "kind": row["kind"], "level": row["level"], "broker": row["broker"], **one}
        for row in topics
        for one in row["channels"]
        if one["channel"] == name
    ]
    if not rows:
        raise NotFound(f"topic {topic!r} has no channel {name!r}", f"`penstock channel ls {topic}` lists them.")
    if as_json:
        print_rows(rows, as_json)
        return
    for row in rows:
        width = max(map(len, row))
        for title, value in row.items():
            click.echo(f"{title.ljust(width)}  {printable(str(value))}")


def _start(text: str) -> tuple[int | None, Start]:
    """Where to begin in a log topic, and of which queue alone. BadParameter when it says no such place."""
    if text in ("first", "last", "end"):
        return None, "first" if text == "first" else "last"
    if match := re.fullmatch(r"(?:([0-9]{1,9})/)?([0-9]{1,18})", text, re.ASCII):
        return None if match[1] is None else int(match[1]), int(match[2])
    return None, position(text, "--from", "first, last, an offset")


def _print(found: list[Json], state: State, as_json: bool) -> None:
    """JSON lines with all there is, or columns with what fits a terminal."""
    if as_json:
        print_rows(found, True)
        return
    rows = []
    for row in found:
        columns = {"id": printable(row["id"]), "stored": time_text(row["stored"])}
        columns |= {name: row[name] for name in ("queue", "offset") if name in row}
        columns |= {name: _cell(row.get(name)) for name in COLUMNS[state]}
        columns |= {name: row[name] for name in ("attempts", "size")}
        rows.append({"channel": row["channel"] or "-", **columns, "body": _body(row)})
    titles = list(dict.fromkeys(title for row in rows for title in row if title != "body"))
    print_rows([{title: row.get(title, "-") for title in (*titles, "body")} for row in rows], False)


def _cell(value: object) -> str:
    return time_text(value) if isinstance(value, int) else printable(str(value or "-"))


def _body(row: Json) -> str:
    data = b64decode(row["body"]) if row["encoding"] == "base64" else row["body"].encode()
    text = printable(data[: 4 * BODY_SHOWN].decode("utf-8", "backslashreplace"))
    return text[:BODY_SHOWN] + ("…" if len(text) > BODY_SHOWN or row["cut"] else "")
