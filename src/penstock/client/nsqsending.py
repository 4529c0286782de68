"""What of a message a queue topic can take, and how long one waits that failed. No I/O here."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from penstock.message import Message
from penstock.wire.names import NSQ_NAME

_FOREIGN = ("keys", "tags", "properties", "flag", "sharding_key")  # what a queue topic has no place for
_NAME = re.compile(NSQ_NAME.decode())

# RocketMQ's delay levels 1 to 18, in seconds, as brokers have them by default
LEVELS_S = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def check_plain(messages: Sequence[Message]) -> None:
    """ValueError for what has no place in a queue topic: it holds bodies, and a due time, nothing else."""
    if len(messages) != 1 and len({message.topic for message in messages}) != 1:
        raise ValueError("a batch holds at least one message, all of one topic")
    _check_name("topic", messages[0].topic)
    for message in messages:
        if message.keys or message.tags or message.properties or message.flag or message.sharding_key:
            name = next(name for name in _FOREIGN if getattr(message, name))
            raise ValueError(f"topic {message.topic!r} is a queue topic: its messages have a body and no {name}")
        if not message.body:
            raise ValueError(f"topic {message.topic!r} is a queue topic: its messages are not empty")
        if len(messages) > 1 and (message.delay_level or message.deliver_at_ms is not None):
            raise ValueError("delayed messages cannot be sent in a batch")


def defer_ms(message: Message, now_ms: int) -> int:
    """How long the message is to wait, 0: not at all."""
    if message.delay_level:
        return LEVELS_S[min(message.delay_level, len(LEVELS_S)) - 1] * 1000
    return 0 if message.deliver_at_ms is None else max(0, message.deliver_at_ms - now_ms)


def ladder_s(attempts: int) -> int:
    """How long a message that failed waits, unless the consumer says it: 10 s, 30 s, 1 min … as for log topics."""
    return LEVELS_S[min(attempts + 1, len(LEVELS_S) - 1)]


def level_for(delay_s: float) -> int:
    """The delay level that is not shorter than this, 18 where there is none."""
    return next((level for level, seconds in enumerate(LEVELS_S, 1) if seconds >= delay_s), len(LEVELS_S))


def check_channel(topic: str, group: str) -> None:
    """ValueError when a topic or group cannot be one of NSQ's."""
    _check_name("topic", topic)
    _check_name("channel", group)


@lru_cache(maxsize=4096)
def _check_name(what: str, name: str) -> None:
    if len(name) > 64 or not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be an NSQ {what}: up to 64 letters, digits, dots, _ and -")
