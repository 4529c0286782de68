"""Gathering: single sends that come while one is under way wait in a lane, and leave together as one batch. No I/O here.

    send ──▶ nothing under way to there? ──yes──▶ it leaves at once
                      │ no
                      ▼
              the lane's row ──▶ the answer is there: all of the row, up to `batch_bytes`, leave as one request

A lane is one destination: one message queue, where order is kept, or a topic, where any of its queues will do. At most one
request of a lane is under way. What is done for each message of a batch is done here, in compiled loops.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from penstock.client.results import SendReceipt
from penstock.client.routes import MessageQueue
from penstock.client.sending import properties_text
from penstock.message import Message
from penstock.wire import names
from penstock.wire.codes import RETRY_PREFIX
from penstock.wire.record import BATCH_HEAD, BODY_BYTES_MAX

BATCH_BYTES = 256 << 10
BATCH_BYTES_MAX = 2 << 20  # properties come on top, and a broker takes 4 MiB
BATCH_COUNT_MAX = 2_000
BUFFER_BYTES = 32 << 20
OVERHEAD_BYTES = 100  # what a waiting send counts for, beside its body

_UNIQUE = f"{names.UNIQUE_KEY}\x01".encode()

# Properties that a broker obeys when a message is sent by itself.
_ASKING = frozenset(
    (
        names.DELAY, names.TIMER_DELIVER_MS, names.TIMER_DELAY_MS, names.TIMER_DELAY_SEC, names.HALF, names.WAIT,
        names.SEQUENCE,
    )
)  # fmt: skip

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


WhenFull = Literal["block", "raise"]


def blocks(when_full: WhenFull) -> bool:
    """Whether a send waits for room. ValueError for anything but the two words."""
    if when_full not in ("block", "raise"):
        raise ValueError(f"when_full is 'block' or 'raise', not {when_full!r}")
    return when_full == "block"


class Waiter(Protocol):
    """Whoever waits for a receipt: a future of the loop, or of a thread."""

    def done(self) -> bool: ...
    def set_result(self, receipt: SendReceipt, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


class Waiting:
    """A send in a row. `queue` and `selector` are its caller's; `deadline` is of the loop's clock, in seconds.

    `alone`: no batch can carry it, because it asks for more than storing, is of a retry topic, or of more than `body_bytes`.
    `ordered`: it is for one certain queue, behind what was sent there before.
    """

    def __init__(
        self,
        message: Message,
        waiter: Waiter,
        deadline: float,
        body_bytes: int,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
    ) -> None:
        self.message = message
        self.waiter = waiter
        self.deadline = deadline
        self.queue = queue
        self.selector = selector
        self.size = size_of(message)
        self.ordered = queue is not None or selector is not None or message.sharding_key is not None
        self.alone = not can_be_gathered(message, body_bytes)


def size_of(message: Message) -> int:
    """What a message that waits counts for, in bytes."""
    size = len(message.body) + OVERHEAD_BYTES
    if message.properties:
        size += sum([len(name) + len(value) for name, value in message.properties.items()])
    if message.keys:
        size += sum([len(key) for key in message.keys])
    return size


def can_be_gathered(message: Message, body_bytes: int) -> bool:
    """Whether a batch can carry the message as it is: none of a retry topic or with a longer body, and none that asks for
    more than storing, by a field or by a property: a broker obeys such properties of single sends only.
    """
    return (
        len(message.body) <= body_bytes
        and not message.delay_level
        and message.deliver_at_ms is None
        and not message.topic.startswith(RETRY_PREFIX)
        and (not message.properties or _ASKING.isdisjoint(message.properties))
    )


class Lane:
    """The sends to one destination: `queue`, or any queue of a topic.

    `accepted` counts the sends that ever came, `settled` the oldest ones, which have their receipt or error; `size` is the
    bytes of those that have none, `ordered` how many of those are ordered. `busy`: a request is under way, or about to be.
    """

    def __init__(self, queue: MessageQueue | None) -> None:
        self.queue = queue
        self.row: deque[Waiting] = deque()
        self.busy = False
        self.accepted = 0
        self.settled = 0
        self.size = 0
        self.ordered = 0

    def begin(self) -> bool:
        """A request is under way from now on, until `rest`; False when one was already."""
        if self.busy:
            return False
        self.busy = True
        return True

    def rest(self) -> None:
        """Nothing is under way."""
        self.busy = False

    def add(self, send: Waiting) -> None:
        """The send waits at the row's end."""
        self.row.append(send)
        self.accepted += 1
        self.size += send.size
        self.ordered += send.ordered

    def take(self, batch_bytes: int) -> list[Waiting]:
        """What leaves next: as many of the row's first sends as make one batch, or the first one alone.

        In a topic's lane an ordered send goes alone: its queue was not known when it came.
        """
        row, any_queue = self.row, self.queue is None
        send: Waiting = row.popleft()
        taken = [send]
        left = batch_bytes - send.size
        if send.alone or (any_queue and send.ordered):
            return taken
        while row and len(taken) < BATCH_COUNT_MAX:
            send = row[0]
            left -= send.size
            if left < 0 or send.alone or (any_queue and send.ordered):
                break
            row.popleft()
            taken.append(send)
        return taken

    def over(self, sends: list[Waiting]) -> int:
        """These, which were taken, have their receipts or errors; how many bytes that frees."""
        freed = ordered = 0
        send: Waiting
        for send in sends:
            freed += send.size
            ordered += send.ordered
        self.settled += len(sends)
        self.size -= freed
        self.ordered -= ordered
        return freed


