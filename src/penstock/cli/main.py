"""The `penstock` command."""

from __future__ import annotations

import errno
import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click

from penstock.cli.tools import NamedPath, Whole, end_unread, printable
from penstock.errors import (
    INTERRUPTED,
    BrokerRefused,
    ConfigError,
    ConnectionLost,
    NotEverywhere,
    NotTrusted,
    PenstockError,
    StoreError,
)
from penstock.version import __version__

if TYPE_CHECKING:  # a verb that asks a cluster has no settings, and they are a tenth of its start
    from penstock.config import BrokerConfig, ConnectionSettings, RegistryConfig

EXITS = {"ConfigError": 2, "Locked": 2, "NotFound": 3, "NoRoute": 3, "TimedOut": 124}
REFUSED = 4  # this user may not
# What to do next about a connection, where the error itself does not say it.
HINTS = {
    "NotTrusted": (
        "Its certificate is not one for this name that is trusted here: PENSTOCK_TLS_CA is the file of who signs it."
    ),
    "NotConnected": "Does it run there? `penstock up` starts one of each; -n, or `penstock context use`, names another.",
    "ConnectionLost": "Is that the port of a registry (9876) or broker (10911), and does it want TLS (PENSTOCK_TLS)?",
    "Senseless": "Which version runs there? `penstock broker ls` tells each one's.",
    "NoRoute": "`penstock topic ls`, `penstock channel ls` and `penstock broker ls` list what there is.",
    "TimedOut": "`penstock status HOST:4151` says whether it serves; where it is slow, the call may go through later.",
}
# About a connection that this machine could not make, by the number of the error.
OWN_HINTS = {
    errno.ENOBUFS: "This machine has no memory left for it: end something else, then call it again.",
    errno.ENOMEM: "This machine has no memory left for it: end something else, then call it again.",
    errno.EACCES: "This machine lets nobody connect there: is it a firewall, or the sandbox of a container?",
    errno.EPERM: "This machine lets nobody connect there: is it a firewall, or the sandbox of a container?",
    errno.ENETUNREACH: "No way leads there from this machine: is the address right, and the network up?",
    errno.EHOSTUNREACH: "No way leads there from this machine: is the address right, and the network up?",
    errno.EADDRNOTAVAIL: "Is the address right? Else all ports are in use that this machine may connect from.",
}
UNKNOWN_HOST = "Is the host's name spelled right? This machine finds no address for it."
# And about what a broker refused, by the code.
REFUSALS = {
    3: "Is -n the port of a registry (9876)? A broker's own (10911) does not know where topics are.",
    16: "`penstock topic describe NAME` shows what may be done with it; `penstock topic alter --perm` changes that.",
    17: "`penstock topic ls` lists the topics.",
    22: "`penstock delayed ls`, `penstock peek TOPIC` and `penstock message find TOPIC KEY` show what there is.",
    26: "`penstock group ls` lists the groups.",
}
# The same code, where the request is one that RocketMQ does not have: 77001 and so on (docs/protocol.md).
OWN_REQUEST = "request type 77"
NOT_OURS = (
    "The broker is RocketMQ's, or an older Penstock: `penstock broker ls` tells its version. `penstock group ls`, "
    "`topic info`, `message find` and `tail` ask for nothing of Penstock's own."
)
DENIED = "`penstock user ls` shows who may what; `penstock user grant` gives a right. Who calls says PENSTOCK_USER."
# And about a file.
FILE_HINTS = {
    errno.EACCES: "This user may not read or write there: run it as one who may, or name another place.",
    errno.EROFS: "What is mounted there is read-only: name another place.",
    errno.ENOTDIR: "A part of this path is a file, and no folder: name another place.",
    errno.ENOENT: "Is the path spelled right, and is its folder there?",
    errno.ENOSPC: "Make room on that file system, then call it again.",
    errno.ENOSYS: "Does a sandbox (seccomp) refuse this call, or does the kernel not know it? Allow it, or name another place.",
    errno.EPERM: "Does a sandbox (seccomp) refuse this call, or may that file not be changed (lsattr)? Allow it.",
    errno.EIO: "A part of the disk is bad: docs/operate.md says how to save the folder (A part of the disk cannot be read).",
    errno.ENODEV: "That file system maps no files into memory (FUSE with direct_io, for one): name another place.",
    errno.ENOLCK: "Mount that file system with locks, or name another place.",
    errno.EDQUOT: "This user's quota there is used up: make room, or name another place.",
    errno.EFBIG: "That file may grow no more: raise the limit (ulimit -f), or name a place on another file system.",
    errno.EISDIR: "That is a folder: name a file.",
    errno.ELOOP: "Its links go round: name the file itself.",
    errno.ENAMETOOLONG: "That name is too long for a file system: name another place.",
    errno.ENFILE: "All of this machine has too many files open (fs.file-max): close some, then call it again.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n, LimitNOFILE), then call it again.",
}
NOT_THERE = (17, 22, 26)  # what a broker answers of a topic, a message and a group that it has not
EXTRAS = {
    "pyspark": "spark", "pyarrow": "spark", "pandas": "spark", "numpy": "spark", "deltalake": "delta", "pyiceberg": "iceberg",
    "matplotlib": "charts", "plotext": "charts", "rich": "cli",
    "starlette": "console", "jinja2": "console", "markupsafe": "console",
}  # fmt: skip


