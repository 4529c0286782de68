"""`penstock ha`: masters and slaves."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import click

import penstock
from penstock.cli.tools import Whole, confirm, print_rows, with_dry_run, with_json, with_registry
from penstock.client.conversation import making_sense
from penstock.client.rows import NodeRow, rows_of
from penstock.errors import BrokerRefused, NotFound, PenstockError
from penstock.wire.codes import ResponseCode

_NOTHING = {
    "node": "", "role": "", "epoch": "", "written": "", "flushed": "", "confirmed": "", "lag_bytes": "", "lag_ms": "",
    "in_sync": "",
}  # fmt: skip
_ITS_OWN = (
    "may_lack",
    "damaged",
    "repaired",
    "engine",
    "engine_silent_ms",
    "lease_ms",
    "set",
    "paused",
)  # its master cannot know
WAIT_S = 30.0  # until a node has its new role
WORD_S = 3.0  # until it knows what the engine has been told

STATUS = "`penstock ha status` shows who is master and who slave."


@click.group(cls=Whole)
def ha() -> None:
    """Look at masters and their slaves, and change who is which."""


@ha.command("status")
@with_registry
@with_json
def status(registry: str, as_json: bool) -> None:
    """Every broker of every replica set: how far its log is, whether it is in sync, and if not, why."""
    found: list[dict[str, object]] = []
    with penstock.Admin(registry) as admin:
        brokers = admin.cluster_info().brokers
        answers = admin.runtime_infos(address for members in brokers.values() for address in members.values())
        for name, members in sorted(brokers.items()):
            seen: dict[object, dict[str, object]] = {}
            for number, address in sorted(members.items()):
                answer = answers[address]
                if isinstance(answer, PenstockError):
                    why = str(answer) if address in str(answer) else f"{address}: {answer}"
                    found.append({"broker": name, **_NOTHING, "id": number, "why_not": why})
                    continue
                told = answer.get("replicaSet", "")
                for row in _rows(address, told) if told else [_alone(number)]:
                    key = row["node"] or row["id"]
                    if key not in seen:  # a slave is told of by its master, too
                        seen[key] = {"broker": name, **row}
                        found.append(seen[key])
                    elif number == row["id"]:
                        seen[key] |= {word: row[word] for word in _ITS_OWN if word in row}
    names = dict.fromkeys(name for row in found for name in row)  # those of an engine only where there is one
    print_rows([{name: row.get(name, "") for name in names} for row in found], as_json)


def _alone(number: int) -> dict[str, object]:
    """A broker that nobody can follow."""
    return {**_NOTHING, "id": number, "role": "master", "why_not": "it has no ha_port: nobody can follow it"}


@ha.command("promote")
@with_registry
@with_json
@with_dry_run
@click.option("--node", required=True, help="The slave that is to be the master.")
@click.option("--accept-loss", is_flag=True, help="Even if it may lack messages that were acknowledged.")
def promote(registry: str, as_json: bool, dry_run: bool, node: str, accept_loss: bool) -> None:
    """Make a slave the master. The old master must be stopped: that is for you to know.

    When the old master comes back it follows the new one by itself, and what only it had goes to its lost+found.
    """
    with penstock.Admin(registry) as admin:
        nodes = _nodes(admin)
        address, row, others = _find(nodes, node)
        better = [told for _, told in others if _rank(told) > _rank(row)]
        if better and not accept_loss:
            raise click.ClickException(
                f"{better[0]['node']} has more of the log (up to {better[0]['written']}, epoch {better[0]['epoch']}) than "
                f"{node} ({row['written']}, epoch {row['epoch']}): promote it, or say --accept-loss"
            )
        if dry_run:
            _demand_no_master(row, others)
            if row.get("may_lack") and not accept_loss:
                raise click.ClickException(
                    f"node {node} may lack messages that were acknowledged: {row['may_lack']}; --accept-loss promotes it"
                )
            _would_lead(row, as_json)
            return
        admin.promote(address, accept_loss=accept_loss)
        _wait(admin, node, as_json)


def _demand_no_master(row: dict[str, object], others: list[tuple[str, dict[str, object]]]) -> None:
    """A node is not promoted while there is a master: it would say so itself, and a dry run does not ask it."""
    if row["role"] == "master":
        raise click.ClickException(f"node {row['node']} is the master already")
    for _, told in others:
        if told["role"] == "master":
            raise click.ClickException(
                f"the master {told['node']} answers: change places with it (penstock ha switch), or stop it first"
            )


def _would_lead(row: dict[str, object], as_json: bool) -> None:
    """What a dry run says of the node that would be the master."""
    told = {"broker": row["broker"], "node": row["node"], "epoch": row["epoch"], "written": row["written"], "done": ""}
    if as_json:
        print_rows([told], True)
    else:
        click.echo(f"{row['node']} would be the master of {row['broker']}, from {row['written']} on")


@ha.command("switch")
@with_registry
@with_json
@with_dry_run
@click.option("--to", "to", default="", help="The slave that is to be the master; without it any that is in sync.")
@click.option("--broker", default="", help="The broker name of the replica set, where there are several.")
def switch(registry: str, as_json: bool, dry_run: bool, to: str, broker: str) -> None:
    """Let the master and a slave in sync change places. Nothing is lost, no queue offset is left out."""
    with penstock.Admin(registry) as admin:
        nodes = [(address, row) for address, row in _nodes(admin) if broker in ("", row["broker"])]
        if broker and not nodes:
            raise NotFound(f"no node of a replica set is registered as {broker}", STATUS)
        masters = [(at, row) for at, row in nodes if row["role"] == "master" and _has(admin, at, to)]
        if len(masters) != 1:
            if not masters:
                of = f" of {broker}" if broker else ""
                raise NotFound(f"no master{of}{f' with the slave {to}' if to else ''} is registered", STATUS)
            raise click.UsageError(
                f"{len(masters)} masters {'have a slave ' + to if to else 'are there'}: name the set with --broker"
            )
        if dry_run:
            _would_lead(_next_master(admin, *masters[0], to), as_json)
            return
        _wait(admin, admin.switch(masters[0][0], to), as_json)


def _next_master(admin: penstock.Admin, address: str, master: dict[str, object], to: str) -> dict[str, object]:
    """The slave in sync that would take the place of the master at this address. NotFound."""
    known = _rows(address, admin.runtime_info(address).get("replicaSet", ""))
    found = [row for row in known if row["role"] != "master" and row["in_sync"] == "yes" and to in ("", row["node"])]
    if not found:
        hint = "`penstock ha status` says why."
        raise NotFound(f"no slave{' ' + to if to else ''} of {master['broker']} is in sync", hint)
    return {"broker": master["broker"], **max(found, key=lambda row: int(str(row["written"])))}


@ha.command("rejoin")
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--discard", is_flag=True, required=True, help="Yes, all of it.")
@click.option("--force", is_flag=True, help="Do not ask.")
@with_json
def rejoin(folder: Path, discard: bool, force: bool, as_json: bool) -> None:
    """Set everything in the data folder of a stopped node aside, in its lost+found, so that it begins anew as a slave."""
    from penstock.broker.rejoin import rejoin as run

    confirm(f"Set aside everything in {folder}? It begins as an empty slave then.", force)
    place = str(run(folder))
    click.echo(json.dumps({"folder": str(folder), "set_aside": place}) if as_json else f"set aside in {place}")


@ha.command("pause")
@with_registry
@with_json
@click.option("--broker", default="", help="The broker name of the replica set, where there are several.")
@click.option("--dry-run", is_flag=True, help="Say how it is; change nothing.")
def pause(registry: str, as_json: bool, broker: str, dry_run: bool) -> None:
    """No failover by itself: for maintenance.

    The master stays who it is, also over a restart; while it is away nobody is the master. What a person asks for (ha
    switch, ha promote) is done as ever.
    """
    _pause(registry, as_json, broker, dry_run, True)


@ha.command("resume")
@with_registry
@with_json
@click.option("--broker", default="", help="The broker name of the replica set, where there are several.")
@click.option("--dry-run", is_flag=True, help="Say how it is; change nothing.")
def resume(registry: str, as_json: bool, broker: str, dry_run: bool) -> None:
    """Failover by itself again."""
    _pause(registry, as_json, broker, dry_run, False)


def _pause(registry: str, as_json: bool, broker: str, dry_run: bool, paused: bool) -> None:
    with penstock.Admin(registry) as admin:
        nodes = [(at, row) for at, row in _nodes(admin) if broker in ("", row["broker"])]
        names = sorted({str(row["broker"]) for _, row in nodes})
        if not nodes:
            raise NotFound("no node of a replica set is registered" + (f" as {broker}" if broker else ""), STATUS)
        if len(names) > 1:
            raise click.UsageError(f"{len(names)} replica sets are there ({', '.join(names)}): name one with --broker")
        changed = False if dry_run else _first(nodes, lambda at: admin.pause_failover(at, paused))
        if not dry_run:
            _await_word(admin, [address for address, _ in nodes], paused)
        now = any(row.get("paused") for _, row in nodes) if dry_run else paused
        print_rows([{"broker": names[0], "paused": now, "changed": changed}], as_json)


def _first(nodes: list[tuple[str, dict[str, object]]], ask: Callable[[str], bool]) -> bool:
    """The answer of the first node that gives one: a node that is cut off from the engine cannot."""
    for address, _ in nodes[:-1]:
        try:
            return ask(address)
        except BrokerRefused as error:
            if error.code == ResponseCode.NO_PERMISSION:
                raise
        except PenstockError:
            continue
    return ask(nodes[-1][0])


def _await_word(admin: penstock.Admin, addresses: list[str], paused: bool) -> None:
    """Until these nodes know it, which read it in the engine once a second: else `ha status` would say what was before. One that
    does not reach the engine never does.
    """
    until = time.monotonic() + WORD_S
    while time.monotonic() < until:
        answers = admin.runtime_infos(addresses).values()
        told = [answer.get("replicaSet") for answer in answers if not isinstance(answer, PenstockError)]
        rows = [row for text in told if text for row in _rows("a broker", text)[:1]]
        if all(bool(row.get("paused")) == paused for row in rows if row.get("engine") == "reached"):
            return
        time.sleep(0.05)


@ha.command("forget")
@with_registry
@with_json
@click.argument("node")
@click.option("--broker", default="", help="The broker name of the replica set, where several know such a node.")
@click.option("-f", "-y", "--force", "--yes", "force", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say who knows it; change nothing.")
def forget(registry: str, as_json: bool, node: str, broker: str, force: bool, dry_run: bool) -> None:
    """Forget a node that will not come back: nobody asks any more whether it is the master.

    One that is there is not forgotten; one that does come back is a node as ever. Nodes that are away now are to be told later.
    """
    with penstock.Admin(registry) as admin:
        nodes = [(at, row) for at, row in _nodes(admin) if broker in ("", row["broker"])]
        if any(row["node"] == node for _, row in nodes):
            raise click.ClickException(f"node {node} answers: stop it first")
        found = [(at, row, admin.forget_node(at, node, dry_run=True)) for at, row in nodes]
        knowing = {str(row["broker"]) for _, row, told in found if told["address"] or told["engine"]}
        if not knowing:
            raise NotFound(f"no node that answers knows {node}", STATUS)
        if len(knowing) > 1:
            raise click.UsageError(f"{', '.join(sorted(knowing))} know such a node: name one with --broker")
        if not dry_run:
            confirm(f"Forget node {node} of {min(knowing)}?", force)
        rows = []
        for at, row, told in found:
            if row["broker"] in knowing:
                if not dry_run:
                    admin.forget_node(at, node)
                rows.append({"broker": row["broker"], "at": row["node"], "node": node, **told})
    print_rows([{**row, "done": "" if dry_run else "forget"} for row in rows], as_json)


def _nodes(admin: penstock.Admin) -> list[tuple[str, dict[str, object]]]:
    """(address, what it says of itself) of every node that answers. PenstockError where none does: nothing is known then."""
    found = []
    answered, trouble = False, None
    brokers = admin.cluster_info().brokers
    answers = admin.runtime_infos(address for members in brokers.values() for address in members.values())
    for name, members in sorted(brokers.items()):
        for address in members.values():
            answer = answers[address]
            if isinstance(answer, BrokerRefused):
                answered = True  # not to this user
            elif isinstance(answer, PenstockError):
                trouble = answer
            else:
                answered = True
                if told := answer.get("replicaSet", ""):
                    found += [(address, {"broker": name, **row}) for row in _rows(address, told)[:1]]
    if trouble is not None and not answered:
        raise trouble
    return found


def _has(admin: penstock.Admin, address: str, node: str) -> bool:
    if not node:
        return True
    return any(row["node"] == node for row in _rows(address, admin.runtime_info(address).get("replicaSet", "")))


def _rows(address: str, told: str) -> list[dict[str, object]]:
    """What a broker tells of the nodes of its replica set, itself first."""
    with making_sense(address):
        return rows_of(json.loads(told or "[]"), NodeRow)


def _find(
    nodes: list[tuple[str, dict[str, object]]], node: str
) -> tuple[str, dict[str, object], list[tuple[str, dict[str, object]]]]:
    """(address, row) of a node, and the others of its set."""
    mine = [(address, row) for address, row in nodes if row["node"] == node]
    if len(mine) != 1:
        known = ", ".join(sorted(str(row["node"]) for _, row in nodes)) or "none"
        raise NotFound(f"{len(mine)} nodes are called {node}; there are: {known}", STATUS)
    address, row = mine[0]
    return address, row, [(at, told) for at, told in nodes if told["broker"] == row["broker"] and at != address]


def _rank(row: dict[str, object]) -> tuple[int, int]:
    return int(str(row["epoch"])), int(str(row["written"]))


def _wait(admin: penstock.Admin, node: str, as_json: bool) -> None:
    """Until a node says that it is the master."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        try:
            rows = [row for _, row in _nodes(admin) if row["node"] == node and row["role"] == "master"]
        except PenstockError:
            rows = []  # a registry in the same process starts anew, too
        if rows:
            row = {name: rows[0][name] for name in ("broker", "node", "epoch", "written")}
            if as_json:
                print_rows([row | {"done": "master"}], True)
            else:
                click.echo(f"{node} is the master of {row['broker']}, epoch {row['epoch']}, from {row['written']} on")
            return
        time.sleep(0.05)
    raise click.ClickException(f"{node} is not the master after {WAIT_S:.0f} s: penstock ha status")
