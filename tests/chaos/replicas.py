"""A master and its slave under sends and readers, while each of them is killed, stopped, cut off, or has a bad disk.

R1  what was answered 0 at level `pair` is in the topic in the end, where it was said to be
R2  an offset that was answered, or that any reader has seen at either node, never means another message
R3  both logs are the same bytes, both stores are sound, and nothing had to be discarded
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import penstock
from chaos.proxy import Proxy
from fronts.raw_peer import RawPeer
from ha_parts import SMALL, Process, eventually
from penstock.errors import PenstockError
from penstock.log.comparing import compare
from penstock.log.verify import verify
from penstock.wire.record import iter_records
from ports import free_port

Tell = Callable[[str], None]
TOPIC = "Chaos"
QUEUES = 2
RULE = re.compile(r"\b(?:R|P|H-)[1-9][0-9]*: .*")
FAULTY = Path(__file__).with_name("faulty.py")


class Ledger:
    """What clients were told, and what readers saw. Its threads end with `stop`."""

    def __init__(self, owner: Replicas, seed: int) -> None:
        self.owner = owner
        self.seed = seed
        self.over = threading.Event()
        self.lock = threading.Lock()
        self.known: dict[tuple[int, int], bytes] = {}  # (queue, offset) → body
        self.acked: dict[bytes, tuple[int, int]] = {}
        self.codes: dict[int, int] = {}
        self.objections: list[str] = []
        self.seen = 0
        jobs = [(self._send, 0), (self._send, 1), (self._read, "a"), (self._read, "b"), (self._send_once, 2)]
        self.threads = [threading.Thread(target=self._again, args=job, daemon=True) for job in jobs]

    def start(self) -> None:
        for thread in self.threads:
            thread.start()

    def stop(self) -> None:
        self.over.set()
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive()

    def _again(self, run: Callable[[object], None], word: object) -> None:
        while not self.over.is_set():
            with contextlib.suppress(OSError, EOFError, PenstockError, KeyError):
                run(word)
            self.over.wait(0.02)

    def note(self, queue: int, offset: int, body: bytes, who: str) -> None:
        with self.lock:
            before = self.known.setdefault((queue, offset), body)
        if before != body:
            self.objections.append(
                f"R2: offset {offset} of queue {queue} was {before[:30]!r}, {who} says {body[:30]!r}"
            )

    def _send(self, number: object) -> None:
        assert isinstance(number, int)
        chance = random.Random(self.seed * 7 + number)
        with RawPeer(self.owner.master.addresses["remoting"]) as peer:
            while not self.over.is_set():
                body = b"%d/%d/" % (number, time.monotonic_ns()) + chance.randbytes(chance.choice((10, 200, 5_000)))
                queue = chance.randrange(QUEUES)
                answer = peer.send(TOPIC, body, {"KEYS": "k"}, e=queue, d=QUEUES)
                with self.lock:
                    self.codes[answer.code] = self.codes.get(answer.code, 0) + 1
                if answer.code == 0:
                    offset = int(answer.ext["queueOffset"])
                    self.note(queue, offset, body, "an answer")
                    self.acked[body] = queue, offset
                elif answer.code not in (11, 12):
                    return  # it is not the master, or its disk is full: ask who is
                time.sleep(0.0005)  # the machine has other things to do, too

    def _send_once(self, number: object) -> None:
        """Each under a number, repeated until it is at its level."""
        with penstock.Producer(self.owner.name_server, idempotent=True, retries=50) as producer:
            while not self.over.is_set():
                body = b"%s/%d" % (str(number).encode(), time.monotonic_ns())
                receipt = producer.send(penstock.Message(TOPIC, body))
                if receipt.status.name == "SEND_OK":
                    self.note(receipt.queue.queue_id, receipt.queue_offset, body, "an answer")
                    self.acked[body] = receipt.queue.queue_id, receipt.queue_offset
                self.over.wait(0.02)

    def _read(self, name: object) -> None:
        """Everything, over and over, from one node."""
        at = dict.fromkeys(range(QUEUES), 0)
        with RawPeer(self.owner.nodes[str(name)].addresses["remoting"]) as peer:
            while not self.over.is_set():
                for queue in at:
                    answer = peer.pull(TOPIC, queue, at[queue])
                    if answer.code == 0:
                        for message in iter_records(answer.body):
                            self.note(queue, message.queue_offset, bytes(message.body), f"a reader of {name}")
                            self.seen += 1
                        at[queue] = int(answer.ext["nextBeginOffset"])
                    else:
                        at[queue] = max(0, at[queue] - 200)
                self.over.wait(0.01)


def make_faulty(node: Process, control: Path, defect: str) -> None:
    """It runs `faulty.py` instead, with or without a planted defect."""
    node.words[1:3] = [str(FAULTY), str(control)]
    if defect:
        node.words.insert(3, f"defect={defect}")
        node.environment["PENSTOCK_PURE"] = "1"  # what is compiled cannot be planted in


def objection(run: Callable[[Tell], None]) -> str:
    """What the oracle says of brokers with a planted defect. RuntimeError when the run ends by anything but a rule: a
    defect with which no broker could start was taken for found.
    """
    try:
        run(lambda text: None)
    except AssertionError as error:
        said = RULE.search(str(error).strip().splitlines()[-1])
        if said is None:
            raise RuntimeError(f"no rule objects: {error}") from error
        return said[0]
    raise AssertionError("nothing was missed")


class Replicas:
    """A registry, and the nodes a and b; `via`: b reaches a through a proxy."""

    def __init__(self, folder: Path, seed: int, *, via: bool = False, defect: str = "") -> None:
        self.folder = folder
        self.registry = Process(
            "registry", folder / "r", folder / "r.log", registry_port=0, lookup_port=-1, lookup_http_port=-1
        ).start()
        self.name_server = self.registry.addresses["registry"]
        port = free_port()
        self.proxy = Proxy(f"127.0.0.1:{port}", seed) if via else None
        shared: dict[str, object] = {
            "registry": self.name_server, "nsq_port": -1, "http_port": -1, "level": "pair", "ha_answer_ms": 1_000,
            "register_broker_period_ms": 300, "default_topic_queue_nums": QUEUES, "ha_in_sync_ms": 1_500, **SMALL,
        }  # fmt: skip
        more = {"ha_master": self.proxy.address} if self.proxy else {}
        self.nodes = {
            "a": Process("broker", folder / "a", folder / "a.log", node="a", ha_port=port, remoting_port=free_port(), **shared),
            "b": Process("broker", folder / "b", folder / "b.log", node="b", role="slave", ha_port=free_port(),
                         remoting_port=free_port(), **shared, **more),
        }  # fmt: skip
        for name, node in self.nodes.items():
            make_faulty(node, folder / f"{name}.disk", defect)
        self.first = "a"

    @property
    def master(self) -> Process:
        return self.nodes[self.first]

    @property
    def slave(self) -> Process:
        return self.nodes[self.second]

    @property
    def second(self) -> str:
        return "b" if self.first == "a" else "a"

    def disk(self, name: str, words: str) -> None:
        path = self.folder / f"{name}.disk"
        path.with_suffix(".new").write_text(words)
        path.with_suffix(".new").rename(path)

    def rows(self, node: Process) -> list[dict[str, object]]:
        with penstock.Admin(self.name_server) as admin:
            found: list[dict[str, object]] = json.loads(admin.runtime_info(node.addresses["remoting"])["replicaSet"])
            return found

    def whole(self) -> bool:
        """Whether the slave is in sync with the master."""
        try:
            rows = self.rows(self.master)
        except (PenstockError, OSError, KeyError):
            return False
        return rows[0]["role"] == "master" and any(
            row["node"] == self.second and row["role"] == "slave" and row["in_sync"] == "yes" for row in rows
        )

    def heal(self) -> None:
        eventually(self.whole, 120, f"{self.second} does not get in sync with {self.first}")

    def send_signal(self, name: str, number: signal.Signals) -> None:
        process = self.nodes[name].process
        assert process is not None
        os.kill(process.pid, number)

    def close(self) -> None:
        for node in (*self.nodes.values(), self.registry):
            if node.process is not None and node.process.poll() is None:
                node.process.send_signal(signal.SIGCONT)
            node.stop()
        if self.proxy is not None:
            self.proxy.close()

    # -- what happens to it ------------------------------------------------------------------------------------------

    def master_killed(self, chance: random.Random) -> None:
        """And its slave promoted; the old one comes back with the line it was always started with."""
        if chance.random() < 0.3:  # it hangs at first
            self.send_signal(self.first, signal.SIGSTOP)
            time.sleep(chance.uniform(0, 1))  # the moment is the experiment
        self.master.kill()
        self._fail_over(chance)

    def both_killed(self, chance: random.Random) -> None:
        """The slave hangs, both are killed, and the slave is promoted: the master has more, which was never confirmed."""
        self.send_signal(self.second, signal.SIGSTOP)
        time.sleep(chance.uniform(0.2, 1.0))
        self.master.kill()
        self.slave.kill()
        self.slave.start()
        self._fail_over(chance)

    def _fail_over(self, chance: random.Random) -> None:
        old = self.first
        with penstock.Admin(self.name_server) as admin:
            eventually(lambda: self._asked(admin), 30, f"{self.second} is not promoted")
        if LACKING in self.said:  # it hung for longer than a slave in sync may: only the old one has everything
            self.nodes[old].start()
            return
        self.first = self.second
        eventually(lambda: self._leads(self.master), 60, f"{self.first} does not lead")
        time.sleep(chance.uniform(0, 0.5))
        self.nodes[old].start()

    said = ""  # of the slave, when it was asked last to be the master

    def _asked(self, admin: penstock.Admin) -> bool:
        try:
            admin.promote(self.slave.addresses["remoting"])
            self.said = ""
        except PenstockError as error:
            self.said = str(error)
            return "is the master already" in self.said or LACKING in self.said
        return True

    def _leads(self, node: Process) -> bool:
        try:
            return self.rows(node)[0]["role"] == "master"
        except (PenstockError, OSError, KeyError):
            return False

    def slave_killed(self, chance: random.Random) -> None:
        self.slave.kill()
        time.sleep(chance.uniform(0, 1))
        self.slave.start()

    def master_restarted(self, chance: random.Random) -> None:
        """kill -9, and it comes back at once: nobody is promoted."""
        self.master.kill()
        self.master.start()

    def slave_stopped(self, chance: random.Random) -> None:
        self._stopped(self.second, chance)

    def master_stopped(self, chance: random.Random) -> None:
        self._stopped(self.first, chance)

    def _stopped(self, name: str, chance: random.Random) -> None:
        self.send_signal(name, signal.SIGSTOP)
        time.sleep(chance.uniform(0.5, self.longest_s))
        self.send_signal(name, signal.SIGCONT)

    longest_s = 4.0

    def places_changed(self, chance: random.Random) -> None:
        with penstock.Admin(self.name_server) as admin:
            admin.switch(self.master.addresses["remoting"], self.second)
        self.first = self.second
        eventually(lambda: self._leads(self.master), 60, f"{self.first} does not lead")

    def slave_full(self, chance: random.Random) -> None:
        self._bad_disk(self.second, "full", chance)

    def slave_slow(self, chance: random.Random) -> None:
        self._bad_disk(self.second, "slow 200", chance)

    def master_slow(self, chance: random.Random) -> None:
        self._bad_disk(self.first, "slow 200", chance)

    def _bad_disk(self, name: str, words: str, chance: random.Random) -> None:
        self.disk(name, words)
        time.sleep(chance.uniform(1, self.longest_s))
        if words == "full" and chance.random() < 0.4:
            self.nodes[name].kill()
            self.disk(name, "")
            self.nodes[name].start()
        self.disk(name, "")

    # -- what happens between them -----------------------------------------------------------------------------------

    def wire_cut(self, chance: random.Random) -> None:
        assert self.proxy is not None
        for _ in range(3):
            self.proxy.cut()
            time.sleep(chance.uniform(0, 0.5))

    def wire_late(self, chance: random.Random) -> None:
        assert self.proxy is not None
        self.proxy.delay_s = chance.choice((0.02, 0.2, 1.0))
        time.sleep(chance.uniform(1, self.longest_s))
        self.proxy.delay_s = 0.0

    def wire_flips(self, chance: random.Random) -> None:
        assert self.proxy is not None
        for _ in range(3):
            self.proxy.flip = True
            time.sleep(chance.uniform(0.2, 1.2))

    def wire_dead(self, chance: random.Random) -> None:
        """Half open: nothing comes through any more, and nobody is told."""
        assert self.proxy is not None
        self.proxy.dead = True
        time.sleep(chance.uniform(1, self.longest_s))
        self.proxy.dead = False
        self.proxy.cut()  # what was on its way is lost, as with a new connection


LACKING = "may lack messages"
NODES = ("master_killed", "both_killed", "slave_killed", "master_restarted", "slave_stopped", "master_stopped", "places_changed",
         "slave_full", "slave_slow", "master_slow")  # fmt: skip
WIRES = ("wire_cut", "wire_late", "wire_flips", "wire_dead", "slave_killed", "master_restarted")


def judge(made: Replicas, ledger: Ledger) -> int:
    """Everything that was promised is in the topic; how much that is."""
    found: dict[tuple[int, int], bytes] = {}
    with RawPeer(made.master.addresses["remoting"]) as peer:
        for queue in range(QUEUES):
            offset = 0
            while (answer := peer.pull(TOPIC, queue, offset, maxMsgNums=2_000)).code != 19:
                for message in iter_records(answer.body, check=True) if answer.code == 0 else ():
                    found[queue, message.queue_offset] = bytes(message.body)
                offset = max(offset + 1, int(answer.ext["nextBeginOffset"]))
    assert not ledger.objections, ledger.objections[:5]
    lost = [where for body, where in ledger.acked.items() if found.get(where) != body]
    assert not lost, f"R1: {len(lost)} of {len(ledger.acked)} acknowledged messages are lost, the first at {min(lost)}"
    return len(found)


def replicas(rounds: int, tell: Tell, *, seed: int = 0, faults: tuple[str, ...] = NODES, longest_s: float = 4.0,
             defect: str = "") -> None:  # fmt: skip
    """So many faults at random, each from and to a whole set."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as name:
        made = Replicas(Path(name), seed, via="wire_cut" in faults, defect=defect)
        made.longest_s = longest_s
        ledger = Ledger(made, seed)
        try:
            for node in made.nodes.values():
                node.start()
            made.heal()
            ledger.start()
            order = [faults[n % len(faults)] for n in range(rounds)]  # each comes, in any order
            chance.shuffle(order)
            for number, fault in enumerate(order):
                time.sleep(chance.uniform(0.1, 0.6))
                getattr(made, fault)(chance)
                made.heal()
                count = len(ledger.acked)
                tell(
                    f"{number + 1}/{rounds} {fault}: master {made.first}, {count:,} acknowledged, codes {ledger.codes}"
                )
            ledger.stop()
            there = judge(made, ledger)
        finally:
            ledger.over.set()
            made.close()
        told = compare(*(made.folder / name for name in "ab"))
        ends = told.one[0], told.other[0]
        assert told.same == min(ends) == max(ends) == told.shared, f"R3: {told}"
        for one in "ab":
            assert verify(made.folder / one).ok, f"R3: the store of {one}"
            assert not made.nodes[one].says("nothing is cut"), f"R3: {one} had to be discarded"
        tell(f"{len(ledger.acked):,} acknowledged and {there:,} there, {ledger.seen:,} read; both logs are one")


def find(defect: str, *, seed: int = 0, rounds: int = 6) -> str:
    """What the oracle says of brokers with a planted defect, of which masters are killed."""
    return objection(lambda tell: replicas(rounds, tell, seed=seed, faults=("both_killed",), defect=defect))


def campaign(times: int, tell: Tell, seed: int) -> None:
    """`./run chaos ha`; `times` 0: the short one."""
    longest_s = 20.0 if times > 1 else 4.0
    replicas(60 * times or 9, tell, seed=seed, longest_s=longest_s)
    replicas(30 * times or 6, tell, seed=seed + 1, faults=WIRES, longest_s=longest_s)
    if times > 1:
        replicas(6, tell, seed=seed + 2, faults=("master_stopped", "slave_stopped"), longest_s=300.0)
    for defect in ("answered alone", "shown unconfirmed"):
        tell(f"planted: {defect:20} {find(defect, seed=seed)[:90]}")
