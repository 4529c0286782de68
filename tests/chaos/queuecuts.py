"""Power cuts under everything that moves from file to file: deferred and given back messages, delays, transactions,
idempotent sends, staged batches, with one side's flushes slowed, so that the cut falls between what is done and what
says so.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from chaos.campaign import Tell, _cut, _image, _mount
from chaos.defects import CUT_DEFECTS
from chaos.jobs import Load, Recorder, counts, drain, prepare
from chaos.queuekills import QUIET_S, SETTINGS, Objection
from chaos.slowly import SIDES
from chaos.staged import StagedLoad
from chaos.victim import Victim
from fronts.raw_peer import RawPeer
from penstock.wire.record import BatchItem, encode_batch, iter_records

CUTS_PER_IMAGE = 20
WINDOW_S = 1.2  # the promised second, and the turns of a busy machine
# Each cut leaves thousands of offsets out in each queue. In files of 1,000 entries that is 65 mapped files a queue and cut,
# and a mapping has a descriptor in Python: 20,000 after a dozen cuts.
WIDE = {"mapped_file_size_consume_queue": 400_000}
SLOW_MS = (0, 300, 1_500)


class CutRecorder(Recorder):
    """What a power cut may take back is what was answered in the second before the last answered command was sent."""

    early_s = 0.05  # turns are long beside a disk that is kept busy

    def __init__(self, lines: Path) -> None:
        super().__init__(lines)
        self.answered_at: dict[bytes, float] = {}
        self.effects: list[tuple[float, bytes, list[bytes], list[list[float]]]] = []
        self.sure: list[list[float]] = []
        self.sent_at: dict[bytes, float] = {}
        self.last_answered = 0.0  # when the last command was sent that was answered
        self.is_cut = False

    def object(self, rule: str, text: str) -> None:
        if rule != "answer" or not self.is_cut:  # a broker without a disk says so, as long as it lives
            super().object(rule, text)

    def publish(self, bodies: list[bytes], due: float = 0.0) -> None:
        super().publish(bodies, due)
        self.sent_at[bodies[0]] = self.now()

    def answered(self, bodies: list[bytes]) -> None:
        super().answered(bodies)
        now = self.now()
        self.last_answered = max(self.last_answered, self.sent_at.pop(bodies[0], 0.0))
        self.answered_at.update(dict.fromkeys(bodies, now))

    def effective(self, channel: bytes, finished: list[bytes], requeued: list[list[float]]) -> None:
        super().effective(channel, finished, requeued)
        self.effects.append((self.now(), channel, finished, requeued))

    def power_cut(self, level: str) -> None:
        """Forget what need not be there."""
        bound = self.last_answered - WINDOW_S
        taken = {body for body, at in self.answered_at.items() if at >= bound} if level != "disk" else set()
        self.acked -= taken
        self.batches = [batch for batch in self.batches if self.acked.issuperset(batch)]
        sure = []
        for at, channel, finished, requeued in self.effects:
            if at >= bound:
                self.finished[channel].difference_update(finished)
            else:
                sure += requeued
        known = {id(postponed) for postponed in sure}
        self.postponed = {key: postponed for key, postponed in self.postponed.items() if id(postponed) in known}
        self.effects = []
        self.answered_at, self.sent_at = {}, {}
        self.line("power cut", level, f"{bound:.6f}", len(taken))

    def judge_drained(self) -> None:
        """Only what was surely there: the rest may have come to one channel before the cut."""
        sent = {body: due for body, due in self.sent.items() if body in self.acked}
        doubtful = {body: due for body, due in self.sent.items() if body not in self.acked}
        self.sent = sent
        super().judge_drained()
        self.sent |= doubtful


class LogLoad:
    """RocketMQ clients: delayed messages, transactions, sends that are repeated."""

    topics = ("Later", "Deal", "Once", "Many")
    works: tuple[str, ...] = ("_later", "_deal", "_once", "_many")
    pause_s = 0.002  # the log must fit its disk
    delays_ms = (20, 300, 900)

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.acked: dict[bytes, float] = {}
        self.last_answered = 0.0
        self.now: Callable[[], float] = time.monotonic
        self._numbers = itertools.count(1)
        self._threads: list[threading.Thread] = []

    def start(self, address: str) -> None:
        works = [getattr(self, name) for name in self.works]
        self._threads = [threading.Thread(target=self._run, args=(work, address), daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _run(self, work: Callable[[RawPeer, bytes], int], address: str) -> None:
        with contextlib.suppress(OSError, EOFError), RawPeer(address) as peer:
            while True:
                body = b"%s %d" % (work.__name__.encode(), next(self._numbers))
                sent_at = self.now()
                if work(peer, body) == 0:
                    self.answered(body, sent_at)
                time.sleep(self.pause_s)

    def answered(self, body: bytes, sent_at: float) -> None:
        self.acked[body] = self.now()
        self.last_answered = max(self.last_answered, sent_at)

    def _later(self, peer: RawPeer, body: bytes) -> int:
        return peer.send("Later", body, {"TIMER_DELAY_MS": str(self.chance.choice(self.delays_ms))}).code

    def _deal(self, peer: RawPeer, body: bytes) -> int:
        half = peer.send("Deal", body, {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": body.hex()}, f=4)
        if half.code:
            return half.code
        fields = {
            "producerGroup": "PG", "tranStateTableOffset": half.ext["queueOffset"], "commitOrRollback": 8,
            "commitLogOffset": int(half.ext["msgId"][16:], 16), "fromTransactionCheck": "false", "msgId": body.hex(),
        }  # fmt: skip
        return peer.ask(37, fields).code

    def _once(self, peer: RawPeer, body: bytes) -> int:
        properties = {"PSEQ": f"chaos{self.chance.randrange(1 << 60):x}.1.1"}
        first = peer.send("Once", body, properties)
        again = peer.send("Once", body, properties)
        if first.code or again.code:
            return first.code or again.code
        assert (first.code, first.ext["queueOffset"]) == (again.code, again.ext["queueOffset"])
        return again.code

    def _many(self, peer: RawPeer, body: bytes) -> int:
        others = [body + b".%d" % number for number in range(self.chance.choice((1, 7, 40)))]
        fields = {
            "a": "PG",
            "b": "Many",
            "c": "TBW102",
            "d": 4,
            "e": len(others) % 4,
            "f": 0,
            "g": 5,
            "h": 0,
            "m": "true",
        }
        sent_at = self.now()
        code = peer.ask(320, fields, encode_batch(map(BatchItem, (body, *others)))).code
        for other in others if code == 0 else ():
            self.answered(other, sent_at)
        return code

    def check(self, address: str, level: str, wait_s: float = 4) -> str:
        """The objection, or nothing. What is delayed may take its time."""
        bound = self.last_answered - WINDOW_S
        sure = {
            body
            for body, at in self.acked.items()  # a commit that was lost leaves its half, which is asked about
            if at < bound or (level == "disk" and not body.startswith(b"_deal"))
        }
        deadline = time.monotonic() + wait_s
        while True:
            found = Counter(body for topic in self.topics for body in _bodies(address, topic))
            missing = sure - found.keys()
            if not missing or time.monotonic() > deadline:
                break
            time.sleep(0.1)  # it falls due
        twice = [body for body, count in found.items() if count > 1 and body != b"first"]
        self.acked = dict.fromkeys(sure, 0.0)
        if missing or twice:
            return f"{len(missing)} of {len(sure)} lost: {sorted(missing)[:3]}; {len(twice)} twice: {twice[:3]}"
        return ""


def _bodies(address: str, topic: str) -> list[bytes]:
    found = []
    with RawPeer(address) as peer:
        for queue_id in range(4):
            offset = 0
            while True:
                answer = peer.pull(topic, queue_id, offset)
                if answer.code == 0:
                    found += [message.body for message in iter_records(answer.body)]
                elif answer.code not in (20, 21) or int(answer.ext["nextBeginOffset"]) <= offset:
                    break
                offset = int(answer.ext["nextBeginOffset"])
    return found


def queue_power_cuts(
    rounds: int, tell: Tell, *, level: str, seed: int = 0, side: str = "", slow_ms: int = -1, defect: str = ""
) -> int:
    """Cut, mount again, start, finish everything. `side` is slowed, or another one each time. How many cuts were made."""
    done = 0
    while done < rounds:
        count = min(CUTS_PER_IMAGE, rounds - done)
        _on_one_image(count, done, rounds, tell, level, seed + done, side, slow_ms, defect)
        done += count
    return done


def find_cut_defect(name: str, *, seed: int = 0, rounds: int = 10) -> tuple[str, float]:
    """As `find_defect`, for a defect that only a power cut shows."""
    began = time.monotonic()
    planted = CUT_DEFECTS[name]
    try:
        queue_power_cuts(
            rounds, lambda text: None, level="os", seed=seed, side=planted.side, slow_ms=planted.late_ms, defect=name
        )  # fmt: skip
    except Objection as objection:
        return str(objection).partition(":")[0], time.monotonic() - began
    raise AssertionError(f"nobody objects to {name}")


def _on_one_image(
    count: int, done: int, rounds: int, tell: Tell, level: str, seed: int, side: str, slow_for: int, defect: str
) -> None:
    chance = random.Random(seed)
    planted = [f"defect={defect}"] if defect else []
    with (
        tempfile.TemporaryDirectory(prefix="penstock-chaos-") as name,
        _image(Path(name), 1_500) as (image, at),
        contextlib.ExitStack() as stack,
    ):
        recorder = CutRecorder(Path(name) / "events")
        log_load, staged = LogLoad(chance), StagedLoad(chance)
        victim = stack.enter_context(Victim(at / "data", Path(name) / "log", level, settings=SETTINGS | WIDE))
        try:
            for number in range(count):
                slowed = side or chance.choice(list(SIDES))
                slow_ms = chance.choice(SLOW_MS) if slow_for < 0 else slow_for
                victim.program = ("-m", "chaos.slowly", slowed, str(slow_ms), *planted)
                _start(victim, recorder)
                load = Load(victim.addresses["nsq"], recorder, chance)
                load.start()
                log_load.start(victim.address)
                staged.start(victim.address, victim.addresses["registry"])
                time.sleep(chance.uniform(0.8, 3.0))  # the moment of the cut is the experiment
                recorder.is_cut = staged.is_cut = True
                _cut(at)
                victim.end()
                load.join()
                log_load.join()
                staged.join()
                recorder.is_cut = False
                _raise(recorder)
                subprocess.run(["umount", str(at)], check=True, capture_output=True)
                _mount(image, at)
                recorder.power_cut(level)
                victim.program = ("-m", "chaos.slowly", "none", "0", *planted)
                _start(victim, recorder)
                if said := log_load.check(victim.address, level):
                    recorder.object("L", said)
                if said := staged.check(victim.address, victim.addresses["registry"]):
                    recorder.object(*said.split(": ", 1))
                if not recorder.fault:
                    drain(victim.addresses["nsq"], victim.addresses["http"], recorder)
                _raise(recorder)
                recorder.effects = []
                victim.end(signal.SIGTERM if chance.random() < 0.5 else signal.SIGKILL)
                tell(
                    f"power cut {done + number + 1}/{rounds} at level {level}, {slowed} {slow_ms} ms late: "
                    f"{len(recorder.acked):,} and {len(log_load.acked):,} there, "
                    f"{staged.batches:,} batches of {len(staged.published):,} rows published"
                )
        except Exception as error:
            recorder.lines.flush()
            if not defect:
                kept = Path(tempfile.mkdtemp(prefix=f"penstock-chaos-failed-{seed}-"))
                for part in ("events", "log"):
                    subprocess.run(["cp", str(Path(name) / part), str(kept)], capture_output=True)
                subprocess.run(["tar", "-C", str(at), "-czSf", str(kept / "data.tar.gz"), "data"], capture_output=True)
                tell(f"FAILED, seed {seed}, level {level}, {slowed} {slow_ms} ms late: {error}; kept in {kept}")
            raise
        finally:
            recorder.lines.close()


def _start(victim: Victim, recorder: CutRecorder) -> None:
    recorder.life += 1
    victim.start()
    if recorder.life == 1:
        prepare(victim.addresses["http"])
        with RawPeer(victim.address) as peer:
            for topic in LogLoad.topics + StagedLoad.topics:
                assert peer.send(topic, b"first").code == 0
    deadline = time.monotonic() + QUIET_S
    while said := recorder.judge_counts(counts(victim.addresses["http"])):
        if time.monotonic() > deadline:
            recorder.object("Q6", said)
            return
        time.sleep(0.02)


def _raise(recorder: Recorder) -> None:
    if recorder.fault:
        raise Objection(recorder.fault)
