"""Kills of drivers, executors and brokers under a query that writes to topics by four plans; every row must be there once.

While it runs a reader polls where the topics end, at both brokers. What was published together stands in the log
between a `begin` and a `done` record; a reader that has seen a part of such a unit has seen half a batch.
"""

from __future__ import annotations

import asyncio
import contextlib
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
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from chaos.chaos_driver import PLANS
from client.conftest import Cluster
from fronts.raw_peer import RawPeer
from penstock.client.aio.producer import Producer
from penstock.message import Message
from penstock.wire.record import iter_records

Tell = Callable[[str], None]
SRC = Path(__file__).parents[2] / "src"
DATA = Path(__file__).parents[3] / "shared" / "data" / "apache_access.log"
SETTINGS: dict[str, object] = {
    "mapped_file_size_commit_log": 16 << 20,
    "mapped_file_size_consume_queue": 60_000,
    "max_hash_slot_num": 5_000,
    "max_index_num": 200_000,
}
MASTER = "local-cluster[2,1,1024]"
# Where each is killed; None: at a random moment of a batch. Between the two brokers' PUBLISH one or the other dies.
POINTS: dict[str, tuple[str | None, ...]] = {
    "driver": ("between", "after", "before", "write", None),
    "executor": ("write", "sealed", None),
    "broker": ("between second", "write", None, "between first", "before", "after"),
}
TARGETS = ("executor", "broker", "driver")
WAIT_S = 180.0


def real_rows(count: int) -> list[tuple[str, bytes]]:
    """(host, line) of a web server's log, numbered, as often round as it takes."""
    lines = DATA.read_bytes().splitlines()
    return [
        (lines[n % len(lines)].split(b" ", 1)[0].decode(), b"%d %s" % (n, lines[n % len(lines)])) for n in range(count)
    ]


class Poller(threading.Thread):
    """Where the queues of some topics end, as one reader sees it: taken twice, and kept when nothing moved between."""

    def __init__(self, addresses: list[str], topics: list[str], queues: int) -> None:
        super().__init__(daemon=True)
        self.places = [(topic, queue_id) for topic in topics for queue_id in range(queues)]
        self.addresses = addresses
        self.seen: dict[str, set[tuple[int, ...]]] = {address: set() for address in addresses}
        self.stop = False

    def run(self) -> None:
        peers: dict[str, RawPeer] = {}
        while not self.stop:
            for address in self.addresses:
                try:
                    peer = peers.get(address) or peers.setdefault(address, RawPeer(address))
                    first = [self._end(peer, *place) for place in self.places]
                    second = [self._end(peer, *place) for place in reversed(self.places)][::-1]
                except (OSError, EOFError, KeyError):
                    if address in peers:
                        peers.pop(address).close()
                    time.sleep(0.01)
                    continue
                if first == second:
                    self.seen[address].add(tuple(first))
            time.sleep(0.01)  # all the time, but not all of the processor
        for peer in peers.values():
            peer.close()

    def _end(self, peer: RawPeer, topic: str, queue_id: int) -> int:
        return int(peer.ask(30, {"topic": topic, "queueId": queue_id}).ext["offset"])


def contents(address: str, topic: str, queues: int) -> Iterator[Any]:
    """Every message of a topic at one broker."""
    with RawPeer(address) as peer:
        for queue_id in range(queues):
            offset = 0
            while True:
                answer = peer.pull(topic, queue_id, offset, maxBytes=1 << 20, maxMsgNums=4096)
                if answer.code in (1, 17, 19):
                    break
                if answer.code == 0:
                    yield from iter_records(answer.body, check=True)
                if int(answer.ext["nextBeginOffset"]) == offset:
                    raise AssertionError(f"{topic} queue {queue_id} does not go on behind {offset}")
                offset = int(answer.ext["nextBeginOffset"])


