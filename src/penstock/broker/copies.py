"""Who has copied how much of the log: the in-sync set, what all of it have, and the answers that wait for that.

    acknowledged      all members of the set have written it, and there is more than the master: level `pair`
    confirmed         no reader of a `pair` topic sees more; as above, but of a master that is alone: what it has flushed
    … flushed         the same for what is on the disks: level `pair-disk`

All four only ever rise. A member is in the set while it reaches, again and again, what was the log's end a moment ago; with an
engine, once that has taken it in (`broker.roll`), and until that has left it out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import cython

from penstock.broker.levels import LEVEL_OS, LEVEL_PAIR, LEVEL_PAIR_DISK
from penstock.broker.replica import Replica
from penstock.broker.roll import Roll
from penstock.config import BrokerConfig
from penstock.delivery.waiters import Positions
from penstock.errors import StoreError
from penstock.log.store import LogStore

if cython.compiled:
    from cython.cimports.penstock import words
else:
    from penstock import words

log = logging.getLogger("penstock.broker")


class Member:
    """A slave as its master sees it, for the length of a connection."""

    def __init__(
        self, node: str, broker_id: int, address: str, takes: bool = False, loss: int = 0, keeps_not: str = ""
    ) -> None:
        self.node = node
        self.broker_id = broker_id
        self.address = address
        self.takes = takes  # it can be the master: slaves find it
        self.loss = loss
        self.keeps_not = keeps_not  # what it does not copy, being of an older version
        self.written = self.flushed = self.dispatched = self.free = 0
        self.in_sync = False
        self.fit = False  # to be in the set
        self.unfit = ""  # why it is not
        self.why_not = "it is catching up"
        self.caught_up_ms = -1  # when it had all there was
        self.unstaged = ""  # what it lacks of the staged rows
        self.cannot_stage = False
        self._heard_ms = 0
        self._end_then = words.FAR_MS  # where the log ended when it was heard last
        self._news = True  # something has changed that decides who is in sync, or what is confirmed

    def heard(self, written: int, flushed: int, end: int, mono_ms: int) -> None:
        """It has written and flushed so much; the log ends there now. As Kafka tells who is caught up."""
        if written >= end:
            self.caught_up_ms = mono_ms
        elif written >= self._end_then:
            self.caught_up_ms = max(self.caught_up_ms, self._heard_ms)
        self._heard_ms, self._end_then = mono_ms, end
        self.written, self.flushed = max(self.written, written), max(self.flushed, flushed)
        self._news = True

    def tell(self, dispatched: int, free: int) -> None:
        """What else it says of itself."""
        self.dispatched, self.free = dispatched, free

    def note_staged(self, lacks: str, cannot: bool) -> None:
        """What it lacks of the staged rows, and whether it cannot write them."""
        if lacks != self.unstaged or cannot != self.cannot_stage:
            self.unstaged, self.cannot_stage = lacks, cannot
            self._news = True

    def take_news(self) -> bool:
        """Whether anything has changed since this was asked last that decides who is in sync, or what is confirmed."""
        news, self._news = self._news, False
        return news

    def judge(self, in_sync: bool, why_not: str) -> None:
        """Take it into the set, or out of it."""
        self._news = self._news or in_sync != self.in_sync
        self.in_sync, self.why_not = in_sync, "" if in_sync else why_not

    def find(self, why_not: str) -> None:
        """It is fit to be in the set, or is not: why."""
        self.fit, self.unfit = not why_not, why_not


_ABSENT = Member("", 0, "")  # has nothing


class Copies:
    """See the module. `settle` once a turn, where anybody follows or anything waits."""

    def __init__(self, config: BrokerConfig, store: LogStore) -> None:
        self._config = config
        self._store = store
        self.following = False  # another broker's log is copied here
        self.leads = (
            True  # what it has can be confirmed by this node: not while it asks whether another one is the master
        )
        self.ever = False  # somebody has followed since the start
        self.members: dict[str, Member] = {}
        self.acknowledged = self.acknowledged_flushed = 0
        self.confirmed = self.confirmed_flushed = 0
        self.inherited = 0  # up to there readers may have been shown the log by the master before
        self.due_ms = words.FAR_MS
        self.number = config.broker_id
        self.roll: Roll | None = None  # the set that the engine keeps
        self.replica: Replica | None = None  # who this node is, where it is part of a set
        self.engine_says: Callable[[int], dict[str, object]] | None = None  # where there is an engine: what it says
        self._orphan = {"engine": "", "master": ""}  # of a slave: why it follows nobody, as it knows by whom
        self.master = ""  # of a slave: whom it follows
        self.master_written = 0  # where the master's log ended when it was heard last
        self.heard_ms = -1
        self.bad_blocks = 0  # whose sums did not hold on arrival
        # RocketMQ's slaves, and where they say that their logs end; none is ever in sync.
        self.bare: dict[str, int] = {}
        self.version = 0  # of the positions: readers may see more when it has changed
        self._wholes: list[tuple[int, int]] = []  # records that are confirmed together
        self.waiting = Positions()
        self.waiting_flushed = Positions()
        self._holds = False  # what `settle` found last, until a member has news
        self._holds_until_ms = 0  # and for so long
        self._holds_to = 0  # and while the log ends no later
        self._holds_flushed = -1  # and while so much of it is flushed
        self._holds_changes = 0  # and while the engine's set is this one

    # -- a slave -----------------------------------------------------------------------------------------------------

    def follow(self, confirmed: int) -> None:
        """This is a slave; so much was confirmed when it ran last."""
        self.following = True
        self._holds = False
        self.confirmed = self.confirmed_flushed = confirmed
        self._tell()

    def belong(self, replica: Replica) -> None:
        """This node is part of a set."""
        self.replica = replica

    def lead(self, leads: bool, confirmed: int = -1) -> None:
        """Whether this node may confirm anything as a master. While it may not, readers see what they have seen, or what was
        `confirmed` when it ran last: what stands behind may be another message at the node that leads by now.
        """
        alone = not (self.following or self.ever)
        if confirmed >= 0:
            self.confirmed = self.confirmed_flushed = confirmed
        elif alone and self.leads and not leads:
            self.confirmed = self.confirmed_flushed = max(self.confirmed, self._store.flushed_position)
        self.leads = leads
        self._holds = False
        self._tell()
        if alone and leads:
            self._store.confirm(-1, -1)

    def enroll(self, roll: Roll, confirmed: int) -> None:
        """The engine keeps the set, and so much was confirmed when this node became the master."""
        self.roll = roll
        self.ever = True
        self._holds = False
        self.inherited = self._store.end_position
        self.confirmed = max(self.confirmed, min(confirmed, self.inherited))
        self.confirmed_flushed = max(self.confirmed_flushed, min(self.confirmed, self._store.flushed_position))
        self._tell()

    def keep_whole(self, begin: int, end: int) -> None:
        """The records of a publish lie there: nothing between is confirmed, for whoever becomes the master has all of them, or
        cuts off what it has.
        """
        if self.ever:
            self._wholes.append((begin, end))
            self._holds = False

    def _whole(self, position: int) -> int:
        whole = position
        for begin, end in self._wholes:
            if begin < position < end:
                whole = min(whole, begin)
        return whole

    def look_at(self, mono_ms: int) -> None:
        """When a turn is wanted for the sake of slaves, though nothing happens."""
        if mono_ms < self.due_ms:
            self.due_ms = mono_ms

    def rest(self) -> None:
        """No such turn is wanted so far."""
        self.due_ms = words.FAR_MS

    def renumber(self, number: int) -> None:
        """The master has given this slave another id."""
        self.number = number

    def ask_engine(self, says: Callable[[int], dict[str, object]]) -> None:
        """There is an engine: what people are told of it."""
        self.engine_says = says

    def note_orphan(self, why: str, by: str = "engine") -> bool:
        """There is no master, and this node does not become it, or by the master: it does not follow that one; whether that is
        news.
        """
        news = why not in ("", self._orphan[by])
        self._orphan[by] = why
        return news

    def hear(self, master: str, written: int, mono_ms: int) -> None:
        """The master's log ends there."""
        self.master, self.master_written, self.heard_ms = master, written, mono_ms

    def count_bad(self) -> None:
        """A block came whose sums do not hold."""
        self.bad_blocks += 1

    def told(self, confirmed: int, confirmed_flushed: int) -> None:
        """The master says what all members have."""
        if confirmed > self.confirmed or confirmed_flushed > self.confirmed_flushed:
            self.confirmed = max(self.confirmed, confirmed)
            self.confirmed_flushed = max(self.confirmed_flushed, confirmed_flushed)
            self._tell()

    def _tell(self) -> None:
        self.version += 1
        self._store.confirm(self.confirmed, self.confirmed_flushed)

    # -- a master ----------------------------------------------------------------------------------------------------

    def enter(self, member: Member) -> None:
        """A slave has connected; a former connection of the same node counts no more, and is told so."""
        former = self.members.get(member.node)
        if former is not None:
            former.judge(False, "it has another connection")
        self.members[member.node] = member
        self._holds = False
        if not self.ever:  # so much have readers seen
            self.ever = True
            self.confirmed = self.confirmed_flushed = max(self.confirmed, self._store.flushed_position)
            self._tell()

    def leave(self, member: Member) -> None:
        """Its connection is gone."""
        if self.members.get(member.node) is member:
            del self.members[member.node]
            self._holds = False
            if member.in_sync:
                member.judge(False, "its connection is gone")
                log.warning("slave out of sync node=%s reason=its connection is gone", member.node)

    @property
    def in_sync(self) -> int:
        """How many nodes are in the set, the master too."""
        return 1 + sum(member.in_sync for member in self.members.values())

    @property
    def short(self) -> bool:
        """Whether messages of level `pair` must be refused: fewer are in sync than the settings ask for."""
        return self._config.min_in_sync > 1 and not self.following and self.in_sync < self._config.min_in_sync

    @property
    def available(self) -> bool:
        """Whether a message of level `pair` can become one: somebody is in sync, and near."""
        for member in self.members.values():  # noqa: SIM110 asked for each send that is alone in its turn: a generator costs more
            if member.in_sync:
                return True
        return False

    def settle(self, mono_ms: int) -> None:
        """Look who is in sync, and raise the positions."""
        if self.following or not self.leads:
            return
        store, roll = self._store, self.roll
        end, flushed = store.log.settled_end(), store.durability.flushed
        holds = (
            self._holds and flushed == self._holds_flushed and mono_ms <= self._holds_until_ms and end <= self._holds_to
        )
        if roll is not None and roll.changes != self._holds_changes:
            holds = False
        for member in self.members.values():
            if member.take_news():
                holds = False
        if holds:
            return  # most turns of a busy master: nobody was heard of
        self._holds = False  # the news is taken: if this does not come to its end, the next turn begins anew
        confirmed, confirmed_flushed = self.confirmed, self.confirmed_flushed
        for member in self.members.values():
            self._judge(member, end, mono_ms)
        if roll is None:
            counted = [member for member in self.members.values() if member.in_sync]
        else:
            self._propose(roll, flushed, mono_ms)
            counted = [self.members.get(node, _ABSENT) for node in roll.counted]
        if counted:
            self._raise_to(counted, end, flushed)
            noted = _note_alone(self.replica, False)
        elif noted := _note_alone(self.replica, True):
            whole = self._whole(flushed)
            self.confirmed = max(self.confirmed, whole)
            self.confirmed_flushed = max(self.confirmed_flushed, whole)
        if self.confirmed != confirmed or self.confirmed_flushed != confirmed_flushed:
            self._tell()
        if self._wholes:
            self._wholes = [records for records in self._wholes if records[1] > self.confirmed_flushed]
        settled = noted and (roll is None or roll.rests(mono_ms))
        self._holds = settled and len(counted) > 0 and len(self.members) > 0 and not self._wholes
        if not self._holds:
            return
        self._holds_flushed, self._holds_changes = flushed, 0 if roll is None else roll.changes
        caught_up_ms = written = words.FAR_MS
        for member in self.members.values():
            caught_up_ms, written = min(caught_up_ms, member.caught_up_ms), min(written, member.written)
        self._holds_until_ms = caught_up_ms + self._config.ha_in_sync_ms
        self._holds_to = written + self._config.ha_slave_lag_bytes_max

    def _raise_to(self, counted: list[Member], end: int, flushed: int) -> None:
        """All of these must have what is confirmed: raise the positions to what they have of a log that ends there and is flushed
        so far.
        """
        roll = self.roll
        written = end
        for member in counted:
            written = min(written, member.written)
        written = self._whole(written)
        all_flushed = min(flushed, written)
        for member in counted:
            all_flushed = min(all_flushed, member.flushed)
        all_flushed = self._whole(all_flushed)
        if roll is None or len(roll.known) > 1:
            self.acknowledged = max(self.acknowledged, written)
            self.acknowledged_flushed = max(self.acknowledged_flushed, all_flushed)
        if roll is not None and roll.maybe_alone:
            written = self._whole(min(written, flushed))
        self.confirmed = max(self.confirmed, written)
        self.confirmed_flushed = max(self.confirmed_flushed, all_flushed)

    def _propose(self, roll: Roll, flushed: int, mono_ms: int) -> None:
        """Tell the engine who ought to be in the set; who is, it says."""
        fit = {member.node: member.loss for member in self.members.values() if member.fit}
        roll.propose(fit, self.members, mono_ms, whole=flushed >= self.confirmed)
        for member in self.members.values():
            why_not = member.unfit or "the engine has not taken it in yet"
            _admit(member, roll.holds(member.node, member.loss), why_not)

    def release(self) -> None:
        """Let the answers go that have waited long enough for what is acknowledged now."""
        if not self._store.healthy:
            self.waiting.fail()
            self.waiting_flushed.fail()
        if self.waiting.line:
            self.waiting.settle(self.acknowledged)
        if self.waiting_flushed.line:
            self.waiting_flushed.settle(self.acknowledged_flushed)

    def drop(self, owner: object) -> None:
        """Forget everything an owner waits for: its connection is gone."""
        self.waiting.drop(owner)
        self.waiting_flushed.drop(owner)

    def expire(self, mono_ms: int) -> None:
        """Give up those whose deadline has passed."""
        self.waiting.expire(mono_ms)
        self.waiting_flushed.expire(mono_ms)

    def _judge(self, member: Member, end: int, mono_ms: int) -> None:
        config, lag = self._config, end - member.written
        why = ""
        if lag > config.ha_slave_lag_bytes_max:
            why = f"it is {lag:,} bytes behind"
        elif member.caught_up_ms < 0:
            why = "it is catching up"
        elif mono_ms - member.caught_up_ms > config.ha_in_sync_ms:
            why = f"it has not reached the end for {mono_ms - member.caught_up_ms:,} ms"
        elif not member.in_sync and member.written < self.confirmed:
            why = "it is catching up"
        elif member.unstaged and (member.cannot_stage or not member.in_sync):
            why = member.unstaged
        member.find(why)
        if self.roll is None:
            _admit(member, not why, why)

    # -- what readers see --------------------------------------------------------------------------------------------

    def visible(self, level: int, durable: bool) -> int:
        """Readers of a topic of this level see records below; for those that ask for it, only durable ones."""
        flushed: int = self._store.flushed_position
        if self.leads and not (self.following or self.ever):
            return flushed
        if level == LEVEL_PAIR_DISK:
            return self.confirmed_flushed
        if not durable and (level == LEVEL_PAIR or (level == LEVEL_OS and self.following)):
            return self.confirmed
        return min(self.confirmed, flushed) if durable or self.following or level == LEVEL_PAIR else flushed

    def rows(self, mono_ms: int) -> Iterator[dict[str, object]]:
        """This node and, of a master, its slaves, for people."""
        replica, store = self.replica, self._store
        if replica is None:
            return
        end, flushed = store.end_position, store.flushed_position
        lag = max(0, self.master_written - end) if self.following else 0
        heard = mono_ms - self.heard_ms if self.heard_ms >= 0 else -1
        reasons = (*self._orphan.values(), "no master was heard yet" if heard < 0 else "")
        why = next(filter(None, reasons), "") if self.following else ""
        # Of a set without an engine: a person who promotes a node wants to know before.
        lacks = replica.may_lack(end, self.confirmed) if self.following and self.engine_says is None else ""
        yield {
            "node": replica.node, "id": self.number, "role": "slave" if self.following else "master",
            "epoch": replica.epoch, "written": end, "flushed": flushed, "confirmed": self.confirmed, "lag_bytes": lag,
            "lag_ms": heard if self.following else 0, "in_sync": "" if self.following else "yes", "why_not": why,
            **({"may_lack": lacks} if lacks else {}),
            **replica.damage(),
            **(self.engine_says(mono_ms) if self.engine_says is not None else {}),
        }  # fmt: skip
        for member in self.members.values():
            behind = mono_ms - member.caught_up_ms if member.caught_up_ms >= 0 else -1
            yield {
                "node": member.node, "id": member.broker_id, "role": "slave", "epoch": replica.epoch,
                "written": member.written, "flushed": member.flushed, "confirmed": min(self.confirmed, member.written),
                "lag_bytes": max(0, end - member.written), "lag_ms": behind if end > member.written else 0,
                "in_sync": "yes" if member.in_sync else "no", "why_not": member.why_not or member.keeps_not,
            }  # fmt: skip
        for remote, written in self.bare.items():
            yield {
                "node": remote, "id": -1, "role": "slave", "epoch": 0, "written": written, "flushed": 0,
                "confirmed": min(self.confirmed, written), "lag_bytes": max(0, end - written), "lag_ms": 0,
                "in_sync": "no", "why_not": "RocketMQ's protocol does not say what is on its disk",
            }  # fmt: skip


def _admit(member: Member, in_sync: bool, why_not: str) -> None:
    if member.in_sync == in_sync:
        if not in_sync:
            member.judge(False, why_not)
        return
    member.judge(in_sync, why_not)
    if in_sync:
        log.info("slave in sync node=%s position=%d", member.node, member.written)
    else:
        log.warning("slave out of sync node=%s reason=%s", member.node, why_not)


def _note_alone(replica: Replica | None, alone: bool) -> bool:
    """Write down whether this node confirms by itself; False when that cannot be written: then it does not."""
    try:
        if replica is not None:
            replica.note_alone(alone)
    except StoreError as error:
        log.error("not noted that this node is alone: %s error=%s", alone, error)
        return False
    return True


def seen(copies: Copies, level: int) -> int | None:
    """Below which position readers of a topic of this level see records; None: all that is there."""
    return None if level == LEVEL_OS and not copies.following else copies.visible(level, False)
