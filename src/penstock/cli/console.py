"""`penstock console`: the web console, and how `penstock up` starts it beside itself."""

from __future__ import annotations

import atexit
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping

import click

from penstock.cli.tools import with_registry

PORT = 4171


@click.command()
@with_registry
@click.option(
    "--broker", "brokers", multiple=True, envvar="PENSTOCK_BROKER",
    help="A broker's HTTP port, as a URL; may be said again. Without it: all brokers that the registry knows.",
)  # fmt: skip
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any.")
@click.option(
    "--allow-changes", is_flag=True, help="Let whoever reaches the console change things; it has no login of its own."
)
@click.option("--insecure", is_flag=True, help="Allow an address that other machines reach.")
@click.option("--allowed-host", "allowed_hosts", multiple=True, help="A further name the console is reached by.")
@click.option("--user", default="", help="The console's user at the broker; without it what the environment says.")
@click.option("--secret-file", type=click.Path(dir_okay=False), help="The file with its secret.")
@click.option("--ends-with-input", is_flag=True, hidden=True)
def console(
    registry: str, brokers: tuple[str, ...], host: str, port: int, user: str, secret_file: str | None,
    allowed_hosts: tuple[str, ...], **flags: bool,
) -> None:  # fmt: skip
    """Run the web console of a cluster. It shows all its user may see, and changes nothing without --allow-changes."""
    from dataclasses import replace

    from penstock.console.server import Settings, run
    from penstock.errors import ConfigError
    from penstock.security import secret_of, security_of
    from penstock.serve import log_to_stderr

    security = security_of(None)
    if user or secret_file:
        if not user or not secret_file:
            raise ConfigError("--user and --secret-file go together")
        security = replace(security, user=user, secret=secret_of(secret_file))
    log_to_stderr("info", log_as="console")
    run(Settings(",".join(brokers), registry, host, port, allowed_hosts=allowed_hosts, **flags), security)


def start_beside(addresses: Mapping[str, object], port: int) -> subprocess.Popen[bytes] | None:
    """Start the console of a broker as a process that ends with this one. Where it cannot be, a line says why."""
    missing = [name for name in ("starlette", "jinja2") if importlib.util.find_spec(name) is None]
    http = str(addresses.get("http", ""))
    if missing or not http or "/" in http or "registry" not in addresses:
        why = (
            "pip install 'penstock[console]' brings it" if missing else "it needs the broker's HTTP port and a registry"
        )
        click.echo(f"penstock: no console: {why}", err=True)
        return None
    command = [
        sys.executable, "-m", "penstock.cli", "console", "--registry", str(addresses["registry"]), "--port", str(port),
        "--ends-with-input",
    ]  # fmt: skip
    if "brokers" not in addresses:  # of several it shows those that the registry knows
        command += ["--broker", f"http://{http}"]
    environ = {name: value for name, value in os.environ.items() if name != "PENSTOCK_BROKER"}
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=sys.stderr.fileno(), start_new_session=True, env=environ
    )
    atexit.register(_stop, child)
    return child


def _stop(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.close()
    try:
        child.wait(5)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
