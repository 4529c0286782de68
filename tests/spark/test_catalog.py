"""Topics and logs as tables in Spark's catalog: their options outlive the statement that made them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from spark_logs import fill_store

from penstock.errors import ConfigError
from penstock.spark import catalog
from penstock.spark.read.options import parse
from penstock.spark.tools.sessions import cause

GIVEN = {"provider": "penstock", "owner": "me", "subscribe": "orders", "option.subscribe": "orders", "location": "/t"}


def test_what_spark_says_of_a_table_is_no_option() -> None:
    assert catalog.created({"subscribe": "orders"}) is None
    assert catalog.created(GIVEN) == {"subscribe": "orders"}
    assert catalog.created({"provider": "penstock", "path": "file:/a%20b/c"}) == {"path": "/a b/c"}
    with pytest.raises(ConfigError, match="Spark gave no options at all") as error:
        parse({})
    assert "without a list of columns" in error.value.hint


def test_the_schema_keeps_the_options() -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.types import StructType

    table = catalog.schema(("offset", "keys"), {"subscribe": "orders"})
    again = StructType.fromJson(table.jsonValue())
    assert again.simpleString() == "struct<offset:bigint,keys:array<string>>"
    assert catalog.kept(again) == {"subscribe": "orders"}
    assert catalog.kept(StructType().add("offset", "long")) == {}


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_tables_in_sql(spark: Any, registry: str, publish: Callable[..., str], tmp_path: Path) -> None:
    publish("listed", 30)
    store = fill_store(tmp_path / "store", 90)
    given = f"OPTIONS (registry '{registry}', subscribe 'listed', includeMetadata 'true')"
    try:
        spark.sql(f"CREATE TABLE listed USING penstock {given}")
        assert spark.sql("SELECT tags, count(*) FROM listed GROUP BY tags ORDER BY tags").collect() == [
            ("even", 15),
            ("odd", 15),
        ]
        assert [f.name for f in spark.table("listed").schema.fields][-1] == "delayUntil"
        publish("listed", 10, first=30)
        assert spark.sql("SELECT value FROM listed WHERE partition = 1").count() == 11
        stream = spark.readStream.option("startingOffsets", "earliest").table("listed").select("offset").writeStream
        query = stream.format("memory").queryName("listened").trigger(availableNow=True).start()
        query.awaitTermination()
        assert spark.table("listened").count() == 40
        rows = spark.readStream.format("penstock").options(registry=registry, startingOffsets="earliest").load("listed")
        writer = rows.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
        with pytest.raises(Exception, match="of a table of its catalog"):
            writer.toTable("listed").awaitTermination(60)
        copied = {"registry": registry, "topic": "listed-on"}
        writer.options(**copied).toTable("listed").awaitTermination(60)
        assert spark.read.format("penstock").options(registry=registry).load("listed-on").count() == 40
        spark.sql(f"CREATE TABLE logged USING `penstock-log` OPTIONS (path '{store}', topics 'rare')")
        assert spark.table("logged").count() == 10
        spark.sql("CREATE TABLE bare (value binary) USING penstock")
        with pytest.raises(Exception, match="no topic given") as error:
            spark.table("bare").count()
        assert "Spark gave no options at all" in cause(error.value)
        hinted = f"SELECT * FROM bare WITH (registry '{registry}', subscribe 'listed')"
        assert spark.sql(hinted).count() == 40
    finally:
        for name in ("listed", "logged", "bare"):
            spark.sql(f"DROP TABLE IF EXISTS {name}")
