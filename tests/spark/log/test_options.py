"""The options of `penstock-log`: read, checked, and clashes named."""

from __future__ import annotations

import pytest

from penstock.errors import ConfigError
from penstock.spark.log.options import OPTIONS, parse


def test_values_and_defaults() -> None:
    found = parse({"path": "/data/store", "topics": "a,b", "startingTimestamp": "5", "SPLITBYTES": "1m"})
    assert (found.path, found.topics, found.starting_timestamp, found.split_bytes) == (
        "/data/store",
        ("a", "b"),
        5,
        1 << 20,
    )
    assert (found.verify, found.on_bad_record, found.use_consume_queue) == ("none", "fail", "auto")
    assert len({option.name.lower() for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, "no folder given"),
        ({"path": "x", "columns": "value", "includeHeaders": "true"}, "columns excludes"),
        ({"path": "x", "useConsumeQueue": "true"}, "needs topics"),
        ({"path": "x", "verify": "all"}, "verify"),
        ({"path": "x", "topic_s": "a"}, "topics"),
    ],
)
def test_what_cannot_be_asked(given: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        parse(given)
