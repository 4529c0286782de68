"""A replica set that an engine leads, on machines of its own (`machines`), under sends and readers while they are cut off from
one another, one way or both, the engine is killed, stopped, emptied, and nodes are killed, stopped or lose their folder.

P1  what was answered 0 at level `pair` is in the topic in the end, where it was said to be (R1 of `replicas`)
P2  an offset that was answered, or read at any node, never means another message (R2)
P3  what is sent under a number is there once, however often it was repeated
P4  in one epoch one node calls itself the master; the engine's epoch never falls
P5  all logs are the same bytes, all stores sound, nothing had to be discarded

`python -m chaos.partitions FOLDER LAYOUT ROUNDS SEED LONGEST_S [FAULT …]` runs it; `run` does that in its own namespaces.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from chaos.machines import CLIENTS, Machines, Tell, at, can_make_machines, ends, inside, on
from chaos.replicas import QUEUES, TOPIC, Ledger, make_faulty, objection
from etcd_parts import ElectedSet, Etcd
from fronts.raw_peer import RawPeer
from ha_parts import SMALL, Process, eventually
from penstock.errors import PenstockError
from penstock.log.comparing import compare
from penstock.log.verify import verify
from penstock.wire.codes import ResponseCode
from penstock.wire.record import iter_records

LEASE_MS = 4_000
HEAL_S = 180
SOON_S = 60  # longer than a busy machine takes, shorter than the kernel tries to connect
REGISTRY, REMOTING, REPLICATION, ENGINE = 9876, 10911, 10912, 2379

# What does not come through: M the master, S a slave, T the third machine (of the engine, or one with everything), C clients.
CUTS: dict[str, tuple[str, ...]] = {
    "parted": ("MS", "SM"), "slave deaf": ("MS",), "master deaf": ("SM",),
    "master without engine": ("MT", "TM"), "master unheard by engine": ("MT",), "master deaf to engine": ("TM",),
    "slave without engine": ("ST", "TS"), "slave unheard by engine": ("ST",), "slave deaf to engine": ("TS",),
    "engine alone": ("MT", "TM", "ST", "TS"),
    "master alone": ("MS", "SM", "MT", "TM"), "master unheard": ("MS", "MT"), "master hears nobody": ("SM", "TM"),
    "master gone": ("MS", "SM", "MT", "TM", "CM", "MC"), "slave alone": ("MS", "SM", "ST", "TS"),
    "master without clients": ("CM", "MC"), "answers lost": ("MC",), "requests lost": ("CM",),
    "slave without clients": ("CS", "SC"),
}  # fmt: skip
DEEDS = (
    "flapping", "engine_killed", "engine_stopped", "engine_emptied", "master_stopped", "slave_stopped", "master_killed",
    "left_behind", "folder_lost", "machine_gone", "places_changed",
)  # fmt: skip
MEMBERS = ("member_killed", "member_stopped")
LAYOUTS = {"one": 1, "three": 3}  # members of the engine, and registries
FAULTS = {"one": (*CUTS, *DEEDS), "three": (*CUTS, *DEEDS, *MEMBERS)}


class Members(Etcd):
    """Of an engine, one on each of these machines."""

    def __init__(self, folder: Path, machines: dict[str, str]) -> None:
        self.program = shutil.which("etcd") or ""
        self._folder = folder
        self.machines = machines
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * len(machines)

    @property
    def setting(self) -> str:
        return "etcd://" + ",".join(f"{address}:{ENGINE}" for address in self.machines.values())

    def start_member(self, n: int) -> None:
        cluster = ",".join(f"{name}=http://{address}:2380" for name, address in self.machines.items())
        name, address = list(self.machines.items())[n]
        client, peer = f"http://{address}:{ENGINE}", f"http://{address}:2380"
        words = [
            *at(name), self.program, "--name", name, "--data-dir", str(self._folder / f"etcd-{name}"), "--listen-client-urls",
            client, "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", cluster,
        ]  # fmt: skip
        with open(self._folder / f"etcd-{name}.log", "ab") as log:
            self.processes[n] = subprocess.Popen(words, stdout=log, stderr=log)

    def ask(self, path: str, body: dict[str, object]) -> dict[str, object]:
        last: OSError | None = None
        for address in self.machines.values():
            try:
                url = f"http://{address}:{ENGINE}/v3/{path}"
                with urllib.request.urlopen(url, json.dumps(body).encode(), timeout=2) as answer:
                    found: dict[str, object] = json.load(answer)
                return found
            except OSError as error:
                last = error
        raise last or OSError("no member")

    def forget_everything(self) -> None:
        """Each member is killed, and starts with an empty folder."""
        self.kill()
        for name in self.machines:
            shutil.rmtree(self._folder / f"etcd-{name}")
        self.start()


class Apart(ElectedSet):
    """Nodes a, b (and c where there are three members) on machines m1, m2, m3."""

    def __init__(
        self, folder: Path, layout: str, stores: dict[str, Path] | None = None, *, defect: str = "", **settings: object
    ) -> None:
        self.folder = folder
        self.machines = Machines(3)
        count = LAYOUTS[layout]
        self.crowd = self.machines.names[-count:]  # each with a member and a registry
        self.etcd = Members(folder, {name: self.machines.addresses[name] for name in self.crowd})
        self.registries = {
            name: on(name, Process(
                "registry", folder / f"r-{name}", folder / f"r-{name}.log", host=self.machines.addresses[name],
                registry_port=REGISTRY, lookup_port=-1, lookup_http_port=-1, insecure="true",
            )) for name in self.crowd
        }  # fmt: skip
        self.name_server = ";".join(f"{self.machines.addresses[name]}:{REGISTRY}" for name in self.crowd)
        secret = folder / "secret"
        secret.write_text("not a word to anybody\n")
        secret.chmod(0o600)
        shared = {"registry": self.name_server, "nsq_port": -1, "http_port": -1, "vip_port": "false", "level": "pair",
                  "register_broker_period_ms": 500, "engine": self.etcd.setting, "lease_ms": LEASE_MS, "ha_port": REPLICATION,
                  "remoting_port": REMOTING, "ha_secret_file": secret, "insecure": "true", "ha_answer_ms": 1_000,
                  "ha_in_sync_ms": 1_500, "default_topic_queue_nums": QUEUES, **SMALL, **settings}  # fmt: skip
        self.places = dict(zip("abc" if layout == "three" else "ab", self.machines.names, strict=False))
        self.nodes = {
            name: Process("broker", (stores or {}).get(name, folder / name), folder / f"{name}.log", node=name,
                          host=self.machines.addresses[place], **shared)
            for name, place in self.places.items()
        }  # fmt: skip
        for name, node in self.nodes.items():
            make_faulty(node, folder / f"{name}.disk", defect)
            on(self.places[name], node)
            node.addresses = {"remoting": f"{self.machines.addresses[self.places[name]]}:{REMOTING}"}
        self._guesses = itertools.cycle(self.nodes)
        self.leader = ""  # known at the end; before that clients try one after the other

    @property
    def master(self) -> Process:  # type: ignore[override]
        """Whom a client takes for it."""
        return self.nodes[self.leader or next(self._guesses)]

    def start(self) -> Apart:
        self.etcd.start()
        for process in self.registries.values():
            process.start()
        super().start()
        return self

    def stop(self) -> None:
        for process in self.nodes.values():
            if process.process is not None and process.process.poll() is None:
                process.process.send_signal(signal.SIGCONT)
        for process in [*self.nodes.values(), *self.registries.values()]:
            process.stop()
        self.etcd.stop()

    def roles(self) -> dict[str, str]:
        """Machines by the letters of `CUTS`, and the names of the nodes M and S; the engine says who is the master."""
        master = str(self.state()["master"])
        others = [name for name in self.nodes if name != master]
        slave = others[0]
        place = self.places
        rest = next(name for name in self.machines.names if name not in (place[master], place[slave]))
        return {"M": place[master], "S": place[slave], "T": rest, "C": CLIENTS, "master": master, "slave": slave}

    def whole(self) -> bool:
        """All nodes are in the engine's set, and one of them is the master and says so."""
        try:
            state = self.state()
            row = self.row(str(state["master"]))
        except (KeyError, OSError, PenstockError, StopIteration):
            return False
        held = state["inSync"]
        assert isinstance(held, dict)
        return set(held) == set(self.nodes) and row["role"] == "master" and row["epoch"] == state["epoch"]

    def heal(self) -> float:
        """How long it takes until all is well."""
        self.machines.mend()
        begin = time.monotonic()
        eventually(self.whole, HEAL_S, f"the set is not whole again: {self.rows()}")
        return time.monotonic() - begin

    def signal(self, name: str, number: signal.Signals) -> None:
        process = self.nodes[name].process
        assert process is not None
        os.kill(process.pid, number)


