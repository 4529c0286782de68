"""What the fields of some events are, and which chart shows them best. Pure: samples in, a plan out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

Kind = Literal["number", "time", "text"]
Event = dict[str, Any]

_FORMATS = ("%d/%b/%Y:%H:%M:%S %z", "%Y/%m/%d %H:%M:%S", "%d.%m.%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%m/%d/%Y %H:%M",
            "%Y/%m/%d", "%d.%m.%Y", "%m/%d/%Y")  # fmt: skip
_WITHOUT_YEAR = re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d")  # a system log's
_TIME_NAMES = re.compile(
    r"(?i)(^|_)(time|timestamp|ts|date|datetime|epoch|at|when|created|updated)($|_)|timestamp$|[a-z]At$"
)
_ID_NAMES = re.compile(r"(?i)(^|_)(id|pid|uid|no|nr|number|index|code|status|zip|port)$|Id$|^unnamed")
_AXIS_NAMES = re.compile(r"(?i)^(time|hour|hours|day|weekday|month|minute|week|year|age|x|step|position)$")
_VALUE_NAMES = re.compile(
    r"(?i)(value|cpu|amount|price|total|count|temperature|delay|duration|latency|speed|score|size)"
)
SERIES_MAX = 5


@dataclass(frozen=True)
class Field:
    """A field of the events."""

    name: str
    kind: Kind


@dataclass(frozen=True)
class Plan:
    """A chart to be drawn.

    time: `y` (mean; None: number of events) over the time field `x`; bins: the same over classes of the number `x`;
    top: the commonest values of the text `x`, or those with the largest sum of `y`. `series` splits it.
    """

    kind: Literal["time", "bins", "top"]
    x: str
    y: str | None = None
    series: str | None = None


def read_time(value: object, name: str = "") -> datetime | None:
    """The moment a value means, in UTC, or None. Numbers count only under a name that promises a time."""
    if isinstance(value, datetime):
        return value.astimezone(UTC) if value.tzinfo else value.replace(tzinfo=UTC)
    number = read_number(value)
    if number is not None:
        if not _TIME_NAMES.search(name):
            return None
        for low, scale in ((1e8, 1), (1e11, 1e3), (1e14, 1e6), (1e17, 1e9)):
            if low <= number < low * 45:
                return datetime.fromtimestamp(number / scale, UTC)
        return None
    text = str(value).strip()
    if not 6 <= len(text) <= 40 or not any(c.isdigit() for c in text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        for form in _FORMATS:
            try:
                moment = datetime.strptime(text, form)
                break
            except ValueError:
                continue
        else:
            return _latest(text)
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _latest(text: str) -> datetime | None:
    """The last moment that a time without a year can mean."""
    if not _WITHOUT_YEAR.fullmatch(text):
        return None
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    for year in range(tomorrow.year, tomorrow.year - 9, -1):  # so far apart may two days of 29 February be
        with suppress(ValueError):
            moment = datetime.strptime(f"{year} {text}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC)
            if moment <= tomorrow:
                return moment
    return None


def read_number(value: object) -> float | None:
    """The number a value means, or None; NaN and infinity are none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if value == value and abs(value) != float("inf") else None
    if not isinstance(value, str) or not re.fullmatch(r"\s*[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*", value, re.ASCII):
        return None
    return float(value)


def fields_of(sample: Sequence[Event]) -> list[Field]:
    """The fields of a sample, in order of appearance; nine tenths of the values must agree on a kind."""
    names = dict.fromkeys(name for event in sample for name in event)
    found = []
    for name in names:
        values = [event[name] for event in sample if event.get(name) not in (None, "", "-", "NA", "nan", "null")]
        kind: Kind = "text"
        if values:
            if sum(read_time(value, name) is not None for value in values) >= 0.9 * len(values):
                kind = "time"
            elif sum(read_number(value) is not None for value in values) >= 0.9 * len(values):
                kind = "number"
        found.append(Field(name, kind))
    return found


def convert(event: Event, fields: Sequence[Field]) -> Event:
    """The event with each value of its field's kind: a number, a UTC time as text, or text; None where it is not."""
    made: Event = {}
    for field in fields:
        value = event.get(field.name)
        if value is None:
            made[field.name] = None
        elif field.kind == "number":
            made[field.name] = read_number(value)
        elif field.kind == "time":
            moment = read_time(value, field.name)
            made[field.name] = moment.strftime("%Y-%m-%d %H:%M:%S.%f") if moment else None
        else:
            made[field.name] = value if isinstance(value, str) else str(value)
    return made


def choose(sample: Sequence[Event], fields: Sequence[Field], sources: int = 1) -> Plan:
    """The chart that says most about events with these fields."""
    times = [f.name for f in fields if f.kind == "time"]
    numbers = [f.name for f in fields if f.kind == "number" and not _ID_NAMES.search(f.name)]
    groups = [name for name in (f.name for f in fields) if _is_category(sample, name, fields)]
    numbers.sort(key=lambda name: _VALUE_NAMES.search(name) is None)  # a stable sort: likely values first
    series = "source" if sources > 1 and "source" in groups else None
    if times:
        y = numbers[0] if numbers else None
        few = [g for g in groups if len(_values(sample, g)) <= (8 if y is None else 60)]
        return Plan("time", times[0], y, series or (few[0] if few else None))
    if len(numbers) >= 2:
        axes = [name for name in numbers if _AXIS_NAMES.search(name)]
        x = axes[0] if axes else next(n for n in reversed(numbers) if n != numbers[0])
        return Plan("bins", x, next(n for n in numbers if n != x), series)
    if groups:
        return Plan("top", groups[0], numbers[0] if numbers else None)
    if numbers:
        return Plan("bins", numbers[0])
    texts = [f.name for f in fields if f.kind == "text"]
    return Plan("top", texts[0] if texts else fields[0].name)


def _values(sample: Sequence[Event], name: str) -> set[str]:
    return {str(event.get(name)) for event in sample if event.get(name) not in (None, "")}


def _is_category(sample: Sequence[Event], name: str, fields: Sequence[Field]) -> bool:
    """Something to group by: text or a code, with a few values that come again."""
    kind = next(f.kind for f in fields if f.name == name)
    if kind == "time" or (kind == "number" and not re.search(r"(?i)(^|_)(status|code|level)$", name)):
        return False
    count = len(_values(sample, name))
    return 2 <= count <= 200 and count <= 0.5 * len(sample)
