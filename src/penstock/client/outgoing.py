"""What leaves as one request: a message, or a batch of them. No I/O here."""

from __future__ import annotations

import os
from collections.abc import Sequence

import cython

from penstock.client.gathering import batch_body
from penstock.client.routes import MessageQueue
from penstock.client.sending import send_header, send_request
from penstock.client.uniquekeys import ADDRESS_BYTES, SALT_BYTES, UniqueKeys
from penstock.clock import Clock
from penstock.message import Message
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import RemotingCommand

if cython.compiled:
    from cython.cimports.penstock.client.plainsend import is_plain
else:
    from penstock.client.plainsend import is_plain


class Outgoing:
    """A send on its way: one message, or several of one topic that are one batch, and the ids that they get.

    `request` may be asked again, for another try: ids and body stay. ValueError for what no broker takes.
    """

    def __init__(
        self, group: str, messages: Sequence[Message], keys: Sequence[str], clock: Clock, compress_over: int
    ) -> None:
        self.messages = messages
        self.keys = keys
        self._group = group
        self._clock = clock
        self._compress_over = compress_over
        self._body: bytes | None = None
        self.unsure = 0  # tries after which it may be stored
        self.avoid: str | None = None  # the broker where the last try failed

    def failed_at(self, broker: str) -> None:
        """A try has failed: the next one goes to another broker, where there is one and any will do."""
        self.avoid = broker

    def lost(self) -> None:
        """A try ended without an answer: whether it is stored is unknown."""
        self.unsure += 1

    def is_plain(self) -> bool:
        """Whether it is one message that `client.plainsend` can send."""
        return len(self.messages) == 1 and is_plain(self.messages[0], self._compress_over)

    def request(self, to: MessageQueue) -> RemotingCommand:
        """The request that stores it in a message queue."""
        messages, now_ms = self.messages, self._clock.now_ms()
        if len(messages) == 1:
            return send_request(self._group, messages[0], to, self.keys[0], now_ms, compress_over=self._compress_over)
        if self._body is None:
            self._body = batch_body(messages, self.keys)
        return batch_request(self._group, messages, to, self.keys, now_ms, self._body)


class Outgoings:
    """Makes them for one producer group, with ids that no other process makes."""

    def __init__(self, group: str, clock: Clock, compress_over: int) -> None:
        self._group = group
        self._clock = clock
        self._compress_over = compress_over
        self._ids = UniqueKeys(bytes(ADDRESS_BYTES), 0, bytes(SALT_BYTES))

    def start(self, address: bytes) -> None:
        """From now on ids are made of this IPv4 address."""
        self._ids = UniqueKeys(address, os.getpid(), os.urandom(SALT_BYTES))

    def make(self, messages: Sequence[Message]) -> Outgoing:
        """The messages with their ids, as one request; for any thread."""
        count, now_ms = len(messages), self._clock.now_ms()
        keys = (self._ids.next(now_ms),) if count == 1 else self._ids.take(count, now_ms)
        return Outgoing(self._group, messages, keys, self._clock, self._compress_over)


def batch_request(
    group: str,
    messages: Sequence[Message],
    queue: MessageQueue,
    uniq_keys: Sequence[str],
    now_ms: int,
    body: bytes | None = None,
) -> RemotingCommand:
    """The request for a batch, stored whole or not at all; `body` is its `batch_body` where that was made before.

    It has no properties of its own: RocketMQ puts those behind each message's, where they win. An id here would be the id of all.
    """
    body = body or batch_body(messages, uniq_keys)
    ext = send_header(group, queue, 0, now_ms, 0, "")
    ext["m"] = "true"
    return RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, ext, body)
