"""PUB and MPUB: from the bytes of a command to a record in a ready queue, without an object for a message.

The topic of the last publish is kept: the next is nearly always of the same. Of the others the connection keeps a seat, so that
one look-up is enough for who publishes to many in turn.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

from typing import cast

import cython

from penstock.broker.nsq.names import printable, valid_nsq_name
from penstock.broker.nsq.queueing import Producer, Queueing
from penstock.errors import Refused, StoreError
from penstock.fronts.nsq.connection import Failed

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.broker.nsq.topics import Topic
    from cython.cimports.penstock.fronts.nsq.connection import NsqConnection
    from cython.cimports.penstock.fronts.nsq.shared import Shared
    from cython.cimports.penstock.octets import address, be32, find, same, ube32
else:
    from penstock import words
    from penstock.broker.nsq.topics import Topic
    from penstock.fronts.nsq.connection import NsqConnection
    from penstock.fronts.nsq.shared import Shared
    from penstock.octets import address, be32, find, same, ube32


SEATS_LOOKED_AT = 1_000  # so many new names of a connection later it lets go of topics that were deleted


class Seat:
    """A topic that the connection publishes to, as it named it, and how many messages that were."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.name_at: memoryview = address(name)
        self.topic: Topic | None = None  # None where it must be asked for, and whether it may be published to
        self.count = 0

    def name_topic(self, topic: Topic | None) -> None:
        """The name stands for this topic, which may be published to."""
        self.topic = topic

    def leave_deleted(self) -> None:
        """Keep no topic alive that is gone."""
        if self.topic is not None and not self.topic.open:
            self.topic = None

    def add(self, count: int) -> None:
        """So many messages more."""
        self.count += count


