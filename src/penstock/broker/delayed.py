"""Looking into the schedule: which messages wait for their time, of both kinds of topic; cancelling and firing them.

Everything goes by pages: a call does a few ms of work at most and says where to go on, so that a long schedule is never
in the way of those who publish. Messages that topics of level `memory` defer are not in the schedule.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.nsq.entry import TOPIC_PROPERTY, Deferred, deferred_of
from penstock.broker.topics import RETRY_PREFIX
from penstock.errors import Refused
from penstock.message import ReceivedMessage
from penstock.schedule.schedule import Due
from penstock.wire import names, record
from penstock.wire.codes import ResponseCode

WORK_MAX = 1_000  # of one page: an entry counted is 1, one that is decoded 5 and its size in KiB
BODY_SHOWN = 256
_OF_QUEUE = TOPIC_PROPERTY.encode()
DUE_MAX_MS = 10**15  # of a date that a calendar knows

Key = tuple[int, int]  # due ms, id
Row = dict[str, object]  # a message as people see it, for JSON


class Wanted(msgspec.Struct, frozen=True):
    """Which ones: of a topic, for a channel (or group), with a text in the body, with a key or message id. Empty: any."""

    topic: str = ""
    channel: str = ""
    text: str = ""
    key: str = ""

    @property
    def anything(self) -> bool:
        """No condition at all."""
        return self == Wanted()


class Delayed:
    """The delayed messages of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def page(self, wanted: Wanted, after: Key | None, limit: int) -> tuple[list[Row], Key | None]:
        """Up to `limit` of them by due time, and where to go on, or None."""
        rows: list[Row] = []
        work = 0
        for due in self._from(after):
            row = self.row(due, wanted)
            if row is not None:
                rows.append(row)
            work += 5 + (len(due.record) >> 10)
            if work >= WORK_MAX or len(rows) >= limit:
                return rows, (due.due_ms, due.id)
        return rows, None

    def counts(self, wanted: Wanted, edges: Sequence[int], after: Key | None) -> tuple[list[int], Key | None]:
        """How many are due before the first of these moments, before the second …, later; and where to go on."""
        counts = [0] * (len(edges) + 1)
        work = 0
        for due in self._from(after):
            # Nobody may be owed a queue topic's any more; a log topic's is always owed, and need not be decoded for that.
            counts_anyhow = wanted.anything and not due.damaged and _OF_QUEUE not in due.record
            if counts_anyhow or self.row(due, wanted) is not None:
                counts[bisect_right(edges, due.due_ms)] += 1
            work += 1 if counts_anyhow else 5 + (len(due.record) >> 10)
            if work >= WORK_MAX:
                return counts, (due.due_ms, due.id)
        return counts, None

    def _from(self, after: Key | None) -> Iterator[Due]:
        due_ms, id_ = after or (0, -1)
        return iter(self.broker.schedule.entries(due_ms, begin_id=id_ + 1))

    def cancel(self, id_: int) -> Row:
        """Take a message out: it will not be delivered. Refused when it is not there, or too late."""
        due, row = self._take(id_)
        if not self.broker.sending.put_over(id_):
            self.broker.schedule.put_back(id_)
            raise Refused(
                "the log takes nothing now: it is not cancelled", remoting=ResponseCode.SERVICE_NOT_AVAILABLE, http=503
            )
        about = deferred_of(due)
        if about is not None:
            self.broker.queueing.deferral.stop_counting(about, id_)
        return row

    def fire(self, id_: int) -> Row:
        """Deliver a message now. Refused when it is not there, on its way already, or cannot be delivered: then it stays where it
        is, and waits.
        """
        due, row = self._take(id_)
        try:
            delivered = self.broker.due.deliver(due)
        except ValueError as error:
            self.broker.due.quarantine(due, f"ValueError: {error}")
            raise Refused(f"delayed message {id_} makes no sense: {error}. It was set aside", http=500) from error
        except Refused:
            self.broker.schedule.put_back(id_)
            raise
        if not delivered:
            self.broker.schedule.put_back(id_)
            raise Refused(
                "the log takes nothing now: it is not delivered", remoting=ResponseCode.SERVICE_NOT_AVAILABLE, http=503
            )
        return row

    def move(self, id_: int, due_ms: int) -> Row:
        """Deliver a message at another time (at once, if that has passed), under another id. Refused when it is not there, on
        its way already, or cannot be stored: then it stays where it is.
        """
        now_ms = self.broker.now_ms
        due, row = self._take(id_)
        due_ms = max(now_ms + 1, min(due_ms, DUE_MAX_MS))
        try:
            moved = self.broker.due.move(due, due_ms)
        except ValueError as error:
            self.broker.schedule.put_back(id_)
            raise Refused(f"delayed message {id_} makes no sense: {error}", http=500) from error
        except Refused:
            self.broker.schedule.put_back(id_)
            raise
        return {**row, "due": due_ms, "id": moved}

    def _take(self, id_: int) -> tuple[Due, Row]:
        schedule = self.broker.schedule
        due = schedule.get(id_)
        row = None if due is None else self.row(due, Wanted())
        if row is not None:
            self.broker.queueing.deferral.take_back(str(row["topic"]).encode(), id_)
            self.broker.due.take_back(id_)
        if due is None or row is None or schedule.fire_now(id_) is None:
            raise Refused(f"no delayed message {id_}", remoting=ResponseCode.QUERY_NOT_FOUND, http=404)
        return due, row

    def row(self, due: Due, wanted: Wanted) -> Row | None:
        """An entry as people see it; None when it is not wanted, or nobody is owed it any more."""
        message = record.decode_record(due.record, 0)
        if message is None:
            return None
        about = deferred_of(due)
        found = _of_log(message) if about is None else self._of_queue(about, due.id)
        if found is None:
            return None
        row, channels = found
        if (wanted.topic and row["topic"] != wanted.topic) or (wanted.channel and wanted.channel not in channels):
            return None
        body = message.body
        if wanted.text and wanted.text.encode() not in body:
            return None
        if wanted.key and wanted.key not in (row["msgId"], *message.keys):
            return None
        return {
            "id": due.id,
            "due": due.due_ms,
            **row,
            "stored": message.store_ms,
            "keys": message.keys,
            "size": len(body),
            "body": body[:BODY_SHOWN].decode("utf-8", "backslashreplace"),
        }

    def _of_queue(self, about: Deferred, id_: int) -> tuple[Row, list[str]] | None:
        deferral = self.broker.queueing.deferral
        waiting = None if deferral.is_copied(id_) else deferral.waiting_channels(about, id_)
        if waiting is None:
            return None
        topic, names = waiting
        row = {
            "kind": topic.kind,
            "topic": topic.name.decode(),
            "channel": about.channel.decode(),
            "attempts": about.attempts,
            "msgId": f"{about.id:016x}",
        }
        return row, [name.decode() for name in names]


def _of_log(message: ReceivedMessage) -> tuple[Row, list[str]]:
    """A delayed message of a log topic; one that a group gave back belongs to the group."""
    topic, group = message.properties.get(names.REAL_TOPIC, ""), ""
    if topic.startswith(RETRY_PREFIX.decode()):
        topic, group = message.properties.get(names.RETRY_TOPIC, topic), topic.removeprefix(RETRY_PREFIX.decode())
    row = {
        "kind": "log",
        "topic": topic,
        "channel": group,
        "attempts": message.reconsume_times,
        "msgId": message.msg_id,
    }
    return row, [group] if group else []