class Campaign:
    """Two brokers, one driver at a time, and what is killed."""

    def __init__(self, folder: Path, rows: int, per_batch: int, tell: Tell, master: str = MASTER) -> None:
        self.folder, self.rows, self.per_batch, self.tell, self.master = folder, rows, per_batch, tell, master
        self.killed: Counter[tuple[str, str]] = Counter()
        self.moments: Counter[str] = Counter()  # what the query was doing at the random ones
        self.failed = self.started = 0
        self.brokers = [Cluster(folder / "a" / "data", SETTINGS)]
        (folder / "a").mkdir()
        (folder / "b").mkdir()
        self.driver: subprocess.Popen[bytes] | None = None
        self.queues = 2

    def __enter__(self) -> Campaign:
        self.brokers[0].start()
        registry = self.brokers[0].registry
        settings = SETTINGS | {"broker_name": "broker-b"}
        self.brokers.append(Cluster(self.folder / "b" / "data", settings, registry).start())
        self._create_topics()
        self.poller = Poller([b.broker for b in self.brokers], [f"chaos-{plan}" for plan in PLANS], self.queues)
        asyncio.run(self._fill())
        self.poller.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self.driver is not None and self.driver.poll() is None:
            self._kill_driver()
        if self.poller.is_alive():
            self.poller.stop = True
            self.poller.join(10)
        for broker in self.brokers:
            broker.stop()

    def _create_topics(self) -> None:
        for broker in self.brokers:
            with RawPeer(broker.broker) as peer:
                # Few queues: every one is a task of every plan, and it is the kills that are of interest here.
                for topic, queues in [("chaos-in", 1), *((f"chaos-{plan}", self.queues) for plan in PLANS)]:
                    ext = {
                        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
                        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
                    }  # fmt: skip
                    assert peer.ask(17, ext).code == 0

    async def _fill(self) -> None:
        self.source = real_rows(self.rows)
        async with Producer(self.brokers[0].registry, idempotent=True, send_timeout_s=30) as producer:
            for _ in range(100):
                queues = await producer.queues("chaos-in")
                if len({queue.broker for queue in queues}) == 2:
                    break
                await asyncio.sleep(0.1)
                await producer._cluster.refresh("chaos-in")
            by_queue: dict[Any, list[Message]] = {}
            for host, line in self.source:
                queue = queues[hash(host) % len(queues)]
                by_queue.setdefault(queue, []).append(Message("chaos-in", line, keys=(host,)))
            for queue, messages in by_queue.items():
                for at in range(0, len(messages), 500):
                    await producer.send_batch(messages[at : at + 500], queue=queue)

    # -- the driver

    def start_driver(self) -> None:
        for name in ("started", "doing"):
            (self.folder / name).unlink(missing_ok=True)
        self._let_go()
        given = {
            "master": self.master, "registry": self.brokers[0].registry, "folder": str(self.folder),
            "per_batch": self.per_batch,
        }  # fmt: skip
        here = str(Path(__file__).parent)
        with (self.folder / "driver.log").open("ab") as log:
            self.driver = subprocess.Popen(
                [sys.executable, str(Path(here, "chaos_driver.py")), json.dumps(given)],
                env={**os.environ, "PYTHONPATH": os.pathsep.join((str(SRC), here))},
                start_new_session=True, stdout=log, stderr=log,
            )  # fmt: skip
        self._wait((self.folder / "started").exists)
        self.started += 1

    def _kill_driver(self) -> None:
        """The Python driver, its JVM, and what they have started: they share a session, not always a group."""
        assert self.driver is not None
        victims = [self.driver.pid, *(child.pid for child in psutil.Process(self.driver.pid).children(recursive=True))]
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.driver.wait(30)

    def _wait(self, happened: Callable[[], bool]) -> bool:
        """Whether it happened before the driver ended by itself."""
        deadline = time.monotonic() + WAIT_S
        assert self.driver is not None
        while not happened():
            if self.driver.poll() is not None:
                return happened()
            assert time.monotonic() < deadline, f"nothing within {WAIT_S} s: {self._last_words()}"
            time.sleep(0.01)
        return True

    def _last_words(self) -> str:
        """What the driver's log says went wrong, without the stacks."""
        lines = (self.folder / "driver.log").read_text(errors="replace").splitlines()
        return "\n".join(
            [line for line in lines if (line[:1] not in ("\t", " ") and "rror" in line) or "Caused" in line][-12:]
        )

    # -- kills

    def kill(self, target: str, point: str | None, chance: random.Random) -> bool:
        """Kill something at a point, or at a random moment. False when the queries came to their end before."""
        name = (point or "").partition(" ")[0]
        held = self.folder / f"held-{name}"
        if point is None:
            if not self._wait(lambda: bool(self._doing())):  # in a batch, not in a start
                return False
            time.sleep(chance.uniform(0.0, self._batch_s()))  # the moment is the experiment
            assert self.driver is not None
            if self.driver.poll() is not None:
                return False
        elif not self._hold(name):
            return False
        about = held.read_text().split() if point else []
        doing = (self._doing() or ["nothing"])[-1].split()[0]
        if target == "driver":
            self._kill_driver()
        elif target == "executor":
            if not self._kill_executor(int(about[0]) if about else 0, chance):
                self._let_go()
                return False
        else:
            broker = chance.choice(self.brokers)
            if name == "between":
                broker = self._named(about[3 if point == "between second" else 2])
            broker.stop(signal.SIGKILL)
            held.unlink(missing_ok=True)
            broker.start()
        self._let_go()
        self.killed[target, point or "random"] += 1
        if point is None:
            self.moments[doing] += 1
        when = f"at random, {doing}" if point is None else f"{point} {' '.join(about[1:])}".strip()
        self.tell(f"killed {target} {sum(n for (t, _), n in self.killed.items() if t == target)} {when}")
        return True

    def _doing(self) -> list[str]:
        path = self.folder / "doing"
        return path.read_text().splitlines() if path.exists() else []

    def _batch_s(self) -> float:
        """How long a batch takes, about, from the publishes of this driver's life."""
        ends = [float(line.split()[1]) for line in self._doing() if line.startswith("resting")]
        return min(max((ends[-1] - ends[0]) / (len(ends) - 1), 0.5), 10.0) if len(ends) > 1 else 2.0

    def _named(self, name: str) -> Cluster:
        return self.brokers[name == "broker-b"]

    def reach(self, batch: int) -> bool:
        """Wait until so many batches are done. False when the driver ended before."""
        commits = self.folder / "checkpoint" / "commits"
        return batch == 0 or self._wait(lambda: any(int(p.stem) >= batch - 1 for p in commits.glob("[0-9]*")))

    def _hold(self, name: str) -> bool:
        """Let somebody be held at this place, with a batch that is new; False when the query ended before."""
        held = self.folder / f"held-{name}"
        while True:
            (self.folder / f"hold-{name}").touch()
            if not self._wait(held.exists):
                return False
            if self._is_there(name, held.read_text().split()):
                return True
            # A driver killed behind its PUBLISH does the batch again, and nothing is at stake in that; and the Python
            # worker of an executor that was killed may go on for a while with what it had read.
            held.unlink()

    def _lives(self, pid: int) -> bool:
        """Whether this process works for the driver that is running."""
        assert self.driver is not None
        with contextlib.suppress(psutil.Error):
            return any(process.pid == self.driver.pid for process in psutil.Process(pid).parents())
        return False

    def _is_there(self, name: str, about: list[str]) -> bool:
        """Is what is held really where it says? The publish records of the brokers know."""
        if name not in ("before", "between", "after"):
            return self._lives(int(about[0]))
        batch = int(about[1])
        last = {broker: self._published(broker) for broker in self.brokers}
        if name == "between":
            first, second = self._named(about[2]), self._named(about[3])
            assert first is not second, about
            assert last[first] >= batch, f"{about}: {list(last.values())}"
            return last[second] < batch
        assert name == "before" or max(last.values()) >= batch, f"{about}: {list(last.values())}"
        return name == "after" or max(last.values()) < batch

    def _published(self, broker: Cluster) -> int:
        """The batch published last."""
        batch = -1
        for message in contents(broker.broker, "rmq_sys_penstock_sinks", 1):
            about = json.loads(message.body)
            batch = about["batch"] if about["k"] == "done" else batch
        return batch

    def _kill_executor(self, held: int, chance: random.Random) -> bool:
        """The executor whose Python worker is held, or any."""
        assert self.driver is not None
        found = []
        with contextlib.suppress(psutil.Error):
            near = psutil.Process(held).parents() if held else psutil.Process(self.driver.pid).children(recursive=True)
            for process in near:
                with contextlib.suppress(psutil.Error):
                    if any("CoarseGrainedExecutorBackend" in word for word in process.cmdline()):
                        found.append(process)
        if not found:
            return False
        chance.choice(found).kill()
        return True

    def _let_go(self) -> None:
        for path in [*self.folder.glob("hold-*"), *self.folder.glob("held-*"), *self.folder.glob("taken-*")]:
            path.unlink(missing_ok=True)

    def running(self) -> bool:
        """Start the driver if it is not running; False when the query has come to its end.

        A query may fail while a broker is away, as its source does: then it is started again, as its owner would.
        """
        while self.driver is None or self.driver.poll():
            self.failed += self.driver is not None and self.driver.returncode > 0
            assert self.failed < 10 + 3 * self.killed.total(), f"the driver fails for ever: {self._last_words()}"
            self.start_driver()
        return self.driver.poll() is None

    def finish(self) -> None:
        """Let the query come to its end."""
        while self.running():
            self._let_go()
            assert self.driver is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.driver.wait(1)

    # -- the oracle

    def check(self) -> None:
        self.poller.stop = True
        self.poller.join(20)
        lines = [line for _, line in self.source]
        for plan in PLANS:
            found = [m for b in self.brokers for m in contents(b.broker, f"chaos-{plan}", self.queues)]
            if plan == "count":
                self._check_counts([m.body.decode() for m in found])
                continue
            counts = Counter(m.body for m in found)
            lost = [line for line in lines if line not in counts]
            twice = [body for body, n in counts.items() if n > 1]
            assert not lost + twice, f"{plan}: {len(lost)} lost, {len(twice)} twice, the first {(lost + twice)[0]!r}"
            assert len(found) == len(lines)
            if plan == "map":
                last: dict[str, tuple[int, int, str]] = {}
                for m in found:
                    number, where = int(m.body.split(b" ", 1)[0]), (m.queue_id, m.store_host)
                    before = last.get(m.keys[0], (-1, *where))
                    assert before[0] < number, f"{m.keys[0]}: {number} at {where} behind {before}"
                    assert before[1:] == where, f"{m.keys[0]}: {number} at {where}, before at {before}"
                    last[m.keys[0]] = number, *where
        for broker in self.brokers:
            self._check_units(broker.broker)

    def _check_counts(self, told: list[str]) -> None:
        repeated = [text for text, n in Counter(told).items() if n > 1]
        assert not repeated, f"count: {len(repeated)} rows twice, the first {repeated[0]}"
        final: dict[str, int] = {}
        for text in told:
            host, _, count = text.rpartition("=")
            final[host] = max(final.get(host, 0), int(count))
        assert final == Counter(host for host, _ in self.source)

    def _check_units(self, address: str) -> None:
        """Nobody has seen a part of what was published together."""
        spans: list[tuple[int, int]] = []
        begun = 0
        for message in contents(address, "rmq_sys_penstock_sinks", 1):
            about = json.loads(message.body)
            if about["k"] == "begin":
                begun = message.physical_offset
            elif about["k"] == "done":
                assert about["begin"] == begun
                spans.append((begun, message.physical_offset))
        assert spans
        placed = [
            sorted(m.physical_offset for m in contents(address, topic, self.queues) if m.queue_id == queue_id)
            for topic, queue_id in self.poller.places
        ]
        assert self.poller.seen[address], "the reader has seen nothing"
        for ends in self.poller.seen[address]:
            # the physical offset of the newest row seen in any queue, and of the oldest not yet seen
            newest = max((rows[end - 1] for rows, end in zip(placed, ends, strict=True) if end), default=-1)
            oldest = min(
                (rows[end] for rows, end in zip(placed, ends, strict=True) if end < len(rows)), default=1 << 62
            )
            for first, last in spans:
                assert not (first < newest < last and first < oldest < last), f"half a batch was seen at {ends}"


