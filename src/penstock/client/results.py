"""What client calls give back."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from penstock.client.routes import MessageQueue
from penstock.wire.codes import ResponseCode

RETRY_DELAY_MAX_S: Final = 100 * 365 * 86_400  # a hundred years: whoever asks for more is mistaken


class SendStatus(Enum):
    """How far a stored message got before the broker answered."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


SEND_STATUSES = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}


class SendReceipt(msgspec.Struct, frozen=True, gc=False):
    """A message, or a batch, is stored. `queue_offset` and the single ids are those of its first message.

    A queue topic gives no offset (-1) and no ids (empty).

    SEND_OK: at the topic's level. Any other status: stored, but a crash of the broker now may lose it.
    """

    status: SendStatus
    queue: MessageQueue
    queue_offset: int
    msg_ids: tuple[str, ...]
    offset_msg_ids: tuple[str, ...]
    transaction_id: str | None = None

    @property
    def msg_id(self) -> str:
        """The id its producer gave the message."""
        return self.msg_ids[0]

    @property
    def offset_msg_id(self) -> str:
        """The id that names its place in the broker's log."""
        return self.offset_msg_ids[0]


class Retry(Exception):
    """Raised by a listener: give me this message again, after `delay` seconds.

    Without a delay it comes after 10 s, 30 s, 1 min …; ValueError for one that is negative, no number, or more than
    `RETRY_DELAY_MAX_S`.
    """

    def __init__(self, delay: float | None = None) -> None:
        super().__init__(delay)
        if delay is not None and not 0 <= delay <= RETRY_DELAY_MAX_S:
            raise ValueError(
                f"a delay of {delay} s: it is a number from 0 to {RETRY_DELAY_MAX_S} (a hundred years); "
                "Reject is for the dead letters"
            )
        self.delay = delay


class Reject(Exception):
    """Raised by a listener: put this message into the dead-letter topic. `reason` is for the log."""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


Outcome = Retry | Reject | None  # what became of a message: None means done