class Watch(Ledger):
    """The ledger of `replicas`, with a reader of each node, and P4."""

    def __init__(self, owner: Apart, seed: int) -> None:
        super().__init__(owner, seed)  # type: ignore[arg-type]
        self.set = owner
        self.led: dict[int, str] = {}
        self.epoch = 0
        jobs: list[tuple[Callable[[object], None], object]] = [
            (self._read, name) for name in owner.nodes if name not in "ab"
        ]
        jobs += [(self._who_leads, name) for name in owner.nodes]
        self.threads += [threading.Thread(target=self._again, args=job, daemon=True) for job in jobs]

    def _who_leads(self, name: object) -> None:
        row = self.set.row(str(name))
        if row["role"] == "master":
            epoch = int(str(row["epoch"]))
            with self.lock:
                before = self.led.setdefault(epoch, str(name))
                self.epoch = max(self.epoch, epoch)
            if before != name:
                self.objections.append(f"P4: {before} and {name} are masters of epoch {epoch}")
        self.over.wait(0.2)


class Campaign:
    """What happens to such a set."""

    def __init__(self, made: Apart, chance: random.Random, longest_s: float) -> None:
        self.made = made
        self.chance = chance
        self.longest_s = longest_s
        self.epoch = 0

    def suffer(self, fault: str) -> None:
        if fault in CUTS:
            self._cut(fault, self._while_s())
        else:
            getattr(self, fault)()

    def _while_s(self) -> float:
        return self.chance.choice((0.5, 1.5, LEASE_MS / 1000, self.longest_s))

    def _cut(self, name: str, seconds: float, roles: dict[str, str] | None = None) -> None:
        roles = roles or self.made.roles()
        with self.made.machines.cut(*((roles[way[0]], roles[way[1]]) for way in CUTS[name])):
            time.sleep(seconds)  # so long is the experiment

    def flapping(self) -> None:
        """A network that comes and goes."""
        name, roles = self.chance.choice(list(CUTS)), self.made.roles()
        for _ in range(5):
            self._cut(name, self.chance.uniform(0.1, 1.2), roles)
            time.sleep(self.chance.uniform(0.1, 1.2))

    # -- the engine --------------------------------------------------------------------------------------------------

    def engine_killed(self) -> None:
        self.made.etcd.kill()
        time.sleep(self._while_s())
        self.made.etcd.start()

    def engine_stopped(self) -> None:
        self.made.etcd.signal(signal.SIGSTOP)
        time.sleep(self._while_s())
        self.made.etcd.signal(signal.SIGCONT)

    def engine_emptied(self) -> None:
        """It has lost its data: nobody leads until a person says who."""
        self.made.etcd.forget_everything()
        eventually(
            lambda: all(row["role"] == "slave" for row in self._all().values()), 60, "one leads by nobody's word"
        )
        rows = self._all()
        most = max(rows, key=lambda name: int(str(rows[name]["written"])))
        said: list[str] = []

        def promoted() -> bool:
            done = self.made.ha("promote", "--node", most)
            said[:] = [done.stderr.strip()]
            return done.returncode == 0

        with contextlib.suppress(AssertionError):
            return eventually(promoted, 60)
        raise AssertionError(f"{most} is not promoted: {said}")

    def _all(self) -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = {}

        def every() -> bool:
            found.update(self.made.rows())
            return set(found) == set(self.made.nodes)

        eventually(every, 60, "a node does not answer")
        return found

    def member_killed(self) -> None:
        n = self.chance.randrange(len(self.made.crowd))
        self.made.etcd.kill(n)
        time.sleep(self._while_s())
        self.made.etcd.start_member(n)

    def member_stopped(self) -> None:
        n = self.chance.randrange(len(self.made.crowd))
        self.made.etcd.signal(signal.SIGSTOP, n)
        time.sleep(self._while_s())
        self.made.etcd.signal(signal.SIGCONT, n)

    # -- the nodes ---------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _stopped(self, name: str) -> Iterator[None]:
        self.made.signal(name, signal.SIGSTOP)
        try:
            yield
        finally:
            self.made.signal(name, signal.SIGCONT)

    def master_stopped(self) -> None:
        with self._stopped(self.made.roles()["master"]):
            time.sleep(self._while_s())

    def slave_stopped(self) -> None:
        with self._stopped(self.made.roles()["slave"]):
            time.sleep(self._while_s())

    def master_killed(self) -> None:
        node = self.made.nodes[self.made.roles()["master"]]
        node.kill()
        time.sleep(self._while_s())
        node.start()

    def left_behind(self) -> None:
        """The slaves are out of the set, and the master, which goes on alone, is killed: none of them may stand."""
        roles = self.made.roles()
        master, others = (
            roles["master"],
            [self.made.places[name] for name in self.made.nodes if name != roles["master"]],
        )
        ways = [way for place in others for way in ((roles["M"], place), (place, roles["M"]))]
        if len(self.made.crowd) > 1:
            return self._left_behind_by_stops(master)
        with self.made.machines.cut(*ways):
            eventually(lambda: self.made.state()["inSync"].keys() == {master}, 60, "the slaves stay in the set")  # type: ignore[attr-defined]
            time.sleep(self.chance.uniform(0.2, 1))
            self.made.nodes[master].kill()
        self._nobody_stands(master)

    def _left_behind_by_stops(self, master: str) -> None:
        """The same where the machines of the slaves have the engine, too: they may not be cut off."""
        slaves = [name for name in self.made.nodes if name != master]
        with contextlib.ExitStack() as stack:
            for name in slaves:
                stack.enter_context(self._stopped(name))
            eventually(lambda: self.made.state()["inSync"].keys() == {master}, 60, "the slaves stay in the set")  # type: ignore[attr-defined]
            time.sleep(self.chance.uniform(0.2, 1))
            self.made.nodes[master].kill()
        self._nobody_stands(master)

    def _nobody_stands(self, master: str) -> None:
        end = time.monotonic() + LEASE_MS / 1000 + 2
        while time.monotonic() < end:
            assert self.made.state()["master"] == master, "P1: a node stands that was not in the set"
            time.sleep(0.2)
        self.made.nodes[master].start()

    def folder_lost(self) -> None:
        """The master's machine burns down, and another one takes its name."""
        name = self.made.roles()["master"]
        node = self.made.nodes[name]
        node.kill()
        shutil.rmtree(node.folder)
        eventually(lambda: self.made.state()["master"] != name, 60, f"nobody takes the place of {name}")
        node.start()

    def machine_gone(self) -> None:
        """The master's machine is off: nobody says no to who connects there. The others are a set without it."""
        roles = self.made.roles()
        others = {name for name in self.made.nodes if name != roles["master"]}
        self.made.machines.part(roles["M"], *(name for name in self.made.machines.addresses if name != roles["M"]))
        eventually(lambda: self.made.state()["inSync"].keys() == others, SOON_S, f"not the set: {sorted(others)}")  # type: ignore[attr-defined]
        self.made.machines.mend()

    def places_changed(self) -> None:
        roles = self.made.roles()
        eventually(lambda: self.made.ha("switch", "--to", roles["slave"]).returncode == 0
                   or self.made.state()["master"] != roles["master"], 60, "places do not change")  # fmt: skip


