"""What a delay property means: one rule for the broker that stores a message, the schedule and the Spark jobs.

    DELAY               a level of `messageDelayLevel`, from 1; 0 is none, one beyond the last is the last
    TIMER_DELIVER_MS    a timestamp in ms
    TIMER_DELAY_MS      so many ms from the time it is stored
    TIMER_DELAY_SEC     so many seconds from then

DELAY counts before the timers, and of the timers the first in this order. A sender's number is read strictly
(`DelayRule`): one that is none is refused. A record that is stored already is read leniently (`due_by_properties`),
because nobody is left who could be told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from penstock.errors import Refused
from penstock.wire import names
from penstock.wire.codes import ResponseCode
from penstock.words import MS_A_SECOND

LEVEL = names.DELAY
DIGITS_MAX = 18
DUE_END_MS = 1_000_000_000_000_000_000  # a moment has at most so many digits, too: 64 bits hold no more


class Timer(NamedTuple):
    """A property of RocketMQ 5 that asks for a delay: `unit` in ms, `relative` to the time it is stored."""

    name: str
    unit: int
    relative: bool

    def due_ms(self, value: int, stored_ms: int) -> int:
        """The timestamp that a value asks for."""
        return value * self.unit + (stored_ms if self.relative else 0)


TIMERS = (
    Timer(names.TIMER_DELIVER_MS, 1, False),
    Timer(names.TIMER_DELAY_MS, 1, True),
    Timer(names.TIMER_DELAY_SEC, MS_A_SECOND, True),
)
TIMER_PROPERTIES = tuple(timer.name for timer in TIMERS)


def digits(text: str) -> int:
    """A number of at most 18 decimal digits; ValueError for anything else."""
    if not (text.isascii() and text.isdecimal()) or len(text) > DIGITS_MAX:
        raise ValueError(text)
    return int(text)


def due_by_properties(properties: Mapping[str, str], store_ms: int) -> int:
    """The timestamp that the timer properties of a stored record ask for; store_ms when there is none to be read."""
    for timer in TIMERS:
        try:
            return min(timer.due_ms(max(0, int(properties[timer.name])), store_ms), DUE_END_MS - 1)
        except (KeyError, ValueError):
            continue
    return store_ms


class DelayRule:
    """The rule for what is sent, with the levels of one broker."""

    def __init__(self, levels_ms: Sequence[int]) -> None:
        self.levels_ms = levels_ms

    def level(self, text: str) -> int:
        """The level a DELAY property names, the highest when it is beyond; 0: none. Refused (13) when no number."""
        try:
            return max(0, min(len(self.levels_ms), digits(text)))
        except ValueError:
            raise Refused("DELAY is not a number", remoting=ResponseCode.MESSAGE_ILLEGAL) from None

    def due_ms(self, properties: Mapping[str, str], now_ms: int) -> int | None:
        """When a message with these properties is due, or None: at once. Refused (13) when a number is none."""
        if LEVEL in properties:
            level = self.level(properties[LEVEL])
            return now_ms + self.levels_ms[level - 1] if level else None
        for timer in TIMERS:
            if timer.name in properties:
                try:
                    due = timer.due_ms(digits(properties[timer.name]), now_ms)
                except ValueError:
                    raise Refused(f"{timer.name} is not a number", remoting=ResponseCode.MESSAGE_ILLEGAL) from None
                if due >= DUE_END_MS:
                    raise Refused(f"{timer.name} is too far ahead", remoting=ResponseCode.MESSAGE_ILLEGAL)
                return due if due > now_ms else None
        return None
