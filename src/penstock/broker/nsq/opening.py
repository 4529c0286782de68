"""Opening: topics and channels of `nsqd.dat`, ours or nsqd's own, and the messages of an nsqd folder."""

from __future__ import annotations

import logging

from penstock.broker.core import Core
from penstock.broker.levels import LEVELS
from penstock.broker.nsq.claims import Claims
from penstock.broker.nsq.holding import places
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.names import printable, refusal
from penstock.broker.nsq.registry import Registry
from penstock.broker.nsq.topics import QueueTopic, Topic
from penstock.delivery.cursor import CursorSource
from penstock.disk.nsqdata import TopicEntry, read_nsqd_dat
from penstock.errors import Refused
from penstock.words import DATA_ATTEMPTS_AT, DATA_BODY_AT, DATA_ID_AT

log = logging.getLogger("penstock.queueing")

_TAKEN_AT_ONCE = 1_000


class Opening:
    """See the module."""

    def __init__(self, core: Core, registry: Registry, claims: Claims) -> None:
        self._core = core
        self._registry = registry
        self._claims = claims

    def load(self) -> None:
        """Make every topic and channel of the table."""
        for entry in read_nsqd_dat(self._core.files, self._core.folder):
            topic = self._topic(entry)
            if topic is not None:
                self._load(topic, entry)
        self._registry.folder.tidy(self._registry.topics)

    def _topic(self, entry: TopicEntry) -> Topic | None:
        registry, name, more = self._registry, entry.name.encode(), entry.more
        if more.get("kind") == "log":
            try:
                return registry.log_face(name)
            except Refused as refused:  # its log topic is gone, and nobody makes it anew
                log.warning("channels left out topic=%s reason=%s", printable(name), refused)
                return None
        return registry.make(name, LEVELS.get(more.get("level", ""), registry.level_of(name)), more.get("floor", 0))

    def _load(self, topic: Topic, entry: TopicEntry) -> None:
        end = self._core.store.end_position
        self._claims.begin_topic(topic.name, min(int(entry.more.get("since", 0)), end))
        topic.loading()  # nothing is handed over before every channel is there
        for part in entry.channels:
            name = part.name.encode()
            # A power cut takes the log's last second: what is appended there anew is owed, too.
            since = min(int(part.more.get("since", 0)), end)
            self._claims.begin(topic.name, name, since)
            if isinstance(topic, QueueTopic):
                topic.restore_channel(name)
            channel = topic.channel(name)
            channel.pause(part.paused)
            if isinstance(channel.source, CursorSource):
                channel.source.remember({(lane, place): count for lane, place, count in part.more.get("attempts", ())})
        topic.loaded(entry.paused)
        if isinstance(topic, LogChannels):
            ends = [queue.max_offset for queue in topic.stored.queues]  # a power cut may have taken the end of the log
            held, floors = (list(map(min, places(entry.more.get(key, [])), ends)) for key in ("held", "floors"))
            topic.restore(held, floors)
        if isinstance(topic, QueueTopic):
            if entry.paused:
                topic.restore_visible(int(entry.more.get("visible", topic.stream.total)))
            if "level" not in entry.more:
                self._import(topic)
        topic.mark()

    # -- taking over an nsqd folder ------------------------------------------------------------------------------

    def _import(self, topic: QueueTopic) -> None:
        """Messages in nsqd's diskqueue files move into the ready queue, each for the channel it waited in."""
        folder = self._registry.folder
        # What channels have came before what the topic has, and they have it though the topic is paused.
        sources = [*((topic.name + b":" + name, {name}) for name in topic.channels), (topic.name, None)]
        moved = 0
        for name, claimants in sources:
            if claimants is None and topic.paused:
                topic.restore_visible(topic.stream.total)
            if not folder.has_backend_files(name):
                continue
            backend = folder.backend(name)
            while payloads := backend.take_payloads(_TAKEN_AT_ONCE):
                moved += sum([self._take(topic, data, claimants) for data in payloads])
                for segment in topic.stream.take_flush():
                    segment.datasync()
                for cursor in topic.cursors():
                    cursor.datasync()
                for path in (topic.stream.folder, folder.queues, folder.root):  # nsqd's files go: ours have names now
                    self._core.files.sync_folder(path)
                backend.done(len(payloads))
            folder.drop_backend(name)
        if moved:
            log.info("messages taken over from nsqd's files topic=%s count=%d", printable(topic.name), moved)

    @staticmethod
    def _take(topic: QueueTopic, data: bytes, claimants: set[bytes] | None) -> bool:
        """One message as nsqd stored it; False when it is none."""
        if len(data) <= DATA_BODY_AT:
            return False
        stamp = topic.new_id(max(1, int.from_bytes(data[:DATA_ATTEMPTS_AT], signed=True)))
        attempts = int.from_bytes(data[DATA_ATTEMPTS_AT:DATA_ID_AT])
        answer = topic.redeliver(stamp, stamp, attempts, data[DATA_BODY_AT:], claimants)
        if answer:
            raise refusal(answer)
        return True
