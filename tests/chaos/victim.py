"""The broker that is killed, and the clients that write down what they were told."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fronts.raw_peer import RawPeer
from penstock.wire.record import iter_records
from ports import free_port

SRC = Path(__file__).parents[2] / "src"
TOPIC = "Chaos"
QUEUES = 4
SETTINGS = {
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20_000,
    "max_hash_slot_num": 1_000,
    "max_index_num": 4_000,
    "default_topic_queue_nums": QUEUES,
}


class Victim:
    """`penstock up` with small segments, started again and again on one folder and one port."""

    def __init__(
        self,
        folder: Path,
        log: Path,
        level: str,
        *,
        settings: Mapping[str, object] | None = None,
        program: Sequence[str] = ("-m", "penstock.cli"),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.log, self.level = folder, log, level
        self.settings = {**SETTINGS, "level": level, **(settings or {})}
        self.program = program
        self.environment = environment or {}
        self.addresses: dict[str, str] = {}
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None
        self.start_s: list[float] = []

    def start(self) -> None:
        began = time.monotonic()
        command = [sys.executable, *self.program, "up", "--data", str(self.folder), "--registry-port", "0"]
        command += ["--remoting-port", str(self.port)]
        for name in ("nsq", "http", "lookup", "lookup-http"):
            command += [f"--{name}-port", "0"]
        for name, value in self.settings.items():
            command += ["--set", f"{name}={value}"]
        with self.log.open("a") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True,
                env={**os.environ, "PYTHONPATH": f"{SRC}{os.pathsep}{SRC.parent / 'tests'}"}
                | self.environment,
            )  # fmt: skip
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("ready "):
            raise AssertionError(f"the broker did not start again; its log ends: {self.log.read_text()[-1500:]}")
        self.addresses = json.loads(line.removeprefix("ready "))
        self.start_s.append(time.monotonic() - began)

    def end(self, how: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(how)
        self.process.wait(60)
        self._hang_up()

    def _hang_up(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.stdout.close()

    def __enter__(self) -> Victim:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing of it outlives the campaign, however that ended."""
        if self.process is not None and self.process.poll() is None:
            self.end()
        elif self.process is not None:  # it ended by itself
            self._hang_up()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def verify(self) -> dict[str, object]:
        """What `penstock store verify` says of the stopped folder."""
        command = [sys.executable, "-m", "penstock.cli", "store", "verify", "--json", str(self.folder)]
        told = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(SRC)})
        report: dict[str, object] = json.loads(told.stdout)
        return report


@dataclass
class Recorder:
    """What the clients know. A send without an answer is in doubt: it may be there once, or not."""

    sent: set[bytes] = field(default_factory=set)
    acked: dict[tuple[int, int], bytes] = field(default_factory=dict)
    acked_at: dict[tuple[int, int], float] = field(default_factory=dict)
    seen_end: dict[int, int] = field(default_factory=dict)
    durable: dict[tuple[int, int], bytes] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    last_answered: float = 0.0  # when the last send was made that was answered
    now: Callable[[], float] = time.monotonic

    def send(self, body: bytes) -> None:
        with self.lock:
            self.sent.add(body)

    def answered(self, queue_id: int, offset: int, body: bytes, sent_at: float) -> None:
        with self.lock:
            key = queue_id, offset
            assert key not in self.acked, f"offset {key} was given out twice"
            self.acked[key] = body
            self.acked_at[key] = self.now()
            self.last_answered = max(self.last_answered, sent_at)

    def read(self, queue_id: int, messages: dict[int, bytes]) -> None:
        """A reader of what is durable got these, by their offsets."""
        with self.lock:
            self.durable.update({(queue_id, offset): body for offset, body in messages.items()})

    def ends(self, queue_id: int, end: int) -> None:
        with self.lock:
            self.seen_end[queue_id] = max(self.seen_end.get(queue_id, 0), end)


