"""Three nodes of a replica set in one process: real brokers with real logs, a clock that stands still, connections whose bytes
the test delivers, and disks that lose what was not flushed.

`Set` is driven by `walk`: steps at random, and after each of them what must hold (`Set.check`, `Set.answered`).

    V1  two logs are the same up to where their tables of epochs say that they are
    V2  what was answered 0 at level `pair` is at every node in sync, and at each node that begins to lead
    V3  no node cuts what it had confirmed by itself, or knew to be confirmed
    V4  one node begins an epoch                    V5  numbers of epochs rise, their starts do not fall
    V6  confirmed by a master is at most what each slave in sync has written
    V7  an offset that a reader of a `pair` topic has seen never means another message
    V8  what is derived is written down up to what is flushed and confirmed, and no further: a cut cannot take it back
    V9  a delayed message that was answered 0 comes, and not early
    V11 the epoch of a node does not fall           V12 a slave shows nothing that is not confirmed

What the operator vouches for is part of it: a node is promoted while no other one is up as a master and all others but the old
master are running, and the old master comes back when the new one can be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1] / "log"))

from lying_disk import LyingFiles

from penstock.access.rights import Rights
from penstock.broker.broker import Broker
from penstock.broker.levels import LEVEL_PAIR, LEVEL_PAIR_DISK, LEVELS
from penstock.broker.rejoin import rejoin
from penstock.broker.replica import check_role, placed
from penstock.clock import FakeClock
from penstock.config import BrokerConfig
from penstock.disk.job import Job, run_now
from penstock.errors import PenstockError, Refused, StoreError
from penstock.fronts.ha import MasterSession
from penstock.fronts.hasession import HaSession
from penstock.fronts.haslave import SlaveSession
from penstock.fronts.remoting.front import BrokerFront
from penstock.log import checkpoint, cutting, epochs
from penstock.process import Process
from penstock.registration.registrar import Registration
from penstock.registration.replication import Watch, belong, lead, make_front
from penstock.wire import layout
from penstock.wire.ha import Epoch
from penstock.wire.record import iter_records
from penstock.wire.remoting import CommandParser, RemotingCommand, encode

TOPICS = {"O": "os", "D": "disk", "P": "pair", "Q": "pair-disk"}
COPIED = (LEVEL_PAIR, LEVEL_PAIR_DISK)
HERE = "/dev/shm" if Path("/dev/shm").is_dir() else None
PORT = 20_000


class Violation(AssertionError):
    """A rule does not hold."""


class End:
    """One side of a connection: its session, what is on the way to it, and what of that is no whole frame yet."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.session: HaSession | None = None
        self.other: End = self
        self.coming: deque[bytes] = deque()
        self.left = b""
        self.over = False  # it has noticed, or made, the end of the connection
        self.run = node.run

    @property
    def live(self) -> bool:
        """Whether its process is the one that opened it."""
        return not self.over and self.node.up and self.node.run == self.run


class Sent(NamedTuple):
    """A message that was sent: where, and where it is in the log once it was answered."""

    topic: str
    level: int
    body: bytes
    at: int = -1
    end: int = -1
    offset: int = -1
    due_ms: int = 0  # of one that is delayed


