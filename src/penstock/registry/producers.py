"""nsqlookupd's tables: which nsqd has which topics and channels, and who is tombstoned.

Everything here is told by the nsqds and forgotten with their connection, except the names: a topic or channel that was
once there stays listed until somebody deletes it, so that consumers find it when its producers come back. What the broker
of the same process has deleted is forgotten (`forget`) when no other nsqd has it: nobody would delete it here.

A master of a replica set says of which set and epoch it is; one of an older epoch, whose machine or network is gone and whose
connection is not, is left out of look-ups: consumers would try it in vain.
"""

from __future__ import annotations

from msgspec import Struct, field

from penstock.errors import Refused
from penstock.wire.names import EPHEMERAL_TEXTS

TOPICS_MAX = 100_000
CHANNELS_MAX = 10_000  # of one topic


class Producer(Struct, eq=False):
    """One nsqd, for as long as its connection lives."""

    remote: str
    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    version: str
    topology_zone: str = ""
    topology_region: str = ""
    replica_set: str = ""
    epoch: int = 0
    seen_ms: int = 0
    topics: dict[str, set[str]] = field(default_factory=dict)  # topic → its channels there
    tombstones: dict[str, int] = field(default_factory=dict)  # topic → since when

    def seen(self, now_ms: int) -> None:
        """It was heard of."""
        self.seen_ms = now_ms

    def lead(self, replica_set: str, epoch: int) -> None:
        """It is the master of this set."""
        self.replica_set, self.epoch = replica_set, epoch

    def peer_info(self) -> dict[str, object]:
        """As `/lookup` shows it."""
        return {
            "remote_address": self.remote,
            "hostname": self.hostname,
            "broadcast_address": self.broadcast_address,
            "tcp_port": self.tcp_port,
            "http_port": self.http_port,
            "version": self.version,
            "topology_zone": self.topology_zone,
            "topology_region": self.topology_region,
        }


