"""Dead letters of queue topics' channels, which the broker itself sends again: `client.deadletters` is the door to both kinds.

They lie in the queue topic `<topic>.<channel>.dead`. What was sent again is finished there, so all that can be seen is left.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from penstock.client.blockingadmin import Admin
from penstock.client.browsed import PIECE_BYTES, browsed
from penstock.client.routes import Json
from penstock.errors import ConnectionLost, PenstockError, TimedOut
from penstock.message import ReceivedMessage
from penstock.wire import names

AT_ONCE = 100
SUFFIX = names.DEAD_SUFFIX.decode()
Tell = Callable[[ReceivedMessage, str], object]
Miss = Callable[[str, PenstockError], object]  # a broker, and why


class DeadQueues:
    """The dead letters of one queue topic's channel, at all brokers that have them. With `miss` a broker that does not answer is
    told to it, and passed over, where they are only looked at.
    """

    def __init__(self, admin: Admin, topic: str, miss: Miss | None = None) -> None:
        self._admin = admin
        self._miss = miss
        self.topic = topic
        self._rows = [row for row in admin.queue_topics(topic) if row["kind"] == "queue"]

    @property
    def there(self) -> bool:
        """Whether a broker has the topic."""
        return bool(self._rows)

    def letters(self, channel: str = "") -> Iterator[ReceivedMessage]:
        """All that are ready to be given, oldest first; of one channel, or of the topic."""
        for row in self._rows:
            page = partial(
                self._admin.browse_page, row["broker"], topic=self.topic, channel=channel or _own_channel(row),
                state="ready", body_bytes=PIECE_BYTES,
            )  # fmt: skip
            try:
                yield from map(
                    _message, browsed(lambda after, body_from=0, page=page: page(after, body_from=body_from))
                )  # type: ignore[misc]
            except (ConnectionLost, TimedOut) as error:
                if self._miss is None:
                    raise
                self._miss(row["broker"], error)

    def redrive(
        self,
        fields: dict[str, str],
        pace: Callable[[int], int],
        limit: int | None,
        tell: Tell,
    ) -> None:
        """Send them again by pages, until one that begins at the start finds none. `pace` is asked how many of so many may
        go now, and waits. NotFound when a topic is not there: nothing of that page is sent.
        """
        left = limit
        for row in self._rows:
            broker, after, sent = row["broker"], "", 0
            while left is None or left > 0:
                count = pace(AT_ONCE if left is None else min(left, AT_ONCE))
                found, following = self._admin.redrive_page(
                    broker, self.topic, fields | {"limit": str(count), "after": after}
                )
                for one in found:
                    tell(
                        ReceivedMessage(self.topic, b"", 0, one["offset"], -1, broker=broker, nsq_id=one["id"]),
                        one["to"],
                    )
                sent += len(found)
                left = None if left is None else left - len(found)
                if following is None and (not sent or fields["dryRun"] == "true" or not after):
                    break
                if following is None:  # places of messages that waited have moved up meanwhile
                    sent = 0
                after = following or ""


def _own_channel(row: Json) -> str:
    """The channel that is taken from, as the broker chooses it; empty for the topic itself."""
    channels: Sequence[str] = [one["channel"] for one in row["channels"]]
    return "redrive" if "redrive" in channels else channels[0] if len(channels) == 1 else ""


def _message(row: Json) -> ReceivedMessage:
    body = base64.b64decode(row["body"]) if row["encoding"] == "base64" else row["body"].encode()
    properties = row.get("properties") or {}
    tries = properties.get(names.DEAD_ATTEMPTS, "")
    return ReceivedMessage(
        row["topic"], body, 0, row["offset"], -1, properties=properties, store_ms=row["stored"],
        reconsume_times=int(tries) if tries.isdecimal() else 0, broker=row["broker"], nsq_id=row["id"],
        size=row["size"],
    )  # fmt: skip
