"""The options of the `penstock` source as data: parsed, checked and documented from one table.

Names are case-insensitive and mean what they mean in Spark's Kafka source, where that has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar

from penstock.client.routes import split_addresses
from penstock.client.subscriptions import check_group, selector_of
from penstock.errors import ConfigError
from penstock.security import PLAIN, Security, secret_of, security_of

T = TypeVar("T")

EARLIEST, LATEST = -2, -1

Positions = dict[str, Any]
Values = dict[str, Any]
"""`{"topic": {"broker": {"0": 23}}}` as users write it: without the brokers, or with a bare word for a topic."""


@dataclass(frozen=True)
class SourceOptions:
    """What the user asked for; one field per option of `OPTIONS`, times in milliseconds, sizes in bytes."""

    registry: str
    subscribe: tuple[str, ...]
    subscribe_pattern: str | None
    assign: Positions | None
    path: str | None
    starting_offsets: Positions | str | None
    ending_offsets: Positions | str | None
    starting_timestamp: int | None
    ending_timestamp: int | None
    starting_offsets_by_timestamp: Positions | None
    ending_offsets_by_timestamp: Positions | None
    starting_offsets_by_timestamp_strategy: str
    starting_group: str | None
    fail_on_data_loss: bool
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay: int
    max_bytes_per_trigger: int | None
    min_partitions: int | None
    max_records_per_partition: int | None
    include_headers: bool
    include_metadata: bool
    columns: tuple[str, ...]
    tags: tuple[str, ...]
    keys: tuple[str, ...]
    where: str | None
    real_topic: bool
    group_id_prefix: str
    commit_offsets_to_group: str | None
    fetch_timeout_ms: int
    fetch_retries: int
    fetch_bytes: int
    store: str
    read_from: str
    pushdown: str
    security: Security = PLAIN


class Option(NamedTuple):
    """One option: how it is written, read and explained. `reads` says where it counts: both, batch or stream.

    `most`: the largest number it can be, where that is less than the kind can say; in bytes where it is a size.
    """

    name: str
    kind: str
    default: str
    meaning: str
    reads: str = "both"
    aliases: tuple[str, ...] = ()
    most: int | None = None

    @property
    def field(self) -> str:
        """Its attribute of `SourceOptions`."""
        return re.sub(r"(?<!^)([A-Z])", r"_\1", self.name).lower()


OPTIONS = (
    Option("registry", "servers", "127.0.0.1:9876", "name servers, `host:port`, several separated by `;`",
           aliases=("penstock.bootstrap.servers", "nameServer")),
    Option("subscribe", "names", "", "topics, separated by commas; `load(\"orders\")` is the same", aliases=("topic",)),
    Option("subscribePattern", "pattern", "", "a regular expression that the whole topic name must match"),
    Option("assign", "json", "", 'only these queues: `{"orders": [0, 1]}` or `{"orders": {"broker-a": [0]}}`'),
    Option("path", "text", "", "what `load(...)` was given: topics, as with `subscribe`"),
    Option("startingOffsets", "positions", "earliest; latest in a stream",
           'where to begin: `earliest`, `latest` (stream only) or JSON, `{"orders": {"0": 23, "1": -2}}`, with several'
           ' brokers `{"orders": {"broker-a": {"0": 23}}}`; −2 is the earliest, −1 the latest offset, a whole topic may'
           ' be `"earliest"` or `"latest"`; what is not named starts at the earliest. Counts only for a new query'),
    Option("endingOffsets", "positions", "latest", "where to end: `latest` or JSON as above; not included. A number"
           " before that of `startingOffsets` is an error", "batch"),
    Option("startingTimestamp", "moment", "",
           "begin with the first message stored at or after this moment, milliseconds since 1970 or ISO 8601 text"
           " (UTC without zone); wins over the two other ways"),
    Option("endingTimestamp", "moment", "", "end before the first message stored at or after this moment", "batch"),
    Option("startingOffsetsByTimestamp", "json", "",
           'a moment per queue, JSON as in `startingOffsets`; wins over `startingOffsets`'),
    Option("endingOffsetsByTimestamp", "json", "", "the same for the end", "batch"),
    Option("startingOffsetsByTimestampStrategy", "word error latest", "error",
           "when a queue has no message from that moment on: `error`, or start at its `latest` offset"),
    Option("startingGroup", "group", "",
           "begin where this consumer group stands; queues it has no offset for start at the earliest"),
    Option("failOnDataLoss", "flag", "true",
           "fail when planned offsets are gone (retention, a topic deleted or created again); `false` reads what is left of the"
           " planned range and logs what is lost"),
    Option("maxOffsetsPerTrigger", "count", "", "messages per micro-batch at most, split in proportion to what each"
           " queue has", "stream"),
    Option("minOffsetsPerTrigger", "count", "", "wait until there are so many messages; not more than `maxOffsetsPerTrigger`",
           "stream"),
    Option("maxTriggerDelay", "duration", "15m", "but no longer than this", "stream"),
    Option("maxBytesPerTrigger", "bytes", "", "stored bytes per micro-batch, about (from the size of a sample)",
           "stream"),
    Option("minPartitions", "count", "", "at least so many Spark partitions, as far as there are messages: ranges are cut. More"
           " than 1,000,000 are refused when they are planned"),
    Option("maxRecordsPerPartition", "count", "", "at most so many messages in one Spark partition"),
    Option("includeHeaders", "flag", "false", "add the column `headers`"),
    Option("includeMetadata", "flag", "false", "all columns"),
    Option("columns", "names", "", "these columns, in this order; the same as a schema given to the reader"),
    Option("tags", "tags", "*", "only messages with one of these tags: `A || B`; the broker selects by hash, the reader"
           " by the text"),
    Option("keys", "names", "", "only messages with one of these keys"),
    Option("where", "selection", "",
           "only messages for whose properties this SQL92 expression is true, `price > 9 AND city <> 'Rome'`; the broker"
           " evaluates it, or a task that reads the broker's files. Limits count what is looked at"),
    Option("realTopic", "flag", "false", "show retried and delayed messages under their original topic"),
    Option("groupIdPrefix", "group", "spark-penstock-source", "the group name the broker sees in fetches"),
    Option("commitOffsetsToGroup", "group", "",
           "after each micro-batch write its end offsets to this consumer group: for operators to see, never to start"
           " from", "stream"),
    Option("fetchTimeoutMs", "count", "120000", "how long one request may take, and a broker that is away is waited for"),
    Option("fetchRetries", "whole", "3", "how often a failed request is tried again, on a new connection"),
    Option("fetchBytes", "bytes", "1m", "stored bytes per fetch, at most 4 MiB; 1 MiB stays in the processor's cache",
           most=4 << 20),
    Option("store", "folder", "auto",
           "the broker's data folder: where a task can read it, the segments are read directly, and the broker is only"
           " asked for offsets. `auto`: the folder the broker names, for ranges of 1,000 messages and more; `none`: never;"
           " else a path, for instance of a shared disk. Whatever does not match the broker is fetched as usual"),
    Option("readFrom", "word master slave", "master",
           "`slave`: tasks fetch at a slave, where the broker has one that has the messages and answers within 5 s, else at"
           " the master; positions are the master's in either case, and the rows are the same"),
    Option("pushdown", "word auto true false", "auto",
           "answer filters at the store when `spark.sql.python.filterPushdown.enabled` is on. `true`: for a DataFrame that is"
           " used once, in one query; `auto`: where Spark keeps the filters of several queries apart, which 4.3 does not",
           "batch"),
)  # fmt: skip

# Of source and sink. What is not given is the environment's, of the driver.
SECURITY_OPTIONS = (
    Option("security", "text", "", "file (TOML) with TLS, user and secret, for its owner alone; see `security.md`"),
    Option("tls", "flag", "", "speak TLS with registries and brokers"),
    Option("tlsCa", "text", "", "file of the authorities that sign their certificates; on the tasks' machines too"),
    Option("tlsCert", "text", "", "file of a certificate of our own"),
    Option("tlsKey", "text", "", "file of its key"),
    Option("insecureSkipHostname", "flag", "", "take a certificate whatever host it is for"),
    Option("user", "text", "", "who we are"),
    Option("secretFile", "text", "", "file of the user's secret; read by the driver, which hands the secret to the tasks"),
)  # fmt: skip

_TABLES = (
    'load("topic"); a table: CREATE TABLE t USING penstock OPTIONS (…) without a list of columns, or'
    " SELECT … FROM t WITH (subscribe 'topic')"
)
# How a name begins that a user brings along, and what of ours it is most likely meant as: the first one that there is.
_BROUGHT = (
    ("subscribe", "topic"),  # of the source, to the sink
    ("kafka.group.id", "groupIdPrefix"), ("kafka.auto.offset.reset", "startingOffsets"),
    ("kafka.fetch.", "fetchBytes"), ("kafka.max.partition.", "fetchBytes"), ("kafka.max.poll.records", "fetchBytes"),
    ("kafkaconsumer.polltimeout", "fetchTimeoutMs"), ("kafka.request.timeout", "fetchTimeoutMs"),
    ("kafka.request.timeout", "sendTimeoutMs"), ("kafka.delivery.timeout", "sendTimeoutMs"),
    ("kafka.acks", "level"), ("kafka.transactional.id", "sinkId"), ("kafka.batch.size", "batchBytes"),
    ("kafka.linger.ms", "batchBytes"), ("kafka.max.in.flight", "inflight"),
    ("kafka.security.protocol", "tls"), ("kafka.ssl.truststore", "tlsCa"), ("kafka.ssl.key", "tlsCert"),
    ("kafka.sasl.", "user"),
)  # fmt: skip
# What Spark itself may add.
IGNORED = frozenset({"checkpointlocation", "queryname", "serialization.format", "versionasof", "timestampasof"})


def parse(given: Mapping[str, str]) -> SourceOptions:
    """The options, checked. `ConfigError` for an unknown name (naming the nearest), a bad value or a clash."""
    values, seen = read((*OPTIONS, *SECURITY_OPTIONS), given)
    security = take_security(values)
    options = SourceOptions(**values, security=security)
    _check(options, seen)
    return options


def take_security(values: Values) -> Security:
    """Take what `SECURITY_OPTIONS` say out of the values. ConfigError, which names the options."""
    told = {option.field: values.pop(option.field) for option in SECURITY_OPTIONS}
    file, secret = told.pop("security"), told.pop("secret_file")
    base = _read_file("security", file, lambda: security_of(file))
    if secret is not None:
        told["secret"] = _read_file("secretFile", secret, lambda: secret_of(secret))
    found = {name: value for name, value in told.items() if value is not None}
    _demand_pairs(found, base, secret)
    whole = replace(base, **found)
    if "tls_ca" in found:
        _read_file("tlsCa", whole.tls_ca, lambda: Security(True, whole.tls_ca).context)
    if "tls_cert" in found or "tls_key" in found:
        option = "tlsCert" if "tls_cert" in found else "tlsKey"
        _read_file(option, found.get("tls_cert") or whole.tls_key, lambda: whole.context)
    return whole


def _demand_pairs(found: Values, base: Security, secret_file: str | None) -> None:
    """ConfigError for an option that needs another, which neither the options have nor what they are laid over."""
    user = found.get("user", base.user)
    if "user" in found and "secret" not in found and user != base.user:
        of = f" of this user: the environment, or the file that is named, has that of {base.user}" if base.user else ""
        raise ConfigError(f"option user = {user!r}: there is no secret{of}", "set the option secretFile, too")
    if "secret" in found and not user:
        raise ConfigError(f"option secretFile = {secret_file!r}: there is no user", "set the option user, too")
    if "tls_key" in found and not (base.tls_cert or "tls_cert" in found):
        raise ConfigError(
            f"option tlsKey = {found['tls_key']!r}: there is no certificate", "set the option tlsCert, too"
        )
    if found.get("tls", base.tls):
        return
    for option in SECURITY_OPTIONS:
        if option.field in ("tls_ca", "tls_cert", "tls_key", "insecure_skip_hostname") and found.get(option.field):
            raise ConfigError(
                f"option {option.name} = {found[option.field]!r}: TLS is not on", "set the option tls = true, too"
            )
    if replace(base, tls=True) != Security(True, user=base.user, secret=base.secret):
        raise ConfigError(
            "option tls = 'false': there are settings for TLS in the environment, or in the file that is named",
            "leave the option out, or these settings",
        )


def _read_file(option: str, file: str | None, read: Callable[[], T]) -> T:
    """What is in the file that an option names; ConfigError that says which option it was."""
    try:
        return read()
    except ConfigError as error:
        if file is None:  # it is the environment's
            raise
        raise ConfigError(f"option {option} = {file!r}: {error.args[0]}", error.hint) from None


def read(known: Sequence[Option], given: Mapping[str, str]) -> tuple[Values, dict[str, str]]:
    """The value of every known option by its field, and how those that were given were spelled."""
    names = {spelling.lower(): option for option in known for spelling in (option.name, *option.aliases)}
    values: Values = {}
    for option in known:
        default = "" if option.kind == "positions" else option.default
        kind = option.kind.split()[0]
        values[option.field] = _PARSERS[kind](default, option) if default else _NOTHING[kind]
    seen: dict[str, str] = {}
    for name, text in given.items():
        found = names.get(name.lower())
        if found is None:
            if name.lower() in IGNORED:
                continue
            if name.lower() == "paths":
                raise ConfigError("load() takes one text, not a list of several", f"path: {names['path'].meaning}")
            raise unknown(name, known)
        if found.name in seen:
            raise ConfigError(f"{name} and {seen[found.name]} are the same option: give one of them")
        seen[found.name] = name
        try:
            values[found.field] = _PARSERS[found.kind.split()[0]](str(text), found)
        except ValueError as error:
            raise ConfigError(f"option {found.name} = {text!r}: {error}", found.meaning) from None
    return values, seen


def unknown(name: str, known: Sequence[Option] = OPTIONS) -> ConfigError:
    """The error for a name no option has, naming the nearest."""
    spellings = {spelling.lower(): spelling for option in known for spelling in (option.name, *option.aliases)}
    brought = [ours.lower() for begin, ours in _BROUGHT if name.lower().startswith(begin) and ours.lower() in spellings]
    near = (
        get_close_matches(name.lower(), spellings, 1, 0.8)
        or brought
        or get_close_matches(name.lower(), spellings, 1, 0.6)
    )
    hint = f"did you mean {spellings[near[0]]}?" if near else f"options: {', '.join(o.name for o in known)}"
    return ConfigError(f"unknown option {name!r}: {hint}", hint)


def table(known: Sequence[Option] = OPTIONS) -> str:
    """The options as a Markdown table, for the documentation."""
    lines = ["| option | default | counts in | meaning |", "|---|---|---|---|"]
    for option in known:
        names = ", ".join(f"`{name}`" for name in (option.name, *option.aliases))
        default = f"`{option.default}`" if option.default else "–"
        meaning = option.meaning.replace("|", "\\|")
        lines.append(f"| {names} | {default} | {option.reads} | {meaning} |")
    return "\n".join(lines) + "\n"


def _check(options: SourceOptions, seen: dict[str, str]) -> None:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign", "path") if name in seen]
    if not chosen:
        if not seen:  # as from a catalog's table that was made with a schema of the user's
            raise ConfigError("no topic given: Spark gave no options at all", _TABLES)
        raise ConfigError("no topic given", 'set subscribe, subscribePattern or assign, or load("topic")')
    if len(chosen) > 1:
        raise ConfigError(f"{' and '.join(chosen)} exclude each other", "give exactly one of them")
    if "path" in seen and not options.path.replace(",", " ").strip():  # type: ignore[union-attr]
        raise ConfigError(
            f"option path = {options.path!r}: names no topic", 'load("orders"), or several: load("orders,paid")'
        )
    if options.ending_offsets == "earliest":
        raise ConfigError("endingOffsets cannot be earliest")
    for other in ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"):
        if "startingGroup" in seen and other in seen:
            raise ConfigError(f"startingGroup and {other} exclude each other", "give one of them")
    least, most = options.min_offsets_per_trigger, options.max_offsets_per_trigger
    if least and most and least > most:
        raise ConfigError(
            f"minOffsetsPerTrigger = {least} is more than maxOffsetsPerTrigger = {most}",
            "let the maximum be the larger one",
        )
    if options.columns and (options.include_headers or options.include_metadata):
        raise ConfigError("columns excludes includeHeaders and includeMetadata", "name all columns in columns")


def demand_no_end(options: SourceOptions) -> None:
    """ConfigError when a stream is told where to end."""
    for option in OPTIONS:
        if option.name.startswith("ending") and getattr(options, option.field) is not None:
            raise ConfigError(
                f"{option.name} is for batch reads: a stream does not end",
                "trigger(availableNow=True) ends with what is stored when it begins; spark.read reads up to an offset",
            )


def in_vain(options: SourceOptions) -> list[str]:
    """The options that were given to a table and count in a stream alone."""
    unset = {**_NOTHING, "duration": _duration(_BY_NAME["maxTriggerDelay"].default, _BY_NAME["maxTriggerDelay"])}
    streams = [option for option in OPTIONS if option.reads == "stream"]
    return [option.name for option in streams if getattr(options, option.field) != unset[option.kind]]


# -- values


def _text(text: str, option: Option) -> str:
    if not text.strip():
        raise ValueError("empty")
    if "\0" in text:  # no file and no name has one, and the system's calls refuse it without saying what it is about
        raise ValueError("has a character NUL")
    return text.strip()


def _folder(text: str, option: Option) -> str:
    """A path, or one of the words, however it is spelled: taken for a path it would be looked for in vain, without a word."""
    word = _text(text, option)
    return word.lower() if word.lower() in ("auto", "none") else word


def _servers(text: str, option: Option) -> str:
    split_addresses(text)
    return text.strip()


def _group(text: str, option: Option) -> str:
    check_group(_text(text, option))
    return text.strip()


def _word(text: str, option: Option) -> str:
    words = option.kind.split()[1:]
    if text.strip().lower() not in words:
        raise ValueError(f"must be one of {', '.join(words)}")
    return text.strip().lower()


def _names(text: str, option: Option) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("names no one")
    return names


def _tags(text: str, option: Option) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split("||") if name.strip())
    if text.strip() and not names:
        raise ValueError("names no tag: * stands for all messages")
    return () if "*" in names else names


def _selection(text: str, option: Option) -> str:
    selector_of(text)
    return text


def _pattern(text: str, option: Option) -> str:
    if not text.strip():  # it would be taken for none, and no topic is called by blanks
        raise ValueError("empty")
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def _flag(text: str, option: Option) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.strip().lower() == "true"


def _whole(text: str, option: Option) -> int:
    if not re.fullmatch(r"\s*\d{1,18}\s*", text, re.ASCII):
        raise ValueError("must be a whole number of at most 18 digits")
    number = int(text)
    if option.most is not None and number > option.most:
        raise ValueError(f"at most {option.most}")
    return number


def _count(text: str, option: Option) -> int:
    number = _whole(text, option)
    if number < 1:
        raise ValueError("must be at least 1")
    return number


_BYTES_MAX = (1 << 63) - 1  # of a number of Spark's
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def _bytes(text: str, option: Option) -> int:
    match = re.fullmatch(r"(\d{1,15})\s*([kmg]?)(?:i?b)?", text.strip().lower(), re.ASCII)
    if match is None or not int(match[1]):
        raise ValueError("must be a size such as 1048576, 512k or 4MiB")
    number = int(match[1]) * _UNITS[match[2]]
    most = _BYTES_MAX if option.most is None else option.most
    if number > most:
        raise ValueError(f"at most {most} bytes")
    return number


_LEVELS_MAX = 3  # of positions: topic, broker, queue
_SPANS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "": 1}


def _duration(text: str, option: Option) -> int:
    match = re.fullmatch(r"(\d{1,12})\s*(ms|s|min|m|h|)", text.strip().lower(), re.ASCII)
    if match is None:
        raise ValueError("must be a time such as 500ms, 30s or 15m")
    return int(match[1]) * _SPANS[match[2]]


def moment_ms(text: str) -> int:
    """Milliseconds since 1970 of a number or an ISO 8601 text (UTC without zone); ValueError otherwise."""
    if re.fullmatch(r"\s*\d{1,15}\s*", text, re.ASCII):
        return int(text)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError("must be milliseconds since 1970 or a moment such as 2026-11-20T12:00:00") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def _each_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """ValueError for a name that is there twice: the last one would count alone."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is there twice")
    return found


