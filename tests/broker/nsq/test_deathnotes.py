"""`deathnotes`: a line for each dead letter, found by place, cut and trimmed."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from broker.queueside import Quick, Side
from penstock.broker.nsq import deathnotes
from penstock.broker.nsq.deathnotes import DeathNotes, Note, _last_line, _line, _lines, read_line
from penstock.broker.nsq.topics import QueueTopic
from penstock.errors import DiskFull


def dead(side: Side, bodies: int) -> QueueTopic:
    topic = side.queueing.topic(b"t.c.dead")
    assert isinstance(topic, QueueTopic)
    for n in range(bodies):
        side.queueing.publish(topic, [b"%d" % n])
    return topic


def test_each_is_found_by_its_place_and_id(tmp_path: Path) -> None:
    side = Side(tmp_path)
    topic, notes = dead(side, 1), DeathNotes(side.queueing.folder)
    assert notes.find(topic.name, 0, "00") is None
    for place in range(3_000):
        notes.add(topic, place, f"{place:016x}", {"DLQ_REASON": "attempts", "DLQ_DETAIL": "d" * (place % 200)})
    for place in (0, 1, 777, 1_500, 2_999):
        found = notes.find(topic.name, place, f"{place:016x}")
        assert found == {"DLQ_REASON": "attempts", "DLQ_DETAIL": "d" * (place % 200)}
    assert notes.find(topic.name, 3_000, f"{3_000:016x}") is None
    assert notes.find(topic.name, 5, f"{6:016x}") is None
    side.close()


def test_what_a_killed_process_noted_of_letters_it_did_not_store_is_cut(tmp_path: Path) -> None:
    side = Side(tmp_path)
    topic = dead(side, 1)
    notes = DeathNotes(side.queueing.folder)
    for place in range(2_000):
        notes.add(topic, place, f"{place:016x}", {"x": "1"})
    path = notes.path(topic.name)
    path.write_bytes(path.read_bytes() + b"00000000 {torn")
    again = DeathNotes(side.queueing.folder)
    again.add(topic, 700, "f" * 16, {"x": "2"})  # the queue lost all from 700 on
    assert again.find(topic.name, 700, "f" * 16) == {"x": "2"}
    assert again.find(topic.name, 699, f"{699:016x}") == {"x": "1"}
    assert again.find(topic.name, 700, f"{700:016x}") is None
    lines = path.read_bytes().splitlines()
    assert len(lines) == 701
    assert all(read_line(line) for line in lines)
    side.close()


def test_a_damaged_line_costs_no_other(tmp_path: Path) -> None:
    side = Side(tmp_path)
    topic, notes = dead(side, 1), DeathNotes(side.queueing.folder)
    for place in range(50):
        notes.add(topic, place, f"{place:016x}", {"x": str(place)})
    path = notes.path(topic.name)
    data = bytearray(path.read_bytes())
    data[data.index(b'"25"') + 1] ^= 1
    path.write_bytes(data)
    again = DeathNotes(side.queueing.folder)
    found = [again.find(topic.name, place, f"{place:016x}") for place in range(50)]
    assert [place for place, about in enumerate(found) if about is None] == [25]
    side.close()


def test_a_note_that_is_added_asks_the_last_one_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It read a hundred of them again, for each dead letter."""
    side = Side(tmp_path)
    topic, notes = dead(side, 1), DeathNotes(side.queueing.folder)
    asked: list[bytes] = []
    monkeypatch.setattr(deathnotes, "read_line", lambda line: asked.append(line) or read_line(line))
    for place in range(300):
        notes.add(topic, place, f"{place:016x}", {"x": "1"})
    assert len(asked) < 300
    side.close()


def test_the_last_whole_line_is_found_from_either_end() -> None:
    random = Random(5)
    for _ in range(2_000):
        pieces = [
            random.choice((_line(Note(n, "a", {"x": "y" * (n % 7)})), b"bad\n", b"\n", b"torn")) for n in range(5)
        ]
        data = b"".join(pieces[: random.randrange(6)])[random.randrange(4) :]
        for torn in (False, True):
            forwards = [(note, end) for _, note, end in _lines(data, 0, torn=torn)]
            assert _last_line(data, torn=torn) == (forwards[-1] if forwards else None)


def test_a_long_file_is_cut_below_the_queue(tmp_path: Path) -> None:
    side = Side(tmp_path)
    topic, notes = dead(side, 100), DeathNotes(side.queueing.folder)
    topic.purge(60)
    text = {"x": "y" * 1_000}
    count = deathnotes.TRIM_BYTES // 1_000 + 2
    for place in range(40):
        notes.add(topic, place, "a" * 16, {"x": "old"})
    for place in range(60, 60 + count):
        notes.add(topic, place, "b" * 16, text)
    lines = notes.path(topic.name).read_bytes().splitlines()
    first = read_line(lines[0])
    assert first is not None
    assert first.place == 60
    assert notes.find(topic.name, 60 + count - 1, "b" * 16) == text
    side.close()


def test_a_full_disk_costs_the_note_alone(tmp_path: Path) -> None:
    class Full(Quick):
        full = False

        def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
            if self.full:
                raise DiskFull("no space left")
            super().write(fd, at, data)

    files = Full()
    side = Side(tmp_path, files=files)
    topic, notes = dead(side, 1), DeathNotes(side.queueing.folder)
    files.full = True
    notes.add(topic, 0, "a" * 16, {"x": "1"})
    files.full = False
    assert notes.find(topic.name, 0, "a" * 16) is None
    notes.add(topic, 0, "a" * 16, {"x": "1"})
    assert notes.find(topic.name, 0, "a" * 16) == {"x": "1"}
    side.close()
