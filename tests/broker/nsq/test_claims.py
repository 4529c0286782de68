"""Which channels a deferred message is owed to."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.broker.nsq.claims import Claims
from penstock.broker.nsq.entry import Deferred
from penstock.broker.nsq.topics import Topic

PUBLISHED = Deferred(b"t", b"", 7, 0, 7)
GIVEN_BACK = Deferred(b"t", b"a", 7, 1, 7, place=0)


@pytest.fixture
def topic(tmp_path: Path) -> Topic:
    topic = Side(tmp_path).queueing.topic(b"t")
    for name in (b"a", b"b"):
        topic.channel(name)
    return topic


def test_published_with_a_delay_is_for_all_that_were_there(topic: Topic) -> None:
    claims = Claims()
    assert claims.claimants(topic, PUBLISHED, 101) is None
    claims.begin(b"t", b"b", 101)  # emptied behind it, or made since
    assert claims.claimants(topic, PUBLISHED, 101) == {b"a"}
    assert claims.claimants(topic, PUBLISHED, 102) is None
    claims.begin(b"t", b"a", 200)
    assert claims.claimants(topic, PUBLISHED, 102) == {b"b"}
    assert claims.claimants(topic, PUBLISHED, 50) == set()


def test_given_back_is_for_its_channel(topic: Topic) -> None:
    claims = Claims()
    assert claims.claimants(topic, GIVEN_BACK, 101) == {b"a"}
    claims.begin(b"t", b"a", 101)
    assert claims.claimants(topic, GIVEN_BACK, 101) == set()
    topic.delete_channel(b"a")
    assert claims.claimants(topic, GIVEN_BACK, 500) == set()


def test_the_last_entry_of_a_message_counts(topic: Topic) -> None:
    claims = Claims()
    for schedule_id in (50, 90, 70):
        claims.replace(GIVEN_BACK, schedule_id)
    assert claims.claimants(topic, GIVEN_BACK, 50) == claims.claimants(topic, GIVEN_BACK, 70) == set()
    assert claims.claimants(topic, GIVEN_BACK, 90) == {b"a"}
    assert claims.claimants(topic, PUBLISHED, 50) == {b"b"}


def test_a_claim_begins_once(topic: Topic) -> None:
    claims = Claims()
    claims.begin_once(b"t", b"a", 10)
    claims.begin_once(b"t", b"a", 20)
    assert claims.since(b"t", b"a") == 10
    claims.forget(b"t", b"a")
    assert (claims.since(b"t", b"a"), len(claims)) == (0, 0)


def test_the_first_channel_claims_what_came_since_its_topic_began(tmp_path: Path) -> None:
    topic, claims = Side(tmp_path).queueing.topic(b"t"), Claims()
    assert claims.claimants(topic, PUBLISHED, 101) is None
    claims.begin_topic(b"t", 101)
    assert claims.claimants(topic, PUBLISHED, 101) == set()
    assert claims.claimants(topic, PUBLISHED, 102) is None
    claims.forget_topic(b"t")
    assert claims.since_topic(b"t") == 0


def test_what_was_given_back_before_a_channel_was_emptied(topic: Topic) -> None:
    claims = Claims()
    assert not claims.is_before(GIVEN_BACK, 101)
    claims.begin(b"t", b"a", 101)
    assert claims.is_before(GIVEN_BACK, 101)
    assert not claims.is_before(GIVEN_BACK, 102)
