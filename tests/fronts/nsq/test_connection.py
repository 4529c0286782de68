"""A connection below its commands: answers that wait for a flush hold back what is behind them."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from fronts.frontside import NsqSide
from fronts.nsq_peer import Message, NsqPeer, sized
from penstock.errors import StoreError
from penstock.fronts.nsq.connection import Failed, NsqConnection
from penstock.testing import Broker
from polling import eventually


def test_at_level_disk_an_answer_comes_after_the_flush_and_those_behind_it_too(tmp_path: Path) -> None:
    side = NsqSide(tmp_path, level="disk")
    session = side.session()
    assert isinstance(session, NsqConnection)
    data = bytearray(b"PUB t\n" + sized(b"x") + b"FIN " + b"0" * 16 + b"\n")
    side.front.begin_turn()
    session.feed(data, len(data))
    assert session.take() == b""
    side.turn()  # the flush
    first, *_ = side.frames(session)
    assert first == b"OK"
    side.close()


def test_an_answer_goes_by_the_level_that_a_log_topic_was_given_since(tmp_path: Path) -> None:
    """NSQ's clients know the topic already."""
    side = NsqSide(tmp_path)
    side.broker.topics.create(b"t", 1, 1)
    session = side.session()
    data = bytearray(b"PUB t\n" + sized(b"x"))
    side.front.begin_turn()
    session.feed(data, len(data))
    assert session.take().endswith(b"OK")
    side.broker.topics.create(b"t", 1, 1, level=1)
    session.feed(data, len(data))
    assert session.take() == b""
    side.turn()  # the flush
    assert list(side.frames(session)) == [b"OK"]
    side.close()


def test_a_failed_flush_is_answered_with_an_error_and_the_end(tmp_path: Path) -> None:
    side = NsqSide(tmp_path, level="disk")
    session = side.session()
    data = bytearray(b"PUB t\n" + sized(b"x"))
    side.front.begin_turn()
    session.feed(data, len(data))
    side.queueing.flush.fail(StoreError("the disk failed"))
    side.turn()
    (frame,) = side.frames(session)
    assert frame.startswith(b"E_PUB_FAILED")
    assert session.closing
    side.broker.close(False)


def test_errors_are_counted_by_their_code(tmp_path: Path) -> None:
    side = NsqSide(tmp_path)
    session = side.session()
    session.error(b"E_FIN_FAILED FIN x failed")
    session.fail(b"E_INVALID no")
    assert dict(side.front.rejected) == {b"E_FIN_FAILED": 1, b"E_INVALID": 1}
    assert side.frames(session) == [b"E_FIN_FAILED FIN x failed", b"E_INVALID no"]
    side.close()


def test_where_rights_are_asked_for_nobody_has_any_before_auth(tmp_path: Path) -> None:
    side = NsqSide(tmp_path, auth_http_address="127.0.0.1:1")
    session = side.session()
    with pytest.raises(Failed) as failed:
        session.check_right(b"publish", b"t", b"", b"PUB")
    assert failed.value.text == b"E_AUTH_FIRST AUTH required before PUB"
    side.close()