class Node:
    """One broker of the set, started again and again on its folder."""

    def __init__(self, owner: Set, number: int) -> None:
        self.set = owner
        self.number = number
        self.name = "abc"[number]
        self.runs = self.cuts = self.run = 0
        self.folder = owner.root / f"{self.name}0"
        self.folder.mkdir()
        self.files = LyingFiles(self.folder, owner.seed)
        self.up = self.paused = self.lost_power = False
        self.refused = False  # by a master
        self.safest = 0  # what it has ever known to be flushed and confirmed
        self.stays_down = ""  # why it does not start by itself
        self.again = ""
        self.image: tuple[int, bytes, tuple[Epoch, ...]] = (
            0,
            b"",
            (),
        )  # begin and bytes of its log when it was last up
        self.had = 0  # where its log ended when it lost power
        self.sure = 0  # so much it ever confirmed, or knew to be
        self.epoch = 0
        self.jobs: list[Job] = []
        self.dirty: list[End] = []
        self.accept_loss = False

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self, accept_loss: bool = False) -> None:
        """Start the process on the folder, whatever is in it; it ends again where the disk does not let it."""
        try:
            self._start(accept_loss)
        except StoreError as error:
            self.stays_down = str(error)
            self.up = False
            self.broker.close(clean=False)

    def _start(self, accept_loss: bool) -> None:
        """What `app.Server` does, without sockets."""
        owner, files = self.set, self.files
        before = self.image
        intent = cutting.intended(files, self.folder)
        config = BrokerConfig(
            data=str(self.folder), role="master" if self.number == 0 else "slave", ha_port=PORT + self.number,
            node=self.name, level="pair", mapped_file_size_commit_log=1 << 14, mapped_file_size_consume_queue=2000,
            max_hash_slot_num=50, max_index_num=100, ha_accept_loss=accept_loss, remoting_port=self.number + 1,
            history_bytes=0, topic=tuple({"name": name, "level": level} for name, level in TOPICS.items()),
        )  # fmt: skip
        config = placed(check_role(config), files, self.folder)
        broker = self.broker = Broker(config, files=files, clock=owner.clock)
        process = self.process = Process(owner.clock, self._stop, Rights())
        process.take(broker=broker)
        boot, checkpoint.boot_id = checkpoint.boot_id, lambda: f"boot {self.cuts}"
        try:
            recovery = broker.open()
        finally:
            checkpoint.boot_id = boot
        broker.store.follow(True)
        self.again = self.stays_down = ""
        self.run += 1
        self.up, self.listening = True, False
        self.dirty, self.jobs = [], []
        self.front = BrokerFront(broker)
        process.add_front(self.front)
        self.client = self.front.session("127.0.0.1:9", lambda: None)
        registration = Registration(broker, f"127.0.0.1:{self.number + 1}", "", f"127.0.0.1:{PORT + self.number}")
        belong(broker, lossy=recovery.lossy)
        ha = self.ha = make_front(broker, registration, self._anew)
        process.add_front(ha)
        owner.recovered(self, before, intent, recovery.power_cut, accept_loss)
        self.lost_power = False
        leads = ha.replica.led
        if config.role == "master":
            self.watch = Watch(owner, ha, registration)  # type: ignore[arg-type]
            if not asyncio.run(self.watch.superseded()) and ha.newer is None and not ha.mastership.cut_unfinished():
                lead(ha, lossy=recovery.lossy)
                owner.leads(self, fresh=not leads or recovery.lossy)
        self.listening = not self.again
        self.turn()

    def _stop(self, why: str) -> None:
        self.again = self.again or why

    def _anew(self, why: str) -> None:
        self.again = self.again or why
        if self.ha.replica.role == "master":
            self.set.choose(self)

    @property
    def store(self) -> Any:
        return self.broker.store

    @property
    def copies(self) -> Any:
        return self.broker.copies

    @property
    def leading(self) -> bool:
        """Whether it is up and a master."""
        return self.up and self.listening and not self.copies.following and self.copies.leads

    def log(self) -> tuple[int, bytes, tuple[Epoch, ...]]:
        """Where its log begins, the bytes, and its epochs."""
        if self.up:
            store = self.store
            store.settle()
            begin, end, size = store.min_position, store.end_position, store.log.file.size
            pieces = [
                store.log.bytes_at(at, min(size - at % size, end - at))
                for at in range(begin, end, size)
            ]  # fmt: skip
            self.image = begin, b"".join(pieces), self.ha.replica.epochs
        return self.image

    def has(self, sent: Sent) -> bool:
        """Or had it, and let it go because its disk was crowded."""
        begin, data, _ = self.log()
        return sent.at < begin or sent.body in data[sent.at - begin : sent.end - begin]

    def shows(self, body: bytes, end: int) -> bool:
        """The same of a message that a reader has seen, which ends there."""
        begin, data, _ = self.log()
        return end - len(body) < begin or body in data

    def turn(self, act: Callable[[], None] = lambda: None) -> None:
        """One turn of the loop."""
        if not self.up:
            return
        process = self.process
        process.update_time()
        act()
        process.end_turn()
        self.jobs += process.take_jobs()
        self._write()

    def _write(self) -> None:
        dirty, self.dirty = self.dirty, []
        for end in dirty:
            assert end.session is not None
            data = end.session.take()
            if end.live and data and end.other.live:
                end.other.coming.append(data)
            if end.live and end.session.closing:
                self.drop(end)
        self.set.answers(self, CommandParser().feed(self.client.take()))

    def drop(self, end: End) -> None:
        """This side ends the connection, or notices its end."""
        if not end.over:
            end.over = True
            if end.session is not None:
                self.refused = self.refused or bool(getattr(end.session, "refusal", ""))
                end.session.lost()

    def work(self) -> None:
        """Whatever the threads have in hand ends."""
        jobs, self.jobs = [job for job in self.jobs if job.kind != "reserve"], []
        for job in jobs:
            self.turn(partial(self._finish, job))

    def _finish(self, job: Job) -> None:
        with contextlib.suppress(PenstockError):  # reported, and tried again later
            run_now([job], self.broker.mono_ms)

    def tick(self) -> None:
        self.turn(lambda: self.process.tick() and None)

    def remember(self) -> None:
        """What is known of it while it is down."""
        if self.up:
            self.log()
            self.set.look(self)

    def kill(self) -> None:
        """kill -9."""
        self.remember()
        self.up = False
        self.broker.close(clean=False)

    def stop(self) -> None:
        """It ends as it is told to: what the threads have in hand is done first, then its connections end."""
        self.work()
        self.remember()
        for end in self.set.live_ends():
            if end.node is self:
                self.drop(end)
        if self.store.confirmed >= 0 and self.store.healthy:  # all there is will be flushed
            self.safest = max(self.safest, min(self.store.end_position, self.store.confirmed))
        self.up = False
        try:
            self.broker.close()
        except StoreError:  # the process ends
            self.broker.close(clean=False)

    def cut_power(self) -> None:
        """What was not flushed may be gone, page by page."""
        files = self.files
        files.fail_flush = files.full = False  # it is no part of what is lost
        for path in sorted(self.folder.glob("schedule/*")):  # LMDB flushes by itself
            fd = files.open(path)
            files.datasync(fd)
            files.close(fd)
        if (self.folder / "schedule").is_dir():
            files.sync_folder(self.folder / "schedule")
            files.sync_folder(self.folder)
        self.cuts += 1
        to = self.set.root / f"{self.name}{self.cuts}"
        self.remember()
        self.had = max(self.had, self.image[0] + len(self.image[1]))
        files.power_cut(to)
        if self.up:
            self.up = False
            self.broker.close(clean=False)
        shutil.rmtree(self.folder)
        self.folder = to
        self.files = LyingFiles(to, self.set.seed + self.cuts)
        self.files.adopt()
        self.lost_power = True


