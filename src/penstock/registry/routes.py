"""The name server's tables: which brokers are alive, in which cluster, and which topics they serve.

Everything here is told by the brokers and forgotten with them: a restart refills within one registration period.
A broker stays as long as it is heard of within `EXPIRY_MS` and the connection it registered by lives.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from penstock.errors import Refused
from penstock.wire.codes import MASTER_ID, PERM_READ, PERM_WRITE

EXPIRY_MS = 120_000
SCAN_MS = 10_000
FIRST_SCAN_MS = 5_000
RIVAL_MS = (
    60_000  # brokers register every 10 to 60 s: one heard of within this time, on a connection that lives, is alive
)

SYS_UNIT = 1
SYS_UNIT_SUB = 2

Version = tuple[int, int, int]  # timestamp, counter, state version: equal only as a whole


class TopicQueues(msgspec.Struct, frozen=True):
    """A topic on one broker."""

    read_count: int
    write_count: int
    perm: int
    sys_flag: int = 0


class Registration(msgspec.Struct, frozen=True):
    """What a broker says of itself. `topics` are new or changed ones; those not named stay."""

    broker: str
    address: str
    cluster: str
    broker_id: int
    ha_address: str = ""
    version: Version | None = None
    topics: Mapping[str, TopicQueues] = msgspec.field(default_factory=dict)
    nsq_address: str = ""
    nsq_topics: frozenset[str] | None = (
        frozenset()
    )  # its queue topics, all of them; None: as before, but for the changes
    nsq_changes: dict[str, bool] = msgspec.field(default_factory=dict)  # queue topics that came (true) or went
    epoch: int = 0  # of a master of ours: the newest of a replica set counts


class Live(msgspec.Struct):
    """A broker's address as it was last heard of."""

    broker: str
    seen_ms: int
    version: Version | None
    ha_address: str
    peer: object

    def seen(self, now_ms: int) -> None:
        """It was heard of again."""
        self.seen_ms = now_ms


