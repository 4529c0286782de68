"""`penstock group`: consumer groups, how far behind they are, who reads; moved and deleted."""

from __future__ import annotations

from collections.abc import Iterable

import click

import penstock
from penstock.cli.names import is_own
from penstock.cli.tools import (
    Whole,
    confirm,
    look_again,
    looking,
    position,
    print_rows,
    with_json,
    with_registry,
)
from penstock.client.aio.admingroups import GroupMember, GroupStats, OffsetMove
from penstock.client.routes import MessageQueue
from penstock.client.subscriptions import Start
from penstock.errors import NoRoute, NotFound

WATCH_S = 2.0


@click.group(cls=Whole)
def group() -> None:
    """Look at consumer groups, move them, delete them."""


@group.command("ls")
@with_registry
@with_json
@click.option(
    "--system",
    is_flag=True,
    help="Those that nobody made, too: of brokers, of readers without a group, of `dlq redrive`.",
)
def group_ls(registry: str, as_json: bool, system: bool) -> None:
    """The groups that committed anything or are known: members, topics, lag in messages and seconds."""
    with looking(registry) as admin:
        known = [name for name in admin.groups() if system or not is_own(name)]
        stats = admin.all_group_stats()
        members = admin.member_counts(known)
        rows = []
        for name in known:
            of = stats.get(name, {})
            rows.append(
                {
                    "group": name,
                    "members": members[name],
                    "topics": len({queue.topic for queue in of}),
                    "lag": sum(row.lag for row in of.values()),
                    "lag_s": _oldest_s(of.values()),
                }
            )
        print_rows(rows, as_json)


@group.command("info")
@with_registry
@with_json
@click.argument("name")
def group_info(registry: str, as_json: bool, name: str) -> None:
    """Who is connected and reads which queues, and what the group subscribes to."""
    with looking(registry) as admin:
        admin.check_group(name)
        members = admin.group_members(name)
        subscriptions = admin.group_subscriptions(name)
        _print_members(name, members, subscriptions, as_json)


def _print_members(name: str, members: list[GroupMember], subscriptions: dict[str, str], as_json: bool) -> None:
    rows = [
        {
            "member": one.client_id,
            "address": one.address,
            "client": f"{one.language} {one.version}",
            "queues": None if one.queues is None else [f"{q.topic}/{q.broker}/{q.queue_id}" for q in one.queues],
        }
        for one in members
    ]
    if as_json:
        print_rows(rows, True)
        print_rows([{"subscription": topic, "expression": said} for topic, said in subscriptions.items()], True)
        return
    if not members:
        click.echo(f"no member of {name} is connected", err=True)
        return
    print_rows(
        [{**row, "queues": " ".join(row["queues"]) if row["queues"] is not None else "?"} for row in rows], False
    )
    click.echo("")
    print_rows([{"subscription": topic, "expression": said} for topic, said in subscriptions.items()], False)


@group.command("lag")
@with_registry
@with_json
@click.argument("name")
@click.option("-t", "--topic", "only", help="Of one topic.")
@click.option("--watch", is_flag=True, help="Again every two seconds, until interrupted.")
@click.option("--count", type=click.IntRange(1), help="With --watch: so often.")
def group_lag(registry: str, as_json: bool, name: str, only: str | None, watch: bool, count: int | None) -> None:
    """How far a group is in every message queue, in messages and in seconds: the age of the oldest message behind."""
    with looking(registry) as admin:
        admin.check_group(name)
        if only is not None:
            _check_topic(admin, only)

        def show() -> None:
            print_rows(_lag_rows(admin.group_stats(name, only)), as_json)
            if watch and not as_json:
                click.echo("")

        if watch:
            look_again(admin, show, WATCH_S, count)
        else:
            show()


def _lag_rows(stats: dict[MessageQueue, GroupStats]) -> Iterable[dict[str, object]]:
    return (
        {
            "topic": q.topic,
            "broker": q.broker,
            "queue": q.queue_id,
            "committed": s.committed,
            "end": s.max_offset,
            "lag": s.lag,
            "lag_s": None if s.lag_ms is None else s.lag_ms / 1000,
        }
        for q, s in sorted(stats.items())
    )