class Publisher:
    """What one connection publishes. `pub` and `mpub` give where the next command begins, or -1 when the body is not
    there yet.
    """

    def __init__(self, shared: Shared) -> None:
        self.shared = shared
        self.queueing: Queueing = shared.queueing
        self.topic: Topic | None = None  # the one last published to
        self.seat = Seat(b"")  # its
        self.counts: dict[bytes, int] = {}  # by topic, as of `settle_counts`
        self._seats: dict[bytes, Seat] = {}

    def _topic_of(self, asker: NsqConnection, pos: int, last: int, verb: bytes) -> int:
        """Let `topic` be the one named in [pos, last); 0, 1 when it is still to be made, or -1 after an error was sent."""
        stop = find(asker.base, pos, last, words.SPACE)
        if stop < 0:
            stop = last
        topic = self.topic
        if (
            topic is not None
            and topic.open
            and stop - pos == len(self.seat.name)
            and same(asker.base, pos, self.seat.name_at, 0, stop - pos)
        ):
            return 0
        name = asker.cut(pos, stop)
        seat = self._seats.get(name)
        if seat is None or seat.topic is None or not seat.topic.open:
            return self._check_topic(asker, name, verb)
        self.topic = seat.topic
        self.seat = seat
        return 0

    def _seat_of(self, name: bytes) -> Seat:
        seat = self._seats.get(name)
        if seat is None:
            if len(self._seats) % SEATS_LOOKED_AT == 0:  # topics of a moment, for years
                for other in self._seats.values():
                    other.leave_deleted()
            seat = self._seats[name] = Seat(name)
        return seat

    def _check_topic(self, asker: NsqConnection, name: bytes, verb: bytes) -> int:
        self.topic = None
        if asker.tls_needed:
            asker.wrong_state(verb)
            return -1
        if not valid_nsq_name(name):
            doubled = b"E_BAD_TOPIC " if verb == b"MPUB" else b""
            asker.fail(b'E_BAD_TOPIC %s%s topic name "%s" is not valid' % (doubled, verb, printable(name).encode()))
            return -1
        try:
            asker.check_right(b"publish", name, b"", verb)
        except Failed as failed:
            asker.fail(failed.text)
            return -1
        return 1

    def _make_topic(self, asker: NsqConnection, pos: int, last: int, verb: bytes) -> int:
        """Let `topic` be the one that was looked for, made if need be; 0, or -1 after an error was sent."""
        name = asker.cut(pos, last).partition(b" ")[0]
        try:
            topic = self.queueing.topic(name, hasty=True)
        except Refused as refused:
            asker.fail(b"%s %s %s" % (refused.nsq.encode(), verb, str(refused).encode()))
            return -1
        except StoreError as error:
            asker.fail(b"E_PUB_FAILED %s failed %s" % (verb, str(error).encode()))
            return -1
        seat = self._seat_of(name)
        seat.name_topic(topic)
        self.topic, self.seat = topic, seat
        self.queueing.producers.add(cast("Producer", asker))  # a session, which has this publisher
        return 0

    def forget(self) -> None:
        """Rights have changed: the topic of the next publish is looked at anew."""
        self.topic = None
        for seat in self._seats.values():
            seat.name_topic(None)

    def settle_counts(self) -> None:
        """Bring `counts` up to date."""
        self.counts = {name: seat.count for name, seat in self._seats.items() if seat.count}

    def any_to(self, topic: bytes) -> bool:
        """Whether something was published to this topic."""
        seat = self._seats.get(topic)
        return seat is not None and seat.count > 0

    def count_one(self, name: bytes) -> None:
        """A message was published in another way."""
        self._seat_of(name).add(1)

    def _may(self, asker: NsqConnection, verb: bytes) -> bool:
        """Where rights are asked for: they may have run out since the topic was named."""
        try:
            asker.check_right(b"publish", self.seat.name, b"", verb)
        except Failed as failed:
            asker.fail(failed.text)
            return False
        return True

    def pub(self, asker: NsqConnection, pos: int, last: int, body: int, total: int) -> int:
        """PUB: the topic's name is in [pos, last), size and message begin at `body`."""
        found = self._topic_of(asker, pos, last, b"PUB")
        if found < 0:
            return body
        at = body + words.SIZE_BYTES
        begin = pos - words.VERB_BYTES - 1
        if total < at:
            asker.need = at - begin
            return -1
        base = asker.base
        size = be32(base, body)
        if size <= 0 or size > asker.msg_size_max:
            self._bad_size(asker, size, b"PUB")
            return body
        if total - at < size:
            asker.need = at + size - begin
            return -1
        if found > 0 and self._make_topic(asker, pos, last, b"PUB") < 0:  # not before there is a message for it
            return body
        if self.shared.expiring and not self._may(asker, b"PUB"):
            return body
        topic: Topic = self.topic  # type: ignore[assignment]
        answer = topic.ready(size, 1, True)
        if answer != 0 or not self.shared.healthy:
            self._not_stored(asker, answer, b"E_PUB_FAILED PUB failed ")
            return at + size
        try:
            topic.put(self.shared.now_ns, base, at, size, 0)
            topic.placed()
        except (StoreError, Refused) as error:
            asker.fail(b"E_PUB_FAILED PUB failed " + str(error).encode())
            return at + size
        self.seat.add(1)
        self._ok(asker, topic, b"PUB")
        return at + size

    def mpub(self, asker: NsqConnection, pos: int, last: int, body: int, total: int) -> int:
        """MPUB: size, number of messages, then each with its size."""
        found = self._topic_of(asker, pos, last, b"MPUB")
        if found < 0 or (found > 0 and self._make_topic(asker, pos, last, b"MPUB") < 0):
            return body
        if self.shared.expiring and not self._may(asker, b"MPUB"):
            return body
        begin = pos - words.MPUB_BYTES - 1
        head = body + words.SIZE_BYTES
        if total < head:
            asker.need = head - begin
            return -1
        size = be32(asker.base, body)
        end = head + size
        count = self._count_of(asker, body, end, total)
        if count < 0:
            if count == -1:
                asker.need = end - begin
                return -1
            return body
        return self._store(asker, head + words.SIZE_BYTES, end, count)

    def _count_of(self, asker: NsqConnection, body: int, end: int, total: int) -> int:
        """How many sound messages the body of an MPUB holds; -1 when it is not whole, -2 after an error."""
        base = asker.base
        size = be32(base, body)
        if size > asker.body_size_max:
            asker.fail_at("nsq_body", b"E_BAD_BODY MPUB body too big %d > %d" % (size, asker.body_size_max))
            return -2
        if size <= 0:
            asker.fail(b"E_BAD_BODY MPUB invalid body size %d" % size)
            return -2
        at = body + 2 * words.SIZE_BYTES
        count = 0
        if total >= at:  # said as soon as it can be seen, whatever was promised of the rest
            count = be32(base, body + words.SIZE_BYTES)
            if count <= 0 or count > (asker.body_size_max - words.SIZE_BYTES) // words.MESSAGE_BYTES_MIN:
                asker.fail(b"E_BAD_BODY MPUB invalid message count %d" % count)
                return -2
        stop = end if end < total else total
        n = 0
        while n < count and at + words.SIZE_BYTES <= stop:
            length = be32(base, at)
            if length <= 0:
                asker.fail(b"E_BAD_MESSAGE MPUB invalid message(%d) body size %d" % (n, length))
                return -2
            if length > asker.msg_size_max:
                asker.fail_at(
                    "nsq_message", b"E_BAD_MESSAGE MPUB message too big %d > %d" % (length, asker.msg_size_max)
                )
                return -2
            at += words.SIZE_BYTES + length
            n += 1
        if end > total and at <= end:
            return -1
        if n != count or at != end:
            asker.fail(b"E_BAD_BODY MPUB invalid body size %d" % size)
            return -2
        return count

    def _store(self, asker: NsqConnection, at: int, end: int, count: int) -> int:
        """Store the messages that begin at `at`, all or none; where they end."""
        base = asker.base
        topic: Topic = self.topic  # type: ignore[assignment]
        answer = topic.ready(end - at - words.SIZE_BYTES * count, count, True)
        if answer != 0 or not self.shared.healthy:
            self._not_stored(asker, answer, b"E_MPUB_FAILED MPUB failed ")
            return end
        now_ns = self.shared.now_ns
        n = count
        try:
            while n > 0:
                n -= 1
                length = ube32(base, at)
                at += words.SIZE_BYTES
                topic.put(now_ns, base, at, length, 1 if n else 0)
                at += length
            topic.placed()
        except (StoreError, Refused) as error:
            asker.fail(b"E_MPUB_FAILED MPUB failed " + str(error).encode())
            return end
        self.seat.add(count)
        self._ok(asker, topic, b"MPUB")
        return end

    def _ok(self, asker: NsqConnection, topic: Topic, verb: bytes) -> int:
        """Answer a publish, behind what the topic's level says."""
        blocked = self.shared.blocked
        if not blocked and (topic.level == words.LEVEL_OS or topic.level == words.LEVEL_MEMORY):
            asker.out.put_from(self.shared.ok_at, 0, words.OK_BYTES)
            return 0
        if topic.level >= words.LEVEL_PAIR:
            if blocked and asker.channel is not None:
                asker.await_flush(self.queueing.want_flush(self.queueing.topics[asker.channel.topic_name]))
            asker.await_copies(topic, verb)
            return 0
        if topic.level == words.LEVEL_DISK or (blocked and topic.level == words.LEVEL_OS):
            asker.await_flush(self.queueing.want_flush(topic))
        elif blocked and asker.channel is not None:  # the answer says, too, that its FINs are done
            asker.await_flush(self.queueing.want_flush(self.queueing.topics[asker.channel.topic_name]))
        asker.out.put_from(self.shared.ok_at, 0, words.OK_BYTES)
        return 0

    def _bad_size(self, asker: NsqConnection, size: int, verb: bytes) -> None:
        if size > asker.msg_size_max:
            asker.fail_at("nsq_message", b"E_BAD_MESSAGE %s message too big %d > %d" % (verb, size, asker.msg_size_max))
        else:
            asker.fail(b"E_BAD_MESSAGE %s invalid message body size %d" % (verb, size))

    def _not_stored(self, asker: NsqConnection, answer: int, text: bytes) -> None:
        asker.fail(text + str(self.queueing.refusal(answer)).encode())