class SlowPeer(NsqPeer):
    """Its socket takes little that it has not read."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        self.socket.settimeout(30)
        self.socket.connect((host, int(port)))
        self.socket.sendall(b"  V2")
        self._read = b""


def post(broker: Broker, path: str) -> None:
    with urllib.request.urlopen(f"http://{broker.http}{path}", data=b"", timeout=30):
        pass


def unsent(broker: Broker) -> int:
    found: int = broker.call(lambda server: server.net.waiting_bytes)
    return found


def test_large_bodies_stay_as_they_are_until_a_slow_reader_has_them() -> None:
    """Its channel is emptied and the segments they lie in would be used again."""
    sent = [b"%03d" % n * 30_000 for n in range(80)]
    with Broker(queue_segment_bytes=8 << 20) as broker:
        slow, producer = SlowPeer(broker.nsq), NsqPeer(broker.nsq)
        slow.subscribe(b"big", b"c", len(sent))
        producer.publish(b"big", *sent)
        eventually(lambda: unsent(broker) > 1 << 20)
        post(broker, "/channel/pause?topic=big&channel=c")
        for _ in range(12):
            producer.publish(b"big", *[b"\xff" * 90_000] * 20)
            post(broker, "/channel/empty?topic=big&channel=c")
            eventually(lambda: broker.call(segments) == 1)
        assert [slow.message().body for _ in sent] == sent
        slow.close()
        producer.close()


def segments(server: Any) -> int:
    (stream,) = server.broker.queueing.topics[b"big"].streams()
    return len(stream.segments)


def test_a_reader_that_leaves_while_large_bodies_wait_leaves_nothing() -> None:
    sent = [b"%03d" % n * 30_000 for n in range(80)]
    with Broker(queue_segment_bytes=1 << 20) as broker:
        producer = NsqPeer(broker.nsq)
        for _ in range(3):
            slow = SlowPeer(broker.nsq)
            slow.subscribe(b"big", b"c", len(sent))
            producer.publish(b"big", *sent)
            eventually(lambda: unsent(broker) > 1 << 20)
            slow.close()
            eventually(lambda: unsent(broker) == 0)
            post(broker, "/channel/empty?topic=big&channel=c")
        fast = NsqPeer(broker.nsq)
        fast.subscribe(b"big", b"c", 10)
        producer.publish(b"big", *sent)
        found: list[Message] = []
        while len(found) < len(sent):
            found.append(fast.message())
            fast.finish(found[-1])
        assert [message.body for message in found] == sent
        assert not broker.call(
            lambda server: [spare for spare in server.broker.queueing.folder.pool.spares if spare.lent()]
        )
        fast.close()
        producer.close()


def test_the_memory_of_slow_readers_of_large_bodies_is_bounded() -> None:
    with Broker() as broker:
        producer = NsqPeer(broker.nsq)
        readers = [SlowPeer(broker.nsq) for _ in range(8)]
        for n, reader in enumerate(readers):
            reader.subscribe(b"big", b"c%d" % n, 1_000)
        for _ in range(30):
            producer.publish(b"big", b"x" * 1_000_000)
        eventually(lambda: unsent(broker) > 8 << 20)
        assert unsent(broker) <= 8 * (10 << 20)
        for reader in readers:
            reader.close()
        producer.close()


def test_what_waits_for_its_flush_is_answered_before_an_error_ends_the_connection() -> None:
    with Broker(level="disk") as broker:
        peer = NsqPeer(broker.nsq)
        peer.send(b"PUB stored\n" + sized(b"x") + b"NONSENSE\n")
        assert peer.frame() == (0, b"OK")
        assert peer.frame() == (1, b"E_INVALID invalid command NONSENSE")
        assert peer.frame() is None
        peer.close()


def test_what_waits_for_its_flush_is_answered_to_who_says_nothing_more() -> None:
    with Broker(level="disk") as broker:
        peer = NsqPeer(broker.nsq)
        peer.send(b"PUB stored\n" + sized(b"x"))
        peer.socket.shutdown(socket.SHUT_WR)
        assert peer.frame() == (0, b"OK")
        assert peer.frame() is None
        peer.close()


def test_who_made_a_fatal_mistake_is_given_no_more_messages(tmp_path: Path) -> None:
    side = NsqSide(tmp_path)
    wrong, right = side.session(), side.session()
    side.say(wrong, b"SUB t c#ephemeral\nRDY 100\n")
    side.say(right, b"SUB t c#ephemeral\nRDY 100\n")
    side.turn()
    side.say(wrong, b"NONSENSE\n")
    side.say(right, b"".join(b"PUB t\n" + sized(b"%d" % n) for n in range(10)))
    side.turn()
    assert (wrong.in_flight, right.in_flight) == (0, 10)
    side.say(right, b"NONSENSE\n")
    assert side.queueing.topics[b"t"].channels == {}
    side.close()
