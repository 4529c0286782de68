"""`penstock dlq`: dead letters, listed, shown, exported, sent again."""

from __future__ import annotations

import json
from itertools import islice

import click

from penstock.cli.tools import PARTLY, Amount, NamedPath, Whole, opened, print_rows, printable, with_json, with_registry
from penstock.client.deadletters import DeadLetters, exported, time_text
from penstock.client.routes import Json
from penstock.errors import NotEverywhere, NotFound
from penstock.message import ReceivedMessage

TEXT_CHARS_MAX = 500  # of a body on a terminal; --json and export have all of it
_match = click.option(
    "--match",
    "text",
    default="",
    help="Only those with this text in the body or in why they died, or with this key or id.",
)


@click.group(cls=Whole)
def dlq() -> None:
    """Dead letters: what consumers gave up."""


@dlq.command("ls")
@with_registry
@with_json
def dlq_ls(registry: str, as_json: bool) -> None:
    """The topics of dead letters: how many each holds, how many of them were not sent again, the oldest and the newest."""
    with DeadLetters(registry, partial=True) as letters:
        found = letters.topics()
    rows: list[Json] = [
        {
            "group": one.name,
            "kind": one.kind,
            "count": one.count,
            "left": one.left,
            "oldest": None if one.oldest_ms is None else time_text(one.oldest_ms),
            "newest": None if one.newest_ms is None else time_text(one.newest_ms),
            "topic": one.topic,
        }
        for one in found
    ]
    if not as_json:
        rows = [{name: "-" if value is None else value for name, value in row.items()} for row in rows]
    print_rows(rows, as_json)
    if letters.missed:
        raise NotEverywhere(letters.missed, PARTLY)


@dlq.command("show")
@with_registry
@with_json
@_match
@click.option("-l", "--limit", type=click.IntRange(1), default=50, show_default=True, help="At most so many.")
@click.argument("group")
def dlq_read(registry: str, as_json: bool, text: str, limit: int, group: str) -> None:
    """The dead letters of GROUP, oldest first: why, when, by whom, how often, where from."""
    with DeadLetters(registry, partial=True) as letters:
        try:
            for message, redriven in islice(letters.letters(group, text), limit):
                row = exported(message, redriven=redriven)
                del row["properties"]
                click.echo(json.dumps(row, ensure_ascii=False) if as_json else _lines(row))
        except NotFound:  # it may be at one that was missed
            if not letters.missed:
                raise
        if letters.missed:
            raise NotEverywhere(letters.missed, PARTLY)


@dlq.command("export")
@with_registry
@with_json
@_match
@click.option("-f", "--force", is_flag=True, help="Write over a file that is there.")
@click.argument("group")
@click.argument("file", type=NamedPath(dir_okay=False, allow_dash=True))
def dlq_export(registry: str, as_json: bool, text: str, force: bool, group: str, file: str) -> None:
    """Write the dead letters of GROUP to FILE (-: standard output) as JSON lines, with all properties; none is taken away."""
    count = 0
    with DeadLetters(registry) as letters:
        letters.find(group)  # before a file is made
        with opened(file, force) as out:
            for message, redriven in letters.letters(group, text):
                out.write(json.dumps(exported(message, redriven=redriven), ensure_ascii=False).encode() + b"\n")
                count += 1
    if file != "-":
        click.echo(
            json.dumps({"group": group, "messages": count, "file": file}) if as_json else f"{count} written to {file}"
        )


@dlq.command("redrive")
@with_registry
@with_json
@_match
@click.option("--id", "ids", multiple=True, help="Only the one with this id; may be said several times.")
@click.option("--to", default="", metavar="TOPIC", help="To this topic, not to where each came from.")
@click.option("-l", "--limit", type=click.IntRange(1), help="At most so many, the oldest.")
@click.option("--rate", type=Amount(0.001, 1_000_000), help="At most so many a second.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent; send nothing.")
@click.option(
    "--delete", is_flag=True, help="Then take those out of sight that were sent again, as far as all before them were."
)
@click.argument("group")
def dlq_redrive(
    registry: str, as_json: bool, text: str, ids: tuple[str, ...], to: str, limit: int | None, rate: float | None, group: str,
    **flags: bool,
) -> None:  # fmt: skip
    """Send the dead letters of GROUP to the topics they came from, each once: a second call sends only what came since.
    GROUP may be a queue topic's channel, as `dlq ls` names it: there what is sent leaves the dead letters.
    """
    dry_run, delete = flags["dry_run"], flags["delete"]
    if ids and (text or limit or rate):
        raise click.UsageError("--id names the messages: without --match, --limit and --rate")

    def tell(message: ReceivedMessage, topic: str) -> None:
        if as_json:
            told = {"to": topic, "broker": message.broker, "queue": message.queue_id, "offset": message.queue_offset}
            click.echo(json.dumps(told | {"msgId": message.msg_id, "done": "" if dry_run else "sent"}))
        elif dry_run:
            about = printable(" ".join(message.keys) or message.msg_id)
            click.echo(f"  {topic}  queue {message.queue_id} offset {message.queue_offset}  {about}")

    with DeadLetters(registry) as letters:
        if ids:
            done = letters.resend(group, ids, to=to, dry_run=dry_run, each=tell)
        else:
            done = letters.redrive(group, to=to, text=text, limit=limit, rate=rate, dry_run=dry_run, each=tell)
        deleted = letters.delete_sent(group) if delete and not dry_run and not done.missing else 0
    if done.unreadable:
        click.echo(f"penstock: {done.unreadable} passed over, whose bodies cannot be decompressed", err=True)
    if not as_json:
        to_each = ", ".join(f"{count:,} to {topic}" for topic, count in sorted(done.topics.items())) or "nothing"
        click.echo(f"{'would send' if dry_run else 'sent'} {to_each}" + (f", deleted {deleted:,}" if delete else ""))
    if done.missing:
        hint = f"`penstock dlq show {group}` shows their ids."
        raise NotFound(f"{group} has no dead letter with the id {', '.join(done.missing)}", hint)


def _lines(row: Json) -> str:
    """A dead letter for a terminal; what a message says is shown without control characters."""
    about = {
        "why": " ".join(filter(None, (row["reason"], row["detail"]))) or "not noted",
        "by": " ".join(filter(None, (row["group"], row["client"]))) or "not noted",
        "from": " ".join(filter(None, (row["origin"], row["originId"]))) or "not noted",
        "id": row["msgId"],
        "tags": row["tags"],
        "keys": " ".join(row["keys"]),
        "body": row.get("body", row.get("bodyBase64", "")),
    }
    head = f"{row['died']}  queue {row['queue']} offset {row['offset']}  after {row['attempts']} deliveries"
    tail = [f"  {name:<5} {_plain(text)}" for name, text in about.items() if text]
    return "\n".join([head + ("  (sent again)" if row["redriven"] else ""), *tail])


def _plain(text: str) -> str:
    end = "" if len(text) <= TEXT_CHARS_MAX else f"… ({len(text):,} characters)"
    signs = text[:TEXT_CHARS_MAX]
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in signs) + end
