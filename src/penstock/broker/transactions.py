"""Transactional messages: a half that nobody sees, then commit, rollback, or the question what became of it.

    send ─▶ half topic ─▶ END_TRANSACTION commit ─▶ the real topic + an op record that names the half
                                        rollback ─▶ the op record alone
    no answer in time ─▶ CHECK_TRANSACTION_STATE to a producer of the group; 15 in vain ─▶ TRANS_CHECK_MAX_TIME_TOPIC

The log holds both queues as RocketMQ's does (rocketmq.md §12); which halves are open is derived from them at the start.
A half is not appended again for each check, as RocketMQ does: how often it was asked about is counted from the start on.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterator

import msgspec

from penstock import msgid
from penstock.broker.core import Core
from penstock.broker.topics import HALF_TOPIC, OP_TOPIC, LogTopic
from penstock.errors import Refused
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.reading import ReadResult
from penstock.log.status import FOUND
from penstock.message import ReceivedMessage
from penstock.wire import names, record
from penstock.wire.codes import SYS_COMMIT, SYS_ROLLBACK, Fields

log = logging.getLogger("penstock.transactions")

GROUP = names.TRANSACTION_GROUP
OP_TAG = "d"
ASKED_AT_ONCE, LOOKED_AT_ONCE, PIECE_MS = (
    200,
    5_000,
    5,
)  # halves in a turn of the loop, and how much later the next ones
UNKNOWN_YET = 0  # what a producer says that does not know yet what became of its transaction


class Half(msgspec.Struct):
    """An open transaction, by the queue offset of its half message."""

    physical: int
    born_ms: int
    immunity_ms: int
    checks: int = 0
    stored: bool = False  # what it became is stored: its op record alone is missing, for which the disk had no room

    def note_stored(self) -> None:
        """What it became is stored; an op record is to say so."""
        self.stored = True

    def asked(self) -> None:
        """Its producer is asked once more what became of it."""
        self.checks += 1

    def not_asked(self) -> None:
        """There was nobody to ask."""
        self.checks -= 1


class Transactions:
    """The open transactions of a broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.open: dict[int, Half] = {}
        self._ask: Callable[[str, bytes, dict[str, str]], bool] = lambda group, data, fields: False
        self._finished: dict[int, int] = {}  # half offset → op offset, for halves behind the oldest open one
        self._next_check_ms = 0
        self._checking: Iterator[None] | None = None
        self._given_up = 0  # in this round: nobody answered

    def ask_through(self, ask: Callable[[str, bytes, dict[str, str]], bool]) -> None:
        """`ask(group, half record, fields)` sends a check to a producer; False: there is nobody to ask."""
        self._ask = ask

    def _queue(self, name: bytes) -> ConsumeQueue:
        return self._core.topics.by_name[name].queues[0]

    def load(self) -> None:
        """Find the halves without an op record, from where the offsets say the oldest open one was."""
        halves, ops = self._queue(HALF_TOPIC), self._queue(OP_TOPIC)
        offsets = self._core.offsets
        first = offsets.get(GROUP, HALF_TOPIC.decode(), 0) or 0
        for message in self._messages(halves, max(first, halves.min_offset)):
            self.begun(message.queue_offset, message.physical_offset, message.born_ms, dict(message.properties))
        for message in self._messages(ops, max(offsets.get(GROUP, OP_TOPIC.decode(), 0) or 0, ops.min_offset)):
            for part in message.body.split(b","):
                if part.isdigit() and len(part) < 19:
                    self._finish(int(part), message.queue_offset)

    def _messages(self, queue: ConsumeQueue, offset: int) -> Iterator[ReceivedMessage]:
        result = ReadResult()
        while offset < queue.max_offset:
            if self._core.store.read(queue, offset, 1000, 1 << 20, -1, None, result) == FOUND:
                yield from record.iter_records(result.body())
            elif result.next_offset <= offset:
                return
            offset = result.next_offset

    def begun(self, offset: int, physical: int, born_ms: int, properties: dict[str, str]) -> None:
        """A half message was stored at this queue offset."""
        born_ms = min(born_ms, self._core.time.now_ms)  # its producer's clock may be wrong
        self.open[offset] = Half(physical, born_ms, _immunity_ms(properties), _checks(properties))

    def resume(self, physical: int) -> None:
        """Take a half that was given up back among the open ones, asked about never yet. Refused when it is none."""
        core = self._core
        data = core.store.record_at(physical) if physical >= 0 else None
        half = None if data is None else record.decode_record(data, 0, decompress=False)
        if half is None or half.topic != names.GIVEN_UP_TOPIC.decode():
            raise Refused(f"there is no half message that was given up at {physical}")
        properties = dict(half.properties) | {names.CHECK_TIMES: "0"}
        topic = core.topics.by_name[HALF_TOPIC]
        placed = core.sending.put_again(topic, 0, half, properties, half=True)
        self.begun(placed.queue_offset, placed.physical, half.born_ms, properties)

    def _finish(self, offset: int, op_offset: int) -> None:
        self.open.pop(offset, None)
        self._finished[offset] = op_offset

    def end(self, fields: Fields) -> LogTopic | None:
        """Carry out END_TRANSACTION: the topic at whose level that is stored, None when nothing is. Refused when it names no
        half message of that group, or no outcome.
        """
        what = fields["commitOrRollback"]
        if what == UNKNOWN_YET:
            return None  # it will be asked about
        if what not in (SYS_COMMIT, SYS_ROLLBACK):
            raise Refused(f"commitOrRollback {what} is no outcome: {SYS_COMMIT} commits, {SYS_ROLLBACK} rolls back")
        core = self._core
        physical, offset = fields["commitLogOffset"], fields["tranStateTableOffset"]
        data = core.store.record_at(physical) if physical >= 0 else None
        half = None if data is None else record.decode_record(data, 0, decompress=False)
        if half is None or half.topic != HALF_TOPIC.decode():
            raise Refused("Find prepared transaction message failed")
        if half.properties.get(names.PRODUCER_GROUP) != fields["producerGroup"]:
            raise Refused("The producer group wrong")
        if half.queue_offset != offset:
            raise Refused("The transaction state table offset wrong")
        real = half.properties.get(names.REAL_TOPIC, "").encode()
        state = self.open.get(offset)
        if state is None:  # a second answer to the same question: the first may not be on its disks yet
            return core.topics.get(real)
        if what == SYS_COMMIT and not state.stored:
            topic = core.sending.topic_to_write(real)
            queue_id = _number(half.properties.get(names.REAL_QUEUE, "0")) % max(1, topic.queue_count)
            core.sending.put_again(topic, queue_id, half, dict(half.properties), prepared=physical, sys_flag=SYS_COMMIT)
            state.note_stored()
        self._write_op(offset)
        return core.topics.get(real)

    def _write_op(self, offset: int) -> None:
        placed = self._core.sending.put_own(OP_TOPIC, str(offset).encode(), {names.TAGS: OP_TAG})
        self._finish(offset, placed.queue_offset)

    def tick(self, mono_ms: int) -> int:
        """Ask about halves that are open too long, some of them in a turn; when to look again."""
        config = self._core.config
        if self._core.store.following:  # the master asks
            self._checking = None
            return mono_ms + config.transaction_check_interval_ms
        if self._checking is None:
            if mono_ms < self._next_check_ms:
                return self._next_check_ms
            self._next_check_ms = mono_ms + config.transaction_check_interval_ms
            self._checking = self._check_all()
        checking, self._checking = self._checking, None
        for _ in checking:
            self._checking = checking
            return mono_ms + PIECE_MS
        return self._next_check_ms

    def _check_all(self) -> Iterator[None]:
        config, time = self._core.config, self._core.time
        asked = 0
        for looked, (offset, half) in enumerate(list(self.open.items()), 1):
            is_open = self.open.get(offset) is half  # it may have ended since the turn before
            if is_open and time.now_ms - half.born_ms >= (half.immunity_ms or config.transaction_timeout_ms):
                asked += 1
                try:
                    self._check(offset, half)
                except Refused:
                    break  # the disk is full or failed: later
                except (ValueError, struct.error):  # what it says makes no sense: nobody can be asked
                    log.exception("half message left alone offset=%d", half.physical)
                    self.open.pop(offset, None)
                if asked % ASKED_AT_ONCE == 0:
                    yield
            elif looked % LOOKED_AT_ONCE == 0:
                yield
        if self._given_up:
            log.warning(
                "nobody told how transactions ended, their messages are in %s count=%d",
                names.GIVEN_UP_TOPIC.decode(),
                self._given_up,
            )
            self._given_up = 0
        oldest = min(self.open, default=self._queue(HALF_TOPIC).max_offset)
        self._finished = {offset: op for offset, op in self._finished.items() if offset >= oldest}
        op_offset = min(self._finished.values(), default=self._queue(OP_TOPIC).max_offset)
        self._core.offsets.commit(GROUP, HALF_TOPIC.decode(), 0, oldest)
        self._core.offsets.commit(GROUP, OP_TOPIC.decode(), 0, op_offset)

    def _check(self, offset: int, half: Half) -> None:
        data = self._core.store.record_at(half.physical)
        message = None if data is None else record.decode_record(data, 0, decompress=False)
        if data is None or message is None:
            self.open.pop(offset)
            log.warning("half message is gone, retention took it or it is damaged offset=%d", half.physical)
            return
        properties = dict(message.properties)
        if half.stored:
            self._write_op(offset)
            return
        half.asked()
        if half.checks > self._core.config.transaction_check_max:
            topic = self._core.topics.by_name[names.GIVEN_UP_TOPIC]
            self._core.sending.put_again(topic, 0, message, properties, half=True)
            half.note_stored()
            self._write_op(offset)
            self._given_up += 1
            return
        properties[names.CHECK_TIMES] = str(half.checks)
        uniq_key = message.properties.get(names.UNIQUE_KEY, "")
        fields = {
            "commitLogOffset": str(half.physical),
            "msgId": uniq_key,
            "offsetMsgId": message.offset_msg_id,
            "tranStateTableOffset": str(offset),
            "transactionId": uniq_key,
        }
        real = record.encode_record(
            message.properties.get(names.REAL_TOPIC, "").encode(),
            message.body,
            record.restore_properties(properties).encode(),
            queue_id=_number(message.properties.get(names.REAL_QUEUE, "0")),
            queue_offset=offset,
            physical_offset=half.physical,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_ms=message.born_ms,
            born_host=msgid.pack_host(message.born_host),
            store_ms=message.store_ms,
            store_host=msgid.pack_host(message.store_host),
            reconsume_times=message.reconsume_times,
        )
        if not self._ask(message.properties.get(names.PRODUCER_GROUP, ""), real, fields):
            half.not_asked()


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _immunity_ms(properties: dict[str, str]) -> int:
    text = properties.get("CHECK_IMMUNITY_TIME_IN_SECONDS", "")
    return int(text) * 1000 if text.isascii() and text.isdigit() and len(text) < 9 else 0


def _checks(properties: dict[str, str]) -> int:
    """How often it was asked about already: RocketMQ writes that down with the half."""
    return _number(properties.get(names.CHECK_TIMES, "0"))
