"""A folder that nsqd starts on: what topics and channels hold, in go-diskqueue's files, and nsqd's own `nsqd.dat`.

nsqd has no place for a message that waits for its time: it writes those down as ready when it stops, and so do we.
Ephemeral topics and channels are left out, as nsqd leaves them out.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.delayed import Delayed, Wanted
from penstock.broker.nsq import looking
from penstock.broker.nsq.looking import Place, Seen, Steps
from penstock.broker.nsq.memorytopics import MemoryTopic
from penstock.broker.nsq.topics import QueueTopic, Topic
from penstock.disk import queuefiles
from penstock.disk.files import Files
from penstock.disk.queuefiles import Paths
from penstock.disk.tables import replace
from penstock.errors import ConfigError, StoreError
from penstock.wire import record
from penstock.wire.names import NSQ_NAME, NSQ_NAME_BYTES_MAX, NSQD_VERSION

FILE_BYTES = 100 << 20
WRITE_BYTES = 1 << 20
ATTEMPTS_MAX = 0xFFFF
ID_CHARS = 16
NS_A_MS = 1_000_000
UNFINISHED = "export.unfinished"  # lies in the folder until all of it is there


class Exported(NamedTuple):
    """One disk queue that was written."""

    topic: str
    channel: str
    messages: int
    largest: int  # body, in bytes


class QueueWriter:
    """One disk queue, written from its beginning."""

    def __init__(self, files: Files, folder: Path, name: str, file_bytes: int = FILE_BYTES) -> None:
        self._files = files
        self._paths = Paths(folder, name)
        self._file_bytes = file_bytes
        self._parts: list[bytes] = []
        self._waiting = self._at = self._number = 0
        self._fd = -1
        self.count = self.largest = 0

    def put(self, seen: Seen) -> None:
        """One message more, as nsqd's message data."""
        head = seen.stamp_ns.to_bytes(8, signed=True) + min(seen.attempts, ATTEMPTS_MAX).to_bytes(2)
        data = head + seen.id.encode("ascii", "replace").rjust(ID_CHARS, b"0")[:ID_CHARS] + seen.body
        self._parts.append(len(data).to_bytes(4) + data)
        self._waiting += len(self._parts[-1])
        self.count += 1
        self.largest = max(self.largest, len(seen.body))
        if self._waiting >= WRITE_BYTES:
            self._write()
            if self._at >= self._file_bytes:
                self._end()
                self._number += 1
                self._at = 0

    def _write(self) -> None:
        if self._fd < 0:
            self._fd = self._files.open(self._paths.data(self._number), create=True)
        data, self._parts, self._waiting = b"".join(self._parts), [], 0
        self._files.write(self._fd, self._at, data)
        self._at += len(data)

    def _end(self) -> None:
        if self._fd >= 0:
            self._files.datasync(self._fd)
            self._files.close(self._fd)
            self._fd = -1

    def leave(self) -> None:
        """Whatever has happened, its file is not held open."""
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Flush it, and write its meta file. Nothing is written of an empty queue."""
        if self._parts:
            self._write()
        self._end()
        if self.count:
            queuefiles.write_meta(self._files, self._paths.meta, self.count, (0, 0), (self._number, self._at))


def export(broker: Broker, files: Files, folder: Path, *, logs: bool = False) -> Iterator[Exported]:
    """Write the folder, a queue at a time; `nsqd.dat` comes last. `logs`: log topics without channels, too, with all they
    hold, where nsqd takes the name (`unnameable` are the others). ConfigError when something lies there. Whatever else ends it
    leaves nothing behind; a process that is killed leaves a folder that says so, and is refused.
    """
    mark = folder / UNFINISHED
    if mark.exists():
        raise ConfigError(
            f"{folder} holds an export that did not come to its end: messages are missing in it",
            "Remove the folder and export again, or name another one.",
        )
    made = not folder.exists()
    if not made and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty", "Name a folder that is not there yet.")
    try:
        files.make_folder(folder)
        files.close(files.open(mark, create=True))
        files.sync_folder(folder)
        yield from _export(broker, files, folder, logs)
        files.unlink(mark)
        files.sync_folder(folder)
    except BaseException:
        _clear(files, folder)
        if made:
            files.remove_folder(folder)
        raise


def _clear(files: Files, folder: Path) -> None:
    """Remove what was written there."""
    for name in files.names(folder):
        if name == UNFINISHED or name.startswith("nsqd.dat") or ".diskqueue." in name:
            with contextlib.suppress(StoreError):
                files.unlink(folder / name)


def _export(broker: Broker, files: Files, folder: Path, logs: bool) -> Iterator[Exported]:
    table = []
    topics = {topic.name: topic for topic in broker.queueing.all()}
    waiting = _scheduled(broker, topics)
    bare = {name for name in (broker.topics.by_name if logs else ()) if name not in topics and _nameable(name)}
    for key in sorted({*topics, *bare}):
        name = key.decode()
        if broker.is_system_topic(name):
            continue
        if key in bare:  # one that no NSQ client knows: it is not made one that they know
            later = waiting.get(name, [])
            yield from _write(files, folder, name, [("", _of_stored(broker, key)), ("", (seen for _, seen in later))])
            table.append({"name": name, "paused": False, "channels": []})
            continue
        topic = topics[key]
        if topic.ephemeral or not _nameable(key) or not (topic.kind == "queue" or topic.channels or logs):
            continue
        topic.refresh()
        kept = [channel for _, channel in sorted(topic.channels.items()) if not channel.ephemeral]
        later = waiting.get(name, [])
        queues: list[tuple[str, Iterable[Seen]]] = [("", _of_topic(broker, topic, bool(kept)))]
        if not kept:
            queues.append(("", (seen for _, seen in later)))
        for channel in kept:
            own = channel.name.decode()
            queues.append((own, _seen(looking.ready(channel, Place("w")))))
            queues.append((own, _seen(looking.in_flight(channel, Place("i"), broker.time))))
            queues.append((own, _seen(looking.deferred_in_memory(channel, Place("i"), broker.time))))
            queues.append((own, [seen for names, seen in later if own in names]))
        yield from _write(files, folder, name, queues)
        channels = [{"name": channel.name.decode(), "paused": bool(channel.paused)} for channel in kept]
        table.append({"name": name, "paused": bool(topic.paused), "channels": channels})
    body = msgspec.json.encode({"topics": table, "version": NSQD_VERSION})
    replace(files, folder / "nsqd.dat", body)


def unnameable(broker: Broker) -> list[str]:
    """Log topics that hold messages under a name that nsqd does not take: retries and dead letters of groups, long names."""
    return sorted(
        name.decode()
        for name, topic in broker.topics.by_name.items()
        if not _nameable(name)
        and any(queue.visible_end() > queue.min_offset for queue in topic.queues)
        and not broker.is_system_topic(name.decode())
    )


def _nameable(name: bytes) -> bool:
    return len(name) <= NSQ_NAME_BYTES_MAX and re.fullmatch(NSQ_NAME, name) is not None


def _write(files: Files, folder: Path, topic: str, queues: list[tuple[str, Iterable[Seen]]]) -> Iterator[Exported]:
    writers: dict[str, QueueWriter] = {}
    with contextlib.ExitStack() as stack:
        for channel, messages in queues:
            name = f"{topic}:{channel}" if channel else topic
            if channel not in writers:
                writers[channel] = QueueWriter(files, folder, name)
                stack.callback(writers[channel].leave)
            for seen in messages:
                writers[channel].put(seen)
        for writer in writers.values():
            writer.close()
    for channel, writer in writers.items():
        if writer.count or channel:
            yield Exported(topic, channel, writer.count, writer.largest)


def _seen(steps: Steps) -> Iterator[Seen]:
    return (seen for _, seen in steps if seen is not None)


def _of_topic(broker: Broker, topic: Topic, shared: bool) -> Iterator[Seen]:
    """What no channel has yet: all of it without channels, else what came while the topic was paused."""
    if isinstance(topic, MemoryTopic):
        yield from _seen(looking.ready_in_topic(topic, Place("q")))
        yield from _seen(looking.deferred_in_topic(topic, Place("p")))
    elif isinstance(topic, QueueTopic):
        begin = topic.stream.visible if shared else topic.first()
        yield from _seen(looking.ready_in_topic(topic, Place("q", [begin])))
    elif not shared:
        yield from _of_stored(broker, topic.name)


def _of_stored(broker: Broker, name: bytes) -> Iterator[Seen]:
    """All that a log topic holds."""
    stored = broker.topics.get(name)
    for number, queue in enumerate([] if stored is None else stored.queues):
        yield from _of_log(broker, queue.min_offset, queue.visible_end(), number, name)


def _of_log(broker: Broker, begin: int, end: int, number: int, name: bytes) -> Iterator[Seen]:
    queue = broker.topics.by_name[name].queues[number]
    for offset in range(begin, end):
        entry = queue.entry(offset)
        data = None if entry is None else broker.store.record_at(entry[0])
        message = None if data is None else record.decode_record(data, 0)
        if message is not None:
            id_ = f"{message.physical_offset + 1:016x}"
            yield Seen(id_, message.store_ms * NS_A_MS, message.reconsume_times, message.body, {})


def _scheduled(broker: Broker, topics: dict[bytes, Topic]) -> dict[str, list[tuple[list[str], Seen]]]:
    """What waits for its time, by topic: for which channels, and the message."""
    found: dict[str, list[tuple[list[str], Seen]]] = {}
    delayed, everything = Delayed(broker), Wanted()
    for due in broker.schedule.entries():
        row = delayed.row(due, everything)
        message = None if row is None else record.decode_record(due.record, 0)
        if row is None or message is None:
            continue
        topic, attempts = topics.get(str(row["topic"]).encode()), row["attempts"]
        channels = () if topic is None else topic.channels
        names = [str(row["channel"])] if row["channel"] else [name.decode() for name in channels]
        assert isinstance(attempts, int)
        seen = Seen(_id(str(row["msgId"]), due.id), message.store_ms * NS_A_MS, attempts, message.body, {})
        found.setdefault(str(row["topic"]), []).append((names, seen))
    return found


def _id(text: str, otherwise: int) -> str:
    """An NSQ id; that of a message of the log is none."""
    return text if len(text) == ID_CHARS and text.isascii() and text.isalnum() else f"{otherwise:0{ID_CHARS}x}"