def judge(made: Apart, ledger: Watch, *, may_expire: bool) -> tuple[int, int]:
    """P1 to P3, once all is well; how many messages there are, and how many under a number. `may_expire`: the oldest go when
    the disk is full.
    """
    found: dict[tuple[int, int], bytes] = {}
    first = dict.fromkeys(range(QUEUES), 0)
    with RawPeer(made.master.addresses["remoting"]) as peer:
        for queue in first:
            answer = peer.pull(TOPIC, queue, 0)
            offset = first[queue] = int(answer.ext["minOffset"])
            while (answer := peer.pull(TOPIC, queue, offset, maxMsgNums=2_000)).code != ResponseCode.PULL_NOT_FOUND:
                for message in iter_records(answer.body, check=True) if answer.code == 0 else ():
                    found[queue, message.queue_offset] = bytes(message.body)
                offset = max(offset + 1, int(answer.ext["nextBeginOffset"]))
    assert may_expire or not any(first.values()), f"P1: queues begin at {first}"
    assert not ledger.objections, ledger.objections[:5]
    wanted = {where: body for body, where in ledger.acked.items() if where[1] >= first[where[0]]}
    lost = [where for where, body in wanted.items() if found.get(where) != body]
    assert not lost, f"P1: {len(lost)} of {len(wanted)} acknowledged messages are lost, the first at {min(lost)}"
    assert wanted, "P1: nothing is left to look for"
    numbered = Counter(body for body in found.values() if body.startswith(b"2/"))
    twice = [body for body, times in numbered.items() if times > 1]
    assert not twice, f"P3: {len(twice)} of {len(numbered)} are there twice: {sorted(twice)[:3]}"
    return len(found), len(numbered)


