"""The table of topics and channels: nsqd's own `nsqd.dat`, with fields of ours that nsqd does not read."""

from __future__ import annotations

import logging
from collections.abc import Collection

from penstock.broker.core import Core
from penstock.broker.levels import LEVEL_MEMORY, LEVEL_NAMES
from penstock.broker.nsq.claims import Claims
from penstock.broker.nsq.topics import QueueTopic, Topic
from penstock.delivery.cursor import CursorSource
from penstock.disk.nsqdata import ChannelEntry, TopicEntry, row, write_rows
from penstock.errors import StoreError
from penstock.wire.names import NSQD_VERSION

log = logging.getLogger("penstock.queueing")

RETRY_MS = 1_000


class Table:
    """Writes the table when it changed. A topic's row is kept until `changed`."""

    def __init__(self, core: Core, claims: Claims) -> None:
        self._files = core.files
        self._folder = core.folder
        self._time = core.time
        self._claims = claims
        self._rows: dict[bytes, bytes] = {}
        self._changed = False
        self._retry_ms = 0
        self._closing = False

    def changed(self, name: bytes, stored: bool) -> None:
        """A topic, or a channel of it, came, went or was changed; `stored`: the table must say so."""
        self._rows.pop(name, None)
        if stored:
            self._changed = True

    def all_changed(self, closing: bool = False) -> None:
        """Every row is made anew; `closing`: they say now how often each message was tried."""
        self._rows.clear()
        self._changed = True
        self._closing = closing

    def save_changed(self, topics: Collection[Topic]) -> None:
        """`write` for what nobody asked for by name, at the end of each turn; after a failure once a second."""
        if self._changed and self._time.mono_ms >= self._retry_ms:
            try:
                self.write(topics)
            except StoreError as error:
                self._retry_ms = self._time.mono_ms + RETRY_MS
                log.error("nsqd.dat not written, tried again every second error=%s", error)

    def write(self, topics: Collection[Topic]) -> None:
        """`nsqd.dat`, when it changed, before anybody is told of the change. StoreError; the next call tries again."""
        if self._changed:
            rows = [self._rows.get(topic.name) or self._row(topic) for topic in topics if not topic.ephemeral]
            ours = any(topic.level != LEVEL_MEMORY for topic in topics)
            write_rows(self._files, self._folder, rows, NSQD_VERSION, ours=ours)
            self._changed = False

    def _row(self, topic: Topic) -> bytes:
        """A topic in the table. It is kept, unless it says what changes with every message."""
        made = row(self.entry(topic))
        if not self._closing and not (isinstance(topic, QueueTopic) and (topic.paused or topic.passing)):
            self._rows[topic.name] = made
        return made

    def entry(self, topic: Topic) -> TopicEntry:
        """What the table says of a topic."""
        more: dict[str, object] = {"level": LEVEL_NAMES[topic.level]}
        if topic.kind == "log":
            more["kind"] = "log"
        if isinstance(topic, QueueTopic):
            more["floor"] = topic.floor
            if topic.passing and not topic.cursors():  # ephemeral channels had it all, and nobody else is owed it
                more["floor"] = topic.stream.visible
            if topic.paused:
                more["visible"] = topic.stream.visible
        channels = []
        for channel in topic.channels.values():
            if not channel.ephemeral:
                about: dict[str, object] = {"since": self._claims.since(topic.name, channel.name)}
                if self._closing and isinstance(channel.source, CursorSource):
                    about["attempts"] = [[lane, at, count] for lane, at, _, count in channel.in_hand() if count]
                channels.append(ChannelEntry(channel.name.decode(), bool(channel.paused), about))
        return TopicEntry(topic.name.decode(), bool(topic.paused), tuple(channels), more)
