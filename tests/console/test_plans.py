"""`console.plans`: what a change of a topic would do is shown first, and then done when its name is typed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import penstock
from console.browser import Browser
from console.conftest import post
from penstock.console import plans
from penstock.errors import NoRoute
from penstock.testing import Broker


def test_words() -> None:
    assert [plans.keep_ms(text) for text in ("0", "90m", "12h", "7d")] == [0, 5_400_000, 43_200_000, 604_800_000]
    assert [plans.keep_bytes(text) for text in ("0", "500M", "10GiB", "7")] == [0, 500 << 20, 10 << 30, 7]
    assert plans.wanted_of({"queues": "", "keep": "", "trace": ""}) == {}
    assert plans.wanted_of({"queues": "4", "trace": "off"}) == {"writeQueues": 4, "trace": False}
    assert plans.place_of_purge("end") == "end"
    assert plans.place_of_purge("12") == 12
    ago = plans.place_of_purge("-2h")
    assert isinstance(ago, datetime)
    assert timedelta(hours=1.9) < datetime.now(UTC) - ago < timedelta(hours=2.1)
    for wrong in (
        {"queues": "0"},
        {"queues": "9999"},
        {"queues": "x"},
        {"keep": "7"},
        {"keep": "-1d"},
        {"keep_bytes": "1X"},
    ):
        with pytest.raises(ValueError, match="is no"):
            plans.wanted_of(wrong)
    for place in ("first", "last", "", "soon", "-5"):
        with pytest.raises(ValueError, match=r"."):
            plans.place_of_purge(place)


async def _json(browser: Browser, target: str) -> Any:
    told = await browser.get(target)
    assert told.status == 200, told.text
    return json.loads(told.body)


def test_numbers_that_are_none_are_not_left_out() -> None:
    assert [plans.queues_of(text) for text in ("", "4")] == [None, 4]
    assert [plans.limit_of(text) for text in ("", "1000")] == [None, 1_000]
    assert [plans.rate_of(text) for text in ("", "10", "0.5")] == [None, 10, 0.5]
    for read in (plans.queues_of, plans.limit_of, plans.rate_of):
        for wrong in ("0", "-1", "10 ", "1,000", "1e5", "nan", "9" * 5_000, "x"):
            with pytest.raises(ValueError, match="is no number"):
                read(wrong)


def test_an_age_that_is_before_all_calendars() -> None:
    assert plans.start_of("-999999d") == "first"
    with pytest.raises(ValueError, match="neither end"):
        plans.place_of_purge("-999999d")


async def test_settings_of_a_topic(changing: Browser, broker: Broker) -> None:
    with penstock.Admin(broker.registry) as admin, penstock.Producer(broker.registry) as producer:
        admin.create_topic("kept", 4)
        for queue in producer.queues("kept"):
            producer.send(penstock.Message("kept", b"x"), queue=queue)
        page = "/topics/kept/about.json"
        told = await _json(changing, page)
        assert (told["plan"], told["kept"]) == (None, {"ms": 0, "bytes": 0, "trace": False})
        plan = (await _json(changing, f"{page}?queues=1&keep=12h&trace=on&keep_bytes=1G"))["plan"]
        assert {row["what"]: (row["from"], row["to"], row["lost"]) for row in plan} == {
            "writeQueues": (4, 1, 3), "retentionMs": (0, 43_200_000, 0), "trace": (False, True, 0),
            "retentionBytes": (0, 1 << 30, None),
        }  # fmt: skip
        assert "Out of sight" in (await changing.get("/topics/kept/about?queues=1")).text
        assert (await _json(changing, page))["kept"]["ms"] == 0
        form = {"topic": "kept", "keep": "12h", "trace": "on", "queues": "2"}
        assert "failed=" in (await changing.act("topic-alter", typed="other", **form)).headers["location"]
        assert "failed=" in (await changing.act("topic-alter", typed="kept", topic="kept")).headers["location"]
        assert "did=" in (await changing.act("topic-alter", typed="kept", **form)).headers["location"]
        told = await _json(changing, page)
        assert told["kept"] == {"ms": 43_200_000, "bytes": 0, "trace": True}
        assert told["keep_ms"] == 43_200_000
        assert [row["writeQueues"] for row in admin.describe_topic("kept")] == [2]
        assert (await _json(changing, f"{page}?keep=12h&trace=on"))["plan"] == []
        assert (await changing.get("/topics/kept/about?keep=soon")).status == 400
        assert (await changing.get("/topics/audit/about?keep=12h")).status == 400


async def test_purge(changing: Browser, broker: Broker) -> None:
    with penstock.Producer(broker.registry) as producer, penstock.Admin(broker.registry) as admin:
        admin.create_topic("purged", 1)
        for n in range(5):
            producer.send(penstock.Message("purged", b"%d" % n))
        page = "/topics/purged/about.json"
        assert [row["messages"] for row in (await _json(changing, f"{page}?purge=3"))["purge"]] == [3]
        assert (await changing.get(f"{page}?purge=-1h")).status == 404
        assert "failed=" in (await changing.act("topic-purge", topic="purged", purge="3", typed="")).headers["location"]
        done = await changing.act("topic-purge", topic="purged", purge="3", typed="purged")
        assert "3+messages" in done.headers["location"]
        assert (await _json(changing, page))["row"]["messages"] == 2
        post(broker, "/mpub?topic=purged-queue", b"a\nb")
        post(broker, "/channel/create?topic=purged-queue&channel=c")
        done = await changing.act("topic-purge", topic="purged-queue", purge="end", typed="purged-queue")
        assert "2+messages" in done.headers["location"]


async def test_a_copy_of_a_message(changing: Browser, broker: Broker) -> None:
    with penstock.Producer(broker.registry) as producer, penstock.Admin(broker.registry) as admin:
        admin.create_topic("copied", 1)
        admin.create_topic("copies", 1)
        sent = producer.send(penstock.Message("copied", b"\xff<b>", keys=("k",), tags="t", properties={"mine": "1"}))
        form = {"id": sent.msg_id, "topic": "copied"}
        assert "did=" in (await changing.act("message-resend", to="copies", **form)).headers["location"]
        (row,) = (await _json(changing, "/topics/copies/messages.json?from=first"))["rows"]
        assert (row["properties"]["mine"], row["properties"]["TAGS"], row["properties"]["KEYS"]) == ("1", "t", "k")
        for to in ("nosuch", "audit"):
            assert "failed=" in (await changing.act("message-resend", to=to, **form)).headers["location"]
        with pytest.raises(NoRoute):
            admin.route("nosuch")
        assert "failed=" in (await changing.act("message-resend", id="0" * 32, topic="copied")).headers["location"]


async def test_messages_as_a_file(reading: Browser, broker: Broker) -> None:
    with penstock.Producer(broker.registry) as producer, penstock.Admin(broker.registry) as admin:
        admin.create_topic("filed", 1)
        for n in range(60):
            producer.send(penstock.Message("filed", b"<i>%d" % n, tags="even" if n % 2 == 0 else "odd"))
    told = await reading.get("/topics/filed/messages.jsonl?from=first")
    assert told.headers["content-type"] == "application/x-ndjson"
    assert "attachment" in told.headers["content-disposition"]
    assert [json.loads(line)["body"] for line in told.text.splitlines()] == [f"<i>{n}" for n in range(60)]
    for query, count in (
        ("", 50),
        ("?limit=7", 7),
        ("?from=50", 10),
        ("?from=first&tag=odd", 30),
        ("?from=first&text=9", 6),
    ):
        lines = (await reading.get(f"/topics/filed/messages.jsonl{query}")).text.splitlines()
        assert len(lines) == count, query
    rows = (await _json(reading, "/topics/filed/messages.json?from=first&tag=even"))["rows"]
    assert {row["properties"]["TAGS"] for row in rows} == {"even"}
    page = (await reading.get("/topics/filed/messages?from=first&tag=odd")).text
    assert 'href="/topics/filed/messages.jsonl?from=first&amp;tag=odd"' in page
    for target, status in (("/topics/nosuch/messages.jsonl", 404), ("/topics/filed/messages.jsonl?from=soon", 400)):
        assert (await reading.get(target)).status == status
    whole = (await reading.get("/topics/orders/messages.jsonl?from=first")).text.splitlines()
    assert max(len(json.loads(line)["body"]) for line in whole) >= 1 << 20