def within(
    folder: Path, layout: str, rounds: int, seed: int, longest_s: float, words: tuple[str, ...], tell: Tell
) -> None:
    """What `run` runs in namespaces of its own; one of the words may be `defect=NAME`, the others are faults."""
    defect = "".join(word for word in words if word.startswith("defect="))
    made = Apart(folder, layout, defect=defect.removeprefix("defect="))
    faults = tuple(word for word in words if word != defect)
    play(made, Campaign(made, random.Random(seed), longest_s), rounds, seed, faults, tell)


def play(made: Apart, campaign: Campaign, rounds: int, seed: int, faults: tuple[str, ...], tell: Tell) -> None:
    """So many of these faults in any order, under load, and what is promised."""
    chance = campaign.chance
    ledger = Watch(made, seed)
    try:
        made.start()
        ledger.start()
        order = [faults[n % len(faults)] for n in range(rounds)]
        chance.shuffle(order)
        for number, fault in enumerate(order):
            time.sleep(chance.uniform(0.1, 1.5))
            before, highest = len(ledger.acked), ledger.epoch
            campaign.suffer(fault)
            took = made.heal()
            assert not ledger.objections, ledger.objections[:5]
            state = made.state()
            assert int(str(state["epoch"])) >= highest, f"P4: epoch {state['epoch']} after {highest}"
            tell(f"{number + 1}/{rounds} {fault}: master {state['master']} of epoch {state['epoch']}, whole after {took:.1f} s, "
                 f"{len(ledger.acked) - before:,} of {len(ledger.acked):,} acknowledged, codes {ledger.codes}")  # fmt: skip
        ledger.stop()
        made.leader = str(made.state()["master"])
        there, numbered = judge(made, ledger, may_expire=any("full" in fault for fault in order))
    finally:
        ledger.over.set()
        made.stop()
    one_log(made)
    tell(f"{len(ledger.acked):,} acknowledged and {there:,} there, {numbered:,} under a number, each once; {ledger.seen:,} read; "
         "the logs are one")  # fmt: skip