class ProducerTables:
    """Topics, channels and producers of one nsqlookupd. Times are steady milliseconds."""

    def __init__(self, inactive_producer_timeout_ms: int = 300_000, tombstone_lifetime_ms: int = 45_000) -> None:
        self.inactive_ms = inactive_producer_timeout_ms
        self.tombstone_ms = tombstone_lifetime_ms
        self.producers: dict[Producer, None] = {}
        self._epochs: dict[str, int] = {}  # replica set → the newest epoch of those that are connected
        self.topics: dict[str, dict[Producer, None]] = {}
        self.channels: dict[str, dict[str, dict[Producer, None]]] = {}  # topic → channel → producers

    # -- told by nsqd

    def identify(self, producer: Producer, now_ms: int) -> None:
        """An nsqd says who it is."""
        producer.seen(now_ms)
        self.producers[producer] = None
        self._find_epoch(producer.replica_set)

    def lead(self, producer: Producer, replica_set: str, epoch: int) -> None:
        """A producer is the master of this set."""
        producer.lead(replica_set, epoch)
        self._find_epoch(replica_set)

    def _find_epoch(self, replica_set: str) -> None:
        if replica_set:
            epochs = [producer.epoch for producer in self.producers if producer.replica_set == replica_set]
            self._epochs[replica_set] = max(epochs, default=0)
            if not epochs:
                del self._epochs[replica_set]

    def register(self, producer: Producer, topic: str, channel: str = "") -> None:
        """It has this topic, or this channel of it."""
        self.create(topic, channel)
        self.topics[topic][producer] = None
        held = producer.topics.setdefault(topic, set())
        if channel:
            self.channels[topic][channel][producer] = None
            held.add(channel)

    def unregister(self, producer: Producer, topic: str, channel: str = "") -> None:
        """It has it no longer. Ephemeral names go with their last producer, others stay."""
        if channel:
            self._leave_channel(producer, topic, channel, forget=True)
            producer.topics.get(topic, set()).discard(channel)
            return
        for held in producer.topics.pop(topic, set()):
            self._leave_channel(producer, topic, held, forget=False)
        producer.tombstones.pop(topic, None)
        on = self.topics.get(topic)
        if on is not None:
            on.pop(producer, None)
            if not on and topic.endswith(EPHEMERAL_TEXTS):
                self.delete_topic(topic)

    def forget(self, topic: str, channel: str = "") -> None:
        """Its owner deleted it: a name that no producer has is listed no longer."""
        if channel:
            channels = self.channels.get(topic, {})
            if not channels.get(channel, True):
                del channels[channel]
                if not channels:
                    del self.channels[topic]
        elif not self.topics.get(topic, True) and not any(self.channels.get(topic, {}).values()):
            self.delete_topic(topic)

    def _leave_channel(self, producer: Producer, topic: str, channel: str, forget: bool) -> None:
        on = self.channels.get(topic, {}).get(channel)
        if on is not None:
            on.pop(producer, None)
            if forget and not on and channel.endswith(EPHEMERAL_TEXTS):
                del self.channels[topic][channel]

    def lost(self, producer: Producer) -> None:
        """Its connection is gone: it leaves every list. The names stay, but for ephemeral ones that no other has: whoever made
        them has left, and such names without end would leave no room for others.
        """
        for topic in list(producer.topics):
            for channel in list(producer.topics[topic]):
                self.unregister(producer, topic, channel)
            self.unregister(producer, topic)
        self.producers.pop(producer, None)
        self._find_epoch(producer.replica_set)

    # -- asked by clients

    def active(self, producer: Producer, now_ms: int) -> bool:
        """Whether it was heard of lately."""
        return now_ms - producer.seen_ms <= self.inactive_ms

    def tombstoned(self, producer: Producer, topic: str, now_ms: int) -> bool:
        """Whether it is to be left out for this topic."""
        if producer.epoch < self._epochs.get(producer.replica_set, 0):
            return True
        since = producer.tombstones.get(topic)
        return since is not None and now_ms - since < self.tombstone_ms

    def lookup(self, topic: str, now_ms: int) -> list[Producer] | None:
        """The producers of a topic that consumers should connect to; None when nobody ever had it."""
        on = self.topics.get(topic)
        if on is None:
            return None
        return [p for p in on if self.active(p, now_ms) and not self.tombstoned(p, topic, now_ms)]

    def channels_of(self, topic: str) -> list[str]:
        """The channels of a topic."""
        return sorted(self.channels.get(topic, {}))

    # -- changed by tools

    def create(self, topic: str, channel: str = "") -> None:
        """A name that is listed from now on. Refused when there are too many."""
        if topic not in self.topics:
            if len(self.topics) >= TOPICS_MAX:
                raise Refused("too many topics", http=503)
            self.topics[topic] = {}
        if channel:
            channels = self.channels.setdefault(topic, {})
            if channel not in channels:
                if len(channels) >= CHANNELS_MAX:
                    raise Refused("too many channels", http=503)
                channels[channel] = {}

    def delete_topic(self, topic: str) -> None:
        """Forget a topic, its channels and who has it."""
        for producer in self.topics.pop(topic, {}):
            producer.topics.pop(topic, None)
            producer.tombstones.pop(topic, None)
        self.channels.pop(topic, None)

    def delete_channel(self, topic: str, channel: str) -> bool:
        """Forget a channel; False when there is none."""
        on = self.channels.get(topic, {}).pop(channel, None)
        if on is None:
            return False
        for producer in on:
            producer.topics.get(topic, set()).discard(channel)
        return True

    def tombstone(self, topic: str, node: str, now_ms: int) -> None:
        """Leave a node (`broadcast address:http port`) out of look-ups of a topic for a while."""
        for producer in self.topics.get(topic, {}):
            if f"{producer.broadcast_address}:{producer.http_port}" == node:
                producer.tombstones[topic] = now_ms
