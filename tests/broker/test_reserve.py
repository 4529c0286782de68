"""Room kept for a start on a full disk: given up when a start finds none, made again when there is plenty."""

from __future__ import annotations

import errno
import fcntl
import sys
from pathlib import Path

import pytest

from penstock.broker.reserve import BYTES, EVERY_MS, FIRST_MS, PLENTY, Reserve
from penstock.disk.files import Files
from penstock.disk.job import run_now


class Disk(Files):
    """A disk with as much room as it is told."""

    free = PLENTY

    def usage(self, folder: Path) -> tuple[int, int]:
        return 0, self.free


def run(reserve: Reserve, mono_ms: int) -> bool:
    job = reserve.take_job(mono_ms)
    run_now([job] if job else [], mono_ms)
    return job is not None


def test_what_a_new_folder_gets_is_written_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a full disk would end who writes through a mapping: btrfs, chattr +C."""
    flags = [0x10]

    def ioctl(fd: int, call: int, given: bytes) -> bytes:
        if call == 0x40086602:
            flags.append(int.from_bytes(given[:4], sys.byteorder))
        return flags[-1].to_bytes(4, sys.byteorder) + bytes(4)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    Reserve(tmp_path / "new", Disk()).open()
    assert flags == [0x10, 0x0080_0010]
    (tmp_path / "new" / "store.json").touch()
    Reserve(tmp_path / "new", Disk()).open()  # its owner may have thought otherwise
    assert len(flags) == 2


def test_a_file_system_that_copies_nothing_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(fd: int, call: int, given: bytes) -> bytes:
        raise OSError(errno.ENOTTY, "no such word")

    monkeypatch.setattr(fcntl, "ioctl", unknown)
    Reserve(tmp_path / "new", Disk()).open()
    assert (tmp_path / "new").is_dir()


def test_room_is_kept_once_there_is_plenty(tmp_path: Path) -> None:
    disk = Disk()
    reserve = Reserve(tmp_path, disk)
    reserve.open()
    assert not run(reserve, 0)  # not while a start has other things to do
    disk.free = PLENTY - 1
    assert run(reserve, FIRST_MS)
    assert not reserve.path.exists()
    disk.free = PLENTY
    assert not run(reserve, FIRST_MS + 1)
    assert run(reserve, FIRST_MS + EVERY_MS)
    assert reserve.path.stat().st_size == BYTES
    assert not run(reserve, FIRST_MS + 5 * EVERY_MS)  # it is kept


def test_a_start_on_a_full_disk_gives_it_up(tmp_path: Path) -> None:
    disk = Disk()
    (tmp_path / "reserve").write_bytes(bytes(BYTES))
    reserve = Reserve(tmp_path, disk)
    reserve.open()
    assert reserve.path.exists()
    disk.free = BYTES - 1
    reserve.open()
    assert not reserve.path.exists()
    reserve.open()  # there is nothing left to give up
