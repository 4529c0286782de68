"""A broker under churn for a long time: topics, channels, groups, connections and delayed messages come and go. After the
first minutes, in which it fills what it keeps, nothing grows: memory of its own, descriptors, disk, the schedule's file.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from chaos.jobs import Lost, Peer, sized
from fronts.raw_peer import RawPeer
from fuzz.campaign import Victim

FLAT = 1.05
NAMES = 300  # a name that was once registered stays known to nsqlookupd, as it does at NSQ's own
MEMORY_SLACK = 2 << 20  # pages that the C library holds back for a while
Tell = Callable[[str], None]


class Sample(NamedTuple):
    memory: int
    descriptors: int
    disk: int
    schedule: int


def used(folder: Path) -> int:
    """Bytes of the disk that the files below a folder take."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


KEPT = ("commitlog", "checksums", "consumequeue", "index")  # a segment of the log is open as long as it is there


def descriptors(pid: int, data: Path) -> int:
    """Open descriptors, but for those of the log's segments."""
    found = 0
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            target = link.readlink()
            found += not (
                target.is_relative_to(data) and target.relative_to(data).parts[:1] in [(name,) for name in KEPT]
            )
    return found


def sample(victim: Victim, data: Path) -> Sample:
    return Sample(victim.memory(), descriptors(victim.process.pid, data), used(data), used(data / "schedule"))


def churn(victim: Victim, number: int, source: random.Random) -> None:
    """One round: a queue topic with two channels lives and dies; messages of a log topic that stays; many connections."""
    import http.client

    name = f"churn-{number % NAMES}"
    site = http.client.HTTPConnection(victim.addresses["http"], timeout=30)

    def post(path: str, body: bytes = b"") -> None:
        site.request("POST", path, body)
        answer = site.getresponse()
        answer.read()
        assert answer.status == 200, (path, answer.status)

    post(f"/topic/create?topic={name}")
    for channel in ("a", "b"):
        post(f"/channel/create?topic={name}&channel={channel}")
    with Peer(victim.addresses["nsq"]) as peer:
        for n in range(20):
            assert peer.ask(b"PUB %s\n" % name.encode() + sized(b"x" * source.randrange(1, 2000))) == b"OK"
            if n % 5 == 0:
                assert peer.ask(b"DPUB %s 30\n" % name.encode() + sized(b"later")) == b"OK"
    with Peer(victim.addresses["nsq"]) as reader:
        assert reader.ask(b"SUB %s a\n" % name.encode()) == b"OK"
        reader.send(b"RDY 50\n")
        for _ in range(15):
            _, message = reader.frame()
            reader.send((b"FIN %s\n" if source.random() < 0.9 else b"REQ %s 0\n") % message[10:26])
    for _ in range(10):
        with RawPeer(victim.addresses["remoting"]) as raw:
            assert raw.send("stays", b"y" * 300, {"KEYS": "k"}).code == 0
            raw.send("stays", b"later", {"TIMER_DELAY_MS": "50"})
            raw.pull("stays", 0, 0, consumerGroup=f"group-{number % 50}")
    try:
        with Peer(victim.addresses["nsq"]) as broken:
            broken.send(b"NONSENSE\n")
            broken.frame()
            broken.frame()
    except Lost:
        pass
    post(f"/channel/delete?topic={name}&channel=b")
    post(f"/topic/delete?topic={name}")
    site.close()


def soak(folder: Path, minutes: float, tell: Tell, seed: int = 1) -> None:
    """AssertionError where something grew after the first sixth of the time."""
    data = folder / "data"
    victim = Victim(folder, settings={})  # segments of the usual sizes: a log that grows rolls seldom
    source = random.Random(seed)
    begin = time.monotonic()
    settled: Sample | None = None
    number = 0
    told = begin
    try:
        while (now := time.monotonic()) < begin + 60 * minutes:
            churn(victim, number, source)
            number += 1
            if settled is None and now > begin + 10 * minutes:
                settled = sample(victim, data)
            if now - told >= 60:
                told = now
                tell(f"{(now - begin) / 60:5.1f} min, {number} rounds: {sample(victim, data)}")
        time.sleep(3)  # what is due is delivered, what is flushed is let go
        end = sample(victim, data)
        assert settled is not None
        tell(f"after {minutes / 6:.1f} min: {settled}\nat the end:  {end}   ({number} rounds)")
        assert end.memory <= settled.memory * FLAT + MEMORY_SLACK, "memory grew"
        assert end.descriptors <= settled.descriptors * FLAT + 2, "descriptors grew"
        assert end.schedule <= settled.schedule * FLAT + (1 << 20), "the schedule's file grew"
        # The log keeps what log topics got: that is what it is for. All else is given back.
        grown = end.disk - settled.disk
        log = number * 20 * 700
        assert grown <= log + (64 << 20), f"the disk grew by {grown}"
        assert victim.stop() == 0
        text = victim.log.read_text(errors="replace")
        assert "Traceback" not in text, text[text.index("Traceback") - 500 :][:2000]
    finally:
        if victim.process.poll() is None:
            victim.process.kill()
            victim.process.wait()
        assert victim.process.stdout is not None
        victim.process.stdout.close()
        shutil.rmtree(data, ignore_errors=True)
