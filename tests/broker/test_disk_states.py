"""Queue topics on a disk that is full (P8: a state, which ends) and on one whose flush fails (W5: the end of answers)."""

from __future__ import annotations

import contextlib
import json
import os
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.queueside import Reader, Side
from chaos.jobs import Lost, Peer, sized
from fronts.raw_peer import RawPeer
from penstock.broker.reserve import BYTES
from penstock.disk.files import Files
from penstock.errors import DiskFull, StoreError
from penstock.testing import Broker
from penstock.wire.record import iter_records
from polling import eventually


class Disk(Files):
    """A disk that is full, or whose flushes fail, while the test says so."""

    full = False
    failing = False

    def allocate(self, fd: int, at: int, length: int) -> None:
        if self.full:
            raise DiskFull("no room for a test")
        Files.allocate(self, fd, at, length)

    def datasync(self, fd: int) -> None:
        if self.failing:
            raise StoreError("a flush: Input/output error")
        Files.datasync(self, fd)


def http(broker: Broker, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://{broker.http}{path}", data=body)
    try:
        with urllib.request.urlopen(request, timeout=30) as told:
            return told.status, told.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def publish_until_refused(broker: Broker, bodies: list[bytes]) -> bytes:
    """PUB 4 KiB bodies, which are added when they are answered OK; the first other answer."""
    with Peer(broker.nsq) as peer:
        while True:
            body = b"%d|" % len(bodies) + bytes(4096)
            answer = peer.ask(b"PUB jobs\n" + sized(body))
            if answer != b"OK":
                with pytest.raises(Lost):  # as nsqd does
                    peer.frame()
                return answer
            bodies.append(body)


def finish_all(broker: Broker, count: int) -> list[bytes]:
    """Receive and FIN so many messages of channel c."""
    found: list[bytes] = []
    with Peer(broker.nsq) as peer:
        assert peer.ask(b"SUB jobs c\n") == b"OK"
        peer.send(b"RDY 1\n")
        while len(found) < count:
            _, data = peer.frame()
            found.append(data[26:])
            peer.send((b"RDY 0\n" if len(found) == count else b"") + b"FIN %s\n" % data[10:26])
        assert peer.ask(b"CLS\n") == b"CLOSE_WAIT"  # an answer behind the last FIN
    return found


def owed(broker: Broker) -> int:
    stats = json.loads(http(broker, "/stats?format=json&topic=jobs")[1])
    channel = stats["topics"][0]["channels"][0]
    return channel["depth"] + channel["in_flight_count"] + channel["deferred_count"]


@pytest.mark.parametrize("level", ["os", "disk"])
def test_a_full_disk_is_a_state(tmp_path: Path, level: str) -> None:
    disk, bodies = Disk(), []
    settings = {"level": level, "queue_segment_bytes": 1 << 20, "max_msg_size": 1 << 16}
    with Broker(tmp_path, files=disk, **settings) as broker:
        http(broker, "/topic/create?topic=jobs", b"")
        http(broker, "/channel/create?topic=jobs&channel=c", b"")
        with Peer(broker.nsq) as peer:
            assert peer.ask(b"PUB jobs\n" + sized(b"first")) == b"OK"
            bodies.append(b"first")
        disk.full = True
        assert publish_until_refused(broker, bodies).startswith(b"E_PUB_FAILED PUB failed the disk is full")
        batch = sized(struct.pack(">I", 200) + b"".join([sized(bytes(4096))] * 200))
        with Peer(broker.nsq) as peer:
            assert peer.ask(b"MPUB jobs\n" + batch).startswith(b"E_MPUB_FAILED MPUB failed the disk is full")
        assert http(broker, "/pub?topic=jobs", bytes(4096))[0] == 503
        assert http(broker, "/ping") == (200, b"OK")
        assert owed(broker) == len(bodies)
        half = len(bodies) // 2
        assert finish_all(broker, half) == bodies[:half]
        assert owed(broker) == len(bodies) - half
        disk.full = False
        with Peer(broker.nsq) as peer:
            assert peer.ask(b"PUB jobs\n" + sized(b"room again")) == b"OK"
        bodies.append(b"room again")
        assert finish_all(broker, len(bodies) - half) == bodies[half:]
        assert owed(broker) == 0


@pytest.mark.parametrize("level", ["os", "disk"])
def test_a_failed_flush_ends_acknowledging(tmp_path: Path, level: str, caplog: pytest.LogCaptureFixture) -> None:
    disk, bodies = Disk(), []
    with Broker(tmp_path, files=disk, level=level) as broker:
        http(broker, "/topic/create?topic=jobs", b"")
        http(broker, "/channel/create?topic=jobs&channel=c", b"")
        with Peer(broker.nsq) as peer:
            assert peer.ask(b"PUB jobs\n" + sized(b"before")) == b"OK"
            bodies.append(b"before")
        disk.failing = True
        assert publish_until_refused(broker, bodies).startswith(b"E_PUB_FAILED PUB failed")
        if level == "disk":
            assert bodies == [b"before"]  # not one was answered that the failing flush had to cover
        status, text = http(broker, "/ping")
        assert status == 500
        assert text.startswith(b"NOK - a flush: Input/output error")
        assert http(broker, "/pub?topic=jobs", b"x")[0] == 503
        assert finish_all(broker, 1) == [b"before"]
        disk.failing = False  # the disk says all is well again: it is not believed
        deadline = time.monotonic() + 0.7
        while time.monotonic() < deadline:
            with Peer(broker.nsq) as peer:
                assert peer.ask(b"PUB jobs\n" + sized(b"y")).startswith(b"E_PUB_FAILED")
    assert not [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    with Broker(tmp_path, level=level) as broker:
        assert http(broker, "/ping") == (200, b"OK")
        if len(bodies) > 1:
            assert finish_all(broker, len(bodies) - 1) == bodies[1:]
        with Peer(broker.nsq) as peer:
            assert peer.ask(b"PUB jobs\n" + sized(b"after")) == b"OK"


def test_files_stay_open_until_the_flush_that_has_them_is_done(tmp_path: Path) -> None:
    side = Side(tmp_path, files=Files())
    topic, queueing = side.queueing.topic(b"t"), side.queueing
    reader = Reader()
    reader.ready_count = 10_000
    channel = topic.channel(b"c")
    channel.add(reader)
    for _ in range(200):
        queueing.publish(topic, [bytes(4000)])
    queueing.end_turn()
    messages = list(reader.deliveries())
    assert len(messages) == 200
    side.clock.advance(600)
    side.broker.time.update()
    (flush,) = queueing.take_jobs()
    for message in messages:
        channel.finish(reader, message.id, 0, 0)
    queueing.mark_channel(channel)
    queueing.end_turn()  # the segments are let go of
    assert queueing.take_jobs() == []
    flush.run()
    flush.finish(None, side.broker.mono_ms)
    (clean,) = queueing.take_jobs()
    clean.run()
    assert queueing.healthy
    assert len(list((tmp_path / "queues").rglob("*.queue"))) <= 4  # the last, two spares, and one that is still full
    side.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of 160 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    at = tmp_path / "disk"
    at.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=160m", "none", str(at)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], capture_output=True)


def fill(disk: Path) -> Path:
    """Take all that is left."""
    ballast = disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))
    with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(512))
    assert os.statvfs(disk).f_bavail == 0
    return ballast


