"""`[[topic]]` rules: what they may say."""

from typing import Any

import pytest

from penstock.broker.rules import topic_rules
from penstock.errors import ConfigError


def test_a_limit_of_attempts() -> None:
    [(pattern, rule)] = topic_rules([{"name": "jobs-*", "kind": "queue", "max_attempts": 5}])
    assert pattern.fullmatch("jobs-1")
    assert rule["max_attempts"] == 5


@pytest.mark.parametrize("limit", [-1, 65_536, "5", True, 1.5])
def test_no_limit_of_attempts(limit: Any) -> None:
    with pytest.raises(ConfigError, match="max_attempts"):
        topic_rules([{"name": "jobs", "max_attempts": limit}])


@pytest.mark.parametrize("rule", [{"kind": "queue"}, {"name": "a", "sort": 1}, {"name": "a", "level": "paper"}])
def test_other_mistakes(rule: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        topic_rules([rule])
