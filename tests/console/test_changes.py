"""Each change is done in the broker; what destroys wants the name typed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import penstock
from console.browser import Browser
from console.conftest import post
from penstock.client.results import Reject
from penstock.console.changes import ACTS
from penstock.testing import Broker
from polling import eventually


async def _json(browser: Browser, target: str) -> Any:
    told = await browser.get(target)
    assert told.status == 200, told.text
    return json.loads(told.body)


async def test_channels(changing: Browser, broker: Broker) -> None:
    post(broker, "/topic/create?topic=q")
    post(broker, "/channel/create?topic=q&channel=c")
    post(broker, "/mpub?topic=q", b"a\nb\nc")
    page, form = "/topics/q/channel/c/about.json", {"topic": "q", "name": "c"}
    assert "is+paused" in (await changing.act("channel-pause", on="1", **form)).headers["location"]
    assert (await _json(changing, page))["row"]["paused"] is True
    await changing.act("channel-pause", on="0", **form)
    row = (await _json(changing, page))["row"]
    assert (row["paused"], row["lag"]) == (False, 3)
    await changing.act("channel-empty", typed="C", **form)
    assert (await _json(changing, page))["row"]["lag"] == 3
    await changing.act("channel-empty", typed="c", **form)
    assert (await _json(changing, page))["row"]["lag"] == 0
    await changing.act("topic-pause", topic="q", on="1")
    assert (await _json(changing, "/topics/q/about.json"))["row"]["paused"] is True
    await changing.act("topic-pause", topic="q", on="0")
    await changing.act("channel-delete", typed="c", **form)
    assert (await changing.get(page)).status == 404
    post(broker, "/pub?topic=q", b"more")
    await changing.act("topic-empty", topic="q", typed="q")
    assert (await _json(changing, "/topics/q/about.json"))["row"]["messages"] == 0


async def test_send_and_move(changing: Browser, broker: Broker) -> None:
    await changing.act("topic-add", topic="moved", kind="log", queues="1")
    told = await changing.act("topic-send", topic="moved", kind="log", body="<b>from a form</b>", keys="a b", tag="t")
    assert "did=" in told.headers["location"], told.headers
    rows = (await _json(changing, "/topics/moved/messages.json"))["rows"]
    assert [row["body"] for row in rows] == ["<b>from a form</b>"]

    def commit() -> None:
        with penstock.PullConsumer(broker.registry, group="mover") as consumer:
            consumer.commit(dict.fromkeys(consumer.queues("moved"), 1))

    await asyncio.to_thread(commit)
    page = "/topics/moved/group/mover/about.json"
    plan = (await _json(changing, f"{page}?to=first"))["plan"]
    assert [(row["from"], row["to"], row["messages"]) for row in plan] == [(1, 0, 1)]
    form = {"topic": "moved", "name": "mover", "kind": "group", "to": "first"}
    assert "failed=" in (await changing.act("group-reset", typed="", **form)).headers["location"]
    assert "did=" in (await changing.act("group-reset", typed="mover", **form)).headers["location"]
    assert (await _json(changing, page))["row"]["lag"] == 1


async def test_dead_letters_are_shown_by_reason_and_sent_again(changing: Browser, broker: Broker) -> None:
    def refuse(message: object) -> None:
        raise Reject("<i>no such customer</i>")

    def bury() -> None:
        with penstock.Producer(broker.registry) as producer:
            for number in range(3):
                producer.send(penstock.Message("frail", b"<u>%d</u>" % number, keys=(f"f{number}",)))
        with penstock.PushConsumer("tired", broker.registry, listener=refuse, start="first") as consumer:
            consumer.subscribe("frail")
            with penstock.Admin(broker.registry) as admin:
                eventually(lambda: "%DLQ%tired" in admin.topics(system=True))
                eventually(lambda: sum(s.max_offset for s in admin.topic_stats("%DLQ%tired").values()) == 3)

    await asyncio.to_thread(bury)
    rows = (await _json(changing, "/deadletters.json"))["rows"]
    assert [(row["name"], row["count"], row["left"]) for row in rows if row["kind"] == "log"] == [("tired", 3, 3)]
    told = await _json(changing, "/deadletters/tired/about.json")
    assert sum(one["count"] for one in told["reasons"]) == 3
    assert len((await _json(changing, "/deadletters/tired/about.json?match=f1"))["rows"]) == 1
    page = (await changing.get("/deadletters/tired/about")).text
    assert "<u>" not in page
    assert "<i>" not in page
    dry = await changing.act("dead-redrive", group="tired", match="f1", dry="1")
    assert "Would+be+sent%3A+1+to+frail" in dry.headers["location"]
    sent = await changing.act("dead-redrive", group="tired", limit="2", rate="50")
    assert "Sent%3A+2+to+frail" in sent.headers["location"]
    assert (await _json(changing, "/deadletters.json"))["rows"][0]["left"] == 1
    assert any("dead letters of tired" in one["text"] for one in (await _json(changing, "/now.json"))["sentences"])


@pytest.mark.parametrize("act", sorted(ACTS))
async def test_a_form_without_its_fields_changes_nothing(changing: Browser, act: str) -> None:
    told = await changing.act(act)
    assert told.status == 303
    assert "failed=" in told.headers["location"]


async def test_log_level(changing: Browser, broker: Broker) -> None:
    told = await changing.act("log-level", level="warn")
    assert "failed=" in told.headers["location"]  # a broker without users wants its admin_token, or open_config
