"""Topics as Spark tables and streams: `spark.read.format("penstock")`, and jobs over them.

`session()` gives a quiet, well-set session and finds or makes a Java; `register(spark)` makes the format known to
a session of your own. Executors need this package installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.spark.tools.sessions import register, session

__all__ = ["register", "session"]


def __getattr__(name: str) -> object:
    # Late, because Spark's workers import this package in every task and need neither.
    if name in __all__:
        from importlib import import_module

        return getattr(import_module("penstock.spark.tools.sessions"), name)
    raise AttributeError(name)
