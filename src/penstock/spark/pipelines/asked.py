"""What a job is asked for: its keywords beside their defaults, and limits in time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar, cast

from penstock.errors import ConfigError
from penstock.spark.read.options import moment_ms

T = TypeVar("T", bound=Mapping[str, object])


def complete(given: T, defaults: T) -> T:
    """The keywords given, and the defaults of the others. TypeError for one that the job does not have."""
    unknown = given.keys() - defaults.keys()
    if unknown:
        raise TypeError(f"unexpected keyword {min(unknown)!r}")
    return cast(T, {**defaults, **given})


def at_least(least: int, name: str, number: int) -> None:
    """`ConfigError` for a number with which nothing, or nothing that is meant, would be done."""
    if not number >= least:
        raise ConfigError(f"{name} is {least} or more, not {number}")


def bound_ms(text: str) -> int | None:
    """A limit in store time: ISO 8601 or milliseconds; None without one. `ConfigError` for any other text."""
    try:
        return moment_ms(text) if text else None
    except ValueError as error:
        raise ConfigError(str(error)) from None
