"""Which message queue a message is sent to, by what is known of its topic now: asked by any thread, answered without I/O."""

from __future__ import annotations

import random
from collections.abc import Sequence

import cython

from penstock.client.gathering import Selector
from penstock.client.routes import MessageQueue, Route
from penstock.client.sending import by_sharding_key
from penstock.message import Message

if cython.compiled:
    from cython.cimports.penstock.octets import monotonic_s
else:
    from penstock.octets import monotonic_s

GUESS_S = 1.0  # how long a new topic's route may be guessed before the name server is asked again
_STARTS = 1 << 16


class Turn:
    """Takes the queues of a topic in turn; after a failure preferably one of another broker."""

    def __init__(self, start: int = 0) -> None:
        self._next = start

    def pick(self, queues: Sequence[MessageQueue], avoid: str | None = None) -> MessageQueue:
        """The next queue, one not of the broker `avoid` where there is one."""
        count = len(queues)
        for _ in range(count):
            queue = queues[self._next % count]
            self._next += 1
            if avoid is None or queue.broker != avoid:
                break
        return queue


class Topic:
    """What is known of a topic that was sent to: the queues of a route, and whose turn it is. `lately`: those of the last route
    that had any.
    """

    def __init__(self, turn: Turn) -> None:
        self.route: Route | None = None
        self.queues: list[MessageQueue] = []
        self.lately: list[MessageQueue] | None = None
        self.addresses: dict[str, str | None] = {}  # where brokers take its messages, by their names
        self.turn = turn

    def know(self, route: Route) -> None:
        """This is its route now. It is put there last: a thread that finds it finds what belongs to it."""
        queues = route.publish_queues()
        self.addresses = {queue.broker: route.publish_address(queue.broker) for queue in queues}
        self.queues = queues
        self.lately = queues or self.lately
        self.route = route


class Choosing:
    """What is known of topics: `routes` are those that the name servers have answered, kept by whoever asks them."""

    def __init__(self, routes: dict[str, Route]) -> None:
        self._routes = routes
        self._guesses: dict[str, tuple[float, Route]] = {}
        self._topics: dict[str, Topic] = {}

    def guess(self, route: Route) -> None:
        """A topic does not exist yet, and will have this route."""
        self._guesses[route.topic] = monotonic_s() + GUESS_S, route

    def forget_guess(self, topic: str) -> None:
        """It was wrong, or the name server knows better by now."""
        self._guesses.pop(topic, None)

    def route(self, topic: str) -> Route | None:
        """The topic's route, where it is known."""
        if self._guesses:
            until_s, guessed = self._guesses.get(topic, (0.0, None))
            if guessed is not None and until_s > monotonic_s():
                return guessed
        return self._routes.get(topic)

    def queues(self, topic: str) -> list[MessageQueue] | None:
        """The queues that can be sent to, or that could, where there are none just now; None before they are known.

        So a message goes behind those of its queue that wait already, however often the name servers are asked meanwhile.
        """
        route = self.route(topic)
        if route is not None:
            self.queues_of(route)
        known = self._topics.get(topic)
        return None if known is None else known.lately

    def queues_of(self, route: Route) -> list[MessageQueue]:
        """The queues of its topic's route that can be sent to; from now on they are known."""
        known = self._topic(route.topic)
        if known.route is not route:
            known.know(route)
        return known.queues

    def choose(
        self, route: Route, message: Message, queue: MessageQueue | None, selector: Selector | None
    ) -> MessageQueue | None:
        """The queue to send to, where those of this route are known; else None."""
        known = self._topics.get(message.topic)
        if known is None or known.route is not route or not known.queues:
            return None
        if queue is not None:
            return queue if queue.topic == message.topic else None
        if selector is not None:
            return selector(known.queues, message)
        key = message.sharding_key
        return known.turn.pick(known.queues) if key is None else by_sharding_key(key, known.queues)

    def address(self, route: Route, queue: MessageQueue) -> str | None:
        """The route's `publish_address` of a queue's broker; None: nobody takes its messages now."""
        known = self._topics.get(queue.topic)
        if known is not None and known.route is route and queue.broker in known.addresses:
            return known.addresses[queue.broker]
        return route.publish_address(queue.broker)

    def turn(self, topic: str) -> Turn:
        """Whose turn it is."""
        return self._topic(topic).turn

    def _topic(self, topic: str) -> Topic:
        known = self._topics.get(topic)
        if known is None:
            known = self._topics.setdefault(topic, Topic(Turn(random.randrange(_STARTS))))
        return known
