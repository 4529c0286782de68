"""PUB and MPUB out of the bytes that were read: sizes, all or none, counts by topic."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from fronts.frontside import NsqSide
from fronts.nsq_peer import mpub, sized
from penstock.fronts.nsq.publishing import SEATS_LOOKED_AT, Publisher, Seat


def test_messages_are_counted_by_topic(tmp_path: Path) -> None:
    side = NsqSide(tmp_path)
    session = side.session()
    assert isinstance(session.publisher, Publisher)
    assert side.say(session, (b"PUB t\n" + sized(b"x")) * 3 + b"PUB u\n" + sized(b"y")) == [b"OK"] * 4
    assert side.say(session, mpub(b"t", b"a", b"b")) == [b"OK"]
    session.publisher.settle_counts()
    assert session.publisher.counts == {b"t": 5, b"u": 1}
    assert [session.publisher.any_to(topic) for topic in (b"t", b"u", b"v")] == [True, True, False]
    assert (side.queueing.topic(b"t").message_count, side.queueing.topic(b"u").message_count) == (5, 1)
    side.close()


def test_a_topic_that_was_deleted_between_two_messages_is_made_anew(tmp_path: Path) -> None:
    side = NsqSide(tmp_path)
    session = side.session()
    both = b"PUB t\n" + sized(b"x") + b"PUB u\n" + sized(b"y")
    assert side.say(session, both * 2) == [b"OK"] * 4
    former = side.queueing.topic(b"t")
    side.queueing.delete(former)
    assert side.say(session, both * 2) == [b"OK"] * 4
    assert side.queueing.topic(b"t") is not former
    session.publisher.settle_counts()
    assert session.publisher.counts == {b"t": 4, b"u": 4}
    assert (side.queueing.topic(b"t").message_count, side.queueing.topic(b"u").message_count) == (2, 4)
    side.close()


def test_a_connection_keeps_no_topics_of_a_moment(tmp_path: Path) -> None:
    """It may publish to another name each second, for years."""
    side = NsqSide(tmp_path, max_topic_creations_per_second=100_000)
    session = side.session()
    gone = []
    for n in range(SEATS_LOOKED_AT + 1):
        assert side.say(session, b"PUB t%d#ephemeral\n" % n + sized(b"x")) == [b"OK"]
        if n < SEATS_LOOKED_AT - 1:
            topic = side.queueing.topic(b"t%d#ephemeral" % n)
            side.queueing.delete(topic)
            if n == 0:
                gone.append(topic)
    del topic
    assert not [holder for holder in gc.get_referrers(gone[0]) if isinstance(holder, Seat)]
    session.publisher.settle_counts()
    assert session.publisher.counts[b"t0#ephemeral"] == 1
    side.close()


@pytest.mark.parametrize("cut", [1, 7, 9, 12])
def test_a_body_that_is_not_there_yet_is_waited_for(tmp_path: Path, cut: int) -> None:
    side = NsqSide(tmp_path)
    session = side.session()
    data = bytearray(b"PUB t\n" + sized(b"hello"))
    side.front.begin_turn()
    assert session.feed(data, cut) == 0
    assert session.feed(data, len(data)) == len(data)
    side.turn()
    assert side.frames(session) == [b"OK"]
    side.close()


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"PUB t\n\0\0\0\0", b"E_BAD_MESSAGE PUB invalid message body size 0"),
        (b"PUB t\n\x00\x01\x00\x00", b"E_BAD_MESSAGE PUB message too big"),
        (b"PUB a/b\n" + sized(b"x"), b"E_BAD_TOPIC PUB topic name"),
        (b"MPUB t\n" + sized(b"\0\0\0\0"), b"E_BAD_BODY MPUB invalid message count 0"),
        (b"MPUB t\n" + sized(b"\0\0\0\2" + sized(b"a")), b"E_BAD_BODY MPUB invalid"),
        (b"MPUB t\n" + sized(b"\0\0\0\1" + b"\0\0\0\0"), b"E_BAD_MESSAGE MPUB invalid message(0) body size 0"),
    ],
)
def test_what_cannot_be_published_stores_nothing(tmp_path: Path, data: bytes, code: bytes) -> None:
    side = NsqSide(tmp_path)
    session = side.session()
    (frame,) = side.say(session, data)
    assert frame.startswith(code)
    assert session.closing
    topic = side.queueing.topics.get(b"t")
    assert topic is None or topic.message_count == 0
    side.close()


def test_answers_leave_when_the_system_has_their_messages(tmp_path: Path) -> None:
    side = NsqSide(tmp_path)
    session = side.session()
    gathering, path = side.queueing.folder.pool.gathering, tmp_path / "queues" / "T" / "T_1.queue"
    gathering.begins = 0
    data = bytearray(b"PUB T\n" + sized(b"one") + mpub(b"T", b"two", b"three"))
    assert session.feed(data, len(data)) == len(data)
    assert b"three" not in path.read_bytes()
    assert side.frames(session) == [b"OK", b"OK"]
    assert b"one" in path.read_bytes()
    assert b"three" in path.read_bytes()
    assert gathering.segment is None
    side.close()


@pytest.mark.parametrize("size", [None, 0, -1, 1 << 20])
def test_a_publish_without_a_message_makes_no_topic(tmp_path: Path, size: int | None) -> None:
    """Nor does nsqd: a topic stays, is told to registries, and counts."""
    side = NsqSide(tmp_path)
    session = side.session()
    data = bytearray(b"PUB t\n" + (1 if size is None else size).to_bytes(4, signed=True))
    side.front.begin_turn()
    session.feed(data, len(data))
    assert b"t" not in side.queueing.topics
    if size is None:
        whole = bytearray(data + b"x")
        assert session.feed(whole, len(whole)) == len(whole)
        assert b"t" in side.queueing.topics
    side.close()
