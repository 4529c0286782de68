"""The queue topics of a push consumer: what they cannot be asked for."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import pytest

from client.scripted import scripted, settings
from penstock.client.aio.channelconsumer import ChannelConsumer
from penstock.client.aio.dispatch import Dispatcher
from penstock.client.aio.listening import Listeners


@pytest.mark.parametrize(
    ("topic", "expression", "more"),
    [("q", "A || B", {}), ("q", "*", {"orderly": True}), ("q", "*", {"model": "broadcast"}), ("a/b", "*", {}),
     ("q", "*", {"group": "not a channel"})],
)  # fmt: skip
async def test_what_a_queue_topic_cannot_do(topic: str, expression: str, more: dict[str, Any]) -> None:
    async with scripted() as script:
        listeners = Listeners("G", None, threads=1, timeout_s=20)
        channels = ChannelConsumer(script.cluster, settings(**more), Dispatcher(listeners))
        with pytest.raises(ValueError, match=r"topic|channel|group"):
            channels.check(topic, expression)
        listeners.close()


async def test_nothing_is_read_after_the_end() -> None:
    async with scripted() as script:
        listeners = Listeners("G", None, threads=1, timeout_s=20)
        channels = ChannelConsumer(script.cluster, settings(), Dispatcher(listeners))
        channels.check("q", " * ")
        await channels.quiet()
        channels.follow("q", "*", {"a": "127.0.0.1:1"})
        assert channels.readers == {}
        await channels.drop("q")  # it was never read
        await channels.close()
        listeners.close()


async def test_a_channel_that_is_dropped_in_a_hurry_keeps_no_message() -> None:
    """Else they were touched for ever, and came to nobody."""
    async with scripted() as script:
        listeners = Listeners("G", None, threads=1, timeout_s=20)
        channels = ChannelConsumer(script.cluster, settings(), Dispatcher(listeners))
        channels.check("q", "*")
        channels.follow("q", "*", {"a": "127.0.0.1:1"})
        reader, closed = channels.readers["q"], asyncio.Event()
        close = reader.close

        async def closing() -> None:
            closed.set()
            await close()

        with patch.object(reader, "quiet", asyncio.Event().wait), patch.object(reader, "close", closing):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(channels.drop("q"), 0.01)
            assert closed.is_set()
        await channels.close()
        listeners.close()