class RouteTables:
    """Cluster, broker and topic tables of one name server."""

    def __init__(self) -> None:
        self.addresses: dict[str, dict[int, str]] = {}  # broker name → broker id → address
        self.cluster_of: dict[str, str] = {}  # broker name → cluster
        self.topics: dict[str, dict[str, TopicQueues]] = {}  # topic → broker name → queues
        self.live: dict[str, Live] = {}  # address → liveness
        self.nsq: dict[str, tuple[str, set[str]]] = {}  # broker name → its NSQ address and queue topics
        self._scan_ms: int | None = None
        self.epochs: dict[str, int] = {}  # broker name → epoch of its newest master

    # -- told by brokers

    def superseded(self, told: Registration) -> int:
        """The epoch of a newer master of the same replica set; 0 when there is none."""
        known = self.epochs.get(told.broker, 0)
        return known if told.broker_id == MASTER_ID and 0 < told.epoch < known else 0

    def rival(self, told: Registration, peer: object, now_ms: int) -> str:
        """The address of another living broker with this name and id; empty when there is none.

        Were both taken, clients would be sent to the one or the other, as their registrations come: the first one stays. But
        a master of a newer epoch takes the place of the former, which may hang, and not know that it is the master no more.
        """
        if told.broker_id == MASTER_ID and told.epoch > self.epochs.get(told.broker, 0) > 0:
            return ""
        other = self.addresses.get(told.broker, {}).get(told.broker_id, told.address)
        live = self.live.get(other)
        if other == told.address or live is None or live.peer is peer or now_ms - live.seen_ms > RIVAL_MS:
            return ""
        return other

    def free_id(self, broker: str) -> int:
        """A number that no broker of this name has."""
        return max(self.addresses.get(broker, {}), default=MASTER_ID) + 1

    def register(self, told: Registration, peer: object, now_ms: int) -> tuple[str, str]:
        """Take a broker in, or hear of it again. The answer is (HA address, address) of its master, for a slave; for a master
        those of the one whose place it takes: it may be the newer one of a replica set.
        """
        before = self.live.get(told.address)
        if before is not None and before.broker != told.broker:
            self._forget(told.address)  # the same process, started again under another name
            before = None
        members = self.addresses.setdefault(told.broker, {})
        for broker_id in [i for i, address in members.items() if address == told.address and i != told.broker_id]:
            del members[broker_id]  # the same process, started again in another role
        first = told.broker_id not in members
        former = members.get(MASTER_ID, "")
        if told.broker_id == MASTER_ID and told.epoch:
            self.epochs[told.broker] = told.epoch
        members[told.broker_id] = told.address
        self.cluster_of[told.broker] = told.cluster
        changed = before is None or before.version != told.version
        if told.broker_id == MASTER_ID and (first or changed):
            for topic, queues in told.topics.items():
                self.topics.setdefault(topic, {})[told.broker] = queues
        if told.broker_id == MASTER_ID and told.nsq_address:
            known = self.nsq.get(told.broker, ("", set()))[1] if told.nsq_topics is None else set(told.nsq_topics)
            for topic, there in told.nsq_changes.items():
                (known.add if there else known.discard)(topic)
            self.nsq[told.broker] = told.nsq_address, known
        self.live[told.address] = Live(told.broker, now_ms, told.version, told.ha_address, peer)
        master = members.get(MASTER_ID, "")
        if told.broker_id == MASTER_ID:
            master = former if former != told.address else ""
        return self._reached(master)

    def change_queues(self, peer: object, broker: str, address: str, changes: Mapping[str, bool]) -> bool:
        """The queue topics that came (true) or went, of a master that has registered with its NSQ address; False when it has
        not, or another one's word counts.
        """
        live, nsq = self.live.get(address), self.nsq.get(broker)
        if live is None or live.peer is not peer or nsq is None:
            return False
        if self.addresses.get(broker, {}).get(MASTER_ID) != address:
            return False
        for topic, there in changes.items():
            (nsq[1].add if there else nsq[1].discard)(topic)
        return True

    def master_of(self, broker: str) -> tuple[str, str]:
        """(HA address, address) of the master of this name; empty when there is none."""
        return self._reached(self.addresses.get(broker, {}).get(MASTER_ID, ""))

    def _reached(self, master: str) -> tuple[str, str]:
        return (self.live[master].ha_address, master) if master in self.live else ("", "")

    def heard(self, address: str, version: Version, now_ms: int) -> tuple[bool, Version | None]:
        """(whether a broker's version differs from the one known, the one known); the same one keeps it alive."""
        live = self.live.get(address)
        if live is None or live.version != version:
            return True, live.version if live else None
        live.seen(now_ms)
        return False, live.version

    def unregister(self, broker: str, address: str, broker_id: int, peer: object) -> None:
        """A broker says goodbye. Refused when another one's connection says it."""
        live = self.live.get(address)
        if live is None:
            return
        if live.peer is not peer or live.broker != broker or self.addresses.get(broker, {}).get(broker_id) != address:
            raise Refused(f"broker {broker} at {address} was not registered by this connection")
        self._forget(address)

    def lost(self, peer: object) -> list[str]:
        """A connection is gone, and with it what was registered by it: the addresses forgotten."""
        gone = [address for address, live in self.live.items() if live.peer is peer]
        for address in gone:
            self._forget(address)
        return gone

    def tick(self, now_ms: int) -> int:
        """Forget the brokers not heard of for too long; when to be asked again."""
        if self._scan_ms is None:
            self._scan_ms = now_ms + FIRST_SCAN_MS
        elif now_ms >= self._scan_ms:
            for address in [a for a, live in self.live.items() if now_ms - live.seen_ms > EXPIRY_MS]:
                self._forget(address)
            self._scan_ms = now_ms + SCAN_MS
        return self._scan_ms

    def _forget(self, address: str) -> None:
        broker = self.live.pop(address).broker
        members = self.addresses.get(broker, {})
        for broker_id in [i for i, known in members.items() if known == address]:
            del members[broker_id]
        if not members:
            self.addresses.pop(broker, None)
            self.cluster_of.pop(broker, None)
            self.epochs.pop(broker, None)
            self.nsq.pop(broker, None)
            for topic in list(self.topics):
                self._drop(topic, broker)

    def _drop(self, topic: str, broker: str) -> None:
        self.topics[topic].pop(broker, None)
        if not self.topics[topic]:
            del self.topics[topic]

    # -- asked by clients and tools

    def route(self, topic: str) -> dict[str, object] | None:
        """TopicRouteData of a topic, None when no broker that is alive serves it."""
        queues = {b: q for b, q in sorted(self.topics.get(topic, {}).items()) if b in self.addresses}
        if not queues:
            return None
        return {
            "brokerDatas": [self._broker_data(broker) for broker in queues],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": broker,
                    "perm": q.perm,
                    "readQueueNums": q.read_count,
                    "topicSynFlag": q.sys_flag,  # the spelling of 3.x, which the Go client still reads
                    "topicSysFlag": q.sys_flag,
                    "writeQueueNums": q.write_count,
                }
                for broker, q in queues.items()
            ],
        }

    def queue_route(self, topic: str, *, new: bool = False) -> dict[str, str]:
        """Broker name to NSQ address of those that have a queue topic; with `new` of all, when nobody has it. A master that is
        gone, and whose slaves are there, is named only where there is no other: senders try until one takes its place.
        """
        brokers = sorted(broker for broker, (_, topics) in self.nsq.items() if topic in topics)
        if not brokers and new:
            brokers = sorted(self.nsq)
        living = [broker for broker in brokers if MASTER_ID in self.addresses.get(broker, {})]
        return {broker: self.nsq[broker][0] for broker in living or brokers}

    def _broker_data(self, broker: str) -> dict[str, object]:
        return {
            "brokerAddrs": {str(i): address for i, address in sorted(self.addresses[broker].items())},
            "brokerName": broker,
            "cluster": self.cluster_of[broker],
        }

    def clusters(self) -> dict[str, list[str]]:
        """Cluster to broker names."""
        found: dict[str, list[str]] = {}
        for broker, cluster in sorted(self.cluster_of.items()):
            found.setdefault(cluster, []).append(broker)
        return found

    def cluster_info(self) -> dict[str, object]:
        """ClusterInfo."""
        return {
            "brokerAddrTable": {broker: self._broker_data(broker) for broker in sorted(self.addresses)},
            "clusterAddrTable": self.clusters(),
        }

    def topics_of(self, cluster: str) -> list[str]:
        """The topics on any broker of a cluster."""
        members = {broker for broker, name in self.cluster_of.items() if name == cluster}
        return [topic for topic, on in self.topics.items() if not members.isdisjoint(on)]

    def topics_with(self, flags: int, without: int = 0) -> list[str]:
        """The topics with these topicSysFlag bits on some broker."""
        return [
            topic
            for topic, on in self.topics.items()
            if any(q.sys_flag & flags and not q.sys_flag & without for q in on.values())
        ]

    # -- changed by tools

    def set_writable(self, broker: str, writable: bool) -> int:
        """Give or take a broker's write permission in all routes, until it registers a change; topics touched."""
        count = 0
        for on in self.topics.values():
            if broker in on:
                perm = PERM_READ | PERM_WRITE if writable else on[broker].perm & ~PERM_WRITE
                on[broker] = msgspec.structs.replace(on[broker], perm=perm)
                count += 1
        return count

    def add_topic(self, topic: str, queues: Mapping[str, TopicQueues]) -> None:
        """Take a topic in at these brokers, until they say otherwise. Refused when one of them is not known."""
        unknown = sorted(queues.keys() - self.addresses.keys())
        if unknown:
            raise Refused(f"no broker {unknown[0]} is registered")
        self.topics.setdefault(topic, {}).update(queues)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Forget a topic, or only its part in one cluster."""
        for broker in list(self.topics.get(topic, ())):
            if not cluster or self.cluster_of.get(broker) == cluster:
                self._drop(topic, broker)
