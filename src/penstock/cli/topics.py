"""`penstock topic`: topics of both kinds, listed, made, changed, emptied, deleted."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import datetime
from typing import Literal

import click

import penstock
from penstock.broker.levels import LEVEL_NAMES, LOG_LEVELS, QUEUE_LEVELS
from penstock.cli.names import demand_log_topic
from penstock.cli.tools import (
    Whole,
    confirm,
    duration_ms,
    looking,
    permission,
    position,
    print_plan,
    print_rows,
    printable,
    size_bytes,
    time_text,
    with_dry_run,
    with_json,
    with_registry,
)
from penstock.client.routes import Json
from penstock.errors import PenstockError

PURGE_TO = "end, an offset"
COUNT_MAX = (1 << 63) - 1


@click.group(cls=Whole)
def topic() -> None:
    """List, create, change and delete topics."""


@topic.command("ls")
@with_registry
@with_json
@click.option("--system", is_flag=True, help="The broker's own topics as well.")
def topic_ls(registry: str, as_json: bool, system: bool) -> None:
    """The topics of the cluster, of both kinds. Depth: what no channel of a queue topic has yet. Replicated: whether slaves have
    its messages; only log topics can be.
    """
    with looking(registry) as admin:
        members = list(admin.cluster_info().brokers.values())
        copied = [any(number > 0 for number in addresses) for addresses in members]
        replicated = "yes" if all(copied) and copied else "in part" if any(copied) else "no"
        rows = [
            {
                "topic": name,
                "kind": "log",
                "level": "",
                "broker": "",
                "depth": "",
                "channels": "",
                "replicated": replicated,
            }
            for name in admin.topics(system=system)
        ]
        rows += [
            {name: row[name] for name in ("topic", "kind", "level", "broker", "depth")}
            | {"channels": len(row["channels"]), "replicated": "no"}
            for row in admin.queue_topics()
            if row["kind"] == "queue"
        ]
        print_rows(sorted(rows, key=lambda row: (row["topic"], row["broker"])), as_json)


@topic.command("info")
@with_registry
@with_json
@click.argument("name")
def topic_info(registry: str, as_json: bool, name: str) -> None:
    """What every message queue of a topic holds."""
    with looking(registry) as admin:
        demand_log_topic(admin, name, "message queues", f"`penstock topic describe {name}` says what it holds.")
        stats = sorted(admin.topic_stats(name).items())
        print_rows(
            (
                {
                    "broker": queue.broker,
                    "queue": queue.queue_id,
                    "first": s.min_offset,
                    "end": s.max_offset,
                    "last_ms": s.last_ms,
                }
                for queue, s in stats
            ),
            as_json,
        )


@topic.command("describe")
@with_registry
@with_json
@click.argument("name")
def topic_describe(registry: str, as_json: bool, name: str) -> None:
    """What a topic of either kind is and holds at each broker, with its channels and groups."""
    with looking(registry) as admin:
        _print_topic(admin.describe_topic(name), as_json)


def _print_topic(found: list[Json], as_json: bool) -> None:
    if as_json:
        print_rows(found, as_json)
        return
    for row in found:
        oldest = "-" if row["oldest"] is None else time_text(row["oldest"])
        figures = {title: value for title, value in row.items() if title not in ("channels", "groups")}
        width = max(map(len, figures))
        for title, value in (figures | {"perm": permission(row["perm"]), "oldest": oldest}).items():
            click.echo(f"{title.ljust(width)}  {'-' if value is None else printable(str(value))}")
        for title in ("channels", "groups"):
            if row[title]:
                click.echo()
                print_rows(row[title], False)


@topic.command("add")
@with_registry
@with_json
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--kind", type=click.Choice(["log", "queue"]), default="log", show_default=True, help="Fixed for good.")
@click.option("--queues", type=click.IntRange(1, 1024), help="Message queues on each broker (log); 8 of a new topic.")
@click.option("--level", type=click.Choice(LEVEL_NAMES), help="Durability; the broker's default without it.")
@click.option("--force", is_flag=True, help="Fewer queues even where the others hold messages.")
def topic_add(
    registry: str, as_json: bool, names: tuple[str, ...], kind: str, queues: int | None, level: str | None, force: bool
) -> None:
    """Create topics on every broker, or change of the log topics of these names what is given."""
    if kind == "queue" and queues is not None:
        raise click.UsageError("a queue topic has no message queues")
    allowed = LOG_LEVELS if kind == "log" else QUEUE_LEVELS
    if level is not None and level not in allowed:
        raise click.UsageError(f"a {kind} topic's level is one of {', '.join(allowed)}")
    with penstock.Admin(registry) as admin:
        if kind == "queue":
            for name in names:
                admin.change_queue(name, "add", level=level)
        else:
            admin.create_topics(names, queues, level=level, force=force)
    if as_json:
        print_rows([{"topic": name, "kind": kind, "done": "add"} for name in names], as_json)


@topic.command("alter")
@with_registry
@with_json
@click.argument("name")
@click.option("--queues", type=click.IntRange(1, 1024), help="Message queues on each broker.")
@click.option("--level", type=click.Choice(LOG_LEVELS), help="Durability of what is sent from now on.")
@click.option("--perm", type=click.Choice(["R", "W", "RW"]), help="Who may: readers, writers, both.")
@click.option(
    "--retention", metavar="TIME", help="How long messages are kept: 7d, 12h; 0: as long as the broker's log."
)
@click.option("--retention-bytes", metavar="SIZE", help="How much is kept at each broker: 500M, 10G; 0: all.")
@click.option(
    "--trace/--no-trace", default=None, help="Write down where each message goes: `penstock message trace ID`."
)
@click.option("--force", is_flag=True, help="Fewer queues even where the others hold messages.")
@click.option("--dry-run", is_flag=True, help="Say what would be changed; change nothing.")
def topic_alter(
    registry: str, as_json: bool, name: str, queues: int | None, level: str | None, perm: str | None,
    retention: str | None, **more: str | bool | None,
) -> None:  # fmt: skip
    """Change what is named of a log topic, on every broker that has it, and nothing else.

    A shorter retention takes messages out of sight, and gives back no disk: the log is shared. A longer one than the broker's
    keeps the whole log from the topic's oldest message on.
    """
    force, dry_run, size = bool(more["force"]), bool(more["dry_run"]), more["retention_bytes"]
    keep_ms = None if retention is None else 0 if retention == "0" else duration_ms(retention, "--retention")
    keep_bytes = None if size is None else size_bytes(str(size), "--retention-bytes")
    for option, text, number in (("--retention", retention, keep_ms), ("--retention-bytes", size, keep_bytes)):
        if (number or 0) > COUNT_MAX:
            raise click.BadParameter(f"{text!r} is more than a broker counts; 0 sets no limit", param_hint=option)
    trace = None if more["trace"] is None else bool(more["trace"])
    if all(one is None for one in (queues, level, perm, keep_ms, keep_bytes, trace)):
        raise click.UsageError(
            "say what to change: --queues, --level, --perm, --retention, --retention-bytes or --trace"
        )
    bits = None if perm is None else sum(bit for letter, bit in (("R", 4), ("W", 2)) if letter in perm)
    with penstock.Admin(registry) as admin:
        found = admin.describe_topic(name)
        if any(row["kind"] == "queue" for row in found):
            raise click.UsageError(f"{name} is a queue topic: its level is fixed, and it has nothing else to change")
        wanted = {"readQueues": queues, "writeQueues": queues, "level": level, "perm": bits}
        wanted |= {"retentionMs": keep_ms, "retentionBytes": keep_bytes, "trace": trace}
        rows = [
            {"topic": name, "broker": row["broker"], "what": what, "from": row[what], "to": value}
            for row in found
            for what, value in wanted.items()
            if value is not None and row[what] != value
        ]
        if not dry_run:
            if any(one is not None for one in (queues, level, perm)):
                admin.create_topic(name, queues, perm=bits, level=level, force=force, new=False)
            if any(one is not None for one in (keep_ms, keep_bytes, trace)):
                admin.keep_topic(name, retention_ms=keep_ms, retention_bytes=keep_bytes, trace=trace)
    for row in rows:
        if row["what"] == "perm" and not as_json:
            row |= {"from": permission(row["from"]), "to": permission(row["to"])}
    print_rows(rows, as_json)


@topic.command("purge")
@with_registry
@with_json
@click.argument("name")
@click.option(
    "--to", "place", default="end", show_default=True, metavar="PLACE",
    help="end: all there are now; an offset: what lies below it; -1h, or a moment: what was stored before it.",
)  # fmt: skip
@click.option("--queue", type=click.IntRange(0), help="Of one message queue alone.")
@click.option("-f", "-y", "--force", "--yes", "force", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be gone; change nothing.")
def topic_purge(
    registry: str, as_json: bool, name: str, place: str, queue: int | None, force: bool, dry_run: bool
) -> None:
    """Take the messages of a topic of either kind below PLACE out of the sight of all its groups and channels, for good.

    Of a log topic the disk is given back by retention, as ever: the log is shared. What is delayed or deferred stays.
    """
    to: Literal["end"] | int | datetime
    if place.isascii() and place.isdigit():
        to = int(place)
    elif place == "end":
        to = "end"
    else:
        moment = position(place, "--to", PURGE_TO)
        if not isinstance(moment, datetime):
            raise click.BadParameter(f"{place!r} is neither {PURGE_TO}, -1h nor a moment", param_hint="--to")
        to = moment
    with penstock.Admin(registry) as admin:
        rows = admin.purge_topic(name, to, queue=queue, dry_run=True)
        count = sum(row["messages"] for row in rows)
        if not dry_run:
            confirm(f"Purge {count:,} messages of {name}?", force)
            rows = admin.purge_topic(name, to, queue=queue)
    print_rows([{"topic": name, **row, "done": "" if dry_run else "purge"} for row in rows if row["messages"]], as_json)


@topic.command("convert")
@with_registry
@with_json
@click.argument("name")
@click.option("--to", "kind", type=click.Choice(["log", "queue"]), required=True, help="The kind that it is to have.")
@click.option("-f", "-y", "--force", "--yes", "force", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what stands against it; change nothing.")
def topic_convert(
    registry: str, as_json: bool, name: str, kind: Literal["log", "queue"], force: bool, dry_run: bool
) -> None:
    """Make a queue topic a log topic, or a log topic a queue topic, if nothing would be lost: it must be empty and unread.

    Its channels keep their names and pauses. Exit code 1 where something stands against it.
    """
    with penstock.Admin(registry) as admin:
        if not dry_run:
            confirm(f"Make {name} a {kind} topic?", force)
        rows = admin.convert_topic(name, kind, dry_run=dry_run)
    against = [{"broker": row["broker"], "against": text} for row in rows for text in row["against"]]
    if as_json:
        print_rows(rows, as_json)
    elif against:
        print_rows(against, as_json)
    else:
        click.echo(f"{name} {'can become' if dry_run else 'is'} a {kind} topic")
    sys.exit(1 if against else 0)


@topic.command("rm")
@with_registry
@with_json
@with_dry_run
@click.argument("name")
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
def topic_rm(registry: str, as_json: bool, dry_run: bool, name: str, force: bool) -> None:
    """Delete a topic of either kind."""
    if not dry_run:
        confirm(f"Delete {name} and what it holds?", force)
    with penstock.Admin(registry) as admin:
        if dry_run:
            print_plan([_held(row) for row in admin.describe_topic(name)], "delete", as_json)
            _tell_delayed(admin, name)
            return
        admin.delete_topic(name)
        _tell_delayed(admin, name)
    if as_json:
        print_rows([{"topic": name, "done": "rm"}], as_json)


def _tell_delayed(admin: penstock.Admin, name: str) -> None:
    """Messages that wait for their time outlive their log topic."""
    with suppress(PenstockError):  # who may delete a topic need not be one who may see what it holds
        if any(row["kind"] == "log" for row in admin.delayed(topic=name, limit=1)):
            click.echo(
                f"delayed messages of {name} make it again when they are due: `penstock delayed ls --topic {name}`, then "
                "`penstock delayed cancel`",
                err=True,
            )


def _held(row: Json) -> Json:
    """What a topic holds at one broker, and who reads it."""
    unfinished = [one["depth"] + one["inFlight"] + one["deferred"] for one in row["channels"]]
    held = row["depth"] + max(unfinished, default=0) if row["stored"] is None else row["stored"]
    return {"topic": row["topic"], "kind": row["kind"], "broker": row["broker"], "messages": held} | {
        "channels": len(row["channels"]), "groups": len(row["groups"])
    }  # fmt: skip
