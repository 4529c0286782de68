"""`penstock client ls | disconnect`, `broker ls`: who is connected, and which brokers there are."""

from __future__ import annotations

import time

import click

import penstock
from penstock.cli.names import check_names
from penstock.cli.tools import (
    Whole,
    confirm,
    looking,
    print_plan,
    print_rows,
    printable,
    with_dry_run,
    with_json,
    with_registry,
)
from penstock.errors import ConnectionLost, NotEverywhere, NotFound, PenstockError, TimedOut


@click.group(cls=Whole)
def client() -> None:
    """Look at who is connected, end a connection."""


@client.command("ls")
@with_registry
@with_json
@click.option("--protocol", type=click.Choice(["nsq", "rocketmq"]), help="Of one protocol.")
@click.option("--of", default="", help="Only of this topic, group, or topic/channel.")
def client_ls(registry: str, as_json: bool, protocol: str | None, of: str) -> None:
    """The producers and consumers at every broker: of which group, or topic and channel, from where."""
    with looking(registry) as admin:
        rows = [row for row in admin.clients() if not of or of in (row["of"], *row["of"].replace("/", " ").split())]
        if of and not rows:
            topic, _, channel = of.partition("/")
            check_names(admin, topic if channel else "", channel or topic)
        rows = [row for row in rows if protocol in (None, row["protocol"])]
        if not as_json:
            rows = [
                {name: "-" if value is None else printable(str(value)) for name, value in row.items()} for row in rows
            ]
        print_rows(rows, as_json)


@client.command("disconnect")
@with_registry
@with_json
@with_dry_run
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
@click.argument("address")
def client_disconnect(registry: str, as_json: bool, dry_run: bool, force: bool, address: str) -> None:
    """End the connections from ADDRESS, as `client ls` shows it. A client may come again; what it had in flight comes
    again when its time is over.
    """
    if not dry_run:
        confirm(f"end the connections from {address}?", force)
    with penstock.Admin(registry) as admin:
        if dry_run:
            rows = [row for row in admin.clients() if row["address"] == address]
            if not rows:
                raise NotFound(f"no client is connected from {address}", "`penstock client ls` lists them.")
            if not as_json:
                rows = [{name: printable(str(value)) for name, value in row.items()} for row in rows]
            print_plan(rows, "end the connections of", as_json)
            return
        count = admin.disconnect(address)
    if as_json:
        print_rows([{"address": address, "connections": count, "done": "disconnect"}], True)
    else:
        click.echo(f"{count} connections ended")


@click.command("ls")
@with_registry
@with_json
def broker_ls(registry: str, as_json: bool) -> None:
    """The brokers that the registry knows, masters and slaves: address, version, since when, how full the disk is."""
    rows = []
    missed: dict[str, Exception] = {}
    with penstock.Admin(registry) as admin:
        info = admin.cluster_info()
        cluster_of = {name: cluster for cluster, names in info.clusters.items() for name in names}
        answers = admin.runtime_infos(address for members in info.brokers.values() for address in members.values())
        for name, members in sorted(info.brokers.items()):
            for id_, address in sorted(members.items()):
                row: dict[str, object] = {
                    "broker": name, "id": id_, "role": "master" if id_ == 0 else "slave", "address": address,
                    "cluster": cluster_of.get(name, ""),
                }  # fmt: skip
                told = answers[address]
                if isinstance(told, PenstockError):
                    row |= {"version": None, "up_s": None, "disk": None, "state": str(told)}
                    if isinstance(told, ConnectionLost | TimedOut):
                        missed[name if id_ == 0 else f"{name} ({address})"] = told
                else:
                    up_s = max(0, time.time() - int(told.get("bootTimestamp") or 0) / 1000)
                    version = told.get("penstockVersion") or told.get("brokerVersionDesc", "")
                    row |= {
                        "version": version,
                        "up_s": int(up_s),
                        "disk": _number(told.get("commitLogDiskRatio")),
                        "state": "up",
                    }
                rows.append(row)
    if not as_json:
        rows = [{name: "-" if value is None else value for name, value in row.items()} for row in rows]
    print_rows(rows, as_json)
    if missed:
        raise NotEverywhere(missed, "`penstock status HOST:4151` says whether it serves.")


def _number(text: str | None) -> float | None:
    """A figure that is told as text, where it is one: other brokers may say something else."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
