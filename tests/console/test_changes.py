"""Each change is done in the broker; what destroys wants the name typed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import penstock
from client.test_staging import stage as stage_rows
from console.browser import Browser
from console.conftest import post
from fronts.nsq_peer import NsqPeer
from penstock.client.deadletters import DeadLetters
from penstock.client.results import Reject
from penstock.client.staging import SinkRun, StageClient
from penstock.console.changes import ACTS
from penstock.errors import NotFound
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


async def test_a_page_that_is_older_than_its_topic(changing: Browser, broker: Broker) -> None:
    """A form of a topic that was deleted meanwhile does not make it again; a place that is none is said in words."""
    for kind in ("log", "queue"):
        told = await changing.act("topic-send", topic=f"gone-{kind}", kind=kind, body="x")
        assert "failed=" in told.headers["location"]
        assert (await changing.get(f"/topics/gone-{kind}/about")).status == 404
    await changing.act("topic-add", topic="placed", kind="log", queues="1")
    for place in ("9" * 40, "-99999999999h", "x"):
        told = await changing.act("topic-purge", topic="placed", typed="placed", purge=place)
        assert "neither+end%2C+an+offset" in told.headers["location"], told.headers["location"]


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


async def test_dead_letters_of_both_kinds_are_chosen_and_exported(changing: Browser, broker: Broker) -> None:
    def refuse(message: object) -> None:
        raise Reject("no")

    def bury() -> None:
        for kind, topic, group in (("log", "picky", "chooser"), ("queue", "picked", "work")):
            with penstock.Admin(broker.registry) as admin:
                if kind == "queue":
                    admin.change_queue(topic, "add")
                    admin.change_queue(topic, "add", channel=group)
                with penstock.Producer(broker.registry, kind=kind) as producer:
                    for number in range(3):
                        producer.send(penstock.Message(topic, b"<u>%d</u>" % number))
                with penstock.PushConsumer(group, broker.registry, listener=refuse, start="first") as consumer:
                    consumer.subscribe(topic)
                    name = "chooser" if kind == "log" else "picked.work"
                    eventually(lambda name=name: len(_letters(broker, name)) == 3)

    await asyncio.to_thread(bury)
    for group, topic in (("chooser", "picky"), ("picked.work", "picked")):
        page = f"/deadletters/{group}/about"
        rows = (await _json(changing, f"{page}.json"))["rows"]
        assert [row["reason"] for row in rows] == ["rejected"] * 3
        assert 'form="chosen"' in (await changing.get(page)).text
        told = await changing.get(f"/export/deadletters?group={group}&match=%3Cu%3E1")
        assert told.headers["content-disposition"].endswith(f"{group}.jsonl")
        (line,) = map(json.loads, told.text.splitlines())
        assert (line["body"], line["properties"]["DLQ_REASON"]) == ("<u>1</u>", "rejected")
        ids = "\n".join(row["msgId"] for row in rows[:2])
        sent = await changing.act("dead-resend", group=group, ids=ids)
        assert "2+of+2+were+sent" in sent.headers["location"]
        assert "0+of+2+were+sent" in (await changing.act("dead-resend", group=group, ids=ids)).headers["location"]
        sent = await changing.act("dead-redrive", group=group)
        assert f"Sent%3A+1+to+{topic}" in sent.headers["location"]
    assert (await changing.get("/export/deadletters?group=nosuch")).status == 404


def _letters(broker: Broker, group: str) -> Any:
    with DeadLetters(broker.registry) as letters:
        try:
            return list(letters.letters(group))
        except NotFound:
            return []


async def test_a_form_that_says_nonsense_changes_nothing(changing: Browser, broker: Broker) -> None:
    """As if nothing was said, it sent all dead letters again, or made a topic with other queues than were asked for."""
    for act, form in (
        ("topic-add", {"topic": "nonsense", "queues": "-1"}),
        ("dead-redrive", {"group": "g", "limit": "10 letters"}),
        ("dead-redrive", {"group": "g", "rate": "fast"}),
        ("group-reset", {"topic": "orders", "name": "g", "typed": "g", "to": "-999999d"}),  # no such group, and no 500
    ):
        told = await changing.act(act, **form)
        assert (told.status, "failed=" in told.headers["location"]) == (303, True), (act, told.headers)
    assert (await changing.get("/topics/nonsense/about")).status == 404
    told = await changing.act("topic-delete", topic="y" * 100_000, typed="")
    assert len(told.headers["location"]) < 8_000


async def test_several_fields_of_one_name_are_lines(changing: Browser) -> None:
    token = await changing.token()
    body = f"token={token}&group=nosuch&ids=a&ids=b".encode()
    told = await changing.ask("POST", "/do/dead-resend", body, {"origin": "http://127.0.0.1:4171"})
    assert "no+dead+letters" in told.headers["location"]


async def test_a_client_is_disconnected(changing: Browser, broker: Broker) -> None:
    peer = NsqPeer(broker.nsq)
    peer.subscribe(b"quiet", b"c", 1)
    port = peer.socket.getsockname()[1]

    async def mine() -> list[str]:
        rows = (await _json(changing, "/clients.json"))["rows"]
        return [row["address"] for row in rows if row["address"].endswith(f":{port}")]

    (address,) = await mine()
    assert "are+ended" in (await changing.act("client-disconnect", address=address)).headers["location"]
    assert (
        "no+client+is+connected" in (await changing.act("client-disconnect", address="1.2.3.4:5")).headers["location"]
    )
    peer.socket.settimeout(60)
    while await asyncio.to_thread(peer.socket.recv, 100):
        pass
    peer.close()
    assert await mine() == []


async def test_a_stage_is_dropped(changing: Browser, broker: Broker) -> None:
    def stage() -> None:
        with StageClient(broker.registry, patience_s=60) as client:
            stage_rows(client, SinkRun("sink-1", "query", "run-1"), 0, [b"row"] * 3, "drop-t")

    await asyncio.to_thread(stage)
    row = next(row for row in (await _json(changing, "/spark.json"))["rows"] if row["sink"] == "sink-1")
    assert row["stages"] == 1
    assert "type+sink-1" in (await changing.act("stage-drop", sink="sink-1", typed="x")).headers["location"]
    told = await changing.act("stage-drop", sink="sink-1", typed="sink-1", run="run-1")
    assert "1+stages+of+sink-1" in told.headers["location"]
    row = next(
        (row for row in (await _json(changing, "/spark.json"))["rows"] if row["sink"] == "sink-1"), {"stages": 0}
    )
    assert row["stages"] == 0


@pytest.mark.parametrize("act", sorted(ACTS))
async def test_a_form_without_its_fields_changes_nothing(changing: Browser, act: str) -> None:
    told = await changing.act(act)
    assert told.status == 303
    assert "failed=" in told.headers["location"]


async def test_log_level(changing: Browser, broker: Broker) -> None:
    told = await changing.act("log-level", level="warn")
    assert "failed=" in told.headers["location"]  # a broker without users wants its admin_token, or open_config