@pytest.mark.parametrize("killed", [False, True])
def test_a_start_on_a_disk_without_a_free_byte(
    small_disk: Path, killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It serves reads, refuses writes, says so, and goes on when there is room: it must run to be cleaned."""
    folder = small_disk / "data"
    running = Broker(folder).start()
    assert http(running, "/topic/create?topic=jobs", b"")[0] == 200
    assert http(running, "/channel/create?topic=jobs&channel=c", b"")[0] == 200
    sent = [b"before %d" % n for n in range(20)]
    with Peer(running.nsq) as peer, RawPeer(running.addresses["remoting"]) as logs:
        for body in sent:
            assert peer.ask(b"PUB jobs\n" + sized(body)) == b"OK"
            assert logs.send("Log", body).code == 0
    eventually(lambda: (folder / "reserve").is_file() and (folder / "reserve").stat().st_size == BYTES)
    if killed:
        left = small_disk / "left"
        subprocess.run(["cp", "-a", str(folder), str(left)], check=True)
        running.stop()
        folder = left
    else:
        running.stop()
    ballast = fill(small_disk)
    with Broker(folder) as again:
        assert "the disk is full" in caplog.text
        with RawPeer(again.addresses["remoting"]) as logs:
            got = []
            for queue_id in range(4):
                answer = logs.pull("Log", queue_id, 0)
                got += [message.body for message in iter_records(answer.body)] if answer.code == 0 else []
            assert sorted(got) == sorted(sent)
            stored: list[bytes] = []
            while (answer := logs.send("Log", b"more %d|" % len(stored) + bytes(100_000))).code == 0:
                stored.append(b"more %d|" % len(stored) + bytes(100_000))
            assert answer.code == 14
            assert b"full" in (answer.remark or "").encode()
        bodies: list[bytes] = []
        assert publish_until_refused(again, bodies).startswith(b"E_PUB_FAILED")
        assert sorted(finish_all(again, 20 + len(bodies))) == sorted(sent + bodies)
        ballast.unlink()

        def goes_on() -> bool:
            with Peer(again.nsq) as peer, RawPeer(again.addresses["remoting"]) as logs:
                return peer.ask(b"PUB jobs\n" + sized(b"after")) == b"OK" and logs.send("Log", b"after").code == 0

        eventually(goes_on)


@pytest.mark.parametrize("program", [["penstock", "up", "--data"], ["nsqd", "-data-path"]])
def test_a_first_start_on_a_disk_without_a_free_byte_says_why(small_disk: Path, program: list[str]) -> None:
    (small_disk / "data").mkdir()
    fill(small_disk)
    ports = [f"--{name}-port=0" for name in ("registry", "remoting", "nsq", "http", "lookup", "lookup-http")]
    if program[0] == "nsqd":
        ports = ["-tcp-address=127.0.0.1:0", "-http-address=127.0.0.1:0"]
    command = [str(Path(sys.executable).parent / program[0]), *program[1:], str(small_disk / "data"), *ports]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert told.returncode == 1
    last = (told.stdout + told.stderr).strip().splitlines()[-1]
    assert f"the disk of {small_disk}/data is full" in last
    assert "free at least 8 MiB there and start again" in last