def join_all(
    handed: list[tuple[Message, Waiter]],
    lanes: dict[str | MessageQueue, Lane],
    deadline: float,
    body_bytes: int,
    idle: list[Lane],
) -> tuple[list[tuple[Message, Waiter]], int]:
    """Let messages wait in the lanes of their topics: (those for which that is not the place, in order; bytes that wait now).

    Lanes with nothing under way are added to `idle`, once for each message.
    """
    rest: list[tuple[Message, Waiter]] = []
    size = 0
    send: Waiting
    for pair in handed:
        message, waiter = pair
        try:
            send = Waiting(message, waiter, deadline, body_bytes)
            found = None if send.ordered or send.alone else lanes.get(message.topic)
        except Exception:  # a topic that is no text, say: the one who sends it learns it, and no other
            found = None
        if found is None:
            rest.append(pair)
        else:
            lane: Lane = found
            lane.add(send)
            size += send.size
            if not lane.busy:
                idle.append(lane)
    return rest, size


def settle(send: Waiting, receipt: SendReceipt) -> None:
    """Give a send its receipt, unless its caller has given it up."""
    try:  # noqa: SIM105 (a context manager for each message would cost more than all else here)
        send.waiter.set_result(receipt)
    except (asyncio.InvalidStateError, concurrent.futures.InvalidStateError):
        pass


def settle_all(sends: list[Waiting], receipt: SendReceipt) -> None:
    """Give each send of a batch its part of the batch's receipt. A broker that names no places leaves them empty."""
    keys, places, first = receipt.msg_ids, receipt.offset_msg_ids, receipt.queue_offset
    named, offset = len(places) == len(keys), first
    status, queue = receipt.status, receipt.queue
    for number, send in enumerate(sends):
        if first >= 0:
            offset = first + number
        place = places[number] if named else ""
        settle(send, SendReceipt(status, queue, offset, (keys[number],), (place,)))


def batch_body(messages: Sequence[Message], keys: Sequence[str]) -> bytes:
    """The messages of a batch as they travel: each as size, magic 0, CRC 0, flag, body, properties.

    ValueError for what cannot be one batch, or is longer than a broker takes.
    """
    if not messages:
        raise ValueError("a batch holds at least one message")
    topic = messages[0].topic
    parts: list[bytes] = []
    total = 0
    if topic.startswith(RETRY_PREFIX):
        raise ValueError("messages of a retry topic cannot be sent in a batch")
    for message, key in zip(messages, keys, strict=True):
        if message.topic != topic or message.delay_level or message.deliver_at_ms is not None:
            raise ValueError("a batch is of one topic, and delayed messages cannot be sent in one")
        body = message.body
        if message.keys or message.tags or message.properties or message.sharding_key is not None:
            properties = properties_text(message, key).encode()
        else:
            properties = _UNIQUE + key.encode()
        size = BATCH_HEAD.size + len(body) + 2 + len(properties)
        total += size
        parts.append(BATCH_HEAD.pack(size, 0, 0, message.flag, len(body)))
        parts.append(body)
        parts.append(len(properties).to_bytes(2))
        parts.append(properties)
    if total > BODY_BYTES_MAX:
        raise ValueError(f"batch of {total} bytes, at most {BODY_BYTES_MAX}")
    return b"".join(parts)
