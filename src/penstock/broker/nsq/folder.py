"""Where the NSQ side keeps its files: ready queues and cursors under `queues/`, nsqd's disk queues beside them."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from penstock.config import BrokerConfig
from penstock.disk.cursorfile import CursorFile
from penstock.disk.diskqueue import DiskQueue
from penstock.disk.files import TOGETHER_MIN, Files, flush_together
from penstock.disk.job import Job
from penstock.disk.queuewriting import Syncing
from penstock.disk.readyqueue import Pool, ReadyQueue
from penstock.disk.readysegment import ReadySegment
from penstock.errors import DiskFull, StoreError

log = logging.getLogger("penstock.queueing")

RETRY_MS = 1_000
# A flush of the file system that takes longer than this in all, and this for each segment, has waited for others' writes.
FLUSH_ALL_S, FLUSH_EACH_S = 0.1, 0.001
PATIENCE_S = 10.0  # so long it is not tried again then
NOTES = "deaths.jsonl"  # beside the queue of dead letters: why they died
_HEADER_BYTES = 26  # of a message in a disk queue
_ESCAPED = re.compile(rb"[^a-zA-Z0-9_.-]|^\.")


def file_name(name: bytes) -> str:
    """A topic's or channel's name as part of a file name: letters, digits, `_`, `-`, inner dots; all else as %XX."""
    return _ESCAPED.sub(lambda m: b"%%%02X" % m[0][0], name).decode()


class QueueFolder:
    """See the module."""

    def __init__(self, config: BrokerConfig, files: Files) -> None:
        self.config = config
        self.files = files
        self.root = Path(config.data)
        self.queues = self.root / "queues"
        self.pool = Pool(self.queues, files)
        self._backends: dict[bytes, DiskQueue] = {}
        self._unflushed: set[Syncing] = set()  # those of which a thread is to flush what they hold
        self._fd = -1  # of `queues/`, by which the system tells of writes that failed from then on
        self._watching = False
        self._one_by_one_until_s = 0.0

    # -- ready queues and cursors --------------------------------------------------------------------------------

    def cursor_path(self, topic: bytes, channel: bytes, lane: str = "") -> Path:
        """Where a channel's place in a stream is kept."""
        return self.queues / file_name(topic) / f"{file_name(channel)}{lane}.cursor"

    def topic_stream(self, name: bytes, floor: int) -> ReadyQueue:
        """The ready queue of a queue topic, opened: no new message gets an ordinal below any channel's place."""
        folder = self.queues / file_name(name)
        names = self.files.names(folder)
        stream = self._stream(folder, name)
        stream.open(max([floor, *self._committed(folder, names)]), names)
        self._watch()
        return stream

    def _stream(self, folder: Path, name: bytes, stamped: bool = False) -> ReadyQueue:
        return ReadyQueue(folder, file_name(name), self.config.queue_segment_bytes, self.pool, self.files, stamped)

    def _committed(self, folder: Path, names: Sequence[str]) -> Iterator[int]:
        """How far the channels of a topic have come, by the files in its folder."""
        for file in names:
            if file.endswith(".cursor"):
                cursor = CursorFile(folder / file, self.files)
                cursor.open(0)
                yield cursor.reach()

    def has_stream(self, topic: bytes, channel: bytes) -> bool:
        """Whether a channel of a log topic has a ready queue of its own."""
        return (self.queues / file_name(topic) / f"{file_name(channel)}.again").is_dir()

    def channel_stream(self, topic: bytes, channel: bytes, ordinal: int) -> ReadyQueue:
        """The ready queue of a channel of a log topic, opened."""
        stream = self._stream(self.queues / file_name(topic) / f"{file_name(channel)}.again", channel, stamped=True)
        stream.open(ordinal)
        return stream

    def forget(self, topic: bytes) -> None:
        """The topic is gone: so is what was noted of its dead letters, its folder, and those of its channels, where nothing lies
        in them. On the broker's thread, which is the one that makes them. What a disk refuses stays.
        """
        folder = self.queues / file_name(topic)
        try:
            for name in self.files.names(folder):
                if name.endswith(".again"):
                    self.files.remove_folder(folder / name)
                elif name == NOTES:
                    self.files.unlink(folder / name)
        except StoreError as error:
            log.warning("folder of a deleted topic stays path=%s error=%s", folder, error)
        self.files.remove_folder(folder)

    def tidy(self, topics: Iterable[bytes]) -> None:
        """Forget the topics that are none of these: a former process left their folders. The `lost+found` of a disk of its own
        stays: fsck needs it.
        """
        known = {"lost+found", *map(file_name, topics)}
        for name in self.files.names(self.queues):
            if name not in known:
                self.files.remove_folder(self.queues / name)

    def above(self, folder: Path) -> set[Path]:
        """The folders that hold the name of a stream or cursor in this one."""
        return {folder, self.queues, self.root}

    def watch(self) -> None:
        """What former processes wrote is flushed: from now on be told of writes that fail, so that one flush may do for many
        files without a look at each.
        """
        self._watching = True
        if self.queues.is_dir():
            self._watch()

    def _watch(self) -> None:
        """Before a new topic's first write. Without it each file is asked whether it was written, as after a start."""
        if self._watching and self._fd < 0:
            try:
                self.files.make_folder(self.queues, durable=False)  # the first flush makes its name durable
                self._fd = self.files.open(self.queues, writable=False)
            except StoreError as error:
                log.warning("%s is not watched for failed writes error=%s", self.queues, error)

    def flush_all(self, segments: Sequence[ReadySegment], others: Sequence[Path], folders: Iterable[Path]) -> bool:
        """Make these files durable, their names, too, by flushing the whole file system. False when that cannot be vouched for:
        then flush them one by one. For the thread that flushes. StoreError.
        """
        began_s = time.monotonic()
        # Each flush of all takes along the live page of the log, which must not be flushed: no more of them than needed.
        few = self._fd >= 0 and len(segments) < TOGETHER_MIN
        if few or began_s < self._one_by_one_until_s:
            return False
        if segments and self._fd >= 0:
            done = self._flush_watched(segments, others)
        else:  # nobody tells of failures unasked
            own = [path for segment in segments for path in (segment.path, segment.sums_path)]
            done = flush_together(self.files, [*own, *others], folders)
        now_s = time.monotonic()
        if done and now_s - began_s > FLUSH_ALL_S + FLUSH_EACH_S * (len(segments) + len(others)):
            self._one_by_one_until_s = now_s + PATIENCE_S
        return done

    def _flush_watched(self, segments: Sequence[ReadySegment], others: Sequence[Path]) -> bool:
        files = self.files
        devices = {files.device(self._fd), *(files.device(segment.fd) for segment in segments)}
        devices |= {files.device(path) for path in others} - {None}
        try:
            if len(devices) != 1 or not files.sync_all(self._fd):
                return False
        except DiskFull:  # some file has no room, and perhaps none of these
            return False
        segments[0].datasync()
        return True

    # -- disk queues ---------------------------------------------------------------------------------------------

    def backend(self, name: bytes) -> DiskQueue:
        """The disk queue of a topic (`t`) or channel (`t:c`), opened."""
        found = self._backends.get(name)
        if found is None:
            config = self.config
            found = self._backends[name] = DiskQueue(
                self.root,
                name.decode(),
                self.files,
                max_bytes_per_file=config.max_bytes_per_file,
                sync_every=config.sync_every,
                sync_timeout_ms=config.sync_timeout_ms,
                payload_bytes=(_HEADER_BYTES, config.max_msg_size + _HEADER_BYTES),
            )
            found.syncing.beside(self._unflushed)
        return found

    def has_backend_files(self, name: bytes) -> bool:
        """Whether nsqd, or we, left files of this disk queue."""
        return any(file.startswith(name.decode() + ".diskqueue.") for file in self.files.names(self.root))

    def drop_backend(self, name: bytes) -> None:
        """Delete a disk queue and its files."""
        self._backends.pop(name).delete()

    def take_jobs(self, failed: Callable[[StoreError], None], mono_ms: int) -> Iterator[Job]:
        """The flushes of disk queues that are due; `failed` is told of those that fail."""
        for syncing in [syncing for syncing in self._unflushed if not syncing.rests(mono_ms)]:
            job = syncing.take_job(failed)
            self._unflushed.discard(syncing)
            if job is not None:
                yield job

    def tick(self, mono_ms: int) -> int | None:
        """Let the disk queues that are due ask for their flush; when the next one is. StoreError, when one failed."""
        next_ms: int | None = None
        for backend in self._backends.values():
            try:
                due_ms = backend.tick(mono_ms)
            except StoreError:
                if backend.syncing.failed is not None:
                    raise
                due_ms = mono_ms + RETRY_MS  # its meta file stays as it was on disk, and is tried again
            if due_ms is not None and (next_ms is None or due_ms < next_ms):
                next_ms = due_ms
        return next_ms

    def close(self) -> None:
        """Let go of everything; the streams are closed before."""
        for backend in self._backends.values():
            try:
                backend.close()
            except StoreError as error:
                log.error("disk queue not closed cleanly name=%s error=%s", backend.name, error)
        self.pool.shrink()
        self.pool.remove(self.pool.take_gone())
        if self._fd >= 0:
            self.files.close(self._fd)
            self._fd = -1
