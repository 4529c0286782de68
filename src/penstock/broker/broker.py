"""A broker without sockets: opens the store and the tables, makes every change that a request asks for, keeps time.

Time is one line through `now_ms`: the wall clock at the start carried on by the steady clock, so that a jump of the
wall clock moves neither a delay nor a store timestamp. It follows a true correction by 1 ms a second.
"""

from __future__ import annotations

import logging
import os
import random
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock import msgid
from penstock.broker import shapes
from penstock.broker.clients import ClientTable, ConsumerGroup, QueueLocks
from penstock.broker.deferred import Deferred, deferred
from penstock.broker.groups import GroupTable, OffsetTable
from penstock.broker.queueing import DONE_TOPIC, Queueing
from penstock.broker.queuetopics import LEVEL_NAMES
from penstock.broker.reserve import Reserve
from penstock.broker.sinks import SINK_TOPIC
from penstock.broker.staging import Staging
from penstock.broker.stats import Stats
from penstock.broker.topics import (
    DEAD_PREFIX,
    HALF_TOPIC,
    LEVEL_DISK,
    LEVEL_OS,
    OP_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TEMPLATE_TOPIC,
    TIMER_PROPERTIES,
    TIMER_TOPIC,
    LogTopic,
    TopicTable,
)
from penstock.broker.transactions import Transactions
from penstock.clock import Clock
from penstock.config import BrokerConfig
from penstock.delivery.waiters import Positions, Waiters
from penstock.disk.files import Files
from penstock.disk.tables import load, replace, save
from penstock.errors import DiskFull, Refused, StoreError
from penstock.log import status
from penstock.log.checkpoint import abort_text, newest
from penstock.log.draft import Draft
from penstock.log.durability import run_now
from penstock.log.options import StoreOptions, delay_levels
from penstock.log.sequences import Sequences
from penstock.log.store import LogStore
from penstock.message import ReceivedMessage
from penstock.schedule import Due, Schedule
from penstock.wire import record
from penstock.wire.codes import SYS_BORN_IPV6, SYS_STORE_IPV6

log = logging.getLogger("penstock.broker")

OFFSETS_EVERY_MS = 5_000
DELAYS_LOOKED_AT_MAX = 10_000
CLIENTS_EVERY_MS = 10_000
DUE_BATCH = 2_000
DUE_RETRY_MS = 100
TABLES_RETRY_MS = 1_000

# RocketMQ's code and words for what an append may answer.
APPEND_REFUSALS = {
    status.DISK_FULL: (14, "service not available now. The disk is full: nothing is stored until there is room."),
    status.NOT_WRITABLE: (14, "service not available now. The disk failed or the store is closed: nothing is stored."),
    status.TOO_LARGE: (13, "the message is illegal, maybe msg body or properties length not matched."),
    status.ILLEGAL: (13, "the message is illegal, maybe the lengths within the batch do not add up."),
}
_MEMORY_BYTES = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True)
class Placed:
    """Where a message was stored."""

    physical: int
    queue_id: int
    queue_offset: int


class TableJob:
    """Writes tables in a worker thread; `run` may block, `finish` is called on the loop."""

    kind = "save"

    def __init__(self, saves: list[Callable[[], None]]) -> None:
        self._saves = saves

    def run(self) -> None:
        for write in self._saves:
            write()

    def finish(self, error: BaseException | None, mono_ms: int) -> None:
        if error is not None and not isinstance(error, OSError):
            raise error  # a full disk keeps the old file, and the next round tries again


