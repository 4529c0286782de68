"""The columns a row can have: names, types and where each comes from in a record.

The first seven are those of Spark's Kafka source, so that a query moves by changing the format. A schema given by
the user is a projection: any of these columns, in any order, with the types they have here.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class Column(NamedTuple):
    """One column; `type` is Spark's DDL."""

    name: str
    type: str
    meaning: str


COLUMNS = (
    Column("key", "binary", "the message's keys, separated by blanks; null without"),
    Column("value", "binary", "the body, decompressed when the sender compressed it"),
    Column("topic", "string", "the topic; with `realTopic` the original one of a retried or delayed message"),
    Column("partition", "int", "the queue id"),
    Column("offset", "bigint", "the queue offset"),
    Column("timestamp", "timestamp", "when the broker stored it"),
    Column("timestampType", "int", "always 1: the time of the append"),
    Column("headers", "array<struct<key:string,value:binary>>", "the properties except keys and tags"),
    Column("tags", "string", "the tag; null without"),
    Column("keys", "array<string>", "the keys one by one; null without"),
    Column("properties", "map<string,string>", "all properties"),
    Column("msgId", "string", "the offset message id: store address and physical offset in hexadecimal"),
    Column("uniqKey", "string", "the id the producing client gave it"),
    Column("broker", "string", "the broker it is stored at"),
    Column("bornTimestamp", "timestamp", "when the producer made it, by the producer's clock"),
    Column("bornHost", "string", "the producer's address and port"),
    Column("storeHost", "string", "the broker's address and port"),
    Column("flag", "int", "the producer's own flag"),
    Column("sysFlag", "int", "RocketMQ's system flags, as stored"),
    Column("reconsumeTimes", "int", "how often consumers have sent it back"),
    Column("physicalOffset", "bigint", "byte position in the broker's commit log"),
    Column("size", "int", "bytes of the stored record"),
    Column("crcOk", "boolean", "whether the stored body matches its checksum"),
    Column(
        "delayUntil",
        "timestamp",
        "when a message that waits in `rmq_sys_wheel_timer` is due, where its sender named the moment;"
        " null for all others, also once it is in its topic: `timestamp` says when that was",
    ),
)
BY_NAME = {column.name: column for column in COLUMNS}
SEGMENT = Column("segment", "string", "the file it was read from; `penstock-log` only")
BASE = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "tags")
NEVER_NULL = frozenset(
    {"topic", "partition", "offset", "timestamp", "timestampType", "headers", "properties", "msgId", "broker"}
    | {"bornTimestamp", "bornHost", "storeHost", "flag", "sysFlag", "reconsumeTimes", "physicalOffset", "size", "crcOk"}
)


# Of bytes that are no record, which `onBadRecord=row` shows.
DAMAGE_NEVER_NULL = frozenset({"broker", "physicalOffset", "size", "crcOk"})


def columns(
    *, headers: bool = False, metadata: bool = False, names: tuple[str, ...] = (), bulk: bool = False
) -> tuple[str, ...]:
    """The column names for these options: `names` if given, else the base columns with what was asked for."""
    if names:
        for name in names:
            _known(name, bulk)
        _demand_once(names)
        return names
    if metadata:
        return tuple(column.name for column in COLUMNS) + ((SEGMENT.name,) if bulk else ())
    return (*BASE[:7], "headers", *BASE[7:]) if headers else BASE


def ddl(names: tuple[str, ...]) -> str:
    """These columns as a DDL string, which `DataSource.schema` may return without importing Spark's types.

    What `timestamp` alone means there is a setting of the session's, spark.sql.timestampType.
    """
    kinds = {name: _known(name, True).type for name in names}
    return ", ".join(f"`{name}` {'timestamp_ltz' if kind == 'timestamp' else kind}" for name, kind in kinds.items())


def table() -> str:
    """The columns as a Markdown table, for the documentation."""
    lines = ["| column | type | what it is |", "|---|---|---|"]
    rows = [f"| `{name}` | {kind} | {meaning} |" for name, kind, meaning in (*COLUMNS, SEGMENT)]
    return "\n".join(lines + rows) + "\n"


def check(schema: StructType, bulk: bool = False, damage: bool = False) -> None:
    """`ConfigError` when a user's schema asks for a column we do not have, for one twice, for another type, or for no nulls
    where there can be some: Spark believes it, finds no row by `IS NULL` and fails at the first one there is.
    `damage`: there may be rows of bytes that are no record.
    """
    never_null = {"value", *(DAMAGE_NEVER_NULL if damage else NEVER_NULL)}
    _demand_once(tuple(field.name for field in schema.fields))
    for field in schema.fields:
        column = _known(field.name, bulk)
        if not field.nullable and field.name not in never_null:
            what = ", in rows of bytes that are no record" if damage and field.name in NEVER_NULL else ""
            raise ConfigError(
                f"column {field.name} can be null{what}", "leave NOT NULL (nullable=False) out of the schema"
            )
        if field.dataType.simpleString() != column.type:
            raise ConfigError(
                f"column {field.name} is {column.type}, not {field.dataType.simpleString()}",
                f"read it as {'timestamp_ltz' if column.type == 'timestamp' else column.type} and cast it in the query",
            )


def demand_one_choice(wanted: StructType, chosen: tuple[str, ...]) -> None:
    """ConfigError when a schema of the user's has other columns than the options say, which would count for nothing."""
    names = tuple(field.name for field in wanted.fields)
    if names != chosen:
        raise ConfigError(
            f"the schema has the columns {', '.join(names)}, and the options columns, includeHeaders and includeMetadata say"
            f" {', '.join(chosen)}",
            "a schema of your own names all columns: leave it out, or these options",
        )


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema Spark compares every batch with, to the letter."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def arrow_of(names: tuple[str, ...]) -> pa.Schema:
    """The same for these columns, where there is no Spark session to parse types."""
    import pyarrow as pa

    text, raw = pa.string(), pa.binary()
    header = pa.struct([("key", text), ("value", raw)])
    types = {
        "binary": raw,
        "string": text,
        "int": pa.int32(),
        "bigint": pa.int64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", "UTC"),
        "array<string>": pa.list_(pa.field("element", text)),
        "map<string,string>": pa.map_(text, text),
        "array<struct<key:string,value:binary>>": pa.list_(pa.field("element", header)),
    }
    return pa.schema([(name, types[_known(name, True).type]) for name in names])


def _demand_once(names: tuple[str, ...]) -> None:
    for at, name in enumerate(names):
        if name in names[:at]:
            raise ConfigError(f"column {name} is named twice", "name each column once; the query may copy it")


def _known(name: str, bulk: bool = False) -> Column:
    every = {**BY_NAME, SEGMENT.name: SEGMENT} if bulk else BY_NAME
    column = every.get(name)
    if column is None:
        near = get_close_matches(name.lower(), [known.lower() for known in every], 1, 0.5)
        spelled = next((known for known in every if near and known.lower() == near[0]), None)
        hint = f"did you mean {spelled}?" if spelled else f"known columns: {', '.join(every)}"
        raise ConfigError(f"no column {name!r}: {hint}", hint)
    return column
