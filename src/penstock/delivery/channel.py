"""Channel: a named group of consumers that share one copy of a topic. The same code for every source of messages.

    source ──take──▶ in flight ──FIN──▶ done          a message in hand has a slot (delivery.slots)
                      │   ▲
      REQ, timeout    ▼   │ pump
                     waiting ◀── deferred             deferred here: sources in memory; others go to the schedule

A message that comes again goes behind those that wait, but at most `words.BEHIND_MAX` of them: so a message that is always
given back does not keep the others from being read, and a long queue does not keep it from coming again.
Consumers take turns; each gets a few messages before the next one, so that a turn of the loop ends in few writes.
"""

# mypy: disable-error-code="no-any-return"
from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Protocol

import cython

from penstock.delivery.latency import Latency
from penstock.wire.names import EPHEMERAL
from penstock.wire.outbox import Outbox

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.delivery.slots import Slots
    from cython.cimports.penstock.delivery.source import Source
    from cython.cimports.penstock.histogram import Attempts, Histogram
else:
    from penstock import words
    from penstock.delivery.slots import Slots
    from penstock.delivery.source import Source
    from penstock.histogram import Attempts, Histogram

IN_HAND_MAX = 100_000
MSG_TIMEOUT_MS = 60_000
MSG_TIMEOUT_MAX_MS = 900_000


class Owner(Protocol):
    """Who has the channels: it keeps their timers, their dead letters and what they defer."""

    def due(self, channel: Channel) -> None:
        """The channel's next moment may be earlier than known."""

    def filled(self, channel: Channel) -> None:
        """There is more to deliver, and the channel has as much in hand as it may."""

    def bury(self, channel: Channel, slot: int, why: str) -> bool:
        """Store a message in hand with the dead letters; False when that cannot be done now."""

    def defer(self, channel: Channel, slot: int, delay_ms: int) -> bool:
        """Let the schedule have a message in hand; False when the channel is to keep it."""


class Consumer:
    """One subscriber, as a channel sees it. Sessions are made of this."""

    def __init__(self) -> None:
        self.out = Outbox()
        self.number = -1
        self.ready_count = 0
        self.in_flight = 0
        self.msg_timeout_ms = MSG_TIMEOUT_MS
        self.sample_rate = 0
        self.message_count = 0
        self.finish_count = 0
        self.requeue_count = 0
        self.behind = 0  # bytes written that the peer has not taken

    def deliver(self, source: Source, attempts: int) -> int:
        """Write the message that the source shows into `out`, in the consumer's own protocol. Returns 0."""
        raise NotImplementedError

    def wake(self) -> None:
        """There is something in `out`."""

    def describe(self, now_s: int) -> dict[str, object]:
        """What statistics tell of it, under nsqd's names."""
        return {
            "client_id": "",
            "hostname": "",
            "user_agent": "",
            "version": "",
            "remote_address": "",
            "state": words.SUBSCRIBED,
            "ready_count": self.ready_count,
            "in_flight_count": self.in_flight,
            "message_count": self.message_count,
            "finish_count": self.finish_count,
            "requeue_count": self.requeue_count,
            "connect_ts": now_s,
            "sample_rate": self.sample_rate,
        }

    def close(self) -> None:
        """The channel is deleted: end the connection."""

    def disconnect(self) -> None:
        """End the connection, as if its peer had."""


