"""Holding: where the channels of a log topic end while it is paused, and where the first one begins when it was emptied.

nsqd moves messages from a topic to its channels; those that came since a pause are the topic's own, and so are all of a topic
without channels. A log moves nothing: it is the places between that are remembered here.
"""

from __future__ import annotations

from penstock.log.consumequeue import ConsumeQueue
from penstock.words import FAR_MS

PLACE_MAX = 1 << 62


def places(told: object) -> list[int]:
    """Places of the queues of a topic, as a table or a master says them. ValueError when it says something else."""
    if not isinstance(told, list) or not all(type(place) is int and 0 <= place < PLACE_MAX for place in told):
        raise ValueError("places of queues that are none")
    return told


class Holding:
    """See the module. Both are one offset for each queue, in their order."""

    def __init__(self) -> None:
        self.paused = False
        self.held: list[int] = []  # where each queue ended when the topic was paused
        self.floors: list[int] = []  # what lies below is not owed to the first channel

    def begin(self) -> None:
        """The topic is paused: nothing of a queue that is not named."""
        self.paused = True

    def hold(self, ends: list[int]) -> None:
        """Channels of the paused topic get what lies below, and no more."""
        self.paused, self.held = True, ends

    def release(self) -> None:
        """They get everything."""
        self.paused, self.held = False, []

    def raise_floors(self, floors: list[int]) -> None:
        """The first channel begins here."""
        self.floors = floors

    def limit(self, number: int) -> int:
        """Where channels end in this queue."""
        if not self.paused:
            return FAR_MS
        return self.held[number] if number < len(self.held) else 0

    def first(self, queue: ConsumeQueue) -> int:
        """The oldest message of a queue that is owed to the first channel."""
        number, begin = queue.queue_id, queue.min_offset
        return int(max(begin, self.floors[number]) if number < len(self.floors) else begin)

    def about(self) -> dict[str, object]:
        """For the table of topics, and for slaves."""
        return {"held": self.held, "floors": self.floors}
