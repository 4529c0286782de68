"""The options of the `penstock` sink as data, and the columns it takes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from penstock.errors import ConfigError
from penstock.security import PLAIN, Security
from penstock.spark import schema
from penstock.spark.read import options
from penstock.spark.read.options import Option
from penstock.wire.layout import TOPIC_BYTES_MAX
from penstock.wire.names import LOG_NAME, SINK_NAME, SINK_NAME_MAX, TEMPLATE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class SinkOptions:
    """What the user asked for; one field per option of `SINK_OPTIONS`."""

    registry: str
    topic: str | None
    path: str | None
    sink_id: str | None
    sink_reset: bool
    job_id: str | None
    commit_mode: str
    level: str
    batch_bytes: int
    inflight: int
    compression: str
    send_timeout_ms: int
    security: Security = PLAIN


SINK_OPTIONS = (
    Option("registry", "servers", "127.0.0.1:9876", "name servers, `host:port`, several separated by `;`",
           aliases=("penstock.bootstrap.servers", "nameServer")),
    Option("topic", "text", "", "where all rows go; wins over the column `topic`"),
    Option("path", "text", "", "what `save(...)` or `start(...)` was given: the topic"),
    Option("sinkId", "text", "the query's id",
           "what batches are counted for; give one to let a query with a new checkpoint go on as the same sink", "stream"),
    Option("sinkReset", "flag", "false",
           "let this query take over a `sinkId` that another query has written to: its batches count from 0 again",
           "stream"),
    Option("jobId", "text", "a new one for every job",
           "a name for this write: done twice under the same name it is written once; to another topic, or in another "
           "`commitMode`, it is refused", "batch"),
    Option("commitMode", "word batch partition none", "batch",
           "`batch`: readers see all rows of a batch together, once for any plan; `partition`: each task's rows when it"
           " ends, once as long as the same rows come in the same partition again; `none`: sent at once, a task that is"
           " repeated writes again"),
    Option("level", "word disk os", "disk",
           "what a task waits for when its rows are staged: `disk`, or `os`, where the flush is waited for when the batch"
           " is published; of several brokers that counts at the one that decides for the sink. With `commitMode=none` the"
           " topic's own level counts"),
    Option("batchBytes", "bytes", "1m", "how many bytes go to a broker in one request, at most 8 MiB"),
    Option("inflight", "count", "8", "requests on their way to each broker before an answer is waited for, at most 1024;"
           " a task holds so many times `batchBytes` in memory. With `commitMode=none` it is one", most=1024),
    Option("compression", "word none zlib", "none", "compress the values; consumers decompress by themselves"),
    Option("sendTimeoutMs", "count", "120000", "how long a task or the driver waits for a broker that is away"),
)  # fmt: skip

_WORDS_FOR_NONE = frozenset({"sinkId", "jobId"})  # their default is a sentence, not a value
_OURS = frozenset(
    option.name.lower() for option in SINK_OPTIONS if option.name not in ("registry", "topic", "path")
) | {"checkpointlocation"}

BATCH_BYTES_MAX, SEND_BYTES_MAX = 8 << 20, 4 << 20
PARTITION_MAX = 2**31 - 1
TOPIC_NAMES = (
    f"1 to {TOPIC_BYTES_MAX} letters, digits, % | _ and -, and is not {TEMPLATE_TOPIC.decode()}, the system's own"
)


class SinkColumn(NamedTuple):
    """One column the sink takes: its types in Spark's words, the first being the one that is documented."""

    name: str
    types: tuple[str, ...]
    meaning: str


SINK_COLUMNS = (
    SinkColumn("value", ("binary", "string"), "the body; required, and never null"),
    SinkColumn("key", ("binary", "string"), "the message's keys, separated by blanks"),
    SinkColumn("topic", ("string",), "where the row goes; required without the option `topic`"),
    SinkColumn("partition", ("int", "bigint", "smallint"),
               "the queue id; with several brokers queues are numbered through, broker by broker in the order of names"),
    SinkColumn("headers", ("array<struct<key:string,value:binary>>",),
               "more properties; values are UTF-8 text. Of several with one key the last one counts, and one without a value"
               " is left out"),
    SinkColumn("tags", ("string",), "the tag"),
    SinkColumn("keys", ("array<string>",), "the keys one by one; wins over `key`"),
    SinkColumn("properties", ("map<string,string>",),
               "more properties; `KEYS` and `TAGS` among them count where there is no column for them"),
    SinkColumn("delayMs", ("bigint", "int"), "deliver so many milliseconds after the row was staged"),
    SinkColumn("deliverAt", ("timestamp",), "deliver at this moment; wins over `delayMs`"),
    SinkColumn("shardingKey", ("string",),
               "rows with the same one go to the same queue, in order; without, the one among `properties` counts"),
)  # fmt: skip
_BY_NAME = {column.name: column for column in SINK_COLUMNS}


def for_writing(given: Mapping[str, str]) -> bool:
    """Whether these options can only be meant for a sink."""
    return any(name.lower() in _OURS for name in given)


