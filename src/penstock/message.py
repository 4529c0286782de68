"""What clients put in and get out: `Message` on its way to a broker, `ReceivedMessage` as it came from one.

Both are values: nobody changes one after it was made. The broker's hot path never makes either; it moves bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from penstock.msgid import offset_msg_id, pack_host

TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
UNIQUE_KEY: Final = "UNIQ_KEY"
SHARDING_KEY: Final = "__SHARDINGKEY"

_NOTHING: Mapping[str, str] = {}


class Message(msgspec.Struct, frozen=True, gc=False):
    """A message to be sent.

    `keys` are found again by key look-up, `tags` is the one tag that subscriptions filter by. `delay_level` is
    RocketMQ's 1 to 18 (1 s to 2 h), `deliver_at_ms` any moment in milliseconds since the epoch; at most one of the
    two. `sharding_key`: messages with an equal one go to the same message queue, in order.
    """

    topic: str
    body: bytes
    keys: tuple[str, ...] = ()
    tags: str | None = None
    properties: Mapping[str, str] = _NOTHING
    flag: int = 0
    delay_level: int = 0
    deliver_at_ms: int | None = None
    sharding_key: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.keys, str):  # one key, given as it is: the most natural slip
            msgspec.structs.force_setattr(self, "keys", (self.keys,))
        if not isinstance(self.topic, str):
            raise TypeError(f"a message's topic is a str, not {type(self.topic).__name__}")
        if not isinstance(self.body, bytes):
            raise TypeError(f"a message's body is bytes, not {type(self.body).__name__}")
        if self.delay_level and self.deliver_at_ms is not None:
            raise ValueError("give delay_level or deliver_at_ms, not both")
        if self.keys or self.properties or self.tags is not None or self.sharding_key is not None:
            self._check_texts()

    def _check_texts(self) -> None:
        """TypeError in the caller's line: None and numbers were stored as words and digits by a send that went by itself, and
        refused by one that had to wait.
        """
        texts = [*self.keys, *self.properties, *self.properties.values()]
        texts += [text for text in (self.tags, self.sharding_key) if text is not None]
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"keys, tag, properties and sharding key of a message are str, and {text!r} is none")


class ReceivedMessage(msgspec.Struct, frozen=True, gc=False):
    """A stored message, its body decompressed.

    `queue_offset` is its number in its message queue, `physical_offset` its byte position in the broker's commit log,
    `reconsume_times` how often it was given back before. `undecodable` says why the body could not be decompressed;
    `body` then holds the stored bytes. A message of a queue topic has an `nsq_id` and no offsets (-1).
    Times are milliseconds since the epoch, hosts `address:port`.
    """

    topic: str
    body: bytes
    queue_id: int
    queue_offset: int
    physical_offset: int
    properties: Mapping[str, str] = _NOTHING
    flag: int = 0
    sys_flag: int = 0
    born_ms: int = 0
    born_host: str = ""
    store_ms: int = 0
    store_host: str = ""
    reconsume_times: int = 0
    prepared_offset: int = 0
    size: int = 0
    broker: str = ""
    undecodable: str | None = None
    nsq_id: str = ""

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys it can be found by."""
        return tuple(self.properties.get(KEYS, "").split())

    @property
    def uniq_key(self) -> str | None:
        """The id its producer gave it: equal for copies that the producer's own retries made."""
        return self.properties.get(UNIQUE_KEY)

    @property
    def offset_msg_id(self) -> str:
        """The id made of the broker's address and the physical offset."""
        return offset_msg_id(pack_host(self.store_host), self.physical_offset)

    @property
    def msg_id(self) -> str:
        """`nsq_id` or `uniq_key` where there is one, else `offset_msg_id`."""
        return self.nsq_id or self.properties.get(UNIQUE_KEY) or self.offset_msg_id

    @property
    def attempts(self) -> int:
        """Deliveries so far, this one included."""
        return self.reconsume_times + 1

    @property
    def sharding_key(self) -> str | None:
        """What chose its message queue, when the producer said so."""
        return self.properties.get(SHARDING_KEY)

    @property
    def born_at(self) -> datetime:
        """When its producer made it, by the producer's clock."""
        return datetime.fromtimestamp(self.born_ms / 1000, UTC)

    @property
    def stored_at(self) -> datetime:
        """When the broker stored it, by the broker's clock."""
        return datetime.fromtimestamp(self.store_ms / 1000, UTC)
