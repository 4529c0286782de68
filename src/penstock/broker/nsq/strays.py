"""Strays: deferred messages that came again in a queue of this node, and of which nothing stands in the schedule any more.

In a replica set the entry of such a message stays in the schedule, which every node has, until its channel has finished it
(`Moving.owed`). What a broker has put there before it was one of a set, or a former version did, has no entry: the next master
would not deliver it. So a master puts it back into the schedule, from where it comes again at once. One that becomes a slave
before sets the queue aside (`LogChannels.forget_again`).
"""

from __future__ import annotations

import logging
from collections import deque

from penstock.broker.core import Core
from penstock.broker.nsq.deferral import Deferral
from penstock.broker.nsq.logchannels import LogChannels
from penstock.broker.nsq.moving import Moving
from penstock.broker.nsq.names import printable
from penstock.broker.nsq.sources import cursors, finish_ahead, lanes
from penstock.broker.nsq.topics import Topic
from penstock.broker.replica import of_a_set
from penstock.errors import Refused

log = logging.getLogger("penstock.queueing")

AT_ONCE = 1_000

Stray = tuple[LogChannels, bytes, int]  # topic, channel, place in its queue


class Strays:
    """See the module. `find` after a start, `adopt` in each turn of a master that has some."""

    def __init__(self, core: Core, deferral: Deferral, moving: Moving) -> None:
        self._core = core
        self._deferral = deferral
        self._moving = moving
        self.found: deque[Stray] = deque()

    def find(self, topics: dict[bytes, Topic]) -> None:
        """Which there are."""
        if not of_a_set(self._core.config):
            return
        for topic in [topic for topic in topics.values() if isinstance(topic, LogChannels)]:
            for name, stream in topic.again.items():
                file, known = lanes(topic.channels[name])[-1].file, self._moving.ordinals(stream)
                begin = max(file.committed, stream.begin())
                places = [n for n in range(begin, stream.total) if not file.finished(n) and n not in known]
                if places:
                    topic.stray[name] = len(places)
                    self.found += [(topic, name, place) for place in places]

    def adopt(self) -> None:
        """Put them back into the schedule, some of them: the log is flushed before they are finished where they are."""
        copies = self._core.copies
        if copies.replica is None or not copies.leads or self._core.store.following:  # its epoch has not begun
            return
        moved: list[Stray] = []
        while self.found and len(moved) < AT_ONCE:
            topic, name, place = self.found[0]
            channel = topic.channels.get(name)
            lane = len(lanes(channel)) - 1 if channel is not None else -1
            if channel is not None and name in topic.again and cursors(channel).point_at(lane, place):
                source = cursors(channel)
                in_hand = channel.slots.find(source.message_id) >= 0  # a consumer was quicker: it is finished as ever
                if not in_hand and not lanes(channel)[lane].file.finished(place):
                    try:
                        self._deferral.put_again(channel, lane, place)
                    except Refused as refused:  # a full disk
                        log.warning("deferred messages not moved, tried again reason=%s", refused)
                        break
                    moved.append(self.found[0])
            self.found.popleft()
        if moved:
            self._core.flush_log()
            for topic, name, place in moved:
                finish_ahead(topic.channels[name], len(lanes(topic.channels[name])) - 1, place)
                topic.mark()
            names = sorted({printable(topic.name) for topic, _, _ in moved})
            log.info("deferred messages moved into the schedule topics=%s count=%d", ",".join(names), len(moved))
        if not self.found:
            for topic in {topic for topic, _, _ in moved}:
                topic.stray.clear()
