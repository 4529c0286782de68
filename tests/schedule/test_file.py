"""The file of the schedule: what a commit leaves, and what is read of a file that is damaged."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import lmdb
import pytest

from penstock.disk.refusals import NO_ROOM
from penstock.errors import DiskFull, StoreError
from penstock.schedule.file import UNKNOWN, ScheduleFile, key_of, record_of

RECORDS = [(10 + n, n + 1, b"record %d " % n + b"x" * 100) for n in range(50)]  # (due ms, id, record)


def filled(folder: Path) -> ScheduleFile:
    file = ScheduleFile(folder)
    assert file.open() == []
    file.commit([(id_ - 1, id_, due_ms, record) for due_ms, id_, record in RECORDS], 50)
    file.committed(50)
    return file


def held(file: ScheduleFile, begin: bytes = b"") -> list[tuple[int, int, bytes | None]]:
    return [
        (int.from_bytes(key[:8]), int.from_bytes(key[8:]), record_of(key, value())) for key, value in file.walk(begin)
    ]


def test_what_is_committed_is_there_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "schedule"
    file = filled(folder)
    file.commit([(60, 3, 0, None), (60, 999, 0, None)], 61)
    file.committed(61)
    file.close()
    assert not file.is_open
    again = ScheduleFile(folder)
    again.open()
    assert (again.position, again.count) == (61, 49)
    assert held(again) == [entry for entry in RECORDS if entry[1] != 3]
    assert held(again, key_of(30, 0)) == [entry for entry in RECORDS if entry[0] >= 30]
    assert (again.due_of(3), again.due_of(4), again.due_of(-1), again.due_of(1 << 63)) == (None, 13, None, None)
    assert [int.from_bytes(key[8:]) for key in again.keys_from(48)] == [48, 49, 50]
    again.close()


def test_before_the_first_entry_there_is_no_file(tmp_path: Path) -> None:
    file = ScheduleFile(tmp_path / "schedule")
    assert (file.is_open, file.position) == (False, UNKNOWN)
    assert (list(file.walk(b"")), file.keys_from(0), file.due_of(1)) == ([], [], None)
    assert not (tmp_path / "schedule").exists()


def test_the_position_only_grows_but_by_a_cut(tmp_path: Path) -> None:
    file = filled(tmp_path / "schedule")
    file.committed(40)
    assert file.position == 50
    file.cut(60)
    assert file.position == 50
    file.cut(20)
    assert file.position == 20
    file.close()
    again = ScheduleFile(tmp_path / "schedule")
    again.open()
    assert again.position == 20  # else a start behind a kill passes over what was appended there since
    again.close()


def test_a_damaged_file_is_quarantined_and_read(tmp_path: Path) -> None:
    folder = tmp_path / "schedule"
    filled(folder).close()
    data = bytearray((folder / "data.mdb").read_bytes())
    at = data.index(b"record 20 ")
    page = at // 4096 * 4096
    data[page + 10] ^= 0xFF  # the page's own header: LMDB would stumble
    (folder / "data.mdb").write_bytes(data)
    again = ScheduleFile(folder)
    found = again.open()
    assert set(found) <= {(id_, due_ms, record) for due_ms, id_, record in RECORDS}
    assert (again.position, again.count) == (UNKNOWN, 0)
    assert [path.name.partition(".")[0] for path in (tmp_path / "lost+found").iterdir() if path.is_dir()] == [
        "schedule"
    ]
    again.close()


def test_a_flipped_bit_of_a_record_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "schedule"
    filled(folder).close()
    data = bytearray((folder / "data.mdb").read_bytes())
    data[data.index(b"record 20 ") + 3] ^= 1
    (folder / "data.mdb").write_bytes(data)
    again = ScheduleFile(folder)
    assert again.open() == []
    damaged = [id_ for _, id_, record in held(again) if record is None]
    assert damaged == [21]
    again.close()


def test_a_failed_flush_leaves_the_file_in_doubt_a_full_disk_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "schedule"
    file = filled(folder)
    assert not file.is_damaged_by(StoreError("No space left on device"))
    monkeypatch.setattr(ScheduleFile, "_free_bytes", lambda self: 0)
    assert not file.is_damaged_by(StoreError("Input/output error"))
    monkeypatch.undo()
    assert file.is_damaged_by(StoreError("Input/output error"))
    file.close()
    again = ScheduleFile(folder)
    assert len(again.open()) == len(RECORDS)
    assert (again.position, again.count) == (UNKNOWN, 0)
    again.close()


def test_an_environment_that_was_given_up_is_opened_anew(tmp_path: Path) -> None:
    """LMDB gives one up when the last write of a commit fails, which goes through a descriptor of its own."""
    folder = tmp_path / "schedule"
    file = filled(folder)
    with (folder / "data.mdb").open("rb") as read_only:
        for number in os.listdir("/proc/self/fd"):
            link = Path("/proc/self/fd") / number
            if (
                link.exists()
                and link.resolve() == folder / "data.mdb"
                and fcntl.fcntl(int(number), fcntl.F_GETFL) & os.O_DSYNC
            ):
                os.dup2(read_only.fileno(), int(number))
    with pytest.raises(StoreError):
        file.commit([(60, 61, 70, b"more")], 61)
    with pytest.raises(lmdb.PanicError):
        held(file)
    file.take_up()
    assert held(file) == RECORDS
    assert file.position == 50
    file.commit([(60, 61, 70, b"more")], 61)
    file.take_up()  # it is as good as any
    assert held(file, key_of(70, 0)) == [(70, 61, b"more")]
    file.close()
    file.take_up()
    assert not file.is_open


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.EACCES, errno.EROFS, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EFBIG]
)
@pytest.mark.parametrize("where", ["os", "lmdb"])
def test_a_file_that_the_system_does_not_let_us_open_is_not_set_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, where: str
) -> None:
    """The log may have its messages no more."""
    folder = tmp_path / "schedule"
    filled(folder).close()

    def refused(path: str, *args: object, **more: object) -> None:
        if where == "lmdb":
            raise lmdb.Error(f"{path}: {os.strerror(number)}")
        raise OSError(number, os.strerror(number), path)

    again = ScheduleFile(folder)
    with monkeypatch.context() as patch:
        patch.setattr(*((lmdb, "open") if where == "lmdb" else (os, "open")), refused)
        with pytest.raises(DiskFull if number in NO_ROOM else StoreError, match=os.strerror(number)):
            again.open()
    assert not (tmp_path / "lost+found").exists()
    assert again.open() == []
    assert held(again) == RECORDS
    again.close()


@pytest.mark.parametrize("known", [True, False])
def test_lmdb_is_given_no_lock_file_that_a_full_disk_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """It writes it through a mapping: the process would end with SIGBUS."""
    folder = tmp_path / "schedule"
    if known:
        filled(folder).close()
        os.truncate(folder / "lock.mdb", 0)

    def full(fd: int, at: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = ScheduleFile(folder)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(DiskFull):
            file.open()
    assert not file.is_open
    assert (folder / "lock.mdb").stat().st_size == 0
    assert file.open() == []
    assert held(file) == (RECORDS if known else [])
    file.close()


def test_memory_that_cannot_be_had_for_more_entries_is_told_as_a_failure_of_the_disk(tmp_path: Path) -> None:
    file = filled(tmp_path / "schedule")
    with pytest.raises(StoreError):
        file.grow_if_full(1 << 60)
    file.close()


@pytest.mark.parametrize("damaged", [True, False])
def test_a_disk_that_fails_for_long_has_one_folder_set_aside_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """What was read of it is given once another could be made."""
    folder, given = tmp_path / "schedule", []
    if damaged:
        filled(folder).close()
        (folder / "broken").touch()
    file = ScheduleFile(folder)

    def failing(path: str, **more: object) -> None:
        (Path(path) / "data.mdb").write_bytes(b"cut off" * 1_000)
        raise lmdb.Error(f"{path}: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(lmdb, "open", failing)
        for _ in range(5):
            with pytest.raises(StoreError, match="Input/output error"):
                file.open()
            assert not file.is_open
    given = file.open()
    assert [entry[0] for entry in given] == ([entry[1] for entry in RECORDS] if damaged else [])
    assert len(list((tmp_path / "lost+found").glob("schedule.*"))) == 1
    file.commit([(1, 2, 3, b"more")], 2)
    file.close()
    again = ScheduleFile(folder)
    assert again.open() == []
    assert len(held(again)) == 1
    again.close()
