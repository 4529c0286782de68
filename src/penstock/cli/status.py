"""`penstock status`: whether a broker or registry serves, for health checks and for people."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import click

from penstock.cli.tools import DAY_S, Amount, printable, with_json
from penstock.wire.addresses import split_address

TIMED_OUT = 124
HTTP_PORT = 4151
AT_ONCE = 32


def ask(address: str, timeout_s: float) -> dict[str, object]:
    """What the HTTP listener at host:port says of itself; `state` is ready, not ready, not reached or timed out."""
    from http.client import HTTPConnection, HTTPException

    try:
        host, port = split_address(f"127.0.0.1{address}" if address.startswith(":") else address, HTTP_PORT)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="ADDRESS") from None
    connection = HTTPConnection(host, port, timeout=timeout_s)
    try:
        connection.request("GET", "/ready")
        found = json.loads(connection.getresponse().read())
        return {"state": "ready" if found["ready"] else "not ready", **found}
    except TimeoutError:
        return {"state": "timed out", "reasons": [f"no answer in {timeout_s:g} s"]}
    except OSError as error:
        return {"state": "not reached", "reasons": [error.strerror or str(error)]}
    except (HTTPException, ValueError, KeyError, TypeError):
        return {"state": "not reached", "reasons": ["what answers there is no broker or registry of ours"]}
    finally:
        connection.close()


@click.command()
@with_json
@click.option(
    "--timeout", "timeout_s", type=Amount(0, DAY_S, min_open=True), default=5, show_default=True, help="Seconds."
)
@click.argument("addresses", nargs=-1, metavar="[ADDRESS]...", envvar="PENSTOCK_HTTP")
def status(as_json: bool, timeout_s: float, addresses: tuple[str, ...]) -> None:
    """Say whether the brokers or registries at these HTTP addresses serve: 127.0.0.1:4151 where none is given.

    Exit code 0: all are ready; 1: one is not, or is not reached; 124: one did not answer in time.
    """
    asked = addresses or ("127.0.0.1:4151",)
    with ThreadPoolExecutor(min(len(asked), AT_ONCE)) as pool:  # one that hangs keeps none of the others
        answers = pool.map(lambda address: ask(address, timeout_s), asked)
    rows = [{"address": address, **answer} for address, answer in zip(asked, answers, strict=True)]
    for row in rows:
        if as_json:
            click.echo(json.dumps(row))
            continue
        about = " ".join(str(row[name]) for name in ("role", "name", "version") if row.get(name))
        why = "; ".join(map(str, row["reasons"])) if isinstance(row["reasons"], list) else ""
        click.echo(printable("  ".join(filter(None, (str(row["address"]), str(row["state"]), about, why)))))
    states = {row["state"] for row in rows}
    click.get_current_context().exit(TIMED_OUT if "timed out" in states else 0 if states == {"ready"} else 1)
