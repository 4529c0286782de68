"""`[[topic]]` tables of the configuration: shell patterns over names, and what holds for the topics they fit."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping
from typing import TypedDict, cast

from penstock.broker.levels import LEVEL_NAMES, QUEUE_LEVELS
from penstock.errors import ConfigError
from penstock.limits import QUEUES_MAX

_ATTEMPTS_MAX = 65_535


class TopicRule(TypedDict, total=False):
    """What one table may say."""

    name: str
    kind: str
    level: str
    queues: int
    max_attempts: int


_KNOWN = set(TopicRule.__annotations__)


def topic_rules(rules: Iterable[Mapping[str, object]]) -> list[tuple[re.Pattern[str], TopicRule]]:
    """(pattern, settings) of each. ConfigError where one makes no sense."""
    found = []
    for rule in rules:
        unknown = set(rule) - _KNOWN
        if unknown or "name" not in rule:
            raise ConfigError(
                f"[[topic]] has {sorted(unknown) or 'no name'}", "It takes name, kind, level, queues and max_attempts."
            )
        if not isinstance(rule["name"], str) or not rule["name"]:
            raise ConfigError(
                f"[[topic]] name cannot be {rule['name']!r}", "It is a name, or a pattern such as bank-*."
            )
        queues = rule.get("queues", 1)
        if type(queues) is not int or not 1 <= queues <= QUEUES_MAX:
            raise ConfigError(f"[[topic]] {rule['name']}: queues is a number from 1 to {QUEUES_MAX}")
        limit = rule.get("max_attempts", 0)
        if type(limit) is not int or not 0 <= limit <= _ATTEMPTS_MAX:
            raise ConfigError(f"[[topic]] {rule['name']}: max_attempts is a number from 0 to {_ATTEMPTS_MAX}")
        if rule.get("level", "os") not in LEVEL_NAMES or rule.get("kind", "log") not in ("log", "queue"):
            raise ConfigError(
                f"[[topic]] {rule['name']}: level is os, disk, memory, pair or pair-disk, kind is queue or log"
            )
        if rule.get("level") == "memory" and rule.get("kind") == "log":
            raise ConfigError(f"[[topic]] {rule['name']}: a log topic's level is os, disk, pair or pair-disk")
        if rule.get("kind") == "queue" and rule.get("level", "os") not in QUEUE_LEVELS:
            raise ConfigError(f"[[topic]] {rule['name']}: a queue topic has no copies, its level is os, disk or memory")
        found.append((re.compile(fnmatch.translate(str(rule["name"]))), cast(TopicRule, dict(rule))))
    return found
