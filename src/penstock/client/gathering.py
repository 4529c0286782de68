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

import cython

from penstock.client.results import SendReceipt
from penstock.client.routes import MessageQueue
from penstock.client.sending import properties_text
from penstock.message import Message
from penstock.octets import Writable
from penstock.wire import names
from penstock.wire.codes import RETRY_PREFIX

if cython.compiled:
    from cython.cimports.cpython.bytes import PyBytes_FromStringAndSize
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, copy, put16, put32, put64
    from cython.cimports.penstock.wire import layout
else:
    from penstock import words
    from penstock.octets import address, copy, put16, put32, put64
    from penstock.wire import layout

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


@cython.no_gc  # thousands wait at once, none for long: the collector would look at each of them in vain
@cython.cclass
class Waiting:
    """A send in a row. `queue` and `selector` are its caller's; `deadline` is of the loop's clock, in seconds.

    `batch`: the messages, where it is more than the one. `alone`: no batch can carry it, because it is one itself or has a
    deadline of its own (`apart`), asks for more than storing, is of a retry topic, or of more than `body_bytes`.
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
        batch: Sequence[Message] | None = None,
        apart: bool = False,
    ) -> None:
        self.message = message
        self.waiter = waiter
        self.deadline = deadline
        self.queue = queue
        self.selector = selector
        self.batch = batch
        if batch is None:
            self.size = size_of(message)
            self.alone = apart or not can_be_gathered(message, body_bytes)
        else:
            self.size = sum([size_of(one) for one in batch])
            self.alone = True
        self.ordered = queue is not None or selector is not None or message.sharding_key is not None

    @property
    def messages(self) -> Sequence[Message]:
        """The message, or all of the batch."""
        return (self.message,) if self.batch is None else self.batch


def size_of(message: Message) -> int:
    """What a message that waits counts for, in bytes."""
    size = len(message.body) + OVERHEAD_BYTES
    properties, keys = message.properties, message.keys
    if properties:
        size += sum([len(name) + len(value) for name, value in properties.items()])
    if keys:
        size += sum([len(key) for key in keys])
    return size


def can_be_gathered(message: Message, body_bytes: int) -> bool:
    """Whether a batch can carry the message as it is: none of a retry topic or with a longer body, and none that asks for
    more than storing, by a field or by a property: a broker obeys such properties of single sends only.
    """
    topic, properties = message.topic, message.properties
    return (
        len(message.body) <= body_bytes
        and not message.delay_level
        and message.deliver_at_ms is None
        and not topic.startswith(RETRY_PREFIX)
        and (not properties or _ASKING.isdisjoint(properties))
    )


def still_waited_for(sends: list[Waiting]) -> list[Waiting]:
    """Those that nobody has given up."""
    return [send for send in sends if not send.waiter.done()]


def messages_of(sends: list[Waiting]) -> list[Message]:
    """Their messages, of single sends."""
    return [send.message for send in sends]


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
    handed: list[Waiting], lanes: dict[str | MessageQueue, Lane], deadline: float, idle: list[Lane]
) -> tuple[list[Waiting], int]:
    """Plain sends join the lane of their topic, where that is there; what is left, and the bytes that joined.

    The lanes that nothing was under way in are added to `idle`.
    """
    rest: list[Waiting] = []
    size = 0
    for send in handed:
        send.deadline = deadline
        found = None if send.ordered or send.alone else lanes.get(send.message.topic)
        if found is None:
            rest.append(send)
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
    if topic.startswith(RETRY_PREFIX):
        raise ValueError("messages of a retry topic cannot be sent in a batch")
    texts: list[bytes] = []
    total = 0
    for message, key in zip(messages, keys, strict=True):
        if message.topic != topic or message.delay_level or message.deliver_at_ms is not None:
            raise ValueError("a batch is of one topic, and delayed messages cannot be sent in one")
        flag = message.flag
        if flag > words.INT32_MAX or flag < -words.INT32_MAX - 1:
            raise ValueError(f"a flag of 32 bits, not {flag}")
        if message.keys or message.tags or message.properties or message.sharding_key is not None:
            properties = properties_text(message, key).encode()
        else:
            properties = _UNIQUE + key.encode()
        texts.append(properties)
        total += layout.BATCH_FIXED_BYTES + len(message.body) + len(properties)
    if total > layout.BODY_BYTES_MAX:
        raise ValueError(f"batch of {total} bytes, at most {layout.BODY_BYTES_MAX}")
    if cython.compiled:
        out = PyBytes_FromStringAndSize(cython.NULL, total)
        _put_batch(address(out), messages, texts)
        return out
    buffer = bytearray(total)
    _put_batch(memoryview(buffer), messages, texts)
    return bytes(buffer)


def _put_batch(base: Writable, messages: Sequence[Message], texts: list[bytes]) -> int:
    """Write the messages, one behind another; returns where they end."""
    at = 0
    for message, properties in zip(messages, texts, strict=True):
        body = message.body
        length = len(body)
        extra = len(properties)
        put32(base, at, layout.BATCH_FIXED_BYTES + length + extra)
        put64(base, at + layout.MAGIC, 0)  # and the checksum
        put32(base, at + layout.BATCH_FLAG, message.flag)
        put32(base, at + layout.BATCH_BODY_LENGTH, length)
        at += layout.BATCH_BODY
        copy(base, at, address(body), 0, length)
        at += length
        put16(base, at, extra)
        copy(base, at + 2, address(properties), 0, extra)
        at += 2 + extra
    return at
