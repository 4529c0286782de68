"""Redrive: chosen dead letters go back once."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from spark_logs import counted

from penstock.errors import ConfigError
from penstock.spark.pipelines import redrive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_chosen_dead_letters_go_back_once(spark: SparkSession, registry: str, tmp_path: Path) -> None:
    dead = spark.range(20).selectExpr(
        "cast(id as string) as value", "if(id % 2 = 0, 'even', 'odd') as tags",
        "map('RETRY_TOPIC', 'shop', 'ORIGIN_MESSAGE_ID', concat('id', id)) as properties",
    )  # fmt: skip
    dead.write.format("penstock").options(registry=registry).mode("append").save("%DLQ%packers")
    asked: dict[str, Any] = {"registry": registry, "state": tmp_path}
    assert redrive.run(spark, "packers", **asked).topics == {"shop": 20}
    assert redrive.run(spark, "packers", **asked, tag="odd", dry_run=False).rows == 10
    assert redrive.run(spark, "packers", **asked, tag="odd", dry_run=False).rows == 0
    assert counted(spark, registry, "shop") == Counter(range(1, 20, 2))
    (notes,) = tmp_path.glob("*.json")
    state = json.loads(notes.read_text())
    rest = redrive.run(spark, "packers", **asked, where="tags = 'even'", dry_run=False)
    assert (rest.rows, rest.before) == (10, 10)
    after = json.loads(notes.read_text())
    chosen = [place for place in after["done"] if place not in state["done"]]
    assert counted(spark, registry, "shop") == Counter(range(20))
    rows = spark.read.format("penstock").options(registry=registry, columns="value,properties").load("shop").collect()
    assert {row["properties"]["ORIGIN_MESSAGE_ID"] for row in rows} == {f"id{n}" for n in range(20)}
    assert len(chosen) == 10
    assert redrive.run(spark, "packers", **asked).rows == 0
    other = {**asked, "registry": registry.replace("127.0.0.1", "localhost")}  # the same cluster
    assert redrive.run(spark, "packers", **other).rows == 0
    places = [(broker, queue, offset, stored - 1000) for broker, queue, offset, stored in after["done"]]
    notes.write_text(json.dumps({**after, "done": places}))  # of another cluster, or before the topic was made anew
    assert redrive.run(spark, "packers", **asked).rows == 20
    notes.write_text(json.dumps({"done": [], "pending": places, "job": "j", "registry": "elsewhere:9876"}))
    with pytest.raises(ConfigError, match="--registry elsewhere:9876 did not end"):
        redrive.run(spark, "packers", **asked, dry_run=False)
    notes.unlink()
    without_times = [place[:3] for place in after["done"]]  # as a former version wrote them, for each registry
    former = tmp_path / f"{registry.replace(':', '_')}-packers.json"
    former.write_text(json.dumps({"done": without_times[:15], "pending": without_times[15:], "job": "redrive-begun"}))
    last = redrive.run(spark, "packers", **asked, dry_run=False)
    assert (last.rows, last.resumed, last.before) == (0, 5, 20)
    assert redrive.run(spark, "packers", **asked).rows == 0


def test_groups_have_notes_of_their_own(tmp_path: Path) -> None:
    names = ("a|b", "a_b", "a%7Cb", "%DLQ%a-b")
    assert len({redrive._Notes(tmp_path, "r:1", name).path for name in names}) == len(names)


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_a_redrive_killed_before_its_note_sends_nothing_twice(
    spark: SparkSession, registry: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = spark.range(6).selectExpr("cast(id as string) as value", "map('RETRY_TOPIC', 'mill') as properties")
    dead.write.format("penstock").options(registry=registry).mode("append").save("%DLQ%millers")
    asked: dict[str, Any] = {"registry": registry, "state": tmp_path, "dry_run": False}
    save, calls = redrive._Notes.save, []

    def killed(notes: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        save(notes)

    monkeypatch.setattr(redrive._Notes, "save", killed)
    with pytest.raises(KeyboardInterrupt):
        redrive.run(spark, "millers", **asked)
    again = redrive.run(spark, "millers", **{**asked, "registry": registry.replace("127.0.0.1", "localhost")})
    assert (again.resumed, again.rows) == (6, 0)
    assert counted(spark, registry, "mill") == Counter(range(6))
