"""A table and its changes: what was added is there after any end of the process or the machine, and nothing else is."""

from __future__ import annotations

import random
import resource
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "log"))

from lying_disk import LyingFiles

from penstock.disk import tables
from penstock.disk.changes import ChangedTable, noted
from penstock.disk.files import Files
from penstock.errors import DiskFull, StoreError


class Names:
    """A table of names as its owners keep it."""

    def __init__(self, folder: Path, files: Files | None = None) -> None:
        self.files = files or Files()
        self.path = folder / "names.json"
        table = tables.take(self.files, folder, self.path, lambda table: "names" in table, "none")
        self.read = noted(self.files, self.path, table)
        self.names: dict[str, object] = dict((table or {"names": {}})["names"])
        for change in self.read:
            if change["value"] is None:
                self.names.pop(str(change["name"]), None)
            else:
                self.names[str(change["name"])] = change["value"]
        self.table = ChangedTable(self.files, folder, self.path)

    def fold(self) -> None:
        self.table.replace(tables.encode({"names": self.names}))

    def add(self, name: str, value: object) -> None:
        """Together with what came before it in this turn."""
        if self.table.ready:
            self.table.add([{"name": name, "value": value}])
        self.names[name] = value
        if value is None:
            self.names.pop(name)


def test_a_change_is_there_and_the_table_is_not_written(tmp_path: Path) -> None:
    made = Names(tmp_path)
    made.fold()
    table = made.path.read_bytes()
    made.add("a", 1)
    made.add("b", [2])
    made.add("a", None)
    assert made.path.read_bytes() == table
    again = Names(tmp_path)
    assert (again.names, len(again.read)) == ({"b": [2]}, 3)
    made.table.release()


def test_a_fold_takes_it_all_and_a_clean_stop_leaves_the_table_alone(tmp_path: Path) -> None:
    made = Names(tmp_path)
    made.fold()
    made.add("a", 1)
    made.fold()
    assert (Names(tmp_path).names, Names(tmp_path).read) == ({"a": 1}, [])
    made.table.remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["names.json", "names.json.bak"]
    assert Names(tmp_path).names == {"a": 1}


def test_changes_grow_no_longer_than_their_table(tmp_path: Path) -> None:
    made = Names(tmp_path)
    made.fold()
    while not made.table.full:
        made.add(f"name {len(made.names)}", "x" * 100)
    assert 400 < len(made.names) < 600
    made.fold()
    assert not made.table.full
    made.table.release()


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_torn_last_line_costs_that_line(tmp_path: Path, cut: int) -> None:
    made = Names(tmp_path)
    made.fold()
    made.add("a", 1)
    whole = made.table.path.read_bytes()
    made.add("b", "a longer value that is torn")
    made.table.release()
    data = made.table.path.read_bytes()
    made.table.path.write_bytes(data[: max(len(whole), len(data) - cut)])
    assert Names(tmp_path).names in ({"a": 1}, {"a": 1, "b": "a longer value that is torn"})
    assert Names(tmp_path).names == {"a": 1} or cut == 1  # its end of line alone
    made.table.path.write_bytes(data[: max(len(whole), len(data) - cut)].ljust(len(data), b"\0"))
    assert Names(tmp_path).names["a"] == 1


def test_a_changed_bit_costs_one_line(tmp_path: Path) -> None:
    made = Names(tmp_path)
    made.fold()
    for n in range(3):
        made.add(f"n{n}", n)
    made.table.release()
    data = made.table.path.read_bytes()
    for at in range(data.index(b"\n") + 1, len(data)):
        made.table.path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        names = Names(tmp_path).names
        assert names.items() <= {"n0": 0, "n1": 1, "n2": 2}.items()
        assert len(names) >= (1 if data[at] == 10 else 2), at  # two lines that are one now


def test_the_changes_of_another_table_say_nothing(tmp_path: Path) -> None:
    made = Names(tmp_path)
    made.fold()
    made.add("a", 1)
    made.table.release()
    other = b'{"names": {"by": "another broker"}}'
    made.path.write_bytes(other)
    assert Names(tmp_path).names == {"by": "another broker"}
    made.path.write_bytes(b"")
    assert Names(tmp_path).names == {"a": 1}  # of no table there is all that can be told


