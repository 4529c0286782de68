"""A walk over the whole console as a stranger would fill it: every page that some link leads to, every form that some page
has. Whatever a client may call itself, and whatever it sends, is text.
"""

from __future__ import annotations

import html
import itertools
import json
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack
from html.parser import HTMLParser
from typing import Any, NamedTuple
from urllib.parse import urlencode, urljoin

import pytest

import penstock
from client.test_staging import stage as stage_rows
from console.browser import Browser, Told
from console.conftest import HOSTILE, console_of, post
from console.test_app import EVERY
from fronts.nsq_peer import NsqPeer, sized
from penstock.client.results import Reject
from penstock.client.staging import SinkRun, StageClient
from penstock.console.changes import ACTS
from penstock.console.pages import PAGES, find
from penstock.testing import Broker
from polling import eventually

EVIL = "<script>alert(1)</script>{{7*7}}'\"><img src=x onerror=alert(1)>"
FOREIGN = (
    {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:9999"}, {"host": "evil.example"},
    {"host": "127.0.0.1.evil.example"}, {"host": ""},
)  # fmt: skip
PAGES_MAX = 400


class Form(NamedTuple):
    method: str
    action: str
    fields: dict[str, str]


class Page(HTMLParser):
    """What is on a page, and what of it a person with other eyes or without a mouse would miss."""

    VOID = frozenset(("meta", "link", "input", "br", "img", "hr"))

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.forms: list[Form] = []
        self.scripts: list[str | None] = []
        self.wrong: list[str] = []
        self.headings: list[int] = []
        self.ids: list[str] = []
        self.landmarks: list[str] = []
        self._open: list[tuple[str, dict[str, str | None]]] = []
        self._labels: set[str] = set()
        self._unlabelled: list[str] = []
        self._text: list[str] = []
        self.feed(text)
        self.wrong += [f"an input without a label: {name}" for name in self._unlabelled if name not in self._labels]
        self.wrong += [f"not closed: {name}" for name, _ in self._open]

    def _within(self, name: str) -> bool:
        return any(tag == name for tag, _ in self._open)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = dict(attrs)
        self.wrong += [f"{tag} has {name}" for name in about if name.startswith("on") or name == "style"]
        if "id" in about:
            self.ids.append(about["id"] or "")
        if tag == "script":
            self.scripts.append(about.get("src"))
        elif tag == "a" and about.get("href") is not None:
            self.links.append(about["href"] or "")
        elif tag == "form":
            self.forms.append(Form((about.get("method") or "get").lower(), about.get("action") or "", {}))
        elif tag == "label":
            self._labels.add(about.get("for") or "")
        elif tag == "html" and not about.get("lang"):
            self.wrong.append("no lang")
        elif tag == "img" and about.get("alt") is None:
            self.wrong.append("an img without alt")
        elif tag == "th" and not self._within("table"):
            self.wrong.append("a th without a table")
        elif re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        elif tag in ("header", "main", "footer", "nav") and not self._within("article"):
            self.landmarks.append(tag)
            if tag == "nav" and not about.get("aria-label"):
                self.wrong.append("a nav without a name")
        elif tag == "svg" and not (about.get("role") or about.get("aria-hidden")):
            self.wrong.append("an svg without a role")
        if tag in ("input", "select", "textarea", "button"):
            name = about.get("name") or ""
            if self.forms and name and self._within("form"):
                self.forms[-1].fields[name] = about.get("value") or ""
            if tag != "button" and about.get("type") != "hidden":
                named = about.get("aria-label") or about.get("aria-labelledby") or self._within("label")
                if not named:
                    self._unlabelled.append(about.get("id") or f"?{name}")
            if about.get("tabindex", "0") not in ("0", "-1"):
                self.wrong.append(f"{tag} jumps the order of the keyboard")
        if tag not in self.VOID:
            self._open.append((tag, about))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self._open or self._open[-1][0] != tag:
            self.wrong.append(f"</{tag}> closes {self._open[-1][0] if self._open else 'nothing'}")
        if self._open:
            self._open.pop()


@pytest.fixture(scope="module")
def strangers(broker: Broker) -> Iterator[Broker]:
    """Dead letters, delayed messages, stages, and clients of both protocols with names that are code."""

    def refuse(message: object) -> None:
        raise Reject(EVIL)

    with ExitStack() as stack:
        producer = stack.enter_context(penstock.Producer(broker.registry))
        later = time.time_ns() // 1_000_000 + 3_600_000
        producer.send(penstock.Message("orders", EVIL.encode(), deliver_at_ms=later, keys=(EVIL.replace(" ", ""),)))
        producer.send(penstock.Message("orders", EVIL.encode(), tags=EVIL, properties={EVIL: EVIL}))
        producer.send(penstock.Message("orders", b'["\\ud800", "\\u202e", "\\u0000"]'))
        for body in HOSTILE[:3]:
            producer.send(penstock.Message("walked", body, keys=("<k>",)))
        admin = stack.enter_context(penstock.Admin(broker.registry))
        dying = stack.enter_context(penstock.PushConsumer("dying", broker.registry, listener=refuse, start="first"))
        dying.subscribe("walked")
        eventually(lambda: "%DLQ%dying" in admin.topics(system=True))
        eventually(lambda: sum(one.max_offset for one in admin.topic_stats("%DLQ%dying").values()) == 3)
        peer = NsqPeer(broker.nsq)
        stack.callback(peer.close)
        about = {"client_id": EVIL, "hostname": EVIL, "user_agent": EVIL}
        peer.ask(b"IDENTIFY\n" + sized(json.dumps(about).encode()))
        peer.subscribe(b"audit", b"archive", 1)
        post(broker, "/pub?topic=audit&defer=3600000", EVIL.encode())
        with StageClient(broker.registry, patience_s=60) as stages:
            stage_rows(stages, SinkRun("walk-sink", "query", "run-1"), 0, [b"row"] * 3, "walk-t")
        yield broker


async def walk(browser: Browser, *also: str) -> dict[str, Told]:
    """Every page that a link of another leads to, and these."""
    waiting, seen = ["/", *also], dict[str, Told]()
    shapes: dict[str, int] = {}
    while waiting and len(seen) < PAGES_MAX:
        target = html.unescape(waiting.pop(0)).partition("#")[0]
        shape = re.sub(r"=[^&]*", "=", re.sub(r"[0-9A-Fa-f]{8,}", "N", target))
        if target in seen or not target.startswith("/") or shapes.get(shape, 0) >= 3:
            continue
        shapes[shape] = shapes.get(shape, 0) + 1
        seen[target] = told = await browser.get(target)
        if told.headers.get("content-type", "").startswith("text/html"):
            page = Page(told.text)
            waiting += [urljoin(target, link) for link in page.links]
    return seen


async def test_every_page_that_a_link_leads_to(strangers: Broker) -> None:
    seen = await walk(Browser(console_of(strangers, True).app()), *EVERY)
    reached = {
        found[0] for target in seen if (found := find(target.partition("?")[0].removesuffix(".json"))) is not None
    }
    assert reached == {template for _, template, _ in PAGES}, "a page that nothing leads to"
    assert len(seen) > 60
    text = ""
    for target, told in seen.items():
        assert told.status == 200, (target, told.text[:500])
        kind = told.headers["content-type"]
        if kind.startswith("application/json"):
            assert isinstance(json.loads(told.body), dict), target
        if not kind.startswith("text/html"):
            continue
        page, text = Page(told.text), text + told.text
        assert page.scripts == ["/static/console.js"], target
        assert not page.wrong, (target, page.wrong)
        assert "<img" not in told.text, target
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", told.text), target
        assert not [link for link in page.links if not link.startswith(("/", "?", "#"))], target
        assert page.headings[0] == 1, target
        assert page.headings.count(1) == 1, target
        steps = [after - before for before, after in itertools.pairwise(page.headings)]
        assert max(steps, default=0) <= 1, (target, page.headings)
        assert len(page.ids) == len(set(page.ids)), target
        assert [page.landmarks.count(name) for name in ("header", "main", "footer")] == [1, 1, 1], target
        for table in re.findall(r"<table.*?</table>", told.text, re.S):
            assert "<th" in table, target
    assert html.escape(EVIL, quote=False)[:20] in text.replace("&#34;", '"')
    assert text.count("&lt;script&gt;alert(1)") > 10


def topics_of(page: dict[str, Any]) -> list[str]:
    """In the order of their names: the page's own is by how busy they are, which changes meanwhile."""
    return sorted(row["topic"] for row in page["rows"])


async def test_every_form_is_for_our_own_pages_alone(strangers: Broker) -> None:
    """Every form of every page, and every act there is, by strangers: 403, and the broker is asked for nothing."""
    browser = Browser(console_of(strangers, True).app())
    seen = await walk(browser, *EVERY, "/topics/orders/about?keep=1h", "/topics/orders/about?purge=end")
    forms: dict[str, Form] = {}
    for told in seen.values():
        if told.headers.get("content-type", "").startswith("text/html"):
            for form in Page(told.text).forms:
                if form.method == "post":
                    forms.setdefault(form.action, form)
                    assert len(form.fields["token"]) == 64
    assert set(forms) == {f"/do/{name}" for name in ACTS}, "an act that no page has, or a form for no act"
    before = {target: json.loads((await browser.get(target)).body) for target in ("/topics.json", "/delayed.json")}
    ours = {"origin": "http://127.0.0.1:4171", "content-type": "application/x-www-form-urlencoded"}
    for action, form in forms.items():
        body = urlencode(form.fields | {"typed": form.fields.get("topic", "")}).encode()
        for said in FOREIGN:
            assert (await browser.ask("POST", action, body, ours | said)).status == 403, (action, said)
            assert (await browser.ask("POST", f"/at/broker-a{action}", body, ours | said)).status == 403, (action, said)
        for token in ("", "0" * 64, "é"):
            wrong = urlencode(form.fields | {"token": token}).encode()
            assert (await browser.ask("POST", action, wrong, ours)).status == 403, action
        assert (await Browser(browser.app).ask("POST", action, body, ours)).status == 403, "without the session"
        for method in ("GET", "PUT", "DELETE", "HEAD"):
            assert (await browser.ask(method, action, body, ours)).status in (404, 405), (method, action)
        reading = Browser(console_of(strangers).app())
        assert (await reading.ask("POST", action, body, ours)).status == 403, "read-only"
    for target, was in before.items():
        now = json.loads((await browser.get(target)).body)
        assert topics_of(now) == topics_of(was)
    for target in seen:
        assert (await browser.get(target, host="evil.example")).status == 403, target


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    whole = digits if len(digits) == 6 else "".join(one * 2 for one in digits)
    parts = [int(whole[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


async def test_the_style_is_for_many_eyes(reading: Browser) -> None:
    """Light and dark with enough contrast, a focus that is seen, nothing that moves for who does not want it."""
    css = (await reading.get("/static/console.css")).text
    assert "prefers-color-scheme" in css
    assert ":focus-visible" in css
    assert re.findall(r"([^}]*){[^}]*outline: ?(?:none|0)", css) == ["\nmain:focus "]  # which a script alone can focus
    light, dark = (
        dict(re.findall(r"--([\w-]+):\s*(#[0-9a-f]+)", block)) for block in re.findall(r":root {([^}]*)}", css)
    )
    assert set(light) == set(dark)
    for theme in (light, dark):
        for ground in ("ground", "raised", "shade"):
            for ink in ("ink", "soft", "accent", "bad", "good"):
                assert contrast(theme[ink], theme[ground]) >= 4.5, (ink, ground, theme[ink], theme[ground])
            for line in "abcd":
                assert contrast(theme[line], theme[ground]) >= 3, (line, ground)
