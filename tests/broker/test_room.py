"""What a broker takes of the disk: files of their full length, and room only for what is in them and a piece ahead."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.broker.reserve import BYTES
from penstock.disk.files import Files
from penstock.errors import DiskFull, Refused
from penstock.log.options import StoreOptions
from penstock.testing import Broker

SIZES = StoreOptions()
FULL = {
    "mapped_file_size_commit_log": SIZES.mapped_file_size_commit_log,
    "mapped_file_size_consume_queue": SIZES.mapped_file_size_consume_queue,
    "max_hash_slot_num": SIZES.max_hash_slot_num,
    "max_index_num": SIZES.max_index_num,
    "queue_segment_bytes": 64 << 20,
}
MIB = 1 << 20


def taken(folder: Path) -> int:
    """As `du` says, folders too."""
    return sum(path.stat().st_blocks * 512 for path in [folder, *folder.rglob("*")])


def put(side: Side, topic: bytes, count: int, body: bytes = b"x" * 100, start: int = 0) -> None:
    broker = side.broker
    log_topic = broker.topics.get(topic) or broker.topics.create(topic, 8, 8)
    for n in range(start, start + count):
        properties = {"KEYS": f"k{n}", "UNIQ_KEY": f"u{n}"}
        broker.put(log_topic, n % 8, body, properties, born_host=broker.store_host, born_ms=1)
        if n % 50 == 0:
            side.turn(200)
    side.turn(1000)
    side.turn(1000)


def test_a_broker_takes_little_of_the_disk(tmp_path: Path) -> None:
    side = Side(tmp_path, files=Files(), **FULL)
    side.turn(1000)
    side.turn(1000)
    assert taken(tmp_path) <= 2 * MIB + BYTES
    put(side, b"T", 10)
    assert taken(tmp_path) <= 40 * MIB
    before = taken(tmp_path)
    put(side, b"U", 16)
    assert taken(tmp_path) - before <= 100_000
    for n in range(10):
        topic = side.queueing.topic(b"q%d" % n)
        topic.channel(b"c")
        side.queueing.publish(topic, [b"x"])
    side.turn(1000)
    assert taken(tmp_path) - before <= 10 * 150_000
    files = {
        path.relative_to(tmp_path).parts[0]: path.stat().st_size for path in tmp_path.glob("*/**/*") if path.is_file()
    }
    assert files["commitlog"] == 1 << 30
    assert files["consumequeue"] == 6_000_000
    assert files["index"] == 420_000_040
    side.reopen(clean=False)
    assert taken(tmp_path) <= 40 * MIB
    put(side, b"T", 40, b"y" * 20_000, 10)  # and grows with what is written
    assert taken(tmp_path) <= 44 * MIB
    side.close()


def test_the_real_one_with_its_defaults(tmp_path: Path) -> None:
    with Broker(tmp_path, **FULL):
        assert taken(tmp_path) <= 2 * MIB
    assert taken(tmp_path) <= 2 * MIB


class Filling(Files):
    """A disk on which room is refused from the n-th time on that it is asked for, while the test says so."""

    left = 1 << 60

    def allocate(self, fd: int, at: int, length: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise DiskFull("no room (by order of the test)")
        super().allocate(fd, at, length)


@pytest.mark.parametrize("n", range(8))
def test_a_piece_that_cannot_be_had_refuses_that_send(tmp_path: Path, n: int) -> None:
    """Nothing is half done, and a later send is taken."""
    files = Filling()
    side = Side(tmp_path, files=files, **FULL)
    put(side, b"T", 8)
    files.left = n
    topic, stored = side.broker.topics.by_name[b"T"], 8
    refused: Refused | None = None
    while refused is None and stored < 4000:
        try:
            placed = side.broker.put(
                topic, 0, b"z" * 5000, {"KEYS": f"r{stored}"}, born_host=side.broker.store_host, born_ms=1
            )
        except Refused as error:
            refused = error
        else:
            stored += 1
            assert placed.queue_offset == stored - 8
    assert refused is not None
    assert refused.remoting == 14
    side.turn(1000)
    assert side.broker.topics.by_name[b"T"].queues[0].max_offset == stored - 7
    files.left = 1 << 60
    side.turn(2000)
    put(side, b"T", 1, start=8)
    side.reopen(clean=False)
    assert side.broker.topics.by_name[b"T"].queues[0].max_offset == stored - 6
    assert side.broker.store.damaged == 0
    side.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


VICTIM = """
import sys
from pathlib import Path
sys.path[:0] = [{tests!r}]
from broker.queueside import Side
from broker.test_room import FULL
from penstock.disk.files import Files
from penstock.errors import Refused
folder = Path({folder!r})
side = Side(folder, files=Files(), disk_used_refuse_percent=100, disk_used_force_percent=100, **FULL)
broker = side.broker
topic = broker.topics.create(b"T", 8, 8)
queue = side.queueing.topic(b"q")
queue.channel(b"c")
def fill():
    stored = published = 0
    for n in range(200_000):
        try:
            broker.put(topic, n % 8, b"x" * 3000, {{"KEYS": "k%d" % n}}, born_host=broker.store_host, born_ms=1)
            stored += 1
        except Refused:
            break
        if n % 100 == 0:
            side.turn(100)
    for n in range(20_000):
        try:
            side.queueing.publish(queue, [b"y" * 700])
            published += 1
        except Refused:
            break
    side.turn(1000)
    return stored, published
(folder / "ballast").write_bytes(bytes(8 << 20))
(folder / "pebble").write_bytes(bytes(100 << 10))
first = fill()
assert first[0] > 1000, first
(folder / "ballast").unlink()
side.turn(20_000)
second = fill()
assert second[0] > 100, second
stored, published = first[0] + second[0], first[1] + second[1]
broker.close(False)
(folder / "pebble").unlink()  # a start writes some small files
side.open()
assert sum(q.max_offset for q in side.broker.topics.by_name[b"T"].queues) == stored
assert side.queueing.topics[b"q"].stream.total == published
print("well", stored, published)
"""


def test_a_disk_that_fills_up_ends_no_process(small_disk: Path) -> None:
    """A mapped hole on a full disk would be SIGBUS."""
    text = VICTIM.format(tests=str(Path(__file__).parents[1]), folder=str(small_disk))
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert done.stdout.startswith("well")
