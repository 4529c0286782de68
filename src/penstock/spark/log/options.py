"""The options of the `penstock-log` source as data, in the words of the `penstock` source where both have them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from penstock.errors import ConfigError
from penstock.spark.read.options import Option, read


@dataclass(frozen=True)
class LogOptions:
    """What the user asked for; one field per option of `OPTIONS`, times in milliseconds, sizes in bytes."""

    path: str
    topics: tuple[str, ...]
    starting_timestamp: int | None
    ending_timestamp: int | None
    tags: tuple[str, ...]
    keys: tuple[str, ...]
    where: str | None
    verify: str
    on_bad_record: str
    use_consume_queue: str
    split_bytes: int
    min_partitions: int | None
    include_headers: bool
    include_metadata: bool
    columns: tuple[str, ...]
    real_topic: bool
    broker: str | None
    pushdown: str


OPTIONS = (
    Option("path", "text", "", "what `load(...)` was given: a store folder, its folder `commitlog`, a segment file, or a"
           " pattern of these such as `/backup/*/commitlog`", "batch"),
    Option("topics", "names", "", "only these topics, separated by commas; without, all, the broker's own included",
           "batch", ("topic", "subscribe")),
    Option("startingTimestamp", "moment", "", "only messages stored at or after this moment, milliseconds since 1970 or"
           " ISO 8601 text (UTC without zone)", "batch"),
    Option("endingTimestamp", "moment", "", "only messages stored before this moment", "batch"),
    Option("tags", "tags", "*", "only messages with one of these tags: `A || B`", "batch"),
    Option("keys", "names", "", "only messages with one of these keys", "batch"),
    Option("where", "selection", "",
           "only messages for whose properties this SQL92 expression is true, `price > 9 AND city <> 'Rome'`", "batch"),
    Option("verify", "word none crc", "none",
           "`crc`: a body that does not match its checksum is a bad record; about two thirds of the decoder's time",
           "batch"),
    Option("onBadRecord", "word fail skip row", "fail",
           "what is done with bytes that are no record, and with bodies that fail `verify` or cannot be decompressed:"
           " `fail` names the place, `skip` leaves them out, `row` gives them as rows with `crcOk` false and the stored"
           " bytes (1 MiB at most) in `value`; bytes that are no record have neither topic nor offset", "batch"),
    Option("useConsumeQueue", "word auto true false", "auto",
           "find the messages of `topics` through the store's consume queues instead of reading the whole log; `auto`"
           " does when they are less than half of it and bad records fail, in a store of RocketMQ's only where its broker has"
           " ended cleanly: else queues may lack entries", "batch"),
    Option("splitBytes", "bytes", "128m", "bytes of log per Spark partition, at most", "batch"),
    Option("minPartitions", "count", "", "at least so many Spark partitions, 1,000,000 at most", "batch"),
    Option("includeHeaders", "flag", "false", "add the column `headers`", "batch"),
    Option("includeMetadata", "flag", "false", "all columns", "batch"),
    Option("columns", "names", "", "these columns, in this order; the same as a schema given to the reader", "batch"),
    Option("realTopic", "flag", "false", "show retried and delayed messages under their original topic", "batch"),
    Option("broker", "text", "", "what the column `broker` says; without, the name of the store's folder", "batch"),
    Option("pushdown", "word auto true false", "auto",
           "answer filters on `topic` while reading when `spark.sql.python.filterPushdown.enabled` is on. `true`: for a"
           " DataFrame that is used once, in one query; `auto`: where Spark keeps the filters of several queries apart, which"
           " 4.3 does not",
           "batch"),
)  # fmt: skip


def parse(given: Mapping[str, str]) -> LogOptions:
    """The options, checked. `ConfigError` for an unknown name (naming the nearest), a bad value or a clash."""
    values, _ = read(OPTIONS, given)
    if not values["path"]:
        raise ConfigError("no folder given", 'load("/data/store"), or set path')
    options = LogOptions(**values)
    if options.columns and (options.include_headers or options.include_metadata):
        raise ConfigError("columns excludes includeHeaders and includeMetadata", "name all columns in columns")
    if options.use_consume_queue == "true" and not options.topics:
        raise ConfigError("useConsumeQueue needs topics", "name the topics, or leave it at auto")
    return options


assert {option.field for option in OPTIONS} == {field.name for field in fields(LogOptions)}
