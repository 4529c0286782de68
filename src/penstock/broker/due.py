"""Delayed messages that are due: out of the schedule to where they were meant for, of both kinds of topic."""

from __future__ import annotations

import logging

from penstock.broker.core import Core
from penstock.broker.nsq.deferral import Deferral
from penstock.broker.nsq.entry import deferred
from penstock.disk.tables import replace
from penstock.errors import DiskFull, OtherKind, Refused, StoreError
from penstock.schedule.delays import TIMER_PROPERTIES, digits
from penstock.schedule.schedule import Due
from penstock.wire import names, record
from penstock.wire.codes import ResponseCode

log = logging.getLogger("penstock.broker")

BATCH = 200
RETRY_MS = 100
LOOK_AT_LEAST_MS = 60_000
FOLLOWING_MS = 500  # a place that was about to be given away can be kept: then what is due is late by so much
_WHY_CHARS = 200
_LATER = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE)  # when the disk has room, say


def _has_no_topic(refused: Refused) -> bool:
    """Whether the topic is not there now, and may be some day."""
    return isinstance(refused, OtherKind) or refused.remoting in (
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
    )


class DueMessages:
    """See the module."""

    def __init__(self, core: Core, deferral: Deferral) -> None:
        self._core = core
        self._deferral = deferral
        self._homeless: dict[int, bytes] = {}  # due, and their topics, which are neither there nor to be made
        core.topics.changed.append(self._topic_changed)

    def tick(self) -> int:
        """Deliver the delayed messages that are due; when to come again (monotonic)."""
        core = self._core
        mono_ms, now_ms = core.time.mono_ms, core.time.now_ms
        if core.store.following:  # the master delivers, and its log says so
            core.alarm.set(mono_ms + FOLLOWING_MS)
            return core.alarm.due_ms
        if mono_ms < core.alarm.due_ms:
            return core.alarm.due_ms
        dues = core.schedule.pop_due(now_ms, BATCH)
        for due in dues:
            if not self.deliver_or_quarantine(due):
                core.schedule.put_back(due.id)
        next_ms = core.schedule.next_due_ms()
        if dues and len(dues) == BATCH:
            core.alarm.set(mono_ms)  # a backlog: on with it in the next turn
        elif next_ms is None:
            core.alarm.set(mono_ms + LOOK_AT_LEAST_MS)
        else:
            core.alarm.set(mono_ms + max(RETRY_MS if next_ms <= now_ms else 0, next_ms - now_ms))
        return core.alarm.due_ms

    def deliver(self, due: Due) -> bool:
        """A delayed message is due: put it where it was meant for. False or Refused when it cannot be stored now, Refused if its
        topic is not there and cannot be made, ValueError when it makes no sense.
        """
        message = None if due.damaged else record.decode_record(due.record, 0, decompress=False)
        if message is None:
            raise ValueError("its record is damaged")
        about = deferred(message)
        if about is not None:
            return self._deferral.deliver(about, message.body, due.id)
        sending = self._core.sending
        properties = dict(message.properties)  # DELAY, REAL_TOPIC and REAL_QID stay, as RocketMQ 4.9 leaves them
        for gone in TIMER_PROPERTIES:
            properties.pop(gone, None)
        try:
            topic = sending.topic_to_write(properties.get(names.REAL_TOPIC, "").encode())
            queue_id = digits(properties.get(names.REAL_QUEUE, "0")) % max(1, topic.queue_count)
            sending.put_again(topic, queue_id, message, properties, prepared=due.id, half=True)
        except Refused as refused:
            if refused.remoting in _LATER or _has_no_topic(refused):
                raise
            raise ValueError(str(refused)) from refused
        return True

    def move(self, due: Due, due_ms: int) -> int:
        """A delayed message of either kind is due then instead; one record says both. Its new id; Refused when it cannot
        be stored, ValueError when it makes no sense.
        """
        message = None if due.damaged else record.decode_record(due.record, 0, decompress=False)
        if message is None:
            raise ValueError("its record is damaged")
        about = deferred(message)
        if about is not None:
            return self._deferral.move(about, message.body, due.id, due_ms).physical + 1
        sending = self._core.sending
        properties = {
            name: text for name, text in message.properties.items() if name not in (names.DELAY, *TIMER_PROPERTIES)
        } | {names.TIMER_DELIVER_MS: str(due_ms)}
        topic = sending.topic_to_write(properties.get(names.REAL_TOPIC, "").encode())
        queue_id = digits(properties.get(names.REAL_QUEUE, "0")) % max(1, topic.queue_count)
        return sending.put_again(topic, queue_id, message, properties, prepared=due.id).physical + 1

    def deliver_or_quarantine(self, due: Due) -> bool:
        """`deliver`; what cannot be delivered ever, whoever wrote it, is set aside, and the others go on. What has no topic waits
        for one.
        """
        try:
            return self.deliver(due)
        except Exception as error:
            if isinstance(error, DiskFull) or (isinstance(error, Refused) and error.remoting in _LATER):
                return False
            if isinstance(error, Refused) and _has_no_topic(error):
                log.error("delayed message waits for its topic id=%d error=%s", due.id, error)
                message = record.decode_record(due.record, 0, decompress=False)
                assert message is not None
                self._homeless[due.id] = message.properties.get(names.REAL_TOPIC, "").encode()
                return True
            log.exception("delayed message not delivered id=%d", due.id)
            return self.quarantine(due, f"{type(error).__name__}: {error}")

    def _topic_changed(self, topic: bytes) -> None:
        """It may be there now: what was due for it goes out."""
        found = [id_ for id_, name in self._homeless.items() if name == topic]
        if found and self._core.topics.get(topic) is not None:
            for id_ in found:
                self.take_back(id_)
            self._core.alarm.at_latest(self._core.time.mono_ms)

    def take_back(self, id_: int) -> None:
        """One that waits for its topic may be handed out again: that is there, or it is fired, moved or cancelled."""
        if self._homeless.pop(id_, None) is not None:
            self._core.schedule.put_back(id_)

    def quarantine(self, due: Due, why: str) -> bool:
        """Move an entry of the schedule to lost+found and tell of it. False when there is no room for that now."""
        core = self._core
        folder = core.folder / "lost+found"
        path = folder / f"schedule-{due.id}.record"
        try:
            replace(core.files, path, due.record)
        except StoreError as error:
            log.error("delayed message not set aside id=%d error=%s", due.id, error)
            return False
        core.store.upkeep.write_damage(
            {"position": due.id - 1, "end": due.id - 1, "file": f"{folder.name}/{path.name}", "why": why[:_WHY_CHARS]}
        )
        return core.sending.put_over(due.id)
