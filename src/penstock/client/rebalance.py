"""How the consumers of a group share the message queues of a topic. Every client computes the same, without asking.

A strategy is called with (own client id, all queues sorted, all client ids sorted) and returns this client's part.
The parts of all clients must be disjoint and together complete.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from penstock.client.routes import MessageQueue

Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]


def average(me: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> Sequence[MessageQueue]:
    """Neighbouring queues to each, the first clients one more if they do not come out even: the default."""
    if me not in clients:
        return []
    index = clients.index(me)
    size, more = divmod(len(queues), len(clients))
    start = index * size + min(index, more)
    return queues[start : start + size + (1 if index < more else 0)]


def circle(me: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> Sequence[MessageQueue]:
    """One queue after the other to each client in turn."""
    return queues[clients.index(me) :: len(clients)] if me in clients else []


def fixed(queues: Sequence[MessageQueue]) -> Allocate:
    """Always these queues; the users see to it that the parts fit together."""
    mine = frozenset(queues)

    def allocate(me: str, queues: Sequence[MessageQueue], clients: Sequence[str]) -> Sequence[MessageQueue]:
        return [queue for queue in queues if queue in mine]

    return allocate


def changes(
    assigned: Mapping[MessageQueue, object], wanted: Sequence[MessageQueue], topic: str
) -> tuple[list[MessageQueue], list[MessageQueue]]:
    """(queues to give up, queues to take) of one topic."""
    target = set(wanted)
    return (
        [queue for queue in assigned if queue.topic == topic and queue not in target],
        [queue for queue in wanted if queue not in assigned],
    )
