"""Replication: the log of a master, byte for byte, at its slaves; the frames are in `wire.ha`.

    master:  end of a turn ─▶ settle the in-sync set ─▶ one DATA or more for each slave ─▶ release what ACKs allow
    slave:   DATA ─▶ every sum is checked ─▶ `log.follow` ─▶ end of the turn: one ACK

`MasterSession` is a slave that has connected to us, `SlaveSession` our own connection to a master.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from penstock.broker.broker import Broker
from penstock.broker.copies import Member
from penstock.broker.mastership import Mastership
from penstock.broker.nsq.mirror import ChannelNews
from penstock.broker.replica import NO_SET, Replica
from penstock.broker.taking import Tables, Taking, checked, last_records, peers_of, secret_of
from penstock.broker.term import Favours, Term
from penstock.errors import Refused, StoreError, WireError
from penstock.fronts.bare import RocketmqMaster, RocketmqSlave, admitted
from penstock.fronts.front import Front, no_beginning
from penstock.fronts.hasession import BEAT_MS, HaSession
from penstock.log import epochs, status
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.follow import Feeder, Follower
from penstock.version import __version__
from penstock.wire import ha
from penstock.wire.fastjson import JsonObject

log = logging.getLogger("penstock.ha")

BLOCK_BYTES = 128 << 10  # of records in one DATA: with its sums it fits a read
WINDOW_BYTES = 4 << 20  # sent and not acknowledged
TURN_BYTES = 1 << 20  # to one slave in one turn
PACE_MS = 5  # while nobody waits for the copy, less than a block waits so long for more
LAST_BYTES = 4 << 10  # of records that both sides compare before anything is sent
OFFSETS_MS = 1_000


class MasterSession(HaSession):
    """A slave of ours."""

    def __init__(self, front: HaFront, remote: str, wake: Callable[[], None]) -> None:
        super().__init__(front, remote, wake)
        self.front = front
        self.member: Member | None = None
        self.peer: dict[str, str] = {}  # where slaves connect to it, once it is the master
        self._level = logging.ERROR
        self.feeder: Feeder | None = None
        self.tables = Tables(front.broker)
        self.channels = ChannelNews(front.broker.queueing.registry, self.store)
        self._unacknowledged: list[int] = []  # where the frames under way end
        self._told = -1
        self._said_in_sync = False
        self._hurried = False
        self._sent_ms = -PACE_MS
        self._offsets_ms = 0
        self.bare: RocketmqSlave | None = None  # it speaks RocketMQ's protocol

    def feed(self, owner: bytearray, total: int) -> int:
        if self.bare is None:
            if self._opened or total < ha.REPORT_BYTES or not ha.is_bare(owner):
                return super().feed(owner, total)
            if not admitted(self.broker.config, self.remote):
                raise WireError("RocketMQ's bare protocol is served to the addresses of ha_rocketmq, and this is none")
            self.beat_ms, self.silent_ms = RocketmqMaster.beat_ms, RocketmqMaster.silent_ms
            self.bare = RocketmqSlave(self.store, self.front.replica, self.broker.copies, self.remote)
        self.heard_ms = self.broker.mono_ms
        return self.bare.hear(owner, total)

    def _open(self, owner: bytearray, total: int) -> int:
        if total < len(ha.OPENER):
            self.need = len(ha.OPENER)
            return 0
        ha.check_opener(bytes(owner[: len(ha.OPENER)]))
        self.say(ha.greeting(self.nonce, bool(self.front.secret)))
        return len(ha.OPENER)

    def frame(self, head: ha.Head, owner: bytearray) -> None:
        if head.kind == ha.HELLO and self.member is None:
            self._hello(ha.read_hello(self._proved(head, owner), head.entries))
        elif head.kind == ha.START and self.member is not None and self.feeder is None:
            self._start(ha.read_start(self.body(head, owner)))
        elif head.kind == ha.ACK and self.member is not None and self.feeder is not None:
            self._acknowledged(head, ha.read_ack(owner, head.fixed))
        elif head.kind == ha.YES and self.member is not None and head.epoch == self.front.replica.epoch:
            self.front.favours.hear(self.member.node, *ha.read_favour(self.body(head, owner)))
        elif head.kind == ha.TAKEN and self.member is self.front.mastership.heir is not None:
            self.front.mastership.taken()
        else:
            raise WireError(f"a frame of type {head.kind:#x} at this moment")

    def _proved(self, head: ha.Head, owner: bytearray) -> bytes:
        data = self.body(head, owner)
        if not ha.proves(data, self.front.secret, b"slave", self.nonce):
            raise WireError("the slave does not know the secret of this replica set")
        self.trusted = True
        return data

    def _refuse(self, reason: int, text: str, master: str = "") -> None:
        log.log(self._level, "slave refused peer=%s reason=%d %s", self.remote, reason, text)
        self.say(ha.refuse(self.front.replica.epoch, reason, text, master))
        self.end()

    def _hello(self, told: ha.Hello) -> None:
        replica, store = self.front.replica, self.store
        node, address = str(told.about.get("node", "")), str(told.about.get("remoting", ""))
        self._level = logging.DEBUG if told.about.get("asks") else logging.ERROR
        begin, end = store.min_position, store.end_position
        empty = told.written == told.begin == 0
        shared = epochs.common(replica.epochs, told.epochs)
        if store.following:
            return self._refuse(ha.NOT_MASTER, "this broker is a slave itself", self.front.followed_at)
        if told.set_id not in (NO_SET, replica.set_id) or (not empty and not shared):
            return self._refuse(ha.WRONG_SET, "its log is of another replica set: give it an empty folder")
        if node == replica.node or not node:
            return self._refuse(ha.WRONG_SET, f"it calls itself {node!r}, as the master does: set `node`")
        if told.segment_size != store.log.file.size:
            text = f"its mapped_file_size_commit_log is {told.segment_size}, the master's {store.log.file.size}"
            return self._refuse(ha.WRONG_SEGMENTS, text)
        if told.epoch > replica.epoch:
            return self._refuse(ha.NEWER_EPOCH, f"it has followed a master of epoch {told.epoch}")
        if not empty and told.written < begin:
            return self._refuse(ha.BEHIND, f"its log ends at {told.written}, the master's begins at {begin}")
        newest = epochs.held(told.epochs, told.written)[-1:]
        if newest and newest[0] not in replica.epochs and newest[0].number >= replica.epoch:
            text = f"both logs are of epoch {newest[0].number}, of two masters: compare them (penstock store diff)"
            return self._refuse(ha.DIVERGED, text)
        cut_to = begin if empty else epochs.shared_end(replica.epochs, end, told.epochs, told.written)
        if cut_to < begin:
            return self._refuse(
                ha.BEHIND, f"its log is the master's up to {cut_to}, and the master's begins at {begin}"
            )
        self.peer = {node: str(told.about.get("ha", ""))}
        self.member = Member(
            node, self._number(node, told), address or self.remote, takes=bool(self.peer[node]), loss=told.loss
        )
        size, told_sum = last_records(store, cut_to, LAST_BYTES)
        about: JsonObject = {
            "masterAddr": self.front.address, "node": replica.node, "version": __version__,
            "brokerId": self.member.broker_id, "peers": {**replica.peers, replica.node: self.front.ha_address},
        }  # fmt: skip
        answer = ha.Accept(
            replica.set_id, replica.epochs[-1].tag, cut_to, begin, end, told_sum, size, replica.epochs, about
        )
        self.say(ha.accept(answer, replica.epoch, self.front.secret, told.nonce))

    def _number(self, node: str, told: ha.Hello) -> int:
        """The id that this slave is to have: its own unless another one has it."""
        taken = {member.broker_id for member in self.broker.copies.members.values() if member.node != node} | {0}
        wanted = told.about.get("brokerId", 0)
        if isinstance(wanted, int) and wanted not in taken:
            return wanted
        return next(n for n in range(1, len(taken) + 1) if n not in taken)

    def _start(self, position: int) -> None:
        store, member = self.store, self.member
        assert member is not None
        if not store.min_position <= position <= store.end_position:
            raise WireError(f"a slave that wants to begin at {position}")
        self.front.replica.note_peers(self.peer)
        self.front.replica.note_slave()  # before anything is acknowledged that only both have
        self.feeder = Feeder(store, position)
        self.broker.copies.enter(member)
        log.info("slave follows node=%s peer=%s position=%d behind=%d", member.node, self.remote, position,
                 store.end_position - position)  # fmt: skip

    def _acknowledged(self, head: ha.Head, told: ha.Ack) -> None:
        member, feeder = self.member, self.feeder
        assert member is not None
        assert feeder is not None
        if head.epoch != self.front.replica.epoch or not 0 <= told.flushed <= told.written <= feeder.position:
            raise WireError(f"a slave that acknowledges {told.written} of {feeder.position}")
        end = self.store.log.settled_end()
        flushed = member.flushed if head.flags & ha.FLUSH_FAILED else told.flushed
        member.heard(told.written, flushed, end, self.broker.mono_ms)
        member.tell(told.dispatched, told.free)
        while self._unacknowledged and self._unacknowledged[0] <= told.written:
            del self._unacknowledged[0]

    # -- what it gets ------------------------------------------------------------------------------------------------

    def _positions(self, position: int) -> ha.Positions:
        copies = self.broker.copies
        written = self.store.end_position
        return ha.Positions(position, written, copies.confirmed, copies.confirmed_flushed, self.store.min_position)

    def end_turn(self, mono_ms: int) -> None:
        feeder, member = self.feeder, self.member
        if self.bare is not None and not self.closing:
            if self.bare.overtaken:
                self.end()
            elif piece := self.bare.next():
                self.say(piece)
        if feeder is None or member is None or self.closing:
            return
        epoch, told, end = self.front.replica.epoch, self.broker.copies.confirmed, self.store.end_position
        for body in self.tables.news():
            self.say(ha.meta(epoch, ha.TABLES, 0, body))
        heir = self.front.mastership.heir is member
        for kind, body in self.channels.news(mono_ms, feeder.position, heir):
            self.say(ha.meta(epoch, kind, 0, body))
        if mono_ms >= self._offsets_ms:
            self._offsets_ms = mono_ms + OFFSETS_MS
            for body in self.tables.offsets():
                self.say(ha.meta(epoch, ha.OFFSETS, 0, body))
        if not heir:
            self._hurried = False
        elif feeder.position == end and not self._hurried:
            self._hurried = True
            self.beat(ha.FLUSH_NOW)  # the place is its own when it has flushed all
        if feeder.position < end:
            self._send(feeder, member, epoch, end, mono_ms)
        elif (told > self._told and member.written >= end) or member.in_sync != self._said_in_sync:
            if mono_ms - self._sent_ms >= PACE_MS:
                self._sent_ms = mono_ms
                self.beat()  # readers of the slave wait for it
            else:
                self.broker.copies.look_at(self._sent_ms + PACE_MS)

    def _gather(self, pending: int, mono_ms: int) -> bool:
        """Whether to wait for more before a frame is made. Each frame costs both sides a turn, and the master another for its
        ACK: what somebody waits for goes with the ACK of the frame before, the rest at a pace.
        """
        if pending >= BLOCK_BYTES:
            return False
        copies = self.broker.copies
        if len(copies.waiting) or len(copies.waiting_flushed):
            return len(self._unacknowledged) > 0
        if mono_ms - self._sent_ms >= PACE_MS:
            return False
        copies.look_at(self._sent_ms + PACE_MS)
        return True

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
            flags = ha.FLUSH_NOW if len(self.broker.copies.waiting_flushed) else 0
            flags |= (ha.LAST if feeder.last else 0) | (ha.DAMAGED if feeder.damaged else 0) | self._in_sync()
            positions = self._positions(feeder.begin)
            self.say(ha.data_head(epoch, positions, feeder.count, feeder.size, flags))
            self.say(feeder.block())
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
        return ha.IN_SYNC if self._said_in_sync else 0

    def lost(self) -> None:
        if self.member is not None:
            self.broker.copies.leave(self.member)
        if self.bare is not None:
            self.bare.lost()
        super().lost()


class SlaveSession(HaSession):
    """Our connection to the master."""

    def __init__(self, front: HaFront, remote: str, wake: Callable[[], None]) -> None:
        super().__init__(front, remote, wake)
        self.front = front
        self.follower = Follower(self.store)
        self.taking = Taking(front.broker)
        self.running = False
        self.epoch = 0
        self.refusal = ""  # why the master does not let us follow
        self.other = ""  # the master instead, says who is not
        self.not_master = False
        self.bare = False  # it is RocketMQ's
        self._said = (-1, -1)
        self._asked = False
        self.say(ha.OPENER)

    def _open(self, owner: bytearray, total: int) -> int:
        if total >= len(ha.OPENER) and ha.is_echo(owner):
            self._meet_rocketmq()
            return total
        if total < ha.GREETING_BYTES:
            self.need = ha.GREETING_BYTES
            return 0
        nonce, secret = ha.read_greeting(bytes(owner[: ha.GREETING_BYTES]))
        if secret and not self.front.secret:
            raise WireError("the master wants a secret: set ha_secret_file")
        self.say(ha.hello(self.hello(), self.front.secret, nonce))
        return ha.GREETING_BYTES

    def _meet_rocketmq(self) -> None:
        """A RocketMQ master has taken the opener for the end of a log, and says that it goes on there."""
        if not admitted(self.broker.config, self.remote):
            self.refusal = "it speaks RocketMQ's protocol, and its address is none of ha_rocketmq"
        elif self.front.replica.set_id != NO_SET:
            self.refusal = "it is RocketMQ's, and this node is of a set of ours"
        else:
            self.bare = True
        if self.refusal:
            log.error("the master cannot be followed peer=%s reason=%s", self.remote, self.refusal)
        self.end()

    def hello(self) -> ha.Hello:
        """What this node says of itself."""
        replica, store = self.front.replica, self.store
        begin = 0 if self.follower.empty else store.min_position
        about: JsonObject = {
            "node": replica.node, "brokerId": self.broker.config.broker_id, "remoting": self.front.address,
            "version": __version__, "ha": self.front.ha_address,
        }  # fmt: skip
        return ha.Hello(
            self.nonce, replica.set_id, replica.store_id, replica.loss, store.log.file.size, begin, store.end_position,
            store.flushed_position, replica.safe(store.flushed_position, self.broker.copies.confirmed), replica.epoch,
            replica.epochs, about,
        )  # fmt: skip

    def frame(self, head: ha.Head, owner: bytearray) -> None:
        if head.kind == ha.DATA and self.running:
            self._data(head, owner)
        elif head.kind == ha.BEAT and self.running:
            self._told(ha.read_positions(owner, head.fixed), head.flags)
            if head.flags & ha.FLUSH_NOW:
                self.store.want_flush()
        elif head.kind == ha.TAKE and self.running:
            self._take(head, ha.read_start(self.body(head, owner)))
        elif head.kind == ha.MAY_I and self.running and head.epoch == self.epoch:
            number, for_ms = ha.read_favour(self.body(head, owner))
            self.front.favours.grant(for_ms, self.broker.time.clock.monotonic_ms())  # the turn may have begun long ago
            self.say(ha.yes(self.epoch, number, for_ms))
        elif head.kind == ha.META and self.running:
            kind, _, body = ha.read_meta(self.body(head, owner))
            self.taking.take(kind, body)
        elif head.kind == ha.ACCEPT and not self.running:
            self._accepted(head, self._proved(head, owner))
        elif head.kind == ha.REFUSE and not self.running:
            reason, text = ha.read_refuse(self.body(head, owner))
            self.refusal = text
            self.not_master, self.other = reason == ha.NOT_MASTER, ha.master_in(text)
            log.error("the master refuses this slave peer=%s reason=%d %s", self.remote, reason, text)
            self.end()
        else:
            raise WireError(f"a frame of type {head.kind:#x} at this moment")

    def _proved(self, head: ha.Head, owner: bytearray) -> bytes:
        data = self.body(head, owner)
        if not ha.proves(data, self.front.secret, b"master", self.nonce):
            raise WireError("the master does not know the secret of this replica set")
        self.trusted = True
        return data

    def _accepted(self, head: ha.Head, data: bytes) -> None:
        told = ha.read_accept(data, head.entries)
        store, follower = self.store, self.follower
        if follower.empty:
            if told.cut_to % store.log.file.size or follower.begin_at(told.cut_to) != status.OK:
                raise WireError(f"a log that begins at {told.cut_to} cannot be copied here")
        elif not store.min_position <= told.cut_to <= store.end_position:
            what = "start this node again" if store.end_position == 0 else f"ours ends at {store.end_position}"
            raise WireError(f"the master shares the log up to {told.cut_to}: {what}")
        size, found = last_records(store, told.cut_to, LAST_BYTES, told.block_size)
        if (size, found) != (told.block_size, told.block_sum):
            log.error(
                "the logs differ below %d: nothing is copied, nothing is cut ours=%08x master=%08x bytes=%d",
                told.cut_to, found, told.block_sum, told.block_size,
            )  # fmt: skip
            raise WireError(f"the logs differ below {told.cut_to}")
        if told.cut_to < store.end_position:
            self._cut(told, head.epoch)
            return
        self.front.renumber(told.about)
        self.front.replica.join(told.set_id, checked(told.epochs))
        self.front.replica.note_peers(peers_of(told.about))
        self.front.mastership.hear_master(True)
        self.front.follow_at(peers_of(told.about).get(str(told.about.get("node", "")), ""))
        self.epoch = head.epoch
        self.running = True
        self.say(ha.start(self.epoch, store.end_position))
        log.info("following master=%s position=%d behind=%d", self.remote, store.end_position,
                 told.written - store.end_position)  # fmt: skip

    def _cut(self, told: ha.Accept, epoch: int) -> None:
        """Our log goes on where the master's does not. A record must begin where the two part."""
        if not told.block_size and self.store.log.check(told.cut_to) < 0:
            raise WireError(f"no record of ours begins at {told.cut_to}, where the master's log and ours part")
        self.front.mastership.cut(told.cut_to, epoch, str(told.about.get("node", self.remote)))
        self.end()

    def _take(self, head: ha.Head, position: int) -> None:
        """The master gives us its place."""
        if head.epoch != self.epoch:
            raise WireError(f"epoch {head.epoch} is given away, we follow {self.epoch}")
        try:
            if self.front.mastership.take(position):
                self.say(ha.taken(self.epoch, position))
        except Refused as error:
            log.error("not taken over error=%s", error)

    def lost(self) -> None:
        if self.running:
            self.front.mastership.hear_master(False)
            self.front.follow_at("")
        super().lost()

    def _told(self, positions: ha.Positions, flags: int) -> None:
        if positions.position != self.store.end_position:
            raise WireError(f"the master goes on at {positions.position}, our log ends at {self.store.end_position}")
        copies = self.broker.copies
        copies.hear(self.remote, positions.written, self.broker.mono_ms)
        copies.told(positions.confirmed, positions.confirmed_flushed)
        try:
            self.front.replica.note_in_sync(bool(flags & ha.IN_SYNC))
        except StoreError as error:
            log.error("not noted whether this node is in sync error=%s", error)

    def _data(self, head: ha.Head, owner: bytearray) -> None:
        self._told(ha.read_positions(owner, head.fixed), head.flags)
        follower = self.follower
        outcome = follower.take(owner, head.variable, head.entries, head.end, bool(head.flags & ha.DAMAGED))
        if outcome == status.OK and head.flags & ha.LAST:
            outcome = follower.turn()
        if outcome == status.ILLEGAL:
            self.broker.copies.count_bad()
            raise WireError(f"the sum of the record at {follower.bad} does not hold: it is asked for again")
        if outcome != status.OK:
            log.error("the log cannot be copied now status=%d position=%d", outcome, self.store.end_position)
            self._acknowledge(ha.DISK_FULL if outcome == status.DISK_FULL else ha.FLUSH_FAILED)
            self.end()
        elif head.flags & ha.FLUSH_NOW:
            self.store.want_flush()

    def end_turn(self, mono_ms: int) -> None:
        if self.running and not self.closing and (self.store.end_position, self.store.flushed_position) != self._said:
            self._acknowledge()

    def _acknowledge(self, flags: int = 0) -> None:
        store = self.store
        if not store.healthy:
            flags |= ha.FLUSH_FAILED
        self._said = written, flushed = store.log.settled_end(), store.flushed_position
        self.say(ha.ack(self.epoch, ha.Ack(written, min(written, flushed), written, self.front.free_bytes), flags))

    def beat(self) -> None:
        if self.running:
            self._acknowledge()


