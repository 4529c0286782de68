"""The console over a real broker: every page with hostile content, who may ask, the live stream."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import pytest

from console.browser import Browser
from console.conftest import console_of
from penstock.console.app import FIELDS_MAX, FILES, Console, _fields
from penstock.console.guard import Guard
from penstock.console.pages import PAGES, Site
from penstock.console.upstream import Upstream
from penstock.security import PLAIN
from penstock.testing import Broker

EVERY = [
    "/", "/topics", "/topics?kind=log&sort=name&q=ord", "/topics/orders/about", "/topics/audit/about?span=week",
    "/topics/orders/messages", "/topics/orders/messages?from=first&view=hex", "/topics/orders/messages?view=json&from=-1h",
    "/topics/orders/messages?key=k1", "/topics/audit/messages?channel=archive", "/topics/audit/messages?state=deferred",
    "/topics/orders/group/billing/about", "/topics/orders/group/billing/about?to=-1h", "/deadletters", "/delayed",
    "/topics/audit/channel/archive/about", "/clients", "/spark", "/settings", "/settings?set=1", "/replication",
]  # fmt: skip


@pytest.mark.parametrize("target", EVERY)
async def test_every_page_is_safe_and_has_its_json(reading: Browser, target: str) -> None:
    told = await reading.get(target)
    assert told.status == 200, told.text
    scripts = re.findall(r"<script[^>]*>", told.text)
    assert scripts == ['<script src="/static/console.js" defer>']
    assert "onerror=alert" not in re.sub(r"&lt;.*?&gt;", "", told.text)
    assert "<b>tag</b>" not in told.text
    assert "49" not in re.findall(r"<pre>(\d+)", told.text)
    assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", told.text)
    assert not re.search(r'(?:src|href|action)="(?:https?:)?//', told.text), "another host"
    assert not re.search(r'\sstyle="|\son\w+="', told.text)
    assert "default-src 'none'" in told.headers["content-security-policy"]
    path, _, query = target.partition("?")
    plain = await reading.get(("/now" if path == "/" else path) + ".json" + (f"?{query}" if query else ""))
    assert plain.status == 200
    assert plain.headers["content-type"] == "application/json"
    assert not any(name.startswith("_") for name in json.loads(plain.body))


async def test_hostile_bodies_are_shown_as_they_are(reading: Browser) -> None:
    text = (await reading.get("/topics/orders/messages?from=first")).text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "{{7*7}}" in text
    assert "00 01 02 03" in text
    assert "4 MiB" in text
    assert "Cut off." in text
    whole = (await reading.get("/topics/orders/messages?from=first&body=1048576")).text
    assert len(whole) > 1 << 20


async def test_one_message_and_its_life(reading: Browser) -> None:
    row = json.loads((await reading.get("/topics/orders/messages.json?key=k0")).body)["rows"][0]
    told = await reading.get(f"/messages/{row['id']}/about?topic=orders")
    assert told.status == 200, told.text
    assert "stored" in told.text
    assert "&lt;script&gt;" in told.text
    assert "its life" in (await reading.get("/topics/orders/messages")).text
    for state in ("ready", "in-flight", "deferred"):  # of what a channel holds there is no such page
        of_channel = await reading.get(f"/topics/audit/messages?channel=archive&state={state}")
        assert "its life" not in of_channel.text


async def test_what_was_done_is_told_once(reading: Browser) -> None:
    told = await reading.get("/topics/orders/about?did=it+is+done&failed=it+was+not&queues=8")
    assert told.text.count("it is done</p>") == told.text.count("it was not</p>") == 1
    links = [link for link in re.findall(r'href="(\?[^"]*)"', told.text) if "span=" in link]
    assert links
    assert not [link for link in links if "did=" in link or "failed=" in link]


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/nothing", 404), ("/topics/nobody/about", 404), ("/topics/nobody/messages", 404), ("/topics/orders/group/x/about", 404),
        ("/messages/7F00/about?topic=gone", 404),
        ("/topics/orders/messages?from=yesterday-ish", 400), ("/topics/%3Cscript%3E/about", 404), ("/static/../app.py", 404),
        ("/static/base.html", 404), ("/topics/orders/group/billing/about?to=soon", 400), ("/topics/a%2Fb/about", 404),
    ],
)  # fmt: skip
async def test_what_is_not_there_is_a_page_too(reading: Browser, target: str, status: int) -> None:
    told = await reading.get(target)
    assert told.status == status
    assert "Traceback" not in told.text
    assert "<script>" not in told.text


async def test_a_broker_that_is_gone_is_a_sentence() -> None:
    upstream = Upstream("http://127.0.0.1:9", PLAIN)
    told = await Browser(Console(Site(upstream, "127.0.0.1:9", PLAIN), Guard()).app()).get("/")
    assert told.status == 502
    assert "does not answer" in told.text


async def test_files_of_ours(reading: Browser) -> None:
    size = 0
    for name, kind in FILES.items():
        told = await reading.get(f"/static/{name}")
        assert (told.status, told.headers["content-type"]) == (200, kind)
        assert b"//" not in told.body.replace(b"// ", b"")
        size += len(told.body)
    assert size < 120_000


@pytest.mark.parametrize("host", ["evil.example", "evil.example:4171", "", "127.0.0.1.evil.example"])
async def test_a_foreign_host_sees_nothing(reading: Browser, host: str) -> None:
    for target in ("/", "/topics.json", "/static/console.js", "/live?of=/"):
        assert (await reading.get(target, host=host)).status == 403


async def test_changes_are_for_our_own_pages_alone(changing: Browser, broker: Broker) -> None:
    form = {"topic": "fresh", "kind": "queue"}
    for headers in (
        {"origin": "http://evil.example"}, {"origin": "null"}, {"host": "evil.example"},
        {"origin": "http://127.0.0.1:9999"}, {"cookie": "penstock_session=other"}, {"cookie": ""},
    ):  # fmt: skip
        assert (await changing.act("topic-add", headers, **form)).status == 403, headers
    assert (await changing.act("topic-add", token="0" * 64, **form)).status == 403
    assert (await changing.ask("GET", "/do/topic-add")).status in (404, 405)
    assert (await changing.act("nothing")).status == 404
    topics = json.loads((await changing.get("/topics.json")).body)["rows"]
    assert "fresh" not in [row["topic"] for row in topics]


async def test_read_only_unless_it_is_allowed(reading: Browser, broker: Broker) -> None:
    for page in EVERY:
        assert 'method="post"' not in (await reading.get(page)).text
    said = {"origin": "http://127.0.0.1:4171"}
    assert (await reading.ask("POST", "/do/topic-add", b"topic=fresh", said)).status == 403


async def test_a_change_is_seen_and_leaves_a_line(
    changing: Browser, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "penstock.audit")
    told = await changing.act("topic-add", topic="made", kind="queue")
    assert told.status == 303, told.text
    assert told.headers["location"].startswith("/topics/made/about")
    assert (await changing.get("/topics/made/about")).status == 200
    assert any("console topic-add topic=made" in line for line in caplog.messages)
    refused = await changing.act("topic-delete", topic="made", typed="maed", back="/topics/made/about")
    assert "failed=" in refused.headers["location"]
    assert (await changing.get("/topics/made/about")).status == 200
    await changing.act("topic-delete", topic="made", typed="made")
    assert (await changing.get("/topics/made/about")).status == 404


@pytest.mark.parametrize("back", ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:alert(1)"])
async def test_nobody_is_sent_away(changing: Browser, back: str) -> None:
    told = await changing.act("topic-delete", topic="orders", typed="", back=back)
    assert told.headers["location"].startswith("/?failed=")
    assert unquote(told.headers["location"]).count("//") == 0


async def test_the_live_stream_tells_what_changed(broker: Broker) -> None:
    console = console_of(broker)
    sent: asyncio.Queue[bytes] = asyncio.Queue()
    gone = asyncio.Event()
    scope = {
        "type": "http", "method": "GET", "path": "/live", "raw_path": b"/live", "query_string": b"of=/topics?q=au",
        "headers": [(b"host", b"localhost")], "client": None, "server": None, "scheme": "http", "root_path": "",
        "http_version": "1.1", "asgi": {"version": "3.0", "spec_version": "2.0"},
    }  # fmt: skip
    begun = asyncio.Event()

    async def receive() -> dict[str, object]:
        if not begun.is_set():
            begun.set()
            return {"type": "http.request", "body": b"", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, object]) -> None:
        body = message.get("body")
        if isinstance(body, bytes) and body.startswith(b"data:"):
            await sent.put(body)

    task = asyncio.ensure_future(console.app()(scope, receive, send))  # type: ignore[arg-type]
    first = json.loads((await asyncio.wait_for(sent.get(), 30)).removeprefix(b"data: "))
    assert "audit" in first
    assert "<html" not in first
    await asyncio.to_thread(_publish, broker)
    second = json.loads((await asyncio.wait_for(sent.get(), 30)).removeprefix(b"data: "))
    assert second != first
    gone.set()
    await asyncio.wait_for(task, 30)
    assert console.streams == 0


def _publish(broker: Broker) -> None:
    from console.conftest import post

    post(broker, "/pub?topic=audit", b"more")


def test_each_page_has_a_template() -> None:
    from penstock.console.app import HERE

    names = {template for _, template, _ in PAGES}
    assert {path.stem for path in (HERE / "templates").iterdir()} == names | {"base", "macros", "error"}


async def test_an_upgrade_beneath_changes_no_page(
    broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of another version come into the folder while the console runs: its pages stay those of its own."""
    from penstock.console import app

    shutil.copytree(app.HERE, tmp_path / "console")
    monkeypatch.setattr(app, "HERE", tmp_path / "console")
    browser = Browser(console_of(broker).app())
    for template in (tmp_path / "console" / "templates").iterdir():
        template.write_text("{{ what_only_the_new_version_knows }}")
        os.utime(template, (2_000_000_000, 2_000_000_000))
    for target in ("/spark", "/topics/orders/about", "/nothing"):
        assert "<h1>" in (await browser.get(target)).text


async def test_a_console_of_one_broker_shows_no_other(reading: Browser) -> None:
    """What is chosen in a path is another broker, perhaps: nothing is shown of this one instead, and nothing changed."""
    assert (await reading.get("/at/nosuch/topics")).status == 404
    assert (await reading.get("/at/nosuch/topics.json")).status == 404
    assert (await reading.get("/at/nosuch")).status == 404
    assert (await reading.get("/topics")).status == 200


def test_many_fields_of_one_name_are_read_quickly() -> None:
    """Each was written behind all the others, again and again: a form of 5 MB, from whoever, kept the console for a minute."""
    assert _fields(b"a=1&b=&a=2&a=%0A") == {"a": "1\n2\n\n", "b": ""}
    assert len(_fields(b"&".join([b"a=x"] * FIELDS_MAX))["a"]) == 2 * FIELDS_MAX - 1
    with pytest.raises(ValueError, match="fields"):
        _fields(b"a=x&" * (FIELDS_MAX + 1))


async def test_a_form_of_too_many_fields_is_refused(changing: Browser) -> None:
    told = await changing.act("topic-add", **{f"f{number}": "" for number in range(FIELDS_MAX + 1)})
    assert told.status == 413
