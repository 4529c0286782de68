"""Which context is in use: where a registry is when nothing names it, and who we are to it. `contexts` keeps them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from penstock.errors import ConfigError, NotFound

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def folder() -> Path:
    """Where contexts are kept."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(base) / "penstock" / "contexts"


def current() -> str:
    """The name of the context in use; empty: none."""
    if "PENSTOCK_CONTEXT" in os.environ:
        return os.environ["PENSTOCK_CONTEXT"]
    return word("current")


def word(file: str) -> str:
    """What stands in a file of ours: the name in use, or the one before."""
    try:
        return (folder() / f".{file}").read_text("utf-8").strip()
    except (OSError, ValueError):
        return ""


def read(name: str) -> dict[str, object]:
    """What a context says. NotFound."""
    import tomllib

    path = path_of(name)
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise NotFound(f"no context {name!r}", "`penstock context ls` lists them.") from None
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: {error}",
            f"`penstock context rm {name}` deletes it, `penstock context add --force` makes it anew.",
        ) from None


def path_of(name: str) -> Path:
    """Its file. ConfigError for what is no name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is no name of a context", "Letters, digits, dots, _ and -, at most 64.")
    return folder() / f"{name}.toml"


def registry_in_use() -> str:
    """The registry of the context in use; empty without one. Its security holds from here on for this process."""
    name = current()
    if not name:
        return ""
    told = read(name)
    security = path_of(name).with_suffix(".security")
    if security.is_file() and not any(
        word in os.environ for word in ("PENSTOCK_SECURITY", "PENSTOCK_USER", "PENSTOCK_TLS")
    ):
        os.environ["PENSTOCK_SECURITY"] = str(security)
        context = click.get_current_context(silent=True)
        if context is not None:
            context.find_root().call_on_close(lambda: os.environ.pop("PENSTOCK_SECURITY", None))
    return str(told.get("registry") or "")