Settings = dict[str, object]
Command = TypeVar("Command", bound=Callable[..., object])


# The first sentence of each command that is imported when it is called.
ABOUTS = {
    "bench": "Measure what a broker does from here.",
    "channel": "Look at channels and change them.",
    "cheat": "Print what one types most, of one subject or of all.",
    "client": "Look at who is connected, end a connection.",
    "completion": "Print what makes SHELL complete commands, options and the names of topics, groups and channels.",
    "config": "Look at settings.",
    "console": "Run the web console of a cluster.",
    "context": "Registries, users and TLS under names.",
    "delayed": "Look at delayed and deferred messages.",
    "demo": "Publish real events, consume them with a group, archive and summarise them with Spark, draw a chart.",
    "dlq": "Dead letters.",
    "export": "Write the messages of TOPIC to FILE (-: standard output) as JSON lines.",
    "group": "Look at consumer groups, move them, delete them.",
    "ha": "Look at masters and their slaves, and change who is which.",
    "import": "Send the messages of FILE (-: standard input), which `penstock export` wrote.",
    "message": "Find messages.",
    "peek": "Show messages of a topic of either kind, and change nothing.",
    "send": "Send messages.",
    "spark": "Jobs over topics with Spark.",
    "status": "Say whether the brokers or registries at these HTTP addresses serve.",
    "store": "Look into the files of a broker.",
    "sub": "The messages of a topic as they come, a line each, until Ctrl-C.",
    "tail": "The messages of a topic as they come, a line each, until Ctrl-C.",
    "top": "Show topics with their readers, rates and lag, the busiest first, again and again until Ctrl-C.",
    "topic": "List, create, change and delete topics.",
    "user": "Make users, and say what they may do.",
}


