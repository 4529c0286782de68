"""Turns: which topics and channels have something to do when a turn of the loop ends, and which at a moment later."""

from __future__ import annotations

import heapq

import cython

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.broker.nsq.topics import Topic
    from cython.cimports.penstock.delivery.channel import Channel
else:
    from penstock import words
    from penstock.broker.nsq.topics import Topic
    from penstock.delivery.channel import Channel


class Turns:
    """The marks of this turn, and the timers of the channels (monotonic ms)."""

    def __init__(self) -> None:
        self.topics: list[Topic] = []  # those that have marked themselves
        self.later: dict[Topic, int] = {}  # that have more to hand over to their channels, and when (monotonic ms)
        self._channels: list[Channel] = []
        self._timers: list[tuple[int, int]] = []  # (due ms, number)
        self._timed: dict[int, Channel] = {}  # number → whose
        self._timer_of: dict[Channel, int] = {}
        self._number = 0

    def mark_channel(self, channel: Channel) -> None:
        """Look at a channel when the turn ends."""
        if channel.mark():
            self._channels.append(channel)

    def take_topics(self) -> list[Topic]:
        """The topics that are marked."""
        topics = self.topics[:]
        self.topics.clear()
        return topics

    def take_channels(self) -> list[Channel]:
        """The channels that are marked."""
        channels, self._channels = self._channels, []
        return channels

    def published(self) -> bool:
        """Whether a topic has something new."""
        return bool(self.topics)

    def marked(self) -> bool:
        """Whether something is."""
        return bool(self.topics or self._channels)

    # -- timers --------------------------------------------------------------------------------------------------

    def time(self, channel: Channel) -> None:
        """The channel's next moment may be earlier than known."""
        due_ms = channel.due_ms()
        if due_ms and (not channel.timer_ms or due_ms < channel.timer_ms):
            channel.set_timer(due_ms)
            self.forget(channel)
            self._number += 1
            self._timed[self._number] = channel
            self._timer_of[channel] = self._number
            heapq.heappush(self._timers, (due_ms, self._number))

    def forget(self, channel: Channel) -> None:
        """A deleted channel's messages were in flight for a minute yet: nothing here keeps it, and its files, alive."""
        self._timed.pop(self._timer_of.pop(channel, 0), None)

    def tick(self, mono_ms: int) -> None:
        """Mark the topics that are due, wake the channels that are."""
        for topic in [topic for topic, due_ms in self.later.items() if due_ms <= mono_ms]:
            del self.later[topic]
            topic.mark()
        timers = self._timers
        while timers and timers[0][0] <= mono_ms:
            number = heapq.heappop(timers)[1]
            channel = self._timed.pop(number, None)
            if channel is None:
                continue
            self._timer_of.pop(channel, None)
            channel.set_timer(0)
            if channel.tick(mono_ms):
                self.mark_channel(channel)
            self.time(channel)

    def next_ms(self) -> int:
        """When something is due next; far away when there is nothing."""
        due_ms = self._timers[0][0] if self._timers else words.FAR_MS
        return min(due_ms, min(self.later.values())) if self.later else due_ms