def one_log(made: Apart) -> None:
    """P5."""
    for one, other in itertools.combinations(made.nodes, 2):
        told = compare(made.nodes[one].folder, made.nodes[other].folder)
        ends = told.one[0], told.other[0]
        assert told.same == min(ends), f"P5: {one} and {other}: {told}"
        assert told.shared >= min(ends), f"P5: {one} and {other}: {told}"
    for name, node in made.nodes.items():
        assert verify(node.folder).ok, f"P5: the store of {name}"
        assert not node.says("nothing is cut"), f"P5: {name} had to be discarded"


def run(
    rounds: int, tell: Tell, *, layout: str, seed: int = 0, longest_s: float = 6.0, faults: tuple[str, ...] = (),
    defect: str = "",
) -> None:  # fmt: skip
    """So many faults at random, each from and to a whole set. What fails is kept."""
    folder = tempfile.mkdtemp(prefix="penstock-chaos-")
    words = [*(faults or FAULTS[layout]), *([f"defect={defect}"] if defect else [])]
    try:
        inside(tell, "chaos.partitions", folder, layout, str(rounds), str(seed), str(longest_s), *words)
    except AssertionError as error:
        if not defect:
            raise AssertionError(f"{error}\nkept in {folder}") from error
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


def find(defect: str, *, seed: int = 0) -> str:
    """What the oracle says of brokers with a planted defect whose masters are cut off, again and again: where that lasts for less
    than a lease nothing is to be found.
    """
    return objection(
        lambda tell: run(20, tell, layout="one", seed=seed, faults=("master alone",), defect=defect, longest_s=8.0)
    )


def campaign(times: int, tell: Tell, seed: int) -> None:
    """`./run chaos ha`; `times` 0: the short one."""
    reason = can_make_machines("etcd")
    if reason is not None:
        tell(f"nobody is cut off: machines of their own cannot be made here: {reason}")
        return
    longest_s = 60.0 if times > 1 else 6.0
    for layout, faults in FAULTS.items():
        run(len(faults) * times or 6, tell, layout=layout, seed=seed, longest_s=longest_s)
    if times > 1:
        stops = ("master_stopped", "slave_stopped", "engine_stopped")
        run(9, tell, layout="one", seed=seed, faults=stops, longest_s=300.0)
    tell(f"planted: {'answered alone':20} {find('answered alone', seed=seed)[:90]}")


if __name__ == "__main__":
    place, kind, many, begin, longest, *names = sys.argv[1:]
    ends(lambda: within(Path(place), kind, int(many), int(begin), float(longest), tuple(names), print))