def parse(given: Mapping[str, str]) -> SinkOptions:
    """The options, checked. `ConfigError` for an unknown name (naming the nearest), a bad value or a clash."""
    if headers := next((name for name in given if name.lower() == "includeheaders"), None):  # of Kafka's sink
        raise ConfigError(f"the sink has no option {headers}: a column headers is written without it", "leave it out")
    values, seen = options.read((*SINK_OPTIONS, *options.SECURITY_OPTIONS), given)
    security = options.take_security(values)
    for option in SINK_OPTIONS:
        if option.name in _WORDS_FOR_NONE and option.name not in seen:
            values[option.field] = None
    found = SinkOptions(**values, security=security)
    if found.path and found.topic and found.path != found.topic:
        raise ConfigError("topic and the name given to save(...) exclude each other", "give one of them")
    topic = found.topic or found.path
    if topic and not legal_topic(topic):
        raise ConfigError(f"no topic of the sink can be called {topic!r}: its name has {TOPIC_NAMES}")
    _check_names(found)
    if found.sink_reset and found.sink_id is None:
        raise ConfigError("sinkReset = true: there is no sinkId that is to be taken over", "set sinkId, too")
    named = [name for name in ("jobId", "sinkId") if name in seen]
    if named and found.commit_mode == "none":
        raise ConfigError(
            f"{named[0]} and commitMode=none exclude each other: what is sent at once is written again when it is done again",
            "commitMode=batch or partition; or no name",
        )
    most = BATCH_BYTES_MAX if found.commit_mode != "none" else SEND_BYTES_MAX
    if found.batch_bytes > most:
        raise ConfigError(f"option batchBytes = {found.batch_bytes}: at most {most}")
    return found


def legal_topic(name: str) -> bool:
    """Whether rows can be written to a topic of that name."""
    data = name.encode("utf-8", "replace")
    return len(data) <= TOPIC_BYTES_MAX and re.fullmatch(LOG_NAME, data) is not None and data != TEMPLATE_TOPIC


def sink_of_job(job: str) -> str:
    """The sink a job of that name writes as."""
    return f"job-{job}"


def sink_of_part(sink: str, partition: int) -> str:
    """The sink of one partition, where each publishes alone."""
    return f"{sink}/{partition}"


def _check_names(found: SinkOptions) -> None:
    """ConfigError for a name that no broker takes, before any task has worked for it."""
    for option, name, sink in (
        ("sinkId", found.sink_id, found.sink_id or ""),
        ("jobId", found.job_id, sink_of_job(found.job_id or "")),
    ):
        if name is None:
            continue
        longest = sink_of_part(sink, PARTITION_MAX) if found.commit_mode == "partition" else sink
        most = SINK_NAME_MAX - (len(longest) - len(name))
        if len(name) > most or not re.fullmatch(SINK_NAME, name):
            raise ConfigError(f"option {option} = {name!r}: a name has 1 to {most} printable ASCII characters")


def check(wanted: StructType, found: SinkOptions) -> None:
    """`ConfigError` when rows of this schema cannot be written."""
    names = [field.name for field in wanted.fields]
    for field in wanted.fields:
        column = _BY_NAME.get(field.name)
        if column is None:
            if field.name in schema.BY_NAME:
                continue  # a column of the source: rows may be passed on as they were read
            near = get_close_matches(field.name.lower(), [name.lower() for name in _BY_NAME], 1, 0.5)
            spelled = next((name for name in _BY_NAME if near and name.lower() == near[0]), None)
            hint = f"did you mean {spelled}?" if spelled else f"the sink takes {', '.join(_BY_NAME)}"
            raise ConfigError(f"column {field.name!r} is none of the sink's: {hint}", hint)
        kind = field.dataType.simpleString()
        if kind not in column.types:
            raise ConfigError(
                f"column {field.name} is {kind}; the sink takes {' or '.join(column.types)}",
                _remedy(field.name, kind, column.types),
            )
    late = [name for name in ("delayMs", "deliverAt") if name in names]
    if late and found.commit_mode == "none":
        raise ConfigError(
            f"column {late[0]} needs commitMode batch or partition", "batches of plain sends have no delays"
        )
    if "value" not in names:
        raise ConfigError("no column value", "name the body of the message: select(col(...).alias('value'))")
    if "topic" not in names and not (found.topic or found.path):
        raise ConfigError("no topic given", 'set the option topic, call save("topic"), or add a column topic')


def _remedy(name: str, kind: str, types: tuple[str, ...]) -> str:
    """What makes such a column one that the sink takes."""
    if "string" in types:  # of numbers Spark makes big-endian bytes, and of most other types none
        return (
            f"take to_json({name})" if kind.startswith(("struct", "array", "map", "variant")) else "cast it to string"
        )
    return f"cast it to {'timestamp_ltz' if types[0] == 'timestamp' else types[0]}"


def columns_table() -> str:
    """The columns as a Markdown table, for the documentation."""
    lines = ["| column | type | what it is |", "|---|---|---|"]
    return "\n".join(lines + [f"| `{c.name}` | {' or '.join(c.types)} | {c.meaning} |" for c in SINK_COLUMNS]) + "\n"


assert {option.field for option in SINK_OPTIONS} | {"security"} == {field.name for field in fields(SinkOptions)}