class AskingSession(SlaveSession):
    """Asks a node of the set whether it is a master, and of which epoch; nothing is copied."""

    def hello(self) -> ha.Hello:
        told = super().hello()
        return told._replace(begin=0, written=0, flushed=0, safe=0, about={**told.about, "asks": True})

    def _accepted(self, head: ha.Head, data: bytes) -> None:
        told = ha.read_accept(data, head.entries)
        node = str(told.about.get("node", ""))
        if head.epoch > self.front.replica.epoch and told.set_id == self.front.replica.set_id:
            self.front.hear_of(node, peers_of(told.about).get(node, ""), head.epoch)
        elif head.epoch == self.front.replica.epoch and checked(told.epochs)[-1] != self.front.replica.epochs[-1]:
            log.error("two masters of epoch %d: %s and this node. Stop one, and compare the logs (penstock store diff)",
                      head.epoch, node)  # fmt: skip
        self.end()

    def frame(self, head: ha.Head, owner: bytearray) -> None:
        if head.kind == ha.REFUSE:  # a slave, like us, or behind us
            self.end()
        else:
            super().frame(head, owner)


class HaFront(Front):
    """All connections of replication of one broker; `link` is woken when the registry names another master."""

    name = "ha"

    def __init__(
        self, broker: Broker, replica: Replica, address: str, ha_address: str, again: Callable[[str], None]
    ) -> None:
        self.broker = broker
        self.replica = replica
        self.address = address  # of the RocketMQ listener: what clients are told
        self.ha_address = ha_address  # where slaves connect; empty: nowhere
        self.mastership = Mastership(broker.core, replica, again, lambda: broker.staging.unfinished_at)
        self.followed_at = ""  # of a slave: where slaves connect to the master it follows now
        self.newer: tuple[str, str, int] | None = None  # a master of a newer epoch: node, address, epoch
        self.secret = secret_of(broker.config)
        self.sessions: set[HaSession] = set()
        self.free_bytes = 0
        self._due_ms = 0
        self._again = again
        self.favours = Favours()
        self._term: Term | None = None
        self._abort = no_beginning
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

    def follow_at(self, address: str) -> None:
        """This slave follows the master there."""
        self.followed_at = address

    def hear_of(self, node: str, address: str, epoch: int) -> None:
        """There is a master of a newer epoch."""
        if self.newer is None or epoch > self.newer[2]:
            self.newer = node, address, epoch

    def lead_for(self, term: Term, abort: Callable[[], None]) -> None:
        """This node is the master for a term. `abort`: close every connection, whatever was about to be written to it."""
        self._term, self._abort = term, abort

    @property
    def begin_turn(self) -> Callable[[], None]:
        """Called first in each turn."""
        return self._look_at_term

    def _look_at_term(self) -> None:
        term = self._term
        if term is not None and self.broker.mono_ms >= term.until_ms:
            self.fence(term.over or "the engine was not heard of for as long as the lease goes")

    def fence(self, why: str) -> None:
        """Be the master no more, from this moment on: nothing is appended, and no answer goes out, good or bad."""
        term, self._term = self._term, None
        if term is None:
            return
        term.end(why)
        self.broker.store.follow(True)
        self.broker.copies.lead(False)
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
        self.broker.store.follow(True)
        self.broker.copies.lead(False)

    def leave_master(self) -> None:
        """Take nothing more from the master that is followed."""
        for session in self.sessions:
            if isinstance(session, SlaveSession | RocketmqMaster):
                session.end()

    def renumber(self, about: JsonObject) -> None:
        """The master says which id this slave has."""
        number = about.get("brokerId")
        if isinstance(number, int) and number > 0 and number != self.broker.config.broker_id:
            log.warning("the id of this slave is changed from=%d to=%d", self.broker.config.broker_id, number)
            self.broker.core.change({"broker_id": number})
            self.broker.copies.renumber(number)
            self._renumbered()

    def _keep(self, session: HaSession) -> HaSession:
        self.sessions.add(session)
        return session

    def gone(self, session: HaSession) -> None:
        """Its connection is."""
        self.sessions.discard(session)

    def end_turn(self, news: list[ConsumeQueue]) -> None:
        """Say what is new, and let the answers go that waited for it."""
        if self._term is not None and self.broker.time.clock.monotonic_ms() >= self._term.until_ms:
            self.fence("this turn stood still for longer than the lease goes")
            return
        copies = self.broker.copies
        if not self.sessions and not copies.ever:
            return
        copies.rest()
        self.broker.queueing.copied.seal()
        mono_ms = self.broker.mono_ms
        copies.settle(mono_ms)
        heir = self.mastership.heir if self.mastership.step() else None
        for session in list(self.sessions):
            session.end_turn(mono_ms)
            if heir is not None and isinstance(session, MasterSession) and session.member is heir:
                session.say(ha.take(self.replica.epoch, self.broker.store.end_position))
        copies.release()

    def tick(self) -> int | None:
        """Beats, and what is silent; a slave notes how far it may show its log."""
        mono_ms = self.broker.mono_ms
        if not self.sessions:
            return self._term.until_ms if self._term is not None else None
        if mono_ms >= self._due_ms:
            self._due_ms = mono_ms + BEAT_MS
            if self.broker.copies.following:
                used, size = self.broker.files.usage(self.broker.folder)
                self.free_bytes = size - used
            self.replica.keep_confirmed(self.broker.copies.confirmed)
            for session in list(self.sessions):
                session.look(mono_ms)
        return self._due_ms
