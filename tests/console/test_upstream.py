"""The broker is asked once for however many look at the same; a refusal and silence are told apart."""

from __future__ import annotations

import asyncio

import pytest

from penstock.console.upstream import Refusal, Unreachable, Upstream
from penstock.errors import ConfigError
from penstock.security import PLAIN
from penstock.testing import Broker


async def test_one_question_for_all_who_look(broker: Broker) -> None:
    now = [0.0]
    upstream = Upstream(broker.http, PLAIN, clock=lambda: now[0])
    told = await asyncio.gather(*(upstream.get("/api/snapshot", {"parts": "topics"}) for _ in range(20)))
    assert upstream.asked == 1
    assert all(one is told[0] for one in told)
    now[0] = 0.9
    await upstream.get("/api/snapshot", {"parts": "topics"})
    assert upstream.asked == 1
    now[0] = 1.1
    await upstream.get("/api/snapshot", {"parts": "topics"})
    upstream.forget()
    await upstream.get("/api/snapshot", {"parts": "topics"})
    assert upstream.asked == 3


async def test_refusals(broker: Broker) -> None:
    upstream = Upstream(f"http://{broker.http}/", PLAIN)
    with pytest.raises(Refusal, match="INVALID_PARTS") as refused:
        await upstream.get("/api/snapshot", {"parts": "x"})
    assert refused.value.status == 400
    with pytest.raises(Refusal):
        await upstream.change("PUT", "/config/log_level", b"shout")
    with pytest.raises(Unreachable):
        await Upstream("http://127.0.0.1:9", PLAIN).get("/api/snapshot")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host", "http://", "http://host/path", "http://[::1", "host:port", "host:99999", "host:0", "a b", "http://a?b",
        "user:secret@host:4151", "::1:x",
    ],
)  # fmt: skip
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ConfigError, match="is no address of a broker's HTTP port"):
        Upstream(url, PLAIN)


@pytest.mark.parametrize("url", ["zzz", "zzz:1", "[::1]:4151", "https://zzz/", "HTTP://zzz", "[::1]"])
def test_what_is_one(url: str) -> None:
    """Whether somebody is there is another question."""
    assert Upstream(url, PLAIN).url.startswith("http")


async def test_what_answers_is_no_broker(broker: Broker) -> None:
    with pytest.raises(Unreachable, match="no broker"):
        await Upstream(broker.http, PLAIN).get("/ping")


async def test_many_pages_ask_no_more_than_a_few(broker: Broker) -> None:
    """What all answers took together is a sixtieth of the time at most; a page that was closed does not count for long."""
    now = 0.0

    class Slow(Upstream):
        def _exchange(self, method: str, target: str, body: bytes) -> bytes:
            nonlocal now
            now += 0.1
            return b"{}"

    upstream = Slow(f"http://{broker.http}", PLAIN, clock=lambda: now)
    for _ in range(20_000):
        now += 0.05
        for page in range(10):
            await upstream.get(f"/{page}")
    assert upstream.asked * 0.1 <= now / 50
    assert upstream.asked * 0.1 >= now / 200
    now += 10_000
    await upstream.get("/1")
    now += 10_000
    asked = upstream.asked
    for _ in range(1_000):
        now += 0.1
        await upstream.get("/1")
    assert upstream.asked - asked >= 8  # a hundredth of the time, as one page alone
