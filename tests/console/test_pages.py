"""What pages find: filters, sentences, dead letters by reason."""

from __future__ import annotations

import asyncio
import json
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from access.people import SECRET, user, write
from console.browser import Browser
from console.conftest import console_of, post
from penstock.console.app import Console
from penstock.console.guard import Guard
from penstock.console.pages import PAGES, Site, find, sentences, start_of
from penstock.console.upstream import Upstream
from penstock.security import PLAIN, Security
from penstock.testing import Broker
from polling import eventually


def test_every_page_is_found_by_its_path() -> None:
    for path, template, page in PAGES:
        told = find(path.replace("{", "").replace("}", ""))
        assert told is not None
        assert told[:2] == (template, page)
        assert all(name == value for name, value in told[2].items())
    named = find("/topics/a.json/about")
    assert named is not None
    assert named[2] == {"topic": "a.json"}
    assert find("/topics/") is None


def test_where_a_group_begins() -> None:
    assert start_of("first") == "first"
    start = start_of("-90m")
    assert isinstance(start, datetime)
    ago = datetime.now(UTC) - start
    assert timedelta(minutes=89) < ago < timedelta(minutes=150)
    assert start_of("2026-01-02T03:04") == datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    for text in ("soon", "-1y", "", "-9999999999d"):
        with pytest.raises(ValueError):
            start_of(text)


def _told(**changed: Any) -> Any:
    return {"health": "", "disk": {"used": 0.5, "marks": [75, 85, 90]}, "topics": [], "replicas": []} | changed


def _topic(**reader: Any) -> Any:
    one = {"name": "c", "kind": "channel", "lag": 5, "lag_s": 300, "consumers": 0} | reader
    return {"topic": "t", "messages": 5, "readers": [one]}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (_told(), []), (_told(health="no room"), ["takes nothing"]),
        (_told(disk={"used": 0.76, "marks": [75, 85, 90]}), ["at any hour"]),
        (_told(disk={"used": 0.86, "marks": [75, 85, 90]}), ["whatever their age"]),
        (_told(disk={"used": 0.91, "marks": [75, 85, 90]}), ["refused"]), (_told(disk={"used": None, "marks": [75, 85, 90]}), []),
        (_told(topics=[_topic()]), ["Nobody reads t"]), (_told(topics=[_topic(consumers=1)]), []),
        (_told(topics=[_topic(lag_s=None)]), []), (_told(topics=[_topic(paused=True, lag_s=1)]), ["is paused"]),
        (_told(topics=[{"topic": "%DLQ%g", "messages": 2, "readers": []}]), ["2 dead letters of g"]),
        (_told(replicas=[{"node": "b-2", "in_sync": "no", "why_not": "slow"}]), ["b-2 is not in sync: slow"]),
        (_told(replicas=[{"node": "b-2", "in_sync": "yes", "why_not": "old"}]), ["b-2: old"]),
    ],
)  # fmt: skip
def test_sentences(told: Any, words: list[str]) -> None:
    found = [one["text"] for one in sentences(told)]
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))


async def _rows(browser: Browser, target: str) -> list[Any]:
    told = await browser.get(target)
    assert told.status == 200, told.text
    rows: list[Any] = json.loads(told.body)["rows"]
    return rows


async def test_filters(reading: Browser) -> None:
    assert [row["topic"] for row in await _rows(reading, "/topics.json?kind=queue")] == ["audit"]
    assert [row["topic"] for row in await _rows(reading, "/topics.json?sort=name&q=O")] == ["orders"]
    assert await _rows(reading, "/topics.json?page=7") == []
    assert [row["body"] for row in await _rows(reading, "/topics/orders/messages.json?from=first&text=7*7")] == [
        "{{7*7}}{% for x in y %}"
    ]
    stored = [row["stored"] for row in await _rows(reading, "/topics/orders/messages.json")]
    assert stored == sorted(stored, reverse=True)
    assert [row["keys"] if "keys" in row else row["properties"]["KEYS"] for row in await _rows(
        reading, "/topics/orders/messages.json?key=k1"
    )]  # fmt: skip
    assert [row["name"] for row in await _rows(reading, "/settings.json?set=1&q=max_msg_size")] == ["max_msg_size"]