@contextlib.contextmanager
def keeping(folder: Path, tell: Tell) -> Iterator[None]:
    """Remove the folder at the end, unless something is to be learnt from it."""
    try:
        yield
    except BaseException:
        tell(f"logs, checkpoint and both brokers' folders: {folder}")
        raise
    shutil.rmtree(folder, ignore_errors=True)


def run(
    kills: int,
    tell: Tell,
    *,
    rows: int,
    per_batch: int,
    seed: int = 0,
    master: str = MASTER,
    targets: tuple[str, ...] = TARGETS,
    minutes: float = 0,
) -> Counter[tuple[str, str]]:
    """So many kills of each target; what was killed where. AssertionError when a row is lost, or there twice, when
    readers saw half a batch, or when a kill could not be made. With `minutes` no kills are made later than that, and only
    a point that was never hit is an error."""
    chance = random.Random(seed)
    folder = Path(tempfile.mkdtemp(prefix="penstock-sinks-"))
    with keeping(folder, tell), Campaign(folder, rows, per_batch, tell, master) as campaign:
        todo = [(target, POINTS[target][n % len(POINTS[target])]) for n in range(kills) for target in targets]
        wanted = Counter((target, point or "random") for target, point in todo)
        if kills > 3:
            chance.shuffle(todo)
        many, batches = len(todo), rows // per_batch
        began = time.monotonic()
        while todo and campaign.running() and not 0 < minutes * 60 < time.monotonic() - began:
            # All over the run, but soon enough: a batch that is killed is done again, so kills are no slower than batches.
            # Not before the first is done: where keys go is only known from then on.
            if campaign.reach(max((many - len(todo)) * batches * 3 // (many * 4), 1)) and campaign.kill(
                *todo[0], chance
            ):
                todo.pop(0)
        campaign.finish()
        campaign.check()
        views = sum(map(len, campaign.poller.seen.values()))
        tell(f"{rows:,} rows through {len(PLANS)} plans: each once; {views:,} views, no half batch")
        tell(f"{campaign.started} starts of the driver, {campaign.failed} ended by an error")
        for (target, point), count in sorted(campaign.killed.items()):
            tell(f"  {target:9} {point:15} {count:3}")
        tell(f"  at random: {', '.join(f'{n} {doing}' for doing, n in campaign.moments.most_common())}")
        missed = wanted - campaign.killed
        if minutes and all(campaign.killed[place] for place in wanted):
            tell(f"not made within {minutes:g} minutes: {dict(missed)}")
        else:
            assert not missed, f"the query ended before these kills: {dict(missed)}"
        return campaign.killed