@group.command("reset")
@with_registry
@with_json
@click.argument("name")
@click.argument("topic")
@click.option(
    "--to",
    "start",
    default="first",
    show_default=True,
    help="first, last, an offset, -1h (s, m, h, d), or a moment: 2026-11-20T10:00:00+00:00.",
)
@click.option("--new", is_flag=True, help="The group has not read anything yet: set where it begins.")
@click.option("--dry-run", is_flag=True, help="Say from where to where, and how many messages; change nothing.")
def group_reset(registry: str, as_json: bool, name: str, topic: str, start: str, new: bool, dry_run: bool) -> None:
    """Move a group within a topic. An offset holds for every queue; where it is none, the nearest there is."""
    goal, offset = _goal(start)
    with looking(registry) as admin:
        if not new:
            admin.check_group(name)
        _check_topic(admin, topic)
        plan = admin.plan_reset(name, topic, goal, offset=offset)
        if dry_run:
            moved = {queue: move.target for queue, move in plan.items()}
        elif offset is not None:
            moved = admin.set_offset(name, topic, offset, new=new)
        else:
            moved = admin.reset_offset(name, topic, goal, new=new)
        if not dry_run:
            admin.missed.clear()  # it is done at each
        _print_moves(plan, moved, dry_run, as_json)


def _print_moves(
    plan: dict[MessageQueue, OffsetMove], moved: dict[MessageQueue, int], dry_run: bool, as_json: bool
) -> None:
    if not (dry_run or as_json):
        for queue, at in sorted(moved.items()):
            click.echo(f"{queue.broker} {queue.queue_id}: {at}")
        return
    steps = {queue: (plan[queue].committed if queue in plan else 0, at) for queue, at in sorted(moved.items())}
    print_rows(
        [
            {"broker": queue.broker, "queue": queue.queue_id, "from": before, "to": at, "messages": before - at}
            for queue, (before, at) in steps.items()
        ],
        as_json,
    )
    if dry_run and not as_json:
        again = sum(max(0, before - at) for before, at in steps.values())
        click.echo(
            f"{again} would come again, {sum(max(0, at - before) for before, at in steps.values())} be passed over"
        )


def _goal(text: str) -> tuple[Start, int | None]:
    """(a place that the client knows, an offset). BadParameter."""
    if text.isascii() and text.isdigit():
        return "first", int(text)
    return position(text, "--to"), None


@group.command("rm")
@with_registry
@with_json
@click.argument("name")
@click.option("-y", "--yes", "-f", "--force", "yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be forgotten; change nothing.")
def group_rm(registry: str, as_json: bool, name: str, yes: bool, dry_run: bool) -> None:
    """Forget a group: its settings and committed offsets. Its retry topic and its dead letters stay."""
    with looking(registry) as admin:
        admin.check_group(name)
        admin.check_offline(name)
        stats = admin.group_stats(name)
        lag = sum(row.lag for row in stats.values())
        topics = sorted({queue.topic for queue in stats})
        told = f"group {name} with its offsets in {', '.join(topics) or 'no topic'}, {lag} messages behind"
        if admin.missed:
            told += f", not counting broker {', '.join(sorted(admin.missed))}, which does not answer"
        if not dry_run:
            confirm(f"Forget {told}?", yes)
            admin.delete_group(name)
            admin.missed.clear()  # it is done at each
        if as_json:
            print_rows([{"group": name, "topics": topics, "lag": lag, "done": "" if dry_run else "rm"}], True)
        elif dry_run:
            click.echo(f"would forget {told}")


def _check_topic(admin: penstock.Admin, topic: str) -> None:
    """NotFound when no broker has a log topic of that name."""
    try:
        kind = admin.route(topic).kind
    except NoRoute:
        raise NotFound(f"no broker has a topic {topic!r}", "`penstock topic ls` lists the topics.") from None
    if kind != "log":
        hint = "`penstock channel ls` shows how far its channels are."
        raise NotFound(f"{topic} is a queue topic: groups have no offsets in it", hint)


def _oldest_s(rows: Iterable[GroupStats]) -> float | None:
    """Of the oldest message behind; None where a broker does not say."""
    found = [row.lag_ms for row in rows]
    return None if None in found else max((ms for ms in found if ms is not None), default=0) / 1000
