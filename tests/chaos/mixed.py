"""H-13: one failover after the other (kill -9, SIGTERM, SIGSTOP, a change of places) of a set that an engine leads, under
delayed messages, transactions, order, and NSQ's PUB, REQ and FIN.

M1  what is delayed and was answered 0 comes, and nothing comes early
M2  what was committed is there, once; what was rolled back never
M3  a producer that repeats each message until it is answered 0 finds its messages in that order in their queue
M4  what was published by NSQ and answered OK is consumed, whoever leads, and what was finished long ago does not come again
M5  both logs are the same bytes, both stores sound, nothing had to be discarded
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from etcd_parts import ElectedSet, Etcd
from fronts.raw_peer import RawPeer
from ha_parts import eventually
from penstock.errors import PenstockError
from penstock.log.comparing import compare
from penstock.log.verify import verify
from penstock.wire.codes import ResponseCode
from penstock.wire.record import iter_records
from registration.test_channels import QUICK, Load

Tell = Callable[[str], None]
TOPICS = ("Later", "Deal", "Order")
QUEUES = 4
DELAYS_MS = (20, 300, 1_500, 6_000)
EARLY_S = 0.01  # several brokers, one after the other, each with a line of its own
COMMIT, ROLL_BACK = 8, 12
OLD_S = 30.0
HOW = ("kill", "term", "switch", "stop")


class Clients:
    """What they were told; each goes on to the next node when one does not take its message."""

    def __init__(self, made: ElectedSet, seed: int) -> None:
        self.set = made
        self.chance = random.Random(seed)
        self.over = threading.Event()
        self.due: dict[bytes, float] = {}  # of delayed messages, answered 0 or not: not before
        self.later: set[bytes] = set()  # of those, answered 0
        self.committed: set[bytes] = set()
        self.rolled_back: set[bytes] = set()
        self.ordered: list[bytes] = []
        self.early: list[str] = []
        self.codes: Counter[str] = Counter()
        self._nodes = itertools.cycle(made.nodes.values())
        self._number = itertools.count()
        works = (self._later, self._deal, self._order)
        self._threads = [threading.Thread(target=self._again, args=(work,), daemon=True) for work in works]
        self._threads.append(threading.Thread(target=self._read_early, daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()

    def _again(self, work: Callable[[RawPeer], int]) -> None:
        while not self.over.is_set():
            with (
                contextlib.suppress(OSError, EOFError, KeyError),
                RawPeer(next(self._nodes).addresses["remoting"]) as peer,
            ):
                while not self.over.is_set():
                    code = work(peer)
                    self.codes[f"{work.__name__} {code}"] += 1
                    if code not in (0, ResponseCode.SLAVE_NOT_AVAILABLE, ResponseCode.FLUSH_SLAVE_TIMEOUT):
                        break
                    time.sleep(0.002)  # the machine has other things to do, too
            self.over.wait(0.05)

    def _later(self, peer: RawPeer) -> int:
        body, delay_ms = b"later %d" % next(self._number), self.chance.choice(DELAYS_MS)
        self.due[body] = time.time() + delay_ms / 1000
        code = peer.send(
            "Later", body, {"TIMER_DELAY_MS": str(delay_ms)}, e=self.chance.randrange(QUEUES), d=QUEUES
        ).code
        if code == 0:
            self.later.add(body)
        return code

    def _deal(self, peer: RawPeer) -> int:
        body, commits = b"deal %d" % next(self._number), self.chance.random() < 0.7
        if not commits:
            self.rolled_back.add(body)  # whatever is answered
        half = peer.send("Deal", body, {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": body.hex()}, f=4)
        if half.code:
            return half.code
        code = peer.ask(37, {
            "producerGroup": "PG", "tranStateTableOffset": half.ext["queueOffset"],
            "commitOrRollback": COMMIT if commits else ROLL_BACK, "commitLogOffset": int(half.ext["msgId"][16:], 16),
            "fromTransactionCheck": "false", "msgId": body.hex(),
        }).code  # fmt: skip
        if commits and code == 0:
            self.committed.add(body)
        return code

    def _order(self, peer: RawPeer) -> int:
        body = b"order %08d" % len(self.ordered)
        code = peer.send("Order", body, e=0, d=QUEUES).code
        if code == 0:
            self.ordered.append(body)
        return code

    def _read_early(self) -> None:
        """Readers of delayed messages, at whoever serves them."""
        at = dict.fromkeys(range(QUEUES), 0)
        while not self.over.is_set():
            with (
                contextlib.suppress(OSError, EOFError, KeyError),
                RawPeer(next(self._nodes).addresses["remoting"]) as peer,
            ):
                for queue in at:
                    answer = peer.pull("Later", queue, at[queue])
                    now = time.time()
                    for message in iter_records(answer.body) if answer.code == 0 else ():
                        if now < self.due[message.body] - EARLY_S:
                            self.early.append(f"M1: {message.body!r} came {self.due[message.body] - now:.3f} s early")
                    at[queue] = int(answer.ext["nextBeginOffset"]) if answer.code == 0 else max(0, at[queue] - 50)
            self.over.wait(0.02)

    def bodies(self, topic: str) -> list[tuple[int, bytes]]:
        """(queue, body) of all there are, as the master gives them."""
        found = []
        with RawPeer(self.set.nodes[self.set.master()].addresses["remoting"]) as peer:
            for queue in range(QUEUES):
                offset = 0
                while (answer := peer.pull(topic, queue, offset, maxMsgNums=2_000)).code not in (
                    ResponseCode.PULL_NOT_FOUND, ResponseCode.TOPIC_NOT_EXIST,
                ):  # fmt: skip
                    if answer.code == 0:
                        found += [(queue, bytes(message.body)) for message in iter_records(answer.body)]
                    offset = max(offset + 1, int(answer.ext["nextBeginOffset"]))
        return found

    def judge(self) -> str:
        """M1 to M3."""
        assert not self.early, self.early[:3]
        missing: set[bytes] = set()

        def all_came() -> bool:
            missing.clear()
            missing.update(self.later - {body for _, body in self.bodies("Later")})
            return not missing

        with contextlib.suppress(AssertionError):
            eventually(all_came, 60 + max(DELAYS_MS) / 1000)
        assert not missing, f"M1: {len(missing)} of {len(self.later)} never came: {sorted(missing)[:3]}"
        deals = Counter(body for _, body in self.bodies("Deal"))
        lost = self.committed - deals.keys()
        assert not lost, f"M2: {len(lost)} of {len(self.committed)} committed are not there: {sorted(lost)[:3]}"
        assert not deals.keys() & self.rolled_back, (
            f"M2: rolled back, and there: {sorted(deals.keys() & self.rolled_back)[:3]}"
        )
        twice = [body for body, times in deals.items() if times > 1]
        assert not twice, f"M2: twice: {sorted(twice)[:3]}"
        firsts = list(dict.fromkeys(body for queue, body in self.bodies("Order") if queue == 0))
        assert firsts == sorted(firsts), "M3: out of order"
        gone = set(self.ordered) - set(firsts)
        assert not gone, f"M3: {len(gone)} of {len(self.ordered)} are lost: {sorted(gone)[:3]}"
        return f"{len(self.later):,} delayed, {len(self.committed):,} committed, {len(self.ordered):,} in order"


def fail_over(made: ElectedSet, how: str, chance: random.Random) -> None:
    """Another node leads, and the one that did is a slave."""
    old = made.master()
    node = made.nodes[old]
    if how == "switch":
        eventually(
            lambda: made.ha("switch").returncode == 0 or made.state()["master"] != old, 60, "places do not change"
        )
    elif how == "stop":
        assert node.process is not None
        node.process.send_signal(signal.SIGSTOP)
        try:
            eventually(lambda: made.state()["master"] != old, 60, f"nobody takes the place of {old}")
            time.sleep(chance.uniform(0, 2))
        finally:
            node.process.send_signal(signal.SIGCONT)
    else:
        if how == "kill":
            node.kill()
        else:
            node.stop()
        eventually(lambda: made.state()["master"] != old, 60, f"nobody takes the place of {old}")
        time.sleep(chance.uniform(0, 1))
        node.start()
    made.in_sync()


def mixed(folder: Path, rounds: int, tell: Tell, *, seed: int = 0) -> None:
    chance = random.Random(seed)
    etcd = Etcd(folder)
    began = time.monotonic()
    try:
        etcd.start()
        made = ElectedSet(folder, etcd, default_topic_queue_nums=QUEUES, **QUICK)
        try:
            made.start()
            clients = Clients(made, seed)
            leader = [made.nodes[made.master()]]
            load = Load(lambda: leader[0].addresses["nsq"], seed)
            try:
                clients.start()
                order = [HOW[n % len(HOW)] for n in range(rounds)]
                chance.shuffle(order)
                for number, how in enumerate(order):
                    load.wait_for(100)
                    time.sleep(chance.uniform(0.2, 2))
                    fail_over(made, how, chance)
                    leader[0] = made.nodes[made.master()]
                    tell(f"{number + 1}/{rounds} {how}: master {made.master()}, {len(clients.later):,} delayed, "
                         f"{len(clients.committed):,} committed, {len(load.acknowledged):,} published")  # fmt: skip
                took = time.monotonic() - began
                load.settle()
                clients.stop()
                told = clients.judge()
            finally:
                clients.over.set()
                load.stop()
            faults = [answer for answer in load.faults if not answer.endswith(b"this broker is a slave, not master")]
            assert not faults, f"M4: {faults[:3]}"
            assert not [s for s in load.again if s > OLD_S], "M4: what was finished long ago came again"
        finally:
            made.stop()
    finally:
        etcd.stop()
    one, other = (made.nodes[name].folder for name in "ab")
    compared = compare(one, other)
    assert compared.same == min(compared.one[0], compared.other[0]), f"M5: {compared}"
    for name, node in made.nodes.items():
        assert verify(node.folder).ok, f"M5: the store of {name}"
        assert not node.says("nothing is cut"), f"M5: {name} had to be discarded"
    tell(
        f"{rounds} failovers in {took / 60:.1f} minutes: {told}, {len(load.acknowledged):,} published and consumed; "
        "the logs are one"
    )


def run(rounds: int, tell: Tell, *, seed: int = 0) -> None:
    """So many failovers. What fails is kept."""
    folder = tempfile.mkdtemp(prefix="penstock-chaos-")
    try:
        mixed(Path(folder), rounds, tell, seed=seed)
    except (AssertionError, PenstockError) as error:
        raise AssertionError(f"{error}\nkept in {folder}") from error
    shutil.rmtree(folder)


def campaign(times: int, tell: Tell, seed: int) -> None:
    """`./run chaos ha`; `times` 0: the short one."""
    if shutil.which("etcd") is None:
        tell("no failovers: etcd is missing (Debian: etcd-server)")
        return
    run(20 * times or 4, tell, seed=seed)
