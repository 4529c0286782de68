"""Tables of another shape, empty, garbage, or a folder in their place: the backup, then what log and queues tell."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from broker.queueside import Quick, Side
from penstock.broker.tables import OFFSETS_EVERY_MS, Tables
from penstock.errors import DiskFull
from penstock.log.sequences import Stored

TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json", "sequences.json")
DAMAGE = {
    "a list": b"[1, 2]",
    "a number inside": b'{"topicConfigTable": 5, "subscriptionGroupTable": 5, "offsetTable": 5, "position": 0, "producers": 5}',
    "numbers in a list": b'{"topicConfigTable": [1], "subscriptionGroupTable": [1], "offsetTable": [1], "producers": []}',
    "odd entries": b'{"topicConfigTable": {"T": 4}, "subscriptionGroupTable": {"G": 4}, "offsetTable": {"T@G": 4}}',
    "odd version": b'{"topicConfigTable": {}, "subscriptionGroupTable": {}, "offsetTable": 0, "dataVersion": [1]}',
    "garbage": b"\xff\x00{",
    "empty": b"",
}
PRODUCER = "c" * 16


class NoRoomForOffsets(Quick):
    """A disk that is full, for one table."""

    full = False

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if self.full and path.name.startswith("consumerOffset"):
            raise DiskFull("no room for a test")
        return super().open(path, create=create, writable=writable)


def filled(folder: Path) -> Side:
    side = Side(folder)
    broker = side.broker
    topic = broker.topics.create(b"T", 4, 4)
    for n in range(8):
        sequence = {"PSEQ": f"{PRODUCER}.{n + 1}.1"}
        placed = broker.put(topic, n % 4, b"m%d" % n, sequence, born_host=broker.store_host, born_ms=1)
        here = Stored(broker.store.end_position, "T", n % 4, placed.queue_offset, 1, ((placed.physical, 1),))
        broker.sequences.took(PRODUCER, n + 1, here)
    broker.groups.find("G", 0)
    broker.offsets.commit("G", "T", 0, 1)
    side.turn(1000)
    side.turn(6000)
    broker.offsets.commit("G", "T", 0, 2)
    broker.groups.find("G2", 0)
    side.turn(6000)
    return side


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("damage", [*DAMAGE, "folder", "gone"])
@pytest.mark.parametrize("name", TABLES)
def test_a_damaged_table(
    tmp_path: Path, name: str, damage: str, both: bool, clean: bool, caplog: pytest.LogCaptureFixture
) -> None:
    side = filled(tmp_path)
    side.broker.close(clean)
    path = tmp_path / "config" / name
    backup = path.with_name(name + ".bak")
    had_backup = backup.is_file()
    for file in (path, backup) if both else (path,):
        file.unlink(missing_ok=True)
        if damage == "folder":
            file.mkdir()
        elif damage != "gone":
            file.write_bytes(DAMAGE[damage])
    caplog.clear()
    side.open()
    broker = side.broker
    side.turn(6000)
    topic = broker.topics.get(b"T")
    assert topic is not None
    assert [queue.max_offset for queue in topic.queues] == [2] * 4
    offset = broker.offsets.get("G", "T", 0)
    if name == "consumerOffset.json":
        assert offset in ((None,) if both or not had_backup else (1, 2))
    else:
        assert offset == (2 if clean else offset)
        assert offset in (1, 2)
    for number in range(1, 9):
        found = broker.sequences.find(PRODUCER, number)
        assert found is not None
        assert found.queue_id == (number - 1) % 4
    if damage != "gone":
        assert list((tmp_path / "lost+found").glob(f"config-{name}*"))
        assert any(name in record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR)
    broker.offsets.commit("G", "T", 0, 2)
    side.reopen(clean=True)
    assert side.broker.offsets.get("G", "T", 0) == 2
    assert json.loads(path.read_bytes()) or name == "delayOffset.json"
    side.close()


def test_offsets_are_written_behind_the_flush_every_few_seconds(tmp_path: Path) -> None:
    side = Side(tmp_path)
    tables: Tables = side.broker.tables
    path = tmp_path / "config" / "consumerOffset.json"
    side.broker.offsets.commit("G", "T", 0, 1)
    side.turn(OFFSETS_EVERY_MS - 1)
    assert not path.exists()
    side.turn(1)
    assert json.loads(path.read_text())["offsetTable"]["T@G"] == {"0": 1}
    assert list(tables.take_offset_jobs()) == []
    side.close()


def test_offsets_that_a_disk_had_no_room_for_are_written_when_it_has(tmp_path: Path) -> None:
    """Nobody commits meanwhile, and the broker is not stopped cleanly."""
    files = NoRoomForOffsets()
    side = Side(tmp_path, files=files)
    side.broker.offsets.commit("G", "T", 0, 1)
    files.full = True
    side.turn(OFFSETS_EVERY_MS)
    files.full = False
    side.turn(OFFSETS_EVERY_MS)
    table = json.loads((tmp_path / "config" / "consumerOffset.json").read_text())
    assert table["offsetTable"]["T@G"] == {"0": 1}
    side.close()


def test_a_topic_that_no_turn_has_saved_is_there_after_a_clean_stop(tmp_path: Path) -> None:
    """The file of changes is removed then: what it would have named must stand in the table."""
    side = Side(tmp_path)
    side.broker.topics.create(b"first", 1, 1)
    side.turn(6000)  # the table is whole
    side.broker.topics.create(b"second", 3, 3)
    side.broker.close(True)
    table = json.loads((tmp_path / "config" / "topics.json").read_text())["topicConfigTable"]
    assert table["second"]["readQueueNums"] == 3
    assert not list((tmp_path / "config").glob("topics.json.changes*"))