class Lazy(Whole):
    """A group whose large members are imported when they are called: `penstock --help` stays quick."""

    elsewhere = {
        "spark": "penstock.cli.spark:spark",
        "store": "penstock.cli.store:store",
        "demo": "penstock.demo.command:demo",
        "topic": "penstock.cli.topics:topic",
        "group": "penstock.cli.groups:group",
        "dlq": "penstock.cli.deadletters:dlq",
        "channel": "penstock.cli.peek:channel",
        "peek": "penstock.cli.peek:peek",
        "delayed": "penstock.cli.queues:delayed",
        "message": "penstock.cli.messages:message",
        "bench": "penstock.cli.bench:bench",
        "top": "penstock.cli.top:top",
        "context": "penstock.cli.contexts:context",
        "completion": "penstock.cli.completions:completion",
        "cheat": "penstock.cli.cheat:cheat",
        "client": "penstock.cli.clusters:client",
        "config": "penstock.cli.configs:config",
        "status": "penstock.cli.status:status",
        "tail": "penstock.cli.reading:tail",
        "sub": "penstock.cli.reading:tail",
        "export": "penstock.cli.reading:export",
        "import": "penstock.cli.sending:import_command",
        "send": "penstock.cli.sending:send",
        "user": "penstock.cli.users:user",
        "ha": "penstock.cli.ha:ha",
        "console": "penstock.cli.console:console",
    }

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.elsewhere})

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        target = self.elsewhere.get(name)
        if target is None:
            return super().get_command(ctx, name)
        from importlib import import_module

        module, _, attribute = target.partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        if "_PENSTOCK_COMPLETE" in os.environ:
            _complete_names(command)
        return command

    def about(self, ctx: click.Context, name: str) -> str:
        """Not one of them is imported for that."""
        known = ABOUTS.get(name) if type(self) is Lazy else None
        return super().about(ctx, name) if known is None else known

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        """As click does, and prints --help and --version; it would call it a failure that nobody reads them."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            end_unread()

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except PenstockError as error:
            _say(error)
            hint = _of_another_kind(error) or error.hint or _next_step(error)
            if hint:
                click.echo(f"  {hint}", err=True)
            ctx.exit(_exit_code(error))
        except ModuleNotFoundError as error:
            extra = EXTRAS.get((error.name or "").partition(".")[0])
            _say(error)
            if extra:
                click.echo(f"  Install it with pip install 'penstock[{extra}]'.", err=True)
            ctx.exit(1)
        except BrokenPipeError:  # `… | head`
            end_unread()
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)
        except (ValueError, OSError) as error:  # what a library refuses of an argument, and what a file is not
            if isinstance(error, UnicodeEncodeError) and not error.object.isascii():
                _say(ValueError(f"{ascii(error.object)[:100]} is no text in UTF-8"))
                click.echo("  Names, keys, tags and properties are text; a body may be any bytes.", err=True)
                ctx.exit(2)
            _say(error)
            if (number := getattr(error, "errno", 0)) in FILE_HINTS:
                click.echo(f"  {FILE_HINTS[number]}", err=True)
            ctx.exit(2 if isinstance(error, ValueError) else 1)


def _of_another_kind(error: PenstockError) -> str:
    """What is to be said when only brokers that know no request of ours refused."""
    refused = error.missed.values() if isinstance(error, NotEverywhere) else (error,)
    if all(isinstance(one, BrokerRefused) and OWN_REQUEST in one.remark for one in refused):
        return NOT_OURS
    return ""


def _next_step(error: PenstockError) -> str:
    if getattr(error, "denied", False):
        return DENIED
    if isinstance(error, StoreError) and isinstance(error.__cause__, OSError):
        return FILE_HINTS.get(error.__cause__.errno or 0, "")
    own = _own_step(error) if isinstance(error, ConnectionLost) else ""
    return own or HINTS.get(type(error).__name__) or REFUSALS.get(getattr(error, "code", 0), "")


def _own_step(error: ConnectionLost) -> str:
    """What to do where it is this machine that could not connect, or the two do not trust each other; empty: another thing."""
    cause = error.__cause__
    kind = type(cause).__name__  # `ssl` and `socket` are not imported for that
    if isinstance(error, NotTrusted):
        return HINTS["NotTrusted"]
    if kind == "gaierror":
        return UNKNOWN_HOST
    if isinstance(cause, ConnectionResetError) or kind.startswith("SSL"):  # in the first words that were said
        return HINTS["ConnectionLost"]
    number = (cause.errno if isinstance(cause, OSError) else None) or 0
    return FILE_HINTS[number] if number in (errno.EMFILE, errno.ENFILE) else OWN_HINTS.get(number, "")


def _say(error: Exception) -> None:
    """What went wrong; what a peer said of it does nothing to a terminal."""
    click.echo("penstock: " + "\n".join(map(printable, str(error).split("\n"))), err=True)


def _complete_names(command: click.Command) -> None:
    """Its arguments and options that are names of topics, groups and channels offer those there are."""
    from penstock.cli.names import names_for

    for one in [command, *(command.commands.values() if isinstance(command, click.Group) else ())]:
        for param in one.params:
            if param.name in ("name", "topic", "group", "channel", "channel_name", "of", "to"):
                vars(param)["_custom_shell_complete"] = names_for


def _exit_code(error: PenstockError) -> int:
    if getattr(error, "denied", False):
        return REFUSED
    return 3 if getattr(error, "code", 0) in NOT_THERE else EXITS.get(type(error).__name__, 1)


@click.group(cls=Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """A message queue for Python and Spark: one stored topic as an NSQ channel, a RocketMQ queue and a Spark table."""


def _starts(command: Command) -> Command:
    """The flags every command has that starts something."""
    for option in (
        click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any setting of docs/settings.md."),
        click.option(
            "--config", type=NamedPath(dir_okay=False), help="TOML file with [broker], [registry], [[topic]]."
        ),
        click.option("--host", help="Address to listen on (default 127.0.0.1)."),
        click.option(
            "--data", type=NamedPath(file_okay=False), help="Folder for everything kept (default penstock-data)."
        ),
    ):
        command = option(command)
    return command


def _ports(*wanted: str) -> Callable[[Command], Command]:
    """A flag for each of these listeners."""
    abouts = {
        "remoting": "RocketMQ protocol (10911)",
        "nsq": "NSQ protocol (4150)",
        "http": "HTTP (4151)",
        "registry": "Name server (9876)",
        "lookup": "nsqlookupd's protocol (4160)",
        "lookup-http": "nsqlookupd's HTTP (4161)",
    }

    def add(command: Command) -> Command:
        for name in reversed(wanted):
            option = click.option(
                f"--{name}-port", type=click.IntRange(-1, 65535), help=f"{abouts[name]}; 0: any, -1: none."
            )
            command = option(command)
        return command

    return add


def set_flags(settings: tuple[str, ...], *roles: str) -> dict[str, Settings]:
    """What --set says for each of these roles. A name is the setting's, or, as `penstock settings` prints it, the role's
    and the setting's; without the role it is that of the first role that knows it.
    """
    said: dict[str, Settings] = {role: {} for role in roles}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is not KEY=VALUE", param_hint="--set")
        role, dot, own = name.strip().replace("-", "_").partition(".")
        if not dot:
            role, own = next((r for r in roles if role in _names(r)), roles[0]), role
        if role in _roles() and role not in roles:
            hint = f"penstock {role} --set {own}=… is the command for it."
            raise ConfigError(f"--set: {name.strip()} is no setting of the {roles[0]}", hint)
        if role not in roles:
            raise ConfigError(f"--set: unknown setting {name.strip()}", "`penstock settings` prints them all.")
        said[role][own] = text
    return said


def _roles() -> dict[str, type[ConnectionSettings]]:
    from penstock.config import BrokerConfig, RegistryConfig

    return {"broker": BrokerConfig, "registry": RegistryConfig}


def _names(role: str) -> set[str]:
    from penstock.config import defaults

    return set(defaults(_roles()[role]))


@main.command()
@_starts
@_ports("remoting", "nsq", "http", "registry", "lookup", "lookup-http")
@click.option(
    "--brokers",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="How many brokers, each in a process, with a folder and ports (+100, +200, …) of its own.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 8),
    default=1,
    show_default=True,
    help="How many copies of each broker's log: a master and slaves, each in a process of its own. From 3 on with etcd, "
    "where it is installed: who is the master is decided there.",
)
@click.option("--level", help="Level of new topics: os, disk, memory, pair or pair-disk.")
@click.option(
    "--console-port",
    type=click.IntRange(-1, 65535),
    help="The web console (4171, read-only); 0: any, -1: none. None without it where --http-port is not the usual one.",
)
def up(
    data: str | None, host: str | None, config: str | None, settings: tuple[str, ...], brokers: int, replicas: int,
    level: str | None, console_port: int | None, **ports: int | None,
) -> None:  # fmt: skip
    """Run a registry and a broker in one process: all that is needed on one machine. Several brokers use several cores."""
    gc.disable()  # nothing of what a start makes is garbage; `serve` goes on collecting
    from penstock.config import BrokerConfig, defaults
    from penstock.registration.ownengine import wanted
    from penstock.serve import run
    from penstock.supervisor import check_masters, members, supervise
    from penstock.supervisor import replicas as with_slaves

    if level is not None:
        settings = (*settings, f"broker.level={level}")

    def read() -> tuple[BrokerConfig, RegistryConfig]:
        return both(data, host, config, settings, ports)

    broker, registry = read()
    if console_port is None:  # a broker on ports of its own is somebody's experiment
        console_port = 4171 if broker.http_port == defaults(BrokerConfig)["http_port"] else -1
    beside = None if console_port < 0 else partial(_console_beside, console_port)

    def read_all() -> tuple[list[BrokerConfig], RegistryConfig]:
        broker, registry = read()
        return with_slaves(members(broker, brokers), replicas), registry

    configs = with_slaves(members(broker, brokers), replicas)
    engine = wanted(configs, replicas)
    if engine is None and not broker.engine:
        check_masters(configs)
    if len(configs) == 1:
        run(broker, registry, read=read, beside=beside)
    else:
        gc.enable()
        supervise(configs, registry, read_all, beside=beside, engine=engine)


def _console_beside(port: int, addresses: Mapping[str, object]) -> None:
    from penstock.cli.console import start_beside

    start_beside(addresses, port)


@main.command()
@_starts
@_ports("remoting", "nsq", "http", "registry", "lookup", "lookup-http")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def doctor(
    data: str | None,
    host: str | None,
    config: str | None,
    settings: tuple[str, ...],
    as_json: bool,
    **ports: int | None,
) -> None:
    """Say of each listener that `penstock up` would open who can reach it, its TLS and its users; exit code 1 where
    something should be done.
    """
    from penstock.cli.doctor import rows
    from penstock.cli.tools import print_rows

    found = rows(*both(data, host, config, settings, ports))
    print_rows(found, as_json)
    sys.exit(1 if any(row["advice"] for row in found) else 0)


def both(
    data: str | None, host: str | None, config: str | None, settings: tuple[str, ...], ports: Mapping[str, int | None]
) -> tuple[BrokerConfig, RegistryConfig]:
    """The settings of a broker and a registry that run together."""
    from msgspec.structs import replace

    from penstock.access.rights import users_file
    from penstock.config import BrokerConfig, RegistryConfig, load, sources
    from penstock.fronts.soundness import check_addresses

    said = set_flags(settings, "broker", "registry")
    registrys = ("registry_port", "lookup_port", "lookup_http_port")
    own = {name: port for name, port in ports.items() if name in registrys} | said["registry"]
    brokers = {name: port for name, port in ports.items() if name not in registrys} | said["broker"]
    brokers = {name: value for name, value in (("data", data), ("host", host)) if value is not None} | brokers
    broker = load(BrokerConfig, "broker", config, brokers)
    broker = replace(broker, users=str(users_file(broker.users, broker.data)))  # one file for all of them
    # What the two have in common is set for both; of `apart` the registry may have its own.
    as_one = {name: getattr(broker, name) for name in ("data", "users", "failed_logins_per_minute")}
    apart = ("host", "insecure", "allowed_hosts", "broadcast_address", "log_level", "log_format")
    flags = as_one | {name: brokers[name] for name in apart if name in brokers} | own
    registry = load(RegistryConfig, "registry", config, flags)
    own_words = sources("registry", config, flags)
    registry = replace(registry, **{name: getattr(broker, name) for name in apart if name not in own_words})
    check_addresses(broker, registry)
    return broker, registry


class Brokers(Lazy):
    """`penstock broker` runs one; `penstock broker ls` lists them."""

    elsewhere = {"ls": "penstock.cli.clusters:broker_ls"}


@main.group(cls=Brokers, invoke_without_command=True)
@_starts
@_ports("remoting", "nsq", "http")
@click.option("--registry", help="Registries to register with: host:port;host:port.")
def broker(
    data: str | None, host: str | None, config: str | None, settings: tuple[str, ...],
    registry: str | None, **ports: int | None,
) -> None:  # fmt: skip
    """Run a broker."""
    if click.get_current_context().invoked_subcommand is not None:
        return
    gc.disable()
    from penstock.config import BrokerConfig, load
    from penstock.fronts.soundness import check_addresses
    from penstock.serve import run

    flags = {"data": data, "host": host, "registry": registry} | ports | set_flags(settings, "broker")["broker"]

    def read() -> tuple[BrokerConfig, None]:
        found = load(BrokerConfig, "broker", config, flags)
        check_addresses(found, None)
        return found, None

    run(*read(), read=read)


@main.command()
@_starts
@_ports("registry", "lookup", "lookup-http")
def registry(
    data: str | None, host: str | None, config: str | None, settings: tuple[str, ...], **ports: int | None
) -> None:
    """Run a registry: name server and nsqlookupd."""
    gc.disable()
    from penstock.config import RegistryConfig, load
    from penstock.fronts.soundness import check_addresses
    from penstock.serve import run

    flags = {"data": data, "host": host} | ports | set_flags(settings, "registry")["registry"]

    def read() -> tuple[None, RegistryConfig]:
        found = load(RegistryConfig, "registry", config, flags)
        check_addresses(None, found)
        return None, found

    run(*read(), read=read)


@main.command("settings")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.option("--markdown", is_flag=True, help="As docs/settings.md has it.")
def settings_command(as_json: bool, markdown: bool) -> None:
    """Print every setting with its default and meaning."""
    from penstock.config import ConnectionSettings, defaults, meanings

    common = defaults(ConnectionSettings)  # last
    table = [
        {"role": role, "name": name, "default": default, "about": about[name]}
        for role, kind in _roles().items()
        for about in (meanings(kind),)
        for name, default in sorted(defaults(kind).items(), key=lambda setting: setting[0] in common)
    ]
    if as_json:
        json.dump(table, sys.stdout, default=str)
        print()
        return
    if markdown:
        click.echo("# Settings\n\nMade by `penstock settings --markdown`.")
        for role in ("broker", "registry"):
            click.echo(f"\n## [{role}]\n\n| setting | default | meaning |\n|---|---|---|")
            for row in table:
                if row["role"] == role:
                    click.echo(f"| `{row['name']}` | {row['default']} | {row['about']} |")
        return
    for row in table:
        click.echo(f"{row['role']}.{row['name']} = {row['default']!s}  — {row['about']}")
