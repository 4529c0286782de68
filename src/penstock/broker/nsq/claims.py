"""Claims: which channels a deferred message is owed to.

A channel is owed those that were appended since it began or was last emptied (`since`, kept in the table of topics). The
first channel of a topic begins where the topic did, was emptied, or lost its last channel before (the topic's own `since`).
"""

from __future__ import annotations

from penstock.broker.nsq.entry import Deferred
from penstock.broker.nsq.topics import Topic


class Claims:
    """See the module. Positions are physical offsets of the log."""

    def __init__(self) -> None:
        self._since: dict[tuple[bytes, bytes], int] = {}  # (topic, channel): deferred records from here on are its own
        self._topics: dict[bytes, int] = {}  # the same for the first channel of a topic
        self._unclaimed: dict[bytes, int] = {}  # how many entries of the schedule a topic's first channel would be owed
        self._newer: dict[tuple[bytes, int, bytes], int] = {}  # (topic, message, channel): the last entry a crash left

    def since(self, topic: bytes, channel: bytes) -> int:
        """Where the claims of a channel begin."""
        return self._since.get((topic, channel), 0)

    def since_topic(self, topic: bytes) -> int:
        """Where the claims of a topic's first channel begin."""
        return self._topics.get(topic, 0)

    def begin_topic(self, topic: bytes, position: int) -> None:
        """They begin here: what was deferred before is owed to no channel that is still to come as the first."""
        self._topics[topic] = position
        self._unclaimed.pop(topic, None)

    def unclaimed(self, topic: bytes) -> int:
        """How many deferred messages a first channel, if it came now, would be owed."""
        return self._unclaimed.get(topic, 0)

    def count(self, topic: bytes) -> None:
        """A message is deferred for all channels of the topic."""
        self._unclaimed[topic] = self.unclaimed(topic) + 1

    def count_entry(self, about: Deferred, schedule_id: int, more: int) -> None:
        """This entry is in the schedule (1), or no more (-1)."""
        if not about.channel and _physical(about, schedule_id) >= self.since_topic(about.topic):
            self._unclaimed[about.topic] = max(0, self.unclaimed(about.topic) + more)

    def forget_topic(self, topic: bytes) -> None:
        """The topic is deleted."""
        self._topics.pop(topic, None)
        self._unclaimed.pop(topic, None)

    def begin(self, topic: bytes, channel: bytes, position: int) -> None:
        """They begin here: the channel was emptied, or is read from the table."""
        self._since[topic, channel] = position

    def begin_once(self, topic: bytes, channel: bytes, position: int) -> None:
        """They begin here, unless it is known where."""
        self._since.setdefault((topic, channel), position)

    def forget(self, topic: bytes, channel: bytes) -> None:
        """The channel is deleted."""
        self._since.pop((topic, channel), None)

    def replace(self, about: Deferred, schedule_id: int) -> None:
        """A start found this entry: what the message was given back from before is over, even where it lost its copy."""
        key = about.topic, about.id, about.channel
        self._newer[key] = max(schedule_id, self._newer.get(key, 0))

    def __len__(self) -> int:
        return len(self._since)

    def claimants(self, topic: Topic, about: Deferred, schedule_id: int) -> set[bytes] | None:
        """The channels that wait for an entry of the schedule; None: all there are."""
        if about.channel:
            mine = about.channel in topic.channels and self._has_claim(topic, about, about.channel, schedule_id)
            return {about.channel} if mine else set()
        if not topic.channels and _physical(about, schedule_id) < self.since_topic(topic.name):
            return set()
        found = {name for name in topic.channels if self._has_claim(topic, about, name, schedule_id)}
        return None if len(found) == len(topic.channels) else found

    def is_before(self, about: Deferred, schedule_id: int) -> bool:
        """Whether the channel that gave it back was emptied, or made anew, since."""
        return _physical(about, schedule_id) < self.since(about.topic, about.channel)

    def _has_claim(self, topic: Topic, about: Deferred, channel: bytes, schedule_id: int) -> bool:
        newer = self._newer.get((topic.name, about.id, channel), 0) if self._newer else 0
        return _physical(about, schedule_id) >= self.since(topic.name, channel) and newer <= schedule_id


def _physical(about: Deferred, schedule_id: int) -> int:
    return (about.since or schedule_id) - 1
