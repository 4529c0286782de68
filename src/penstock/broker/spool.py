"""Spools: the files of staged rows, one for one attempt of one task (a token). The bytes are `wire.staged`'s.

Chunks are added until the spool is sealed; a sealed one is flushed in a worker thread, and an answer may wait for that
(`when_flushed`). One that is not needed any more leaves the table at once, and the disk when whatever made it needless
is on the disk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec
from isal import isal_zlib

from penstock.disk.files import Files
from penstock.disk.job import Job
from penstock.disk.quarantine import try_quarantine
from penstock.errors import Corrupt, DiskFull, Refused, StoreError
from penstock.wire.codes import ResponseCode
from penstock.wire.staged import CHUNK, DELAYED, HEADER, MAGIC, PIECE, PLACE, SEAL, U32, VERSION

CHUNK_BYTES_MAX = 12 << 20
HEADER_BYTES_MAX = 1 << 16
RECORD_BYTES = 160  # what a row costs in the log beside its body and properties, at most
TOKEN = re.compile(r"[0-9a-f]{8,64}")

Answer = Callable[[BaseException | None], None]


class Piece(msgspec.Struct, frozen=True):
    """Messages for one message queue, as they lie in a chunk."""

    delayed: bool
    topic: bytes
    queue_id: int
    sys_flag: int
    born_ms: int
    count: int
    messages: bytes


class Spool(msgspec.Struct):
    """One token: its file and what is known of it."""

    token: str
    path: Path
    sink: str
    batch: int
    run: str
    coordinator: str
    born: bytes
    fd: int = -1
    size: int = 0  # of the file
    number: int = 0  # of the last chunk
    rows: int = 0
    chunk_bytes: int = 0
    log_bytes: int = 0
    sums: int = 0
    sealed: bool = False
    flushed: bool = False
    checked: bool = False  # by this process: each of its messages can be appended
    at_ms: int = 0
    queues: set[tuple[bytes, int]] = msgspec.field(default_factory=set)

    def count(self, number: int, found: list[Piece], size: int, crc: int) -> None:
        """One more chunk is there."""
        for piece in found:
            self.rows += piece.count
            self.log_bytes += len(piece.messages) + piece.count * RECORD_BYTES
            self.queues.add((piece.topic, piece.queue_id))
        self.number = number
        self.chunk_bytes += size
        self.sums = crc_of(U32.pack(crc), self.sums)

    def header(self) -> bytes:
        """What the file begins with."""
        about = {
            "sink": self.sink, "batch": self.batch, "run": self.run, "coordinator": self.coordinator,
            "born": self.born.hex(),
        }  # fmt: skip
        text = json.dumps(about).encode()
        return HEADER.pack(MAGIC, VERSION, len(text)) + text + U32.pack(crc_of(text))

    def opened(self, fd: int) -> None:
        """The file is open under this number; -1: it is not."""
        self.fd = fd

    def grow(self, size: int) -> None:
        """So many bytes more are in the file."""
        self.size += size

    def written(self, at_ms: int) -> None:
        """When it was written to last."""
        self.at_ms = at_ms

    def seal(self) -> None:
        """No chunk is added any more."""
        self.sealed = True

    def on_disk(self) -> None:
        """All of it is flushed."""
        self.flushed = True

    def pass_check(self) -> None:
        """Each message that is in it now can be appended; what is added is checked before."""
        self.checked = True


def crc_of(data: bytes, before: int = 0) -> int:
    """CRC-32."""
    return int(isal_zlib.crc32(data, before))


def pieces(chunk: bytes) -> Iterator[Piece]:
    """What a chunk holds. Refused (13) when its lengths do not add up."""
    at, end = 0, len(chunk)
    while at < end:
        if end - at < PIECE.size:
            raise illegal()
        size, kind, topic_len = PIECE.unpack_from(chunk, at)
        stop = at + U32.size + size
        messages = at + PIECE.size + topic_len + PLACE.size
        if stop > end or messages > stop or kind > DELAYED or not topic_len:
            raise illegal()
        topic = chunk[at + PIECE.size : at + PIECE.size + topic_len]
        queue_id, sys_flag, born_ms, count = PLACE.unpack_from(chunk, at + PIECE.size + topic_len)
        yield Piece(kind == DELAYED, topic, queue_id, sys_flag, born_ms, count, chunk[messages:stop])
        at = stop


def illegal() -> Refused:
    """A chunk that is none."""
    return Refused("the staged chunk is illegal: its lengths do not add up", remoting=ResponseCode.MESSAGE_ILLEGAL)


def flush(files: Files, folder: Path, paths: Iterable[Path]) -> None:
    """Make these spools durable, but for those that are dropped meanwhile. StoreError; for any thread."""
    for path in paths:
        try:
            fd = files.open(path)
        except StoreError:
            if path.exists():  # there are too many files open, or the disk fails
                raise
            continue
        try:
            files.datasync(fd)
        finally:
            files.close(fd)
    files.sync_folder(folder)


def is_made_here(files: Files, path: Path) -> bool:
    """Whether this is a file of staged rows, or what a kill left of one: another's may have a name like theirs."""
    if path.is_symlink() or not path.is_file():
        return False
    try:
        fd = files.open(path, writable=False)
        try:
            return MAGIC.startswith(files.read(fd, 0, len(MAGIC)))
        finally:
            files.close(fd)
    except StoreError:
        return False


