"""What the commands share: their common options, how rows are printed, how a deletion is confirmed."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, NoReturn, TypeVar

import click

from penstock.errors import BrokerRefused, ConnectionLost, NoRoute, NotEverywhere, NotFound, PenstockError, TimedOut
from penstock.wire.codes import ResponseCode

if TYPE_CHECKING:
    from penstock import Admin

DAY_S = 86_400
PARTLY = "What is shown is what the others say; `penstock broker ls` tells who answers."
TIME_MAX_MS = 253_402_300_799_000  # the last second of the year 9999
_OF_FILES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_UNIT_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
# Patterns that are compiled when one is needed: most verbs need none.
_PIECE = r"([0-9]{1,12})(ms|s|min|m|h|d)"
_SIZE = r"([0-9]{1,15})([KMGT]?)(?:i?B)?"
_DURATION = rf"(?:{_PIECE})+"

Command = TypeVar("Command", bound=Callable[..., object])


class Amount(click.FloatRange):
    """A number with a least and a most; `nan` is none, though it is neither less nor more."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """As click has it."""
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


class NamedPath(click.Path):
    """A path that has a name: an empty one, of a variable that is not set, is neither the present folder nor no file."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """As click has it."""
        if not str(value):
            self.fail("an empty name", param, ctx)
        return super().convert(value, param, ctx)


def end_unread(code: int = 0) -> NoReturn:
    """Who reads has enough, and that is well; what is still buffered goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def first_sentence(command: click.Command) -> str:
    """What a command is for."""
    about = " ".join((command.help or "").split("\n\n")[0].split())
    return re.split(r"(?<!\(-)[.:;] ", about)[0].rstrip(".") + "."


# As commands are called by the tools of Kafka, NSQ, RocketMQ and NATS.
_ELSEWHERE = {"create": "add", "update": "alter", "delete": "rm", "remove": "rm", "list": "ls", "show": "info"}


