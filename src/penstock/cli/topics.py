"""`penstock topic`: topics of both kinds, listed, made, changed, emptied, deleted."""

from __future__ import annotations

import click

import penstock
from penstock.broker.levels import LEVEL_NAMES, LOG_LEVELS, QUEUE_LEVELS
from penstock.cli.tools import confirm, permission, print_rows, time_text, with_json, with_registry


@click.group()
def topic() -> None:
    """List, create, change and delete topics."""


@topic.command("ls")
@with_registry
@with_json
@click.option("--system", is_flag=True, help="The broker's own topics as well.")
def topic_ls(registry: str, as_json: bool, system: bool) -> None:
    """The topics of the cluster, of both kinds. Depth: what no channel of a queue topic has yet."""
    with penstock.Admin(registry) as admin:
        rows = [
            {"topic": name, "kind": "log", "level": "", "broker": "", "depth": "", "channels": ""}
            for name in admin.topics(system=system)
        ]
        rows += [
            {name: row[name] for name in ("topic", "kind", "level", "broker", "depth")}
            | {"channels": len(row["channels"])}
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
    with penstock.Admin(registry) as admin:
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
    with penstock.Admin(registry) as admin:
        found = admin.describe_topic(name)
    if as_json:
        print_rows(found, as_json)
        return
    for row in found:
        oldest = "-" if row["oldest"] is None else time_text(row["oldest"])
        figures = {title: value for title, value in row.items() if title not in ("channels", "groups")}
        for title, value in (figures | {"perm": permission(row["perm"]), "oldest": oldest}).items():
            click.echo(f"{title:<11}  {'-' if value is None else value}")
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


@topic.command("rm")
@with_registry
@with_json
@click.argument("name")
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
def topic_rm(registry: str, as_json: bool, name: str, force: bool) -> None:
    """Delete a topic of either kind."""
    confirm(f"Delete {name} and what it holds?", force)
    with penstock.Admin(registry) as admin:
        admin.delete_topic(name)
    if as_json:
        print_rows([{"topic": name, "done": "rm"}], as_json)