def lost(token: str, why: str) -> Refused:
    """Rows that a task believes to be here."""
    return Refused(f"staged rows {token} {why}", remoting=ResponseCode.STAGE_LOST)


class Spools:
    """The spools of one broker by token. All methods but the jobs' `run` are called from its thread."""

    def __init__(self, files: Files, folder: Path) -> None:
        self.files = files
        self.folder = folder
        self.by_token: dict[str, Spool] = {}
        self.staged_bytes = 0
        self.wants_job = False
        self.changes = 0  # of what is in the files, and which there are
        self._flushing: set[str] = set()
        self._waiting: list[tuple[set[str], Answer]] = []
        self._doomed: list[tuple[int, Spool]] = []  # to be removed when the log is flushed up to a position
        self._removing: set[str] = set()  # tokens whose files a thread removes now

    # -- reading -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find the spools of a former run, each up to its last whole chunk. What has another name, and what is no file, is
        another's: it is set aside. A disk of its own has a `lost+found`.
        """
        self.files.make_folder(self.folder)
        for name in self.files.names(self.folder):
            path = self.folder / name
            if TOKEN.fullmatch(name) is None or not path.is_file():
                if name != "lost+found":
                    try_quarantine(self.files, self.folder.parent, path, "no file of staged rows")
                continue
            try:
                spool = self._read(path)
            except Corrupt as damage:
                try_quarantine(self.files, self.folder.parent, path, damage.why)
                continue
            if spool is None:
                self.files.unlink(path)
            else:
                self.by_token[name] = spool
                self.staged_bytes += spool.size

    def _read(self, path: Path) -> Spool | None:
        """A spool; None when a kill or a power cut came while its header was written. Corrupt when the header was whole once."""
        fd = self.files.open(path)
        try:
            size = self.files.size(fd)
            head = self.files.read(fd, 0, HEADER.size)
            if any(head) and not head.startswith(MAGIC[: len(head)]):
                raise Corrupt(path, 0, "no file of staged rows")
            if len(head) < HEADER.size:
                return None
            magic, version, length = HEADER.unpack(head)
            text = self.files.read(fd, HEADER.size, min(length, HEADER_BYTES_MAX))
            end = HEADER.size + length
            if magic != MAGIC or version != VERSION or self.files.read(fd, end, U32.size) != U32.pack(crc_of(text)):
                if (size >= end + U32.size and any(head + text)) or self._ends_sealed(fd, size):
                    raise Corrupt(path, 0, "a header of staged rows that does not fit its sum")
                return None
            about = json.loads(text)
            spool = Spool(
                path.name, path, about["sink"], about["batch"], about["run"], about["coordinator"],
                bytes.fromhex(about["born"]), size=end + U32.size, at_ms=self.files.modified_ms(path),
            )  # fmt: skip
            while not spool.sealed and self._read_chunk(spool, fd):
                continue
            if spool.size < size and not spool.sealed:
                self.files.cut(fd, spool.size)
            return spool
        finally:
            self.files.close(fd)

    def _ends_sealed(self, fd: int, size: int) -> bool:
        """Whether the file ends with a seal, whatever is before it."""
        at = max(0, size - CHUNK.size - SEAL.size)
        tail = self.files.read(fd, at, CHUNK.size + SEAL.size)
        return tail[: CHUNK.size] == CHUNK.pack(0, SEAL.size, crc_of(tail[CHUNK.size :]))

    def _read_chunk(self, spool: Spool, fd: int) -> bool:
        head = self.files.read(fd, spool.size, CHUNK.size)
        if len(head) < CHUNK.size:
            return False
        number, length, crc = CHUNK.unpack(head)
        if length > CHUNK_BYTES_MAX:
            return False
        chunk = self.files.read(fd, spool.size + CHUNK.size, length)
        if len(chunk) < length or crc_of(chunk) != crc:
            return False
        if number == 0:
            if length != SEAL.size:  # zeros, which a power cut has left where the file had grown
                return False
            if SEAL.unpack(chunk)[:3] == (spool.rows, spool.chunk_bytes, spool.sums):
                spool.grow(CHUNK.size + length)
                spool.seal()
            return spool.sealed
        if number != spool.number + 1:
            return False
        try:
            spool.count(number, list(pieces(chunk)), len(chunk), crc)
        except Refused:
            return False
        spool.grow(CHUNK.size + length)
        return True

    def read(self, spool: Spool, at: int, size: int) -> bytes:
        """So many bytes of the file. StoreError."""
        if spool.fd >= 0:
            return self.files.read(spool.fd, at, size)
        fd = self.files.open(spool.path, writable=False)
        try:
            return self.files.read(fd, at, size)
        finally:
            self.files.close(fd)

    def pieces(self, spool: Spool) -> Iterator[Piece]:
        """Everything in a spool, its sums checked. Refused (77002) when it is damaged; StoreError."""
        fd = self.files.open(spool.path, writable=False)
        try:
            length = HEADER.unpack(self.files.read(fd, 0, HEADER.size))[2]
            at = HEADER.size + length + U32.size
            for _ in range(spool.number):
                head = self.files.read(fd, at, CHUNK.size)
                number, size, crc = CHUNK.unpack(head) if len(head) == CHUNK.size else (0, 0, 0)
                chunk = self.files.read(fd, at + CHUNK.size, min(size, CHUNK_BYTES_MAX))
                if not number or len(chunk) < size or crc_of(chunk) != crc:
                    raise lost(spool.token, f"are damaged on the disk, at {at} of {spool.path}")
                yield from pieces(chunk)
                at += CHUNK.size + size
        finally:
            self.files.close(fd)

    # -- writing -------------------------------------------------------------------------------------------------

    def create(self, spool: Spool, now_ms: int) -> Spool:
        """A new file with its header. Refused when it cannot be written, or while a file of that name is to be removed."""
        if spool.token in self._removing or any(doomed.token == spool.token for _, doomed in self._doomed):
            raise lost(spool.token, "were dropped a moment ago")
        spool.opened(self.files.open(spool.path, create=True))
        self.files.cut(spool.fd, 0)  # a file that could not be removed: its chunks would follow ours
        self._write(spool, spool.header(), now_ms)
        spool.pass_check()  # nothing is in it
        self.by_token[spool.token] = spool
        return spool

    def add_chunk(self, spool: Spool, number: int, chunk: bytes, found: list[Piece], now_ms: int) -> None:
        """The next chunk. Refused when it cannot be written."""
        crc = crc_of(chunk)
        self._write(spool, CHUNK.pack(number, len(chunk), crc) + chunk, now_ms)
        spool.count(number, found, len(chunk), crc)

    def seal(self, spool: Spool, now_ms: int) -> None:
        """No more is added."""
        trailer = SEAL.pack(spool.rows, spool.chunk_bytes, spool.sums, 0)
        self._write(spool, CHUNK.pack(0, len(trailer), crc_of(trailer)) + trailer, now_ms)
        spool.seal()

    def _write(self, spool: Spool, data: bytes, now_ms: int) -> None:
        if spool.fd < 0:
            spool.opened(self.files.open(spool.path))
        try:
            self.files.write(spool.fd, spool.size, data)
        except StoreError as error:
            self.files.cut(spool.fd, spool.size)
            full = isinstance(error, DiskFull)
            raise Refused(
                f"not staged: {error}",
                remoting=ResponseCode.SERVICE_NOT_AVAILABLE if full else ResponseCode.SYSTEM_ERROR,
            ) from error
        spool.grow(len(data))
        self.changes += 1
        spool.written(now_ms)
        self.staged_bytes += len(data)

    def close(self) -> None:
        """Let go of the files."""
        for spool in self.by_token.values():
            self._let_go(spool)

    def _let_go(self, spool: Spool) -> None:
        if spool.fd >= 0:
            self.files.close(spool.fd)
            spool.opened(-1)

    def drop(self, spool: Spool, position: int) -> None:
        """Out of the table now; off the disk when the log is flushed up to `position`."""
        self._let_go(spool)
        self.changes += 1
        if self.by_token.pop(spool.token, None) is not None:
            self._doomed.append((position, spool))
        if spool.token not in self._flushing:
            for entry in [entry for entry in self._waiting if spool.token in entry[0]]:
                self._waiting.remove(entry)
                entry[1](lost(spool.token, "were dropped"))

    # -- flushing and removing -----------------------------------------------------------------------------------

    def want_flush(self) -> None:
        """There are sealed spools, perhaps."""
        self.wants_job = True

    def when_flushed(self, spools: list[Spool], answer: Answer) -> None:
        """Call `answer` when these sealed spools are on the disk; at once when they are."""
        missing = {spool.token for spool in spools if not spool.flushed}
        if not missing:
            answer(None)
            return
        self._waiting.append((missing, answer))
        self.wants_job = True

    def take_jobs(self, flushed: int, end: int) -> list[Job]:
        """Spools to be flushed, and to be removed; the log is flushed up to `flushed` and ends at `end`."""
        jobs = []
        if self.wants_job and not self._flushing:
            self.wants_job = False
            sealed = [spool for spool in self.by_token.values() if spool.sealed and not spool.flushed]
            if sealed:
                jobs.append(self._flush(sealed, end))
        if self._doomed and not self._removing:
            gone = [spool for position, spool in self._doomed if position <= flushed]
            if gone:
                self._doomed = [entry for entry in self._doomed if entry[0] > flushed]
                jobs.append(self._remove(gone))
        return jobs

    def _flush(self, spools: list[Spool], end: int) -> Job:
        files, folder = self.files, self.folder
        paths = [spool.path for spool in spools]
        self._flushing = {spool.token for spool in spools}

        def finish(error: BaseException | None, now_ms: int) -> None:
            done, self._flushing = self._flushing, set()
            for spool in spools:
                if error is None:
                    spool.on_disk()
                    self._let_go(spool)
                else:  # the pages are marked clean now: no later success would mean anything
                    self.drop(spool, end)
            self._answer(done, error)
            self.wants_job = True

        return Job("stage", lambda: flush(files, folder, paths), finish)

    def _answer(self, done: set[str], error: BaseException | None) -> None:
        waiting, self._waiting = self._waiting, []
        for missing, answer in waiting:
            if error is not None and missing & done:
                answer(error)
                continue
            missing -= done
            if missing:
                self._waiting.append((missing, answer))
            else:
                answer(None)

    def _remove(self, spools: list[Spool]) -> Job:
        self._removing = {spool.token for spool in spools}
        files = self.files

        def run() -> None:
            for spool in spools:
                try:
                    files.unlink(spool.path)
                except StoreError:
                    continue  # found again at the next start

        def finish(error: BaseException | None, now_ms: int) -> None:
            self._removing = set()
            self.staged_bytes -= sum(spool.size for spool in spools)

        return Job("unstage", run, finish)
