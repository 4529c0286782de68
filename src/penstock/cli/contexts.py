"""`penstock context`: a registry, a user and TLS under a name, in the user's folder of settings.

A context is a file `NAME.toml` that its owner alone may read: `registry`, and what docs/security.md lists for a file of
security. It is used where neither -n nor PENSTOCK_REGISTRY names a registry: its secret goes to no other.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from penstock.cli.inuse import current, folder, path_of, read, word
from penstock.cli.tools import Whole, confirm, print_rows, with_json
from penstock.errors import ConfigError, NotFound


def _write(path: Path, text: str) -> None:
    """A file that is whole or not there, for its owner alone."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(fresh, path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def _toml(values: dict[str, object]) -> str:
    import json

    quoted = {name: json.dumps(value, ensure_ascii=False).replace("\x7f", r"\u007f") for name, value in values.items()}
    return "".join(f"{name} = {text}\n" for name, text in quoted.items())


@click.group(cls=Whole)
def context() -> None:
    """Registries, users and TLS under names."""


@context.command("add")
@with_json
@click.argument("name")
@click.option("-n", "--registry", required=True, help="host:port;host:port")
@click.option("--user", default="", help="Who we are; the secret is asked for, or read from standard input.")
@click.option("--tls", is_flag=True, help="Connect over TLS.")
@click.option("--tls-ca", type=click.Path(exists=True), help="File of the authorities.")
@click.option("--tls-cert", type=click.Path(exists=True), help="Our own certificate.")
@click.option("--tls-key", type=click.Path(exists=True), help="Its key.")
@click.option("-f", "--force", is_flag=True, help="In place of one of this name.")
def context_add(
    as_json: bool, name: str, registry: str, user: str, tls: bool, force: bool, **files: str | None
) -> None:
    """Keep a context. The first one is in use at once."""
    from penstock.client.routes import split_addresses
    from penstock.security import Security

    path = path_of(name)
    if path.exists() and not force:
        raise click.UsageError(f"there is a context {name}: --force replaces it")
    split_addresses(registry)
    secret = ""
    if user:
        interactive = sys.stdin.isatty()
        secret = click.prompt("Secret", hide_input=True) if interactive else sys.stdin.readline().rstrip("\r\n")
    paths = {name: os.path.abspath(value) if value else "" for name, value in files.items()}
    texts = {name: value for name, value in paths.items() if value} | {
        name: value for name, value in (("user", user), ("secret", secret)) if value
    }
    # ConfigError for what does not go together.
    Security(tls, paths["tls_ca"], paths["tls_cert"], paths["tls_key"], False, user, secret)
    security = path.with_suffix(".security")
    if tls or texts:
        _write(security, _toml({"tls": tls, **texts}))
    else:
        security.unlink(missing_ok=True)
    _write(path, _toml({"registry": registry}))
    if not word("current"):
        _use(name)
    if as_json:
        print_rows([{"context": name, "done": "add"}], True)


def _use(name: str) -> None:
    _write(folder() / ".previous", word("current"))
    _write(folder() / ".current", name)


@context.command("use")
@with_json
@click.argument("name")
def context_use(as_json: bool, name: str) -> None:
    """Use a context from now on; -: the one before."""
    name = word("previous") if name == "-" else name
    if not name:
        raise NotFound("no context was used before", "`penstock context ls` lists them.")
    read(name)
    _use(name)
    if as_json:
        print_rows([{"context": name, "done": "use"}], True)
    else:
        click.echo(f"in use: {name}")


@context.command("ls")
@with_json
def context_ls(as_json: bool) -> None:
    """The contexts; no secret is shown."""
    rows = []
    here = current()
    for path in sorted(folder().glob("*.toml")) if folder().is_dir() else ():
        try:
            told = read(path.stem)
        except ConfigError as error:  # the others are contexts all the same
            click.echo(f"penstock: {error}", err=True)
            continue
        about = _security(path.with_suffix(".security"))
        rows.append(
            {
                "context": path.stem,
                "registry": told.get("registry", ""),
                "user": about.get("user", ""),
                "tls": bool(about.get("tls")),
                "in_use": path.stem == here,
            }
        )
    print_rows(rows, as_json)


def _security(path: Path) -> dict[str, object]:
    import tomllib

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}


@context.command("rm")
@with_json
@click.argument("name")
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Say what would be deleted.")
def context_rm(as_json: bool, name: str, force: bool, dry_run: bool) -> None:
    """Delete a context and its secret."""
    if not path_of(name).exists():  # what is no context any more is deleted as well
        read(name)
    if not dry_run:
        confirm(f"Delete context {name}?", force)
        for path in (path_of(name), path_of(name).with_suffix(".security")):
            path.unlink(missing_ok=True)
        if word("current") == name:
            (folder() / ".current").unlink(missing_ok=True)
    print_rows([{"context": name, "done": "" if dry_run else "rm"}], as_json)
