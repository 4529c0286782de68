"""Replication: the log of a master, byte for byte, at its slaves; the frames are in `wire.ha`.

    master:  end of a turn ─▶ settle the in-sync set ─▶ one DATA or more for each slave ─▶ release what ACKs allow

`MasterSession` is a slave that has connected to us; our own connection to a master is in `haslave`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping

import cython

from penstock.broker.broker import Broker
from penstock.broker.copies import Member
from penstock.broker.mastership import Mastership
from penstock.broker.mirrors import Sender
from penstock.broker.nsq.mirror import ChannelNews
from penstock.broker.replica import NAMED, NO_SET, Replica, said
from penstock.broker.taking import Tables, ends_untold, last_records, secret_of, sums_of
from penstock.broker.term import Favours, Term
from penstock.errors import StoreError, WireError
from penstock.faults import Told
from penstock.fronts.bare import BEAT_MS as BARE_BEAT_MS
from penstock.fronts.bare import SILENT_MS as BARE_SILENT_MS
from penstock.fronts.bare import RocketmqMaster, RocketmqSlave, Stumbles, admitted
from penstock.fronts.front import no_beginning
from penstock.fronts.hasession import BEAT_MS, LAST_BYTES, PACE_MS, HaSession
from penstock.fronts.haslave import AskingSession, SlaveSession
from penstock.log import epochs
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.follow import Feeder
from penstock.log.repair import Repairs
from penstock.version import __version__
from penstock.wire import fastjson, ha
from penstock.wire.fastjson import JsonObject

if cython.compiled:
    from cython.cimports.penstock.log import status
    from cython.cimports.penstock.wire import hawords
    from cython.cimports.penstock.wire.haframe import Ack, Head, Positions, data_head, read_ack
else:
    from penstock.log import status
    from penstock.wire import hawords
    from penstock.wire.haframe import Ack, Head, Positions, data_head, read_ack

log = logging.getLogger("penstock.ha")

BLOCK_BYTES = 232 << 10  # of records in one DATA: with its sums it fits a read
GATHER_BYTES = 128 << 10  # leaves at once while somebody waits for copies
AHEAD_BYTES = 6 << 10  # and so much, for each frame under way, before its ACK
WINDOW_BYTES = 4 << 20  # sent and not acknowledged
TURN_BYTES = 1 << 20  # to one slave in one turn
ID_MAX = (1 << 31) - 1  # of a broker, that a slave may wish for
KEEPS_NOT = "its version keeps no staged rows, and perhaps no channels: update it"


class MasterSession(HaSession):
    """A slave of ours."""

    def __init__(self, front: HaFront, remote: str, wake: Callable[[], None]) -> None:
        HaSession.__init__(self, front, remote, wake)
        self.front = front
        self.member: Member | None = None
        self.peer: dict[str, str] = {}  # where slaves connect to it, once it is the master
        self.who = b"", ""  # its store, and where clients find it
        self._level = logging.ERROR
        self._about: JsonObject = {}
        self.feeder: Feeder | None = None
        self.tables = Tables(front.broker)
        self.sender: Sender | None = None  # of staged rows, to a slave that keeps them
        self.channels = ChannelNews(front.broker.queueing.registry, self.store)
        self._cut_to = -1  # so far is its log ours
        self._unacknowledged: list[int] = []  # where the frames under way end
        self._told = -1
        self._said_in_sync = False
        self._hurried = False
        self._sent_ms = -PACE_MS
        self.bare: RocketmqSlave | None = None  # it speaks RocketMQ's protocol

    def feed(self, owner: bytearray, total: int) -> int:
        if self.bare is None:
            if self._opened or total < ha.REPORT_BYTES or not ha.is_bare(owner):
                return HaSession.feed(self, owner, total)
            if not admitted(self.broker.config, self.remote):
                raise WireError("RocketMQ's bare protocol is served to the addresses of ha_rocketmq, and this is none")
            self.beat_ms, self.silent_ms = BARE_BEAT_MS, BARE_SILENT_MS
            self.bare = RocketmqSlave(self.store, self.front.replica, self.copies, self.remote)
        self.heard_ms = self.time.mono_ms
        return self.bare.hear(owner, total)

    def _open(self, owner: bytearray, total: int) -> int:
        if total < len(ha.OPENER):
            self.need = len(ha.OPENER)
            return 0
        ha.check_opener(bytes(owner[: len(ha.OPENER)]))
        self.say(ha.greeting(self.nonce, bool(self.front.secret)))
        return len(ha.OPENER)

    def frame(self, head: Head, owner: bytearray) -> None:
        if head.kind == hawords.HELLO and self.member is None:
            self._hello(ha.read_hello(self._proved(head, owner), head.entries))
        elif head.kind == hawords.START and self.member is not None and self.feeder is None:
            self._start(ha.read_start(self.body(head, owner)))
        elif head.kind == hawords.ACK and self.member is not None and self.feeder is not None:
            self._acknowledged(head, read_ack(owner, head.fixed))
        elif head.kind == hawords.YES and self.member is not None and head.epoch == self.front.replica.epoch:
            self.front.favours.hear(self.member.node, *ha.read_favour(self.body(head, owner)))
        elif head.kind == hawords.TAKEN and self.member is self.front.mastership.heir is not None:
            self.front.mastership.taken()
        elif head.kind == hawords.SPOOLED and self.sender is not None and head.epoch == self.front.replica.epoch:
            self.sender.heard(ha.read_spooled(head, self.body(head, owner)), self.time.mono_ms)
        elif self.feeder is not None and self.exchanged(head, owner, self.front.replica.epoch):
            return
        else:
            raise WireError(f"a frame of type {head.kind:#x} at this moment")

    def _proved(self, head: Head, owner: bytearray) -> bytes:
        data = self.body(head, owner)
        if not ha.proves(data, self.front.secret, b"slave", self.nonce):
            raise WireError("the slave does not know the secret of this replica set")
        self.trusted = True
        return data

    def _refuse(self, reason: int, text: str, master: str = "") -> None:
        # After each failover some ask a slave: that is no error.
        level = min(self._level, logging.INFO) if reason == ha.NOT_MASTER else self._level
        if self.front.told.is_news(f"{level} {self.remote.rpartition(':')[0]} {text}", self.time.mono_ms):
            log.log(level, "slave refused peer=%s code=%d reason=%s", self.remote, reason, text)
        self.say(ha.refuse(self.front.replica.epoch, reason, text, master))
        self.end()

    def _hello(self, told: ha.Hello) -> None:
        replica, store = self.front.replica, self.store
        node, address = said(told.about, "node"), said(told.about, "remoting")
        self._level = logging.DEBUG if told.about.get("asks") else logging.ERROR
        begin, end = store.min_position, store.end_position
        empty = told.written == told.begin == 0
        shared = epochs.common(replica.epochs, told.epochs)
        # Until the heir leads, nobody else says who the master is.
        giving = self.front.mastership.heir is not None and told.about.get("asks")
        if store.following and not giving:
            self.front.meet(told.nonce)
            return self._refuse(ha.NOT_MASTER, "this broker is a slave itself", self.front.followed_at)
        if told.set_id not in (NO_SET, replica.set_id) or (not empty and not shared):
            return self._refuse(ha.WRONG_SET, "its log is of another replica set: give it an empty folder")
        if not node:
            return self._refuse(ha.WRONG_SET, f"its name is none that a node can have: set `node` ({NAMED})")
        if node == replica.node:
            return self._refuse(ha.WRONG_SET, f"it calls itself {node!r}, as the master does: set `node`")
        if not told.about.get("asks") and self.front.has_other(node, (told.store_id, address)):
            return self._refuse(ha.WRONG_SET, f"another slave, which is connected, calls itself {node!r}: set `node`")
        if told.segment_size != store.log.file.size:
            text = f"its mapped_file_size_commit_log is {told.segment_size}, the master's {store.log.file.size}"
            return self._refuse(ha.WRONG_SEGMENTS, text)
        if told.epoch > replica.epoch:
            return self._refuse(ha.NEWER_EPOCH, f"it has followed a master of epoch {told.epoch}")
        if not empty and told.written < begin:
            return self._refuse(ha.BEHIND, f"its log ends at {told.written}, the master's begins at {begin}")
        last = epochs.newest(epochs.held(told.epochs, told.written))
        if last is not None and last not in replica.epochs and last.number >= replica.epoch:
            text = f"both logs are of epoch {last.number}, of two masters: compare them (penstock store diff)"
            return self._refuse(ha.DIVERGED, text)
        cut_to = begin if empty else epochs.shared_end(replica.epochs, end, told.epochs, told.written)
        if cut_to < begin:
            return self._refuse(
                ha.BEHIND, f"its log is the master's up to {cut_to}, and the master's begins at {begin}"
            )
        self.peer = {node: said(told.about, "ha")}
        self.member = Member(
            node, self._number(node, told), address or self.remote, takes=bool(self.peer[node]), loss=told.loss,
            keeps_not="" if told.about.get("spools") is True else KEEPS_NOT,
        )  # fmt: skip
        self._about, self.who, self._cut_to = told.about, (told.store_id, address), cut_to
        size, told_sum = last_records(store, cut_to, LAST_BYTES)
        about: JsonObject = {
            "masterAddr": self.front.address, "node": replica.node, "version": __version__,
            "brokerId": self.member.broker_id, "peers": {**replica.peers, replica.node: self.front.ha_address},
            "repairs": True, "blockSums": sums_of(store, cut_to, size),
        }  # fmt: skip
        leads = epochs.newest(replica.epochs)
        assert leads is not None
        answer = ha.Accept(replica.set_id, leads.tag, cut_to, begin, end, told_sum, size, replica.epochs, about)
        self.say(ha.accept(answer, replica.epoch, self.front.secret, told.nonce))

    def _number(self, node: str, told: ha.Hello) -> int:
        """The id that this slave is to have: its own unless another one has it."""
        taken = {member.broker_id for member in self.copies.members.values() if member.node != node} | {0}
        wanted = told.about.get("brokerId", 0)
        if isinstance(wanted, int) and 0 < wanted <= ID_MAX and wanted not in taken:
            return wanted
        return next(n for n in range(1, len(taken) + 1) if n not in taken)

    def _start(self, position: int) -> None:
        store, member = self.store, self.member
        assert member is not None
        if position != self._cut_to or position < store.min_position:
            raise WireError(f"a slave that wants to begin at {position}, and shares the log up to {self._cut_to}")
        self.front.replica.note_peers(self.peer)
        self.front.replica.note_slave()  # before anything is acknowledged that only both have
        self.feeder = Feeder(store, position)
        self.copies.enter(member)
        self._say_meta(self.front.replica.epoch, ha.ENDS, fastjson.dumps({"ends": ends_untold(store, position)}))
        self.exchange_with(self._about)
        if self._about.get("spools") is True:
            self.sender = self.broker.staging.mirrors.follow(member.node, self.sayer())
        if self._about.get("changes") is True:
            self.tables.tell_changes()
            self.channels.tell_changes()
        if self._about.get("parts") is True:
            self.tables.tell_parts()
        # One that can copy nothing comes again and again, and so does one whose way here is bad.
        if self.front.told.is_news(f"{member.node} follows", self.time.mono_ms):
            log.info("slave follows node=%s peer=%s position=%d behind=%d", member.node, self.remote, position,
                     store.end_position - position)  # fmt: skip
        if member.keeps_not:
            log.warning("slave is too old node=%s version=%s reason=%s", member.node, self._about.get("version", ""),
                        member.keeps_not)  # fmt: skip

    def _acknowledged(self, head: Head, told: Ack) -> None:
        member, feeder = self.member, self.feeder
        assert member is not None
        assert feeder is not None
        if head.epoch != self.front.replica.epoch or not 0 <= told.flushed <= told.written <= feeder.position:
            raise WireError(f"a slave that acknowledges {told.written} of {feeder.position}")
        end = self.store.log.settled_end()
        flushed = member.flushed if head.flags & hawords.FLUSH_FAILED else told.flushed
        member.heard(told.written, flushed, end, self.time.mono_ms)
        member.tell(told.dispatched, told.free)
        while self._unacknowledged and self._unacknowledged[0] <= told.written:
            del self._unacknowledged[0]

    # -- what it gets ------------------------------------------------------------------------------------------------

    def _positions(self, position: int) -> Positions:
        copies, log_ = self.copies, self.store.log
        return Positions(position, log_.end, copies.confirmed, copies.confirmed_flushed, log_.file.first)

    def fresh(self) -> bool:
        if self.feeder is None:
            return False
        return self.channels.fresh or self.tables.fresh or (self.sender is not None and self.sender.fresh)

    def end_turn(self, mono_ms: int) -> None:
        feeder, member = self.feeder, self.member
        if self.bare is not None and not self.closing:
            if self.bare.overtaken:
                self.end()
            elif piece := self.bare.next():
                self.say(piece)
        if feeder is None or member is None or self.closing:
            return
        epoch, told, end = self.front.replica.epoch, self.copies.confirmed, self.store.log.end
        heir = self.front.mastership.heir is member
        if heir or self.tables.due(mono_ms) or self.channels.due(mono_ms):
            self._say_news(epoch, feeder.position, mono_ms, heir)
        if self.sender is not None:
            self.sender.turn(epoch, mono_ms, end)
            member.note_staged(self.sender.lacks, self.sender.failed)
        if not heir:
            self._hurried = False
        elif feeder.position == end and not self._hurried:
            self._hurried = True
            self.beat(hawords.FLUSH_NOW)  # the place is its own when it has flushed all
        if feeder.position < end:
            self._send(feeder, member, epoch, end, mono_ms)
        elif (told > self._told and member.written >= end) or member.in_sync != self._said_in_sync:
            if mono_ms - self._sent_ms >= PACE_MS:
                self._sent_ms = mono_ms
                self.beat()  # readers of the slave wait for it
            else:
                self.copies.look_at(self._sent_ms + PACE_MS)

    def _say_news(self, epoch: int, sent: int, mono_ms: int, heir: bool) -> None:
        """What does not stand in the log: tables, channels and their places, offsets."""
        for kind, body in self.tables.news():
            self._say_meta(epoch, kind, body)
        for kind, body in self.channels.news(mono_ms, sent, heir):
            self._say_meta(epoch, kind, body)
        for body in self.tables.offsets(mono_ms, sent, heir):
            self._say_meta(epoch, ha.OFFSETS, body)

    def _say_meta(self, epoch: int, kind: int, body: bytes) -> None:
        """Unless it is too long for a frame: a slave would hang up on that, and not know why."""
        if len(body) <= ha.META_BYTES_MAX:
            self.say(ha.meta(epoch, kind, 0, body))
            return
        assert self.member is not None
        if self.front.told.is_news(f"{self.member.node} {kind}", self.time.mono_ms):
            log.error("slave not served node=%s error=what it is to be told of tables (kind %d) has %d bytes, a frame takes %d",
                      self.member.node, kind, len(body), ha.META_BYTES_MAX)  # fmt: skip
        self.end()

    def _gather(self, pending: int, mono_ms: int) -> bool:
        """Whether to wait for more before a frame is made. Each frame costs both sides a turn, and the master another for its
        ACK. So what somebody waits for goes with the ACK of the frame before, or as soon as AHEAD_BYTES have come for each frame
        under way, for then the slave would be idle. Where it flushes each frame the ACK is always waited for. The rest goes at
        a pace.
        """
        copies = self.copies
        if pending >= (GATHER_BYTES if copies.waiting.line else BLOCK_BYTES):
            return False
        if copies.waiting_flushed.line:
            return len(self._unacknowledged) > 0
        if copies.waiting.line:
            return pending < AHEAD_BYTES * len(self._unacknowledged)
        if mono_ms - self._sent_ms >= PACE_MS:
            return False
        copies.look_at(self._sent_ms + PACE_MS)
        return True

    def _urgency(self) -> int:
        """What a slave is to do with the records of this turn: flush them at once, acknowledge them at once, or when it suits."""
        copies = self.copies
        if copies.waiting_flushed.line:
            return hawords.FLUSH_NOW
        return 0 if copies.waiting.line or self.front.mastership.heir is not None else hawords.NO_HURRY

    def _send(self, feeder: Feeder, member: Member, epoch: int, end: int, mono_ms: int) -> None:
        sent = 0
        under_way = self._unacknowledged
        while feeder.position < end and sent < TURN_BYTES and feeder.position - member.written < WINDOW_BYTES:
            if self._gather(end - feeder.position, mono_ms):
                return
            self._sent_ms = mono_ms
            try:
                if not feeder.next(BLOCK_BYTES):
                    return
            except StoreError as error:
                log.error("slave not served node=%s error=%s", member.node, error)
                self.end()
                return
            flags = self._urgency()
            flags |= (hawords.LAST if feeder.last else 0) | (hawords.DAMAGED if feeder.damaged else 0) | self._in_sync()
            positions = self._positions(feeder.begin)
            sums, records = feeder.parts()
            self.say(data_head(epoch, positions, feeder.count, feeder.size, flags))
            self.say(sums)
            self.say(records)
            self._told = positions.confirmed
            under_way.append(feeder.position)
            sent += feeder.size

    def beat(self, flags: int = 0) -> None:
        if self.bare is not None:
            self.say(self.bare.beat())
        elif self.feeder is not None:
            positions = self._positions(self.feeder.position)
            self._told = positions.confirmed
            flags |= self._in_sync()
            self.say(ha.beat(self.front.replica.epoch, positions, self.broker.now_ms, flags=flags))

    def _in_sync(self) -> int:
        self._said_in_sync = self.member is not None and self.member.in_sync
        return hawords.IN_SYNC if self._said_in_sync else 0

    def asks(self) -> int:
        member = self.member
        return self.front.replica.epoch if member is not None and member.in_sync and self.exchange is not None else 0

    def lost(self) -> None:
        if self.member is not None:
            self.copies.leave(self.member)
            if self.sender is not None:
                self.broker.staging.mirrors.leave(self.member.node, self.sender)
        if self.bare is not None:
            self.bare.lost()
        HaSession.lost(self)


class HaFront:
    """All connections of replication of one broker; `link` is woken when the registry names another master."""

    def __init__(
        self, broker: Broker, replica: Replica, address: str, ha_address: str, again: Callable[[str], None]
    ) -> None:
        self.name = "ha"
        self.rejected: Mapping[bytes, int] = {}
        self.ends_turns = True
        self.broker = broker
        self.copies = broker.copies
        self.store = broker.store
        self.time = broker.time
        self._copied = broker.queueing.copied
        self._mirrors = broker.staging.mirrors
        self.replica = replica
        self.address = address  # of the RocketMQ listener: what clients are told
        self.ha_address = ha_address  # where slaves connect; empty: nowhere
        self.mastership = Mastership(broker.core, replica, again, lambda: broker.staging.unfinished_at)
        self.followed_at = ""  # of a slave: where slaves connect to the master it follows now
        self.newer: tuple[str, str, int] | None = None  # a master of a newer epoch: node, address, epoch
        self.secret = secret_of(broker.config)
        self.sessions: set[HaSession] = set()
        self.free_bytes = 0
        self.copying = status.OK  # a code of `log.status`
        self.refused = ""  # why its master has not let it follow; empty: it has, or was not asked
        self._due_ms = 0
        self._worked_ms, self._worked_to = (
            -PACE_MS,
            0,
        )  # the last turn that looked at the slaves; where the log ended then
        self._known: dict[str, int] | None = None  # the set in the engine, as it was then
        self._again = again
        if broker.repairs is not None:
            replica.tell_of_damage(broker.repairs.says)
        self.favours = Favours()
        self.stumbles = Stumbles()
        self.told = Told()
        self._swings, self._unsaid = Told(), False
        self._term: Term | None = None
        self._abort = self._broken = no_beginning
        self._sound = True
        self._renumbered = no_beginning

    def session(self, remote: str, wake: Callable[[], None]) -> HaSession:
        """A slave connects."""
        return self._keep(MasterSession(self, remote, wake))

    def to_master(self, remote: str, wake: Callable[[], None]) -> HaSession:
        """We connect to the master."""
        return self._keep(SlaveSession(self, remote, wake))

    def to_rocketmq(self, remote: str, wake: Callable[[], None]) -> HaSession:
        """We connect to a RocketMQ master."""
        return self._keep(RocketmqMaster(self, remote, wake))

    def to_ask(self, remote: str, wake: Callable[[], None]) -> HaSession:
        """We ask a node whether it is a newer master."""
        return self._keep(AskingSession(self, remote, wake))

    def when_renumbered(self, call: Callable[[], None]) -> None:
        """`call` when the master has given this slave another id: registries know it by that."""
        self._renumbered = call

    def note_copying(self, outcome: int) -> bool:
        """How this slave fared with what it was to copy; whether to write it down. It comes again twice a second and fails again,
        or lets something through now and then: either is said once a minute, and what is so at last is said in the end.
        """
        if outcome != self.copying:
            self.copying = outcome
            self._unsaid = True
        if self._unsaid and self._swings.is_news(f"copying {outcome}", self.time.mono_ms):
            self._unsaid = False
            return True
        return False

    def follow_at(self, address: str) -> None:
        """This slave follows the master there."""
        self.followed_at = address

    def hear_of(self, node: str, address: str, epoch: int) -> None:
        """There is a master of a newer epoch."""
        if self.newer is None or epoch > self.newer[2]:
            self.newer = node, address, epoch

    def lead_for(self, term: Term, abort: Callable[[], None], broken: Callable[[], None] = no_beginning) -> None:
        """This node is the master for a term. `abort`: close every connection, whatever was about to be written to it. `broken`:
        its log cannot be flushed any more.
        """
        self._term, self._abort, self._broken = term, abort, broken

    @property
    def begin_turn(self) -> Callable[[], None]:
        """Called first in each turn."""
        return self._look_at_term

    def _look_at_term(self) -> None:
        term = self._term
        if term is not None and self.time.mono_ms >= term.until_ms:
            self.fence(term.over or "the engine was not heard of for as long as the lease goes")

    def fence(self, why: str) -> None:
        """Be the master no more, from this moment on: nothing is appended, and no answer goes out, good or bad."""
        term, self._term = self._term, None
        if term is None:
            return
        term.end(why)
        self.store.follow(True)
        self.copies.lead(False)
        self._abort()
        log.error("fenced node=%s epoch=%d reason=%s", self.replica.node, self.replica.epoch, why)
        self._again(f"fenced: {why}")

    def keep_promises(self, favours: Favours) -> None:
        """What was promised, and is asked for, by this process; it may have been another server when it did."""
        self.favours = favours

    def ask_members(self, nodes: Collection[str], number: int, for_ms: int) -> None:
        """Ask these slaves whether this node may go on as the master for so long, though the engine does not answer."""
        for session in self.sessions:
            if isinstance(session, MasterSession) and session.member is not None and session.member.node in nodes:
                session.say(ha.may_i(self.replica.epoch, number, for_ms))

    def retire(self) -> None:
        """The place of the master is given away: nothing is confirmed any more."""
        self._term = None
        self.store.follow(True)
        self.copies.lead(False)

    def leave_master(self) -> None:
        """Take nothing more from the master that is followed."""
        for session in self.sessions:
            if isinstance(session, SlaveSession | RocketmqMaster):
                session.end()

    def renumber(self, about: JsonObject) -> None:
        """The master says which id this slave has."""
        number = about.get("brokerId")
        if isinstance(number, int) and 0 < number <= ID_MAX and number != self.broker.config.broker_id:
            log.warning("the id of this slave is changed from=%d to=%d", self.broker.config.broker_id, number)
            self.broker.core.change({"broker_id": number})
            self.copies.renumber(number)
            self._renumbered()

    def meet(self, nonce: bytes) -> None:
        """Whoever says this is told that this node is a slave: it may be this node itself, by another name of its own port."""
        for session in self.sessions:
            if isinstance(session, SlaveSession) and session.nonce == nonce:
                session.meet_itself()

    def has_other(self, node: str, who: tuple[bytes, str]) -> bool:
        """Whether a slave of this name follows that is another one: two machines with one host name, or a folder and its copy.
        One that has said nothing for so long that it is not in sync is away: this may be that one, at another address.
        """
        return any(
            isinstance(session, MasterSession) and session.feeder is not None and not session.closing
            and session.peer.keys() == {node} and session.who != who
            and self.time.mono_ms - session.heard_ms <= self.broker.config.ha_in_sync_ms
            for session in self.sessions
        )  # fmt: skip

    def _keep(self, session: HaSession) -> HaSession:
        self.sessions.add(session)
        return session

    def gone(self, session: HaSession) -> None:
        """Its connection is."""
        self.sessions.discard(session)

    def end_turn(self, news: list[ConsumeQueue]) -> None:
        """Say what is new, and let the answers go that waited for it."""
        if self._term is not None and self.time.clock.monotonic_ms() >= self._term.until_ms:
            self.fence("this turn stood still for longer than the lease goes")
            return
        store, copies = self.store, self.copies
        if self._sound and not store.healthy:
            self._sound = False
            self._broken()
        if not self.sessions and not copies.ever:
            return
        self._copied.seal()
        mono_ms = self.time.mono_ms
        if self._rests(mono_ms):
            copies.look_at(self._worked_ms + PACE_MS)
            return
        self._worked_ms, self._worked_to = mono_ms, store.log.end
        self._known = copies.roll.known if copies.roll is not None else None
        copies.rest()
        copies.settle(mono_ms)
        if self.broker.repairs is not None:
            self._repair(self.broker.repairs, mono_ms)
        self._mirrors.settle()
        mastership = self.mastership
        heir = mastership.heir if mastership.heir is not None and mastership.step() else None
        for session in list(self.sessions):
            session.end_turn(mono_ms)
            if heir is not None and isinstance(session, MasterSession) and session.member is heir:
                session.say(ha.take(self.replica.epoch, store.log.end))
        copies.release()

    def _rests(self, mono_ms: int) -> bool:
        """Whether a master can leave all this to a turn a little later: nobody waits for slaves, none was heard in this turn, and
        there is nothing for them but less than a block of records.
        """
        copies = self.copies
        if (
            copies.following
            or mono_ms >= self._worked_ms + PACE_MS
            or self.store.log.end - self._worked_to >= BLOCK_BYTES
        ):
            return False
        if copies.waiting.line or copies.waiting_flushed.line or self.mastership.heir is not None:
            return False
        if copies.roll is not None and copies.roll.known is not self._known:
            return False  # the engine has another set now
        for session in self.sessions:  # noqa: SIM110 asked in every turn: a generator costs more
            if session.heard_ms == mono_ms or session.closing or session.fresh():
                return False
        return True

    def _repair(self, repairs: Repairs, mono_ms: int) -> None:
        """Ask for records that do not hold here."""
        able = 0
        for session in self.sessions:
            exchange = session.exchange
            if exchange is None or session.closing:
                continue
            epoch = session.asks()
            if not epoch:
                continue
            able += 1
            if repairs.wanted or exchange.busy:
                exchange.turn(epoch, mono_ms, self.store.log.settled_end())
        repairs.meet(able)
        if repairs.wanted and able:
            self.copies.look_at(mono_ms + PACE_MS)

    def tick(self) -> int | None:
        """Beats, and what is silent; a slave notes how far it may show its log."""
        mono_ms = self.time.mono_ms
        if self.broker.repairs is not None:
            self.broker.repairs.tick(mono_ms)
        if not self.sessions:
            return self._term.until_ms if self._term is not None else None
        if mono_ms >= self._due_ms:
            self._due_ms = mono_ms + BEAT_MS
            self._look_at_disk()
            for session in list(self.sessions):
                session.look(mono_ms)
        return self._due_ms

    def _look_at_disk(self) -> None:
        """How much room there is, and note what is confirmed. A disk that does not let us is no reason to fall silent: a slave
        would go, or be taken out of the set, that has all there is.
        """
        broker = self.broker
        with contextlib.suppress(StoreError):
            if broker.copies.following:
                used, size = broker.files.usage(broker.folder)
                self.free_bytes = size - used
        self.note_confirmed()

    def note_confirmed(self) -> None:
        """Let the next start know how far readers may be shown the log while there is no master."""
        try:
            self.replica.keep_confirmed(self.copies.confirmed)
        except StoreError as error:
            if self.told.is_news("confirmed", self.time.mono_ms):
                log.error("not noted what is confirmed, tried again error=%s", error)
