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


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host/path", "http://[::1"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises((ConfigError, ValueError)):
        Upstream(url, PLAIN)


async def test_what_answers_is_no_broker(broker: Broker) -> None:
    with pytest.raises(Unreachable, match="no broker"):
        await Upstream(broker.http, PLAIN).get("/ping")