def test_a_table_that_is_as_it_was_once_has_the_changes_behind_it_alone(tmp_path: Path) -> None:
    made = Names(tmp_path)
    made.add("a", 1)
    made.fold()
    made.add("a", None)
    made.table.release()
    again = Names(tmp_path)
    assert again.names == {}
    again.add("a", 1)  # the table of before, byte for byte
    again.fold()
    again.table.release()
    assert Names(tmp_path).names == {"a": 1}


@pytest.mark.parametrize("both", [True, False])
def test_the_backup_of_a_table_has_its_changes_too(tmp_path: Path, both: bool) -> None:
    made = Names(tmp_path)
    made.add("first", 0)
    made.fold()
    made.add("a", 1)
    made.fold()
    made.add("b", 2)
    made.table.release()
    made.path.write_bytes(b"garbage")
    if both:
        made.path.with_name("names.json.bak").unlink()
    assert Names(tmp_path).names == ({"a": 1, "b": 2} if both else {"first": 0, "a": 1, "b": 2})


def test_a_full_disk_leaves_no_half_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Names(tmp_path)
    made.fold()
    made.add("a", 1)
    write = Files.write

    def full(self: Files, fd: int, at: int, data: bytes) -> None:
        write(self, fd, at, data[:7])
        raise DiskFull("no room")

    before = made.table.path.read_bytes()
    monkeypatch.setattr(Files, "write", full)
    with pytest.raises(DiskFull):
        made.add("b", 2)
    monkeypatch.undo()
    assert made.table.path.read_bytes() == before
    assert not made.table.ready
    made.fold()
    made.add("c", 3)
    assert Names(tmp_path).names == {"a": 1, "c": 3}
    made.table.release()


def test_without_descriptors_every_try_is_a_failure_of_the_disk(tmp_path: Path) -> None:
    """Which may end, as a full one; any other exception twenty times in a row would end the broker."""
    made = Names(tmp_path)
    made.fold()
    made.names["a"] = 1
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        for _ in range(3):
            with pytest.raises(StoreError, match="Too many open files"):
                made.fold()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    made.fold()
    made.table.release()
    assert Names(tmp_path).names == {"a": 1}


@pytest.mark.parametrize("seed", range(60))
def test_what_was_said_survives_any_order_of_writes(tmp_path: Path, seed: int) -> None:
    """Cut, or killed, at any call of a fold or an addition, life after life."""
    noise = random.Random(seed)
    folder = tmp_path / "0"
    folder.mkdir()
    files = LyingFiles(folder, seed)
    said: dict[str, object] = {}
    open_: set[str] = set()
    for life in range(1, 6):
        left = noise.randrange(60)

        def counted(name: str, files: LyingFiles = files) -> None:
            call = getattr(files, name)

            def one(*given: object, **named: object) -> object:
                nonlocal left
                left -= 1
                if left < 0:
                    raise StoreError("the power is gone")
                return call(*given, **named)

            setattr(files, name, one)

        made = Names(folder, files)
        assert {name: made.names.get(name) for name in said if name not in open_} == {
            name: value for name, value in said.items() if name not in open_
        }
        assert set(made.names) <= set(said) | open_
        said = dict(made.names)
        open_ = set()
        for name in ("open", "write", "datasync", "sync_folder", "rename", "unlink", "link"):
            counted(name)
        try:
            made.fold()
            while True:
                name = f"name {noise.randrange(40)}"
                open_ = {name}
                value = noise.randrange(100)
                made.add(name, value)
                said[name] = value
                open_ = set()
                if noise.random() < 0.2:
                    made.fold()
        except StoreError:
            left = 1 << 60
        made.table.release()
        after = tmp_path / str(life)
        files.power_cut(after)
        folder, files = after, LyingFiles(after, seed + life)
        files.adopt()