class ChannelState:
    """What the owner of a channel knows and says of it: how far it has come, whether it is paused, marked or deleted."""

    def __init__(self) -> None:
        self.paused = False
        self.marked = False  # its owner will pump it in this turn
        self.removed = False
        self.timer_ms = 0  # when the owner looks at it next; 0: not at all
        self.origin = 0  # where counting messages begins; the topic sets it
        self.deferred_in_memory = 0
        self.deferred_elsewhere = 0
        self.message_count = 0
        self._handed: Callable[[int], None] | None = None
        self._acknowledged: Histogram | None = None

    def tell_handed(self, handed: Callable[[int], None]) -> None:
        """Who is told, once each time that messages are handed out, when the first one that is fresh was stored."""
        self._handed = handed

    def count_acknowledged(self, counts: Histogram) -> None:
        """Count here, once in each turn in which messages are finished, how long the first of them had been stored."""
        self._acknowledged = counts

    @property
    def deferred_count(self) -> int:
        """Messages whose time has not come."""
        return self.deferred_in_memory + self.deferred_elsewhere

    def count_from(self, ordinal: int) -> None:
        """Messages are counted from here on in the stream."""
        self.origin = ordinal

    def count_up_to(self, ordinal: int) -> None:
        """So far the stream has come."""
        self.message_count = max(0, ordinal - self.origin)

    def count_ahead(self, messages: int) -> None:
        """So many more have come that the stream does not have yet; below zero: it has them now."""
        self.origin -= messages

    def count(self, messages: int) -> int:
        """So many more have come. Returns 0."""
        self.message_count += messages
        return 0

    def count_deferred(self, messages: int) -> None:
        """So many more (or, below zero, fewer) wait in the schedule."""
        self.deferred_elsewhere = max(0, self.deferred_elsewhere + messages)

    def forget_deferred(self) -> None:
        """What waits in the schedule is not the channel's any more."""
        self.deferred_elsewhere = 0

    # -- what its owner says -------------------------------------------------------------------------------------

    def mark(self) -> bool:
        """It will be pumped when the turn ends; False when that was known."""
        known = self.marked
        self.marked = True
        return not known

    def set_timer(self, mono_ms: int) -> None:
        """The owner looks at it then (0: not at all)."""
        self.timer_ms = mono_ms

    def pause(self, paused: bool) -> None:
        """Give nothing more, or again."""
        self.paused = paused

    def end(self) -> None:
        """It is deleted."""
        self.removed = True


