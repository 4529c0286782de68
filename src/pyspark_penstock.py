"""Lets Spark find `format("penstock")` by itself: it looks for `DefaultSource` in modules named `pyspark_…`.

Spark imports this module in every session that looks a format up, so nothing but PySpark is imported at the top.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from penstock.spark.source import Reader, StreamReader


class DefaultSource(DataSource):
    """Topics of a Penstock (or RocketMQ 4.x) cluster as a table and as a stream.

    >>> spark.read.format("penstock").load("orders")                                      # doctest: +SKIP
    >>> spark.readStream.format("penstock").option("subscribe", "orders").load()          # doctest: +SKIP
    """

    def __init__(self, options: dict[str, str]) -> None:
        from penstock.spark.source import Source

        super().__init__(options)
        self.source = Source(options)

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> str:
        return self.source.schema()

    def reader(self, schema: StructType) -> Reader:
        return self.source.reader(schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        return self.source.stream_reader(schema)
