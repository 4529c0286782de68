"""lost+found: a damaged file is moved, never deleted, and the manifest says why."""

from __future__ import annotations

import contextlib
import errno
import json
import os
from pathlib import Path

import pytest

from penstock.disk.files import Files
from penstock.disk.quarantine import data_folder, make_way, quarantine, take_back, try_quarantine
from penstock.errors import DiskFull, StoreError


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


class Apart(Files):
    """What has this name lies on another disk; `full`: there is no room for a copy."""

    def __init__(self, *, full: bool = False) -> None:
        self.full = full

    def rename(self, old: Path, new: Path) -> None:
        error = OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        raise StoreError(f"{old}: {error.strerror}") from error

    def datasync(self, fd: int) -> None:
        if self.full:
            raise DiskFull("no room for a flush (by order of the test)")
        super().datasync(fd)


def test_what_lies_on_a_disk_of_its_own_is_copied(tmp_path: Path) -> None:
    """It could not be renamed into another, and no start went on behind it."""
    folder = tmp_path / "consumequeue" / "T"
    folder.mkdir(parents=True)
    (folder / "0").write_bytes(b"x" * 100)
    (folder / "link").symlink_to(tmp_path / "nowhere")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path in (folder, tmp_path / "link"):
        with pytest.raises(StoreError, match="cannot be copied") if path is folder else contextlib.nullcontext():
            quarantine(Apart(full=True), tmp_path, path, "damaged", 77)
    assert (folder / "0").read_bytes() == b"x" * 100
    lost = tmp_path / "lost+found"
    assert sorted(path.name for path in lost.iterdir()) == ["link.77", "manifest.jsonl"]
    found = quarantine(Apart(), tmp_path, folder, "damaged", 78)
    assert not folder.exists()
    assert (found / "0").read_bytes() == b"x" * 100
    assert [(found / "link").readlink(), (lost / "link.77").readlink()] == [tmp_path / "nowhere"] * 2
    assert len((lost / "manifest.jsonl").read_text().splitlines()) == 2


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


def test_a_new_file_that_is_not_used_and_cannot_be_removed_is_taken_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Stubborn(Files):
        def unlink(self, path: Path) -> None:
            raise StoreError(f"{path}: Input/output error")

    files, path = Stubborn(), tmp_path / "0.queue"
    for _ in range(3):
        make_way(files, tmp_path, path)
        assert not path.exists() or path.stat().st_size == 0
        path.write_bytes(b"begun")
        take_back(files, path)
    assert len(caplog.records) == 1
    assert not (tmp_path / "lost+found").exists()
    make_way(files, tmp_path, path)
    path.write_bytes(b"of use")  # and from now on it is as any other
    make_way(files, tmp_path, path)
    assert [kept.read_bytes() for kept in (tmp_path / "lost+found").glob("0.queue.*")] == [b"of use"]
