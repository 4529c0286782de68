"""Contents of a log's folder: names put in order, what does not belong set aside, the size of a foreign log taken over."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import msgspec
import pytest
from store_parts import SMALL, bodies, make, put

from penstock.disk.files import Files
from penstock.errors import NoDescriptor, StoreError
from penstock.log.contents import Contents, Recovery
from penstock.log.store import LogStore
from penstock.log.verify import verify

NOBODY = 65_534


def test_folders_and_files_in_each_others_place(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "commitlog").write_bytes(b"x")
    (tmp_path / "index" / "20200101000000000").mkdir(parents=True)
    (tmp_path / "consumequeue" / "T").mkdir(parents=True)
    (tmp_path / "consumequeue" / "T" / "0").write_bytes(b"x")
    (tmp_path / "queues").mkdir()
    (tmp_path / "queues" / "Q").write_bytes(b"x")
    report = Recovery()
    Contents(LogStore(tmp_path, SMALL), report).mend_names()
    moved = ["checkpoint", "commitlog", "consumequeue/T/0", "index/20200101000000000", "queues/Q"]
    assert sorted(report.moved) == moved
    assert len(list((tmp_path / "lost+found").iterdir())) == len(moved) + 1  # the manifest


def test_named_pipes_are_neither_files_nor_folders(tmp_path: Path) -> None:
    """A start ended with words that named no path."""
    files = ["checkpoint", "commitlog/00000000000000000000", "consumequeue/T/0/00000000000000000000", "lock"]
    folders = ["consumequeue/T/1", "index", "queues/Q"]
    for name in [*files, *folders]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(tmp_path / name)
    report = Recovery()
    Contents(LogStore(tmp_path, SMALL), report).mend_names()
    assert sorted(report.moved) == sorted([*files, *folders])


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint",
        "commitlog",
        "commitlog/00000000000000000000",
        "consumequeue",
        "consumequeue/T",
        "index",
        "queues/Q",
    ],
)
def test_a_link_that_leads_nowhere_ends_the_start(tmp_path: Path, name: str) -> None:
    """What is behind it may be on a disk that is not mounted: the log seemed empty, and its queues were set aside."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).symlink_to(tmp_path / "disk" / "data")
    report = Recovery()
    with pytest.raises(StoreError, match=r"disk/data, which is not there: mount it") as told:
        Contents(LogStore(tmp_path, SMALL), report).mend_names()
    assert str(tmp_path / name) in str(told.value)
    assert report.moved == []


@pytest.mark.parametrize("name", ["commitlog", "checksums", "index", "consumequeue/T/0"])
def test_what_is_no_file_of_the_log_is_set_aside_or_passed_over(tmp_path: Path, name: str) -> None:
    """On a disk of its own `lost+found` was renamed, and the next start refused, for it cannot be moved to another disk; and a
    link that leads nowhere ended the start though its name says that no segment is behind it.
    """
    folder = tmp_path / name
    (folder / "lost+found").mkdir(parents=True)
    (folder / "notes.txt").write_text("keep me")
    (folder / "link").symlink_to(tmp_path / "nowhere")
    (folder / "folder").mkdir()
    Contents(LogStore(tmp_path, SMALL), Recovery()).mend_names()
    assert sorted(path.name for path in folder.iterdir()) == ["lost+found", "notes.txt"]
    aside = sorted(path.name.partition(".")[0] for path in (tmp_path / "lost+found").iterdir())
    assert aside == [f"{name.replace('/', '-')}-{what}" for what in ("folder", "link")] + ["manifest"]


def test_a_log_on_disks_of_their_own_starts_again(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("commitlog", "checksums", "index", "consumequeue", "schedule")]
    for folder in folders:
        (folder / "lost+found").mkdir(parents=True)
    for n in range(2):
        store = make(tmp_path)
        store.open()
        put(store, b"x")
        assert bodies(store) == [b"x"] * (n + 1)
        store.close()
    assert all((folder / "lost+found").is_dir() for folder in folders)
    assert verify(tmp_path).ok
    assert not (tmp_path / "lost+found").exists()


