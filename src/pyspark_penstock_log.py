"""Lets Spark find `format("penstock-log")` by itself; Spark imports this in every session, so it imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.spark.logsource import LogReader


class DefaultSource(DataSource):
    """The commit log of a Penstock or RocketMQ 4.x broker, read from its files.

    >>> spark.read.format("penstock-log").load("/data/store")                             # doctest: +SKIP
    """

    def __init__(self, options: dict[str, str]) -> None:
        from penstock.spark.logsource import LogSource

        super().__init__(options)
        self._source = LogSource(options)  # now: one DataFrame is one range

    @classmethod
    def name(cls) -> str:
        return "penstock-log"

    def schema(self) -> str:
        return self._source.schema()

    def reader(self, schema: StructType) -> LogReader:
        return self._source.reader(schema)
