"""nsqd's data folder, by anybody's hand: the table of topics and channels (`nsqd.dat`), and the messages in its disk queues.

A message in a disk queue is NSQ's message data:   timestamp in ns (8) | attempts (2) | id (16) | body
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from penstock.disk import changes, queuefiles, tables
from penstock.disk.files import Files
from penstock.errors import Corrupt

log = logging.getLogger("penstock.disk")

HEAD_BYTES = 26
# nsqd takes the names of fields in any case, and refuses to start on a table of topics that is a sentence: it would show
# topics without their messages, which lie in files it does not know.
NOT_FOR_NSQD = "messages of these topics lie in Penstock's own files, which nsqd cannot read"
_NAME = re.compile(r"(?=.{1,64}$)[.a-zA-Z0-9_-]+(#ephemeral|#tmp)?", re.ASCII)


class ChannelEntry(NamedTuple):
    """A channel of nsqd.dat; `more` are the fields that nsqd does not know."""

    name: str
    paused: bool = False
    more: dict[str, Any] = {}


class TopicEntry(NamedTuple):
    """A topic of nsqd.dat."""

    name: str
    paused: bool = False
    channels: tuple[ChannelEntry, ...] = ()
    more: dict[str, Any] = {}


class StoredMessage(NamedTuple):
    """A message in a disk queue."""

    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes


def read_nsqd_dat(files: Files, folder: Path) -> list[TopicEntry]:
    """The topics and channels; what has no valid name is left out. When neither the file nor its backup is there or holds
    them, those that have files of ours in the folder.
    """
    path = folder / "nsqd.dat"
    table = tables.take(files, folder, path, _fits, "topics and channels are taken from the files of their messages")
    found = {} if table is not None else {entry.name: entry for entry in _from_files(files, folder)}
    noted = changes.noted(files, path, table)
    for entry in [*_entries(table or {}, "topics", path), *(change for change in noted if _fits({"topics": [change]}))]:
        if entry.get("gone") is True:
            found.pop(str(entry["name"]), None)
            continue
        channels = tuple(ChannelEntry(*_common(part)) for part in _entries(entry, "channels", path) if _valid(part))
        if _valid(entry):
            name, paused, more = _common(entry)
            more.pop("channels", None)
            found[name] = TopicEntry(name, paused, channels, more)
    return list(found.values())


def write_nsqd_dat(files: Files, folder: Path, topics: list[TopicEntry], version: str) -> None:
    """Replace the table durably. StoreError leaves the former one."""
    data = whole(map(row, topics), version, ours=any(map(in_our_files, topics)))
    tables.replace(files, folder / "nsqd.dat", data)


def row(topic: TopicEntry) -> bytes:
    """A topic as it stands in the table."""
    return msgspec.json.encode(fields(topic))


def fields(topic: TopicEntry) -> dict[str, object]:
    """What the table says of a topic, and its file of changes."""
    channels = [{**more, "name": name, "paused": paused} for name, paused, more in topic.channels]
    return {**topic.more, "name": topic.name, "paused": topic.paused, "channels": channels or None}


def in_our_files(topic: TopicEntry) -> bool:
    """Whether its messages lie where nsqd does not look."""
    return topic.more.get("level", "memory") != "memory" or topic.more.get("kind") == "log"


def whole(rows: Iterable[bytes], version: str, *, ours: bool) -> bytes:
    """The table of what `row` made; `ours`: messages of some of them lie in our files."""
    more = b',\n "TOPICS": ' + msgspec.json.encode(NOT_FOR_NSQD) if ours else b""
    body = b'{\n "topics": [\n  %s\n ],\n "version": %s%s' % (b",\n  ".join(rows), msgspec.json.encode(version), more)
    return tables.summed_up(body)


def messages(files: Files, folder: Path, topic: str, channel: str = "") -> Iterator[StoredMessage]:
    """What waits on disk in a topic or one of its channels, oldest first; the files stay as they are."""
    for data in queuefiles.records(files, folder, f"{topic}:{channel}" if channel else topic):
        if len(data) >= HEAD_BYTES:
            yield StoredMessage(
                int.from_bytes(data[:8], signed=True), int.from_bytes(data[8:10]), data[10:26], data[26:]
            )


def _entries(table: dict[str, object], field: str, path: Path) -> list[dict[str, Any]]:
    found = table.get(field) or []
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise Corrupt(path, 0, f'"{field}" is not a list of objects')
    return found


def _fits(table: dict[str, object]) -> bool:
    try:
        for entry in _entries(table, "topics", Path()):
            for part in _entries(entry, "channels", Path()):
                attempts = part.get("attempts") or []
                if not isinstance(part.get("since", 0), int) or not all(len(found) == 3 for found in attempts):
                    return False
            if not all(isinstance(entry.get(name, 0), int) for name in ("floor", "since", "visible")):
                return False
            if not isinstance(entry.get("level", ""), str):
                return False
    except (Corrupt, TypeError):
        return False
    return True


def _from_files(files: Files, folder: Path) -> list[TopicEntry]:
    """The topics of level `os` and `disk`, and the channels of all topics, by their files in `queues`."""
    found = []
    for name in files.names(folder / "queues"):
        inside = files.names(folder / "queues" / name)
        queue = any(file.startswith(f"{name}_") and file.endswith(".queue") for file in inside)
        cursors = [file.removesuffix(".cursor") for file in inside if file.endswith(".cursor")]
        lanes = {lane.rpartition(".")[0] for lane in cursors if lane.rpartition(".")[2].isdigit()}
        topic = unquote(name)
        kind = {"level": "os"} if queue or not lanes else {"kind": "log"}
        channels = sorted({unquote(channel) for channel in (cursors if "level" in kind else lanes)})
        entries = tuple(ChannelEntry(channel) for channel in channels if _valid({"name": channel}))
        if (queue or cursors) and _valid({"name": topic}):
            log.warning("nsqd.dat is gone: topic %s with %d channels is there by its files", topic, len(entries))
            found.append(TopicEntry(topic, False, entries, dict(kind)))
    known = {entry.name for entry in found}
    overflow: dict[str, list[ChannelEntry]] = {}
    for name in queuefiles.queues_in(files, folder):
        topic, _, channel = name.partition(":")
        if _valid({"name": topic}) and topic not in known:
            part = overflow.setdefault(topic, [])
            part += [ChannelEntry(channel)] if channel and _valid({"name": channel}) else []
    for topic, parts in overflow.items():
        level = {"level": "memory"} if list(folder.glob(f"{topic}*.diskqueue.*.sum")) else {}
        found.append(TopicEntry(topic, False, tuple(sorted(parts)), dict(level)))
    return found


def _valid(entry: dict[str, object]) -> bool:
    name = entry.get("name")
    if isinstance(name, str) and _NAME.fullmatch(name):
        return True
    log.warning("nsqd.dat: left out what has the invalid name %s", ascii(name))
    return False


def _common(entry: dict[str, Any]) -> tuple[str, bool, dict[str, Any]]:
    more = {key: value for key, value in entry.items() if key not in ("name", "paused")}
    return entry["name"], entry.get("paused") is True, more
