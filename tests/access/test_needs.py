"""What a name needs: topics of groups, the broker's own, and all others."""

from __future__ import annotations

import pytest

from penstock.access.needs import ADMIN, Need, group, know, look_at_group, publish, subscribe
from penstock.access.users import Verb


def test_a_topic_needs_its_verb() -> None:
    assert publish("t") == Need((Verb.PUBLISH,), "t")
    assert subscribe("t") == Need((Verb.SUBSCRIBE,), "t")
    assert know("t").verbs == (Verb.PUBLISH, Verb.SUBSCRIBE, Verb.MONITOR)


@pytest.mark.parametrize("need", [publish, subscribe, know])
def test_retry_and_dead_letters_are_the_groups(need: object) -> None:
    assert callable(need)
    assert need("%RETRY%g") == need("%DLQ%g") == group("g") == group("g#ephemeral") == Need((Verb.GROUP,), "g")


@pytest.mark.parametrize(
    "name",
    ["SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "Rmq_Sys_x", "OFFSET_MOVED_EVENT"],
)
def test_the_brokers_own_topics_are_the_administrators(name: str) -> None:
    assert publish(name) == subscribe(name) == know(name) == Need((Verb.ADMIN,), name)


def test_the_trace_topic_is_one_like_any_other() -> None:
    assert publish("RMQ_SYS_TRACE_TOPIC") == Need((Verb.PUBLISH,), "RMQ_SYS_TRACE_TOPIC")


def test_refusals_name_what_is_missing() -> None:
    assert [need.described() for need in (publish("t"), group("g"), look_at_group("g"), ADMIN)] == [
        "topic:t", "group:g", "group:g", "admin",
    ]  # fmt: skip
