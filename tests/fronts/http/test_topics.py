"""/topic/… and /channel/…: made, paused, emptied and deleted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import ask

from broker.queueside import Side
from penstock.fronts.http.nsqd import NsqHttp
from penstock.fronts.http.topics import Topics


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path)
    yield side
    side.close()


async def test_the_life_of_a_topic_and_its_channel(side: Side) -> None:
    site = NsqHttp(side.broker)
    for path in ("/topic/create?topic=t", "/channel/create?topic=t&channel=c", "/channel/pause?topic=t&channel=c"):
        assert (await ask(site, "POST", path)).short == (200, "")
    topic = side.queueing.topic(b"t")
    assert topic.channels[b"c"].paused
    side.queueing.publish(topic, [b"x"])
    assert topic.channels[b"c"].depth() == 1
    for path in ("/channel/empty?topic=t&channel=c", "/channel/unpause?topic=t&channel=c", "/topic/pause?topic=t"):
        assert (await ask(site, "POST", path)).short == (200, "")
    assert (topic.channels[b"c"].depth(), bool(topic.channels[b"c"].paused), bool(topic.paused)) == (0, False, True)
    assert (await ask(site, "POST", "/channel/delete?topic=t&channel=c")).short == (200, "")
    assert (await ask(site, "POST", "/topic/delete?topic=t")).short == (200, "")
    assert side.queueing.find(b"t") is None


@pytest.mark.parametrize("path", sorted(Topics(None, None).routes))  # type: ignore[arg-type]
async def test_every_route_asks_for_a_topic_that_is_there(side: Side, path: str) -> None:
    site = NsqHttp(side.broker)
    status, code = (await ask(site, "POST", path)).short
    assert (status, code) == (400, "MISSING_ARG_TOPIC")
    assert (await ask(site, "GET", f"{path}?topic=t")).status == 405
    if path != "/topic/create":
        assert (await ask(site, "POST", f"{path}?topic=none&channel=c")).short == (404, "TOPIC_NOT_FOUND")


@pytest.mark.parametrize("path", sorted(Topics(None, None).routes))  # type: ignore[arg-type]
async def test_a_slave_changes_nothing_by_itself(tmp_path: Path, path: str) -> None:
    side = Side(tmp_path, ha_port=0)
    topic = side.queueing.topic(b"t")
    channel = topic.channel(b"c")
    side.queueing.publish(topic, [b"x"])
    side.turn()
    side.broker.store.follow(True)
    answer = await ask(NsqHttp(side.broker), "POST", f"{path}?topic=t&channel=c")
    assert answer.short == (503, "this broker is a slave, not master")
    assert side.queueing.topics == {b"t": topic}
    assert topic.channels == {b"c": channel}
    assert (channel.depth(), bool(channel.paused), bool(topic.paused)) == (1, False, False)
    side.broker.store.follow(False)
    side.close()
