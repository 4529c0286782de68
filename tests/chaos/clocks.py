"""The set of `partitions`, one of whose nodes has a clock that is wrong: the wall clock is set ten years ahead or back, before
the process starts or while it runs; the steady clocks are 8 % too fast or too slow.

What is wanted is P1 to P5, and

P6  nobody takes the master's place because a clock is wrong
P7  a master that is cut off, by whatever clock, says yes to nothing, at no level, once another one leads
P8  a delayed message comes, and not before it is due by the machine's clock

`clocks.c` stands between one process and its clocks; it is compiled when it is needed.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import penstock
from chaos.machines import Tell, at, can_make_machines, ends, inside
from chaos.partitions import LEASE_MS, Apart, Campaign, play
from chaos.replicas import objection
from fronts.raw_peer import RawPeer
from ha_parts import eventually
from penstock.errors import PenstockError
from penstock.wire.record import iter_records

SHIM = Path(__file__).with_name("clocks.c")
TEN_YEARS_S = 3_652 * 86_400  # whole days: it is the same hour
PPM = 80_000
_SET = struct.Struct("=Qqqqq")
FAULTS = (
    "started_ahead", "slow_and_alone", "started_behind", "master_behind", "master_ahead", "slave_ahead", "slave_behind",
    "master_fast", "master_slow", "slave_fast", "slave_slow", "fast_and_alone",
)  # fmt: skip
LOOSE, LATER = "Loose", "Later"
DUE_S = 6.0


def shim(folder: Path) -> Path:
    """The compiled one, in this folder. OSError where there is no compiler."""
    made = folder / "clocks.so"
    if made.exists():
        return made
    compiler = shutil.which("cc")
    if compiler is None:
        raise OSError("cc is missing")
    done = subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(made), str(SHIM), "-ldl"], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise OSError(f"clocks.c does not compile: {done.stderr[-300:]}")
    return made


class Clocks:
    """Those of one process, from its start to its end and beyond."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._turn, self._wall, self._since, self._ahead, self._ppm = 0, 0, 0, 0, 0
        path.write_bytes(_SET.pack(0, 0, 0, 0, 0))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _SET.size)

    @property
    def words(self) -> list[str]:
        """What stands before the words of a program that is to have them."""
        return ["env", f"LD_PRELOAD={shim(self.path.parent)}", f"PENSTOCK_CLOCKS={self.path}"]

    @property
    def ahead_s(self) -> float:
        """What the steady clocks have gained."""
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        return (self._ahead + (now - self._since) * self._ppm / 1_000_000) / 1e9

    def set(self, *, wall_s: int = 0, ppm: int = 0) -> None:
        """The wall clock is so much ahead from now on, and the steady ones go on at another rate: they never jump."""
        self._ahead, now = int(self.ahead_s * 1e9), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self._since, self._ppm, self._wall = now, ppm, wall_s * 1_000_000_000
        self._turn += 2
        self._map[:8] = struct.pack("=Q", self._turn - 1)
        self._map[8:] = _SET.pack(self._turn, self._wall, self._since, self._ahead, self._ppm)[8:]
        self._map[:8] = struct.pack("=Q", self._turn)


