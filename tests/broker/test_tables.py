"""Tables of another shape, empty, garbage, or a folder in their place: the backup, then what log and queues tell."""

from __future__ import annotations

import json
import logging
import os
import random
from pathlib import Path

import pytest

from broker.queueside import Quick, Side
from penstock.broker.tables import OFFSETS_EVERY_MS, QUIET_MS, RETRY_MS, Tables
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


class NoRoomForGroups(Quick):
    """A disk that is full, for what is noted beside one table and for the table itself."""

    full = False

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        if self.full and "subscriptionGroup" in os.readlink(f"/proc/self/fd/{fd}"):
            raise DiskFull("no room for a test")
        super().write(fd, at, data)


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


def test_offsets_that_a_disk_had_no_room_for_are_written_when_it_has(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody commits meanwhile, and the broker is not stopped cleanly."""
    files = NoRoomForOffsets()
    side = Side(tmp_path, files=files)
    side.broker.offsets.commit("G", "T", 0, 1)
    files.full = True
    for _ in range(10):
        side.turn(OFFSETS_EVERY_MS)
    assert (
        caplog.text.count("committed offsets not written") == 1
    )  # a line every five seconds fills what is left of the disk
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


def saved(side: Side, ms: int = 0) -> None:
    """A turn, and what it saves."""
    side.turn(ms)
    side.broker.save_tables()


def test_a_group_that_changes_is_a_line_beside_its_table(tmp_path: Path) -> None:
    side = Side(tmp_path)
    path = tmp_path / "config" / "subscriptionGroup.json"
    for n in range(100):
        side.broker.groups.find(f"g{n}", 1)
    saved(side)
    table = path.read_bytes()
    side.broker.groups.update({"groupName": "g7", "retryMaxTimes": 3, "consumeEnable": False}, 2)
    side.broker.groups.forbid("g8", "secrets", True, 3)
    side.broker.groups.delete("g9", 4)
    side.broker.groups.find("late", 5)
    saved(side)
    assert path.read_bytes() == table
    version = dict(side.broker.groups.version)
    told = side.broker.groups.as_table()
    side.reopen(clean=False)
    assert side.broker.groups.as_table() == told
    assert side.broker.groups.version == version
    side.broker.groups.find("later", 6)
    saved(side)
    saved(side, QUIET_MS)  # and then the table has it all
    assert {"late", "later"} <= json.loads(path.read_bytes())["subscriptionGroupTable"].keys()
    side.broker.groups.forbid("g8", "secrets", False, 7)
    side.broker.close(True)
    assert not list((tmp_path / "config").glob("subscriptionGroup.json.changes*"))
    side.open()
    assert side.broker.groups.by_name["g8"].forbidden == frozenset()
    side.close()


@pytest.mark.parametrize("seed", range(4))
def test_lives_of_groups(tmp_path: Path, seed: int) -> None:
    """Whatever a turn has saved is there after a kill."""
    chance = random.Random(seed)
    side = Side(tmp_path)
    for now_ms in range(1, 300):
        group, what = f"g{chance.randrange(12)}", chance.randrange(20)
        if what < 8:
            side.broker.groups.update({"groupName": group, "retryMaxTimes": chance.randrange(20)}, now_ms)
        elif what < 12:
            side.broker.groups.delete(group, now_ms)
        elif what < 16:
            side.broker.groups.forbid(group, f"t{chance.randrange(4)}", chance.random() < 0.6, now_ms)
        else:
            saved(side, chance.choice((1, QUIET_MS)))
            told = side.broker.groups.as_table()
            if what == 19:
                side.reopen(clean=chance.random() < 0.3)
                assert side.broker.groups.as_table() == told
    side.close()


def test_a_group_that_a_full_disk_refused_is_there_when_it_has_room(tmp_path: Path) -> None:
    files = NoRoomForGroups()
    side = Side(tmp_path, files=files)
    saved(side)
    files.full = True
    side.broker.groups.find("G", 1)
    with pytest.raises(DiskFull):
        side.broker.tables.write()
    files.full = False
    saved(side, RETRY_MS)
    side.reopen(clean=False)
    assert "G" in side.broker.groups.by_name
    side.close()
