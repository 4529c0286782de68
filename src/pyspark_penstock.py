"""Lets Spark find `format("penstock")` by itself: it looks for `DefaultSource` in modules named `pyspark_…`.

Spark imports this module in every session that looks a format up, so nothing but PySpark is imported at the top.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.spark.read.source import Reader, Source, StreamReader
    from penstock.spark.write.sink import BatchWriter, StreamWriter

P = ParamSpec("P")
R = TypeVar("R")


def plainly(method: Callable[P, R]) -> Callable[P, R]:
    """The same method, whose errors of ours are a sentence and what to do."""

    @wraps(method)
    def call(*given: P.args, **named: P.kwargs) -> R:
        from penstock.spark.tools import plainly

        return plainly.plainly(method)(*given, **named)

    return call


class DefaultSource(DataSource):
    """Topics of a Penstock (or RocketMQ 4.x) cluster as a table and as a stream.

    >>> spark.read.format("penstock").load("orders")                                      # doctest: +SKIP
    >>> spark.readStream.format("penstock").option("subscribe", "orders").load()          # doctest: +SKIP
    >>> df.write.format("penstock").mode("append").save("orders")                         # doctest: +SKIP
    """

    @plainly
    def __init__(self, options: dict[str, str]) -> None:
        from penstock.errors import ConfigError
        from penstock.spark import catalog
        from penstock.spark.write import options as sinkoptions

        self._created = catalog.created(options)
        super().__init__(options if self._created is None else self._created)
        self._source: Source | None = None
        if options and not (sinkoptions.for_writing(options) or _asked_by("write_into_data_source.py")):
            # An error is said again by `schema` or `reader`, if it is not the table that knows the topic.
            with suppress(ConfigError):
                self._source = self.source  # now: one DataFrame is one range

    @property
    def source(self) -> Source:
        """The reading side."""
        from penstock.spark.read.source import Source

        if self._source is None:
            self._source = Source(self.options)
        return self._source

    @classmethod
    def name(cls) -> str:
        return "penstock"

    @plainly
    def schema(self) -> str | StructType:
        if self._created is None:
            return self.source.schema()
        from penstock.spark import catalog

        return catalog.schema(self.source.columns(), self._created)

    @plainly
    def reader(self, schema: StructType) -> Reader:
        return self._of_table(schema).reader(schema)

    @plainly
    def streamReader(self, schema: StructType) -> StreamReader:
        return self._of_table(schema).stream_reader(schema)

    def _of_table(self, schema: StructType) -> Source:
        """The reading side; that of a catalog's table has its options in the schema."""
        if self._source is None:
            from penstock.spark import catalog

            named = {name.lower() for name in self.options}
            kept = {name: text for name, text in catalog.kept(schema).items() if name not in named}
            self.options = {**kept, **self.options}
        return self.source

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from penstock.spark.write import sink

        return sink.batch_writer(self.options, schema, overwrite)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from penstock.spark.write import sink

        return sink.stream_writer(self.options, schema, overwrite)


def _asked_by(worker: str) -> bool:
    """Whether it is this one of Spark's worker modules that makes the object."""
    try:
        frame = sys._getframe(1)
        while frame is not None:
            if frame.f_code.co_filename.endswith(worker):
                return True
            frame = frame.f_back  # type: ignore[assignment]
    except (AttributeError, ValueError):
        pass
    return False
