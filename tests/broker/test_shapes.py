"""The shapes of a broker's tables: what is one, and what is damage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from penstock.broker import shapes
from penstock.disk.files import Files
from penstock.disk.tables import save

Fits = Callable[[Mapping[str, object]], bool]


@pytest.mark.parametrize(
    ("fits", "table"),
    [
        (shapes.topics, {"topicConfigTable": {}}),
        (shapes.topics, {"topicConfigTable": {"T": {"perm": 6}}, "dataVersion": {"counter": 1, "timestamp": 2}}),
        (shapes.topics, {"topicConfigTable": {"topicConfigTable": {"T": {}}}}),
        (shapes.groups, {"subscriptionGroupTable": {"G": {}}}),
        (shapes.groups, {"G": {}, "dataVersion": {"counter": 1}}),
        (shapes.offsets, {"offsetTable": {"T@G": {"0": 5}}}),
        (shapes.offsets, {"offsets": {"G@T": {"queue 0": 5}}}),
        (shapes.delays, {"offsetTable": {"1": 5}}),
    ],
)
def test_what_fits(fits: Fits, table: dict[str, object]) -> None:
    assert fits(table)


@pytest.mark.parametrize(
    ("fits", "table"),
    [
        (shapes.topics, {}),
        (shapes.topics, {"topicConfigTable": {"T": 4}}),
        (shapes.topics, {"topicConfigTable": {}, "dataVersion": [1]}),
        (shapes.topics, {"topicConfigTable": {}, "dataVersion": {"counter": "1"}}),
        (shapes.groups, {"subscriptionGroupTable": [1]}),
        (shapes.offsets, {}),
        (shapes.offsets, {"offsetTable": {"T@G": {"0": "5"}}}),
        (shapes.offsets, {"offsetTable": {"T@G": 4}}),
        (shapes.delays, {"offsetTable": {"first": 5}}),
    ],
)
def test_what_does_not(fits: Fits, table: dict[str, object]) -> None:
    assert not fits(table)


def test_a_table_its_backup_or_nothing(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "config" / "topics.json"
    assert shapes.open_table(files, tmp_path, "topics.json", shapes.topics, "none") == {}
    for name in ("A", "B"):
        save(files, path, {"topicConfigTable": {name: {}}})
    path.write_text('{"topicConfigTable": 5}')
    table = shapes.open_table(files, tmp_path, "topics.json", shapes.topics, "none")
    assert shapes.entries(table, "topicConfigTable") == {"A": {}}


def test_numbers_and_versions() -> None:
    assert (shapes.number({"n": "7"}, "n", 0), shapes.number({}, "n", 3)) == (7, 3)
    for bad in ([], None, "many"):
        with pytest.raises(ValueError):
            shapes.number({"n": bad}, "n", 0)
    assert shapes.version_of({"dataVersion": {"counter": 3}}) == {"counter": 3, "timestamp": 0}
    assert shapes.version_of({}) == {"counter": 0, "timestamp": 0}
    assert shapes.entries({"t": {"a": {}, "b": 5}}, "t") == {"a": {}}
