"""How every command of `penstock spark` runs its job: Spark is started, or not, and an error becomes two lines."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn, ParamSpec, TypeVar

import click

from penstock.errors import INTERRUPTED, ConfigError
from penstock.spark.tools.progress import Progress

P = ParamSpec("P")
R = TypeVar("R")


def on_spark(command: Callable[P, R]) -> Callable[P, R]:
    """The options of every command that starts Spark."""
    about = "A setting of Spark's; may be given again."
    given = click.option("--conf", "config", multiple=True, metavar="NAME=VALUE", help=about, expose_value=False,
                         callback=_keep_settings)  # fmt: skip
    masters = "Spark master, sc://HOST:PORT or none, this process (default: all cores here; no Spark for small work)."
    where = click.option("--master", help=masters)
    return where(given(command))


def _keep_settings(context: click.Context, _: click.Parameter, pairs: tuple[str, ...]) -> None:
    for pair in pairs:
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE")
    context.meta["penstock.conf"] = dict(pair.split("=", 1) for pair in pairs)


def run_job(
    name: str,
    unit: str,
    master: str | None,
    as_json: bool,
    work: Callable[[Any, Progress], Any],
    with_spark: bool = True,
    needs_spark: bool = False,
) -> Any:
    """Start Spark, or leave it to the job to ask for it, run, end with one line if it fails; the result."""
    say = Progress(name, unit, quiet=as_json)
    try:
        config = click.get_current_context().meta.get("penstock.conf")
        where = master or os.environ.get("PENSTOCK_SPARK_MASTER")

        def start() -> Any:
            from penstock.spark.tools.sessions import session

            say.note("starting Spark")
            return session(f"penstock {name}", master=master, config=config)

        running: Any = None
        if where == "none" and needs_spark:
            raise ConfigError(f"{name} writes with Spark", "leave --master none out, or name a master")
        if with_spark and where != "none":  # whoever names a master wants Spark, small or not
            running = start() if (where or config) and not needs_spark else start
        result = work(running, say)
    except KeyboardInterrupt:
        say.clear()
        click.echo("penstock: stopped; run it again to go on", err=True)
        sys.exit(INTERRUPTED)
    except Exception as error:
        say.clear()
        fail(error)
    say.clear()
    if as_json:
        click.echo(json.dumps(result.as_dict(), default=str))
    return result


# What to do about an error that does not say it itself, by the name of its class: behind Spark only its text is left.
_NEXT = {
    "NoRoute": "is the topic's name right, and --registry the cluster it is in?",
    "ConnectionLost": "is a broker there? --registry says where; `penstock up` starts one",
    "TimedOut": "is the broker up and not too busy? run it again to go on",
    "Locked": "wait for the other run to end",
    "DataLoss": "--allow-loss goes on without them; where retention was faster, keep messages longer",
    "Corrupt": "penstock spark audit says what else is damaged",
    "OSError": "can this user read and write there, here and on the workers?",
    "AnalysisException": "the columns are those of docs/spark.md",
}
_ELSE = "penstock spark doctor says whether everything is there"


def fail(error: Exception) -> NoReturn:
    """The Python cause of whatever Spark made of it, on one line, and on a second one what to do about it."""
    from penstock.spark.tools.sessions import cause

    text = cause(error) if "PySparkException" in _names(error) or "Py4JError" in _names(error) else str(error)
    hint = getattr(error, "hint", "")
    if isinstance(error, ImportError):
        hint = "pip install 'penstock[spark]'"
    if os.strerror(errno.ENOSPC) in text:
        hint = "the disk is full: make room, and run it again to go on"
    known = [text.partition(":")[0], *_names(error)]
    hint = hint or next((_NEXT[name] for name in known if name in _NEXT), _ELSE)
    click.echo(f"penstock: {text.splitlines()[0] if text else type(error).__name__}\n  {hint}", err=True)
    sys.exit(1)


def _names(error: Exception) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__]
