"""Which offsets to read, without Spark and without sockets: the cluster is a parameter.

Positions are a dict from message queue to queue offset. As JSON (Spark's checkpoints) they are
`{"topic": {"broker": {"0": 23}}}` with sorted keys, because Spark compares offsets as text. Everything a
micro-batch reads follows from its two offsets alone, so that a batch planned again is the same batch.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable
from heapq import heapify, heapreplace
from itertools import pairwise
from typing import NamedTuple, Protocol

from penstock.client.routes import Json, MessageQueue
from penstock.errors import ClientError, ConfigError, PenstockError
from penstock.spark.read.options import EARLIEST, LATEST, Positions, SourceOptions, moment_ms

log = logging.getLogger(__name__)

Offsets = dict[MessageQueue, int]

# In an end offset: where queues begin that the start offset does not name, that go on behind a gap of lost offsets, or that were
# made anew; always there in that of a query's first micro-batch, whose start offset names none. No topic can have this name.
# Under the same name in there: when the last message before each position was stored (`samelog`). A version that does not know of
# it passes over it there, and writes the next offset without.
FROM = "+from"


# More would not fit into the driver's memory, long before Spark could run them.
PARTITIONS_MAX = 1_000_000


class DataLoss(PenstockError):
    """Offsets that were to be read are gone."""


class BadOffset(PenstockError):
    """A checkpoint gave an offset that is none of this source."""

    hint = (
        'it is a line of a file in the checkpoint\'s folder offsets, and looks like {"orders": {"broker-a": {"0": 23}}}. '
        "Put back the file, or the whole checkpoint; or begin with a new checkpoint and startingOffsets"
    )


class ClusterView(Protocol):
    """What planning asks of a cluster; `LogReader` is one."""

    def topics(self) -> list[str]: ...
    def queues(self, topic: str) -> list[MessageQueue]: ...
    def offsets(self, queue: MessageQueue, *, durable: bool = True) -> tuple[int, int]: ...
    def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int: ...
    def committed(self, group: str, queue: MessageQueue) -> int | None: ...


class Range(NamedTuple):
    """Queue offsets [start, end) of one message queue."""

    queue: MessageQueue
    start: int
    end: int


# -- JSON


def to_json(offsets: Offsets) -> Json:
    """Positions as nested dicts in sorted order: the same positions give the same text."""
    nested: Json = {}
    for queue in sorted(offsets):
        nested.setdefault(queue.topic, {}).setdefault(queue.broker, {})[str(queue.queue_id)] = offsets[queue]
    return {topic: {b: _by_number(queues) for b, queues in brokers.items()} for topic, brokers in nested.items()}


def _by_number(queues: dict[str, int]) -> dict[str, int]:
    return {name: queues[name] for name in sorted(queues, key=int)}


def from_json(nested: Json) -> Offsets:
    """The reverse of `to_json`; `FROM` is left out."""
    return {
        MessageQueue(topic, broker, int(queue_id)): int(offset)
        for topic, brokers in nested.items()
        if topic != FROM
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def check_offset(offset: object) -> None:
    """`BadOffset` for what `to_json` does not make: the file in the checkpoint was edited or damaged, or is another source's."""
    if not _is_offset(offset):
        text = json.dumps(offset)
        raise BadOffset(
            f"the checkpoint holds an offset that is none of this source: {text[:200]}{'…' if len(text) > 200 else ''}"
        )


def _is_offset(value: object, least: int = 0, inner: int = 2) -> bool:
    """Whether it is positions; `inner`: so many levels of `FROM` may be in there, the last one being moments of any clock."""
    if not isinstance(value, dict) or (FROM in value and not inner):
        return False
    if FROM in value and not _is_offset(value[FROM], 0 if inner > 1 else -(1 << 63), inner - 1):
        return False
    return all(
        isinstance(brokers, dict)
        and all(
            isinstance(queues, dict)
            and all(
                re.fullmatch(r"\d{1,9}", name, re.ASCII) and type(at) is int and least <= at < 1 << 63
                for name, at in queues.items()
            )
            for queues in brokers.values()
        )
        for topic, brokers in value.items()
        if topic != FROM
    )


