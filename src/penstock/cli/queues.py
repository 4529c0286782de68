"""`penstock channel | delayed`: channels of topics of both kinds, and the messages that wait for their time."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from typing import Literal

import click

import penstock
from penstock.cli.names import check_names
from penstock.cli.tools import (
    Command,
    Whole,
    confirm,
    due_ms,
    looking,
    print_plan,
    print_rows,
    printable,
    time_text,
    with_dry_run,
    with_json,
    with_registry,
)
from penstock.client.routes import Json
from penstock.errors import NotFound

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
# The histogram's last moments, from now on; what is due later is counted together.
EDGES = (
    (0, "late"), (SECOND, "1 s"), (10 * SECOND, "10 s"), (MINUTE, "1 min"), (5 * MINUTE, "5 min"),
    (15 * MINUTE, "15 min"), (HOUR, "1 h"), (6 * HOUR, "6 h"), (DAY, "1 d"), (7 * DAY, "7 d"),
)  # fmt: skip
_LOOKED_AT_MAX = 1_000_000  # delayed messages, for the one that a dry run names
NAMES = [EDGES[0][1], *(f"< {name}" for _, name in EDGES[1:]), f"≥ {EDGES[-1][1]}"]


@click.group(cls=Whole)
def channel() -> None:
    """Look at channels and change them."""


@channel.command("ls")
@with_registry
@with_json
@click.argument("topic", default="")
def channel_ls(registry: str, as_json: bool, topic: str) -> None:
    """The channels, of all topics or of one."""
    with looking(registry) as admin:
        topics = admin.queue_topics(topic)
        if topic and not topics:
            raise NotFound(f"no topic {topic!r} that NSQ clients know", "`penstock topic ls` lists the topics.")
        rows = [{"topic": row["topic"], "broker": row["broker"], **one} for row in topics for one in row["channels"]]
        print_rows(sorted(rows, key=lambda row: (row["topic"], row["channel"], row["broker"])), as_json)


Action = Literal["add", "rm", "pause", "unpause", "empty"]


def _changes(name: Action, about: str, question: str = "") -> Callable[..., None]:
    """A command that does one thing to a channel."""

    def run(
        registry: str, as_json: bool, topic: str, channel_name: str, force: bool = True, dry_run: bool = False
    ) -> None:
        if question and not dry_run:
            confirm(question.format(channel=channel_name, topic=topic), force)
        with penstock.Admin(registry) as admin:
            if dry_run:
                _tell_channel(admin, topic, channel_name, name, as_json)
                return
            brokers = admin.change_queue(topic, name, channel=channel_name)
        if as_json:
            print_rows([{"topic": topic, "channel": channel_name, "broker": b, "done": name} for b in brokers], as_json)

    run.__doc__ = about
    command: Callable[..., None] = run
    command = click.argument("channel_name", metavar="CHANNEL")(command)
    command = click.argument("topic")(command)
    if question:
        command = with_dry_run(click.option("-f", "--force", is_flag=True, help="Do not ask.")(command))
    return channel.command(name)(with_registry(with_json(command)))


def _tell_channel(admin: penstock.Admin, topic: str, channel_name: str, action: Action, as_json: bool) -> None:
    """What a change would take away, at each broker. NotFound."""
    rows = [
        {"topic": topic, "channel": channel_name, "broker": row["broker"]}
        | {name: one[name] for name in ("depth", "inFlight", "deferred", "consumers")}
        for row in admin.queue_topics(topic)
        for one in row["channels"]
        if one["channel"] == channel_name
    ]
    if not rows:
        raise NotFound(f"topic {topic!r} has no channel {channel_name!r}", f"`penstock channel ls {topic}` lists them.")
    print_plan(rows, "delete" if action == "rm" else action, as_json)


channel_add = _changes("add", "Make a channel: it gets what is published from now on.")
channel_rm = _changes("rm", "Delete a channel.", "Delete channel {channel} of {topic} and what it holds?")
channel_pause = _changes("pause", "Deliver nothing more; publishing goes on.")
channel_unpause = _changes("unpause", "Deliver again.")
channel_empty = _changes("empty", "Drop what a channel holds.", "Drop what channel {channel} of {topic} holds?")


@click.group(cls=Whole)
def delayed() -> None:
    """Look at delayed and deferred messages; cancel them, or deliver them now."""


def _selection(command: Command) -> Command:
    for option in (
        click.option("-c", "--channel", default="", help="Only what a channel, or a group, waits for."),
        click.option("-t", "--topic", default="", help="Only of one topic."),
    ):
        command = option(command)
    return command


def _limit(command: Command) -> Command:
    return click.option(
        "-l",
        "--limit",
        type=click.IntRange(1, _LOOKED_AT_MAX),
        default=100,
        show_default=True,
        help="At most so many, the next due.",
    )(command)


def _print(found: list[Json], as_json: bool) -> None:
    """Rows as JSON lines, or with what fits a terminal."""
    if not as_json:
        found = [
            {
                "id": row["id"],
                "due": time_text(row["due"]),
                "kind": row["kind"],
                "topic": row["topic"],
                "channel": row["channel"] or "-",
                "attempts": row["attempts"],
                "size": row["size"],
                "body": printable(row["body"][:40]),
            }
            for row in found
        ]
    print_rows(found, as_json)


@delayed.command("ls")
@with_registry
@with_json
@_selection
@_limit
def delayed_ls(registry: str, as_json: bool, topic: str, channel: str, limit: int) -> None:
    """The delayed messages, by due time."""
    with looking(registry) as admin:
        found = admin.delayed(topic=topic, channel=channel, limit=limit)
        if not found:
            check_names(admin, topic, channel)
        _print(found, as_json)


@delayed.command("find")
@with_registry
@with_json
@_selection
@_limit
@click.argument("text", required=False)
@click.option("--id", "msg_id", help="The message's id or key, exactly.")
def delayed_find(
    registry: str, as_json: bool, topic: str, channel: str, limit: int, text: str | None, msg_id: str | None
) -> None:
    """Those with a text in the body, or with a message id or key."""
    if (text is None) == (msg_id is None):
        raise click.UsageError("give a text, or --id")
    with looking(registry) as admin:
        found = admin.delayed(topic=topic, channel=channel, text=text or "", key=msg_id or "", limit=limit)
        if not found:
            check_names(admin, topic, channel)
        _print(found, as_json)


@delayed.command("histogram")
@with_registry
@with_json
@_selection
def delayed_histogram(registry: str, as_json: bool, topic: str, channel: str) -> None:
    """How many are due in the next second, ten seconds, minute and so on."""
    now_ms = time.time_ns() // 1_000_000
    with looking(registry) as admin:
        counts = admin.delayed_counts([now_ms + edge for edge, _ in EDGES], topic=topic, channel=channel)
        if not any(counts):
            check_names(admin, topic, channel)
        _print_counts(now_ms, counts, as_json)


def _print_counts(now_ms: int, counts: list[int], as_json: bool) -> None:
    if as_json:
        until = [*(now_ms + edge for edge, _ in EDGES), None]
        for moment, count in zip(until, counts, strict=True):
            click.echo(json.dumps({"before": moment, "count": count}))
    elif sys.stdout.isatty():
        click.echo(chart(counts, shutil.get_terminal_size().columns))
    else:
        print_rows(({"due": name, "count": count} for name, count in zip(NAMES, counts, strict=True)), False)


def chart(counts: list[int], width: int) -> str:
    """The histogram in characters."""
    from penstock.charts import Chart, text

    bars = [(name, float(count)) for name, count in zip(NAMES, counts, strict=True)]
    return text(Chart(f"{sum(counts):,} delayed messages", "due in", "messages", bars=bars), width)


@delayed.command("cancel")
@with_registry
@with_json
@with_dry_run
@click.argument("ids", nargs=-1, required=True, metavar="ID …")
def delayed_cancel(registry: str, as_json: bool, dry_run: bool, ids: tuple[str, ...]) -> None:
    """Do not deliver these: ids as `ls` shows them. Exit code 3 when one is not there (any more), 4 when it is not yours."""
    _each(registry, as_json, ids, _look_up if dry_run else penstock.Admin.cancel_delayed, looks=dry_run)


@delayed.command("fire")
@with_registry
@with_json
@with_dry_run
@click.option("--delay", help="Not now: so long from now, such as 10s or 1h30m.")
@click.option("--at", "moment", help="Not now: at this moment, such as 2027-01-01T09:00:00+00:00.")
@click.argument("ids", nargs=-1, required=True, metavar="ID …")
def delayed_fire(
    registry: str, as_json: bool, dry_run: bool, delay: str | None, moment: str | None, ids: tuple[str, ...]
) -> None:
    """Deliver these now, whatever their time, or move them to another one, which gives them another id. Exit code 3 when one is
    not there (any more), 4 when it is not yours.
    """
    at_ms = due_ms(delay, moment)

    def fire(admin: penstock.Admin, id_: str) -> Json:
        return admin.fire_delayed(id_, at_ms=at_ms)

    _each(registry, as_json, ids, _look_up if dry_run else fire, looks=dry_run)


def _look_up(admin: penstock.Admin, id_: str) -> Json:
    """A delayed message as it is. NotFound, or why its broker does not say: no other one has it."""
    broker, slash, number = id_.rpartition("/")
    if not slash or not (number.isascii() and number.isdigit()):
        raise ValueError(f"{id_!r} is not the id of a delayed message, broker/number")
    for row in admin.delayed(limit=_LOOKED_AT_MAX):
        if row["id"] == id_:
            return row
    if broker in admin.missed:
        raise admin.missed[broker]
    raise NotFound(f"no delayed message {id_}", "`penstock delayed ls` lists them.")


def _each(
    registry: str, as_json: bool, ids: tuple[str, ...], change: Callable[[penstock.Admin, str], Json], *, looks: bool
) -> None:
    with penstock.Admin(registry, partial=looks) as admin:
        for id_ in ids:
            try:
                row = change(admin, id_)
            except ValueError as error:
                raise click.BadParameter(str(error), param_hint="ID") from None
            _print([row], as_json)
            if row.get("status", "SEND_OK") != "SEND_OK":
                click.echo(f"{id_}: done, but a crash of its broker now may undo it: {row['status']}", err=True)
