"""Room kept for a start on a full disk: given up when a start finds none, made again when there is plenty."""

from __future__ import annotations

from pathlib import Path

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