class Set:
    """The nodes, their connections, the client's ledger, and who may do what."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.root = Path(tempfile.mkdtemp(prefix="penstock-set-", dir=HERE))
        self.clock = FakeClock()
        self.steps: list[str] = []
        self.sent: dict[int, Sent] = {}
        self.owed: dict[int, Sent] = {}
        self.seen: dict[tuple[str, int], tuple[bytes, int, bool]] = {}  # body, where it ends, whether two nodes have it
        self.codes: dict[int, int] = {}
        self.led: dict[tuple[int, bytes], str] = {}
        self.cut_off: set[frozenset[int]] = set()
        self.ends: list[End] = []
        self.chosen: Node | None = None
        self.losses = 0  # that the operator has accepted
        self.nodes = [Node(self, number) for number in range(nodes)]
        for node in self.nodes:
            node.start()

    def close(self) -> None:
        for node in self.nodes:
            if node.up:
                node.up = False
                node.broker.close(clean=False)
        shutil.rmtree(self.root)

    def note(self, words: str) -> None:
        self.steps.append(words)

    def must(self, holds: bool, words: str) -> None:
        if not holds:
            raise Violation(f"{words} (seed {self.seed}, step {len(self.steps)}: {'; '.join(self.steps[-25:])})")

    # -- the network -------------------------------------------------------------------------------------------------

    def reaches(self, one: Node, other: Node) -> bool:
        return frozenset((one.number, other.number)) not in self.cut_off

    def join(self, one: Node, other: Node, make: str) -> End | None:
        """`one` opens a connection to the port of `other`; None when nobody answers there."""
        if one is other or not other.up or not other.listening or not self.reaches(one, other):
            return None
        ends = [End(one), End(other)]
        for end, to in ((ends[0], ends[1]), (ends[1], ends[0])):
            end.other = to
        opened = ends[0]

        def waker(end: End) -> Callable[[], None]:
            return lambda: end.node.dirty.append(end) if end not in end.node.dirty else None

        def accept() -> None:
            ends[1].session = other.ha.session(f"127.0.0.1:{PORT + one.number}", waker(ends[1]))

        def connect() -> None:
            opened.session = getattr(one.ha, make)(f"127.0.0.1:{PORT + other.number}", waker(opened))

        other.turn(accept)
        one.turn(connect)
        self.ends += ends
        return opened

    async def connect(self, host: str, port: int, make: Callable[..., HaSession], tls: object = None) -> Any:
        """What `Watch` asks of the network: a connection, and what is said on it at once."""
        one = next(node for node in self.nodes if node.up and node.ha.to_ask == make)
        opened = self.join(one, self.nodes[port - PORT], "to_ask")
        if opened is None:
            raise OSError("nobody answers")
        for _ in range(20):
            self.deliver(opened.other, 1.0)
            self.deliver(opened, 1.0)
        opened.node.drop(opened)
        opened.other.node.turn(lambda: opened.other.node.drop(opened.other))
        return SimpleNamespace(transport=None)

    def deliver(self, end: End, share: float) -> None:
        """Some of the bytes that are on the way to this side; without any, that the other side is gone."""
        if not end.live or end.session is None or end.session.closing or not self.reaches(end.node, end.other.node):
            return
        if not end.coming:
            if not end.other.live:
                end.node.turn(lambda: end.node.drop(end))
            return
        data = b"".join(end.coming)
        end.coming.clear()
        n = len(data) if share >= 1 else max(1, int(len(data) * share))
        if n < len(data):
            end.coming.append(data[n:])
        session = end.session

        def feed() -> None:
            held = bytearray(end.left + data[:n])
            try:
                end.left = bytes(held[session.feed(held, len(held)) :])
            except PenstockError as error:  # as `net.Connection` does
                end.node.refused |= "the master shares the log" in str(error)
                session.take()
                end.node.drop(end)

        end.node.turn(feed)

    def live_ends(self) -> list[End]:
        self.ends = [end for end in self.ends if end.live]
        return self.ends

    # -- the client --------------------------------------------------------------------------------------------------

    def send(self, node: Node, topic: str, size: int, delay_ms: int = 0) -> None:
        number = len(self.sent) + 1
        body = b"<%d|" % number + bytes(self.random.choices(b"abcdefgh", k=size)) + b">"
        fields = {"a": "P", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 5, "h": 0,
                  "i": f"TIMER_DELAY_MS\x01{delay_ms}" if delay_ms else ""}  # fmt: skip
        command = RemotingCommand(310, {k: str(v) for k, v in fields.items()}, body, opaque=number)
        due_ms = self.clock.now_ms() + delay_ms if delay_ms else 0
        self.sent[number] = Sent(topic, LEVELS[TOPICS[topic]], body, due_ms=due_ms)
        data = bytearray(encode(command))
        node.turn(lambda: node.client.feed(data, len(data)) and None)

    def answers(self, node: Node, answers: list[RemotingCommand]) -> None:
        for answer in answers:
            if answer.opaque not in self.sent:
                self.read = answer
                continue
            self.codes[answer.code] = self.codes.get(answer.code, 0) + 1
            if answer.code == 0:
                self.answered(node, answer.opaque, answer.ext)

    def answered(self, node: Node, number: int, ext: dict[str, str]) -> None:
        """The client was told 0."""
        sent = self.sent[number]
        at = int(ext["msgId"][-16:], 16)
        size = int.from_bytes((node.store.record_at(at) or bytes(4))[:4], "big")
        sent = self.sent[number] = sent._replace(at=at, end=at + size, offset=int(ext["queueOffset"]))
        self.must(node.has(sent), f"answered, and not in the log of {node.name}")
        if sent.level not in COPIED:
            return
        members = [end for end in self.live_ends() if end.node is node and self.counts(end)]
        holders = [other for other in self.nodes if other is not node and other.has(sent)]
        lost = any(sent.end <= other.had for other in self.nodes if other is not node)  # its ACK was on the way by then
        self.must(lost or bool(holders), f"V2: message {number} was answered 0, and {node.name} alone has it")
        for end in members:
            other = end.other.node
            self.must(
                not end.other.live or other.has(sent),
                f"V2: message {number} was answered 0, in-sync {other.name} lacks it",
            )
            if sent.level == LEVEL_PAIR_DISK and end.other.live:
                self.must(
                    other.store.flushed_position >= sent.end, f"message {number} is not on the disk of {other.name}"
                )
        if sent.level == LEVEL_PAIR_DISK:
            self.must(node.store.flushed_position >= sent.end, f"message {number} is not on the disk of {node.name}")
        if holders or len(self.nodes) == 2:
            self.owed[number] = sent

    @staticmethod
    def counts(end: End) -> bool:
        """Whether it is a master's side of a connection to a slave in sync."""
        session = end.session
        if not isinstance(session, MasterSession) or session.member is None:
            return False
        return session.member.in_sync and end.node.copies.members.get(session.member.node) is session.member

    def pull(self, node: Node, topic: str) -> None:
        """A reader looks at some of a topic."""
        if topic.encode() not in node.broker.topics.by_name:
            return
        most = max([offset for name, offset in self.seen if name == topic], default=0)
        ext = {"consumerGroup": "G", "topic": topic, "queueId": 0, "queueOffset": self.random.choice((0, max(0, most - 4))),
               "maxMsgNums": 32, "sysFlag": 4, "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*",
               "subVersion": 0}  # fmt: skip
        data = bytearray(encode(RemotingCommand(11, {k: str(v) for k, v in ext.items()}, opaque=1 << 30)))
        self.read: RemotingCommand | None = None
        node.turn(lambda: node.client.feed(data, len(data)) and None)
        if self.read is None or self.read.code != 0:
            return
        copies = node.copies
        for message in iter_records(self.read.body, check=True):
            end = message.physical_offset + message.size
            level = LEVELS[TOPICS[topic]]
            if copies.following:
                self.must(
                    end <= copies.confirmed, f"V12: the slave {node.name} shows {end}, confirmed is {copies.confirmed}"
                )
            elif level not in COPIED:
                continue
            sure = copies.following or end <= copies.acknowledged
            known = self.seen.get((topic, message.queue_offset))
            self.must(
                known is None or known[0] == message.body,
                f"V7: {topic} {message.queue_offset} was {known and known[0][:9]!r}, now {message.body[:9]!r}",
            )
            self.seen[topic, message.queue_offset] = message.body, end, sure or (known is not None and known[2])

    # -- what must hold ----------------------------------------------------------------------------------------------

    def look(self, node: Node) -> None:
        """What one node says of itself."""
        if not node.up:
            return
        copies, replica = node.copies, node.ha.replica
        end = node.store.end_position
        self.must(replica.epoch >= node.epoch, f"V11: the epoch of {node.name} was {node.epoch}, is {replica.epoch}")
        node.epoch = replica.epoch
        if copies.following or copies.ever or replica.alone:
            node.sure = max(node.sure, min(copies.confirmed, end))
        for one, following in zip(replica.epochs, replica.epochs[1:], strict=False):
            self.must(one.number < following.number and one.start <= following.start, f"V5: {replica.epochs}")
        for end_ in self.live_ends():
            if end_.node is node and node.leading and self.counts(end_) and end_.other.live and end_.run == node.run:
                slave = end_.other.node
                self.must(
                    copies.confirmed <= slave.store.end_position,
                    f"V6: {node.name} says {copies.confirmed} is confirmed, {slave.name} has {slave.store.end_position}",
                )

        flushed, confirmed = node.store.flushed_position, node.store.confirmed
        node.safest = max(node.safest, flushed if confirmed < 0 else min(flushed, confirmed))
        for one in node.store.subscribers:
            position = getattr(one, "position", 0)
            self.must(
                position <= node.safest,
                f"V8: {node.name} has {type(one).__name__} written down up to {position}, safe is {node.safest}",
            )

    def check(self) -> None:
        """Every rule that can be looked at from outside."""
        for node in self.nodes:
            self.look(node)
        for n, one in enumerate(self.nodes):
            for other in self.nodes[n + 1 :]:
                self.same(one, other)

    def same(self, one: Node, other: Node) -> None:
        """V1."""
        (begin, mine, table), (start, theirs, their_table) = one.log(), other.log()
        shared = epochs.shared_end(table, begin + len(mine), their_table, start + len(theirs))
        if not epochs.common(table, their_table):
            return
        low = max(begin, start)
        a, b = mine[low - begin : max(low, shared) - begin], theirs[low - start : max(low, shared) - start]
        self.must(
            a == b, f"V1: the logs of {one.name} and {other.name} differ below {shared}, where their epochs agree"
        )

    def recovered(self, node: Node, before: Any, intent: Any, power_cut: bool, accepts: bool) -> None:
        """A node has opened its log again."""
        end = node.store.end_position
        was = before[0] + len(before[1])
        if node.lost_power:
            node.sure = min(node.sure, end)
            for number, sent in list(self.owed.items()):
                if sent.level == LEVEL_PAIR and sent.end > end and was >= sent.end:
                    others = [
                        other for other in self.nodes if other is not node and not other.lost_power and other.has(sent)
                    ]
                    if len(self.nodes) > 2 or not others:  # two machines have failed
                        del self.owed[number]
        elif intent is None:
            self.must(end == was, f"the log of {node.name} ended at {was}, and after a start at {end}")
        else:
            self.must(end == intent.to, f"the log of {node.name} was cut at {intent.to}, and ends at {end}")
            self.must(
                self.losses > 0 or end >= node.sure,
                f"V3: {node.name} cut at {end}, it knew {node.sure} to be confirmed",
            )
            node.sure = min(node.sure, end)
        if accepts:
            self.accept(node)

    def accept(self, node: Node) -> None:
        """The operator gives up what this node has not."""
        self.losses += 1
        self.owed = {number: sent for number, sent in self.owed.items() if node.has(sent)}
        end = node.store.end_position
        self.seen = {key: one for key, one in self.seen.items() if one[1] <= end and node.shows(one[0], one[1])}

    def leads(self, node: Node, fresh: bool) -> None:
        """A node begins to lead."""
        newest = node.ha.replica.epochs[-1]
        key = newest.number, newest.tag
        self.chosen = None if self.chosen is node else self.chosen
        self.must(
            self.led.setdefault(key, node.name) == node.name, f"V4: {node.name} leads the epoch of {self.led[key]}"
        )
        for number, sent in self.owed.items():
            self.must(node.has(sent), f"V2: {node.name} leads, and lacks message {number}, which was answered 0")
        if fresh:
            self.seen = {key: one for key, one in self.seen.items() if one[2] or node.shows(one[0], one[1])}
            for (topic, offset), (body, end, _) in self.seen.items():
                self.must(
                    node.shows(body, end),
                    f"V7: {node.name} leads, and lacks offset {offset} of {topic}, which was seen below {end}",
                )

    # -- the operator ------------------------------------------------------------------------------------------------

    def may_start(self, node: Node) -> bool:
        """A slave at any time, and who led last; an old master when the new one can be reached, and is known to it."""
        role = placed(check_role(BrokerConfig(data=str(node.folder), role="master" if node.number == 0 else "slave",
                                              ha_port=1)), node.files, node.folder).role  # fmt: skip
        if role == "slave" or not self.led:
            return True
        if self.chosen is not None:  # the old master stays stopped until the new one leads
            return self.chosen is node
        last, (number, tag) = self.last_led(), list(self.led)[-1]
        if last is node:
            return True
        told = json.loads((node.folder / "ha" / "replica.json").read_bytes())
        knows = (
            last.name in told["peers"] and told["epoch"] < number
        )  # else there are two: the registry, or nobody, tells it
        return knows and last.leading and last.ha.replica.epochs[-1].tag == tag and self.reaches(node, last)

    def choose(self, node: Node) -> None:
        """It was promoted, or given the place, and does not lead yet."""
        self.chosen = node

    def promote(self, node: Node, accept_loss: bool) -> bool:
        """`penstock ha promote`, by an operator who knows that no master is up."""
        if self.chosen is not None or not node.up or node.again or any(other.leading for other in self.nodes):
            return False
        if any(not other.up and other is not self.last_led() for other in self.nodes if other is not node):
            return False
        rank = node.ha.replica.epoch, node.store.end_position
        better = [one for one in self.nodes if one.up and (one.ha.replica.epoch, one.store.end_position) > rank]
        if better and not accept_loss:
            return False
        try:
            node.turn(lambda: node.ha.mastership.promote(accept_loss))
        except Refused:
            return False
        if accept_loss:
            self.accept(node)
        return True

    def last_led(self) -> Node:
        """Who began the last epoch."""
        name = list(self.led.values())[-1]
        return next(node for node in self.nodes if node.name == name)


