"""Clients of a queue topic that write down what they sent, were answered and got, with nothing but sockets; and the
oracle over what they wrote (reliability.md 7.3, Q1 to Q8).

A FIN has no answer. It counts as done when a later command of its connection was answered: each consumer publishes
into an ephemeral topic behind its FINs, and the OK to that is the answer.
"""

from __future__ import annotations

import contextlib
import json
import random
import socket
import struct
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

TOPIC = b"jobs"
CHANNELS = (b"a", b"b")
MARK = b"PUB marks#ephemeral\n\0\0\0\1."
EARLY_S = 0.005  # the broker reads the clock once a turn
BEHIND_MAX = 20_000
KEEP_MAX = 40
RDY = 100


class Lost(Exception):
    """The connection ended."""


class Peer:
    """One NSQ connection."""

    def __init__(self, address: str, timeout_s: float = 30) -> None:
        host, _, port = address.rpartition(":")
        try:
            self.socket = socket.create_connection((host, int(port)), timeout_s)
        except OSError as error:
            raise Lost(str(error)) from error
        self.buffer = bytearray()
        self.send(b"  V2")

    def send(self, data: bytes) -> None:
        try:
            self.socket.sendall(data)
        except OSError as error:
            raise Lost(str(error)) from error

    def frame(self) -> tuple[int, bytes]:
        """The next frame that is no heartbeat: (type, data)."""
        while True:
            if len(self.buffer) >= 4:
                size = int.from_bytes(self.buffer[:4])
                if len(self.buffer) >= 4 + size:
                    kind, data = int.from_bytes(self.buffer[4:8]), bytes(self.buffer[8 : 4 + size])
                    del self.buffer[: 4 + size]
                    if data != b"_heartbeat_":
                        return kind, data
                    self.send(b"NOP\n")
                    continue
            self.read()

    def read(self) -> None:
        try:
            data = self.socket.recv(1 << 16)
        except OSError as error:
            raise Lost(str(error)) from error
        if not data:
            raise Lost("closed")
        self.buffer += data

    def ask(self, data: bytes) -> bytes:
        """Send a command, return its answer."""
        self.send(data)
        return self.frame()[1]

    def subscribe(self, channel: bytes, ready: int) -> None:
        identify = b'{"msg_timeout":60000,"client_id":"chaos"}'
        assert self.ask(b"IDENTIFY\n" + struct.pack(">I", len(identify)) + identify) == b"OK"
        assert self.ask(b"SUB %s %s\n" % (TOPIC, channel)) == b"OK"
        self.send(b"RDY %d\n" % ready)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()


