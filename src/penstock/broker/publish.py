"""Publishing a batch of staged rows: all of them in one turn, so that they lie together in the log.

    begin │ the rows of the tokens named │ done

The rows are copied, because a record carries its queue offset. A crash between `begin` and `done` is mended at the
start, before anybody can connect: the rows behind `begin` are counted, the missing ones are taken from the spools. Where
those can be appended no more, the log ends before `begin` from the next start on: nobody has seen what stands there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NoReturn

from penstock.broker.core import Core
from penstock.broker.nsq.entry import RESERVED_PREFIX, reserved
from penstock.broker.runs import Runs
from penstock.broker.sending import Marks, fill
from penstock.broker.sinks import Begun, Sinks
from penstock.broker.spool import Piece, Spool, Spools, illegal, lost
from penstock.broker.topics import DONE_TOPIC, LogTopic
from penstock.errors import Refused, StoreError
from penstock.log import cutting, status
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.draft import Draft
from penstock.log.veil import Veils
from penstock.wire import layout, record
from penstock.wire.codes import ResponseCode
from penstock.wire.record import BatchItem

log = logging.getLogger("penstock.staging")

ROOM_BESIDE = 64 << 20  # what a publish leaves free: queues and index grow, too
ROOM_AT_END = 1 << 16
PUBLISHED_WITHIN_MS = 1 << 45  # a staged delay must still be in range when its batch is published
_BORN_BYTES = 8
_NO_END = 1 << 62  # beyond every position of a log


class BatchPublish:
    """See the module."""

    def __init__(self, core: Core, sinks: Sinks, runs: Runs, spools: Spools, veils: Veils) -> None:
        self._core = core
        self._sinks = sinks
        self._runs = runs
        self._spools = spools
        self._veils = veils
        self._draft = Draft()

    def check(self, piece: Piece) -> None:
        """Refuse, when it is staged, whatever `append` could not append: it must not stop in the middle of a batch."""
        topic = self._core.sending.open_to_senders(piece.topic)
        if not 0 <= piece.queue_id < topic.queue_count:
            raise Refused(f"topic {piece.topic.decode()} has no queue {piece.queue_id}")
        if self._weighed(topic.queues[piece.queue_id], piece.messages) != piece.count:
            raise illegal()
        if piece.delayed or RESERVED_PREFIX.encode() in piece.messages:
            for item in record.decode_batch(piece.messages):
                properties = record.parse_properties(item.properties.decode("utf-8", "replace"))
                if name := reserved(properties):
                    raise Refused(f"the property {name} is the broker's own", remoting=ResponseCode.MESSAGE_ILLEGAL)
                if piece.delayed:
                    self._check_delayed(topic, piece.queue_id, item, properties)

    def check_again(self, spools: list[Spool]) -> None:
        """Refuse what a former run has staged, and this one could not append: it was smaller, or checked less. StoreError."""
        for spool in spools:
            if not spool.checked:
                for piece in self._spools.pieces(spool):
                    self.check(piece)
                spool.pass_check()

    def _check_delayed(self, topic: LogTopic, queue_id: int, item: BatchItem, properties: dict[str, str]) -> None:
        """As it would be stored: where it is for is told in properties more."""
        sending = self._core.sending
        now_ms = self._core.time.now_ms
        sending.delays.due_ms(properties, now_ms + PUBLISHED_WITHIN_MS)
        queue, properties = sending.as_delayed(topic, queue_id, properties, now_ms)
        text = record.restore_properties(properties).encode()
        if len(text) > record.PROPERTIES_BYTES_MAX:
            raise _too_large()
        self._weighed(queue, record.encode_batch([BatchItem(item.body, text, item.flag)]))

    def _weighed(self, queue: ConsumeQueue, messages: bytes) -> int:
        """How many messages these are. Refused when one is larger than a record, or a segment of the log, may be."""
        draft, store = self._draft, self._core.store
        draft.set_tail(b"")
        fill(draft, queue, bytes(_BORN_BYTES), 0, Marks())
        count = store.weigh_batch(draft, messages)
        if count < 0:
            raise illegal() if count == -status.ILLEGAL else _too_large()
        if draft.size + layout.BLANK_BYTES > store.log.file.size:
            if count == 1:
                raise _too_large()
            for message in _messages(messages):  # more than a segment takes are appended one by one
                self._weighed(queue, message)
        return count

    def demand_room(self, size: int) -> None:
        """A publish must not stop in the middle for want of room. Refused."""
        store = self._core.store
        if size + ROOM_AT_END > store.log.backed_end - store.log.end:
            used, total = self._core.files.usage(self._spools.folder)
            if total - used < 2 * size + min(ROOM_BESIDE, 2 * store.log.file.size):
                raise Refused(
                    "the disk has no room for the batch: nothing is published",
                    remoting=ResponseCode.SERVICE_NOT_AVAILABLE,
                )

    def append(self, spools: list[Spool], skip: int) -> None:
        """Append what lies between `begin` and `done`, but for the first `skip` rows, and `done`.

        An error in the middle ends all writing until a restart has finished the publish: readers go on seeing nothing
        of it, and nothing may come to stand between its rows.
        """
        assert self._sinks.begun is not None
        begun = self._sinks.begun
        open_to_senders = self._core.sending.open_to_senders
        places = {place for spool in spools for place in spool.queues}
        veil = self._veils.lower([open_to_senders(name).queues[queue_id] for name, queue_id in places], begun.physical)
        try:
            for spool in spools:
                for piece in self._spools.pieces(spool):
                    if skip >= piece.count:
                        skip -= piece.count
                    else:
                        self._append_piece(piece, spool.born, skip)
                        skip = 0
            self._runs.note(
                {"k": "done", "sink": begun.about["sink"], "batch": begun.about["batch"], "begin": begun.physical}
            )
        except (Refused, StoreError) as error:
            log.error("a publish was cut short sink=%s error=%s", begun.about["sink"], error)
            self._core.copies.keep_whole(begun.physical, _NO_END)
            self._core.store.fail(error)
            raise Refused(
                f"not published; a restart of the broker finishes it: {error}",
                remoting=ResponseCode.SERVICE_NOT_AVAILABLE,
            ) from error
        self._core.copies.keep_whole(begun.physical, self._core.store.end_position)
        veil.complete()
        self._veils.lift()

    def _append_piece(self, piece: Piece, born: bytes, skip: int) -> None:
        core = self._core
        topic = core.sending.open_to_senders(piece.topic)
        if piece.delayed:
            for item in record.decode_batch(piece.messages)[skip:]:
                properties = record.parse_properties(item.properties.decode("utf-8", "replace"))
                core.sending.put_begun(
                    topic, piece.queue_id, item.body, properties, born_host=born, born_ms=piece.born_ms,
                    marks=Marks(item.flag, piece.sys_flag),
                )  # fmt: skip
            return
        draft = self._draft
        draft.set_properties(b"")
        draft.set_tail(b"")
        marks = Marks(sys_flag=piece.sys_flag & ~layout.SYS_TRANSACTION)
        fill(draft, topic.queues[piece.queue_id], born, piece.born_ms, marks)
        parts = [piece.messages] if not skip else list(_messages(piece.messages))[skip:]
        while parts:
            part = parts.pop(0)
            count = core.store.append_batch_bytes(draft, part)
            if count == -status.TOO_LARGE and len(part) > (one := int.from_bytes(part[:4])):
                parts[:0] = [part[:one], part[one:]]  # more than a segment takes at once
                continue
            if count < 0:
                raise Refused(f"the store refused with status {-count}", remoting=ResponseCode.SERVICE_NOT_AVAILABLE)
            topic.count_put(count, draft.size)

    # -- after a crash -------------------------------------------------------------------------------------------

    def finish_cut_short(self, begun: Begun, write_tables: Callable[[], None]) -> None:
        """A crash came between `begin` and `done`: append what is missing, as if it had not. StoreError, too, when that cannot
        be done: then it is taken back.
        """
        present = self._records_behind(begun.physical + begun.size) - self._overs_behind(begun.physical)
        spools = []
        if present < begun.about["rows"]:
            try:
                spools = self._found(begun, present)
                self._demand_queues(spools)
                self.check_again(spools)
            except Refused as error:
                self._take_back(begun, error)
            write_tables()
        self.append(spools, present)
        log.warning(
            "finished a publish that a crash cut short sink=%s batch=%d rows=%d missing=%d",
            begun.about["sink"], begun.about["batch"], begun.about["rows"], begun.about["rows"] - present,
        )  # fmt: skip

    def _found(self, begun: Begun, present: int) -> list[Spool]:
        spools = []
        for token in begun.about["tokens"]:
            spool = self._spools.by_token.get(token)
            if spool is None:  # all of it was there once, perhaps, and was seen: nobody but a person can know
                if self._core.config.stage_accept_loss:
                    raise lost(token, "are gone")
                raise StoreError(
                    f"batch {begun.about['batch']} of sink {begun.about['sink']} was being published and its staged rows "
                    f"{token} are gone: {present} of {begun.about['rows']} rows are in the log, from {begun.physical} on. "
                    f"Put the file back into {self._spools.folder}; or start with stage_accept_loss=true: what stands in the "
                    "log from there on is moved to lost+found then, and the batch is not published"
                )
            if not spool.sealed:  # it was: the start has found damage in it
                raise lost(token, "are damaged on the disk")
            spools.append(spool)
        return spools

    def _demand_queues(self, spools: list[Spool]) -> None:
        """topics.json may be older than the log. Refused."""
        core = self._core
        for name, queue_id in {place for spool in spools for place in spool.queues}:
            if queue_id >= (count := core.sending.open_to_senders(name).queue_count):
                core.topics.create(name, max(count, queue_id + 1), max(count, queue_id + 1))

    def _take_back(self, begun: Begun, why: Refused) -> NoReturn:
        """Nobody was told of the batch, and it is the last that stands in the log. The staged rows stay: a PUBLISH that is
        repeated tells what is wrong with them. StoreError.
        """
        core, about = self._core, begun.about
        end = core.store.end_position
        cutting.intend(core.files, core.folder, begun.physical, end, 0, "a publish that cannot be finished")
        raise StoreError(
            f"batch {about['batch']} of sink {about['sink']} was being published, and cannot be finished: {why}. The next "
            "start takes it back, and keeps what stands in the log from there on in lost+found: start again"
        ) from why

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
                found += entry is not None and entry[0] > position and entry[1] != layout.FILLER_SIZE
        return found


def _too_large() -> Refused:
    return Refused("a staged message is larger than the broker takes", remoting=ResponseCode.MESSAGE_ILLEGAL)


def _messages(batch: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(batch):
        size = int.from_bytes(batch[at : at + 4])
        yield batch[at : at + size]
        at += size