class Channel(ChannelState):
    """See the module. Times are monotonic ms, except where `ns` says wall time."""

    def __init__(
        self,
        name: bytes,
        topic_name: bytes,
        source: Source,
        *,
        in_hand_max: int = IN_HAND_MAX,
        msg_timeout_max_ms: int = MSG_TIMEOUT_MAX_MS,
        attempts_max: int = 0,
        latency: Latency | None = None,
        owner: Owner | None = None,
    ) -> None:
        ChannelState.__init__(self)
        self.name = name
        self.topic_name = topic_name
        self.source = source
        self.ephemeral = name.endswith(EPHEMERAL)
        self.in_hand_max = in_hand_max
        self.unread_max = words.OUT_BYTES_MAX
        self.msg_timeout_max_ms = msg_timeout_max_ms
        self.attempts_max = attempts_max
        self.latency = latency
        self.owner: Owner = owner  # type: ignore[assignment]  # who is told: `due(channel)`, `bury(channel, slot)`
        self.leaving: dict[tuple[int, int], int] = {}  # (lane, place) → number: copied elsewhere, not durable there yet
        self.slots = Slots()
        self.waiting: deque[tuple[int, int]] = deque()  # (slot, may be given when so many were taken)
        self.consumers: list[Consumer] = []
        self.by_number: dict[int, Consumer] = {}
        self.taken = 0
        self.in_flight_count = 0
        self.waiting_count = 0
        self.requeue_count = 0
        self.timeout_count = 0
        self.finish_count = 0
        self.buried_count = 0
        self.handed_count = 0
        self.handed_bytes = 0  # with the head of each, as it goes to the consumer
        self.again = Attempts()  # how often those were given that were not finished the first time
        self._fresh_ns = 0  # when the first of what is handed out now was stored
        self._finished_ns = 0  # the turn in which something was finished last
        self._turn = 0
        self._number = 0

    def let_unread(self, bytes_max: int) -> None:
        """A consumer that has not read so much gets no more."""
        self.unread_max = bytes_max

    # -- figures -------------------------------------------------------------------------------------------------

    def depth(self) -> int:
        """Messages that could be delivered and are not in flight."""
        return self.source.depth() + self.waiting_count

    def backend_depth(self) -> int:
        """How many of those lie on disk only."""
        return self.source.backend_depth()

    # -- consumers -----------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        """A subscriber comes."""
        self._number += 1
        consumer.number = self._number
        self.consumers.append(consumer)
        self.by_number[consumer.number] = consumer

    def remove(self, consumer: Consumer) -> None:
        """A subscriber leaves; what it has in flight stays so until its deadline."""
        if self.by_number.pop(consumer.number, None) is not None:
            self.consumers.remove(consumer)
            self._turn = 0

    # -- delivery ------------------------------------------------------------------------------------------------

    def pump(self, mono_ms: int) -> int:
        """Hand out what can be; returns how many messages that was."""
        self.marked = False
        count = len(self.consumers)
        if self.paused or count == 0:
            return 0
        given = 0
        idle = 0
        share = 0
        while idle < count:
            if self._turn >= count:
                self._turn = 0
            consumer = self.consumers[self._turn]
            self._turn += 1
            room = consumer.ready_count - consumer.in_flight
            if room <= 0 or consumer.behind + consumer.out.parted + consumer.out.size > self.unread_max:
                idle += 1
                continue
            if share == 0:
                share = (self.source.depth() + self.waiting_count) // count + 1
                share = max(words.SHARE_MIN, min(words.SHARE_MAX, share))
            if room > share:
                room = share
            got = self._give(consumer, room, mono_ms)
            if got < 0:
                break
            if got == 0:
                idle += 1
            else:
                idle = 0
                given += got
        self.handed_count += given
        if self._fresh_ns:
            if self._handed is not None:
                self._handed(self._fresh_ns)
            self._fresh_ns = 0
        return given

    def _give(self, consumer: Consumer, room: int, mono_ms: int) -> int:
        """Up to `room` messages to one consumer; how many, or -1 when the channel has nothing more to give."""
        slots, source, out = self.slots, self.source, consumer.out
        before = out.parted + out.size
        got = 0
        dry = False
        while got < room:
            slot = -1
            if self.waiting_count > 0:
                slot = self._next_waiting()
            if slot < 0:
                if self.in_flight_count + self.waiting_count >= self.in_hand_max:
                    if source.depth() > 0:
                        self.owner.filled(self)
                    dry = True
                    break
                if not source.take():
                    dry = True
                    break
                self.taken += 1
                if self._fresh_ns == 0:
                    self._fresh_ns = source.stamp_ns
                slot = slots.add(source.message_id, source.place, source.lane, source.attempts, words.IN_FLIGHT)
                if slot < 0:  # an id that is in hand already: a copy of the same message, as a crash may leave
                    source.done(source.lane, source.place)
                    continue
            if consumer.sample_rate > 0 and random.randrange(words.PERCENT) >= consumer.sample_rate:
                self._finished(slot)
                continue
            attempts = slots.attempts[slot] + 1
            if self.attempts_max > 0 and attempts > self.attempts_max and self._bury(slot):
                continue
            if attempts > words.ATTEMPTS_MAX:
                attempts = 0
            slots.attempts[slot] = attempts
            slots.state[slot] = words.IN_FLIGHT
            slots.owner[slot] = consumer.number
            slots.since[slot] = mono_ms
            slots.time(slot, mono_ms + consumer.msg_timeout_ms)
            consumer.deliver(source, attempts)
            self.in_flight_count += 1
            consumer.in_flight += 1
            consumer.message_count += 1
            got += 1
            if out.parted + out.size > self.unread_max:
                break
        if got:
            self.handed_bytes += out.parted + out.size - before
            consumer.wake()
            if self.timer_ms == 0 or slots.due[slots.first()] < self.timer_ms:
                self.owner.due(self)
        if got == 0 and dry:
            return -1
        return got

    def _next_waiting(self) -> int:
        """The next message that comes again, if it is its turn, shown in the source; else -1."""
        while self.waiting:
            slot, after = self.waiting[0]
            if self.taken < after and self.source.depth() > 0 and not self.source.full():
                return -1
            self.waiting.popleft()
            self.waiting_count -= 1
            if self.source.point_at(self.slots.lane[slot], self.slots.place[slot]):
                return slot
            self._finished_waiting(slot)  # damaged since: nothing can be delivered
        return -1

    def _finished_waiting(self, slot: int) -> None:
        self.source.done(self.slots.lane[slot], self.slots.place[slot])
        self.slots.drop(slot)

    def _finished(self, slot: int) -> None:
        """Take a message out of hand for good."""
        self.source.done(self.slots.lane[slot], self.slots.place[slot])
        self.slots.drop(slot)

    def _bury(self, slot: int) -> bool:
        """Too many attempts: to the dead letters. False when they cannot take it now: it is delivered once more."""
        if not self.owner.bury(self, slot, "attempts"):
            return False
        self.buried_count += 1
        self._moved(slot)
        return True

    def _moved(self, slot: int) -> None:
        """The owner has put a message elsewhere: out of hand; its place is done now, or when `left` says so."""
        lane, place = self.slots.lane[slot], self.slots.place[slot]
        if (lane, place) not in self.leaving:
            self.source.done(lane, place)
        self.slots.drop(slot)

    def left(self, lane: int, place: int, number: int) -> None:
        """What was put elsewhere is durable there; of no effect when the channel was emptied or reset meanwhile."""
        if self.leaving.get((lane, place)) == number:
            del self.leaving[lane, place]
            self.source.done(lane, place)

    def withdraw(self, slot: int) -> None:
        """A message that waits to be given again is done, and nobody has it: it was put elsewhere."""
        self.waiting = deque(pair for pair in self.waiting if pair[0] != slot)
        self.waiting_count = len(self.waiting)
        self._finished_waiting(slot)

    # -- what consumers say --------------------------------------------------------------------------------------

    def _owned(self, consumer: Consumer, message_id: int) -> int:
        """The slot of a message in flight to this consumer; -1: not in flight, -2: to another."""
        slot = self.slots.find(message_id)
        if slot < 0 or self.slots.state[slot] != words.IN_FLIGHT:
            return -1
        if self.slots.owner[slot] != consumer.number:
            return -2
        return slot

    def finish(self, consumer: Consumer, message_id: int, now_ns: int, mono_ms: int) -> int:
        """FIN: DONE, NOT_IN_FLIGHT or NOT_OWNER."""
        slots = self.slots
        slot = self._owned(consumer, message_id)
        if slot < 0:
            return -slot
        if self.latency is not None and self.source.point_at(slots.lane[slot], slots.place[slot]):
            self.latency.add(now_ns - self.source.stamp_ns, mono_ms)
        if now_ns != self._finished_ns:  # the first one in this turn
            self._finished_ns = now_ns
            if self._acknowledged is not None and self.source.point_at(slots.lane[slot], slots.place[slot]):
                self._acknowledged.add_ns(now_ns - self.source.stamp_ns)
        if slots.attempts[slot] > 1:
            self.again.add(slots.attempts[slot])
        self.source.done(slots.lane[slot], slots.place[slot])
        slots.drop(slot)
        self.in_flight_count -= 1
        self.finish_count += 1
        consumer.in_flight -= 1
        consumer.finish_count += 1
        return 0

    def requeue(self, consumer: Consumer, message_id: int, delay_ms: int, mono_ms: int) -> int:
        """REQ: again at once, behind the others, or after a delay. DONE, NOT_IN_FLIGHT or NOT_OWNER."""
        slot = self._owned(consumer, message_id)
        if slot < 0:
            return -slot
        self.requeue_count += 1
        consumer.requeue_count += 1
        consumer.in_flight -= 1
        self._end_flight(slot)
        if delay_ms > 0:
            if self.owner.defer(self, slot, delay_ms):  # the schedule has it: this place in the stream is done
                self.deferred_elsewhere += 1
                self._moved(slot)
            else:
                self._defer_here(slot, mono_ms + delay_ms)
        else:
            self._put_back(slot)
        return 0

    def touch(self, consumer: Consumer, message_id: int, mono_ms: int) -> int:
        """TOUCH: a full timeout from now, at most `msg_timeout_max_ms` after delivery."""
        slot = self._owned(consumer, message_id)
        if slot < 0:
            return -slot
        due = mono_ms + consumer.msg_timeout_ms
        limit = self.slots.since[slot] + self.msg_timeout_max_ms
        self.slots.time(slot, due if due < limit else limit)
        return 0

    def reject(self, consumer: Consumer, message_id: int) -> int:
        """To the dead letters at once. DONE, NOT_IN_FLIGHT, NOT_OWNER; StoreError-like refusals are the owner's."""
        slot = self._owned(consumer, message_id)
        if slot < 0:
            return -slot
        if not self.owner.bury(self, slot, "rejected"):
            return words.NOT_IN_FLIGHT
        self.buried_count += 1
        self.in_flight_count -= 1
        consumer.in_flight -= 1
        self._moved(slot)
        return words.DONE

    def _end_flight(self, slot: int) -> None:
        """No longer in flight."""
        self.in_flight_count -= 1
        self.slots.untime(slot)
        self.slots.owner[slot] = -1

    def _put_back(self, slot: int) -> None:
        """Will be given again, behind at most BEHIND_MAX others."""
        self.slots.state[slot] = words.WAITING
        self.waiting.append((slot, self.taken + min(words.BEHIND_MAX, self.source.depth())))
        self.waiting_count += 1

    def _defer_here(self, slot: int, due_ms: int) -> None:
        """Deferred in memory."""
        self.source.detach(self.slots.lane[slot], self.slots.place[slot])
        self.slots.state[slot] = words.DEFERRED
        self.slots.time(slot, due_ms)
        self.deferred_in_memory += 1
        self.owner.due(self)

    def add_deferred(self, place: int, message_id: int, due_ms: int) -> None:
        """A deferred message of a memory source, held there already."""
        slot = self.slots.add(message_id, place, 0, 0, words.DEFERRED)
        if slot >= 0:
            self._defer_here(slot, due_ms)

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self, mono_ms: int) -> int:
        """What is due by now goes back to the queue; how many messages that was. The next moment: `due_ms`."""
        slots = self.slots
        count = 0
        while slots.timed > 0:
            slot = slots.first()
            if slots.due[slot] > mono_ms:
                break
            if slots.state[slot] == words.IN_FLIGHT:
                self.timeout_count += 1
                consumer = self.by_number.get(slots.owner[slot])
                if consumer is not None:
                    consumer.in_flight -= 1
                self._end_flight(slot)
            else:
                slots.untime(slot)
                self.deferred_in_memory -= 1
            self._put_back(slot)
            count += 1
        return count

    def due_ms(self) -> int:
        """When `tick` has something to do; 0: never."""
        if self.slots.timed == 0:
            return 0
        return self.slots.due[self.slots.first()]

    # -- all at once ---------------------------------------------------------------------------------------------

    def forget_hand(self, lane: int = -1) -> None:
        """Drop what is in hand (of one lane): a later FIN says it is not in flight."""
        self.leaving = {key: n for key, n in self.leaving.items() if lane >= 0 and key[0] != lane}
        for slot in range(self.slots.capacity):
            if self.slots.state[slot] and (lane < 0 or self.slots.lane[slot] == lane):
                state = self.slots.state[slot]
                if state == words.IN_FLIGHT:
                    self.in_flight_count -= 1
                    consumer = self.by_number.get(self.slots.owner[slot])
                    if consumer is not None:
                        consumer.in_flight -= 1
                elif state == words.DEFERRED:
                    self.deferred_in_memory -= 1
                self.slots.drop(slot)
        kept = [pair for pair in self.waiting if self.slots.state[pair[0]] == words.WAITING]
        self.waiting = deque(kept)
        self.waiting_count = len(kept)

    def empty(self) -> None:
        """Drop everything: queue, in flight, deferred."""
        self.forget_hand()
        self.source.empty()

    def in_hand(self) -> list[tuple[int, int, int, int]]:
        """(lane, place, id, attempts) of every message in hand."""
        slots = self.slots
        return [
            (slots.lane[slot], slots.place[slot], slots.id[slot], slots.attempts[slot])
            for slot in range(slots.capacity)
            if slots.state[slot]
        ]

    def check(self) -> None:
        """Assert that the counts agree: for tests."""
        self.slots.check()
        states = [self.slots.state[slot] for slot in range(self.slots.capacity)]
        assert states.count(words.IN_FLIGHT) == self.in_flight_count
        assert states.count(words.WAITING) == self.waiting_count == len(self.waiting)
        assert states.count(words.DEFERRED) == self.deferred_in_memory
        assert all(consumer.in_flight >= 0 for consumer in self.consumers)
