"""The columns of the source: their names, types, and what is said of others."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.spark import schema


def test_which_columns() -> None:
    assert schema.columns() == schema.BASE
    assert set(schema.columns(headers=True)) == {*schema.BASE, "headers"}
    assert len(schema.columns(metadata=True, bulk=True)) == len(schema.columns(metadata=True)) + 1
    assert schema.columns(names=("value", "topic")) == ("value", "topic")
    assert set(schema.BY_NAME) >= schema.NEVER_NULL


def test_names_that_are_none() -> None:
    with pytest.raises(ConfigError, match="did you mean offset"):
        schema.columns(names=("ofset",))
    with pytest.raises(ConfigError, match="no column 'segment'"):
        schema.columns(names=("segment",))
    assert schema.columns(names=("segment",), bulk=True) == ("segment",)
    with pytest.raises(ConfigError, match="column offset is named twice"):
        schema.columns(names=("offset", "value", "offset"))


def test_each_column_has_an_arrow_type_and_a_row_in_the_table() -> None:
    names = tuple(schema.BY_NAME)
    assert schema.arrow_of(names).names == list(names)
    assert schema.ddl(("value", "offset")) == "`value` binary, `offset` bigint"
    assert schema.ddl(("timestamp",)) == "`timestamp` timestamp_ltz"  # whatever spark.sql.timestampType says
    assert all(f"| `{name}` | " in schema.table() for name in names)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("offset", "LongType", True), ("offset", "LongType", True)], "column offset is named twice"),
        ([("tags", "StringType", False)], "column tags can be null"),
        ([("Offset", "LongType", True)], "did you mean offset"),
        ([("offset", "IntegerType", True)], "column offset is bigint, not int"),
    ],
)
def test_schemas_that_cannot_be_had(fields: list[tuple[str, str, bool]], said: str) -> None:
    types = pytest.importorskip("pyspark.sql.types")
    wanted = types.StructType([types.StructField(name, getattr(types, kind)(), null) for name, kind, null in fields])
    with pytest.raises(ConfigError, match=said):
        schema.check(wanted)


def test_schemas_without_nulls_where_there_are_none() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    schema.check(types.StructType([types.StructField("offset", types.LongType(), False)]))
    schema.check(types.StructType([types.StructField("value", types.BinaryType(), False)]))


def test_rows_of_damage_have_nulls_where_messages_have_none() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    wanted = types.StructType([types.StructField("topic", types.StringType(), False)])
    schema.check(wanted, bulk=True)
    with pytest.raises(ConfigError, match="column topic can be null, in rows of bytes that are no record"):
        schema.check(wanted, bulk=True, damage=True)
    kept = types.StructType([types.StructField("crcOk", types.BooleanType(), False)])
    schema.check(kept.add("value", types.BinaryType(), False), bulk=True, damage=True)
