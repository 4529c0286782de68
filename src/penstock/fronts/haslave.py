"""A slave's side of replication: its connection to the master, and the one that only asks who the master is.

DATA ─▶ every sum is checked ─▶ `log.follow` ─▶ end of the turn: one ACK
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import cython

from penstock.broker.mastership import Mastership
from penstock.broker.replica import NO_SET, Replica
from penstock.broker.taking import Taking, TakingTime, checked, last_records, peers_of, sums_of
from penstock.broker.term import Favours
from penstock.errors import Refused, StoreError, WireError
from penstock.faults import Told
from penstock.fronts.bare import admitted
from penstock.fronts.hasession import LAST_BYTES, PACE_MS, HaSession, SessionsFront
from penstock.log.epochs import newest
from penstock.log.follow import Follower
from penstock.version import __version__
from penstock.wire import ha
from penstock.wire.fastjson import JsonObject

if cython.compiled:
    from cython.cimports.penstock.log import status
    from cython.cimports.penstock.wire import hawords
    from cython.cimports.penstock.wire.haframe import Ack, Head, Positions, ack, read_positions
else:
    from penstock.log import status
    from penstock.wire import hawords
    from penstock.wire.haframe import Ack, Head, Positions, ack, read_positions

log = logging.getLogger("penstock.ha")

_FULL = "its disk is full, or a limit for files: the log is not copied"
_FAILED = "its disk has failed: the log is not copied until this node is started again, as its log says"
_UNANSWERED = (
    "the master has ended the connection without a word, as where ha_secret_file is another one: its log says why"
)
_SECRET_WANTED = "the master wants a secret: set ha_secret_file"
_NAMED_BY = "ha_master, or the registry,"
_NOT_THE_ONE = (ha.WRONG_SET, ha.DIVERGED, ha.BEHIND)  # its log is another one's, or an older copy, or its name is
UNSAID_BYTES_MAX = 1 << 20  # are acknowledged at once: the master has a window


class SlavesFront(SessionsFront, Protocol):
    """Who has made the session, and what is told to it."""

    replica: Replica
    mastership: Mastership
    favours: Favours
    secret: bytes
    address: str
    ha_address: str
    free_bytes: int
    copying: int
    refused: str
    told: Told

    def note_copying(self, outcome: int) -> bool:
        """How copying went; whether to write it down."""

    def renumber(self, about: JsonObject) -> None:
        """The master says which id this slave has."""

    def note_confirmed(self) -> None:
        """Let the next start know how far readers may be shown the log while there is no master."""

    def follow_at(self, address: str) -> None:
        """This slave follows the master there."""

    def hear_of(self, node: str, address: str, epoch: int) -> None:
        """There is a master of a newer epoch."""


class SlaveSession(HaSession):
    """Our connection to the master."""

    def __init__(self, front: SlavesFront, remote: str, wake: Callable[[], None]) -> None:
        HaSession.__init__(self, front, remote, wake)
        self.front = front
        self.follower = Follower(self.store)
        self.taking = Taking(front.broker)
        self._staged = front.broker.staging.mirror
        self._masters_time = TakingTime(self.time)
        self.running = False
        self.epoch = 0
        self.refusal = ""  # why the master does not let us follow
        self.other = ""  # the master instead, says who is not
        self.not_master = False
        self.itself = False  # it is this node, by another name of its own port
        self.unanswered = False  # it was told who we are, and has said nothing since
        self.bare = False  # it is RocketMQ's
        self._said = self._said_flushed = -1
        self._said_ms = -PACE_MS
        self._hurry = True  # somebody waits for our next ACK, or may
        self.say(ha.OPENER)

    def _open(self, owner: bytearray, total: int) -> int:
        if total >= len(ha.OPENER) and ha.is_echo(owner):
            self._meet_rocketmq()
            return total
        if total < ha.GREETING_BYTES:
            self.need = ha.GREETING_BYTES
            return 0
        try:
            nonce, secret = ha.read_greeting(bytes(owner[: ha.GREETING_BYTES]))
        except WireError as error:
            self._meet_stranger(str(error))
            return total
        if secret and not self.front.secret:
            self.copies.note_orphan(_SECRET_WANTED, by="master")
            raise WireError(_SECRET_WANTED)
        self.say(ha.hello(self.hello(), self.front.secret, nonce))
        self.unanswered = True
        return ha.GREETING_BYTES

    def meet_itself(self) -> None:
        """Who answers is this node."""
        self.itself = True

    def _meet_rocketmq(self) -> None:
        """A RocketMQ master has taken the opener for the end of a log, and says that it goes on there."""
        if not admitted(self.broker.config, self.remote):
            self.refusal = "it speaks RocketMQ's protocol, and its address is none of ha_rocketmq"
        elif self.front.replica.set_id != NO_SET:
            self.refusal = "it is RocketMQ's, and this node is of a set of ours"
        else:
            self.bare = True
        if self.refusal:
            self.copies.note_orphan(f"the master cannot be followed: {self.refusal}", by="master")
            if self._is_news("bare"):
                log.error("the master cannot be followed peer=%s reason=%s", self.remote, self.refusal)
        self.end()

    def _meet_stranger(self, why: str) -> None:
        """Whoever is there has not greeted as a master does that we understand; it is asked again and again."""
        said = "has not greeted as a master does"
        why = f"{self.remote} {said} ({why}): it hangs, or is no ha_port, or has another ha_tls"
        self.copies.note_orphan(why, by="master")
        if self._is_news("stranger"):
            log.warning("no master reason=%s", why)
        self.end()

    def hello(self) -> ha.Hello:
        """What this node says of itself."""
        replica, store = self.front.replica, self.store
        begin = 0 if self.follower.empty else store.min_position
        about: JsonObject = {
            "node": replica.node, "brokerId": self.broker.config.broker_id, "remoting": self.front.address,
            "version": __version__, "ha": self.front.ha_address, "repairs": True, "spools": True,
            "changes": True, "parts": True,
        }  # fmt: skip
        return ha.Hello(
            self.nonce, replica.set_id, replica.store_id, replica.loss, store.log.file.size, begin, store.end_position,
            store.flushed_position, replica.safe(store.flushed_position, self.copies.confirmed), replica.epoch,
            replica.epochs, about,
        )  # fmt: skip

    def frame(self, head: Head, owner: bytearray) -> None:
        self.unanswered = False
        if head.kind == hawords.DATA and self.running:
            self._data(head, owner)
        elif head.kind == hawords.BEAT and self.running:
            self._told(read_positions(owner, head.fixed), head.flags)
            self._masters_time.hear(ha.read_wall(owner, head.fixed))
            if head.flags & hawords.FLUSH_NOW:
                self._hurry = True
                self.store.want_flush()
        elif head.kind == hawords.TAKE and self.running:
            self._take(head, ha.read_start(self.body(head, owner)))
        elif head.kind == hawords.MAY_I and self.running and head.epoch == self.epoch:
            number, for_ms = ha.read_favour(self.body(head, owner))
            self.front.favours.grant(for_ms, self.broker.time.clock.monotonic_ms())  # the turn may have begun long ago
            self.say(ha.yes(self.epoch, number, for_ms))
        elif head.kind == hawords.META and self.running:
            kind, _, body = ha.read_meta(self.body(head, owner))
            self.taking.take(kind, body)
        elif head.kind == hawords.ACCEPT and not self.running:
            try:
                self._accepted(head, self._proved(head, owner))
            except WireError as error:
                self.copies.note_orphan(str(error), by="master")
                raise
        elif head.kind == hawords.SPOOL and self.running and head.epoch == self.epoch:
            self._mirror(ha.read_spool(head, self.body(head, owner)))
        elif self.running and self.exchanged(head, owner, self.epoch):
            return
        elif head.kind == hawords.REFUSE and not self.running:
            reason, text = ha.read_refuse(self.body(head, owner))
            self.refusal = text
            self.not_master, self.other = reason == ha.NOT_MASTER, ha.master_in(text)
            if not self.not_master:
                self.copies.note_orphan(f"the master refuses this slave: {text}", by="master")
            if self.itself:
                self.refusal = (
                    f"it is to follow itself, for {self.remote} is its own ha_port: {_NAMED_BY} is to name another"
                )
                if self.copies.note_orphan(self.refusal, by="master"):
                    log.warning("no master to follow reason=%s", self.refusal)
            if reason in _NOT_THE_ONE:
                self.front.refused = f"its master has refused it, so it is not the node that was in sync: {text}"
            if self._is_news(f"refused {reason}"):
                level = logging.INFO if self.not_master else logging.ERROR
                log.log(level, "the master refuses this slave peer=%s code=%d reason=%s", self.remote, reason, text)
            self.end()
        else:
            raise WireError(f"a frame of type {head.kind:#x} at this moment")

    def _is_news(self, what: str) -> bool:
        """Whether this peer has not said so already: it is asked twice a second."""
        return self.front.told.is_news(f"{self.remote} {what}", self.time.mono_ms)

    def _proved(self, head: Head, owner: bytearray) -> bytes:
        data = self.body(head, owner)
        if not ha.proves(data, self.front.secret, b"master", self.nonce):
            raise WireError("the master does not know the secret of this replica set")
        self.trusted = True
        return data

    def _accepted(self, head: Head, data: bytes) -> None:
        told = ha.read_accept(data, head.entries)
        store, follower = self.store, self.follower
        if follower.empty:
            if told.cut_to % store.log.file.size:
                raise WireError(f"a log that begins at {told.cut_to} cannot be copied here")
            outcome = follower.begin_at(told.cut_to)
            if outcome != status.OK:
                raise WireError(_FULL if outcome == status.DISK_FULL else _FAILED)
        elif not store.min_position <= told.cut_to <= store.end_position:
            what = "start this node again" if store.end_position == 0 else f"ours ends at {store.end_position}"
            raise WireError(f"the master shares the log up to {told.cut_to}: {what}")
        size, found = last_records(store, told.cut_to, LAST_BYTES, told.block_size)
        if (size, found) != (told.block_size, told.block_sum) and not self._same_sums(told, size):
            if self._is_news("differs"):
                log.error("the logs differ below %d: nothing is copied, nothing is cut ours=%08x master=%08x bytes=%d",
                          told.cut_to, found, told.block_sum, told.block_size)  # fmt: skip
            raise WireError(f"the logs differ below {told.cut_to}")
        if told.cut_to < store.end_position:
            self._cut(told, head.epoch)
            return
        self.front.renumber(told.about)
        self.front.replica.join(told.set_id, checked(told.epochs), elected=self.front.mastership.elected)
        self.front.replica.note_peers(peers_of(told.about))
        self.front.mastership.hear_master(True)
        self.front.follow_at(peers_of(told.about).get(str(told.about.get("node", "")), ""))
        self.epoch = head.epoch
        self.running = True
        if self.front.copying == status.OK or told.written == store.end_position:  # else what comes now shows it
            self._follows()
            self._say_follows(told.written)
        self.exchange_with(told.about)
        self.say(ha.start(self.epoch, store.end_position))

    def _follows(self) -> None:
        """Whatever kept this node from following its master is over."""
        self.front.told.over()
        self.front.refused = ""
        self.copies.note_orphan("", by="master")

    def _say_follows(self, written: int) -> None:
        """The master's log ends there."""
        position = self.store.end_position
        log.info("following master=%s position=%d behind=%d", self.remote, position, written - position)

    def _same_sums(self, told: ha.Accept, size: int) -> bool:
        """Whether the two logs are one by the sums of those records, though not by their bytes: some are damaged, here or at the
        master.
        """
        ours = sums_of(self.store, told.cut_to, size)
        return size > 0 and size == told.block_size and ours != 0 and told.about.get("blockSums") == ours

    def _cut(self, told: ha.Accept, epoch: int) -> None:
        """Our log goes on where the master's does not. A record must begin where the two part."""
        if not told.block_size and self.store.log.check(told.cut_to) < 0:
            raise WireError(f"no record of ours begins at {told.cut_to}, where the master's log and ours part")
        self.front.mastership.cut(told.cut_to, epoch, str(told.about.get("node", self.remote)))
        self.end()

    def _take(self, head: Head, position: int) -> None:
        """The master gives us its place."""
        if head.epoch != self.epoch:
            raise WireError(f"epoch {head.epoch} is given away, we follow {self.epoch}")
        try:
            if self.front.mastership.take(position):
                self.say(ha.taken(self.epoch, position))
        except Refused as error:
            log.error("not taken over error=%s", error)

    def lost(self) -> None:
        if not self._opened and not self.closing:
            self._meet_stranger("nothing came but the end")
        if self.unanswered and not self.closing:
            self.copies.note_orphan(_UNANSWERED, by="master")
            if self._is_news("unanswered"):
                log.warning(_UNANSWERED + " master=%s", self.remote)
        if self.running:
            self.front.note_confirmed()  # this process may end before the next tick
            self.front.mastership.hear_master(False)
            self.front.follow_at("")
        HaSession.lost(self)

    def _told(self, positions: Positions, flags: int) -> None:
        end = self.store.log.end
        if positions.position != end:
            raise WireError(f"the master goes on at {positions.position}, our log ends at {end}")
        copies = self.copies
        copies.hear(self.remote, positions.written, self.time.mono_ms)
        copies.told(positions.confirmed, positions.confirmed_flushed)
        try:
            self.front.replica.note_in_sync(bool(flags & hawords.IN_SYNC))
        except StoreError as error:  # each frame tries it again
            if self._is_news("in sync"):
                log.error("not noted whether this node is in sync error=%s", error)

    def _data(self, head: Head, owner: bytearray) -> None:
        self._told(read_positions(owner, head.fixed), head.flags)
        unsaid = self._hurry and self._said < self.store.log.end
        self._hurry = unsaid or head.flags & hawords.NO_HURRY == 0
        follower = self.follower
        outcome = follower.take(owner, head.variable, head.entries, head.end, head.flags & hawords.DAMAGED != 0)
        if outcome == status.OK and head.flags & hawords.LAST:
            outcome = follower.turn()
        if outcome == status.ILLEGAL:
            self.copies.count_bad()
            raise WireError(f"the sum of the record at {follower.bad} does not hold: it is asked for again")
        before = self.front.copying
        news = self.front.note_copying(outcome)
        if outcome != status.OK:
            # Its master says nothing of it, for it is not connected most of the time: it comes again, and fails again.
            why = _FULL if outcome == status.DISK_FULL else _FAILED
            self.copies.note_orphan(why, by="master")
            if news:
                log.error("the log cannot be copied now reason=%s position=%d", why, self.store.end_position)
            self._acknowledge(hawords.DISK_FULL if outcome == status.DISK_FULL else hawords.FLUSH_FAILED)
            self.end()
            return
        if before != outcome:
            self._follows()
        if news:
            self._say_follows(self.copies.master_written)
        if self.broker.topics.behind:
            self.broker.topics.hide_copied()
        if head.flags & hawords.FLUSH_NOW:
            self.store.want_flush()

    def _mirror(self, told: ha.Spool) -> None:
        """Staged rows of the master."""
        mirror, failed = self._staged, False
        try:
            if told.there:
                mirror.keep_only(told.data.decode("ascii", "replace").split())
            elif told.gone:
                mirror.drop(told.token)
            else:
                mirror.take(told)
        except StoreError as error:
            failed = True
            if self._is_news("staged"):  # a master sends many pieces before it hears of the first
                log.error("staged rows of the master cannot be kept error=%s", error)
        if not told.there and not told.gone:
            self.say(ha.spooled(self.epoch, ha.Spooled(told.token, told.at + len(told.data), False, failed)))

    def end_turn(self, mono_ms: int) -> None:
        if not self.running:
            return
        mirror = self._staged
        if mirror.has_news:
            for token, size in mirror.take_flushed():
                self.say(ha.spooled(self.epoch, ha.Spooled(token, size, True, False)))
            for token in mirror.take_lost():
                self.say(ha.spooled(self.epoch, ha.Spooled(token, 0, True, True)))
        end = self.store.log.end
        if not self.closing and (end != self._said or self.store.durability.flushed != self._said_flushed):
            late = self._hurry or end - self._said >= UNSAID_BYTES_MAX
            if late or mono_ms - self._said_ms >= PACE_MS:
                self._said_ms = mono_ms
                self._acknowledge(0)
            else:
                self.copies.look_at(self._said_ms + PACE_MS)

    def _acknowledge(self, flags: int) -> None:
        store = self.store
        if not store.healthy:
            flags |= hawords.FLUSH_FAILED
        written, flushed = store.log.settled_end(), store.durability.flushed
        self._said, self._said_flushed = written, flushed
        self.say(ack(self.epoch, Ack(written, min(written, flushed), written, self.front.free_bytes), flags))

    def beat(self) -> None:
        if self.running:
            self._acknowledge(0)

    def asks(self) -> int:
        return self.epoch if self.running and self.exchange is not None else 0


class AskingSession(SlaveSession):
    """Asks a node of the set whether it is a master, and of which epoch; nothing is copied."""

    def _meet_stranger(self, why: str) -> None:
        self.end()  # nobody to follow

    def hello(self) -> ha.Hello:
        told = SlaveSession.hello(self)
        return told._replace(begin=0, written=0, flushed=0, safe=0, about={**told.about, "asks": True})

    def _accepted(self, head: Head, data: bytes) -> None:
        told = ha.read_accept(data, head.entries)
        node = str(told.about.get("node", ""))
        if head.epoch > self.front.replica.epoch and told.set_id == self.front.replica.set_id:
            self.front.hear_of(node, peers_of(told.about).get(node, ""), head.epoch)
        elif head.epoch == self.front.replica.epoch and newest(checked(told.epochs)) != newest(
            self.front.replica.epochs
        ):
            log.error("two masters of epoch %d: %s and this node. Stop one, and compare the logs (penstock store diff)",
                      head.epoch, node)  # fmt: skip
        self.end()

    def frame(self, head: Head, owner: bytearray) -> None:
        self.unanswered = False
        if head.kind == hawords.REFUSE:  # a slave, like us, or behind us
            self.end()
        else:
            SlaveSession.frame(self, head, owner)
