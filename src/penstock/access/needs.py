"""What a request needs: a verb and a name. Topics that belong to a group are asked for as that group; the broker's own as
an administrator, whatever name a client gives them.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.access.users import Verb
from penstock.wire.names import (
    BENCHMARK_TOPIC,
    DEAD_PREFIX,
    EPHEMERAL_TEXTS,
    RETRY_PREFIX,
    SELF_TEST_TOPIC,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    TEMPLATE_TOPIC,
    TRACE_TOPIC,
)

_OF_GROUPS = (RETRY_PREFIX.decode(), DEAD_PREFIX.decode())
_OPEN = frozenset(
    name.decode() for name in (BENCHMARK_TOPIC, SELF_TEST_TOPIC, TEMPLATE_TOPIC, TRACE_TOPIC)
)  # system topics that rights are given for


class Need(NamedTuple):
    """One right that a request needs; without verbs: to be a user at all. One of several verbs is enough. `told`: what a refusal
    says in place of a name that the asker has not said.
    """

    verbs: tuple[Verb, ...] = ()
    name: str = ""
    told: str = ""

    def described(self) -> str:
        """For the text of a refusal, as RocketMQ writes it."""
        if self.told:
            return self.told
        kind = "group" if Verb.GROUP in self.verbs else "topic"
        return f"{kind}:{self.name}" if self.name else " or ".join(self.verbs)


USER = Need()
MONITOR = Need((Verb.MONITOR,))
REGISTER = Need((Verb.REGISTER,))
ADMIN = Need((Verb.ADMIN,))


def _topic(name: str, *verbs: Verb) -> Need:
    for prefix in _OF_GROUPS:
        if name.startswith(prefix):
            return group(name[len(prefix) :])
    if (name.lower().startswith(SYSTEM_PREFIX) or name in SYSTEM_TOPICS) and name not in _OPEN:
        return Need((Verb.ADMIN,), name)
    return Need(verbs, name)


def publish(topic: str) -> Need:
    """To send to a topic."""
    return _topic(topic, Verb.PUBLISH)


def subscribe(topic: str) -> Need:
    """To read a topic."""
    return _topic(topic, Verb.SUBSCRIBE)


def know(topic: str) -> Need:
    """To learn of a topic what is no message: its route, its offsets."""
    return _topic(topic, Verb.PUBLISH, Verb.SUBSCRIBE, Verb.MONITOR)


def group(name: str) -> Need:
    """To consume as a group, or by a channel."""
    for suffix in EPHEMERAL_TEXTS:
        name = name.removesuffix(suffix)
    return Need((Verb.GROUP,), name)


def look_at_group(name: str) -> Need:
    """To learn of a group how it is doing."""
    return Need((Verb.GROUP, Verb.MONITOR), name)
