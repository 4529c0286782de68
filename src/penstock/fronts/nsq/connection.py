"""One NSQ connection below its commands: what is answered, and the way of the bytes out.

An answer that must wait, for a flush or for slaves, holds back everything behind it on its connection (`await_flush`,
`await_copies`, `take`). TLS, deflate and snappy are layers between the bytes of the socket and those of the session.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from collections.abc import Callable
from functools import partial

import cython

from penstock.broker.nsq.copied import Copy
from penstock.broker.nsq.queueing import Queueing
from penstock.delivery.channel import Consumer
from penstock.delivery.waiters import Outcome
from penstock.fronts.nsq.granted import met
from penstock.fronts.nsq.layers import Layer
from penstock.fronts.nsq.pending import Pending
from penstock.fronts.nsq.shared import Rights
from penstock.wire.nsq import ERROR, MAGIC, frame
from penstock.wire.outbox import Part

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.broker.nsq.topics import Topic
    from cython.cimports.penstock.delivery.channel import Channel
    from cython.cimports.penstock.delivery.source import Source
    from cython.cimports.penstock.fronts.nsq.shared import Shared
    from cython.cimports.penstock.octets import address
    from cython.cimports.penstock.wire.nsq import put_head, put_message
else:
    from penstock import words
    from penstock.broker.nsq.topics import Topic
    from penstock.delivery.channel import Channel
    from penstock.delivery.source import Source
    from penstock.fronts.nsq.shared import Shared
    from penstock.octets import address
    from penstock.wire.nsq import put_head, put_message


class Failed(Exception):
    """A fatal error and its text."""

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self.text = text


class NsqConnection(Consumer):
    """One client."""

    def __init__(self, shared: Shared, remote: str, wake: Callable[[], None]) -> None:
        Consumer.__init__(self)
        self.shared = shared
        self.queueing: Queueing = shared.queueing
        self.remote = remote
        self.certificate = ""  # the name in the client's certificate, once that was checked
        self.wake_connection = wake
        self.need = 0
        self.ended = False  # nothing more is taken, nor given
        self.layers: list[Layer] = []  # from the socket inwards
        self.channel: Channel | None = None  # once subscribed
        self.rights: Rights | None = None  # what AUTH granted
        config = shared.config
        self.msg_timeout_ms = config.msg_timeout_ms
        self.msg_size_max = config.max_msg_size
        self.body_size_max = config.max_body_size
        self.line_max = config.max_command_line
        self.tls_needed = config.tls_required in ("true", "tcp-https")
        self.base = address(MAGIC)  # of the bytes that are being read
        self._wire: list[bytes] = []
        self._awaited_flush = 0  # the flush that the last answers wait for
        self._line: list[Pending] = []

    # -- what was read -------------------------------------------------------------------------------------------

    def cut(self, begin: int, end: int) -> bytes:
        """These bytes as an object."""
        if cython.compiled:
            data: bytes = self.base[begin:end]
        else:
            data = bytes(self.base[begin:end])
        return data

    def decimal(self, pos: int, end: int) -> int:
        """The decimal number in [pos, end), 0 where nothing is, as nsqd reads it; or -1."""
        if end - pos > words.DIGITS_MAX:
            return -1
        value: int = 0
        while pos < end:
            digit = self.base[pos] - words.DIGIT_0
            if digit < 0 or digit >= words.TEN:
                return -1
            value = value * words.TEN + digit
            pos += 1
        return value

    # -- answers -------------------------------------------------------------------------------------------------

    def deliver(self, source: Source, attempts: int) -> int:
        """A message, as a frame. A large body is written from where it lies."""
        if source.length >= words.PART_BYTES_MIN and not self.layers:
            body = source.lend()
            if body is not None:
                put_head(self.out, source.stamp_ns, attempts, source.message_id, source.length, 0)
                self.out.put_part(body)
                return 0
        put_message(self.out, source.stamp_ns, attempts, source.message_id, source.base, source.at, source.length)
        return 0

    def fail(self, text: bytes) -> None:
        """A fatal error: say it, then close."""
        self.error(text)
        self.end()

    def fail_at(self, limit: str, text: bytes) -> None:
        """The same, when it is beyond a limit."""
        self.shared.limits.count(limit)
        self.fail(text)

    def error(self, text: bytes) -> None:
        """An error frame."""
        self.out.put(frame(ERROR, text))
        rejected, code = self.shared.rejected, text.partition(b" ")[0]
        rejected[code] = rejected.get(code, 0) + 1

    def respond(self, data: bytes) -> None:
        """A whole frame."""
        self.out.put(data)

    def wrong_state(self, verb: bytes) -> None:
        """A command that cannot come now."""
        why = b" (TLS required)" if self.tls_needed else b""
        self.fail(b"E_INVALID cannot %s in current state%s" % (verb, why))

    def be_safe(self, certificate: str) -> None:
        """There is TLS now, and this is the name in the client's certificate."""
        self.tls_needed = False
        self.certificate = certificate

    def end(self) -> None:
        """Take no more commands and no more messages; what was answered is written, then the connection is closed."""
        self.ended = True
        channel, self.channel = self.channel, None
        if channel is not None and not channel.removed:
            channel.remove(self)
            self.shared.left(channel)

    @property
    def closing(self) -> bool:
        """Whether what `take` gives is the last of it: it has ended, and none of its answers waits."""
        return self.ended and not self._line

    def grant(self, rights: Rights) -> None:
        """What AUTH grants it from now on."""
        self.rights = rights

    def check_right(self, permission: bytes, topic: bytes, channel: bytes, verb: bytes) -> None:
        """Failed where AUTH did not grant this."""
        if not self.shared.strict:
            return
        users = self.shared.users
        if self.rights is None and users is not None:
            self.rights = met(users, self.remote, self.certificate)
        if self.rights is None:
            raise Failed(b"E_AUTH_FIRST AUTH required before " + verb)
        if not self.rights.grants(permission, topic, channel, self.shared.mono_ms):
            raise Failed(b'E_UNAUTHORIZED AUTH failed for %s on "%s" "%s"' % (verb, topic, channel))

    # -- waiting -------------------------------------------------------------------------------------------------

    def await_flush(self, number: int) -> None:
        """What is answered from here on waits for flush `number`."""
        if self._awaited_flush == number:
            return
        self._place_answers()
        self._awaited_flush = number
        self._line.append(Pending(number))
        self.queueing.flushes.wait(number, self, partial(self.settled, number))

    def await_copies(self, topic: Topic, verb: bytes) -> None:
        """A publish to this topic is answered once slaves have it, and what is answered from here on behind that."""
        self._place_answers()
        last = self._line[len(self._line) - 1] if self._line else None
        if last is None or not last.joins(topic, verb, self.queueing.copied.turn):
            last = Pending(0, topic, verb)
            self._line.append(last)
            last.join()
            last.wait_for(self.queueing.copied.wait(topic, self, partial(self.copied, last)))
        else:
            last.join()

    def _place_answers(self) -> None:
        """What was answered so far goes where it belongs: behind what was waited for last, or out."""
        data = self.out.take()
        if not data:
            return
        if self._line:
            self._line[len(self._line) - 1].put(data)
        else:
            self._wire.append(self._encoded(data))

    def settled(self, number: int, outcome: Outcome) -> None:
        """Flushes up to `number` succeeded, or one has failed: let go what waited."""
        if not self._line:
            return
        if outcome != Outcome.REACHED:
            self._broken()
        for held in self._line:
            held.flushed(number)
        self._let_go()

    def copied(self, held: Pending, outcome: Copy) -> None:
        """What became of publishes to a topic whose messages slaves must have."""
        if outcome == Copy.BROKEN:
            self._broken()
        else:
            held.tell(outcome, self.shared.rejected)
        self._let_go()

    def _broken(self) -> None:
        """Nothing that is waited for will come."""
        self._place_answers()
        self._line = []
        self.fail(b"E_PUB_FAILED PUB failed the disk failed: restart the broker")

    def _let_go(self) -> None:
        self._place_answers()
        while self._line and self._line[0].over:
            self._wire.append(self._encoded(self._line.pop(0).answers()))
        if not self._line:
            self._awaited_flush = 0
        self.wake()

    def stop_waiting(self) -> None:
        """The connection is gone: nothing is held any more."""
        if self._line:
            self.queueing.flushes.drop(self)
            self.queueing.copied.drop(self)

    # -- bytes out -----------------------------------------------------------------------------------------------

    def _encoded(self, data: bytes) -> bytes:
        for layer in reversed(self.layers):
            data = layer.closed(data)
        return data

    def seal(self) -> None:
        """What was answered so far goes through the layers there are now: others follow."""
        self._place_answers()

    def raw(self, data: bytes) -> None:
        """Bytes of a layer itself."""
        self._wire.append(data)

    def take(self) -> bytes:
        """What is to be written now: each flush of a layer whole."""
        self.shared.gathering.settle()  # the answers say that messages are stored
        if not self._line and not self.layers and not self._wire:
            return self.out.take()
        self._place_answers()
        wire, self._wire = self._wire, []
        return b"".join(wire)

    def take_parts(self) -> bytes | list[Part]:
        """`take`, where large bodies are written from where they lie."""
        if self.out.parts is None or self._line or self.layers or self._wire:
            return self.take()
        self.shared.gathering.settle()
        return self.out.take_parts()

    def wake(self) -> None:
        self.wake_connection()