def test_a_lost_and_found_that_is_not_ours_is_said_before_it_is_needed() -> None:
    """mkfs.ext4 makes one for root alone; a data folder that is the top of its file system has that."""
    with tempfile.TemporaryDirectory() as name:
        folder, root = Path(name), os.geteuid() == 0
        contents = Contents(LogStore(folder, SMALL), Recovery())
        lost = folder / "lost+found"
        lost.mkdir(mode=0o700 if root else 0)
        if root:
            folder.chmod(0o777)
            os.seteuid(NOBODY)
        try:
            with pytest.raises(StoreError, match="chown"):
                contents.mend_names()
        finally:
            if root:
                os.seteuid(0)
            lost.chmod(0o700)
        contents.mend_names()


def test_an_empty_file_holds_nothing_to_keep(tmp_path: Path) -> None:
    (tmp_path / "commitlog").write_bytes(b"")
    report = Recovery()
    Contents(LogStore(tmp_path, SMALL), report).mend_names()
    assert report.moved == []
    assert not (tmp_path / "lost+found").exists()


def test_a_folder_without_our_identity_says_itself_how_large_its_files_are(tmp_path: Path) -> None:
    store = make(tmp_path)
    store.open()
    for n in range(400):
        put(store, b"x" * 50, queue_id=n % 2)
    store.close()
    (tmp_path / "store.json").unlink()
    (tmp_path / "store.json.bak").unlink(missing_ok=True)
    identity = Contents(LogStore(tmp_path), Recovery()).identity()
    assert identity.log_segment_size == SMALL.mapped_file_size_commit_log
    assert identity.queue_file_size == SMALL.mapped_file_size_consume_queue


def test_a_queue_file_holds_whole_entries_whatever_its_size_is_said_to_be(tmp_path: Path) -> None:
    """As in RocketMQ: of 110 bytes it has 120."""
    odd = msgspec.structs.replace(SMALL, mapped_file_size_consume_queue=110)
    for start in range(1, 3):
        store = make(tmp_path, options=odd)
        store.open()
        for n in range(20):
            put(store, b"%d" % n)
        assert bodies(store) == [b"%d" % n for n in range(20)] * start
        store.close()
    files = sorted((tmp_path / "consumequeue" / "T" / "0").iterdir())
    assert [(path.name, path.stat().st_size) for path in files[:2]] == [(f"{0:020}", 120), (f"{120:020}", 120)]


def test_the_report_is_a_table() -> None:
    assert Recovery(start=5, damage=[{"position": 7}]).as_dict()["damage"] == [{"position": 7}]


class Unreadable(Files):
    """A file of one queue cannot be opened, once."""

    def __init__(self, error: StoreError) -> None:
        self.errors = [error]

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if self.errors and path.parent.name == "1":
            raise self.errors.pop()
        return super().open(path, create=create, writable=writable)


def test_a_consume_queue_that_cannot_be_opened_is_made_anew(tmp_path: Path) -> None:
    """Its folder was set aside, and then the start ended, for a file in it was not there."""
    store = make(tmp_path)
    store.open()
    sent = [put_and_tell(store, n) for n in range(40)]
    store.close()
    store = make(tmp_path, files=Unreadable(NoDescriptor("too many open files")))
    with pytest.raises(NoDescriptor):
        store.open()
    assert not (tmp_path / "lost+found").exists()
    store = make(tmp_path, files=Unreadable(StoreError("Permission denied")))
    store.open()
    store.close()
    (tmp_path / "lost+found" / "manifest.jsonl").read_text().index("not a consume queue")
    store = make(tmp_path)
    store.open()
    assert sorted(bodies(store) + bodies(store, queue_id=1)) == sorted(sent)
    store.close()


def put_and_tell(store: LogStore, n: int) -> bytes:
    body = b"%d" % n
    put(store, body, queue_id=n % 2)
    return body
