"""`penstock ha`: masters and slaves."""

from __future__ import annotations

import json

import click

import penstock
from penstock.cli.tools import print_rows, with_json, with_registry
from penstock.errors import PenstockError

_NOTHING = {
    "node": "", "role": "", "epoch": "", "written": "", "flushed": "", "confirmed": "", "lag_bytes": "", "lag_ms": "",
    "in_sync": "",
}  # fmt: skip


@click.group()
def ha() -> None:
    """Look at masters and their slaves."""


@ha.command("status")
@with_registry
@with_json
def status(registry: str, as_json: bool) -> None:
    """Every broker of every replica set: how far its log is, whether it is in sync, and if not, why."""
    found: list[dict[str, object]] = []
    with penstock.Admin(registry) as admin:
        brokers = admin.cluster_info().brokers
        for name, members in sorted(brokers.items()):
            seen: set[int] = set()
            for number, address in sorted(members.items()):
                try:
                    told = admin.runtime_info(address).get("replicaSet", "")
                except PenstockError as error:
                    found.append({"broker": name, **_NOTHING, "id": number, "why_not": f"{address}: {error}"})
                    continue
                rows: list[dict[str, object]] = json.loads(told) if told else [_alone(number)]
                for row in rows:
                    id_ = int(str(row["id"]))
                    if id_ not in seen:  # a slave is told of by its master, too
                        seen.add(id_)
                        found.append({"broker": name, **row})
    print_rows(found, as_json)


def _alone(number: int) -> dict[str, object]:
    """A broker that nobody can follow."""
    return {**_NOTHING, "id": number, "role": "master", "why_not": "it has no ha_port: nobody can follow it"}
