"""kill -9 of a broker under publish and consume, again and again on one folder; the seed says it all."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from chaos.campaign import Tell
from chaos.jobs import CHANNELS, RDY, TOPIC, Load, Peer, Reader, Recorder, counts, drain, http, mpub, prepare
from chaos.victim import Victim

IN_FLIGHT = 1_000
QUIET_S = 2.0
SETTINGS = {"queue_segment_bytes": 1 << 20, "max_msg_size": 1 << 16}


class Objection(AssertionError):
    """The oracle objects."""


def queue_kills(
    rounds: int, tell: Tell, *, level: str = "os", seed: int = 0, load_s: float = 0.6, defect: str = ""
) -> None:
    """Kills with checks between; drained every ten rounds and at the end. Raises Objection."""
    planted: dict[str, Any] = {}
    if defect:
        planted = {"program": ("-m", "chaos.defects", defect), "environment": {"PENSTOCK_PURE": "1"}}
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        recorder = Recorder(folder / "events")
        victim = stack.enter_context(Victim(folder / "data", folder / "log", level, settings=SETTINGS, **planted))
        campaign = _Campaign(folder, victim, recorder, random.Random(seed), tell)
        try:
            for number in range(rounds):
                campaign.round(number, rounds, load_s)
            campaign.start()
            campaign.settle()
            victim.end(signal.SIGTERM)
            report = victim.verify()
            assert report["ok"], report
        except Exception as error:
            recorder.lines.flush()
            if not defect:
                tell(f"FAILED, seed {seed}, level {level}: {error}; kept in {_keep(folder, seed)}")
            raise
        finally:
            recorder.lines.close()
        tell(
            f"level {level}: {len(recorder.acked):,} acknowledged, each finished on both channels; "
            f"{recorder.redelivered:,} deliveries again; slowest start {max(victim.start_s):.2f} s"
        )


def _keep(folder: Path, seed: int) -> Path:
    """Events, the broker's log and its folder as the last kill left it."""
    kept = Path(tempfile.mkdtemp(prefix=f"penstock-chaos-failed-{seed}-"))
    for part in ("events", "log"):
        shutil.copy(folder / part, kept / part)
    for part in ("data", "before"):
        subprocess.run(["tar", "-C", str(folder), "-czSf", str(kept / f"{part}.tar.gz"), part], capture_output=True)
    return kept


def find_defect(defect: str, *, seed: int = 0, rounds: int = 20) -> tuple[str, float]:
    """Run a broker with a planted defect; the rule that objects first and the seconds that took."""
    began = time.monotonic()
    try:
        queue_kills(rounds, lambda text: None, seed=seed, load_s=0.8, defect=defect)
    except Objection as objection:
        return str(objection).partition(":")[0], time.monotonic() - began
    raise AssertionError(f"nobody objects to {defect}")


class _Campaign:
    def __init__(self, folder: Path, victim: Victim, recorder: Recorder, chance: random.Random, tell: Tell) -> None:
        self.folder, self.victim, self.recorder, self.chance, self.tell = folder, victim, recorder, chance, tell

    def start(self) -> None:
        """Start, and hold what it says it owes against what it must."""
        self.recorder.life += 1
        self.victim.start()
        if self.recorder.life == 1:
            prepare(self.victim.addresses["http"])
        self._weigh()
        self._raise()

    def _weigh(self) -> None:
        """Nobody publishes or consumes: each channel says what it owes, once what fell due meanwhile is flushed."""
        deadline = time.monotonic() + QUIET_S
        while said := self.recorder.judge_counts(counts(self.victim.addresses["http"])):
            if time.monotonic() > deadline:
                self.recorder.object("Q6", said)
                return
            time.sleep(0.02)

    def _raise(self) -> None:
        if self.recorder.fault:
            raise Objection(self.recorder.fault)

    def drain(self) -> None:
        drain(self.victim.addresses["nsq"], self.victim.addresses["http"], self.recorder)
        self._raise()

    def settle(self) -> None:
        """Nothing stays paused, nothing stays owed."""
        self._unpause()
        self.drain()

    def round(self, number: int, rounds: int, load_s: float) -> None:
        self.start()
        if number % 10 == 9 or self.recorder.paused:
            self.settle()
        if number == rounds // 2:
            self._take_and_hold()
            what = f"with {IN_FLIGHT:,} in flight"
        else:
            if self.chance.random() < 0.2:
                self._pause(CHANNELS[1])
            load = Load(self.victim.addresses["nsq"], self.recorder, self.chance)
            load.start()
            time.sleep(self.chance.uniform(0.05, load_s))  # the moment of the kill is the experiment
            what = f"with {CHANNELS[1].decode()} paused" if self.recorder.paused else "under load"
        clean = self.chance.random() < 0.1
        self.victim.end(signal.SIGTERM if clean else signal.SIGKILL)
        if number != rounds // 2:
            load.join()
        self._raise()
        shutil.rmtree(self.folder / "before", ignore_errors=True)
        subprocess.run(["cp", "-a", str(self.victim.folder), str(self.folder / "before")], check=True)
        self.tell(
            f"{'stop' if clean else 'kill'} {number + 1}/{rounds} {what}: {len(self.recorder.acked):,} acknowledged, "
            f"{', '.join(f'{len(done):,}' for done in self.recorder.finished.values())} finished"
        )

    # -- what some rounds do ---------------------------------------------------------------------------------------

    def _channel(self, verb: str, channel: bytes) -> None:
        path = f"/channel/{verb}?topic={TOPIC.decode()}&channel={channel.decode()}"
        http(self.victim.addresses["http"], path, "POST")

    def _pause(self, channel: bytes) -> None:
        self._channel("pause", channel)
        self.recorder.paused.add(channel)

    def _unpause(self) -> None:
        """A channel paused before the kill still is; then it goes on."""
        for channel in list(self.recorder.paused):
            with Peer(self.victim.addresses["nsq"]) as peer:
                peer.subscribe(channel, RDY)
                if peer.ask(b"PUB marks#ephemeral\n\0\0\0\1.") != b"OK":
                    self.recorder.object("Q8", f"channel {channel!r} is paused and gave a message")
                peer.send(b"CLS\n")
                if peer.frame()[1] != b"CLOSE_WAIT":
                    self.recorder.object("Q8", f"channel {channel!r} is paused and gave a message")
            self.recorder.paused.discard(channel)
            self._channel("unpause", channel)
        self._raise()

    def _take_and_hold(self) -> None:
        """A thousand messages in flight, none finished: the oracle wants them all again."""
        self.drain()
        bodies = [b"f%d.%d|" % (self.chance.randrange(1 << 40), n) for n in range(IN_FLIGHT)]
        nsq = self.victim.addresses["nsq"]
        with Peer(nsq) as producer, Peer(nsq) as consumer:
            self.recorder.publish(bodies)
            assert producer.ask(mpub(bodies)) == b"OK"
            self.recorder.answered(bodies)
            consumer.subscribe(CHANNELS[0], IN_FLIGHT)
            reader = Reader(consumer, self.recorder, CHANNELS[0])
            taken = 0
            while taken < IN_FLIGHT:
                taken += len(list(reader.messages()))
            in_flight = counts(self.victim.addresses["http"])[CHANNELS[0].decode()]["in_flight_count"]
            assert in_flight == IN_FLIGHT, in_flight
