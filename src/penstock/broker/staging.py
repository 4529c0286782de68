"""Staged rows: written by the tasks of a job, shown to readers all together when its driver publishes them.

    OPEN ─▶ a spool file for one attempt of one task (`token`), APPEND adds chunks to it, SEAL flushes it
    PUBLISH ─▶ `begin` │ the rows of the tokens named │ `done`      in one turn, so that they lie together in the log
    done is flushed ─▶ the spool files go

A spool is no part of the log, so no reader ever sees it. The rows are copied at PUBLISH, because a record carries its
queue offset. A crash between `begin` and `done` is mended at the start, before anybody can connect: the rows behind
`begin` are counted, the missing ones are taken from the spools. `broker.sinks` is what remains of a publish.

    spool    "PSTG" | version (4) | size of the header (4) | header, JSON | its CRC-32 (4)
    chunk    number, from 1 (8) | size (4) | CRC-32 (4) | pieces
    piece    size of the rest (4) | kind, 1: delayed (1) | size of the topic (1) | topic | queue id (4) | sys flag (4)
             | born time (8) | count (4) | messages as in a batch send
    seal     0 (8) | 24 (4) | CRC-32 (4) | rows (8) | bytes of all chunks (8) | CRC-32 over their CRC-32s (4) | 0 (4)
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isal import isal_zlib

from penstock.broker.core import Core
from penstock.broker.nsq.entry import RESERVED_PREFIX, reserved
from penstock.broker.sending import Marks
from penstock.broker.sinks import SINK_TOPIC, Begun, Sink, Sinks
from penstock.broker.topics import DONE_TOPIC
from penstock.errors import DiskFull, Refused, StoreError
from penstock.log import status
from penstock.log.consumequeue import FILLER_SIZE
from penstock.log.draft import Draft
from penstock.log.durability import Job
from penstock.wire import record
from penstock.wire.codes import ResponseCode
from penstock.wire.staged import CHUNK as _CHUNK
from penstock.wire.staged import DELAYED, MAGIC, VERSION
from penstock.wire.staged import HEADER as _HEAD
from penstock.wire.staged import PIECE as _PIECE
from penstock.wire.staged import PLACE as _WHERE
from penstock.wire.staged import SEAL as _SEAL
from penstock.wire.staged import U32 as _U32

log = logging.getLogger("penstock.staging")

CHUNK_BYTES_MAX = 12 << 20
TOKENS_MAX = 100_000
NAME_MAX = 255
SWEEP_MS = 60_000
NEVER = 1 << 62

_TOKEN = re.compile(r"[0-9a-f]{8,64}")
_NAME = re.compile(r"[!-~][ -~]*")
ROOM_BESIDE = 64 << 20  # what a publish leaves free: queues and index grow, too


@dataclass(frozen=True)
class Piece:
    """Messages for one message queue, as they lie in a chunk."""

    delayed: bool
    topic: bytes
    queue_id: int
    sys_flag: int
    born_ms: int
    count: int
    messages: bytes


@dataclass
class Spool:
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
    at_ms: int = 0
    queues: set[tuple[bytes, int]] = field(default_factory=set)


@dataclass
class Veil:
    """A batch that readers do not see yet: from which offset on in which queues; `whole`: all of it is in the log."""

    queues: list[tuple[Any, int]]
    whole: bool = False
    answers: list[Callable[[], None]] = field(default_factory=list)


@dataclass(frozen=True)
class Wanted:
    """A PUBLISH as it was asked for."""

    sink: str
    query: str
    run: str
    batch: int
    coordinator: str
    tokens: tuple[str, ...]
    brokers: dict[str, list[str]]  # of the whole batch, at the coordinator
    reset: bool = False
    once: bool = False
    layout: dict[str, list[str]] = field(default_factory=dict)


def pieces(chunk: bytes) -> Iterator[Piece]:
    """What a chunk holds. Refused (13) when its lengths do not add up."""
    at, end = 0, len(chunk)
    while at < end:
        if end - at < _PIECE.size:
            raise _illegal()
        size, kind, topic_len = _PIECE.unpack_from(chunk, at)
        stop = at + 4 + size
        messages = at + _PIECE.size + topic_len + _WHERE.size
        if stop > end or messages > stop or kind > DELAYED or not topic_len:
            raise _illegal()
        topic = chunk[at + _PIECE.size : at + _PIECE.size + topic_len]
        queue_id, sys_flag, born_ms, count = _WHERE.unpack_from(chunk, at + _PIECE.size + topic_len)
        yield Piece(kind == DELAYED, topic, queue_id, sys_flag, born_ms, count, chunk[messages:stop])
        at = stop


def _illegal() -> Refused:
    return Refused("the staged chunk is illegal: its lengths do not add up", remoting=ResponseCode.MESSAGE_ILLEGAL)


def _lost(token: str, why: str) -> Refused:
    return Refused(f"staged rows {token} {why}", remoting=ResponseCode.STAGE_LOST)


class Staging:
    """The staged rows of one broker. All methods but the jobs' `run` are called from its thread."""

    def __init__(self, core: Core, write_tables: Callable[[], None]) -> None:
        self._core = core
        self._write_tables = write_tables
        self.files = core.files
        self.folder = core.folder / "staging"
        self.sinks = Sinks(core.folder / "config" / "sinks.json", core.files)
        self.spools: dict[str, Spool] = {}
        self.staged_bytes = 0
        self.wants_job = False
        self.published = 0
        self._draft = Draft()
        self._flushing: set[str] = set()
        self._waiting: list[tuple[set[str], Callable[[BaseException | None], None]]] = []
        self._veils: list[Veil] = []
        self._doomed: list[tuple[int, Spool]] = []  # to be removed when the log is flushed up to a position
        self._removing = False
        self._sweep_ms = 0

    # -- opening -------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find the spools, finish a publish that was cut short. After the store and the topics are open."""
        self.files.make_folder(self.folder)
        for name in self.files.names(self.folder):
            spool = self._read(self.folder / name) if _TOKEN.fullmatch(name) else None
            if spool is None:
                self.files.unlink(self.folder / name)
            else:
                self.spools[name] = spool
                self.staged_bytes += spool.size
        if self.sinks.begun is not None:
            self._finish_cut_short(self.sinks.begun)
        for spool in list(self.spools.values()):
            sink = self.sinks.by_name.get(spool.sink)
            if sink is not None and spool.batch <= sink.last:
                self._drop(spool)
        self.wants_job = any(spool.sealed for spool in self.spools.values())

    def close(self) -> None:
        """Let go of the files."""
        for spool in self.spools.values():
            self._let_go(spool)

    def _let_go(self, spool: Spool) -> None:
        if spool.fd >= 0:
            self.files.close(spool.fd)
            spool.fd = -1

    def _read(self, path: Path) -> Spool | None:
        """A spool of a former run, up to its last whole chunk; None when not even its header is whole."""
        fd = self.files.open(path)
        try:
            size = self.files.size(fd)
            head = self.files.read(fd, 0, _HEAD.size)
            if len(head) < _HEAD.size:
                return None
            magic, version, length = _HEAD.unpack(head)
            text = self.files.read(fd, _HEAD.size, min(length, 1 << 16))
            end = _HEAD.size + length
            if magic != MAGIC or version != VERSION or self.files.read(fd, end, 4) != _U32.pack(_crc(text)):
                return None
            about = json.loads(text)
            spool = Spool(
                path.name, path, about["sink"], about["batch"], about["run"], about["coordinator"],
                bytes.fromhex(about["born"]), size=end + 4, at_ms=self.files.modified_ms(path),
            )  # fmt: skip
            while not spool.sealed and self._read_chunk(spool, fd):
                continue
            if spool.size < size and not spool.sealed:
                self.files.cut(fd, spool.size)
            return spool
        finally:
            self.files.close(fd)

    def _read_chunk(self, spool: Spool, fd: int) -> bool:
        head = self.files.read(fd, spool.size, _CHUNK.size)
        if len(head) < _CHUNK.size:
            return False
        number, length, crc = _CHUNK.unpack(head)
        if length > CHUNK_BYTES_MAX:
            return False
        chunk = self.files.read(fd, spool.size + _CHUNK.size, length)
        if len(chunk) < length or _crc(chunk) != crc:
            return False
        if number == 0:
            spool.sealed = _SEAL.unpack(chunk)[:3] == (spool.rows, spool.chunk_bytes, spool.sums)
            spool.size += _CHUNK.size + length if spool.sealed else 0
            return spool.sealed
        if number != spool.number + 1:
            return False
        try:
            self._count(spool, list(pieces(chunk)), len(chunk), crc)
        except Refused:
            return False
        spool.number = number
        spool.size += _CHUNK.size + length
        return True

    # -- the runs of a sink --------------------------------------------------------------------------------------

    def ask(self, sink: str, query: str, run: str, reset: bool) -> Sink | None:
        """What is known of a sink, for a run that may write to it. Refused when it may not."""
        known = self.sinks.by_name.get(sink)
        if known is None or known.run == run:
            return known
        if run in known.stale:
            raise Refused(
                f"run {run} of sink {sink} is over: a newer one writes to it", remoting=ResponseCode.STAGE_STALE
            )
        if known.query != query:
            if not reset:
                raise Refused(
                    f"sink {sink} belongs to query {known.query} and has its batches up to {known.last}; this is {query}. "
                    "sinkReset=true gives it to the new query, another sinkId makes another sink",
                    remoting=ResponseCode.STAGE_OTHER_QUERY,
                )
            return None
        return known

    def _register(self, sink: str, query: str, run: str, coordinator: str, reset: bool, once: bool) -> Sink:
        """As `ask`; a run that is new is written down, and those before it are over."""
        _check_names(sink, query, run)
        known = self.ask(sink, query, run, reset)
        if known is None or known.run != run:
            if not coordinator:
                raise Refused("a new run names the broker that decides")
            before = sink in self.sinks.by_name
            about = {"k": "run", "sink": sink, "query": query, "run": run, "coordinator": coordinator}
            self._note(about | ({"reset": True} if known is None else {}) | ({"once": True} if once else {}))
            # What a query before this one has staged is nobody's. But a power cut may have taken the record of this run, or
            # of the sink, and spared what was sealed: those tokens may still be published.
            if known is None and before:
                for spool in [s for s in self.spools.values() if s.sink == sink and s.run != run]:
                    self._drop(spool)
        return self.sinks.by_name[sink]

    def _note(self, about: dict[str, Any]) -> int:
        body = json.dumps(about, separators=(",", ":")).encode()
        return self._core.sending.put_own(SINK_TOPIC, body, {}).physical

    # -- staging -------------------------------------------------------------------------------------------------

    def open_token(
        self, sink: str, query: str, run: str, coordinator: str, token: str, batch: int, born: bytes, *,
        reset: bool = False, once: bool = False,
    ) -> tuple[int, Sink]:  # fmt: skip
        """Begin to stage, or go on after a lost connection: (number of the last chunk here, the sink).

        -1 when the batch is published already: nothing needs to be staged.
        """
        if not _TOKEN.fullmatch(token) or batch < 0:
            raise Refused("a token is 8 to 64 hexadecimal digits, and a batch is numbered from 0")
        known = self._register(sink, query, run, coordinator, reset, once)
        if batch <= known.last:
            return -1, known
        spool = self.spools.get(token)
        if spool is None:
            self._demand_room()
            if len(self.spools) >= TOKENS_MAX:
                raise Refused(f"more than {TOKENS_MAX} tokens are staged", remoting=ResponseCode.STAGE_FULL)
            spool = self._new(Spool(token, self.folder / token, sink, batch, run, known.coordinator, born))
        elif (spool.sink, spool.batch) != (sink, batch):
            raise _lost(token, "belong to another sink or batch")
        return spool.number, known

    def _new(self, spool: Spool) -> Spool:
        about = {
            "sink": spool.sink, "batch": spool.batch, "run": spool.run, "coordinator": spool.coordinator,
            "born": spool.born.hex(),
        }  # fmt: skip
        text = json.dumps(about).encode()
        data = _HEAD.pack(MAGIC, VERSION, len(text)) + text + _U32.pack(_crc(text))
        spool.fd = self.files.open(spool.path, create=True)
        self._write(spool, data)
        self.spools[spool.token] = spool
        return spool

    def _demand_room(self) -> None:
        if self._core.store.refusal == status.DISK_FULL:
            raise Refused("the disk is full: nothing is staged until there is room", remoting=14)
        limit = self._core.config.stage_max_bytes
        if self.staged_bytes >= limit:
            raise Refused(
                f"{self.staged_bytes} bytes are staged, stage_max_bytes is {limit}", remoting=ResponseCode.STAGE_FULL
            )

    def _write(self, spool: Spool, data: bytes) -> None:
        if spool.fd < 0:
            spool.fd = self.files.open(spool.path)
        try:
            self.files.write(spool.fd, spool.size, data)
        except StoreError as error:
            self.files.cut(spool.fd, spool.size)
            full = isinstance(error, DiskFull)
            raise Refused(f"not staged: {error}", remoting=14 if full else 1) from error
        spool.size += len(data)
        spool.at_ms = self._core.time.now_ms
        self.staged_bytes += len(data)

    def _of(self, token: str) -> Spool:
        spool = self.spools.get(token)
        if spool is None:
            raise _lost(token, "are not here: dropped, expired, or lost with the machine's power")
        sink = self.sinks.by_name.get(spool.sink)
        if sink is not None and spool.run in sink.stale:
            raise Refused(
                f"run {spool.run} of sink {spool.sink} is over: a newer one writes to it",
                remoting=ResponseCode.STAGE_STALE,
            )
        return spool

    def append(self, token: str, number: int, chunk: bytes) -> int:
        """Add the chunk with this number, unless it is here already; the number of the last one."""
        spool = self._of(token)
        if number <= spool.number:
            return spool.number
        if number != spool.number + 1 or spool.sealed:
            raise Refused(
                f"chunk {number} of {token} comes behind chunk {spool.number}", remoting=ResponseCode.STAGE_GAP
            )
        if not 0 < len(chunk) <= CHUNK_BYTES_MAX:
            raise Refused(f"a chunk has 1 to {CHUNK_BYTES_MAX} bytes", remoting=ResponseCode.MESSAGE_ILLEGAL)
        self._demand_room()
        found = list(pieces(chunk))
        for piece in found:
            self._check(piece)
        crc = _crc(chunk)
        self._write(spool, _CHUNK.pack(number, len(chunk), crc) + chunk)
        self._count(spool, found, len(chunk), crc)
        spool.number = number
        return number

    def _count(self, spool: Spool, found: list[Piece], size: int, crc: int) -> None:
        for piece in found:
            spool.rows += piece.count
            spool.log_bytes += len(piece.messages) + piece.count * 160
            spool.queues.add((piece.topic, piece.queue_id))
        spool.chunk_bytes += size
        spool.sums = _crc(_U32.pack(crc), spool.sums)

    def _check(self, piece: Piece) -> None:
        """Refuse now whatever could not be appended at PUBLISH."""
        topic = self._core.sending.open_to_senders(piece.topic)
        if not 0 <= piece.queue_id < topic.queue_count:
            raise Refused(f"topic {piece.topic.decode()} has no queue {piece.queue_id}")
        draft = self._draft
        draft.queue = topic.queues[piece.queue_id]
        draft.born_len, draft.tail_len = 8, 0
        count = self._core.store.weigh_batch(draft, piece.messages)
        if count != piece.count:
            raise (
                _illegal()
                if count >= 0 or count == -status.ILLEGAL
                else Refused("a staged message is larger than the broker takes", remoting=ResponseCode.MESSAGE_ILLEGAL)
            )
        if RESERVED_PREFIX.encode() in piece.messages:
            for item in record.decode_batch(piece.messages):
                if name := reserved(record.parse_properties(item.properties.decode("utf-8", "replace"))):
                    raise Refused(f"the property {name} is the broker's own", remoting=ResponseCode.MESSAGE_ILLEGAL)
        if piece.delayed:
            for item in record.decode_batch(piece.messages):
                self._core.sending.due_ms(record.parse_properties(item.properties.decode("utf-8", "replace")))

    def seal(
        self, token: str, rows: int, size: int, sums: int, answer: Callable[[BaseException | None], None] | None
    ) -> None:
        """No more is added. `answer` is called when all of it is on the disk, or could not be written there."""
        spool = self._of(token)
        if (rows, size, sums) != (spool.rows, spool.chunk_bytes, spool.sums):
            raise _lost(
                token,
                f"are {spool.rows} rows, {spool.chunk_bytes} bytes, sum {spool.sums}; sealed as {rows}, {size}, {sums}",
            )
        if not spool.sealed:
            trailer = _SEAL.pack(rows, size, sums, 0)
            self._write(spool, _CHUNK.pack(0, len(trailer), _crc(trailer)) + trailer)
            spool.sealed = True
        if answer is not None:
            self.when_flushed([spool], answer)
        self.wants_job = True

    def when_flushed(self, spools: list[Spool], answer: Callable[[BaseException | None], None]) -> None:
        """Call `answer` when these sealed spools are on the disk; at once when they are."""
        missing = {spool.token for spool in spools if not spool.flushed}
        if not missing:
            answer(None)
            return
        self._waiting.append((missing, answer))
        self.wants_job = True

    # -- publishing ----------------------------------------------------------------------------------------------

    def ready(self, wanted: Wanted) -> list[Spool] | None:
        """The spools a PUBLISH asks for; None when the batch is published already. Refused when it cannot be."""
        known = self._register(
            wanted.sink, wanted.query, wanted.run, wanted.coordinator, wanted.reset, wanted.once
        )  # fmt: skip
        if wanted.batch <= known.last:
            return None
        found = []
        for token in wanted.tokens:
            spool = self.spools.get(token)
            if spool is None or not spool.sealed or (spool.sink, spool.batch) != (wanted.sink, wanted.batch):
                raise _lost(token, "are not here, sealed, for this sink and batch")
            found.append(spool)
        return found

    def publish(self, wanted: Wanted) -> tuple[bool, Sink]:
        """Append the rows of the tokens, in their order: (whether that happened now, the sink).

        The answer must wait until the log is flushed up to its present end.
        """
        spools = self.ready(wanted)
        sink = self.sinks.by_name[wanted.sink]
        if spools is None:
            return False, sink
        store = self._core.store
        if store.refusal or self.sinks.begun is not None:
            raise Refused("the store takes no messages now: nothing is published", remoting=14)
        for spool in spools:
            for name, queue_id in spool.queues:
                if not queue_id < self._core.sending.open_to_senders(name).queue_count:
                    raise Refused(f"topic {name.decode()} has no queue {queue_id} any more")
        self._demand_log_room(sum(spool.log_bytes for spool in spools))
        begin = {
            "k": "begin", "sink": wanted.sink, "batch": wanted.batch, "run": wanted.run,
            "rows": sum(spool.rows for spool in spools), "tokens": [spool.token for spool in spools],
        }  # fmt: skip
        more = {"brokers": wanted.brokers, "layout": wanted.layout}
        self._note(begin | {name: about for name, about in more.items() if about})
        self._append(spools, 0)
        self.published += 1
        for spool in [s for s in self.spools.values() if s.sink == wanted.sink and s.batch <= wanted.batch]:
            self._drop(spool)
        return True, self.sinks.by_name[wanted.sink]

    def _demand_log_room(self, size: int) -> None:
        """A publish must not stop in the middle for want of room."""
        store = self._core.store
        if size + (1 << 16) > store.log.backed_end - store.log.end:
            used, total = self.files.usage(self.folder)
            if total - used < 2 * size + min(ROOM_BESIDE, 2 * store.log.file.size):
                raise Refused("the disk has no room for the batch: nothing is published", remoting=14)

    def _append(self, spools: list[Spool], skip: int) -> None:
        """Append what lies between `begin` and `done`, but for the first `skip` rows, and `done`.

        An error in the middle ends all writing until a restart has finished the publish: readers go on seeing nothing
        of it, and nothing may come to stand between its rows.
        """
        assert self.sinks.begun is not None
        begun = self.sinks.begun
        places = {place for spool in spools for place in spool.queues}
        queues = [self._core.sending.open_to_senders(name).queues[queue_id] for name, queue_id in places]
        veil = Veil([(queue, queue.first_at_or_after(begun.physical)) for queue in queues])
        self._veils.append(veil)
        for queue, start in veil.queues:
            queue.hidden_from = min(queue.hidden_from, start)
        try:
            for spool in spools:
                for piece in self._pieces(spool):
                    if skip >= piece.count:
                        skip -= piece.count
                    else:
                        self._append_piece(piece, spool.born, skip)
                        skip = 0
            self._note(
                {"k": "done", "sink": begun.about["sink"], "batch": begun.about["batch"], "begin": begun.physical}
            )
        except (Refused, StoreError) as error:
            log.error("a publish was cut short sink=%s error=%s", begun.about["sink"], error)
            self._core.store.fail(error)
            raise Refused(f"not published; a restart of the broker finishes it: {error}", remoting=14) from error
        veil.whole = True
        self.lift()

    def lift(self) -> None:
        """Let readers see what is whole now: offsets are shown when they are reserved durably, and a batch not before
        all of its own are. At the end of every turn."""
        store = self._core.store
        while self._veils and self._veils[0].whole:
            veil = self._veils[0]
            if any(queue.reserved < queue.max_offset for queue, _ in veil.queues):
                return
            del self._veils[0]
            for queue, _ in veil.queues:
                starts = [start for later in self._veils for other, start in later.queues if other is queue]
                queue.hidden_from = min(starts, default=NEVER)
                if queue.watched and not queue.arrived:
                    queue.arrived = True
                    store.arrived.append(queue)
            for answer in veil.answers:
                answer()

    def veils(self, data: bytes) -> bool:
        """Whether a record that was found by its place is one that readers of its queue do not see yet."""
        if not self._veils:
            return False
        message = record.decode_record(data, decompress=False)
        if message is None or message.sys_flag & 4:  # a half of a transaction stands in no queue
            return False
        queue = self._core.store.queues.get(message.topic.encode(), {}).get(message.queue_id)
        return queue is not None and message.queue_offset >= queue.hidden_from

    def when_visible(self, answer: Callable[[], None]) -> None:
        """Call `answer` when readers see all that is published; at once when they do."""
        if self._veils and self._core.store.healthy:
            self._veils[-1].answers.append(answer)
        else:
            answer()

    def _pieces(self, spool: Spool) -> Iterator[Piece]:
        """Everything in a spool, its sums checked."""
        fd = self.files.open(spool.path, writable=False)
        try:
            length = _HEAD.unpack(self.files.read(fd, 0, _HEAD.size))[2]
            at = _HEAD.size + length + 4
            for _ in range(spool.number):
                number, size, crc = _CHUNK.unpack(self.files.read(fd, at, _CHUNK.size))
                chunk = self.files.read(fd, at + _CHUNK.size, size)
                if _crc(chunk) != crc:
                    raise StoreError(f"{spool.path}: chunk {number} is damaged")
                yield from pieces(chunk)
                at += _CHUNK.size + size
        finally:
            self.files.close(fd)

    def _append_piece(self, piece: Piece, born: bytes, skip: int) -> None:
        topic = self._core.sending.open_to_senders(piece.topic)
        if piece.delayed:
            for item in record.decode_batch(piece.messages)[skip:]:
                properties = record.parse_properties(item.properties.decode("utf-8", "replace"))
                self._core.sending.put(
                    topic, piece.queue_id, item.body, properties, born_host=born, born_ms=piece.born_ms,
                    marks=Marks(item.flag, piece.sys_flag),
                )  # fmt: skip
            return
        draft = self._draft
        draft.queue = topic.queues[piece.queue_id]
        draft.set_born(born)
        draft.set_properties(b"")
        draft.set_tail(b"")
        draft.sys_flag, draft.born_ms, draft.flag, draft.reconsume_times, draft.prepared = (
            piece.sys_flag & ~0xC, piece.born_ms, 0, 0, 0,
        )  # fmt: skip
        draft.indexed = True
        parts = [piece.messages] if not skip else list(_messages(piece.messages))[skip:]
        while parts:
            part = parts.pop(0)
            count = self._core.store.append_batch_bytes(draft, part)
            if count == -status.TOO_LARGE and len(part) > (one := int.from_bytes(part[:4])):
                parts[:0] = [part[:one], part[one:]]  # more than a segment takes at once
                continue
            if count < 0:
                raise Refused(f"the store refused with status {-count}", remoting=14)
            topic.count_put(count, draft.size)

    def _finish_cut_short(self, begun: Begun) -> None:
        """A crash came between `begin` and `done`: append what is missing, as if it had not."""
        present = self._records_behind(begun.physical + begun.size) - self._overs_behind(begun.physical)
        spools = []
        for token in begun.about["tokens"]:
            spool = self.spools.get(token)
            if spool is None or not spool.sealed:
                raise StoreError(
                    f"batch {begun.about['batch']} of sink {begun.about['sink']} was being published and its staged rows "
                    f"{token} are gone: {present} of {begun.about['rows']} rows are in the log"
                )
            spools.append(spool)
            for name, queue_id in spool.queues:  # topics.json may be older than the log
                if queue_id >= (count := self._core.sending.open_to_senders(name).queue_count):
                    self._core.topics.create(name, max(count, queue_id + 1), max(count, queue_id + 1))
        self._write_tables()
        self._append(spools, present)
        log.warning(
            "finished a publish that a crash cut short sink=%s batch=%d rows=%d missing=%d",
            begun.about["sink"], begun.about["batch"], begun.about["rows"], begun.about["rows"] - present,
        )  # fmt: skip

    def _records_behind(self, position: int) -> int:
        store, count = self._core.store, 0
        while position < store.end_position:
            size = store.log.size_at(position)
            if size > 0:
                count += 1
                position += size
            elif size == 0:
                position = (position // store.log.file.size + 1) * store.log.file.size
            else:
                raise StoreError(f"the log is damaged at {position}, in the middle of a published batch")
        return count

    def _overs_behind(self, position: int) -> int:
        """How many records there say that an entry of the schedule is over: starts wrote them before they finished this."""
        found = 0
        for queue in self._core.topics.by_name[DONE_TOPIC].queues:
            for offset in range(queue.first_at_or_after(position), queue.max_offset):
                entry = queue.entry(offset)
                found += entry is not None and entry[0] > position and entry[1] != FILLER_SIZE
        return found

    # -- removing ------------------------------------------------------------------------------------------------

    def drop(self, sink: str, run: str, tokens: list[str]) -> int:
        """Forget staged rows of a sink: those named, or all of them when none is; how many there were."""
        known = self.sinks.by_name.get(sink)
        if known is not None and run in known.stale:
            raise Refused(f"run {run} of sink {sink} is over", remoting=ResponseCode.STAGE_STALE)
        found = [
            spool for spool in self.spools.values() if spool.sink == sink and (not tokens or spool.token in tokens)
        ]
        for spool in found:
            self._drop(spool)
        return len(found)

    def _drop(self, spool: Spool) -> None:
        """Out of the table now; off the disk when whatever made it needless is on the disk."""
        self._let_go(spool)
        if self.spools.pop(spool.token, None) is not None:
            self._doomed.append((self._core.store.end_position, spool))
        if spool.token not in self._flushing:
            for entry in [entry for entry in self._waiting if spool.token in entry[0]]:
                self._waiting.remove(entry)
                entry[1](_lost(spool.token, "were dropped"))

    def tick(self, mono_ms: int) -> int:
        """Drop what nobody will publish any more; when to look again.

        Sealed rows of a batch over several brokers may be decided at another one: they stay until it is published
        here or somebody drops them.
        """
        if mono_ms >= self._sweep_ms:
            self._sweep_ms = mono_ms + SWEEP_MS
            config = self._core.config
            before_ms = self._core.time.now_ms - config.stage_ttl_ms
            for spool in list(self.spools.values()):
                mine = not spool.sealed or spool.coordinator == config.broker_name
                if mine and spool.at_ms < before_ms:
                    log.warning("staged rows expired sink=%s batch=%d rows=%d", spool.sink, spool.batch, spool.rows)
                    self._drop(spool)
        return self._sweep_ms

    # -- jobs ----------------------------------------------------------------------------------------------------

    def take_jobs(self, mono_ms: int) -> list[Job]:
        """Spools to be flushed, and to be removed."""
        self.lift()
        jobs = []
        if self.wants_job and not self._flushing:
            self.wants_job = False
            sealed = [spool for spool in self.spools.values() if spool.sealed and not spool.flushed]
            if sealed:
                jobs.append(self._flush(sealed))
        if self._doomed and not self._removing:
            flushed = self._core.store.flushed_position
            gone = [spool for position, spool in self._doomed if position <= flushed]
            if gone:
                self._doomed = [entry for entry in self._doomed if entry[0] > flushed]
                jobs.append(self._remove(gone))
        return jobs

    def _flush(self, spools: list[Spool]) -> Job:
        files, folder = self.files, self.folder
        paths = [spool.path for spool in spools]
        self._flushing = {spool.token for spool in spools}

        def run() -> None:
            for path in paths:
                try:
                    fd = files.open(path)
                except StoreError:
                    continue  # dropped meanwhile
                try:
                    files.datasync(fd)
                finally:
                    files.close(fd)
            files.sync_folder(folder)

        def finish(error: BaseException | None, now_ms: int) -> None:
            done, self._flushing = self._flushing, set()
            for spool in spools:
                if error is None:
                    spool.flushed = True
                    self._let_go(spool)
                else:  # the pages are marked clean now: no later success would mean anything
                    self._drop(spool)
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
            self.wants_job = True

        return Job("stage", run, finish)

    def _remove(self, spools: list[Spool]) -> Job:
        self._removing = True
        files = self.files

        def run() -> None:
            for spool in spools:
                try:
                    files.unlink(spool.path)
                except StoreError:
                    continue  # found again at the next start

        def finish(error: BaseException | None, now_ms: int) -> None:
            self._removing = False
            self.staged_bytes -= sum(spool.size for spool in spools)

        return Job("unstage", run, finish)


def _messages(batch: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(batch):
        size = int.from_bytes(batch[at : at + 4])
        yield batch[at : at + size]
        at += size


def _crc(data: bytes, before: int = 0) -> int:
    return int(isal_zlib.crc32(data, before))


def _check_names(*names: str) -> None:
    for name in names:
        if len(name) > NAME_MAX or not _NAME.fullmatch(name):
            raise Refused(f"sinks, queries and runs have names of 1 to {NAME_MAX} printable characters")
