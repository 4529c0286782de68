"""The queue topics of a push consumer: its group is the channel of each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from penstock.client.aio.channels import ChannelReader
from penstock.client.aio.cluster import Cluster
from penstock.client.aio.consumersettings import ConsumerSettings
from penstock.client.aio.dispatch import Dispatcher
from penstock.client.nsqsending import check_channel


class ChannelConsumer:
    """A reader for each queue topic."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, dispatcher: Dispatcher) -> None:
        self.readers: dict[str, ChannelReader] = {}
        self._cluster = cluster
        self._settings = settings
        self._dispatcher = dispatcher
        self._closing = False

    def check(self, topic: str, expression: str) -> None:
        """ValueError when a queue topic cannot be read as the settings and the expression ask."""
        check_channel(topic, self._settings.group)
        if self._settings.orderly or not self._settings.shared or expression.strip() not in ("", "*"):
            raise ValueError(f"{topic!r} is a queue topic: it has no tags, no order of queues and no broadcast")

    def follow(self, topic: str, expression: str, brokers: Mapping[str, str]) -> None:
        """Read the group's channel of a queue topic at these brokers (name to address), and at no others."""
        if self._closing:
            return
        if topic not in self.readers:
            self.check(topic, expression)
            self.readers[topic] = ChannelReader(
                topic, self._settings, self._dispatcher.offer, self._cluster.spawn, self._cluster.outages
            )
        self.readers[topic].follow(brokers)

    async def drop(self, topic: str) -> None:
        """Read a topic no longer."""
        if (reader := self.readers.pop(topic, None)) is not None:
            try:
                await reader.quiet()
            finally:  # when cancelled, too: no message stays in the hands of a reader that nobody knows
                await reader.close()

    async def quiet(self) -> None:
        """Receive nothing more; messages that no listener has begun go back to the brokers."""
        self._closing = True
        await asyncio.gather(*(reader.quiet() for reader in self.readers.values()))

    async def close(self) -> None:
        """Give back what is still in flight, and close the connections."""
        await asyncio.gather(*(reader.close() for reader in self.readers.values()))
