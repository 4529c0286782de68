"""`penstock user`: who may do what. It changes the file of users, which running brokers and registries read again at once."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import click
from msgspec.structs import replace

from penstock.access import usersfile
from penstock.access.rights import users_file
from penstock.access.users import Right, User, Verb, check_address, check_name, check_secret, read_right, token_digest
from penstock.cli.tools import NamedPath, Whole, confirm, print_rows, with_dry_run, with_json
from penstock.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., object])
_SECRET_BYTES = 24


def _with_file(command: Command) -> Command:
    for option in (
        click.option("--users", default="", envvar="PENSTOCK_BROKER__USERS", help="The file; users.toml in --data without it."),
        click.option(
            "--data", default="penstock-data", envvar="PENSTOCK_BROKER__DATA", show_default=True,
            type=NamedPath(file_okay=False), help="The data folder of the broker or registry.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def _known(users: dict[str, User], name: str) -> User:
    if name not in users:
        raise ConfigError(f"no user {name}", f"There are {', '.join(sorted(users)) or 'none'}.")
    return users[name]


def _rights(texts: tuple[str, ...]) -> tuple[Right, ...]:
    return tuple(dict.fromkeys(map(read_right, texts)))


@contextmanager
def _telling(tell: Callable[[], object]) -> Iterator[None]:
    """Tell of the change that is made within; also of one that counts and is not durable: a secret is told once or never."""
    try:
        yield
    except usersfile.NotFlushed:
        tell()
        raise
    tell()


@click.group(cls=Whole)
def user() -> None:
    """Make users, and say what they may do. From the first one on nothing is allowed that was not granted."""


@user.command("add")
@_with_file
@with_json
@click.argument("name")
@click.argument("rights", nargs=-1)
@click.option("--secret-file", type=click.File("r"), help="Where its secret stands; - for the standard input.")
@click.option("--no-secret", is_flag=True, help="Known by its address or its certificate alone.")
@click.option(
    "--address",
    "addresses",
    multiple=True,
    help="Where it may come from, as 192.168.0.*; else anywhere.",
)
def user_add(
    data: str, users: str, as_json: bool, name: str, rights: tuple[str, ...], secret_file: click.File | None,
    no_secret: bool, addresses: tuple[str, ...],
) -> None:  # fmt: skip
    """Make a user with RIGHTS such as publish:orders, subscribe:orders.*, group:billing, monitor, register, admin.

    Its secret is made up and printed once, unless it is given."""
    check_name(name)
    for address in addresses:
        check_address(address)
    made = "" if no_secret or secret_file is not None else secrets.token_urlsafe(_SECRET_BYTES)
    secret = made
    if secret_file is not None:
        secret = check_secret(name, secret_file.read().strip())  # type: ignore[attr-defined]
    path = users_file(users, data)

    def tell() -> None:
        if as_json:
            print_rows([{"user": name, "file": str(path), "secret": made}], True)
        else:
            click.echo(f"user {name} in {path}" + (f", secret {made}" if made else ""))

    with _telling(tell), usersfile.changing(path) as known:
        if name in known:
            raise ConfigError(f"user {name} is there already", "`penstock user grant` gives it more rights.")
        known[name] = User(name, secret, _rights(rights), addresses)


@user.command("rm")
@_with_file
@with_json
@with_dry_run
@click.argument("name")
@click.option("-f", "--force", is_flag=True, help="Do not ask.")
def user_rm(data: str, users: str, as_json: bool, dry_run: bool, name: str, force: bool) -> None:
    """Remove a user: its connections may do nothing more."""
    path = users_file(users, data)
    if dry_run:
        one = _known(usersfile.read(path), name)
        click.echo(json.dumps(_row(one, True) | {"done": ""}) if as_json else f"would remove user {name} from {path}")
        return
    confirm(f"Remove user {name}?", force)
    with usersfile.changing(path) as known:
        _known(known, name)
        del known[name]
    _done(as_json, name, "rm")


def _done(as_json: bool, name: str, what: str, **more: object) -> None:
    """One line for a program; people see nothing where nothing went wrong."""
    if as_json:
        print_rows([{"user": name, "done": what, **more}], True)


@user.command("ls")
@_with_file
@with_json
def user_ls(data: str, users: str, as_json: bool) -> None:
    """The users and their rights; no secrets."""
    found = usersfile.read(users_file(users, data))
    print_rows((_row(one, as_json) for one in found.values()), as_json)


def _row(one: User, as_json: bool) -> dict[str, object]:
    rights = [*map(str, one.rights)]
    rights += [f"{'|'.join(sorted(verbs)) or 'deny'}:{name}" for name, verbs in one.topics.items()]
    rights += [f"{'group' if may else 'deny group'}:{name}" for name, may in one.groups.items()]
    lists: dict[str, list[str]] = {"rights": rights, "addresses": [*one.addresses]}
    told = lists if as_json else {name: " ".join(values) for name, values in lists.items()}
    return {"user": one.name, "secret": bool(one.secret), "tokens": len(one.tokens), **told}


@user.command("grant")
@_with_file
@with_json
@click.argument("name")
@click.argument("rights", nargs=-1, required=True)
def user_grant(data: str, users: str, as_json: bool, name: str, rights: tuple[str, ...]) -> None:
    """Give a user more rights."""
    with usersfile.changing(users_file(users, data)) as known:
        one = _known(known, name)
        known[name] = now = replace(one, rights=tuple(dict.fromkeys((*one.rights, *_rights(rights)))))
    _done(as_json, name, "grant", rights=[*map(str, now.rights)])


@user.command("revoke")
@_with_file
@with_json
@click.argument("name")
@click.argument("rights", nargs=-1, required=True)
def user_revoke(data: str, users: str, as_json: bool, name: str, rights: tuple[str, ...]) -> None:
    """Take rights away, as they were granted."""
    with usersfile.changing(users_file(users, data)) as known:
        one, taken = _known(known, name), _rights(rights)
        if missing := [str(right) for right in taken if right not in one.rights]:
            raise ConfigError(
                f"user {name} has not been granted {missing[0]}", f"It has {' '.join(map(str, one.rights))}."
            )
        known[name] = now = replace(one, rights=tuple(right for right in one.rights if right not in taken))
    _done(as_json, name, "revoke", rights=[*map(str, now.rights)])


@user.command("secret")
@_with_file
@with_json
@click.argument("name")
@click.option(
    "--secret-file", type=click.File("r"), help="Where the new secret stands; made up and printed without it."
)
def user_secret(data: str, users: str, as_json: bool, name: str, secret_file: click.File | None) -> None:
    """Give a user another secret: with the old one it may do nothing more."""
    secret = secrets.token_urlsafe(_SECRET_BYTES)
    if secret_file is not None:
        secret = check_secret(name, secret_file.read().strip())  # type: ignore[attr-defined]
    made = secret if secret_file is None else ""

    def tell() -> None:
        if as_json:
            _done(as_json, name, "secret", secret=made)
        elif made:
            click.echo(made)

    with _telling(tell), usersfile.changing(users_file(users, data)) as known:
        known[name] = replace(_known(known, name), secret=secret)


@user.command("token")
@_with_file
@with_json
@click.argument("name")
def user_token(data: str, users: str, as_json: bool, name: str) -> None:
    """Make a token for HTTP and print it once: `Authorization: Bearer TOKEN`, or NSQ's AUTH."""
    token = secrets.token_urlsafe(_SECRET_BYTES)

    def tell() -> None:
        if as_json:
            _done(as_json, name, "token", token=token)
        else:
            click.echo(token)

    with _telling(tell), usersfile.changing(users_file(users, data)) as known:
        one = _known(known, name)
        known[name] = replace(one, tokens=(*one.tokens, token_digest(token)))


@user.command("check")
@_with_file
@with_json
@click.argument("name")
@click.argument("right")
@click.option("--address", default="", help="Coming from there.")
def user_check(data: str, users: str, as_json: bool, name: str, right: str, address: str) -> None:
    """Whether a user has a right, such as publish:orders; exit code 1 where it has not."""
    one = _known(usersfile.read(users_file(users, data)), name)
    wanted = read_right(right)
    why = ""
    if address and not one.comes_from(address):
        why = f"{name} may not come from {address}"
    elif not one.may(wanted.verb, wanted.pattern):
        why = f"{name} has no right {right}: it has {' '.join(map(str, one.rights)) or 'none'}"
    if as_json:
        print_rows([{"user": name, "right": right, "granted": not why, "why": why}], True)
    else:
        click.echo(
            why or f"{name} may {right}" + (" (admin)" if one.is_admin and wanted.verb is not Verb.ADMIN else "")
        )
    if why:
        sys.exit(1)
