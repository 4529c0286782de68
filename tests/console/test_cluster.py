"""`console.cluster`: two brokers in one console: sums, one of them chosen, one that is silent, and hostile names."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

import penstock
from cli.test_tools import beside
from console.browser import Browser, Told
from console.conftest import post
from penstock.console.app import Console
from penstock.console.cluster import Brokers, Together, added_history, added_snapshots, keep_choice, place_of, prefix_of
from penstock.console.guard import Guard
from penstock.console.pages import Site
from penstock.console.server import Settings, console_of
from penstock.console.upstream import Upstream
from penstock.security import PLAIN
from penstock.testing import Broker
from polling import eventually


@pytest.fixture(scope="module")
def two() -> Iterator[tuple[Broker, Broker]]:
    """Brokers a and b of one registry: the queue topic `both` on either, `only` on b."""
    with Broker(broker_name="a") as first, Broker(broker_name="b", registry=first.registry, **NO_REGISTRY) as second:
        for broker, count in ((first, 3), (second, 4)):
            post(broker, "/topic/create?topic=both")
            post(broker, "/channel/create?topic=both&channel=c")
            for _ in range(count):
                post(broker, "/pub?topic=both", b"x")
        post(second, "/topic/create?topic=only")
        with penstock.Admin(first.registry) as admin:
            eventually(lambda: len(admin.cluster_info().brokers) == 2)
        yield first, second


NO_REGISTRY = {"registry_port": -1, "lookup_port": -1, "lookup_http_port": -1}


class Page:
    """A browser whose calls are waited for."""

    def __init__(self, app: object) -> None:
        self._browser = Browser(app)

    def get(self, path: str) -> Told:
        return asyncio.run(self._browser.get(path))

    def post(self, path: str, form: dict[str, str], page: str) -> Told:
        async def send() -> Told:
            fields = form | {"token": await self._browser.token(page)}
            said = {"origin": "http://127.0.0.1:4171", "content-type": "application/x-www-form-urlencoded"}
            return await self._browser.ask("POST", path, urlencode(fields).encode(), said)

        return asyncio.run(send())


def told(browser: Page, path: str) -> dict:  # type: ignore[type-arg]
    answer = browser.get(path)
    assert answer.status == 200, answer.text
    return json.loads(answer.text)  # type: ignore[no-any-return]


def console(first: Broker, broker: str, allow_changes: bool = False) -> Page:
    return Page(console_of(Settings(broker, first.registry, allow_changes=allow_changes), PLAIN).app())


@pytest.fixture(params=["registry", "addresses"])
def browser(two: tuple[Broker, Broker], request: pytest.FixtureRequest) -> Page:
    first, second = two
    return console(first, "" if request.param == "registry" else f"{first.http}, http://{second.http}")


def test_sums_and_one_of_them(browser: Page) -> None:
    head = told(browser, "/now.json")["head"]
    assert head["name"] == "2 brokers"
    assert {one["name"] for one in head["brokers"]} == {"a", "b"}
    rows = {row["topic"]: row for row in told(browser, "/topics.json")["rows"]}
    assert (rows["both"]["messages"], rows["both"]["lag"]) == (7, 7)
    assert [(one["name"], one["lag"]) for one in rows["both"]["readers"]] == [("c", 7)]
    for name, count in (("a", 3), ("b", 4)):
        rows = {row["topic"]: row for row in told(browser, f"/at/{name}/topics.json")["rows"]}
        assert rows["both"]["messages"] == count
        assert ("only" in rows) == (name != "a")
    assert browser.get("/at/nobody/topics").status == 404


def test_links_keep_the_choice(browser: Page) -> None:
    page = browser.get("/at/b/topics?sort=name").text
    assert 'href="/at/b/topics/both/about"' in page
    assert 'action="/at/b/topics"' in page
    assert 'href="/at/a/topics?sort=name"' in page
    assert 'href="/at//topics?sort=name"' in page
    assert 'data-live="/at/b/topics?sort=name"' in page
    assert 'href="/static/console.css"' in page
    assert 'href="/topics' not in page
    assert 'href="/at/a/topics/' not in page


def test_a_page_of_one_broker_is_that_of_who_has_it_or_a_choice(browser: Page) -> None:
    assert told(browser, "/topics/only/about.json")["row"]["topic"] == "only"
    choice = browser.get("/topics/both/about").text
    assert 'href="/at/a/topics/both/about"' in choice
    assert 'href="/at/b/topics/both/about"' in choice
    assert told(browser, "/settings.json")["names"] == ["a", "b"]
    assert told(browser, "/at/a/topics/both/about.json")["row"]["messages"] == 3
    assert browser.get("/topics/nosuch/about").status == 404


def test_a_change_goes_back_to_the_broker_that_was_chosen(two: tuple[Broker, Broker]) -> None:
    browser = console(two[0], "", allow_changes=True)
    answer = browser.post("/at/a/do/topic-add", {"topic": "made", "kind": "queue"}, page="/at/a/topics")
    assert answer.status == 303
    assert answer.headers["location"].startswith("/at/a/topics/made/about?did=")
    for broker in two:
        rows = json.loads(urllib.request.urlopen(f"http://{broker.http}/api/snapshot?parts=topics").read())["topics"]
        assert "made" in {row["topic"] for row in rows}


def test_one_that_is_silent_is_said_and_the_others_are_summed() -> None:
    with Broker() as broker:
        post(broker, "/topic/create?topic=here")
        browser = console(broker, f"{broker.http},http://127.0.0.1:1")
        page = told(browser, "/now.json")
        assert [one["name"] for one in page["head"]["silent"]] == ["127.0.0.1:1"]
        assert "127.0.0.1:1 is not in these sums" in page["sentences"][0]["text"]
        assert [row["topic"] for row in told(browser, "/topics.json")["rows"]] == ["here"]
        assert browser.get("/at/127.0.0.1:1/topics").status == 502
        assert browser.get("/at/127.0.0.1:1/").text.count("127.0.0.1:1") >= 1


async def test_a_broker_that_comes_is_seen_and_a_registry_that_goes_is_borne() -> None:
    now = [0.0]
    with Broker() as broker:
        site = Site(Upstream(broker.http, PLAIN), broker.registry, PLAIN)
        brokers = Brokers(site, clock=lambda: now[0])
        assert list(await brokers.named()) == ["broker-a"]
        with Broker(broker_name="b", registry=broker.registry, **NO_REGISTRY):

            async def both() -> bool:
                now[0] += 60.0
                await brokers.named()
                await asyncio.sleep(0.01)
                return list(await brokers.named()) == ["b", "broker-a"]

            async with asyncio.timeout(60):
                while not await both():
                    pass
    now[0] += 60.0
    assert list(await brokers.named()) == ["b", "broker-a"]  # nobody waits
    nobody = Brokers(site)
    assert (await nobody.site_of("", "/topics")).upstream is site.upstream


async def test_what_a_broker_does_not_tell_is_not_taken_for_nothing() -> None:
    """Once it hung, the console looked anew who there is, and showed what the others have as all there is."""
    with Broker() as broker:
        async with beside(broker, "gone", "127.0.0.1:1"):
            browser = Browser(console_of(Settings("", broker.registry), PLAIN).app())
            for path in ("/topics", "/clients", "/topics/read/about", "/delayed", "/deadletters"):
                page = await browser.get(path)
                assert (page.status, "Not in what is shown is broker gone: " in page.text) == (200, True), path
                missed = json.loads((await browser.get(f"{path}.json")).text)["missed"]
                assert [one["name"] for one in missed] == ["gone"]
            assert "Broker gone is not in these sums" in (await browser.get("/")).text
            assert (await browser.get("/at/gone/topics")).status == 502
            nowhere = await browser.get("/topics/none/about")
            assert (nowhere.status, "broker gone" in nowhere.text) == (502, True)


def test_one_broker_shows_no_choice() -> None:
    with Broker() as broker:
        browser = console(broker, "")
        assert 'aria-label="Brokers"' not in browser.get("/").text
        assert told(browser, "/now.json")["head"]["name"] == "broker-a"
        assert told(browser, "/settings.json")["rows"]


def test_places_and_links() -> None:
    assert place_of("/at/a%2Fb/topics") == ("a/b", "/topics")
    assert place_of("/at//topics") == ("", "/topics")
    assert place_of("/at/a") == ("a", "/")
    assert place_of("/attics") == ("", "/attics")
    assert prefix_of('a b"<') == "/at/a%20b%22%3C"
    html = '<a href="/x"><form action="/do/y"><a href="/at/b/x"><a href="//other"><link href="/static/a"><a href="/">'
    kept = keep_choice(html, "\\1")
    assert kept.count("/at/%5C1/") == 3
    assert 'href="//other"' in kept
    assert keep_choice(html, "") == html


def test_histories_are_added_moment_by_moment() -> None:
    first = {"k": {"since": 10, "step": 1, "in": [1, None, 3], "lag_s": [5, None, 1]}, "none": None}
    second = {"k": {"since": 11, "step": 1, "in": [None, 4, 6], "lag_s": [2, 3, 4]}, "none": None}
    other = {"k": {"since": 0, "step": 60, "in": [9], "lag_s": [9]}, "none": None}
    assert added_history([first, second, other]) == {
        "k": {"since": 10, "step": 1, "in": [1, None, 7, 6], "lag_s": [5, 2, 3, 4]}, "none": None,
    }  # fmt: skip


def test_snapshots_are_added() -> None:
    def head(name: str, **more: object) -> dict[str, object]:
        return {
            "name": name, "role": "master", "started": 1, "rates": {"in": 1.5, "lag_s": 2}, "health": "", "replicas": [],
            "disk": {"used": 0.5, "log": 10, "marks": [75, 85, 90]}, **more,
        }  # fmt: skip

    found = added_snapshots(
        {"a": head("a"), "b": head("b", health="full", rates={"in": None, "lag_s": 9})}, {"c": "why"}
    )
    assert (found["name"], found["health"], found["rates"]) == ("3 brokers", "b: full", {"in": 1.5, "lag_s": 9})
    assert found["disk"] == {"used": 0.5, "log": 20, "marks": [75, 85, 90]}
    assert "topics" not in found


def test_together_changes_at_each() -> None:
    with Broker() as first, Broker(broker_name="b") as second:
        together = Together({name: Upstream(one.http, PLAIN) for name, one in (("a", first), ("b", second))})
        asyncio.run(together.change("POST", "/topic/create?topic=made"))
        together.forget()
        for one in (first, second):
            assert b'"topic":"made"' in urllib.request.urlopen(f"http://{one.http}/api/snapshot?parts=topics").read()
        guard = Guard(["console.example"])
        assert isinstance(Console(Site(together, first.registry, PLAIN), guard).site.upstream, Together)
