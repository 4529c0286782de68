"""/pub and /mpub: a query and a body in, an answer or the ticket of a flush out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.fronts.http.nsqd import NsqHttp
from penstock.fronts.http.publishing import EXITING, Publishing
from penstock.fronts.site import OK, Answer


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path, max_msg_size=10, max_body_size=100)
    yield side
    side.broker.close(False)


def publishing(side: Side) -> Publishing:
    return NsqHttp(side.broker).publishing


def packed(*bodies: bytes) -> bytes:
    return len(bodies).to_bytes(4) + b"".join(len(body).to_bytes(4) + body for body in bodies)


@pytest.mark.parametrize(
    ("path", "query", "body", "count"),
    [
        ("/pub", b"topic=t", b"x", 1),
        ("/mpub", b"topic=t", b"a\n\nb\nc", 3),
        ("/mpub", b"topic=t&binary=true", packed(b"a", b"\n"), 2),
        ("/mpub", b"topic=t&binary=false", b"a\nb", 2),
        ("/mpub", b"topic=t", b"\n\n", 0),
    ],
)
def test_what_is_published(side: Side, path: str, query: bytes, body: bytes, count: int) -> None:
    assert publishing(side).publish(path, query, body) == OK
    assert side.queueing.topic(b"t").message_count == count


@pytest.mark.parametrize(
    ("path", "query", "body", "answer"),
    [
        ("/pub", b"topic=t", b"", (400, "MSG_EMPTY")),
        ("/pub", b"", b"x", (400, "MISSING_ARG_TOPIC")),
        ("/pub", b"topic=a/b", b"x", (400, "INVALID_TOPIC")),
        ("/pub", b"topic=t&defer=x", b"x", (400, "INVALID_DEFER")),
        ("/pub", b"topic=t&defer=-1", b"x", (400, "INVALID_DEFER")),
        ("/mpub", b"topic=t", b"x" * 11, (413, "MSG_TOO_BIG")),
        ("/mpub", b"topic=t&binary=1", b"\0\0\0\0", (413, "BAD_BODY")),
        ("/mpub", b"topic=t&binary=1", packed(b"a") + b"x", (413, "BAD_BODY")),
        ("/mpub", b"topic=t&binary=1", packed(b"a", b""), (413, "BAD_MESSAGE")),
    ],
)
def test_what_is_refused_stores_nothing(
    side: Side, path: str, query: bytes, body: bytes, answer: tuple[int, str]
) -> None:
    found = publishing(side).publish(path, query, body)
    assert isinstance(found, Answer)
    assert (found.status, found.body) == (answer[0], b'{"message":"%s"}' % answer[1].encode())
    topic = side.queueing.topics.get(b"t")
    assert topic is None or topic.message_count == 0


def test_at_level_disk_there_is_a_ticket(side: Side) -> None:
    side.queueing.topic(b"t", "disk")
    ticket = publishing(side).publish("/pub", b"topic=t", b"x")
    assert not isinstance(ticket, Answer)
    told: list[bool] = []
    ticket.then(told.append)
    assert told == []
    side.turn()
    assert told == [True]
    assert EXITING.status == 503


def test_a_refusal_is_logged_once_a_minute(side: Side, caplog: pytest.LogCaptureFixture) -> None:
    asked = publishing(side)
    side.queueing.topic(b"t")
    side.queueing.flush.healthy, side.queueing.flush.error = False, "it broke"
    for _ in range(3):
        for _ in range(100):
            assert asked.publish("/pub", b"topic=t", b"x") == EXITING
        side.turn(30_000)
    assert caplog.text.count("not published topic=b't' reason=") == 2
    side.queueing.flush.healthy, side.queueing.flush.error = True, ""