def _is_deep(value: object, levels: int) -> bool:
    """Whether there are more levels. Python's own limit differs: 3.13 reads 5,000, and what speaks of them may fail then."""
    if not isinstance(value, dict | list):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deep(one, levels - 1) for one in inner)


def _json(text: str, option: Option) -> Positions:
    try:
        value = json.loads(text, object_pairs_hook=_each_once)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(value, dict) or not value:
        raise ValueError("must be a JSON object of topics")
    if _is_deep(value, _LEVELS_MAX):
        raise ValueError("nested too deeply")
    return value


def _positions(text: str, option: Option) -> Positions | str:
    word = text.strip().lower()
    return word if word in ("earliest", "latest") else _json(text, option)


_PARSERS: dict[str, Callable[[str, Option], object]] = {
    "text": _text, "folder": _folder, "servers": _servers, "group": _group, "selection": _selection, "word": _word,
    "names": _names, "tags": _tags, "pattern": _pattern,
    "flag": _flag, "whole": _whole, "count": _count, "bytes": _bytes, "duration": _duration,
    "moment": lambda text, option: moment_ms(text), "json": _json, "positions": _positions,
}  # fmt: skip
_NOTHING: Values = {kind: () if kind in ("names", "tags") else None for kind in _PARSERS}

_BY_NAME = {option.name: option for option in OPTIONS}
assert {option.field for option in OPTIONS} | {"security"} == {field.name for field in fields(SourceOptions)}
