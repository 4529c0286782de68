"""lost+found: a damaged file is moved, never deleted, and the manifest says why."""

from __future__ import annotations

import json
from pathlib import Path

from penstock.disk.files import Files
from penstock.disk.quarantine import data_folder, make_way, quarantine, try_quarantine
from penstock.errors import StoreError


def test_files_of_one_name_are_all_kept(tmp_path: Path) -> None:
    found = []
    for content in (b"one", b"two", b"three"):
        (tmp_path / "config").mkdir(exist_ok=True)
        path = tmp_path / "config" / "t.json"
        path.write_bytes(content)
        found.append(quarantine(Files(), tmp_path, path, "damaged", 77))
        assert not path.exists()
    assert [path.name for path in found] == ["config-t.json.77", "config-t.json.77.1", "config-t.json.77.2"]
    assert [path.read_bytes() for path in found] == [b"one", b"two", b"three"]
    lines = [json.loads(line) for line in (tmp_path / "lost+found" / "manifest.jsonl").read_text().splitlines()]
    assert lines[1] == {"from": "config/t.json", "to": "config-t.json.77.1", "why": "damaged", "at": 77}
    assert len(lines) == 3


def test_where_the_disk_does_not_allow_it_the_file_stays(tmp_path: Path) -> None:
    class Stubborn(Files):
        def rename(self, old: Path, new: Path) -> None:
            raise StoreError("read-only")

    path = tmp_path / "f"
    path.write_bytes(b"x")
    assert not try_quarantine(Stubborn(), tmp_path, path, "damaged")
    assert path.read_bytes() == b"x"
    assert try_quarantine(Files(), tmp_path, path, "damaged")
    assert not path.exists()


def test_the_data_folder_of_a_queues_file(tmp_path: Path) -> None:
    assert data_folder(tmp_path / "data" / "queues" / "t" / "0.queue") == tmp_path / "data"
    assert data_folder(tmp_path / "elsewhere" / "0.queue") == tmp_path / "elsewhere"


def test_only_what_is_there_makes_way(tmp_path: Path) -> None:
    path = tmp_path / "t" / "0.queue"
    make_way(Files(), tmp_path, path)
    assert not (tmp_path / "lost+found").exists()
    path.parent.mkdir()
    path.symlink_to(tmp_path / "nothing")
    make_way(Files(), tmp_path, path)
    assert not path.is_symlink()
    assert [one.readlink() for one in (tmp_path / "lost+found").glob("t-0.queue.*")] == [tmp_path / "nothing"]
