"""Admin without an event loop."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock import Message
from penstock.client.blocking import Producer
from penstock.client.blockingadmin import Admin
from penstock.errors import NotFound

Fresh = Callable[[str], str]


def test_topics_and_groups_by_name(registry: str, fresh: Fresh) -> None:
    topic, group = fresh("admin"), fresh("g")
    with Admin(registry) as admin, Producer(registry) as producer:
        admin.create_topic(topic, 1)
        producer.send_batch([Message(topic, b"0"), Message(topic, b"1")])
        with pytest.raises(NotFound):
            admin.check_group(group)
        [moved] = admin.reset_offset(group, topic, "last", new=True).values()
        assert moved == 2
        assert group in admin.groups()
        assert admin.groups_of(topic) == [group]
        admin.delete_group(group)
        assert group not in admin.groups()