def sized(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


class Recorder:
    """What the clients know, and a line for each event. A publish without an answer is in doubt: there or not."""

    early_s = EARLY_S

    def __init__(self, lines: Path) -> None:
        self.now: Callable[[], float] = time.monotonic
        self.lock = threading.Lock()
        self.lines = lines.open("a")
        self.life = 0  # of the broker
        self.sent: dict[bytes, float] = {}  # body → not to be delivered before
        self.acked: set[bytes] = set()
        self.batches: list[list[bytes]] = []
        self.seen: dict[bytes, dict[bytes, tuple[bytes, int]]] = {name: {} for name in CHANNELS}  # body → id, timestamp
        self.bodies: dict[bytes, bytes] = {}  # id → body
        self.told: dict[bytes, set[bytes]] = {name: set() for name in CHANNELS}  # FIN was sent
        self.finished: dict[bytes, set[bytes]] = {name: set() for name in CHANNELS}  # and is effective
        self.postponed: dict[tuple[bytes, bytes], list[float]] = {}  # (channel, body) → [not before, life (0: any)]
        self.paused: set[bytes] = set()
        self.fault = ""
        self.redelivered = 0

    def line(self, *words: object) -> None:
        words = tuple(word.decode("latin-1") if isinstance(word, bytes) else word for word in words)
        self.lines.write(f"{time.monotonic():.6f} {self.life} {' '.join(map(str, words))}\n")

    def publish(self, bodies: list[bytes], due: float = 0.0) -> None:
        with self.lock:
            self.line("publish", len(bodies), f"{due:.6f}", *(body[:24].split(b"|")[0] for body in bodies))
            self.sent.update(dict.fromkeys(bodies, due))
            if len(bodies) > 1:
                self.batches.append(bodies)

    def answered(self, bodies: list[bytes]) -> None:
        with self.lock:
            self.line("answered", *(body.split(b"|")[0] for body in bodies))
            self.acked.update(bodies)

    def received(self, channel: bytes, data: bytes) -> bytes:
        """A message frame: it is held against everything known. Its body."""
        now = self.now()
        stamp, attempts, message_id, body = (*struct.unpack(">qH16s", data[:26]), data[26:])
        with self.lock:
            self.line("received", channel, message_id, attempts, body.split(b"|")[0])
            self._judge(channel, stamp, attempts, message_id, body, now)
            self.redelivered += body in self.seen[channel]
            self.seen[channel][body] = (message_id, stamp)
            self.bodies[message_id] = body
        return body

    def _judge(self, channel: bytes, stamp: int, attempts: int, message_id: bytes, body: bytes, now: float) -> None:
        if body not in self.sent:
            self.object("Q2", f"nobody sent {body[:60]!r}")
        name = body.split(b"|")[0].decode()
        if channel in self.paused:
            self.object("Q8", f"{name} came from channel {channel!r}, which is paused")
        if self.seen[channel].get(body, (message_id, stamp)) != (message_id, stamp):
            self.object("Q3", f"{name} had {self.seen[channel][body]}, has {message_id, stamp}")
        if self.bodies.get(message_id, body) != body:
            self.object("Q3", f"the id {message_id!r} of {name} was another message's")
        if attempts < 1:
            self.object("Q3", f"{name} has {attempts} attempts")
        if now < self.sent.get(body, 0) - self.early_s:
            self.object("Q4", f"{name} came {self.sent[body] - now:.3f} s early")
        not_before, life = self.postponed.pop((channel, body), [0.0, 0])
        if life in (0, self.life) and now < not_before - self.early_s:
            self.object("Q4", f"{name}, given back, came {not_before - now:.3f} s early")
        if body in self.finished[channel]:
            self.object("Q5", f"{name} was finished on channel {channel!r}")

    def object(self, rule: str, text: str) -> None:
        """Something promised was not kept; the campaign ends with the first of these."""
        self.line("OBJECTION", rule, text)
        self.fault = self.fault or f"{rule}: {text}"

    def postpone(self, channel: bytes, message_id: bytes, body: bytes, delay_ms: int) -> list[float]:
        """A REQ is about to be sent. What stands for it until its answer comes."""
        with self.lock:
            self.line("REQ", channel, message_id, delay_ms)
            postponed = [self.now() + delay_ms / 1000, self.life]
            self.postponed[channel, body] = postponed
        return postponed

    def tell(self, channel: bytes, finished: list[bytes]) -> None:
        """FINs are about to be sent."""
        with self.lock:
            self.line("FIN", channel, *(body.split(b"|")[0] for body in finished))
            self.told[channel].update(finished)

    def effective(self, channel: bytes, finished: list[bytes], requeued: list[list[float]]) -> None:
        """The answer behind these FINs and REQs came."""
        with self.lock:
            self.line("effective", channel, *(body.split(b"|")[0] for body in finished))
            self.finished[channel].update(finished)
            for postponed in requeued:
                postponed[1] = 0

    def behind(self) -> int:
        """How many answered messages the slowest channel was not told to be finished."""
        return len(self.acked) - min(len(told) for told in self.told.values())

    # -- the oracle ----------------------------------------------------------------------------------------------

    def judge_counts(self, counts: dict[str, dict[str, int]]) -> str:
        """Q6: what each channel says it owes, between the least and the most it can; the objection, or nothing."""
        for channel in CHANNELS:
            said = sum(counts[channel.decode()].values())
            least = len(self.acked - self.told[channel])
            most = len(self.sent) - len(self.finished[channel])
            if not least <= said <= most:
                return f"channel {channel!r} owes {least} to {most} and says {counts[channel.decode()]}"
        return ""

    def judge_drained(self) -> None:
        """Q1, Q7: nothing is owed any more; so everything answered came, and was finished by somebody."""
        for channel in CHANNELS:
            missing = self.acked - self.told[channel]
            if missing:
                never = len(missing - set(self.seen[channel]))
                names = sorted(body.split(b"|")[0].decode() for body in missing)[:5]
                self.object("Q1", f"channel {channel!r} lost {len(missing)} messages, {never} never came: {names}")
            for batch in self.batches:
                there = sum(body in self.seen[channel] for body in batch)
                if there not in (0, len(batch)):
                    self.object("Q7", f"channel {channel!r} got {there} of the {len(batch)} messages of one MPUB")
        doubtful = set(self.sent) - self.acked
        for body in doubtful:
            if (body in self.seen[CHANNELS[0]]) != (body in self.seen[CHANNELS[1]]):
                self.object("Q1", f"{body.split(b'|')[0].decode()} came to one channel only")
        for body in doubtful - set(self.seen[CHANNELS[0]]):
            del self.sent[body]  # it is known now that it was not stored
        self.batches.clear()


class Load:
    """Three producers and two consumers a channel, until the connection ends. A producer rests so long behind each answer."""

    behind_max = BEHIND_MAX
    delays_ms = (1, 50, 300, 1500)
    gives_back = 0.08  # of what is received

    def __init__(self, nsq: str, recorder: Recorder, chance: random.Random, pause_s: float = 0) -> None:
        self.nsq, self.recorder, self.pause_s = nsq, recorder, pause_s
        self.number = chance.randrange(1 << 40)
        self.over = False
        works = [self._publish, self._batches, self._defer]
        works += [lambda r, name=name: self._consume(name, r) for name in CHANNELS for _ in range(2)]
        self._threads = [
            threading.Thread(target=self._run, args=(work, random.Random(chance.random())), daemon=True)
            for work in works
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        self.over = True
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _run(self, work: Any, chance: random.Random) -> None:
        with contextlib.suppress(Lost):
            work(chance)

    def _body(self, kind: bytes, number: int, chance: random.Random) -> bytes:
        return b"%s%d.%d|" % (kind, self.number, number) + chance.randbytes(chance.choice((4, 100, 800, 3000)))

    def _room(self) -> None:
        time.sleep(self.pause_s)
        while self.recorder.behind() > self.behind_max:
            if self.over:
                raise Lost("nobody catches up any more")
            time.sleep(0.01)  # the consumers are behind

    def _publish(self, chance: random.Random) -> None:
        """PUB, several unanswered."""
        number = 0
        waiting: deque[bytes] = deque()
        with Peer(self.nsq) as peer:
            while True:
                self._room()
                fresh = [self._body(b"p", number + n, chance) for n in range(chance.choice((1, 1, 5, 20)))]
                number += len(fresh)
                for body in fresh:
                    self.recorder.publish([body])
                waiting.extend(fresh)
                peer.send(b"".join(b"PUB %s\n" % TOPIC + sized(body) for body in fresh))
                while len(waiting) > 20 or (waiting and chance.random() < 0.7):
                    self._ok(peer, [waiting.popleft()])

    def _batches(self, chance: random.Random) -> None:
        number = 0
        with Peer(self.nsq) as peer:
            while True:
                self._room()
                bodies = [self._body(b"m", number + n, chance) for n in range(chance.choice((2, 10, 60)))]
                number += len(bodies)
                self.recorder.publish(bodies)
                peer.send(mpub(bodies))
                self._ok(peer, bodies)

    def _defer(self, chance: random.Random) -> None:
        number = 0
        with Peer(self.nsq) as peer:
            while True:
                self._room()
                delay_ms = chance.choice(self.delays_ms)
                body = self._body(b"d", number, chance)
                number += 1
                self.recorder.publish([body], self.recorder.now() + delay_ms / 1000)
                peer.send(b"DPUB %s %d\n" % (TOPIC, delay_ms) + sized(body))
                self._ok(peer, [body])

    def _ok(self, peer: Peer, bodies: list[bytes]) -> None:
        kind, data = peer.frame()
        if kind != 0 or data != b"OK":
            self.recorder.object("answer", f"{data!r} to a publish")
            raise Lost(data.decode())
        self.recorder.answered(bodies)

    def _consume(self, channel: bytes, chance: random.Random) -> None:
        with Peer(self.nsq) as peer:
            peer.subscribe(channel, RDY)
            reader = Reader(peer, self.recorder, channel)
            kept = 0
            while True:
                for message_id, body in reader.messages():
                    luck = chance.random()
                    if luck < 0.08 and kept < KEEP_MAX:
                        kept += 1  # in flight until the kill
                    elif luck < 0.08 + self.gives_back:
                        reader.requeue(message_id, body, chance.choice((0, 0, 100, 600)))
                    else:
                        reader.finish(message_id, body)
                reader.say()


def mpub(bodies: list[bytes]) -> bytes:
    return b"MPUB %s\n" % TOPIC + sized(struct.pack(">I", len(bodies)) + b"".join(map(sized, bodies)))


class Reader:
    """A consumer's end: what is read together is said together, with a publish behind it that is answered."""

    def __init__(self, peer: Peer, recorder: Recorder, channel: bytes) -> None:
        self.peer, self.recorder, self.channel = peer, recorder, channel
        self._words: list[bytes] = []
        self._finished: list[bytes] = []
        self._requeued: list[list[float]] = []
        self._marks: deque[tuple[list[bytes], list[list[float]]]] = deque()

    def messages(self) -> Iterator[tuple[bytes, bytes]]:
        """Wait for something, then (id, body) of every message that is there."""
        first = True
        while first or len(self.peer.buffer) >= 4 + int.from_bytes(self.peer.buffer[:4]) > 4:
            first = False
            kind, data = self.peer.frame()
            if kind == 2:
                yield data[10:26], self.recorder.received(self.channel, data)
            elif data == b"OK":
                self.recorder.effective(self.channel, *self._marks.popleft())
            else:
                self.recorder.object("answer", f"{data!r} to a consumer")

    def finish(self, message_id: bytes, body: bytes) -> None:
        self._words.append(b"FIN %s\n" % message_id)
        self._finished.append(body)

    def requeue(self, message_id: bytes, body: bytes, delay_ms: int) -> None:
        self._words.append(b"REQ %s %d\n" % (message_id, delay_ms))
        self._requeued.append(self.recorder.postpone(self.channel, message_id, body, delay_ms))

    def say(self) -> None:
        """Send it."""
        if self._words:
            self.recorder.tell(self.channel, self._finished)
            self._marks.append((self._finished, self._requeued))
            self.peer.send(b"".join(self._words) + MARK)
            self._words, self._finished, self._requeued = [], [], []


def http(address: str, path: str, method: str = "GET") -> bytes:
    with urllib.request.urlopen(urllib.request.Request(f"http://{address}{path}", method=method), timeout=30) as told:
        data: bytes = told.read()
        return data


def counts(address: str, hidden: bool = False) -> dict[str, dict[str, int]]:
    """What each channel of the topic says it owes; `hidden`: and what none sees yet, at level disk until it is flushed."""
    stats = json.loads(http(address, f"/stats?format=json&topic={TOPIC.decode()}"))
    more = {"": {"depth": int(stats["topics"][0]["depth"])}} if hidden else {}
    return more | {
        channel["channel_name"]: {key: channel[key] for key in ("depth", "in_flight_count", "deferred_count")}
        for channel in stats["topics"][0]["channels"]
    }


def prepare(http_address: str) -> None:
    """The topic and its channels, before anything is published: every message is owed to all of them."""
    http(http_address, f"/topic/create?topic={TOPIC.decode()}", "POST")
    for name in CHANNELS:
        http(http_address, f"/channel/create?topic={TOPIC.decode()}&channel={name.decode()}", "POST")


def drain(nsq: str, http_address: str, recorder: Recorder, timeout_s: float = 30) -> None:
    """Finish everything both channels have, until they say that they owe nothing."""
    stop = threading.Event()

    def finish_all(channel: bytes) -> None:
        with contextlib.suppress(Lost), Peer(nsq) as peer:
            peer.subscribe(channel, 500)
            peer.socket.settimeout(0.1)
            reader = Reader(peer, recorder, channel)
            while not stop.is_set():
                peer.socket.settimeout(0.1)  # to wait for messages, and for nothing else
                try:
                    for message_id, body in reader.messages():
                        reader.finish(message_id, body)
                except Lost as lost:
                    if "timed out" not in str(lost):
                        raise
                peer.socket.settimeout(30)
                reader.say()

    threads = [threading.Thread(target=finish_all, args=(name,), daemon=True) for name in CHANNELS]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + timeout_s
    said: dict[str, dict[str, int]] = {}
    while time.monotonic() < deadline and not recorder.fault:
        said = counts(http_address, hidden=True)
        if not any(sum(channel.values()) for channel in said.values()):
            break
        time.sleep(0.05)  # the consumers are at work
    else:
        recorder.object("Q6", f"after {timeout_s:.0f} s of finishing everything: {said}")
    stop.set()
    for thread in threads:
        thread.join(10)
    recorder.judge_drained()
