"""Events out of files of every kind, and out of /proc."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.demo.events import Feed, feeds
from penstock.demo.processes import FIELDS, sample
from penstock.demo.shape import Plan
from penstock.errors import ConfigError

DATA = Path(__file__).parents[3] / "shared" / "data"
real = pytest.mark.skipif(not DATA.exists(), reason="needs the shared sample data beside the project")


def one(path: Path, *more: Path) -> tuple[Feed, list[dict[str, object]]]:
    (feed,) = feeds([path, *more])
    return feed, list(feed.events)


def test_csv_with_and_without_a_header(tmp_path: Path) -> None:
    path = tmp_path / "sensor data.csv"
    path.write_text("when;value\n2020-01-01 00:00:00;1,5\n2020-01-01 00:01:00;2\n")
    feed, events = one(path)
    assert feed.topic == "sensor-data"
    assert events[1] == {"when": "2020-01-01 00:01:00.000000", "value": "2"}
    path.write_text("1,2\n3,4\n")
    assert one(path)[1] == [{"column1": 1.0, "column2": 2.0}, {"column1": 3.0, "column2": 4.0}]


def test_json_lines_are_flattened_and_bad_ones_kept_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": {"b": 1}, "c": [1, 2]}\n\nnot json\n')
    _, events = one(path)
    assert events == [{"a_b": 1.0, "c": "[1, 2]", "line": None}, {"a_b": None, "c": None, "line": "not json"}]
    (tmp_path / "b.json").write_text(json.dumps([{"x": 1}, {"x": 2}]))
    assert one(tmp_path / "b.json")[1] == [{"x": 1.0}, {"x": 2.0}]


def test_arrow_files_and_streams(tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2, None], "name": ["a", "b", "a"]})
    with pa.OSFile(str(tmp_path / "f.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pa.OSFile(str(tmp_path / "s.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    expected = [{"x": 1.0, "name": "a"}, {"x": 2.0, "name": "b"}, {"x": None, "name": "a"}]
    assert one(tmp_path / "f.arrow")[1] == one(tmp_path / "s.arrow")[1] == expected


def test_lines_give_time_and_level_and_may_be_packed(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "app.log.gz", "wt") as file:
        file.write("2020-01-01 00:00:00,123 INFO started\n2020-01-01 00:00:01,000 ERROR broke\n")
    _, events = one(tmp_path / "app.log.gz")
    assert [(event["time"], event["level"]) for event in events] == [
        ("2020-01-01 00:00:00.123000", "INFO"),
        ("2020-01-01 00:00:01.000000", "ERROR"),
    ]


def test_files_alike_share_a_topic_and_others_do_not(tmp_path: Path) -> None:
    for name in ("cpu_a", "cpu_b", "taxi"):
        (tmp_path / f"{name}.csv").write_text("timestamp,value\n2020-01-01 00:00:00,1\n")
    found = feeds([tmp_path / "cpu_a.csv", tmp_path / "taxi.csv", tmp_path / "cpu_b.csv"])
    assert [(feed.topic, [f.name for f in feed.fields]) for feed in found] == [
        ("cpu", ["timestamp", "value", "source"]),
        ("taxi", ["timestamp", "value"]),
    ]
    assert [event["source"] for event in found[0].events] == ["a", "b"]


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        feeds([tmp_path / "nothing.csv"])
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ConfigError, match="empty"):
        feeds([tmp_path / "empty.csv"])


@real
@pytest.mark.parametrize(
    ("name", "count", "plan"),
    [
        ("flights-200k.arrow", 200_000, Plan("bins", "time", "delay")),
        ("apache_access.log", 10_000, Plan("time", "time", None, "status")),
        ("nab/nyc_taxi.csv", 10_320, Plan("time", "timestamp", "value")),
        ("nab/machine_temperature_system_failure.csv", 22_695, Plan("time", "timestamp", "value")),
    ],
)
def test_real_files(name: str, count: int, plan: Plan) -> None:
    (feed,) = feeds([DATA / name])
    assert feed.plan == plan
    assert sum(1 for _ in feed.events) == count


@real
def test_several_real_files_are_told_apart() -> None:
    (feed,) = feeds(sorted((DATA / "nab").glob("Twitter*.csv")))
    assert (feed.topic, feed.plan) == ("Twitter_volume", Plan("time", "timestamp", "value", "source"))
    assert {event["source"] for event in feed.events} == {"AAPL", "AMZN", "FB", "GOOG"}


def test_processes_are_sampled_until_there_are_enough() -> None:
    events = list(sample(20, 0.2))
    assert len(events) >= 20
    assert set(events[0]) == {field.name for field in FIELDS}
    assert any(event["memory_mb"] > 1 for event in events)
    with pytest.raises(ConfigError):
        list(sample(1, 0.1, Path("/nowhere")))