class Walk:
    """Steps at random over a set."""

    def __init__(self, seed: int, nodes: int) -> None:
        self.set = Set(seed, nodes)
        self.random = self.set.random
        self.weights: dict[Callable[[], object], int] = {
            self.send: 30, self.deliver: 60, self.work: 12, self.pass_time: 12, self.pull: 8, self.connect: 10,
            self.drop: 3, self.partition: 3, self.heal: 3, self.kill: 3, self.power: 2, self.start: 10, self.stop: 1,
            self.switch: 3, self.promote: 4, self.pause: 2, self.wake: 3, self.fill_disk: 1, self.free_disk: 2,
            self.fail_flush: 1, self.watch: 3, self.fail_over: 4, self.crowd: 6,
        }  # fmt: skip

    def run(self, steps: int) -> Set:
        """So many steps, then everything is made whole again, and must become so."""
        owner = self.set
        names = list(self.weights)
        for _ in range(3):  # as an operator would begin
            self.settle(2)
        for _ in range(steps):
            step = self.random.choices(names, list(self.weights.values()))[0]
            step()
            self.restart()
            owner.check()
        self.finish()
        return owner

    # -- whom ----------------------------------------------------------------------------------------------------------

    def up(self) -> list[Node]:
        return [node for node in self.set.nodes if node.up and not node.paused]

    def node(self) -> Node | None:
        return self.random.choice(self.up()) if self.up() else None

    def restart(self, surely: bool = False) -> None:
        """Nodes whose role has changed start anew, soon."""
        for node in self.up():
            if node.again and (surely or self.random.random() < 0.6):
                self.set.note(f"{node.name} starts anew ({node.again})")
                node.stop()
                node.start()
                self.said(node)

    def said(self, node: Node) -> None:
        if not node.up:
            self.set.note(f"{node.name} stays down")

    # -- steps ---------------------------------------------------------------------------------------------------------

    def send(self) -> None:
        node = next((node for node in self.up() if node.leading), None) or self.node()
        if node is not None:
            topic = self.random.choice("OPPPQQD")
            count = self.random.choice((1, 1, 1, 3))
            for _ in range(count):
                delay_ms = self.random.choice((0, 0, 0, 0, 300, 2000, 9000))
                self.set.send(node, topic, self.random.choice((20, 100, 700, 3000, 9000)), delay_ms)
            self.set.note(f"{node.name} gets {count} for {topic}")

    def deliver(self) -> None:
        ends = [end for end in self.set.live_ends() if end.coming or not end.other.live]
        if ends:
            end = self.random.choice(ends)
            if not end.node.paused:
                self.set.deliver(end, self.random.choice((1, 1, 1, 0.5)))

    def work(self) -> None:
        for node in self.up():
            if self.random.random() < 0.6:
                node.work()

    def pass_time(self) -> None:
        ms = self.random.choice((5, 20, 500, 600, 1500, 4000))
        self.set.note(f"{ms} ms pass")
        while ms > 0:
            self.set.clock.advance(min(ms, 500))
            ms -= 500
            for node in self.up():
                node.tick()
            if self.random.random() < 0.5:
                for end in list(self.set.live_ends()):
                    if not end.node.paused:
                        self.set.deliver(end, 1)

    def pull(self) -> None:
        if (node := self.node()) is not None:
            self.set.pull(node, self.random.choice("OPQD"))

    def connect(self) -> None:
        """A slave without a connection makes one, to any node it might know."""
        for node in self.up():
            if node.listening and node.copies.following and not node.again and not self.connected(node):
                other = self.random.choice(self.set.nodes)
                if self.set.join(node, other, "to_master") is not None:
                    self.set.note(f"{node.name} connects to {other.name}")

    def connected(self, node: Node) -> bool:
        return any(end.node is node and isinstance(end.session, SlaveSession) for end in self.set.live_ends())

    def drop(self) -> None:
        ends = self.set.live_ends()
        if ends:
            end = self.random.choice(ends)
            if not end.node.paused:
                self.set.note(f"{end.node.name} loses its connection to {end.other.node.name}")
                end.node.turn(lambda: end.node.drop(end))

    def partition(self) -> None:
        one, other = self.random.sample(self.set.nodes, 2)
        self.set.cut_off.add(frozenset((one.number, other.number)))
        self.set.note(f"{one.name} and {other.name} are cut off")

    def heal(self) -> None:
        if self.set.cut_off:
            self.set.cut_off.clear()
            self.set.note("nobody is cut off")

    def kill(self) -> None:
        if self.up():
            node = self.random.choice([node for node in self.set.nodes if node.up])
            self.set.note(f"{node.name} is killed")
            node.kill()
            node.paused = False

    def stop(self) -> None:
        if (node := self.node()) is not None:
            self.set.note(f"{node.name} is stopped")
            node.stop()

    def power(self) -> None:
        node = self.random.choice(self.set.nodes)
        self.set.note(f"{node.name} loses power")
        node.cut_power()
        node.paused = False

    def start(self) -> None:
        for node in self.set.nodes:
            if not node.up and self.random.random() < 0.7 and self.set.may_start(node):
                if node.stays_down and self.random.random() < 0.9:
                    continue
                accepts = bool(node.stays_down)
                if accepts and self.set.chosen is not None:
                    continue
                if accepts and any(other.up for other in self.set.nodes if other is not node):
                    continue  # there is one to be promoted
                self.set.note(f"{node.name} starts{' with ha_accept_loss' if accepts else ''}")
                node.start(accepts)
                self.said(node)

    def switch(self) -> None:
        for node in self.up():
            if node.leading:
                try:
                    node.turn(lambda: node.ha.mastership.switch("") and None)  # noqa: B023
                    self.set.note(f"{node.name} gives its place")
                except Refused:
                    pass

    def promote(self) -> None:
        if (node := self.node()) is not None:
            loss = self.random.random() < 0.1
            if self.set.promote(node, loss):
                self.set.note(f"{node.name} is promoted{' and a loss accepted' if loss else ''}")

    def fail_over(self) -> None:
        """The master is killed, with bytes on the way or not, and a slave promoted, which may have lost power just before; then
        some time may go by until the old one is back.
        """
        slaves = [node for node in self.up() if node.copies.following]
        if slaves and self.random.random() < 0.3:
            slave = self.random.choice(slaves)
            self.set.note(f"{slave.name} loses power, and starts again")
            slave.cut_power()
            slave.start()
            self.connect()
        for node in self.up():
            if node.leading:
                self.set.note(f"{node.name} is killed, to be replaced")
                node.kill()
        for _ in range(self.random.randrange(12)):
            self.deliver()
        for node in sorted(self.up(), key=lambda n: n.store.end_position, reverse=True):
            if self.set.promote(node, False):
                self.set.note(f"{node.name} is promoted")
                break
        if self.random.random() < 0.5:
            self.restart(surely=True)
            self.settle(2)
            self.send()
            self.settle(1)

    def pause(self) -> None:
        if (node := self.node()) is not None:
            node.paused = True
            self.set.note(f"{node.name} is paused")

    def wake(self) -> None:
        for node in self.set.nodes:
            node.paused = False

    def fill_disk(self) -> None:
        if (node := self.node()) is not None:
            node.files.full = True
            self.set.note(f"the disk of {node.name} is full")

    def free_disk(self) -> None:
        for node in self.set.nodes:
            node.files.full = node.files.fail_flush = False

    def crowd(self) -> None:
        """So little of a disk is left that the oldest segments go, whatever their age."""
        if (node := self.node()) is not None:
            node.work()
            node.files.used_ratio = 0.87
            begin = node.store.min_position
            for _ in range(3):
                self.set.clock.advance(5_000)
                for one in self.up():
                    one.tick()
            node.files.used_ratio = 0.1
            if node.store.min_position > begin:
                self.set.note(f"the log of {node.name} begins at {node.store.min_position}")

    def fail_flush(self) -> None:
        if (node := self.node()) is not None:
            node.files.fail_flush = True
            self.set.note(f"the disk of {node.name} fails")

    def watch(self) -> None:
        """A master without slaves asks whether there is a newer one."""
        for node in self.up():
            if node.leading and not node.again and not node.copies.members and node.ha.mastership.heir is None:
                asyncio.run(node.watch.superseded())

    # -- the end -------------------------------------------------------------------------------------------------------

    def settle(self, rounds: int) -> None:
        """Everything goes its way for a while."""
        for _ in range(rounds):
            self.connect()
            for _ in range(8):
                for end in list(self.set.live_ends()):
                    if not end.node.paused:
                        self.set.deliver(end, 1)
                for node in self.up():
                    node.work()
            self.set.clock.advance(600)
            for node in self.up():
                node.tick()
            self.restart(surely=True)

    def finish(self) -> None:
        """Everything is mended; what is left of it must become one set again, by itself or as the docs say."""
        owner = self.set
        owner.note("the end")
        self.wake()
        self.heal()
        self.free_disk()
        for attempt in range(16):
            for node in owner.nodes:
                if node.up and not node.store.healthy:
                    node.kill()
                if not node.up and owner.may_start(node):
                    loss = bool(node.stays_down) and attempt >= 5 and owner.chosen is None
                    owner.note(f"{node.name} starts{' with ha_accept_loss' if loss else ''}")
                    node.start(loss)
                    self.said(node)
            self.settle(8)
            self.watch()
            self.restart(surely=True)
            if not any(node.leading for node in owner.nodes):
                for node in sorted(self.up(), key=lambda n: (n.ha.replica.epoch, n.store.end_position), reverse=True):
                    if owner.promote(node, attempt >= 4):
                        owner.note(f"{node.name} is promoted in the end")
                        break
                self.restart(surely=True)
                continue
            masters = [node for node in owner.nodes if node.leading]
            lost = [node for node in owner.nodes if not self.whole(node, masters)]
            if len(masters) == 1 and not lost:
                break
            if attempt > 8 and len(masters) > 1:  # of one epoch: the operator gives one up
                keep = next((one for one in masters if all(one.has(sent) for sent in owner.owed.values())), masters[0])
                for node in masters:
                    if node is not keep:
                        self.rejoin(node)
            if attempt > 8 and len(masters) == 1:
                for node in lost:
                    if node.name in masters[0].copies.members or (not node.up and owner.may_start(node)):
                        continue  # it is catching up, or could not start before
                    if node.up and node.store.end_position == 0 and attempt < 12:  # its log says: start it again
                        node.kill()
                        node.start()
                        continue
                    said = not node.up or node.refused or node.stays_down or node.ha.mastership._uncut >= 0
                    owner.must(bool(said), f"{node.name} does not follow, and nothing says why")
                    self.rejoin(node)
        else:
            owner.must(False, "the set does not become whole again")
        [master] = masters
        before = owner.codes.get(0, 0)
        owner.send(master, "P", 50)
        self.settle(2)
        owner.must(owner.codes.get(0, 0) == before + 1, "a whole set does not answer 0")
        for number, sent in owner.owed.items():
            owner.must(master.has(sent), f"V2: message {number} was answered 0, and is gone in the end")
        for _ in range(12):
            owner.clock.advance(1000)
            self.settle(1)
        self.delivered(master)
        for node in owner.nodes:
            self.derived(node)
        owner.check()

    def whole(self, node: Node, masters: list[Node]) -> bool:
        if node in masters:
            return True
        return node.up and any(
            end.node in masters and end.other.node is node and Set.counts(end) for end in self.set.live_ends()
        )

    def rejoin(self, node: Node) -> None:
        """Nothing else helps: it begins anew."""
        self.set.note(f"{node.name} rejoins")
        if node.up:
            node.stop()
        rejoin(node.folder, node.files)
        node.image, node.sure, node.epoch, node.stays_down, node.refused = (0, b"", ()), 0, 0, "", False
        node.start()

    def delivered(self, master: Node) -> None:
        """V9: what was delayed, and answered 0, has come, and not before its time."""
        begin, log, _ = master.log()
        found = {(m.topic, bytes(m.body)): m for m in records_of(log)}
        for number, sent in self.set.owed.items():
            if sent.due_ms and sent.at >= begin:
                message = found.get((sent.topic, sent.body))
                self.set.must(message is not None, f"V9: message {number}, which was delayed, was never delivered")
                self.set.must(message is None or message.store_ms >= sent.due_ms, f"V9: message {number} came early")

    def derived(self, node: Node) -> None:
        """What readers of a node find is what is in its log."""
        log = node.log()[1]
        records = {(m.topic, m.queue_offset): m.body for m in records_of(log)}
        for topic in TOPICS:
            if topic.encode() not in node.broker.topics.by_name:
                continue
            queue = node.store.queue(topic.encode(), 0)
            for offset in range(queue.min_offset, queue.max_offset):
                entry = queue.entry(offset)
                if entry is not None and entry[1] == layout.FILLER_SIZE:  # given out and lost, or never used
                    continue
                record = node.store.record_at(entry[0]) if entry else None
                body = records.pop((topic, offset), None)
                found = next(iter_records(record)).body if record else None
                self.set.must(
                    found == body,
                    f"offset {offset} of {topic} at {node.name} is {found and found[:9]!r}, in the log {body and body[:9]!r}",
                )
        left = [key for key in records if key[0] in TOPICS]
        self.set.must(not left, f"{left} are in the log of {node.name} and in no queue")


def records_of(log: bytes) -> Iterator[Any]:
    """The records of a log that begins with a segment."""
    for at in range(0, len(log), 1 << 14):
        piece = log[at : at + (1 << 14)]
        used = 0
        while used + 8 < len(piece):
            size = int.from_bytes(piece[used : used + 4], "big")
            if size == 0 or piece[used + 4 : used + 8] != piece[4:8]:
                break
            yield from iter_records(piece[used : used + size])
            used += size


def walk(seed: int, steps: int = 60, nodes: int = 0) -> Set:
    """One walk. Violation when something does not hold."""
    made = Walk(seed, nodes or 2 + seed % 2)
    try:
        return made.run(steps)
    finally:
        made.set.close()
