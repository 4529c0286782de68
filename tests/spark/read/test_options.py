"""Every option is read, checked and documented; a wrong name is an error that names the right one."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark.pages import rewritten
from penstock.spark.read.options import OPTIONS, SECURITY_OPTIONS, Option, in_vain, parse, read, unknown
from penstock.spark.write.options import SINK_OPTIONS

DOCS = Path(__file__).parents[3] / "docs" / "spark.md"


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="did you mean startingOffsets"):
        parse({"subscribe": "t", "startingOffset": "earliest"})
    with pytest.raises(ConfigError, match="unknown option 'zzz'"):
        parse({"subscribe": "t", "zzz": "1"})


@pytest.mark.parametrize(
    ("brought", "source", "sink"),
    [
        ("kafka.group.id", "groupIdPrefix", None),
        ("kafka.bootstrap.servers", "penstock.bootstrap.servers", "penstock.bootstrap.servers"),
        ("kafka.max.poll.records", "fetchBytes", None),
        ("kafka.max.partition.fetch.bytes", "fetchBytes", None),
        ("kafka.max.poll.interval.ms", None, None),
        ("kafkaConsumer.pollTimeoutMs", "fetchTimeoutMs", None),
        ("kafka.request.timeout.ms", "fetchTimeoutMs", "sendTimeoutMs"),
        ("kafka.acks", None, "level"),
        ("kafka.transactional.id", None, "sinkId"),
        ("kafka.security.protocol", "tls", "tls"),
        ("kafka.sasl.jaas.config", "user", "user"),
        ("kafka.client.id", None, None),
        ("subscribe", "", "topic"),
        ("subscribes", "subscribe", "topic"),
    ],
)
def test_a_name_of_kafkas_names_what_is_meant_here(brought: str, source: str | None, sink: str | None) -> None:
    for known, meant in ((OPTIONS, source), (SINK_OPTIONS, sink)):
        if meant == "":
            continue
        said = str(unknown(brought, (*known, *SECURITY_OPTIONS)))
        assert said.startswith(
            f"unknown option {brought!r}: " + ("options: " if meant is None else f"did you mean {meant}?")
        )


@pytest.mark.parametrize("word", ["AUTO", "Auto", " auto "])
def test_a_word_in_place_of_a_folder_is_no_folder_however_it_is_spelled(word: str) -> None:
    assert parse({"subscribe": "t", "store": word}).store == "auto"
    assert parse({"subscribe": "t", "store": word.replace(word.strip(), "None")}).store == "none"
    assert parse({"subscribe": "t", "store": "./AUTO"}).store == "./AUTO"


def test_what_a_table_does_without_is_known() -> None:
    assert in_vain(parse({"subscribe": "t", "minPartitions": "3", "maxTriggerDelay": "15m"})) == []
    given = {"maxOffsetsPerTrigger": "5", "maxTriggerDelay": "1m", "commitOffsetsToGroup": "g"}
    assert in_vain(parse({"subscribe": "t", **given})) == list(given)


def test_names_are_case_insensitive_and_have_aliases() -> None:
    options = parse({"SUBSCRIBE": "a, b", "penstock.bootstrap.servers": "h:1;i:2"})
    assert options.subscribe == ("a", "b")
    assert options.registry == "h:1;i:2"
    assert parse({"topic": "a"}).subscribe == ("a",)
    with pytest.raises(ConfigError, match="same option"):
        parse({"subscribe": "a", "registry": "h:1", "nameServer": "h:2"})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"subscribe": "a", "subscribePattern": "b"},
        {"subscribe": "a", "path": "b"},
        {"subscribe": ","},
        {"path": " , "},
        {"subscribePattern": "("},
        {"subscribePattern": ""},
        {"subscribePattern": " "},
        {"subscribe": "a", "startingGroup": "g", "startingOffsets": "earliest"},
        {"subscribe": "a", "startingGroup": "g", "startingTimestamp": "5"},
        {"subscribe": "a", "startingGroup": "g", "startingOffsetsByTimestamp": '{"a": 5}'},
        {"subscribe": "a", "endingOffsets": "earliest"},
        {"subscribe": "a", "columns": "offset", "includeMetadata": "true"},
        {"subscribe": "a", "failOnDataLoss": "yes"},
        {"subscribe": "a", "maxOffsetsPerTrigger": "0"},
        {"subscribe": "a", "maxOffsetsPerTrigger": "-1"},
        {"subscribe": "a", "maxOffsetsPerTrigger": "many"},
        {"subscribe": "a", "maxBytesPerTrigger": "4q"},
        {"subscribe": "a", "maxTriggerDelay": "soon"},
        {"subscribe": "a", "startingTimestamp": "yesterday"},
        {"subscribe": "a", "startingOffsets": "{"},
        {"subscribe": "a", "startingOffsets": "[]"},
        {"subscribe": "a", "startingOffsets": '{"a":' * 5000 + "1" + "}" * 5000},
        {"subscribe": "a", "startingOffsets": '{"a":' * 4 + "1" + "}" * 4},
        {"subscribe": "a", "endingOffsets": '{"a":' + "[" * 900 + "]" * 900 + "}"},
        {"subscribe": "a", "store": "/data\0"},
        {"subscribe": "a", "pushdown": "maybe"},
        {"subscribe": "a", "startingOffsetsByTimestampStrategy": "guess"},
        {"subscribe": "a", "startingGroup": "my group"},
        {"subscribe": "a", "commitOffsetsToGroup": "x" * 300},
        {"subscribe": "a", "groupIdPrefix": "ü"},
        {"subscribe": "a", "registry": "h:99999"},
        {"subscribe": "a", "registry": "h:9876;two words"},
        {"subscribe": "a", "registry": ";"},
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        parse(given)


NUMBERS = [
    option for option in (*OPTIONS, *SINK_OPTIONS) if option.kind.split()[0] in ("count", "whole", "bytes", "duration")
]


@pytest.mark.parametrize("option", NUMBERS, ids=lambda option: option.name)
def test_a_number_that_cannot_be_is_refused_with_the_options_name(option: Option) -> None:
    """Whatever is taken is taken as it is: beyond its limit an option is refused, not cut."""
    known = OPTIONS if option in OPTIONS else SINK_OPTIONS
    for text in ("-1", "", "1.5", "1e3", "many", "nan", "٣", "9" * 19, "9" * 30):
        with pytest.raises(ConfigError, match=f"^option {option.name} = "):
            read(known, {option.name: text})
    if option.kind in ("count", "bytes"):
        with pytest.raises(ConfigError, match=f"^option {option.name} = '0': must be"):
            read(known, {option.name: "0"})
    if option.most is not None:
        assert read(known, {option.name: str(option.most)})[0][option.field] == option.most
        with pytest.raises(ConfigError, match=f"^option {option.name} = '{option.most + 1}': at most {option.most}"):
            read(known, {option.name: str(option.most + 1)})


def test_a_size_that_spark_cannot_count_is_refused() -> None:
    """Spark's numbers end there: what was beyond was another limit for it, or none."""
    read(OPTIONS, {"maxBytesPerTrigger": f"{(1 << 33) - 1}g"})
    with pytest.raises(ConfigError, match=f"at most {(1 << 63) - 1} bytes"):
        read(OPTIONS, {"maxBytesPerTrigger": f"{1 << 33}g"})


