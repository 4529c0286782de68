"""Lets Spark find `format("penstock-log")` by itself; Spark imports this in every session, so it imports nothing heavy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from pyspark_penstock import plainly

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.spark.log.source import BulkReader, LogSource


class DefaultSource(DataSource):
    """The commit log of a Penstock or RocketMQ 4.x broker, read from its files.

    >>> spark.read.format("penstock-log").load("/data/store")                             # doctest: +SKIP
    """

    @plainly
    def __init__(self, options: dict[str, str]) -> None:
        from penstock.spark import catalog

        self._created = catalog.created(options)
        super().__init__(options if self._created is None else self._created)
        self._source: LogSource | None = None
        if options:
            self._source = self.source  # now: one DataFrame is one range

    @property
    def source(self) -> LogSource:
        """The reading side."""
        from penstock.spark.log.source import LogSource

        if self._source is None:
            self._source = LogSource(self.options)
        return self._source

    @classmethod
    def name(cls) -> str:
        return "penstock-log"

    @plainly
    def schema(self) -> str | StructType:
        if self._created is None:
            return self.source.schema()
        from penstock.spark import catalog

        return catalog.schema(self.source.columns(), self._created)

    @plainly
    def reader(self, schema: StructType) -> BulkReader:
        if not self.options:  # a catalog's table has its options in the schema
            from penstock.spark import catalog

            self.options = catalog.kept(schema)
        return self.source.reader(schema)
