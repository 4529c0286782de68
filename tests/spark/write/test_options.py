"""The options and columns of the sink."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import ConfigError
from penstock.spark.write.options import BATCH_BYTES_MAX, check, columns_table, for_writing, parse


def rows(**columns: str) -> Any:
    """A schema, as far as the check looks at one."""
    kind = lambda text: SimpleNamespace(simpleString=lambda: text)  # noqa: E731
    return SimpleNamespace(fields=[SimpleNamespace(name=name, dataType=kind(text)) for name, text in columns.items()])


def test_values_and_defaults() -> None:
    found = parse({"topic": "t", "batchBytes": "2m"})
    assert (found.topic, found.batch_bytes, found.commit_mode, found.sink_id, found.level) == (
        "t",
        2 << 20,
        "batch",
        None,
        "disk",
    )
    assert for_writing({"SinkId": "x"})
    assert not for_writing({"topic": "t", "startingOffsets": "latest"})


@pytest.mark.parametrize(
    "given", [{"topic": "a", "path": "b"}, {"batchBytes": str(BATCH_BYTES_MAX + 1)}, {"commitMode": "often"}, {"sinkid_": "x"},
              {"commitMode": "none", "batchBytes": "5m"}, {"topic": "t", "registry": "h:99999"},
              {"commitMode": "none", "jobId": "j"}, {"commitMode": "none", "sinkId": "s"}, {"sinkReset": "true"}]
)  # fmt: skip
def test_what_cannot_be_asked(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parse(given)


def test_headers_need_no_option_as_they_do_in_kafkas_sink() -> None:
    with pytest.raises(ConfigError, match="no option includeHeaders: a column headers is written without it"):
        parse({"topic": "t", "includeHeaders": "true"})


@pytest.mark.parametrize(("option", "most"), [("sinkId", 255), ("jobId", 251)])
def test_a_name_that_no_broker_takes_is_refused_before_the_job(option: str, most: int) -> None:
    parse({option: "n" * most})
    parse({option: "n" * (most - 11), "commitMode": "partition"})  # each partition's has a slash and a number more
    for name, more in (
        ("n" * (most + 1), {}),
        ("n" * (most - 10), {"commitMode": "partition"}),
        ("jö", {}),
        ("a\tb", {}),
    ):
        with pytest.raises(ConfigError, match=f"option {option} = .*printable"):
            parse({option: name, **more})


@pytest.mark.parametrize("option", ["topic", "path"])
def test_a_topic_that_nobody_can_write_to_is_refused_before_the_job(option: str) -> None:
    parse({option: "t" * 127})
    for name in (
        "t" * 128,
        "a b",
        "ü",
        "orders.v1",
        "TBW102",
    ):  # the last but one is a queue topic's, the last the template
        with pytest.raises(ConfigError, match=r"no topic of the sink can be called .* 1 to 127 letters"):
            parse({option: name})


@pytest.mark.parametrize(
    ("columns", "options", "why"),
    [
        ({"key": "string"}, {"topic": "t"}, "no column value"),
        ({"value": "string"}, {}, "no topic given"),
        ({"value": "int"}, {"topic": "t"}, "column value is int"),
        ({"value": "string", "tag": "string"}, {"topic": "t"}, "did you mean tags"),
        ({"value": "string", "delayMs": "bigint"}, {"topic": "t", "commitMode": "none"}, "needs commitMode"),
    ],
)
def test_rows_that_cannot_be_written(columns: dict[str, str], options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        check(rows(**columns), parse(options))


@pytest.mark.parametrize(
    ("column", "kind", "remedy"),
    [
        ("value", "decimal(5,2)", "cast it to string"),
        ("value", "struct<a:int>", r"take to_json\(value\)"),
        ("deliverAt", "date", "cast it to timestamp_ltz"),
        ("partition", "string", "cast it to int"),
    ],
)
def test_what_is_told_to_do_about_a_type_can_be_done(column: str, kind: str, remedy: str) -> None:
    """Spark casts neither decimals nor structs to binary."""
    with pytest.raises(ConfigError) as error:
        check(rows(**{"value": "string", column: kind}), parse({"topic": "t"}))
    assert re.fullmatch(remedy, error.value.hint)


def test_rows_that_can() -> None:
    check(rows(value="binary", offset="bigint", topic="string"), parse({}))
    assert columns_table().count("\n") == 13
