"""Whether a queue is still the log that a query has read: what tells a broker that was put back to an older state of itself.

Such a broker gives offsets a second time. As long as it ends before the offset that a checkpoint has reached, that is seen; once
it has grown past it, what it stored in between would be passed over without a word. So an end offset carries when the last
message before each position was stored, and before a query goes on from there, that message is looked at again: the log that was
read has one of that moment, and another log one of another moment.
"""

from __future__ import annotations

from penstock.client.reader import LogReader
from penstock.client.routes import Json, MessageQueue
from penstock.client.subscriptions import Subscription
from penstock.spark.read import planning
from penstock.spark.read.options import SourceOptions
from penstock.spark.read.patience import FOUND, asked, fetch
from penstock.spark.read.planning import Offsets, Range
from penstock.wire.record import decode_record

Bounds = dict[MessageQueue, tuple[int, int]]


def note(options: SourceOptions, cluster: LogReader, start: Json, end: Json, known: Bounds) -> Json:
    """The end offset of a micro-batch, with when the last message before each of its positions was stored."""
    at, noted, moments = planning.from_json(start), planning.noted(start), {}
    begun = planning.from_json(end.get(planning.FROM, {}))
    for queue, reached in planning.from_json(end).items():
        moment = noted.get(queue) if at.get(queue) == reached and queue not in begun else None
        if moment is None and queue in known and known[queue][0] < reached <= known[queue][1]:
            moment = stored_ms(options, cluster, queue, reached)
        if moment is not None:
            moments[queue] = moment
    return planning.note(end, moments)


def resume(options: SourceOptions, cluster: LogReader, start: Json, known: Bounds) -> Offsets:
    """Where queues go on that are another log than the one that was read: those that have something new, and those that end
    before what was read of them, which is said already. `DataLoss`.
    """
    at, noted = planning.from_json(start), planning.noted(start)
    resumed: Offsets = {}
    for queue, (oldest, end) in known.items():
        if queue not in noted or not oldest < at.get(queue, 0) or at[queue] == end:
            continue
        if at[queue] < end:
            unread = first_unread(options, cluster, queue, at[queue], noted[queue])
        else:
            unread = _first_since(options, cluster, queue, noted[queue])
        if unread is not None:
            resumed[queue] = min(unread, end)
    return resumed


def keep(options: SourceOptions, cluster: LogReader, ranges: list[Range], end: Json) -> list[Range]:
    """What is left of ranges that were planned a while ago: what another log has stored since is read later. `DataLoss`."""
    noted, kept = planning.noted(end), []
    for r in ranges:
        unread = first_unread(options, cluster, r.queue, r.end, noted[r.queue]) if r.queue in noted else None
        kept.append(r if unread is None else r._replace(end=min(unread, r.end)))
    return [r for r in kept if r.start < r.end]


def stored_ms(options: SourceOptions, cluster: LogReader, queue: MessageQueue, end: int) -> int | None:
    """When the message before this offset was stored; None where it is not there, as behind retention or damage."""
    last, every = Range(queue, end - 1, end), Subscription(queue.topic)
    got = asked(options, cluster, queue, lambda: fetch(cluster, options, last, last.start, every))
    record = decode_record(got.records, decompress=False) if got is not None and got.status == FOUND else None
    return record.store_ms if record is not None and record.queue_offset == last.start else None


def _first_since(options: SourceOptions, cluster: LogReader, queue: MessageQueue, noted_ms: int) -> int | None:
    """Where what another log has stored since begins. What is older both have in common."""
    return asked(options, cluster, queue, lambda: cluster.offset_at(queue, noted_ms + 1))


def first_unread(
    options: SourceOptions, cluster: LogReader, queue: MessageQueue, reached: int, noted_ms: int
) -> int | None:
    """The same, where it is another log. None: it is the one that was read, or that cannot be told. `DataLoss`."""
    if stored_ms(options, cluster, queue, reached) in (None, noted_ms):
        return None
    unread = _first_since(options, cluster, queue, noted_ms)
    if unread is not None:
        planning.lost(
            options,
            f"{planning.name_of(queue)} is not the log that was read up to offset {reached}, as where its broker was put back to"
            f" an older state: what it has stored since begins at offset {unread}",
        )
    return unread