@functools.cache
def can_set_clocks() -> str | None:
    """None where a process can have clocks of its own, else the reason why not."""
    code = "import time; begin = time.monotonic(); time.sleep(0.2); print(time.time(), time.monotonic() - begin)"
    with tempfile.TemporaryDirectory() as folder:
        try:
            shim(Path(folder))
        except OSError as error:
            return str(error)
        clocks = Clocks(Path(folder) / "clocks")
        clocks.set(wall_s=TEN_YEARS_S, ppm=9_000_000)
        begin = time.monotonic()
        done = subprocess.run([*clocks.words, sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
        took = time.monotonic() - begin
    if done.returncode != 0:
        return f"LD_PRELOAD: {done.stderr.strip()[-200:]}"
    wall, slept = map(float, done.stdout.split())
    if wall - time.time() < TEN_YEARS_S - 60 or slept < 0.2:
        return f"LD_PRELOAD changes no clock of this Python: {done.stdout.strip()} after {took:.1f} s"
    return None


class Clocked(Apart):
    """Each node with clocks of its own."""

    def __init__(self, folder: Path, defect: str = "") -> None:
        hour = time.localtime().tm_hour  # so that old segments would be deleted at any moment now
        super().__init__(folder, "one", defect=defect, delete_when=hour)
        self.clocks = {name: Clocks(folder / f"{name}.clocks") for name in self.nodes}
        for name, node in self.nodes.items():
            place = len(at(self.places[name]))
            node.words[place:place] = self.clocks[name].words

    def heal(self) -> float:
        for one in self.clocks.values():
            one.set()
        return super().heal()


class ClockCampaign(Campaign):
    """And what else is promised meanwhile."""

    made: Clocked

    def __init__(self, made: Clocked, chance: random.Random, longest_s: float) -> None:
        super().__init__(made, chance, longest_s)
        self.sent = 0

    def suffer(self, fault: str) -> None:
        if not self.sent:
            with penstock.Admin(self.made.name_server) as admin:
                eventually(lambda: admin.create_topic(LOOSE, 1, level="os") is None)
                eventually(lambda: admin.create_topic(LATER, 1) is None)
        wanted = self._delayed()
        super().suffer(fault)
        self.made.heal()
        self._came(wanted)

    # -- P6

    def _wrong(self, who: str, **clock: int) -> None:
        """One node's clocks are wrong for a few leases; nothing happens."""
        state = self.made.state()
        name = self.made.roles()[who]
        self.made.clocks[name].set(**clock)
        time.sleep(max(self._while_s(), LEASE_MS / 1000))
        assert self.made.state()["epoch"] == state["epoch"], f"P6: {name} with {clock}"

    def master_ahead(self) -> None:
        self._wrong("master", wall_s=TEN_YEARS_S)

    def master_behind(self) -> None:
        self._wrong("master", wall_s=-TEN_YEARS_S)

    def slave_ahead(self) -> None:
        self._wrong("slave", wall_s=TEN_YEARS_S)

    def slave_behind(self) -> None:
        self._wrong("slave", wall_s=-TEN_YEARS_S)

    def master_fast(self) -> None:
        self._wrong("master", ppm=PPM)

    def master_slow(self) -> None:
        self._wrong("master", ppm=-PPM)

    def slave_fast(self) -> None:
        self._wrong("slave", ppm=PPM)

    def slave_slow(self) -> None:
        self._wrong("slave", ppm=-PPM)

    # -- a node starts with a wrong clock, and leads

    def started_ahead(self) -> None:
        self._started(TEN_YEARS_S)

    def started_behind(self) -> None:
        self._started(-TEN_YEARS_S)

    def _started(self, wall_s: int) -> None:
        name = self.made.roles()["slave"]
        node = self.made.nodes[name]
        node.kill()
        said = node.says("this machine's clock is")  # in an earlier round, in the same log
        self.made.clocks[name].set(wall_s=wall_s)
        node.start()
        eventually(self.made.whole, 120, "it does not come back")
        eventually(lambda: node.says("this machine's clock is") > said, 60, "it does not say that its clock is wrong")
        eventually(lambda: self.made.ha("switch", "--to", name).returncode == 0, 60, "places do not change")
        eventually(lambda: self.made.state()["master"] == name and self.made.whole(), 60, "it does not lead")
        wanted = self._delayed()
        self._came(wanted)
        time.sleep(self._while_s())

    # -- P7

    def slow_and_alone(self) -> None:
        self._alone(-PPM)

    def fast_and_alone(self) -> None:
        self._alone(PPM)

    def _alone(self, ppm: int) -> None:
        """Cut off from everybody but its clients, at level `os`, which waits for nobody."""
        roles = self.made.roles()
        name, epoch = roles["master"], int(str(self.made.state()["epoch"]))
        self.made.clocks[name].set(ppm=ppm)
        time.sleep(2 * LEASE_MS / 1000)  # it has renewed its lease by that clock
        assert self.made.state()["epoch"] == epoch, f"P6: {name} with {ppm} ppm"
        with self._loosely(name) as asked:
            ways = [way for place in (roles["S"], roles["T"]) for way in ((roles["M"], place), (place, roles["M"]))]
            with self.made.machines.cut(*ways):
                eventually(lambda: int(str(self.made.state()["epoch"])) > epoch, 60, "nobody else leads")
                led = time.monotonic()
                time.sleep(2)  # it would go on answering
        assert asked, "nothing was stored at level os"
        assert asked[-1] <= led, f"P7: what was asked {asked[-1] - led:.3f} s after another one led was stored"

    @contextlib.contextmanager
    def _loosely(self, name: str) -> Iterator[list[float]]:
        """When what this node says yes to was asked."""
        over, asked = threading.Event(), [0.0]

        def ask() -> None:
            while not over.is_set():
                with (
                    contextlib.suppress(OSError, EOFError, PenstockError),
                    RawPeer(self.made.nodes[name].addresses["remoting"]) as peer,
                ):
                    while not over.is_set():
                        begin = time.monotonic()
                        if peer.send(LOOSE, b"x").code == 0:
                            asked.append(begin)
                        over.wait(0.005)
                over.wait(0.05)

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        try:
            yield asked
        finally:
            over.set()
            thread.join(60)

    # -- P8

    def _delayed(self) -> dict[bytes, float]:
        """A few delayed messages, and when each is due."""
        found = {}
        for _ in range(3):
            self.sent += 1
            body = b"%d" % self.sent
            due_ms = time.time_ns() // 1_000_000 + int(DUE_S * 1000)
            while True:
                try:
                    with penstock.Producer(self.made.name_server) as producer:
                        producer.send(penstock.Message(LATER, body, deliver_at_ms=due_ms))
                    break
                except PenstockError:
                    time.sleep(0.1)
            found[body] = due_ms / 1000
        return found

    def _came(self, wanted: dict[bytes, float]) -> None:
        """Each, and not before its time: the stored copy is looked for until it is there, and it is not there too early."""
        drift_s = max(abs(one.ahead_s) for one in self.made.clocks.values())  # what a process has gained stays with it
        while wanted:
            now = time.time()
            there = self._later()
            early = [body for body, due in wanted.items() if body in there and now < due - 0.5 - drift_s]
            assert not early, f"P8: {len(early)} came early"
            if time.time() > max(wanted.values()) + 60:
                raise AssertionError(f"P8: {sorted(set(wanted) - there)} did not come")
            if wanted.keys() <= there:
                return
            time.sleep(0.2)

    def _later(self) -> set[bytes]:
        with (
            contextlib.suppress(OSError, EOFError, PenstockError, KeyError),
            RawPeer(self.made.nodes[self.made.roles()["master"]].addresses["remoting"]) as peer,
        ):
            offset, found = 0, set()
            while (answer := peer.pull(LATER, 0, offset, maxMsgNums=2_000)).code == 0:
                found |= {bytes(message.body) for message in iter_records(answer.body)}
                offset = int(answer.ext["nextBeginOffset"])
            return found
        return set()


def within(folder: Path, rounds: int, seed: int, longest_s: float, words: tuple[str, ...], tell: Tell) -> None:
    """What `run` runs in namespaces of its own; one of the words may be `defect=NAME`, the others are faults."""
    defect = "".join(word for word in words if word.startswith("defect="))
    made = Clocked(folder, defect.removeprefix("defect="))
    faults = tuple(word for word in words if word != defect)
    play(made, ClockCampaign(made, random.Random(seed), longest_s), rounds, seed, faults, tell)


def run(
    rounds: int,
    tell: Tell,
    *,
    seed: int = 0,
    longest_s: float = 6.0,
    faults: tuple[str, ...] = FAULTS,
    defect: str = "",
) -> None:
    """So many wrong clocks at random. What fails is kept."""
    folder = tempfile.mkdtemp(prefix="penstock-chaos-")
    words = [*faults, *([f"defect={defect}"] if defect else [])]
    try:
        inside(tell, "chaos.clocks", folder, str(rounds), str(seed), str(longest_s), *words)
    except AssertionError as error:
        if not defect:
            raise AssertionError(f"{error}\nkept in {folder}") from error
        shutil.rmtree(folder)
        raise
    shutil.rmtree(folder)


def find(defect: str, *, seed: int = 0) -> str:
    """What the oracle says of brokers with a planted defect."""
    return objection(lambda tell: run(2, tell, seed=seed, faults=("master_ahead",), defect=defect))


def campaign(times: int, tell: Tell, seed: int) -> None:
    """`./run chaos ha`; `times` 0: the short one."""
    reason = can_make_machines("etcd") or can_set_clocks()
    if reason is not None:
        tell(f"no clock is wrong: {reason}")
        return
    run(len(FAULTS) * times or 4, tell, seed=seed, longest_s=30.0 if times > 1 else 6.0)
    tell(f"planted: {'timed by the wall':20} {find('timed by the wall', seed=seed)[:90]}")


if __name__ == "__main__":
    place, many, begin, longest, *names = sys.argv[1:]
    ends(lambda: within(Path(place), int(many), int(begin), float(longest), tuple(names), print))
