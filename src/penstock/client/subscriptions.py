"""What a consumer reads, as heartbeats say it; start positions; the offsets a broker pushes. No I/O here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from penstock.client.routes import Json, MessageQueue
from penstock.errors import Refused, WireError
from penstock.message import ReceivedMessage
from penstock.wire.fastjson import Pairs
from penstock.wire.layout import TOPIC_BYTES_MAX
from penstock.wire.names import GROUP_BYTES_MAX, LOG_NAME, NSQ_NAME, NSQ_NAME_BYTES_MAX
from penstock.wire.record import java_hash

if TYPE_CHECKING:
    from penstock.wire.sql92 import Selector

Start = Literal["first", "last"] | int | datetime
_TIME_MAX_MS = (1 << 63) - 1  # a number of the protocol's header


@dataclass(frozen=True)
class Subscription:
    """A topic and the messages wanted of it: ``*``, or tags separated by ``||``; or an SQL expression."""

    topic: str
    expression: str = "*"
    kind: Literal["TAG", "SQL92"] = "TAG"
    version: int = 0

    @property
    def tags(self) -> frozenset[str]:
        """The tags wanted, empty for all."""
        if self.kind != "TAG" or self.expression.strip() in ("", "*"):
            return frozenset()
        return frozenset(tag for tag in map(str.strip, self.expression.split("||")) if tag)

    def wants(self, message: ReceivedMessage) -> bool:
        """Whether a message that the broker let through by its hash really has one of the tags."""
        tags = self.tags
        return not tags or message.tags in tags

    def as_json(self) -> Json:
        """SubscriptionData."""
        tags = sorted(self.tags)
        return {
            "classFilterMode": False,
            "codeSet": [java_hash(tag) for tag in tags],
            "expressionType": self.kind,
            "subString": self.expression,
            "subVersion": self.version,
            "tagsSet": tags,
            "topic": self.topic,
        }


def check_topic(name: str) -> None:
    """ValueError for a name that no topic may have, of either kind: nobody would ever send to it, or be told so."""
    data = name.encode("utf-8", "replace")
    if not (_fits(LOG_NAME, data, TOPIC_BYTES_MAX) or _fits(NSQ_NAME, data, NSQ_NAME_BYTES_MAX)):
        raise ValueError(
            f"no topic can be called {name!r}: letters, digits, % | _ and -, or of a queue topic . _ and -"
        )


def check_group(name: str) -> None:
    """ValueError for a name that no group may have, nor a channel."""
    data = name.encode("utf-8", "replace")
    if not (_fits(LOG_NAME, data, GROUP_BYTES_MAX) or _fits(NSQ_NAME, data, NSQ_NAME_BYTES_MAX)):
        raise ValueError(f"no group can be called {name!r}: letters, digits, % | _ and -, or of a channel . _ and -")


def _fits(pattern: bytes, name: bytes, most: int) -> bool:
    return len(name) <= most and re.fullmatch(pattern, name) is not None


def selection(topic: str, expression: str = "*", where: str | None = None, version: int = 0) -> Subscription:
    """What tags, or an expression over the properties, leave of a topic. ValueError for both, and for what is none; TypeError."""
    if not isinstance(expression, str):
        raise TypeError(f"an expression is text, not {expression!r}; a listener is given as listener=…")
    if where is None:
        return Subscription(topic, expression, version=version)
    if expression.strip() not in ("", "*"):
        raise ValueError(f"give tags or where, not both: where can ask for tags, too, as in TAGS = '{expression}'")
    selector_of(where)
    return Subscription(topic, where, "SQL92", version)


def selector_of(where: str) -> Selector:
    """An expression over properties, compiled. ValueError when it is none."""
    from penstock.wire.sql92 import compile_selector  # most programs filter by tags alone

    try:
        return compile_selector(where)
    except Refused as refused:
        raise ValueError(str(refused)) from None


def start_ms(start: Start) -> int | None:
    """The moment a start position names, in ms since the epoch; None for "first" and "last". Before the epoch nothing was
    stored, and brokers know negative numbers of other meanings (-1: the end).
    """
    if isinstance(start, datetime):
        if start.tzinfo is None:
            raise ValueError("a start time needs a time zone")
        return max(0, int(start.timestamp() * 1000))
    if isinstance(start, str):
        if start not in ("first", "last"):
            raise ValueError(f"start is first, last, or a time, not {start!r}")
        return None
    if not isinstance(start, int) or isinstance(start, bool):  # seconds with a fraction, say
        raise ValueError(f"a time is an aware datetime, or whole ms since the epoch, not {start!r}")
    return min(max(0, start), _TIME_MAX_MS)


def consume_from(start: Start) -> str:
    """The protocol's name of a start position."""
    return {"first": "CONSUME_FROM_FIRST_OFFSET", "last": "CONSUME_FROM_LAST_OFFSET"}.get(
        str(start), "CONSUME_FROM_TIMESTAMP"
    )


def read_offsets(value: object) -> Iterator[tuple[MessageQueue, int]]:
    """The (queue, offset) pairs of a reset, in any of the three forms brokers send. WireError for anything else."""
    table = value.get("offsetTable") if isinstance(value, dict) else value
    if table == {}:
        return
    if not isinstance(table, list | Pairs):
        raise WireError("not a table of offsets")
    items: Iterable[Any] = table
    for item in items:
        try:
            queue, offset = (item, item["offset"]) if isinstance(item, dict) else item
            yield MessageQueue.from_json(queue), int(offset)
        except (TypeError, KeyError, ValueError) as error:
            raise WireError(f"not a queue and its offset: {item!r}") from error


def mq_table(offsets: Mapping[MessageQueue, object]) -> Pairs:
    """A map with message queues as keys, as Java reads it."""
    return Pairs((queue.as_json(), value) for queue, value in offsets.items())