class Whole(click.Group):
    """A group whose help has the first sentence of each command whole: click cuts it off."""

    def about(self, ctx: click.Context, name: str) -> str:
        """What one command is for."""
        command = self.get_command(ctx, name)
        return "" if command is None else first_sentence(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, but whole."""
        rows = [(name, self.about(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, which names a command that is spelled alike; here one that is called otherwise elsewhere, too."""
        ours = _ELSEWHERE.get(args[0], "")
        if args[0] not in self.commands and ours in self.commands:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {ours!r}?")
        return super().resolve_command(ctx, args)


def with_registry(command: Command) -> Command:
    """The option of every command that asks a cluster."""
    return click.option(
        "-n",
        "--registry",
        default=_registry,
        envvar="PENSTOCK_REGISTRY",
        show_default="that of `penstock context use`, else 127.0.0.1:9876",
        help="host:port;host:port",
    )(command)


def _registry() -> str:
    """Where neither -n nor the environment says it."""
    from penstock.cli.inuse import registry_in_use

    return registry_in_use() or "127.0.0.1:9876"


def with_json(command: Command) -> Command:
    return click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")(command)


def with_dry_run(command: Command) -> Command:
    return click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")(command)


def print_rows(rows: Iterable[Mapping[str, object]], as_json: bool) -> None:
    """Rows as JSON lines, or as columns wide enough for what is in them."""
    rows = list(rows)
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
        return
    if not rows:
        click.echo("nothing", err=True)
        return
    shown = [{name: "-" if row[name] is None else printable(str(row[name])) for name in rows[0]} for row in rows]
    widths = {name: max(len(name), *(len(row[name]) for row in shown)) for name in rows[0]}
    click.echo("  ".join(name.ljust(width) for name, width in widths.items()))
    for row in shown:
        click.echo("  ".join(row[name].ljust(width) for name, width in widths.items()))


def print_plan(rows: list[dict[str, object]], what: str, as_json: bool) -> None:
    """What a dry run says: the rows of what would be changed, and that nothing was done."""
    if not as_json:
        click.echo(f"would {what}:")
    print_rows([row | {"done": ""} if as_json else row for row in rows], as_json)


def time_text(ms: int) -> str:
    """A time in ms as ISO 8601 has it."""
    return datetime.fromtimestamp(min(ms, TIME_MAX_MS) / 1000, UTC).isoformat(timespec="milliseconds")


def permission(perm: int) -> str:
    """What may be done with a topic: R, W, or both."""
    return "".join(letter for letter, bit in (("R", 4), ("W", 2)) if perm & bit) or "none"


def position(text: str, option: str, others: str = "first, last") -> Literal["first", "last"] | datetime:
    """Where a group or a reader begins: a word, a moment, or a time ago as -1h. BadParameter when it says no such place; it
    names `others`, the words that are known there, too.
    """
    if text in ("first", "last"):
        return "first" if text == "first" else "last"
    if text.startswith("-") and re.fullmatch(_DURATION, text[1:]):
        try:
            return datetime.now(UTC) - timedelta(milliseconds=duration_ms(text[1:], option))
        except OverflowError:
            return "first"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is neither {others}, -1h nor a moment", param_hint=option) from None
    if moment.tzinfo is None:
        raise click.BadParameter(f"{text!r} has no time zone: +00:00 is UTC", param_hint=option)
    return moment


def duration_ms(text: str, option: str) -> int:
    """`10s`, `1h30m`, `500ms` in milliseconds. BadParameter."""
    pieces = re.findall(_PIECE, text) if re.fullmatch(_DURATION, text) else []
    if not pieces:
        raise click.BadParameter(f"{text!r} is no time: write 10s, 5m, 1h30m, 2d or 500ms", param_hint=option)
    return sum(int(number) * _UNIT_MS[unit] for number, unit in pieces)


def due_ms(delay: str | None, moment: str | None) -> int | None:
    """The moment that --delay or --at says; None: neither. BadParameter, UsageError."""
    if delay is not None and moment is not None:
        raise click.UsageError("give --delay or --at")
    if delay is not None:
        due = time.time_ns() // 1_000_000 + duration_ms(delay, "--delay")
        if due > TIME_MAX_MS:
            raise click.BadParameter(f"{delay!r} ends after the year 9999", param_hint="--delay")
        return due
    if moment is None:
        return None
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        raise click.BadParameter(f"{moment!r} is no moment", param_hint="--at") from None
    if found.tzinfo is None:
        raise click.BadParameter(f"{moment!r} has no time zone: +00:00 is UTC", param_hint="--at")
    return max(0, int(found.timestamp() * 1000))  # what is past is delivered at once, however long it is


def size_bytes(text: str, option: str) -> int:
    """`500M`, `10G`, or a number of bytes. BadParameter."""
    found = re.fullmatch(_SIZE, text)
    if found is None:
        raise click.BadParameter(f"{text!r} is no size: write 500M, 10G, or a number of bytes", param_hint=option)
    return int(found[1]) << 10 * ("KMGT".index(found[2]) + 1 if found[2] else 0)


@contextmanager
def opened(name: str, force: bool) -> Iterator[IO[bytes]]:
    """What is written to a file, or to standard output (-). The file is there once all is written; until then, and when that
    fails, it lies in NAME.part. UsageError when one is there already, and `force` is not said, or when another call writes it.
    """
    if name == "-":
        yield sys.stdout.buffer
        return
    path = Path(name).resolve()
    if path.exists() and not force:
        raise click.UsageError(f"{name} is there: --force writes over it")
    if path.exists() and not path.is_file():  # a pipe, or a device
        with path.open("wb") as out:
            yield out
        return
    part = path.with_name(path.name + ".part")
    try:
        with _alone(part) as out:
            yield out
            out.flush()
            part.replace(path)
    except OSError as error:
        if error.errno in _OF_FILES and error.filename is None:  # of which file it is the system does not say
            raise OSError(error.errno, error.strerror, str(part)) from error
        raise


def _alone(part: Path) -> IO[bytes]:
    """The file, empty, and nobody else's while it is open. UsageError."""
    while True:
        out = os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "wb")
        try:
            fcntl.flock(out, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            out.close()
            raise click.UsageError(f"another call is writing {part}") from None
        except OSError:  # a file system without locks
            pass
        if part.exists() and os.path.samestat(os.fstat(out.fileno()), part.stat()):
            out.truncate(0)
            return out
        out.close()  # who had it was done just then, and it has its name by now


@contextmanager
def looking(registry: str, missed: dict[str, PenstockError] | None = None) -> Iterator[Admin]:
    """An `Admin` for verbs that look and change nothing: what they print within is what those brokers say that answer.
    NotEverywhere names the others where something is not there, for it may be at one of those, and when it is over, unless they
    are put into `missed`, for who says it later.
    """
    import penstock

    with penstock.Admin(registry, partial=True) as admin:
        try:
            yield admin
        except (NotFound, NoRoute, BrokerRefused) as error:
            absent = not isinstance(error, BrokerRefused) or error.code == ResponseCode.TOPIC_NOT_EXIST
            if not (absent and admin.missed):
                raise
            missed = None
        if missed is not None:
            missed |= admin.missed
        elif admin.missed:
            raise NotEverywhere(admin.missed, PARTLY)


def look_again(admin: Admin, look: Callable[[], object], pause_s: float, count: int | None) -> None:
    """`repeat` within `looking`: each time all brokers are asked."""

    def step() -> None:
        admin.missed.clear()
        look()
        if admin.missed:
            raise NotEverywhere(admin.missed, PARTLY)

    repeat(step, pause_s, count)
    admin.missed.clear()


def confirm(question: str, force: bool) -> None:
    """Ask on a terminal; without one, and without --force, it is not done."""
    if not force:
        if not sys.stdin.isatty():
            raise click.UsageError("not asked on a terminal: say --force")
        click.confirm(question, abort=True)


def repeat(
    step: Callable[[], object], pause_s: float, count: int | None, sleep: Callable[[float], object] = time.sleep
) -> None:
    """A step so often, or until Ctrl-C. Who watches a broker that starts again goes on watching: an error ends it only when it
    is that of the first step or of the last.
    """
    done = 0
    with suppress(KeyboardInterrupt):
        while count is None or done < count:
            done += 1
            try:
                step()
            except NotEverywhere as error:  # it has shown what the others say
                if done == count:
                    raise
                click.echo(f"penstock: {printable(str(error))}", err=True)
            except (ConnectionLost, TimedOut, NoRoute, BrokerRefused) as error:
                if done in (1, count) or getattr(error, "denied", False):
                    raise
                click.echo(f"penstock: {printable(str(error))}: tried again in {pause_s:g} s", err=True)
            if done != count:
                sleep(pause_s)


def printable(text: str) -> str:
    """Text that does nothing to a terminal: whatever is no visible character is written as an escape."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)
