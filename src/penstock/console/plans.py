"""What a change of a topic would do, shown before it is made: settings of a log topic, a purge."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal

from penstock.aio import Admin
from penstock.console.upstream import Json
from penstock.errors import NotFound

_STEPS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
QUEUES_MAX = 1_024
COUNT_DIGITS_MAX = 18

Start = Literal["first", "last"] | datetime
Wanted = dict[str, int | bool]


def start_of(text: str) -> Start:
    """Where a group is to begin: first, last, a moment, or so long ago (-1h). ValueError."""
    if text in ("first", "last"):
        return "first" if text == "first" else "last"
    if ago := re.fullmatch(r"-(\d{1,6})([smhd])", text):
        seconds = int(ago[1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[ago[2]]
        try:
            return datetime.now(UTC) - timedelta(seconds=seconds)
        except OverflowError:  # before the year 1
            return "first"
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither first, last, a time ago (-1h) nor a moment (2026-01-31T12:00)") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def place_of_purge(text: str) -> Literal["end"] | int | datetime:
    """Up to where a topic is purged: its end, an offset, a moment, or so long ago. ValueError."""
    if text == "end":
        return "end"
    if text.isascii() and text.isdigit() and len(text) < 19:
        return int(text)
    wrong = f"{text!r} is neither end, an offset, a time ago (-1h) nor a moment (2026-01-31T12:00)"
    try:
        start = start_of(text)
    except ValueError:
        raise ValueError(wrong) from None
    if isinstance(start, str):
        raise ValueError(wrong)
    return start


def keep_ms(text: str) -> int:
    """How long messages are kept: 90m, 12h, 7d; 0: as the broker does. ValueError."""
    if text == "0":
        return 0
    found = re.fullmatch(r"(\d{1,6})([mhd])", text)
    if found is None:
        raise ValueError(f"{text!r} is no time: write 90m, 12h, 7d, or 0")
    return int(found[1]) * _STEPS_MS[found[2]]


def later_ms(text: str, now_ms: int) -> int:
    """When a delayed message is to be due: in 90m, 12h, 7d, or at a moment with its time zone. ValueError."""
    found = re.fullmatch(r"\+?(\d{1,6})([mhd])", text)
    if found is not None:
        return now_ms + int(found[1]) * _STEPS_MS[found[2]]
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no time: write 90m, 12h, 7d, or a moment") from None
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: +00:00 is UTC")
    return int(moment.timestamp() * 1000)


def queues_of(text: str) -> int | None:
    """How many message queues; None where nothing is said. ValueError."""
    if not text:
        return None
    if not text.isdecimal() or len(text) > COUNT_DIGITS_MAX or not 1 <= int(text) <= QUEUES_MAX:
        raise ValueError(f"{text[:20]!r} is no number of queues: 1 to {QUEUES_MAX}")
    return int(text)


def limit_of(text: str) -> int | None:
    """How many at most; None where nothing is said: all. ValueError: what is no number does not mean all."""
    if not text:
        return None
    if not text.isdecimal() or len(text) > COUNT_DIGITS_MAX or not int(text):
        raise ValueError(f"{text[:20]!r} is no number from 1 on")
    return int(text)


def rate_of(text: str) -> float | None:
    """How many a second; None where nothing is said: as fast as can be. ValueError."""
    if not text:
        return None
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text) or not float(text):
        raise ValueError(f"{text[:20]!r} is no number above 0")
    return float(text)


def keep_bytes(text: str) -> int:
    """How much is kept: 500M, 10G, or a number; 0: all. ValueError."""
    found = re.fullmatch(r"(\d{1,15})([kmgt]?)(?:i?b)?", text.lower())
    if found is None:
        raise ValueError(f"{text!r} is no size: write 500M, 10G, or 0")
    return int(found[1]) * _UNITS[found[2]]


def wanted_of(asked: dict[str, str]) -> Wanted:
    """The settings that a form names, by what `describe_topic` calls them; an empty field is one that stays. ValueError."""
    wanted: Wanted = {}
    if queues := queues_of(asked.get("queues", "")):
        wanted["writeQueues"] = queues
    if keep := asked.get("keep", ""):
        wanted["retentionMs"] = keep_ms(keep)
    if size := asked.get("keep_bytes", ""):
        wanted["retentionBytes"] = keep_bytes(size)
    if (trace := asked.get("trace", "")) in ("on", "off"):
        wanted["trace"] = trace == "on"
    return wanted


async def alter_plan(admin: Admin, topic: str, wanted: Wanted) -> list[Json]:
    """What would change at each broker, from and to, and how many messages that takes out of sight. NotFound, ValueError."""
    rows: list[Json] = []
    for row in await admin.describe_topic(topic):
        if row["kind"] != "log":
            raise ValueError(f"{topic} is a queue topic: nothing of it can be changed")
        for what, value in wanted.items():
            if row[what] != value:
                lost = await _lost(admin, topic, row, what, int(value))
                rows.append({"broker": row["broker"], "what": what, "from": row[what], "to": value, "lost": lost})
    return rows


async def _lost(admin: Admin, topic: str, row: Json, what: str, value: int) -> int | None:
    """Messages that nobody would see any more; None where that is known only when it is done."""
    if what == "writeQueues" and value < row[what]:
        stats = await admin.topic_stats(topic)
        return sum(
            one.max_offset - one.min_offset
            for queue, one in stats.items()
            if queue.broker == row["broker"] and queue.queue_id >= value
        )
    if what == "retentionMs" and value and not 0 < row[what] <= value:
        return sum(
            int(one["messages"])
            for one in await admin.purge_topic(
                topic, datetime.now(UTC) - timedelta(milliseconds=value), broker=row["broker"], dry_run=True
            )
        )
    return None if what == "retentionBytes" and value else 0


async def alter(admin: Admin, topic: str, wanted: Wanted) -> None:
    """Change what is wanted, and nothing else. NotFound, ValueError."""
    found = await admin.describe_topic(topic)
    if any(row["kind"] != "log" for row in found):
        raise ValueError(f"{topic} is a queue topic: nothing of it can be changed")
    queues = wanted.get("writeQueues")
    if queues is not None:
        await admin.create_topic(topic, queues, force=True, new=False)
    rest = {name: wanted.get(name) for name in ("retentionMs", "retentionBytes", "trace")}
    if any(value is not None for value in rest.values()):
        trace = rest["trace"]
        await admin.keep_topic(
            topic, retention_ms=rest["retentionMs"], retention_bytes=rest["retentionBytes"],
            trace=None if trace is None else bool(trace),
        )  # fmt: skip


async def purge_plan(admin: Admin, topic: str, place: str) -> list[Json]:
    """What a purge would take out of sight, a row a queue. NotFound where nothing lies below, ValueError."""
    rows = await admin.purge_topic(topic, place_of_purge(place), dry_run=True)
    found = [row for row in rows if row["messages"]]
    if not found:
        raise NotFound(f"no message of {topic} lies below {place}", "There is nothing to purge.")
    return found
