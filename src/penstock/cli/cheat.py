"""`penstock cheat`: what one types most, by what one wants to do."""

from __future__ import annotations

import click

from penstock.cli.tools import print_rows, with_json

SHEETS = {
    "start": (
        ("a registry and a broker on this machine", "penstock up"),
        ("what would hold, and where it comes from", "penstock config show --explain"),
        ("does it serve?", "penstock status"),
        ("who can reach which port", "penstock doctor"),
    ),
    "topic": (
        ("a log topic: kept, read by groups", "penstock topic add orders --queues 8"),
        ("a queue topic: each message once for each channel", "penstock topic add jobs --kind queue"),
        ("what is there", "penstock topic ls"),
        ("all about one", "penstock topic describe orders"),
        ("what purging an hour's backlog would take", "penstock topic purge orders --to=-1h --dry-run"),
    ),
    "send": (
        ("one message", "penstock send orders 'hello' --key 42 --tag eu"),
        ("every line of a file", "penstock send orders --file lines.txt --batch 100"),
        ("JSON objects with keys and properties", "penstock send orders --file rows.jsonl --jsonl"),
        ("in ten minutes", "penstock send orders 'later' --delay 10m"),
    ),
    "read": (
        ("follow a topic", "penstock tail orders"),
        ("the last hour, as JSON", "penstock tail orders --from=-1h --no-follow --json"),
        ("keys and bodies, tab between", "penstock tail orders --format '%k\\t%s\\n'"),
        ("look without taking", "penstock peek jobs"),
        ("all of it into a file", "penstock export orders orders.jsonl"),
    ),
    "group": (
        ("how far behind", "penstock group lag billing --watch"),
        ("who reads", "penstock group info billing"),
        ("an hour back: what would come again?", "penstock group reset billing orders --to=-1h --dry-run"),
        ("who is connected at all", "penstock client ls"),
    ),
    "repair": (
        ("dead letters", "penstock dlq ls"),
        ("why they died", "penstock dlq show billing"),
        ("send them again, fifty a second", "penstock dlq redrive billing --rate 50"),
        ("is a data folder whole? (the broker is stopped)", "penstock store verify penstock-data"),
    ),
}  # fmt: skip


@click.command()
@with_json
@click.argument("sheet", type=click.Choice(sorted(SHEETS)), required=False)
def cheat(as_json: bool, sheet: str | None) -> None:
    """Print what one types most, of one subject or of all."""
    if as_json:
        names = [sheet] if sheet else SHEETS
        print_rows(
            ({"sheet": name, "command": line, "about": about} for name in names for about, line in SHEETS[name]), True
        )
        return
    for name in [sheet] if sheet else SHEETS:
        click.echo(f"# {name}")
        for about, line in SHEETS[name]:
            click.echo(f"  {line:<68} # {about}")
        click.echo("")
