"""GET /api/topics/TOPIC/messages: pages, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import ask

from broker.queueside import Side
from penstock.fronts.http.browsing import Browsing
from penstock.fronts.http.nsqd import NsqHttp


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path, level="os")
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    side.queueing.publish(topic, [b"m%d" % n for n in range(5)] + [b"</script>\xff"])
    side.turn()
    yield side
    side.close()


async def test_pages(side: Side) -> None:
    site = NsqHttp(side.broker)
    assert set(Browsing(side.broker, site).routes) < set(site.routes)
    found, target, after = [], "/api/topics/t/messages?channel=c&limit=2", ""
    while after is not None:
        told = await ask(site, "GET", f"{target}&after={after}")
        assert (told.status, told.headers["x-content-type-options"]) == (200, "nosniff")
        assert told.headers["content-type"].startswith("application/json")
        found += told.json["rows"]
        after = told.json["next"]
    assert [row["body"] for row in found[:5]] == [f"m{n}" for n in range(5)]
    assert found[5]["encoding"] == "base64"
    assert side.queueing.topics[b"t"].channels[b"c"].depth() == 6


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/api/topics/none/messages", 404), ("/api/topics/t/messages?channel=none", 404), ("/api/topics//messages", 404),
        ("/api/topics/t/messages?state=lost", 400), ("/api/topics/t/messages?limit=0", 400),
        ("/api/topics/t/messages?limit=-1", 400), ("/api/topics/t/messages?limit=ten", 400),
        ("/api/topics/t/messages?limit=99999999999", 400), ("/api/topics/t/messages?after=x", 400),
        ("/api/topics/t/messages/more", 404), ("/api/topics/t", 404), ("/api/topics", 404),
        ("/api/topics/%22%7D%0a/messages", 404), ('/api/topics/"}<b>/messages', 404),
        ("/api/topics/t/messages?channel=%22%3Cb%3E", 404), ("/api/topics/t/messages?limit=2147483647", 200),
        ("/api/topics/t/messages?topic=none", 200),
    ],
)  # fmt: skip
async def test_statuses(side: Side, target: str, status: int) -> None:
    told = await ask(NsqHttp(side.broker), "GET", target)
    assert told.status == status
    assert isinstance(json.loads(told.body), dict)
    assert set(side.queueing.topics) == {b"t"}


async def test_only_reading(side: Side) -> None:
    for method in ("POST", "PUT", "DELETE"):
        assert (await ask(NsqHttp(side.broker), method, "/api/topics/t/messages")).status == 405