def noted(offset: Json) -> Offsets:
    """When the last message before each position of an offset was stored, as far as that is in it."""
    return from_json(offset.get(FROM, {}).get(FROM, {}))


def note(offset: Json, moments: Offsets) -> Json:
    """The offset with these moments in it."""
    return {**offset, FROM: {**offset.get(FROM, {}), FROM: to_json(moments)}} if moments else offset


# -- queues


def find_queues(cluster: ClusterView, options: SourceOptions) -> list[MessageQueue]:
    """The message queues the options name, sorted. NoRoute for a topic named that is not there."""
    if options.subscribe_pattern:
        pattern = re.compile(options.subscribe_pattern)
        topics: Iterable[str] = [topic for topic in cluster.topics() if pattern.fullmatch(topic)]
    elif options.assign is not None:
        topics = options.assign
    else:
        topics = options.subscribe or tuple(name.strip() for name in (options.path or "").split(",") if name.strip())
    queues = sorted({queue for topic in topics for queue in cluster.queues(topic)})
    return queues if options.assign is None else _assigned(options.assign, queues)


def _assigned(assign: Positions, queues: list[MessageQueue]) -> list[MessageQueue]:
    chosen: set[MessageQueue] = set()
    for topic, named in assign.items():
        if named == {}:
            raise _no_ids(topic)
        for broker, ids in named.items() if isinstance(named, dict) else [(None, named)]:
            for queue_id in _ids(ids, topic):
                found = [
                    q for q in queues if q.topic == topic and q.queue_id == queue_id and broker in (None, q.broker)
                ]
                if not found:
                    raise ConfigError(
                        f"assign: topic {topic} has no queue {queue_id}{f' at {broker}' if broker else ''}"
                    )
                chosen.update(found)
    return sorted(chosen)


def _ids(ids: object, topic: str) -> list[int]:
    if not isinstance(ids, list) or not ids or not all(type(n) is int for n in ids):  # true is no number
        raise _no_ids(topic)
    return ids


def _no_ids(topic: str) -> ConfigError:
    return ConfigError(f"assign: {topic} must map to a list of queue ids", 'such as {"orders": [0, 1]}')


def spread(option: str, given: Positions, queues: list[MessageQueue], read: Callable[[object], int]) -> Offsets:
    """What the user's JSON says per queue; queues it does not name are left out.

    `read` makes a number of one entry. A topic's entry may be one word for all its queues, a map of queue ids,
    or a map of brokers to either.
    """
    said: Offsets = {}
    for topic, entry in given.items():
        mine = [queue for queue in queues if queue.topic == topic]
        if not mine:
            raise ConfigError(
                f"{option}: topic {topic} is not read", f"read: {', '.join(sorted({q.topic for q in queues}))}"
            )
        brokers = {queue.broker for queue in mine}
        if isinstance(entry, dict) and entry and set(entry) <= brokers:
            for broker, inner in entry.items():
                said.update(_one_level(option, topic, inner, [q for q in mine if q.broker == broker], read, False))
        else:
            said.update(_one_level(option, topic, entry, mine, read, len(brokers) > 1))
    return said


def _one_level(
    option: str, topic: str, entry: object, queues: list[MessageQueue], read: Callable[[object], int], ambiguous: bool
) -> Offsets:
    if not isinstance(entry, dict):
        return dict.fromkeys(queues, _read(option, topic, entry, read))
    said: Offsets = {}
    for name, value in entry.items():
        found = [queue for queue in queues if str(queue.queue_id) == name]
        if not found:
            raise ConfigError(f"{option}: topic {topic} has no queue or broker {name!r}")
        offset = _read(option, topic, value, read)
        if ambiguous and offset >= 0 and len(found) > 1 and option in ("startingOffsets", "endingOffsets"):
            raise ConfigError(
                f"{option}: topic {topic} has a queue {name} at several brokers",
                f'name the broker: {{"{topic}": {{"{found[0].broker}": {{"{name}": {offset}}}}}}}',
            )
        said.update(dict.fromkeys(found, offset))
    return said


def _read(option: str, topic: str, value: object, read: Callable[[object], int]) -> int:
    try:
        return read(value)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{option}: topic {topic}: {error}") from None


