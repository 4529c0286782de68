"""What fields are, and which chart is chosen for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from penstock.demo.shape import Field, Plan, choose, convert, fields_of, read_number, read_time


@pytest.mark.parametrize(
    ("value", "name", "expected"),
    [
        ("2015-02-26 21:42:53", "x", datetime(2015, 2, 26, 21, 42, 53, tzinfo=UTC)),
        ("2015-02-26T21:42:53+01:00", "x", datetime(2015, 2, 26, 20, 42, 53, tzinfo=UTC)),
        ("17/May/2015:10:05:03 +0000", "x", datetime(2015, 5, 17, 10, 5, 3, tzinfo=UTC)),
        (1_700_000_000, "timestamp", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        ("1700000000000", "createdAt", datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        (1_700_000_000, "amount", None),
        (13.5, "time", None),
        ("hello", "time", None),
        ("12", "time", None),
    ],
)
def test_moments(value: object, name: str, expected: datetime | None) -> None:
    assert read_time(value, name) == expected


@pytest.mark.parametrize("text", ["Jan  5 10:20:30", "Dec 31 23:59:59", "Feb 29 12:00:00"])
def test_a_time_without_a_year_is_the_last_one(text: str) -> None:
    found = read_time(text, "time")
    assert found is not None
    assert found.strftime("%b %e %H:%M:%S") == text
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    assert found <= tomorrow
    assert tomorrow - found < timedelta(days=366 if "29" not in text else 8 * 366)


@pytest.mark.parametrize("text", ["Feb 30 12:00:00", "Foo 12 12:00:00", "Jan 12 25:00:00"])
def test_what_looks_like_a_time_without_a_year(text: str) -> None:
    assert read_time(text, "time") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [("1.5", 1.5), (" -3 ", -3.0), ("1e3", 1000.0), (True, None), ("nan", None), ("1,5", None), (float("inf"), None)],
)
def test_numbers(value: object, expected: float | None) -> None:
    assert read_number(value) == expected


def test_a_field_is_what_nine_tenths_of_its_values_are() -> None:
    sample = [{"a": "1", "b": "x", "c": "2020-01-01", "d": None}] * 19 + [{"a": "oops", "b": "2", "c": "", "d": None}]
    assert fields_of(sample) == [Field("a", "number"), Field("b", "text"), Field("c", "time"), Field("d", "text")]
    assert convert({"a": "oops", "b": 7, "c": "2020-01-01"}, fields_of(sample)) == {
        "a": None,
        "b": "7",
        "c": "2020-01-01 00:00:00.000000",
        "d": None,
    }


def plan(*events: dict[str, object], sources: int = 1) -> Plan:
    sample = [event for event in events for _ in range(10)]
    return choose(sample, fields_of(sample), sources)


def test_a_time_and_a_number_are_a_line_over_time() -> None:
    assert plan({"timestamp": "2020-01-01 00:00:00", "value": 3}) == Plan("time", "timestamp", "value")
    two = [{"timestamp": "2020-01-01 00:00:00", "value": n, "source": s} for n, s in ((1, "a"), (2, "b"))]
    assert plan(*two, sources=2) == Plan("time", "timestamp", "value", "source")


def test_a_time_alone_counts_events() -> None:
    lines = [{"time": "2020-01-01 00:00:00", "level": level, "line": f"{level} x"} for level in ("INFO", "WARN")]
    assert plan(*lines) == Plan("time", "time", None, "level")


def test_numbers_without_a_time_are_classes_of_the_likeliest_axis() -> None:
    sample = [{"delay": n % 50, "distance": n * 7, "time": n % 24} for n in range(100)]
    assert choose(sample, fields_of(sample)) == Plan("bins", "time", "delay")
    assert choose([{"length": n} for n in range(9)], [Field("length", "number")]) == Plan("bins", "length")


def test_categories_without_numbers_are_ranked() -> None:
    sample = [{"country": "de"}, {"country": "fr"}] * 10
    assert choose(sample, fields_of(sample)) == Plan("top", "country")
    words = [{"word": f"w{n}"} for n in range(50)]
    assert choose(words, fields_of(words)) == Plan("top", "word")