class Broker:
    """One broker. `open` before use; after it every method is called from one thread."""

    def __init__(self, config: BrokerConfig, *, files: Files | None = None, clock: Clock | None = None) -> None:
        self.config = config
        self.files = files or Files()
        self.clock = clock or Clock()
        self.folder = Path(config.data)
        self.delays_ms = delay_levels(config.message_delay_level)
        self.started_ms = self.clock.now_ms()
        self._anchor_ms = self.clock.now_ms() - self.clock.monotonic_ms()
        self._slewed_ms = self.clock.monotonic_ms()
        self.mono_ms = 0
        self.now_ms = 0
        self.now_ns = 0
        self.update_time()
        self.store_host = msgid.pack_host(f"{config.advertise or config.host}:{max(0, config.remoting_port)}")
        self.store = LogStore(
            self.folder,
            StoreOptions(
                mapped_file_size_commit_log=config.mapped_file_size_commit_log,
                mapped_file_size_consume_queue=config.mapped_file_size_consume_queue,
                max_hash_slot_num=config.max_hash_slot_num,
                max_index_num=config.max_index_num,
                max_message_size=config.max_message_size,
                file_reserved_time_ms=config.file_reserved_time_hours * 3_600_000,
                delete_when=config.delete_when,
                disk_max_used_ratio=config.disk_used_clean_percent / 100,
                disk_forced_clean_ratio=config.disk_used_force_percent / 100,
                disk_refuse_ratio=config.disk_used_refuse_percent / 100,
                message_delay_level=config.message_delay_level,
                store_host=self.store_host,
            ),
            files=self.files,
            clock=self.clock,
        )
        self.topics = TopicTable(
            self.store.queue,
            level=LEVEL_DISK if config.level == "disk" else LEVEL_OS,
            auto_create=config.auto_create_topic_enable,
            default_queues=config.default_topic_queue_nums,
            rules=_rules(config.topic),
        )
        self.schedule = Schedule(self.folder / "schedule", delivered=self._delivered())
        self.schedule.lookup = self.store.record_at
        self.store.attach(self.schedule)
        self.reserve = Reserve(self.folder, self.files)
        self.transactions = Transactions(self)
        self.queueing = Queueing(self)
        self.topics.taken = self.queueing.holds
        self.staging = Staging(self)
        self.store.attach(self.staging.sinks)
        self.sequences = self.store.sequences = Sequences(self.folder / "config" / "sequences.json", self.files)
        self.store.attach(self.sequences)
        self.groups = GroupTable(auto_create=config.auto_create_subscription_group)
        self.offsets = OffsetTable()
        self.clients = ClientTable()
        self.locks = QueueLocks()
        self.holds = Waiters()  # pulls, by message queue
        self.stored = Positions()  # answers, by position of the log
        self.stats = Stats(self.counters)
        self._tell: Callable[[ConsumerGroup], None] = lambda group: None
        self._draft = Draft()
        self._due_ms = 0  # when the schedule must be looked at next
        self._topics_dirty = False
        self._tables_retry_ms = 0
        self._when_saved: list[Callable[[StoreError | None], None]] = []
        self._offsets_due_ms = self._clients_due_ms = 0
        self._offsets_waiting: list[Callable[[], None]] = []
        self._offsets_end = 0
        self._locked_down = False

    # -- life ----------------------------------------------------------------------------------------------------

    def introduce(
        self, tell: Callable[[ConsumerGroup], None], ask: Callable[[str, bytes, dict[str, str]], bool]
    ) -> None:
        """A front that reaches clients: it tells the members of a group to share anew, and asks producers of a transaction."""
        self._tell = tell
        self.transactions.ask_through(ask)

    def open(self) -> Any:
        """Open the store and the tables, make the system topics. Returns what recovery found. DiskFull when there is no
        room for what a start must write.
        """
        self.reserve.open()
        try:
            return self._open()
        except DiskFull as error:
            raise DiskFull(
                f"the disk of {self.folder} is full, and a start has to write some small files: free at least 8 MiB there and "
                f"start again ({error})"
            ) from error

    def _open(self) -> Any:
        recovery = self.store.open()
        table = partial(shapes.open_table, self.files, self.folder)
        self.topics.load(table("topics.json", shapes.topics, "topics are made of the queues that hold messages"))
        self.groups.load(table("subscriptionGroup.json", shapes.groups, "groups are made again when they are used"))
        again = "every group begins where it says (ConsumeFromWhere); `penstock group reset` sets another place"
        self.offsets.load(table("consumerOffset.json", shapes.offsets, again))
        table("delayOffset.json", shapes.delays, "it is written again")
        self._system_topics()
        self.topics.take_up(self.store.queues)
        self._clamp_offsets()
        self.topics.changed.append(self._topics_changed)
        self._topics_dirty = True
        try:
            self.save_tables()
        except DiskFull as error:
            log.error("tables not written, tried again every second error=%s", error)
        self._offsets_due_ms = self.mono_ms + OFFSETS_EVERY_MS
        self.transactions.load()
        self.staging.open()  # nothing may come to stand between a publish that was cut short and its missing rows
        self.queueing.pool.after_cut = recovery.power_cut
        self.queueing.open(clean=recovery.clean)
        return recovery

    def close(self, clean: bool = True) -> None:
        """Write everything out and close the files."""
        self.staging.close()
        self.queueing.close(clean)
        if clean:
            self.flush_log()
            self.offsets.dirty = True
            self.write_tables()
            for write in self._offset_saves() if self.store.healthy else ():
                write()
        self.store.close(clean)

    def flush_log(self) -> None:
        """Flush the log here and now: the broker stops."""
        store = self.store
        if store.is_open and store.healthy and store.flushed_position < store.end_position:
            run_now([store.durability.start(self.mono_ms)], self.mono_ms)
            if store.durability.error is not None:
                store.fail(store.durability.error)

    def _topics_changed(self, name: bytes) -> None:
        self._topics_dirty = True

    def _system_topics(self) -> None:
        config, make = self.config, self.topics.create
        if config.auto_create_topic_enable:
            make(TEMPLATE_TOPIC, config.default_topic_queue_nums, config.default_topic_queue_nums, 7, announce=False)
        wanted: list[tuple[bytes, int, int]] = [
            (b"SELF_TEST_TOPIC", 1, 6),
            (b"BenchmarkTest", 1024, 6),
            (config.cluster_name.encode(), 16, 7),
            (config.broker_name.encode(), 1, 7),
            (b"OFFSET_MOVED_EVENT", 1, 6),
            (SCHEDULE_TOPIC, len(self.delays_ms), 6),
            (TIMER_TOPIC, 1, 6),
            (b"RMQ_SYS_TRACE_TOPIC", 1, 6),
            (config.cluster_name.encode() + b"_REPLY_TOPIC", 1, 6),
            (HALF_TOPIC, 1, 6),
            (OP_TOPIC, 1, 6),
            (b"TRANS_CHECK_MAX_TIME_TOPIC", 1, 6),
            (DONE_TOPIC, 1, 6),
        ]
        for name, queues, perm in wanted:
            if self.topics.get(name) is None:
                make(name, queues, queues, perm, announce=False)
        if self.topics.get(SINK_TOPIC) is None:
            make(SINK_TOPIC, 1, 1, 4, announce=False, level=LEVEL_DISK)

    def is_system_topic(self, name: str) -> bool:
        """Hidden in lists of topics, not to be deleted."""
        config = self.config
        return name.lower().startswith("rmq_sys_") or name in (
            TEMPLATE_TOPIC.decode(), "SELF_TEST_TOPIC", "BenchmarkTest", "OFFSET_MOVED_EVENT", SCHEDULE_TOPIC.decode(),
            "TRANS_CHECK_MAX_TIME_TOPIC", config.cluster_name, config.broker_name,
            f"{config.cluster_name}_REPLY_TOPIC",
        )  # fmt: skip

    def _clamp_offsets(self) -> None:
        """Rule R13: an offset above the log's end becomes the end."""
        for (topic, _group), queues in self.offsets.table.items():
            config = self.topics.get(topic.encode())
            for queue_id, offset in queues.items():
                if config is not None and queue_id < config.queue_count:
                    queues[queue_id] = min(offset, self.store.queue(topic.encode(), queue_id).max_offset)

    # -- time ----------------------------------------------------------------------------------------------------

    def update_time(self) -> None:
        """Read the clock: once per turn of the loop."""
        mono_ns = self.clock.monotonic_ns()
        self.mono_ms = mono_ms = mono_ns // 1_000_000
        if mono_ms - self._slewed_ms >= 1000:
            wrong = self.clock.now_ms() - self.mono_ms - self._anchor_ms
            self._anchor_ms += max(-1, min(1, wrong))
            self._slewed_ms = self.mono_ms
        self.now_ms = mono_ms + self._anchor_ms
        self.now_ns = mono_ns + self._anchor_ms * 1_000_000

    def tick(self) -> int:
        """Do what is due; when to be asked again (monotonic ms)."""
        mono_ms = self.mono_ms
        due = [
            self.store.tick(self.now_ms, mono_ms),
            self.stats.tick(mono_ms),
            self.transactions.tick(mono_ms),
            self.queueing.tick(),
            self.staging.tick(mono_ms),
            self._deliver_due(),
        ]
        if mono_ms >= self._clients_due_ms:
            self._clients_due_ms = mono_ms + CLIENTS_EVERY_MS
            for group in self.clients.expire(mono_ms):
                self._tell(group)
        return min(due)

    def _deliver_due(self) -> int:
        """Deliver the delayed messages that are due; when to come again (monotonic)."""
        if self.mono_ms >= self._due_ms:
            dues = self.schedule.pop_due(self.now_ms, DUE_BATCH)
            for due in dues:
                if not self.deliver_or_set_aside(due):
                    self.schedule.put_back(due.id)
            next_ms = self.schedule.next_due_ms()
            if dues and len(dues) == DUE_BATCH:
                self._due_ms = self.mono_ms  # a backlog: on with it in the next turn
            elif next_ms is None:
                self._due_ms = self.mono_ms + 60_000
            else:
                self._due_ms = self.mono_ms + max(DUE_RETRY_MS if next_ms <= self.now_ms else 0, next_ms - self.now_ms)
        return self._due_ms

    def next_due_ms(self) -> int:
        """The earliest moment that the last turn may have added."""
        due_ms = min(self._due_ms, self.queueing.next_due_ms())  # asked in every turn: no list is made of it
        stored_ms = self.store.durability.due_ms()
        if stored_ms is not None and stored_ms < due_ms:
            due_ms = stored_ms
        held_ms = self.holds.next_ms() if self.holds.count else None
        return due_ms if held_ms is None else min(due_ms, held_ms)

    # -- tables --------------------------------------------------------------------------------------------------

    def save_tables(self) -> None:
        """`write_tables` for what nobody asked for by name, at the end of each turn; after a failure once a second."""
        waiting, self._when_saved = self._when_saved, []
        if (self._topics_dirty or self.groups.dirty) and (waiting or self.mono_ms >= self._tables_retry_ms):
            try:
                self.write_tables()
            except StoreError as error:
                self._tables_retry_ms = self.mono_ms + TABLES_RETRY_MS
                for call in waiting:
                    call(error)
                raise
        for call in waiting:
            call(None)

    def when_saved(self, call: Callable[[StoreError | None], None]) -> None:
        """At the end of this turn, when the tables are on disk: `call(None)`; or `call(error)`, and what was changed is to
        be taken back. All changes of a turn are one write.
        """
        self._when_saved.append(call)

    def write_tables(self) -> None:
        """Topics and groups that changed go to disk, before anybody is told that they did. StoreError."""
        config = self.folder / "config"
        if self._topics_dirty:
            save(self.files, config / "topics.json", self.topics.as_file())
            self._topics_dirty = False
        if self.groups.dirty:
            save(self.files, config / "subscriptionGroup.json", self.groups.as_table())
            self.groups.dirty = False

    def take_jobs(self) -> list[Any]:
        """Blocking work for the worker threads: the store's, and offsets every 5 s."""
        jobs: list[Any] = [*self.store.take_jobs(self.mono_ms), *self.queueing.take_jobs()]
        jobs += self.staging.take_jobs(self.mono_ms)
        jobs += self.take_offset_jobs()
        if kept := self.reserve.take_job(self.mono_ms):
            jobs.append(kept)
        return jobs

    def take_offset_jobs(self) -> list[Any]:
        """Offsets every 5 s, but not before all is flushed that the log held when they were looked at.

        A group that gave a message back has committed an offset behind it: the copy must be on the disk first.
        """
        if self.mono_ms >= self._offsets_due_ms:
            self._offsets_due_ms = self.mono_ms + OFFSETS_EVERY_MS
            if not self._offsets_waiting:
                self._offsets_waiting, self._offsets_end = self._offset_saves(), self.store.end_position
        if not self._offsets_waiting or self.store.flushed_position < self._offsets_end:
            return []
        saves, self._offsets_waiting = self._offsets_waiting, []
        return [TableJob(saves)]

    def _offset_saves(self) -> list[Callable[[], None]]:
        if not self.offsets.dirty:
            return []
        self.offsets.dirty = False
        config, files = self.folder / "config", self.files
        offsets, delays = self.offsets.as_table(), self.delay_offsets()
        return [
            lambda: save(files, config / "consumerOffset.json", offsets),
            lambda: save(files, config / "delayOffset.json", delays),
        ]

    def delay_offsets(self) -> dict[str, Any]:
        """delayOffset.json: up to where each level's queue is delivered, so that a RocketMQ broker could go on there."""
        queues = self.topics.by_name[SCHEDULE_TOPIC].queues
        found = {queue_id: queue.max_offset for queue_id, queue in enumerate(queues)}
        for due in self.schedule.entries() if len(self.schedule) <= DELAYS_LOOKED_AT_MAX else ():
            message = record.decode_record(due.record, 0, decompress=False)
            if message is not None and message.topic == SCHEDULE_TOPIC.decode():
                found[message.queue_id] = min(found.get(message.queue_id, 0), message.queue_offset)
        return {"offsetTable": {str(queue_id + 1): offset for queue_id, offset in found.items()}}

    def _delivered(self) -> dict[int, int]:
        """What a RocketMQ broker that had this folder has delivered, by level; nothing when ours was the last one."""
        path = self.folder / "checkpoint"
        mark, counts = newest(path.read_bytes(), abort_text(self.folder)) if path.is_file() else (None, True)
        if mark is not None and counts:
            return {}
        delays = load(self.files, self.folder / "config" / "delayOffset.json", shapes.delays) or {}
        table = delays.get("offsetTable") or {}
        return {int(k): v for k, v in table.items() if str(k).isdecimal() and isinstance(v, int)}

    # -- topics and writing --------------------------------------------------------------------------------------

    def append(self, draft: Draft) -> None:
        """Append to the log. Refused when it cannot be."""
        outcome = self.store.append(draft)
        if outcome:
            code, text = APPEND_REFUSALS[outcome]
            raise Refused(text, remoting=code, nsq="E_PUB_FAILED", http=500)

    def young(self, queue: Any) -> bool:
        """Whether a queue still begins at its first message, and that is recent enough to lie in memory."""
        if queue.min_offset > 0:
            return False
        if queue.max_offset == 0:
            return True
        return bool(self.store.end_position - queue.entry(0)[0] < _MEMORY_BYTES * 2 // 5)

    def topic_to_write(self, name: bytes, template: bytes = TEMPLATE_TOPIC, queues: int = 4) -> LogTopic:
        """The topic a message is for, made from the template when it is new. Refused 16 or 17."""
        topic = self.topics.get(name)
        if topic is None:
            topic = self.topics.create_from_template(name, template, queues, self.now_ms)
            if topic is None:
                raise Refused(
                    f"topic[{name.decode()}] not exist, apply first please!", remoting=17, nsq="E_BAD_TOPIC", http=404
                )
        return topic

    def put(
        self,
        topic: LogTopic,
        queue_id: int,
        body: bytes,
        properties: dict[str, str],
        *,
        born_host: bytes,
        born_ms: int,
        flag: int = 0,
        sys_flag: int = 0,
        reconsume_times: int = 0,
        prepared: int = 0,
        half: bool = False,
    ) -> Placed:
        """Store one message, by way of the schedule when it asks for a delay. Refused when it cannot be stored.

        Half messages are not delayed: what they become on commit is. Nor are those whose delay is over.
        """
        due_ms = None if half else self.due_ms(properties)
        queue = topic.queues[queue_id]
        tags_code = 0
        if due_ms is not None:
            properties = {**properties, "REAL_TOPIC": topic.name.decode(), "REAL_QID": str(queue_id)}
            if "DELAY" in properties:
                level = self.delay_level(properties["DELAY"])
                queue = self.topics.by_name[SCHEDULE_TOPIC].queues[level - 1]
            else:
                queue = self.topics.by_name[TIMER_TOPIC].queues[0]
            tags_code = due_ms
        draft = self._draft
        draft.set_body(body)
        draft.set_properties(record.format_properties(properties).encode())
        draft.set_born(born_host)
        draft.queue = queue
        draft.flag, draft.sys_flag, draft.born_ms = flag, sys_flag, born_ms
        draft.reconsume_times, draft.prepared = reconsume_times, prepared
        draft.indexed = True
        if due_ms is not None:
            draft.tags_code = tags_code
            self._due_ms = min(self._due_ms, self.mono_ms + due_ms - self.now_ms)
        self.append(draft)
        topic.put_count += 1
        topic.put_bytes += draft.size
        return Placed(draft.physical, queue_id, draft.queue_offset)

    def put_batch(self, topic: LogTopic, queue_id: int, bodies: list[bytes]) -> None:
        """Store messages without properties, all or none. Refused when they cannot be stored."""
        if len(bodies) == 1:
            self.put(topic, queue_id, bodies[0], {}, born_host=self.store_host, born_ms=self.now_ms)
            return
        draft = self._draft
        draft.set_born(self.store_host)
        draft.queue = topic.queues[queue_id]
        draft.flag = draft.sys_flag = draft.reconsume_times = draft.prepared = 0
        draft.born_ms = self.now_ms
        draft.indexed = False
        batch = record.encode_batch([record.BatchItem(body) for body in bodies])
        answer = self.store.append_batch_bytes(draft, batch)
        if answer < 0:
            code, text = APPEND_REFUSALS[-answer]
            raise Refused(text, remoting=code, nsq="E_MPUB_FAILED", http=500)
        topic.put_count += len(bodies)
        topic.put_bytes += draft.size

    def put_again(
        self,
        topic: LogTopic,
        queue_id: int,
        message: ReceivedMessage,
        properties: dict[str, str],
        *,
        prepared: int = 0,
        given_back: int = 0,
        sys_flag: int = 0,
        half: bool = False,
    ) -> Placed:
        """Store a message that was stored before in another place, with other properties; body and birth stay."""
        return self.put(
            topic,
            queue_id,
            message.body,
            properties,
            born_host=msgid.pack_host(message.born_host),
            born_ms=message.born_ms,
            flag=message.flag,
            sys_flag=message.sys_flag & ~(SYS_BORN_IPV6 | SYS_STORE_IPV6) | sys_flag,  # the record's own hosts say so
            reconsume_times=message.reconsume_times + given_back,
            prepared=prepared,
            half=half,
        )

    def delay_level(self, text: str) -> int:
        """The level a DELAY property names, the highest when it is beyond; 0: none. Refused (13) when no number."""
        try:
            return max(0, min(len(self.delays_ms), _digits(text)))
        except ValueError:
            raise Refused("DELAY is not a number", remoting=13) from None

    def due_ms(self, properties: dict[str, str]) -> int | None:
        """When a message with these properties is due, or None: at once. Refused (13) when a number is none."""
        if "DELAY" in properties:
            level = self.delay_level(properties["DELAY"])
            return self.now_ms + self.delays_ms[level - 1] if level else None
        for name in TIMER_PROPERTIES:
            if name in properties:
                try:
                    value = _digits(properties[name])
                except ValueError:
                    raise Refused(f"{name} is not a number", remoting=13) from None
                due = (
                    value if name == "TIMER_DELIVER_MS" else self.now_ms + value * (1000 if name.endswith("SEC") else 1)
                )
                return due if due > self.now_ms else None
        return None

    def delayed_entry(self, due: Due) -> Deferred | None:
        """What an entry of the schedule says that belongs to the queue side; None for any other, or one without sense."""
        message = None if due.damaged else record.decode_record(due.record, 0, decompress=False)
        try:
            return None if message is None else deferred(message)
        except ValueError:
            return None

    def deliver(self, due: Due) -> bool:
        """A delayed message is due: put it where it was meant for. False when it cannot be stored now."""
        message = None if due.damaged else record.decode_record(due.record, 0, decompress=False)
        if message is None:
            raise ValueError("its record is damaged")
        about = deferred(message)
        if about is not None:
            return self.queueing.deliver(about, message.body, due.id)
        properties = dict(message.properties)  # DELAY, REAL_TOPIC and REAL_QID stay, as RocketMQ 4.9 leaves them
        for gone in TIMER_PROPERTIES:
            properties.pop(gone, None)
        try:
            topic = self.topic_to_write(properties.get("REAL_TOPIC", "").encode())
            queue_id = _digits(properties.get("REAL_QID", "0")) % max(1, topic.queue_count)
            self.put_again(topic, queue_id, message, properties, prepared=due.id, half=True)
        except Refused as refused:
            if refused.remoting in (2, 14):
                return False  # try again when the disk has room
            if refused.remoting not in (16, 17):  # there may be such a topic again at the next start
                raise ValueError(str(refused)) from refused
        return True

    def deliver_or_set_aside(self, due: Due) -> bool:
        """`deliver`; what cannot be delivered ever, whoever wrote it, is set aside, and the others go on."""
        try:
            return self.deliver(due)
        except Exception as error:
            log.exception("delayed message not delivered id=%d", due.id)
            return self.set_aside(due, f"{type(error).__name__}: {error}")

    def set_aside(self, due: Due, why: str) -> bool:
        """Move an entry of the schedule to lost+found and tell of it. False when there is no room for that now."""
        folder = self.folder / "lost+found"
        path = folder / f"schedule-{due.id}.record"
        try:
            replace(self.files, path, due.record)
        except StoreError as error:
            log.error("delayed message not set aside id=%d error=%s", due.id, error)
            return False
        self.store.upkeep.write_damage(
            {"position": due.id - 1, "end": due.id - 1, "file": f"{folder.name}/{path.name}", "why": why[:200]}
        )
        return self.queueing.over(due.id)

    # -- retry and dead letters ----------------------------------------------------------------------------------

    def send_back(
        self,
        physical: int,
        group_name: str,
        level: int,
        retry_max: int | None,
        origin_id: str,
        delay_ms: int | None = None,
    ) -> Placed | None:
        """A consumer gives a message back (rocketmq.md §13): to the retry topic with a delay, or to the dead letters.

        `delay_ms`, which only our client sends, is more exact than the level.

        None when the group keeps no retry queue. Refused when the message is gone or cannot be stored.
        """
        group = self.groups.find(group_name, self.now_ms)
        if group.retry_queues <= 0:
            return None
        data = self.store.record_at(physical)
        message = None if data is None else record.decode_record(data, 0, decompress=False)
        if message is None:
            raise Refused(f"look message by offset failed, {physical}")
        properties = dict(message.properties)
        properties.setdefault("RETRY_TOPIC", message.topic)
        properties["WAIT"] = "false"
        properties.pop("DELAY", None)
        for gone in TIMER_PROPERTIES:
            properties.pop(gone, None)
        limit = group.retry_max if retry_max is None or retry_max < 0 else retry_max
        if message.reconsume_times >= limit or level < 0:
            topic = self.topic_to_write(DEAD_PREFIX + group_name.encode())
            queue_id = 0
        else:
            name = RETRY_PREFIX + group_name.encode()
            topic = self.topics.get(name) or self.topics.create(
                name, group.retry_queues, group.retry_queues, now_ms=self.now_ms
            )
            queue_id = random.randrange(topic.queue_count)
            if delay_ms is not None:
                properties["TIMER_DELAY_MS"] = str(delay_ms)
            else:
                properties["DELAY"] = str(level or 3 + message.reconsume_times)
        properties.setdefault("ORIGIN_MESSAGE_ID", origin_id or message.offset_msg_id)
        group.sent_back += 1
        return self.put_again(topic, queue_id, message, properties, given_back=1)

    def retry_topic_of(self, group_name: str) -> LogTopic:
        """`%RETRY%group`, made if need be."""
        name = RETRY_PREFIX + group_name.encode()
        group = self.groups.find(group_name, self.now_ms)
        queues = max(1, group.retry_queues)
        return self.topics.get(name) or self.topics.create(name, queues, queues, now_ms=self.now_ms)

    # -- figures -------------------------------------------------------------------------------------------------

    def counters(self) -> dict[tuple[str, str], int]:
        """Every counter that rates are made of."""
        found: dict[tuple[str, str], int] = {}
        total_put = total_got = 0
        for topic in self.topics.by_name.values():
            if topic.put_count:
                name = topic.name.decode()
                found["TOPIC_PUT_NUMS", name] = topic.put_count
                found["TOPIC_PUT_SIZE", name] = topic.put_bytes
                total_put += topic.put_count
        for group in self.groups.by_name.values():
            for topic_name, (count, size) in group.get_counts.items():
                key = f"{topic_name.decode()}@{group.name}"
                found["GROUP_GET_NUMS", key] = count
                found["GROUP_GET_SIZE", key] = size
                total_got += count
            if group.sent_back:
                found["SNDBCK_PUT_NUMS", f"{RETRY_PREFIX.decode()}{group.name}@{group.name}"] = group.sent_back
        found["BROKER_PUT_NUMS", self.config.cluster_name] = total_put
        found["BROKER_GET_NUMS", self.config.cluster_name] = total_got
        return found

    def wants_flush(self, topic: LogTopic) -> bool:
        """Whether answers to this topic's senders wait for a flush."""
        return bool(topic.level == LEVEL_DISK)


def _digits(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > 18:
        raise ValueError(text)
    return int(text)


def _rules(rules: Iterable[Any]) -> list[tuple[re.Pattern[str], dict[str, Any]]]:
    """`[[topic]]` tables of the configuration: shell patterns to settings."""
    import fnmatch

    from penstock.errors import ConfigError

    found = []
    for rule in rules:
        unknown = set(rule) - {"name", "kind", "level", "queues", "max_attempts"}
        if unknown or "name" not in rule:
            raise ConfigError(
                f"[[topic]] has {sorted(unknown) or 'no name'}", "It takes name, kind, level, queues and max_attempts."
            )
        limit = rule.get("max_attempts", 0)
        if type(limit) is not int or not 0 <= limit <= 65_535:
            raise ConfigError(f"[[topic]] {rule['name']}: max_attempts is a number from 0 to 65535")
        if rule.get("level", "os") not in LEVEL_NAMES or rule.get("kind", "log") not in ("log", "queue"):
            raise ConfigError(f"[[topic]] {rule['name']}: level is os, disk or memory, kind is queue or log")
        if rule.get("level") == "memory" and rule.get("kind") == "log":
            raise ConfigError(f"[[topic]] {rule['name']}: a log topic's level is os or disk")
        found.append((re.compile(fnmatch.translate(rule["name"])), dict(rule)))
    return found