async def test_clients_say_of_themselves_what_they_like(reading: Browser, broker: Broker) -> None:
    about = json.dumps({"client_id": "<script>x</script>", "user_agent": "{{7*7}}", "hostname": "h"}).encode()
    with socket.create_connection(("127.0.0.1", int(broker.nsq.rpartition(":")[2]))) as peer:
        peer.sendall(b"  V2IDENTIFY\n" + len(about).to_bytes(4) + about + b"SUB audit archive\n")
        assert peer.recv(10).endswith(b"OK")
        await asyncio.to_thread(eventually, lambda: _subscribed(broker))
        page = (await reading.get("/clients")).text
        assert "&lt;script&gt;x" in page
        assert "<script>x" not in page
        assert "{{7*7}}" in page
        rows = await _rows(reading, "/clients.json?role=consumer&q=archive")
        assert [row["topic"] for row in rows] == ["audit"]
        assert "&lt;script&gt;x" in (await reading.get("/topics/audit/channel/archive/about")).text


def _subscribed(broker: Broker) -> bool:
    return broker.call(lambda server: bool(server.broker.queueing.topics[b"audit"].channels[b"archive"].consumers))  # type: ignore[union-attr]


async def test_the_console_is_a_user_where_there_are_some(tmp_path: Path) -> None:
    people = user("admin", "admin"), user("console", "monitor"), user("nobody", "publish:x")
    with Broker(users=str(write(tmp_path / "users.toml", *people))) as broker:
        for name, status in (("console", 200), ("nobody", 403), ("", 401)):
            security = Security(user=name, secret=SECRET + name) if name else PLAIN
            site = Site(Upstream(f"http://{broker.http}", security), broker.registry, security)
            told = await Browser(Console(site, Guard()).app()).get("/")
            assert told.status == status, told.text
            assert SECRET not in told.text
            assert ("lacks a right" in told.text) == (status != 200)


async def test_delayed_messages_are_bars_and_rows(broker: Broker) -> None:
    def send() -> None:
        with penstock.Producer(broker.registry) as producer:
            for number in range(4):
                producer.send(penstock.Message("later", b"<u>%d</u>" % number, delay_level=5 + number))

    await asyncio.to_thread(send)
    browser = Browser(console_of(broker, True).app())
    told = json.loads((await browser.get("/delayed.json?topic=later")).body)
    assert (told["total"], len(told["rows"])) == (4, 4)
    assert sum(bar["count"] for bar in told["bars"]) + told["before"] + told["after"] == 4
    page = (await browser.get("/delayed?topic=later")).text
    assert "&lt;u&gt;" in page
    bar = next(bar for bar in told["bars"] if bar["count"])
    closer = json.loads((await browser.get(f"/delayed.json?topic=later&begin={bar['begin']}&span={bar['span']}")).body)
    assert (closer["begin"], closer["span"]) == (bar["begin"], bar["span"])
    assert sum(one["count"] for one in closer["bars"]) == bar["count"]
    far = await browser.get(f"/delayed?begin={'9' * 18}&span={'9' * 18}&limit={'9' * 18}")
    assert (far.status, "9999-12-31" in far.text) == (200, True)
    id_ = told["rows"][0]["id"]
    assert "failed=" in (await browser.act("delayed-cancel", id=id_, typed="no")).headers["location"]
    assert "did=" in (await browser.act("delayed-cancel", id=id_, typed=id_)).headers["location"]
    assert "did=" in (await browser.act("delayed-fire", id=told["rows"][1]["id"])).headers["location"]
    moving = told["rows"][2]["id"]
    for nonsense in ("", "soon", "2030-01-01T00:00:00", "-1h"):
        assert "failed=" in (await browser.act("delayed-move", id=moving, to=nonsense)).headers["location"]
    assert "did=" in (await browser.act("delayed-move", id=moving, to="7d")).headers["location"]
    assert "failed=" in (await browser.act("delayed-move", id=moving, to="7d")).headers["location"]  # sent twice
    assert json.loads((await browser.get("/delayed.json?topic=later")).body)["total"] == 2


@pytest.mark.parametrize("name", [".", ".."])
async def test_names_of_dots_have_pages_that_browsers_can_ask_for(broker: Broker, reading: Browser, name: str) -> None:
    post(broker, f"/topic/create?topic={name}")
    post(broker, f"/channel/create?topic={name}&channel=..")
    post(broker, f"/pub?topic={name}", b"in dots")
    assert f'href="/topics/~{name}/about"' in (await reading.get("/topics")).text
    about = (await reading.get(f"/topics/~{name}/about")).text
    assert f'href="/topics/~{name}/channel/~../about"' in about
    reader = await reading.get(f"/topics/~{name}/channel/~../about")
    assert f'href="/topics/~{name}/messages?channel=.."' in reader.text
    if name == ".":  # the broker's own HTTP API takes no path with `..` in it
        assert "in dots" in (await reading.get("/topics/~./messages?channel=..")).text
    post(broker, f"/topic/delete?topic={name}")
