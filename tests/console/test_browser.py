"""The console in a real Chromium: a number that changes live, an action seen in the broker, keys, zoom, no other host."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from console.conftest import post
from penstock.client.results import Reject
from penstock.testing import Broker
from polling import eventually

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if importlib.util.find_spec("playwright") is None:
    pytest.skip("playwright is not on this machine", allow_module_level=True)
if CHROMIUM is None:
    pytest.skip("chromium is not on this machine", allow_module_level=True)

PAGES = [
    "/", "/topics", "/topics/orders/about", "/topics/orders/messages?from=first", "/topics/audit/channel/archive/about",
    "/topics/orders/about?queues=1&keep=1h&purge=end", "/topics/orders/group/billing/about?to=-1h",
    "/topics/orders/group/billing/about", "/deadletters", "/deadletters/tired/about", "/delayed", "/clients",
    "/spark", "/settings", "/replication",
]  # fmt: skip


@pytest.fixture(scope="module")
def address(broker: Broker) -> Iterator[str]:
    command = [
        sys.executable, "-m", "penstock.cli", "console", "--broker", f"http://{broker.http}", "-n", broker.registry,
        "--port", "0", "--allow-changes", "--ends-with-input",
    ]  # fmt: skip
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        yield "http://" + json.loads(process.stdout.readline().removeprefix(b"ready "))["console"]
        process.stdin.close()


@pytest.fixture(scope="module", autouse=True)
def traffic(broker: Broker) -> None:
    """Dead letters and delayed messages, so that each page has something to show."""

    def refuse(message: object) -> None:
        raise Reject("<i>no such customer</i>")

    with penstock.Producer(broker.registry) as producer, penstock.Admin(broker.registry) as admin:
        later = int(time.time() * 1000) + 3_600_000
        producer.send(penstock.Message("orders", b"later", deliver_at_ms=later))
        for n in range(3):
            producer.send(penstock.Message("frail", b"<u>%d</u>" % n))
        with penstock.PushConsumer("tired", broker.registry, listener=refuse, start="first") as consumer:
            consumer.subscribe("frail")
            eventually(lambda: "%DLQ%tired" in admin.topics(system=True))
            eventually(lambda: sum(s.max_offset for s in admin.topic_stats("%DLQ%tired").values()) == 3)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # type: ignore[import-not-found, unused-ignore]

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


def test_every_page_without_an_error_and_without_another_host(chromium: Any, address: str) -> None:
    page = chromium.new_page()
    page.set_default_timeout(60_000)
    asked, errors = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("dialog", lambda dialog: errors.append("a dialog") or dialog.dismiss())
    for path in PAGES:
        page.goto(address + path)
        assert page.locator("h1").count() == 1
        page.locator("#state.on").wait_for()
    page.goto(f"{address}/topics/orders/messages?from=first")
    page.locator("article.message a").first.click()
    page.get_by_text("stored").first.wait_for()
    page.close()
    assert not errors
    assert all(url.startswith((address, "data:")) for url in asked)


def test_a_number_changes_live(chromium: Any, address: str, broker: Broker) -> None:
    page = chromium.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{address}/topics/audit/channel/archive/about")
    page.locator("#state.on").wait_for()
    before = page.locator(".lead b").nth(1).inner_text()
    post(broker, "/mpub?topic=audit", b"\n".join(b"%d" % n for n in range(1111)))
    wanted = f"{int(before.replace(',', '')) + 1111:,}"
    page.locator(".lead b", has_text=wanted).first.wait_for()
    page.close()


def test_an_action_is_seen_in_the_broker(chromium: Any, address: str, broker: Broker) -> None:
    post(broker, "/topic/create?topic=clicked")
    post(broker, "/channel/create?topic=clicked&channel=c")
    page = chromium.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{address}/topics/clicked/channel/c/about")
    page.get_by_role("button", name="Pause").click()
    page.get_by_role("status").wait_for()

    def paused() -> bool:
        with urllib.request.urlopen(f"http://{broker.http}/stats?format=json&topic=clicked") as answer:
            return bool(json.loads(answer.read())["topics"][0]["channels"][0]["paused"])

    eventually(paused)
    page.close()


def test_without_javascript_everything_is_read(chromium: Any, address: str) -> None:
    context = chromium.new_context(java_script_enabled=False)
    page = context.new_page()
    for path in PAGES:
        page.goto(address + path)
        assert page.locator("h1").is_visible()
        assert page.locator("#live").is_visible()
    page.goto(f"{address}/topics/orders/messages?from=first")
    assert "<script>alert(1)</script>" in page.locator("pre").first.inner_text()
    context.close()


def test_keys_and_zoom(chromium: Any, address: str) -> None:
    page = chromium.new_page(viewport={"width": 640, "height": 480})  # 1280 pixels at 200 %
    page.set_default_timeout(60_000)
    page.goto(f"{address}/clients")
    page.keyboard.press("t")
    page.wait_for_url("**/topics")
    page.keyboard.press("/")
    page.keyboard.type("ord")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics?q=ord")
    page.goto(f"{address}/topics/orders/about")
    page.keyboard.press("m")
    page.wait_for_url("**/topics/orders/messages")
    for path in PAGES:
        page.goto(address + path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(chromium: Any, address: str, scheme: str) -> None:
    """The rules of axe-core, which is not ours to keep: `pip install axe-playwright-python` brings it, or `npm pack axe-core`,
    and PENSTOCK_AXE says where its axe.min.js is.
    """
    found = importlib.util.find_spec("axe_playwright_python")
    beside = [Path(at) / "axe.min.js" for at in (found.submodule_search_locations or ())] if found else []
    script = os.environ.get("PENSTOCK_AXE", "") or next((str(path) for path in beside if path.is_file()), "")
    if not script:
        pytest.skip("axe-core is not on this machine")
    context = chromium.new_context(color_scheme=scheme, bypass_csp=True)
    page = context.new_page()
    page.set_default_timeout(60_000)
    for path in PAGES:
        page.goto(address + path)
        page.evaluate(Path(script).read_text())
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        assert not found, (path, [(one["id"], one["nodes"][0]["html"]) for one in found])
    context.close()


def test_a_dead_letter_that_is_chosen_is_sent_again(chromium: Any, address: str, broker: Broker) -> None:
    page = chromium.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{address}/deadletters/tired/about")
    page.locator("#state.on").wait_for()
    page.get_by_label("choose").first.check()
    page.get_by_role("button", name="Send the chosen ones again").click()
    page.get_by_role("status").get_by_text("1 of 1 were sent").wait_for()
    with penstock.Admin(broker.registry) as admin:
        assert sum(s.max_offset for s in admin.topic_stats("frail").values()) == 4
    with page.expect_download() as download:
        page.get_by_text("Export as JSON lines").click()
    assert len(Path(download.value.path()).read_text().splitlines()) == 3
    page.close()
