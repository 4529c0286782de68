"""`broker.browse`: pages with bounds, bodies of any kind, log topics from every place."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.queueside import Side
from penstock.broker import browse
from penstock.broker.browse import Browse, Wanted, browse_wanted
from penstock.errors import Refused
from penstock.wire import fastjson


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path, max_msg_size=2 << 20, queue_segment_bytes=4 << 20, mapped_file_size_commit_log=4 << 20)
    yield side
    side.close()


def page(side: Side, topic: str, **more: Any) -> Any:
    return Browse(side.broker).page(Wanted(topic, **more))


def every(side: Side, topic: str, **more: Any) -> list[Any]:
    rows: list[Any] = []
    after = ""
    while after is not None:
        found = page(side, topic, after=after, **more)
        rows, after = rows + found["rows"], found["next"]
        assert len(rows) < 10_000
    return rows


def queued(side: Side, *bodies: bytes) -> None:
    topic = side.queueing.topic(b"t", "os")
    topic.channel(b"c")
    side.queueing.publish(topic, list(bodies))
    side.turn()


def logged(side: Side, count: int, queues: int = 3) -> None:
    """Messages m0, m1, … one in each millisecond, in turns in the queues; every other one with the key k."""
    topic = side.broker.topics.create(b"log", queues, queues)
    for n in range(count):
        keys = {"KEYS": "k"} if n % 2 else {}
        side.broker.sending.put(
            topic, n % queues, b"m%d" % n, keys, born_host=b"\x7f\0\0\1\0\0\0\1", born_ms=side.broker.now_ms
        )
        side.turn(1)


def bodies(rows: list[Any]) -> list[str]:
    return [row["body"] for row in rows]


@pytest.mark.parametrize("limit", [0, -1, -(1 << 31)])
def test_no_rows_are_not_asked_for(side: Side, limit: int) -> None:
    queued(side, b"x")
    with pytest.raises(Refused, match="limit is 1 at least"):
        page(side, "t", limit=limit)


def test_a_page_has_a_thousand_rows_at_most(side: Side) -> None:
    queued(side, *(b"%d" % n for n in range(1_200)))
    found = page(side, "t", channel="c", limit=(1 << 31) - 1)
    assert len(found["rows"]) == 1_000
    assert bodies(every(side, "t", channel="c", limit=1 << 30)) == [str(n) for n in range(1_200)]


def test_large_bodies_come_in_pages_of_their_own(tmp_path: Path) -> None:
    side = Side(tmp_path, max_msg_size=8 << 20, queue_segment_bytes=32 << 20)
    large = b'"' * (6 << 20)  # each byte is two in JSON
    queued(side, b"small", large, large, b"tiny")
    after, sizes = "", []
    while after is not None:
        found = page(side, "t", channel="c", body_bytes=browse.BODY_BYTES_MAX, after=after)
        assert len(fastjson.dumps(found)) < 16 << 20
        sizes += [(row["size"], row["cut"]) for row in found["rows"]]
        after = found["next"]
    assert sizes == [(5, False), (len(large), False), (len(large), False), (4, False)]
    side.close()


def test_a_large_body_is_cut_off(side: Side) -> None:
    queued(side, b"a" * (1 << 20), b"small")
    [large, small] = every(side, "t", channel="c")
    assert (large["size"], len(large["body"]), large["cut"]) == (1 << 20, browse.BODY_BYTES, True)
    assert (small["size"], small["body"], small["cut"]) == (5, "small", False)
    [whole] = page(side, "t", channel="c", limit=1, body_bytes=1 << 20)["rows"]
    assert (len(whole["body"]), whole["cut"]) == (1 << 20, False)
    [none, _] = every(side, "t", channel="c", body_bytes=0)
    assert (none["body"], none["cut"], none["encoding"]) == ("", True, "text")
    for wrong in (-1, browse.BODY_BYTES_MAX + 1):
        with pytest.raises(Refused, match="bodyBytes"):
            page(side, "t", body_bytes=wrong)


def test_a_page_has_so_many_bytes_at_most(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    queued(side, *[b"a" * 1_000] * 10)
    monkeypatch.setattr(browse, "PAGE_BYTES_MAX", 2_500)
    assert len(page(side, "t", channel="c")["rows"]) == 3
    assert len(every(side, "t", channel="c")) == 10
    monkeypatch.setattr(browse, "READ_MAX", 1_500)
    assert len(page(side, "t", channel="c", body_bytes=1)["rows"]) == 2
    monkeypatch.setattr(browse, "STEPS_MAX", 1)
    assert len(page(side, "t", channel="c")["rows"]) == 1
    assert len(every(side, "t", channel="c")) == 10


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (b"\xff\xfe\x00", "base64"), (b"\x1b[2J\x07", "base64"), ("\x9b2J".encode(), "base64"), (b"", "text"),
        (b"<script>alert(1)</script>", "text"), (b"{{7*7}}\n\t", "text"), ("größe 漢字".encode(), "text"),
        (bytes(range(256)), "base64"), (b"\xed\xa0\x80", "base64"), (b"\x7f", "base64"),
    ],
)  # fmt: skip
def test_bodies_of_any_kind(side: Side, body: bytes, encoding: str) -> None:
    queued(side, body)
    found = page(side, "t", channel="c")
    [row] = fastjson.loads(fastjson.dumps(found))["rows"]
    assert row["encoding"] == encoding
    assert (b64decode(row["body"]) if encoding == "base64" else row["body"].encode()) == body


def test_a_character_that_is_cut_off_leaves_text(side: Side) -> None:
    queued(side, "漢字".encode(), b"ab\xff")
    [first, second] = every(side, "t", channel="c", body_bytes=5)
    assert (first["body"], first["encoding"], first["cut"]) == ("漢", "text", True)
    assert second["encoding"] == "base64"


def test_names_that_are_not_there_are_not_made(side: Side) -> None:
    logged(side, 1)
    queued(side, b"x")
    for wanted in (Wanted("none"), Wanted("none", "c"), Wanted("t", "none"), Wanted("log", "c"), Wanted("")):
        with pytest.raises(Refused) as refused:
            Browse(side.broker).page(wanted)
        assert (refused.value.http, refused.value.remoting) == (404, 17)
    assert set(side.queueing.topics) == {b"t"}
    assert side.broker.topics.get(b"none") is None
    assert list(side.queueing.topics[b"t"].channels) == [b"c"]


@pytest.mark.parametrize(
    "more",
    [
        {"state": "dead"}, {"begin": "last"}, {"key": "k"}, {"queue": 0}, {"after": "c"}, {"after": "c/x"},
        {"channel": "c", "after": "c/q" + "9" * 30},
    ],
)  # fmt: skip
def test_what_makes_no_sense_of_a_queue_topic(side: Side, more: dict[str, Any]) -> None:
    queued(side, b"x")
    with pytest.raises(Refused):
        page(side, "t", **({"channel": "c"} | more))


def test_a_log_topic_from_every_place(side: Side) -> None:
    began = side.broker.now_ms
    logged(side, 20)
    names = [f"m{n}" for n in range(20)]
    assert bodies(every(side, "log")) == names
    assert bodies(every(side, "log", limit=1)) == names
    assert bodies(page(side, "log", begin="last", limit=4)["rows"]) == names[-4:]
    assert bodies(page(side, "log", begin="last", limit=100)["rows"]) == names
    assert bodies(page(side, "log", begin=f"time:{began + 15}")["rows"]) == names[15:]
    assert bodies(page(side, "log", begin="3", queue=1)["rows"]) == ["m10", "m13", "m16", "m19"]
    assert page(side, "log", begin=str(1 << 40))["rows"] == []
    assert bodies(every(side, "log", key="k", limit=3)) == names[1::2]
    assert every(side, "log", key="none") == []
    [row] = page(side, "log", begin="1", queue=0, limit=1)["rows"]
    assert (row["queue"], row["offset"], row["attempts"]) == (0, 1, 0)
    assert b"log" not in side.queueing.topics
    for wrong in ("yesterday", "time:", "time:-1", "-1", "9" * 30, "x:1", "1:1"):
        with pytest.raises(Refused, match="from is"):
            page(side, "log", begin=wrong)
    with pytest.raises(Refused, match="no queue 3"):
        page(side, "log", queue=3)


def test_an_end_page_leads_on_to_what_comes(side: Side) -> None:
    logged(side, 4)
    found = page(side, "log", begin="last", limit=2)
    assert page(side, "log", after=found["next"])["rows"] == []
    side.queueing.publish(side.queueing.topic(b"log"), [b"new"])
    side.turn()
    assert bodies(page(side, "log", after=found["next"])["rows"]) == ["new"]


def test_the_fields_of_a_request() -> None:
    told = {"topic": "t", "channel": None, "from": "last", "limit": 5, "bodyBytes": 7, "queue": 0}
    assert browse_wanted(told) == Wanted("t", begin="last", limit=5, body_bytes=7, queue=0)
