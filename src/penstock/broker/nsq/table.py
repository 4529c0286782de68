"""The table of topics and channels: nsqd's own `nsqd.dat`, with fields of ours that nsqd does not read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from penstock.broker.core import Core
from penstock.broker.levels import LEVEL_MEMORY, LEVEL_NAMES
from penstock.broker.nsq.claims import Claims
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.topics import QueueTopic, Topic
from penstock.delivery.cursor import CursorSource
from penstock.disk.changes import ChangedTable
from penstock.disk.nsqdata import ChannelEntry, TopicEntry, fields, row, whole
from penstock.errors import StoreError
from penstock.faults import Told
from penstock.wire.names import NSQD_VERSION

log = logging.getLogger("penstock.queueing")

RETRY_MS = 1_000
QUIET_MS = 10_000


class Table:
    """Writes down what changed, in a file beside the table; the table itself when that is long, when nothing has changed
    for ten seconds, and at a clean stop. A topic's row is kept until `changed`.
    """

    def __init__(self, core: Core, claims: Claims) -> None:
        self._time = core.time
        self._claims = claims
        self._file = ChangedTable(core.files, core.folder, core.folder / "nsqd.dat")
        self._rows: dict[bytes, bytes] = {}
        self._unkept: set[bytes] = set()  # rows that say what changes with every message
        self._names: dict[bytes, None] = {}  # topics that the file of changes must name
        self._whole = False
        self._ours = False  # the table says that it is not for nsqd
        self._changed_ms = 0
        self._retry_ms = 0
        self._closing = False
        self._told = Told()
        self.restless = True  # `save_changed` has something to do

    @property
    def path(self) -> Path:
        """The file that says what changed since the table was written."""
        return self._file.path

    @property
    def behind(self) -> bool:
        """Whether that file says something which the table does not."""
        return self._file.lines > 0

    def changed(self, name: bytes, stored: bool) -> None:
        """A topic, or a channel of it, came, went or was changed; `stored`: the table must say so."""
        self._rows.pop(name, None)
        if stored:
            self.restless = True
            self._names[name] = None
            self._changed_ms = self._time.mono_ms

    def all_changed(self, closing: bool = False) -> None:
        """Every row is made anew; `closing`: they say now how often each message was tried."""
        self._rows.clear()
        self._whole = self.restless = True
        self._closing = closing

    def save_changed(self, topics: Mapping[bytes, Topic]) -> None:
        """`write` for what nobody asked for by name, at the end of each turn; after a failure once a second, told less often."""
        if (self._whole or self._names) and self._time.mono_ms >= self._retry_ms:
            try:
                self.write(topics)
            except StoreError as error:
                self._retry_ms = self._time.mono_ms + RETRY_MS
                if self._told.is_news("nsqd.dat", self._time.mono_ms):
                    log.error("nsqd.dat not written, tried again every second error=%s", error)
            else:
                self._told.over()
        self.restless = bool(self._whole or self._names)

    def tick(self) -> None:
        """What the file of changes says goes into the table once nothing has changed for ten seconds: at the end of this turn."""
        if self._file.lines and self._time.mono_ms >= self._changed_ms + QUIET_MS:
            self._whole = self.restless = True

    def write(self, topics: Mapping[bytes, Topic], hasty: bytes = b"") -> None:
        """What changed goes to disk, before anybody is told of it. StoreError; the next call tries again. `hasty`: if nothing has
        changed but the topic of this name, the system has it, and the caller flushes `path`.
        """
        if not (self._whole or self._names):
            return
        durable = self._names.keys() != {hasty}
        if self._whole or not self._file.ready or not self._noted(topics, durable):
            self._whole = True  # until it is done
            kept = [topic for topic in topics.values() if not topic.ephemeral]
            rows = [self._rows.get(topic.name) or self._row(topic) for topic in kept]
            self._ours = any(topic.level != LEVEL_MEMORY for topic in topics.values())
            self._file.replace(whole(rows, NSQD_VERSION, ours=self._ours))
            self._whole = False
        self._names.clear()

    def _noted(self, topics: Mapping[bytes, Topic], durable: bool) -> bool:
        """Note what changed beside the table; False when the table must be written whole. StoreError."""
        noted: list[dict[str, object]] = []
        for name in self._names.keys() | self._unkept:
            topic = topics.get(name)
            if topic is None or topic.ephemeral:
                noted.append({"name": name.decode(), "gone": True})
                self._unkept.discard(name)
            elif topic.level != LEVEL_MEMORY and not self._ours:
                return False  # nsqd must not open it from now on
            else:
                entry = self.entry(topic)
                self._keep_row(topic, entry)
                noted.append(fields(entry))
        self._whole = True  # a change that was refused must not stay there
        self._file.add(noted, durable)
        self._whole = self._file.full
        return True

    def stopped(self) -> None:
        """The table is whole, and nobody changes it any more."""
        if not (self._whole or self._names) and self._file.ready:
            self._file.remove()

    def release(self) -> None:
        """Let go of the file of changes, as it is."""
        self._file.release()

    def _row(self, topic: Topic) -> bytes:
        """A topic in the table."""
        return self._keep_row(topic, self.entry(topic))

    def _keep_row(self, topic: Topic, entry: TopicEntry) -> bytes:
        """The row of this entry. It is kept, unless it says what changes with every message."""
        made = row(entry)
        if isinstance(topic, QueueTopic) and (topic.paused or topic.passing):
            self._unkept.add(topic.name)
        else:
            self._unkept.discard(topic.name)
            if not self._closing:
                self._rows[topic.name] = made
        return made

    def entry(self, topic: Topic) -> TopicEntry:
        """What the table says of a topic."""
        more: dict[str, object] = {"level": LEVEL_NAMES[topic.level]}
        if topic.kind == "log":
            more["kind"] = "log"
        if isinstance(topic, QueueTopic):
            more["floor"] = topic.floor
            more["since"] = self._claims.since_topic(topic.name)
            if topic.passing and not topic.cursors():  # ephemeral channels had it all, and nobody else is owed it
                more["floor"] = topic.stream.visible
            if topic.paused:
                more["visible"] = topic.stream.visible
        if isinstance(topic, LogChannels):
            more |= {key: value for key, value in topic.holding.about().items() if value}
        channels = []
        for channel in topic.channels.values():
            if not channel.ephemeral:
                about: dict[str, object] = {"since": self._claims.since(topic.name, channel.name)}
                if self._closing and isinstance(channel.source, CursorSource):
                    about["attempts"] = [[lane, at, count] for lane, at, _, count in channel.in_hand() if count]
                channels.append(ChannelEntry(channel.name.decode(), bool(channel.paused), about))
        return TopicEntry(topic.name.decode(), bool(topic.paused), tuple(channels), more)