def _offset(value: object) -> int:
    if value in ("earliest", "latest"):
        return EARLIEST if value == "earliest" else LATEST
    if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
        raise ValueError(f"{value!r} is no offset: a number from 0, -2 (earliest) or -1 (latest)")
    return value


def _timestamp_ms(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is no moment")
    return moment_ms(str(value))


# -- start and end


def bounds(cluster: ClusterView, queues: list[MessageQueue]) -> dict[MessageQueue, tuple[int, int]]:
    """(oldest, durable end) of each queue."""
    return {queue: cluster.offsets(queue) for queue in queues}


def starts(
    cluster: ClusterView, options: SourceOptions, known: dict[MessageQueue, tuple[int, int]], *, stream: bool
) -> Offsets:
    """Where reading begins. `DataLoss` or `ConfigError` when a given position cannot be had."""
    queues = list(known)
    if options.starting_timestamp is not None:
        return _from_moments(cluster, options, known, dict.fromkeys(queues, options.starting_timestamp))
    if options.starting_offsets_by_timestamp is not None:
        moments = spread("startingOffsetsByTimestamp", options.starting_offsets_by_timestamp, queues, _timestamp_ms)
        return _from_moments(cluster, options, known, moments)
    if options.starting_group is not None:
        asked = {queue: cluster.committed(options.starting_group, queue) for queue in queues}
        return {
            queue: _start(cluster, options, queue, EARLIEST if at is None or at < 0 else at, known[queue])
            for queue, at in asked.items()
        }
    given = options.starting_offsets or ("latest" if stream else "earliest")
    if given == "latest" and not stream:
        raise ConfigError("startingOffsets cannot be latest in a batch: there would be nothing to read")
    if isinstance(given, str):
        return {queue: end if given == "latest" else oldest for queue, (oldest, end) in known.items()}
    said = spread("startingOffsets", given, queues, _offset)
    return {queue: _start(cluster, options, queue, said.get(queue, EARLIEST), known[queue]) for queue in queues}


def ends(cluster: ClusterView, options: SourceOptions, known: dict[MessageQueue, tuple[int, int]]) -> Offsets:
    """Where a batch ends, never beyond the durable end."""
    queues = list(known)
    moments: Offsets = {}
    if options.ending_timestamp is not None:
        moments = dict.fromkeys(queues, options.ending_timestamp)
    elif options.ending_offsets_by_timestamp is not None:
        moments = spread("endingOffsetsByTimestamp", options.ending_offsets_by_timestamp, queues, _timestamp_ms)
    elif isinstance(options.ending_offsets, dict):
        said = spread("endingOffsets", options.ending_offsets, queues, _offset)
        return {queue: _within(options, queue, said.get(queue, LATEST), known[queue]) for queue in queues}
    return {
        queue: min(cluster.offset_at(queue, moments[queue]), end) if queue in moments else end
        for queue, (_, end) in known.items()
    }


def demand_order(options: SourceOptions, queues: list[MessageQueue]) -> None:
    """ConfigError when a batch is told, by numbers, to begin behind where it is to end.

    A queue that is empty between words, moments or a group's position is none: these are where they are.
    """
    begin, end = options.starting_offsets, options.ending_offsets
    moments = (
        options.starting_timestamp,
        options.starting_offsets_by_timestamp,
        options.ending_timestamp,
        options.ending_offsets_by_timestamp,
    )
    if not isinstance(begin, dict) or not isinstance(end, dict) or any(given is not None for given in moments):
        return  # moments win over offsets
    first, last = spread("startingOffsets", begin, queues, _offset), spread("endingOffsets", end, queues, _offset)
    for queue in queues:
        at, stop = first.get(queue, EARLIEST), last.get(queue, LATEST)
        if 0 <= stop < at:
            raise ConfigError(
                f"{name_of(queue)} is to be read from offset {at} (startingOffsets) to {stop} (endingOffsets),"
                " which lies before it",
                "the end is not included: from 5 to 8 are the offsets 5, 6 and 7",
            )


def _from_moments(
    cluster: ClusterView, options: SourceOptions, known: dict[MessageQueue, tuple[int, int]], moments: Offsets
) -> Offsets:
    found: Offsets = {}
    for queue, (oldest, end) in known.items():
        if queue not in moments:
            found[queue] = oldest
            continue
        at = cluster.offset_at(queue, moments[queue])
        strict = options.starting_offsets_by_timestamp_strategy == "error"
        # A message may be there that is not durable yet: then the durable end is the right place to start.
        if strict and at >= end and at >= cluster.offsets(queue, durable=False)[1]:
            raise ConfigError(
                f"no message of {name_of(queue)} was stored at or after {moments[queue]}",
                "startingOffsetsByTimestampStrategy=latest starts such queues at their end",
            )
        found[queue] = min(max(at, oldest), end)
    return found


def _start(
    cluster: ClusterView, options: SourceOptions, queue: MessageQueue, asked: int, known: tuple[int, int]
) -> int:
    """As `_within`; a position that is there but not durable yet is the durable end, as it is for moments."""
    if asked > known[1]:
        end = cluster.offsets(queue)[1]  # the queue may have grown since
        if asked <= cluster.offsets(queue, durable=False)[1]:
            return min(asked, end)
    return _within(options, queue, asked, known)


def _within(options: SourceOptions, queue: MessageQueue, asked: int, known: tuple[int, int]) -> int:
    oldest, end = known
    if asked == EARLIEST:
        return oldest
    if asked == LATEST:
        return end
    if oldest <= asked <= end:
        return asked
    lost(options, f"{name_of(queue)} holds offsets {oldest} to {end}, asked for was {asked}")
    return min(max(asked, oldest), end)


def lost(options: SourceOptions, what: str) -> None:
    """Say that data is gone: `DataLoss`, or a warning with failOnDataLoss=false."""
    if options.fail_on_data_loss:
        raise DataLoss(f"{what}. With failOnDataLoss=false the rest is read and this is only logged")
    log.warning("data lost: %s", what)


def lost_range(options: SourceOptions, queue: MessageQueue, begin: int, end: int, held: tuple[int, int]) -> None:
    """The same for offsets [begin, end) of a queue that holds others."""
    lost(options, f"offsets {begin} to {end} of {name_of(queue)} are gone (it holds {held[0]} to {held[1]})")


def name_of(queue: MessageQueue) -> str:
    return f"{queue.topic} queue {queue.queue_id} at {queue.broker}"


# -- micro-batches


def advance(
    start: Json,
    known: dict[MessageQueue, tuple[int, int]],
    wanted: Offsets,
    first: Offsets | None = None,
    after: Offsets | None = None,
) -> Json:
    """The end offset, as JSON, of a micro-batch that goes from `start` to the wanted positions.

    It keeps queues that cannot be seen now, and is `start` itself when there is nothing to read.
    `first`: where a new query begins. Its end differs from the start even with nothing to read, so that Spark logs it.
    `after`: where queues go on behind what is lost, or at the end of a queue that was made anew and is shorter; nothing else
    goes back.
    """
    at = from_json(start) if first is None else first
    base = {**at, **(after or {})}
    end = {**base, **{queue: max(offset, base.get(queue, 0)) for queue, offset in wanted.items()}}
    if end == at and first is None:
        return start
    new = {queue: min(known[queue][0], end[queue]) for queue in end if queue not in at and known[queue][0] > 0}
    begin = {**(first or {}), **new, **(after or {})}
    return {**to_json(end), **({FROM: to_json(begin)} if begin or first is not None else {})}


def away(at: Offsets, known: Iterable[MessageQueue]) -> dict[str, list[str]]:
    """Brokers whose queues were read before and are not there now, though others have the topic: each with the topics."""
    there = {(queue.topic, queue.broker) for queue in known}
    topics = {topic for topic, _ in there}
    gone = {(queue.broker, queue.topic) for queue in at if (queue.topic, queue.broker) not in there}
    found: dict[str, list[str]] = {}
    for broker, topic in sorted(gone):
        if topic in topics:
            found.setdefault(broker, []).append(topic)
    return found


def unnamed(at: Offsets, there: frozenset[MessageQueue]) -> frozenset[MessageQueue]:
    """Queues that were read before and that their topic does not name now, though their broker has it: it was given fewer."""
    places = {(queue.topic, queue.broker) for queue in there}
    return frozenset(queue for queue in at.keys() - there if (queue.topic, queue.broker) in places)


def unread(cluster: ClusterView, at: Offsets, queues: Iterable[MessageQueue]) -> Offsets:
    """How many messages such queues hold behind what was read: their broker tells who asks by number."""
    counts: Offsets = {}
    for queue in sorted(queues):
        try:
            counts[queue] = cluster.offsets(queue)[1] - at[queue]
        except ClientError as error:  # the topic was made anew without it, or the broker has gone
            log.debug("%s cannot be asked about: %s", queue, error)
    return {queue: count for queue, count in counts.items() if count > 0}


def vanished(options: SourceOptions, at: Offsets, known: Iterable[MessageQueue]) -> frozenset[str]:
    """Topics that were read before, that the pattern names, and that no broker has now: they were deleted, or these are away."""
    pattern = options.subscribe_pattern
    if pattern is None:
        return frozenset()
    return frozenset(t for t in {q.topic for q in at} - {q.topic for q in known} if re.fullmatch(pattern, t))


def after_gaps(start: Offsets, known: dict[MessageQueue, tuple[int, int]]) -> Offsets:
    """The oldest offsets of queues that have lost what comes next."""
    return {queue: oldest for queue, (oldest, _) in known.items() if start.get(queue, oldest) < oldest}


def available(start: Offsets, known: dict[MessageQueue, tuple[int, int]]) -> Offsets:
    """How many messages each queue has beyond `start`."""
    return {queue: max(end - start.get(queue, oldest), 0) for queue, (oldest, end) in known.items()}


def limited(counts: Offsets, most: int) -> Offsets:
    """At most `most` messages in all, split in proportion to what each queue has (largest remainders first).

    A queue with few gets one at least, where the limit has one for each: else it waited until the others had little left.
    """
    total = sum(counts.values())
    if total <= most:
        return dict(counts)
    shares = {queue: most * count // total for queue, count in counts.items()}
    left = most - sum(shares.values())
    rest = sorted(counts, key=lambda queue: (-(most * counts[queue] % total), queue))
    for queue in rest[:left]:
        shares[queue] += 1
    without = [queue for queue in sorted(counts) if counts[queue] and not shares[queue]]
    if sum(1 for count in counts.values() if count) <= most:
        largest = [(-share, queue) for queue, share in shares.items()]
        heapify(largest)
        for queue in without:
            share, giver = largest[0]
            heapreplace(largest, (share + 1, giver))
            shares[giver], shares[queue] = -share - 1, 1
    return shares


def between(start: Json, end: Json, options: SourceOptions) -> list[Range]:
    """The ranges of a micro-batch, from its two offsets alone."""
    if start == end:
        return []
    at, fresh = from_json(start), from_json(end.get(FROM, {}))
    ranges = []
    for queue, stop in sorted(from_json(end).items()):
        begin = fresh.get(queue, at.get(queue, 0))
        if begin > stop:
            lost(options, f"{name_of(queue)} went back from offset {begin} to {stop}: the topic was made anew")
        elif begin < stop:
            ranges.append(Range(queue, begin, stop))
    return ranges


def cut(ranges: list[Range], min_partitions: int | None, max_records: int | None) -> list[Range]:
    """The same ranges in pieces: at least so many, or of at most so many messages; the same cuts every time."""
    total = sum(r.end - r.start for r in ranges)
    check_count(min(max(min_partitions or 0, total // (max_records or total or 1)), total), f"{total} messages")
    pieces = []
    for r in ranges:
        size = r.end - r.start
        parts = 1
        if min_partitions and min_partitions > len(ranges):
            parts = max(-(-size * min_partitions // total), 1)
        if max_records:
            parts = max(parts, -(-size // max_records))
        parts = min(parts, size)
        edges = [r.start + size * i // parts for i in range(parts + 1)] if parts else [r.start]
        pieces += [Range(r.queue, a, b) for a, b in pairwise(edges) if a < b]
    return pieces


def check_count(count: int, what: str) -> None:
    """ConfigError when these would be more partitions than a driver can hold."""
    if count > PARTITIONS_MAX:
        raise ConfigError(
            f"{what} in {count} Spark partitions: {PARTITIONS_MAX} at most",
            "give a smaller minPartitions, or let each partition have more (maxRecordsPerPartition, splitBytes)",
        )
