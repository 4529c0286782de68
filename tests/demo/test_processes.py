"""This machine's processes as events."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.demo.processes import FIELDS, sample
from penstock.errors import ConfigError


def test_where_there_is_no_proc(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no /proc"):
        next(sample(proc=tmp_path))


def test_an_event_has_the_fields_it_promises() -> None:
    event = next(sample(events=1, seconds=0))
    assert list(event) == [field.name for field in FIELDS]
    assert isinstance(event["pid"], int)
