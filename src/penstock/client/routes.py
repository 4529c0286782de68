"""What the name servers answer, and what a client makes of it: where to publish, where to read. No I/O here."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from penstock.errors import WireError
from penstock.wire.addresses import REGISTRY_PORT, split_address
from penstock.wire.codes import MASTER_ID, PERM_READ, PERM_WRITE
from penstock.wire.fastjson import loads

BROKER_PORT = 10911
NSQ_PORT = 4150

Json = dict[str, Any]
"""A JSON object: what it holds is checked where it is read."""


class MessageQueue(NamedTuple):
    """One message queue of a topic; they sort as all clients of a group must sort them."""

    topic: str
    broker: str
    queue_id: int

    def as_json(self) -> Json:
        """As the protocol's JSON bodies name it."""
        return {"brokerName": self.broker, "queueId": self.queue_id, "topic": self.topic}

    @classmethod
    def from_json(cls, value: Json) -> MessageQueue:
        """WireError when the value does not name one."""
        try:
            return cls(str(value["topic"]), str(value["brokerName"]), int(value["queueId"]))
        except (TypeError, KeyError, ValueError) as error:
            raise WireError(f"not a message queue: {value!r}") from error


class QueueData(NamedTuple):
    """How many message queues a broker has of a topic, and what may be done with them."""

    broker: str
    read_count: int
    write_count: int
    perm: int


@dataclass(frozen=True)
class Route:
    """Where a topic lives: `brokers` is broker name to broker id to address, `queues` one entry per broker.

    Of a queue topic there is only `nsq`, broker name to NSQ address; it is published to as if each were one queue.
    """

    topic: str
    brokers: Mapping[str, Mapping[int, str]]
    queues: tuple[QueueData, ...]
    order_conf: str = ""
    clusters: Mapping[str, str] = field(default_factory=dict)
    nsq: Mapping[str, str] = field(default_factory=dict)

    @property
    def kind(self) -> Literal["log", "queue"]:
        """What kind of topic it is."""
        return "queue" if self.nsq else "log"

    def address(self, broker: str, broker_id: int = MASTER_ID) -> str | None:
        """The address of the broker's member with this id."""
        return self.brokers.get(broker, {}).get(broker_id)

    def publish_address(self, broker: str) -> str | None:
        """Where the broker takes messages for the topic: its NSQ address for a queue topic, else its master's."""
        return self.nsq.get(broker) or self.address(broker)

    def read_address(self, broker: str, broker_id: int = MASTER_ID) -> str | None:
        """That member's address; when it is away the master's, then any slave's."""
        members = self.brokers.get(broker, {})
        return members.get(broker_id) or members.get(MASTER_ID) or next(iter(members.values()), None)

    def slave_address(self, queue: MessageQueue) -> str | None:
        """Of the slaves of the queue's broker the one that this queue is read at: each has its share."""
        members = self.brokers.get(queue.broker, {})
        slaves = [members[number] for number in sorted(members) if number != MASTER_ID]
        return slaves[queue.queue_id % len(slaves)] if slaves else None

    def publish_queues(self) -> list[MessageQueue]:
        """Where messages may be sent: writable, with a master; exactly the ordered ones for an order topic."""
        if self.nsq:
            return [MessageQueue(self.topic, broker, 0) for broker in sorted(self.nsq)]
        if self.order_conf:
            return [
                MessageQueue(self.topic, broker, queue_id)
                for broker, count in _order_counts(self.order_conf)
                for queue_id in range(count)
            ]
        return [
            MessageQueue(self.topic, data.broker, queue_id)
            for data in sorted(self.queues)
            if data.perm & PERM_WRITE and self.address(data.broker)
            for queue_id in range(data.write_count)
        ]

    @property
    def is_read_only(self) -> bool:
        """Whether the topic has queues, all its brokers are there, and no queue may be written to."""
        return bool(self.queues) and not any(q.perm & PERM_WRITE or not self.address(q.broker) for q in self.queues)

    def subscribe_queues(self) -> list[MessageQueue]:
        """Where messages may be read, sorted."""
        return [
            MessageQueue(self.topic, data.broker, queue_id)
            for data in sorted(self.queues)
            if data.perm & PERM_READ
            for queue_id in range(data.read_count)
        ]

    def as_template_for(self, topic: str, queue_count: int) -> Route:
        """The route a new topic will have, made from the default topic's: at most queue_count queues per broker."""
        queues = tuple(
            QueueData(d.broker, min(queue_count, d.write_count), min(queue_count, d.write_count), d.perm)
            for d in self.queues
        )
        return Route(topic, self.brokers, queues, "", self.clusters)


def _order_counts(text: str) -> list[tuple[str, int]]:
    """``broker-a:4;broker-b:4`` as pairs; parts that are none are left out."""
    pairs = (part.rpartition(":") for part in text.split(";"))
    return [(broker, int(count)) for broker, _, count in pairs if broker and count.isascii() and count.isdigit()]


def parse_route(topic: str, body: bytes) -> Route:
    """The route in an answer's body. WireError when it is none. A broker that has told the name server what is no address
    is away, as far as a client is concerned.
    """
    value = loads(body)
    try:
        if value.get("kind") == "queue":
            return Route(topic, {}, (), nsq={str(broker): str(address) for broker, address in value["nsq"].items()})
        brokers = {
            str(data["brokerName"]): {
                int(broker_id): address for broker_id, address in sorted(_reachable(data["brokerAddrs"]).items())
            }
            for data in value.get("brokerDatas") or ()
        }
        clusters = {str(data["brokerName"]): str(data.get("cluster", "")) for data in value.get("brokerDatas") or ()}
        queues = tuple(
            QueueData(
                str(data["brokerName"]),
                int(data.get("readQueueNums", 0)),
                int(data.get("writeQueueNums", 0)),
                int(data.get("perm", 0)),
            )
            for data in value.get("queueDatas") or ()
        )
        return Route(topic, brokers, queues, str(value.get("orderTopicConf") or ""), clusters)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WireError(f"not a route: {error!r}") from error


def _reachable(addresses: Mapping[str, object]) -> dict[str, str]:
    """Those that are addresses."""
    found: dict[str, str] = {}
    for name, address in addresses.items():
        with suppress(ValueError, TypeError):
            split_address(address)  # type: ignore[arg-type]  # TypeError where it is no text
            found[str(name)] = str(address)
    return found


def join_address(host: str, port: int) -> str:
    """``host:port``, a v6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def direct(addresses: str | None, port: int) -> dict[str, str]:
    """Brokers that are named by their addresses, ``a:4150;b:4150``, none when there are none to be named."""
    pairs = [] if addresses is None else split_addresses(addresses, port)
    return {join_address(*pair): join_address(*pair) for pair in pairs}


def split_addresses(text: str, port: int = REGISTRY_PORT) -> list[tuple[str, int]]:
    """``a:9876;b:9876`` as a list of (host, port). ValueError when one is bad or there is none, TypeError for no text."""
    if not isinstance(text, str):
        raise TypeError(f"addresses are text, not {text!r}")
    found = [split_address(part, port) for part in text.replace(",", ";").split(";") if part.strip()]
    if not found:
        raise ValueError("no registry address")
    return found
