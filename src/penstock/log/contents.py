"""What lies in the folder of a log when it is opened: names put in order, segments loaded, the rest set aside.

Nothing that may hold a record is deleted: it moves to ``lost+found/``.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypedDict

import msgspec

from penstock.disk import tables
from penstock.disk.files import demand_target, number_names
from penstock.disk.quarantine import quarantine, try_quarantine
from penstock.disk.segments import SegmentedFile, segment_name
from penstock.errors import NoDescriptor, StoreError
from penstock.log import checkpoint as marks
from penstock.log.checksums import Checksums
from penstock.log.commitlog import CommitLog
from penstock.log.keyindex import KeyIndex
from penstock.log.state import LogState


class Damage(TypedDict, total=False):
    """Bytes of the commit log that were no record; `queueOffsets`: what queues lost, as [topic, queue id, from, to]."""

    position: int
    end: int
    bytes: int
    queueOffsets: list[list[str | int]]


class Recovery(msgspec.Struct):
    """What opening found and did. Positions are physical offsets."""

    clean: bool = False
    power_cut: bool = False
    cut_before: bool = (
        False  # a former start found one, and ended before it had looked at all that stands beside the log
    )
    lossy: bool = False  # it is one, or a former start has found one and nobody has written down what follows
    epoch: int = 0
    start: int = 0
    end: int = 0
    records: int = 0
    cut_bytes: int = 0
    damage: list[Damage] = msgspec.field(default_factory=list)
    rebuilt: list[str] = msgspec.field(default_factory=list)
    moved: list[str] = msgspec.field(default_factory=list)
    gap_queues: int = 0
    skipped: int = 0
    took_ms: int = 0

    def as_dict(self) -> dict[str, object]:
        values: dict[str, object] = msgspec.to_builtins(self)
        return values


def _kind(path: Path) -> str:
    return "folder" if path.is_dir() else "file" if path.is_file() else "named pipe, socket or device"


def _kinds(folder: Path) -> list[tuple[str, str]]:
    """What lies in the folder, sorted by name, each with what it is: `folder`, `file`, or nothing for the rest, as a link that
    leads nowhere. Links are followed; nothing else is asked one by one. Nothing when there is no such folder. StoreError.
    """
    while True:
        try:
            with os.scandir(folder) as entries:
                return sorted((entry.name, _kind_of(entry)) for entry in entries)
        except InterruptedError:
            continue
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}") from error


def _kind_of(entry: os.DirEntry[str]) -> str:
    try:
        return "folder" if entry.is_dir() else "file" if entry.is_file() else ""
    except OSError:  # a link to itself
        return ""


class Contents:
    """The files of one log; `odd_index` are the index files that cannot be read: their numbers, 0 of other names."""

    def __init__(self, store: LogState, report: Recovery) -> None:
        self.store = store
        self.report = report
        self.files = store.files
        self.folder = store.folder
        self.odd_index: list[int] = []

    def mend_names(self) -> None:
        """What is not a file or a folder where one should be goes to lost+found, a named pipe, too. StoreError when nothing can:
        on ext4 the top folder of a file system has a lost+found already, which is root's; and where a link leads nowhere.
        """
        files, folder = self.files, self.folder
        lost = folder / "lost+found"
        if lost.is_dir() and not files.may_use(lost):
            raise StoreError(
                f"{lost} belongs to another user: give it to the user of the broker (chown), or let the data be in a folder "
                "below the top of the file system"
            )
        for name in (
            "lock",
            "abort",
            "checkpoint",
            "live0",
            "live1",
            "damage.jsonl",
            "offsets.json",
            marks.DAMAGED_QUEUES,
        ):
            for path in (folder / name, folder / f"{name}.bak", folder / f"{name}.tmp"):
                self._demand_file(path)
        for name in ("commitlog", "checksums", "index", "consumequeue", "config", "lost+found", "queues", "schedule"):
            path = folder / name
            self._demand_folder(path)
            if name in ("commitlog", "checksums", "index"):
                self._demand_inside(path)
        self._demand_folders(folder / "queues")
        self._demand_folders(folder / "consumequeue")
        for topic in files.names(folder / "consumequeue"):
            queues = folder / "consumequeue" / topic
            self._demand_folders(queues)
            for queue_id in files.names(queues):
                self._demand_inside(queues / queue_id)

    def _demand_folders(self, folder: Path) -> None:
        """There is nothing but folders in this one."""
        for name, kind in _kinds(folder):
            if kind != "folder":
                self._demand_folder(folder / name)

    def _demand_inside(self, folder: Path) -> None:
        """Files of ours have numbers for names; what has another name is another's. A disk of its own has a `lost+found`. A file
        stays for whoever put it there: nothing of ours reads it, and what is set aside is removed after three days. Anything
        else, a link that leads nowhere, too, would be in the way of who reads all there is.
        """
        for name, kind in _kinds(folder):
            if kind == "file":
                continue
            if name.isascii() and name.isdigit():
                self._demand_file(folder / name)
            elif name != "lost+found":
                try_quarantine(self.files, self.folder, folder / name, "no file of this log")

    def _demand_file(self, path: Path) -> None:
        demand_target(path)
        if path.exists() and not path.is_file():
            self.quarantine(path, f"a {_kind(path)} where a file should be")

    def _demand_folder(self, path: Path) -> None:
        demand_target(path)
        if path.exists() and not path.is_dir():
            self.quarantine(path, f"a {_kind(path)} where a folder should be")

    def identity(self) -> marks.StoreFile:
        options = self.store.options
        log_size, queue_size = options.mapped_file_size_commit_log, options.mapped_file_size_consume_queue
        if tables.load(self.files, self.folder / "store.json") is None:
            # a folder of RocketMQ's, perhaps: its files say how large they are
            log_size = self._size_on_disk(self.folder / "commitlog", log_size)
            for topic in self.files.names(self.folder / "consumequeue"):
                for queue_id in self.files.names(self.folder / "consumequeue" / topic):
                    queue_size = self._size_on_disk(self.folder / "consumequeue" / topic / queue_id, queue_size)
                    break
        path = self.folder / "store.json"
        return marks.open_store_file(
            self.files, path, log_size, queue_size, options.max_hash_slot_num, options.max_index_num
        )

    def _size_on_disk(self, folder: Path, default: int) -> int:
        names = list(number_names(self.files.names(folder)))
        if len(names) > 1:
            return names[1] - names[0]
        if names:
            return (folder / segment_name(names[0])).stat().st_size or default
        return default

    def load(self, identity: marks.StoreFile) -> None:
        store, options, files = self.store, self.store.options, self.files
        for name in ("commitlog", "checksums", "consumequeue"):
            files.make_folder(self.folder / name)
        file = SegmentedFile(self.folder / "commitlog", identity.log_segment_size, files)
        sums = Checksums(self.folder / "checksums", identity.log_segment_size, files)
        store.log = CommitLog(file, sums, options.store_host, options.max_message_size)
        self._mend_segments(file)
        for path in file.load():
            self.quarantine(path, "not a segment of this log")
        if options.message_index_enable:
            store.index = KeyIndex(self.folder / "index", identity.slots, identity.entries, files, store.clock)
            for path in store.index.load():
                self.quarantine(path, "not an index file that can be read")
                self.odd_index.append(int(path.name))
        self._load_queues(identity.queue_file_size)

    def _mend_segments(self, file: SegmentedFile) -> None:
        """A segment that is missing or too short, with later ones behind it, is damage inside, not the end of the
        log.
        """
        names = [n for n in number_names(self.files.names(file.folder)) if n % file.size == 0]
        if not names:
            return
        for first in range(names[0], names[-1] + 1, file.size):
            path = file.folder / segment_name(first)
            if (names[-1] - names[0]) // file.size > 4 * len(names):
                break  # names so far apart are no run of segments
            if path.is_file() and path.stat().st_size >= file.size:
                continue
            fd = self.files.open(path, create=True)
            try:
                self.files.grow(fd, file.size)
            finally:
                self.files.close(fd)

    def _load_queues(self, queue_file_size: int) -> None:
        store, folder = self.store, self.folder / "consumequeue"
        store.queue_file_size = queue_file_size
        for topic in self.files.names(folder):
            queues = folder / topic
            for queue_id, kind in _kinds(queues):
                if not (queue_id.isascii() and queue_id.isdigit() and len(queue_id) < 10 and kind == "folder"):
                    continue
                path = queues / queue_id
                try:
                    queue = store.queue(topic.encode(), int(queue_id))
                    odd = queue.load()
                except NoDescriptor:
                    raise  # nothing is wrong with it
                except StoreError:
                    self.quarantine(path, "not a consume queue")
                    store.queues.get(topic.encode(), {}).pop(int(queue_id), None)  # its files are gone: it is made anew
                    continue
                for odd_path in odd:
                    self.quarantine(odd_path, "not a file of this consume queue")

    def quarantine(self, path: Path, why: str) -> None:
        """Move a file or folder to lost+found, and say so in its manifest. An empty file holds nothing to keep."""
        if path.is_file() and path.stat().st_size == 0 and path.name != "lost+found":
            self.files.unlink(path)
            return
        if path.name == "lost+found":
            self.files.rename(path, path.with_name("lost+found.bad"))
            return
        quarantine(self.files, self.folder, path, why, self.store.clock.now_ms())
        self.report.moved.append(str(path.relative_to(self.folder)))
