"""`penstock config show | check | reload`: settings as they would hold, where each comes from, and taken anew."""

from __future__ import annotations

import sys

import click

import penstock
from penstock.cli.tools import Command, NamedPath, Whole, print_rows, with_json, with_registry
from penstock.config import HIDDEN, BrokerConfig, RegistryConfig, is_secret, load, meanings, sources

_ROLES: tuple[tuple[str, type[BrokerConfig] | type[RegistryConfig]], ...] = (
    ("broker", BrokerConfig),
    ("registry", RegistryConfig),
)


def _given(command: Command) -> Command:
    for option in (
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="As the broker would be started."),
        click.option("--config", "file", type=NamedPath(dir_okay=False), help="TOML file, as the broker's."),
        click.option("--data", type=NamedPath(file_okay=False), help="Data folder, as the broker's."),
    ):
        command = option(command)
    return command


@click.group(cls=Whole)
def config() -> None:
    """Look at settings; have a broker take them anew."""


def _said(settings: tuple[str, ...], data: str | None) -> dict[str, dict[str, object]]:
    """What flags say for each role. ConfigError."""
    from penstock.cli.main import set_flags

    return {role: {"data": data} | said for role, said in set_flags(settings, "broker", "registry").items()}


def _rows(file: str | None, said: dict[str, dict[str, object]]) -> list[dict[str, object]]:
    """Every setting with its value and where that comes from. ConfigError."""
    rows: list[dict[str, object]] = []
    for role, kind in _ROLES:
        found = load(kind, role, file, said[role])  # type: ignore[type-var]
        origin = sources(role, file, said[role])
        for name in kind.__struct_fields__:
            value = getattr(found, name)
            if value and is_secret(name):
                value = HIDDEN
            rows.append({"setting": f"{role}.{name}", "value": value, "source": origin.get(name, "default")})
    return rows


@config.command("show")
@with_json
@_given
@click.option("--explain", is_flag=True, help="All settings with what they mean, not only those that are set.")
def config_effective(
    as_json: bool, file: str | None, data: str | None, settings: tuple[str, ...], explain: bool
) -> None:
    """The settings that a broker and a registry would have, started here with these options, and where each comes from."""
    rows = _rows(file, _said(settings, data))
    if explain:
        about = {f"{role}.{name}": text for role, kind in _ROLES for name, text in meanings(kind).items()}
        rows = [row | {"about": about[str(row["setting"])]} for row in rows]
    else:
        rows = [row for row in rows if row["source"] != "default"]
    print_rows([{name: _plain(value) for name, value in row.items()} for row in rows], as_json)


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | str) else str(value)


@config.command("check")
@with_json
@_given
@click.option(
    "--role",
    type=click.Choice(["up", "broker", "registry"]),
    default="up",
    show_default=True,
    help="What is to be started: both as `penstock up` has them, or one alone.",
)
def config_check(as_json: bool, file: str | None, data: str | None, settings: tuple[str, ...], role: str) -> None:
    """Whether a broker and a registry could be started with these settings: exit code 0, or 2 and why not."""
    from penstock.cli.main import both
    from penstock.fronts.soundness import check_addresses, check_files, check_settings
    from penstock.registration.engine import check_engine

    said = _said(settings, data)
    checked = [one for one, _ in _ROLES if role in ("up", one)]
    count = sum(
        row["source"] != "default" and str(row["setting"]).partition(".")[0] in checked for row in _rows(file, said)
    )
    broker = load(BrokerConfig, "broker", file, said["broker"]) if "broker" in checked else None
    registry = load(RegistryConfig, "registry", file, said["registry"]) if "registry" in checked else None
    roles = both(data, None, file, settings, {}) if role == "up" else (broker, registry)
    # `up` has one folder and one file of users, whatever is said of the registry alone.
    for some in ((broker, None), (None, registry), roles):
        check_settings(*some)
        check_addresses(*some)
    if broker is not None:
        check_engine(broker)
    check_files(*roles)
    if as_json:
        print_rows([{"ok": True, "set": count}], True)
    else:
        click.echo(f"fine: {count} settings are set, the others are the defaults")


@config.command("reload")
@with_registry
@with_json
@click.option("--broker", help="Of one broker alone.")
def config_reload(registry: str, as_json: bool, broker: str | None) -> None:
    """Have the brokers read their file of settings again, as SIGHUP has it; say what holds now and what needs a restart.

    Exit code 0, also when something needs a restart.
    """
    with penstock.Admin(registry) as admin:
        rows = admin.reload_config(broker)
    print_rows(rows, as_json)
    if any(row["effect"] == "restart" for row in rows) and not as_json:
        click.echo("what says restart holds after the next start", err=True)
    sys.stdout.flush()
