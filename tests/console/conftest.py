"""A broker with both kinds of topic, and a console over it, without a socket of its own."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator

import pytest

import penstock
from console.browser import Browser
from penstock.console.app import Console
from penstock.console.guard import Guard
from penstock.console.pages import Site
from penstock.console.upstream import Upstream
from penstock.security import PLAIN
from penstock.testing import Broker

HOSTILE = [
    b"<script>alert(1)</script>", b"{{7*7}}{% for x in y %}", bytes(range(32)) + b"\x7f\x9b\xff", b"x" * (4 << 20),
    b'{"a": "</pre><img src=x onerror=alert(1)>"}', "‮ right to left".encode(),
]  # fmt: skip


def post(broker: Broker, target: str, body: bytes = b"") -> None:
    urllib.request.urlopen(urllib.request.Request(f"http://{broker.http}{target}", data=body, method="POST")).read()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(max_msg_size=5 << 20, max_message_size=5 << 20) as broker:
        post(broker, "/topic/create?topic=audit")
        post(broker, "/channel/create?topic=audit&channel=archive")
        with penstock.Producer(broker.registry) as producer:
            for number, body in enumerate(HOSTILE):
                producer.send(penstock.Message("orders", body, keys=(f"k{number}",), tags="<b>tag</b>"))
                post(broker, "/pub?topic=audit", body)
        with penstock.PullConsumer(broker.registry, group="billing") as consumer:
            consumer.commit(dict.fromkeys(consumer.queues("orders"), 0))
        yield broker


def console_of(broker: Broker, allow_changes: bool = False) -> Console:
    upstream = Upstream(f"http://{broker.http}", PLAIN)
    return Console(Site(upstream, broker.registry, PLAIN, allow_changes), Guard(["console.example"]))


@pytest.fixture
def reading(broker: Broker) -> Browser:
    return Browser(console_of(broker).app())


@pytest.fixture
def changing(broker: Broker) -> Browser:
    return Browser(console_of(broker, True).app())
