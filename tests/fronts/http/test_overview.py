"""GET /api/snapshot and /api/history: everything in one answer, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import ask

from broker.queueside import Side
from penstock.fronts.http.nsqd import NsqHttp
from penstock.fronts.http.overview import Overview


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path, level="os", admin_token="hush")
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    side.turn(1000)
    side.queueing.publish(topic, [b"body"] * 5)
    side.turn(1000)
    yield side
    side.close()


async def test_one_answer(side: Side) -> None:
    site = NsqHttp(side.broker)
    assert set(Overview(side.broker, site._collect).routes) < set(site.routes)
    told = (await ask(site, "GET", "/api/snapshot")).json
    assert [row["topic"] for row in told["topics"]] == ["t"]
    assert (told["topics"][0]["in"], told["topics"][0]["lag"], told["clients"]) == (2.5, 5, [])  # of two seconds
    assert "settings" not in told
    told = (await ask(site, "GET", "/api/snapshot?parts=settings,sinks,recovery")).json
    assert "topics" not in told
    settings = {row["name"]: row for row in told["settings"]}
    assert settings["admin_token"]["value"] == "(not shown)"
    assert (settings["level"]["set"], settings["mem_queue_size"]["set"]) == (False, True)
    assert told["recovery"]["clean"] in (True, False)
    assert (await ask(site, "GET", "/api/snapshot?topic=nobody")).json["topics"] == []


async def test_history(side: Side) -> None:
    site = NsqHttp(side.broker)
    told = (await ask(site, "GET", "/api/history?keys=broker,topic/t,channel/t/c,topic/nobody&points=1")).json
    assert told["broker"]["in"] == told["topic/t"]["in"] == [5]
    assert told["channel/t/c"]["lag"] == [5]
    assert told["topic/nobody"] is None
    assert len((await ask(site, "GET", "/api/history?span=week&points=999999")).json["broker"]["in"]) == 10_080


@pytest.mark.parametrize(
    "query",
    [
        "/api/history?span=year", "/api/history?points=-1", "/api/history?points=x", "/api/history?keys=a/b/c/d",
        "/api/history?keys=" + ",".join("topic/t" for _ in range(101)), "/api/snapshot?parts=secrets",
        "/api/history?points=9999999999",
    ],
)  # fmt: skip
async def test_refused(side: Side, query: str) -> None:
    assert (await ask(NsqHttp(side.broker), "GET", query)).status == 400