def test_a_minimum_above_the_maximum_is_refused() -> None:
    """As by Spark's Kafka source."""
    parse({"subscribe": "a", "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "5"})
    with pytest.raises(ConfigError, match="minOffsetsPerTrigger = 6 is more than maxOffsetsPerTrigger = 5"):
        parse({"subscribe": "a", "minOffsetsPerTrigger": "6", "maxOffsetsPerTrigger": "5"})


def test_a_topic_or_queue_that_is_there_twice_is_refused() -> None:
    for given in ('{"a": [0], "b": [1], "a": [1]}', '{"a": {"x": [0], "x": [1]}}'):
        with pytest.raises(ConfigError, match=r"'[ax]' is there twice"):
            parse({"assign": given})
    with pytest.raises(ConfigError, match="'0' is there twice"):
        parse({"subscribe": "a", "startingOffsets": '{"a": {"0": 1, "0": 5}}'})


def test_a_file_that_cannot_be_read_is_told_with_the_option_that_names_it(tmp_path: Path) -> None:
    for option in ("security", "secretFile"):
        with pytest.raises(
            ConfigError, match=f"^option {option} = '/nowhere/file': cannot read /nowhere/file: No such"
        ):
            parse({"subscribe": "a", option: "/nowhere/file"})
    shown = tmp_path / "shown"
    shown.write_text("secret")
    shown.chmod(0o644)
    with pytest.raises(ConfigError, match=r"^option secretFile = .*others than its owner may use it$") as caught:
        parse({"subscribe": "a", "secretFile": str(shown)})
    assert caught.value.hint == f"Run: chmod 600 {shown}"


def test_a_list_of_names_is_told_how_to_say_it() -> None:
    """`load(["a", "b"])`: Spark makes an option `paths` of it."""
    with pytest.raises(ConfigError, match="one text, not a list") as caught:
        parse({"paths": '["a","b"]'})
    assert "topics, as with `subscribe`" in caught.value.hint


def test_values_are_read_in_their_units() -> None:
    options = parse(
        {
            "subscribe": "a",
            "maxBytesPerTrigger": "2MiB",
            "maxTriggerDelay": "90s",
            "startingTimestamp": "2026-11-20T12:00:00+01:00",
            "tags": "A || B",
            "keys": "k1,k2",
            "columns": "value, offset",
            "fetchBytes": "512k",
        }
    )
    assert options.max_bytes_per_trigger == 2 << 20
    assert options.max_trigger_delay == 90_000
    assert options.starting_timestamp == 1_795_172_400_000
    assert options.tags == ("A", "B")
    assert options.keys == ("k1", "k2")
    assert options.columns == ("value", "offset")
    assert options.fetch_bytes == 512 << 10
    assert parse({"subscribe": "a"}).max_trigger_delay == 900_000
    assert parse({"subscribe": "a", "tags": "*"}).tags == ()
    assert parse({"subscribe": "a", "tags": ""}).tags == ()  # as RocketMQ's subscriptions
    with pytest.raises(ConfigError, match="tag"):  # of which everything was read
        parse({"subscribe": "a", "tags": " || "})


def test_the_documentation_is_current() -> None:
    page = DOCS.read_text()
    assert rewritten(page) == page, "run: python -m penstock.spark.pages docs/spark.md"
    assert all(f"`{option.name}`" in page for option in OPTIONS)
    assert all(option.meaning and not option.meaning.endswith(".") for option in OPTIONS)