class Load:
    """Producers that wait for each answer, and a reader of what is durable, until the connection ends."""

    def __init__(self, victim: Victim, recorder: Recorder, seed: int, pause_s: float = 0) -> None:
        self.victim, self.recorder, self.pause_s = victim, recorder, pause_s
        self._threads = [
            threading.Thread(target=self._produce, args=(queue_id, random.Random(seed * 100 + queue_id)), daemon=True)
            for queue_id in range(QUEUES)
        ]
        self._threads.append(threading.Thread(target=self._read, daemon=True))

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _produce(self, queue_id: int, chance: random.Random) -> None:
        recorder = self.recorder
        with contextlib.suppress(OSError, EOFError), RawPeer(self.victim.address) as peer:
            while True:
                number = chance.randrange(1 << 60)
                body = b"%d/%d/" % (queue_id, number) + chance.randbytes(chance.choice((10, 100, 1000, 5000)))
                recorder.send(body)
                sent_at = recorder.now()
                answer = peer.send(
                    TOPIC, body, {"KEYS": f"k{number}", "UNIQ_KEY": f"U{number}", "TAGS": "A"}, e=queue_id
                )
                if answer.code == 0:
                    recorder.answered(queue_id, int(answer.ext["queueOffset"]), body, sent_at)
                time.sleep(self.pause_s)

    def _read(self) -> None:
        recorder = self.recorder
        with contextlib.suppress(OSError, EOFError, KeyError), RawPeer(self.victim.address) as peer:
            at = {
                queue_id: max((o for q, o in recorder.durable if q == queue_id), default=-1) + 1
                for queue_id in range(QUEUES)
            }
            while True:
                for queue_id in range(QUEUES):
                    answer = peer.pull(TOPIC, queue_id, at[queue_id], durable="true")
                    if answer.code == 17:
                        time.sleep(0.01)
                        continue
                    if answer.code == 0:
                        recorder.read(queue_id, {m.queue_offset: m.body for m in iter_records(answer.body)})
                    at[queue_id] = int(answer.ext["nextBeginOffset"])
                    end = peer.ask(30, {"topic": TOPIC, "queueId": queue_id})
                    recorder.ends(queue_id, int(end.ext["offset"]))


def contents(address: str) -> Iterator[tuple[int, int, bytes, str]]:
    """Everything in the topic: (queue, offset, body, message id), by the protocol."""
    with RawPeer(address) as peer:
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                answer = peer.pull(TOPIC, queue_id, offset, maxBytes=1 << 20, maxMsgNums=4096)
                if answer.code in (1, 17, 19):  # no such queue: its topic was being made
                    break
                for message in iter_records(answer.body, check=True) if answer.code == 0 else ():
                    yield queue_id, message.queue_offset, message.body, message.offset_msg_id
                next_offset = int(answer.ext["nextBeginOffset"])
                if next_offset <= offset and answer.code != 0:
                    raise AssertionError(f"queue {queue_id} does not go on behind {offset}: {answer}")
                offset = next_offset


def check(address: str, recorder: Recorder, acked_before: float | None = None) -> int:
    """The oracle (reliability.md 7.2, L1 to L8). `acked_before`: only what was answered before it must be there."""
    found: dict[tuple[int, int], bytes] = {}
    last: dict[int, int] = {}
    bodies: set[bytes] = set()
    for queue_id, offset, body, _ in contents(address):
        assert offset > last.get(queue_id, -1), f"queue {queue_id}: offset {offset} behind {last[queue_id]}"
        last[queue_id] = offset
        assert body in recorder.sent, f"queue {queue_id} offset {offset}: nobody sent this"
        assert body not in bodies, f"queue {queue_id} offset {offset}: twice"
        bodies.add(body)
        found[queue_id, offset] = body
    lost = []
    for key, body in recorder.acked.items():
        if key in found:
            assert found[key] == body, f"offset {key} means another message"
        elif acked_before is None or recorder.acked_at[key] < acked_before:
            lost.append(key)
    assert not lost, f"{len(lost)} acknowledged messages are lost, the first at {min(lost)}"
    for key, body in recorder.durable.items():
        assert found.get(key) == body, f"what a durable reader saw at {key} is different or gone"
    with RawPeer(address) as peer:
        for queue_id, end in recorder.seen_end.items():
            now = int(peer.ask(30, {"topic": TOPIC, "queueId": queue_id}).ext["offset"])
            assert now >= end, f"queue {queue_id}: the end went back from {end} to {now}"
        for key in random.Random(0).sample(sorted(recorder.acked), min(20, len(recorder.acked))):
            if key in found:
                number = found[key].split(b"/")[1].decode()
                span = {"topic": TOPIC, "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 1 << 60}
                by_key = peer.ask(12, span | {"key": f"k{number}"})
                got = [m.body for m in iter_records(by_key.body)]
                assert got == [found[key]], f"{key} is found {len(got)} times by its key (code {by_key.code})"
    recorder.acked = {key: body for key, body in recorder.acked.items() if key in found}
    return len(found)
