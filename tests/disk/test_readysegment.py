"""One segment of a ready queue: what is told of its messages when its sums are lost, damaged, old or another queue's."""

from __future__ import annotations

from pathlib import Path
from zlib import crc32

import pytest

from disk.ready_parts import SEGMENT, SENT, bodies, filled, found_again, make, put
from penstock.disk.files import Files
from penstock.disk.readylayout import ID, MAGIC
from penstock.disk.readyqueue import Pool, ReadyQueue
from penstock.disk.readysegment import ReadySegment

SUMS_DAMAGE = {
    "empty": lambda data: b"",
    "zero": lambda data: bytes(len(data)),
    "other": lambda data: MAGIC.to_bytes(4).ljust(len(data), b"\xff"),
    "no head": lambda data: bytes(32) + data[32:],
    "no end": lambda data: data[:-32] + bytes(32),
    "first page zero": lambda data: bytes(4096) + data[4096:],
    "second page zero": lambda data: data[:4096] + bytes(4096) + data[8192:],
    "second page of ones": lambda data: data[:4096] + b"\xff" * 4096 + data[8192:],
    "cut in the head": lambda data: data[:20],
    "cut behind the head": lambda data: data[:32],
    "cut in the sums": lambda data: data[:5000],
    "longer": lambda data: data + bytes(1000),
}


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("damage", SUMS_DAMAGE)
def test_no_message_is_lost_with_its_sums(tmp_path: Path, damage: str, clean: bool) -> None:
    path = filled(tmp_path, clean)
    path.write_bytes(SUMS_DAMAGE[damage](path.read_bytes()))
    assert found_again(tmp_path) == SENT


@pytest.mark.parametrize("clean", [True, False])
def test_sums_that_are_gone_or_a_folder(tmp_path: Path, clean: bool) -> None:
    path = filled(tmp_path, clean)
    path.unlink()
    assert found_again(tmp_path) == SENT
    path.unlink()
    path.mkdir()
    assert found_again(tmp_path) == [*SENT, b"more"]
    assert list((tmp_path / "t" / "lost+found").glob("t_1.sums.*"))


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("where", [0, -32])
def test_one_bit_of_a_head_costs_no_message(tmp_path: Path, where: int, clean: bool) -> None:
    sent = SENT[:20]
    path = filled(tmp_path, clean, sent)
    whole, messages = path.read_bytes(), (tmp_path / "t" / "t_1.queue").read_bytes()
    for bit in range(256):
        data = bytearray(whole)
        data[where % len(data) + bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        path.with_suffix(".queue").write_bytes(messages)
        queue = make(tmp_path, size=1 << 17)
        assert bodies(queue) == sent, bit
        assert queue.begin() == 0
        queue.close(False)


def test_sums_lost_in_a_power_cut_are_said_and_kept(tmp_path: Path) -> None:
    """What was never flushed may be half a batch: it is not served, and not deleted."""
    path = filled(tmp_path, False)
    path.write_bytes(bytes(path.stat().st_size))
    queue = make(tmp_path, size=1 << 17, after_cut=True)
    assert bodies(queue) == []
    assert put(queue, b"on") == 0
    queue.close(True)
    (kept,) = (tmp_path / "t" / "lost+found").glob("t_1.queue.*")
    assert SENT[7] in kept.read_bytes()


@pytest.mark.parametrize("size", [0, 900, 30_000])
def test_a_segment_that_was_cut_loses_what_was_cut(tmp_path: Path, size: int) -> None:
    path = filled(tmp_path, True).with_suffix(".queue")
    path.write_bytes(path.read_bytes()[:size])
    found = found_again(tmp_path)
    assert found == SENT[: len(found)]
    assert len(found) >= (size - 60) // 43


def test_a_segment_between_others_keeps_its_place_without_sums(tmp_path: Path) -> None:
    queue = make(tmp_path)
    for body in SENT[:300]:
        put(queue, body)
    assert all(isinstance(segment, ReadySegment) for segment in queue.segments)
    firsts = [segment.first for segment in queue.segments]
    queue.close(True)
    (tmp_path / "t" / "t_2.sums").unlink()
    queue = make(tmp_path)
    assert bodies(queue) == SENT[:300]
    assert [segment.first for segment in queue.segments] == firsts
    queue.close(True)
    (tmp_path / "t" / "t_1.queue").unlink()
    (tmp_path / "t" / "t_3.queue").unlink()
    (tmp_path / "t" / "t_3.queue").mkdir()
    queue = make(tmp_path)
    assert bodies(queue) == SENT[firsts[1] : firsts[2]] + SENT[firsts[3] : 300]
    queue.close(True)


def test_the_first_life_of_a_segment_is_not_served_when_its_sums_are_lost(tmp_path: Path) -> None:
    """A file used again holds messages of another queue behind its own."""
    files = Files()
    pool = Pool(tmp_path, files)
    other = ReadyQueue(tmp_path / "u", "u", SEGMENT, pool, files)
    other.open()
    for n in range(100):
        put(other, b"secret %03d" % n)
    other.drop_all()
    queue = ReadyQueue(tmp_path / "t", "t", SEGMENT, pool, files)
    queue.open()
    for n in range(5):
        put(queue, b"public %03d" % n)
    queue.close(False)
    (tmp_path / "t" / "t_1.sums").write_bytes(b"")
    queue = make(tmp_path)
    assert bodies(queue) == [b"public %03d" % n for n in range(5)]
    queue.close(True)


def test_another_queues_segment_under_this_ones_name_is_not_served(tmp_path: Path) -> None:
    """A power cut keeps the new name of a file that is used again, and not its new contents."""
    filled(tmp_path, False)
    (tmp_path / "u").mkdir()
    for suffix in (".queue", ".sums"):
        (tmp_path / "t" / f"t_1{suffix}").rename(tmp_path / "u" / f"u_1{suffix}")
    files = Files()
    queue = ReadyQueue(tmp_path / "u", "u", SEGMENT, Pool(tmp_path, files), files)
    queue.open()
    assert bodies(queue) == []
    assert len(list((tmp_path / "u" / "lost+found").glob("u_1.*"))) == 2


@pytest.mark.parametrize("clean", [True, False])
def test_version_1_is_read(tmp_path: Path, clean: bool) -> None:
    path = filled(tmp_path, clean)
    data = path.read_bytes()
    size = (tmp_path / "t" / "t_1.queue").stat().st_size
    count = len(SENT) if clean else -1
    head = b"PRDY" + (1).to_bytes(4) + bytes(8) + size.to_bytes(8) + count.to_bytes(8, signed=True)
    path.write_bytes(head + data[32:-32])
    assert found_again(tmp_path) == SENT
    path.write_bytes(head[:14] + b"\1" + head[15:] + data[32:-32])
    assert make(tmp_path, size=1 << 17).total == 0
    assert list((tmp_path / "t" / "lost+found").glob("t_1.queue.*"))


@pytest.mark.parametrize("size", [1, 2, 100, SEGMENT, 1 << 16])
def test_a_head_that_says_another_size_leads_nowhere(tmp_path: Path, size: int) -> None:
    """Under a right sum: its file and that of the messages are of two segments. Nothing behind what is mapped is looked at."""
    path = filled(tmp_path, clean=False)
    data = bytearray(path.read_bytes())
    head = bytes(data[:16]) + size.to_bytes(4) + bytes(data[20:28])
    data[:32] = data[-32:] = head + crc32(head).to_bytes(4)
    path.write_bytes(data)
    found = found_again(tmp_path)
    assert found == SENT[: len(found)]
    assert sum(len(body) + 19 for body in found) <= size


def test_an_id_that_no_consumer_can_say_is_another(tmp_path: Path) -> None:
    """A flipped bit in a segment whose sums are lost: the message was never given out, or could not be finished."""
    path = filled(tmp_path, clean=False, sent=[b"one", b"two"])
    path.unlink()
    queue_path = path.with_suffix(".queue")
    data = bytearray(queue_path.read_bytes())
    data[ID] |= 0x80
    queue_path.write_bytes(data)
    queue = make(tmp_path, size=1 << 17)
    assert bodies(queue) == [b"one", b"two"]
    assert queue.find(queue.begin())
    assert queue.message_id == queue.stamp_ns == int.from_bytes(data[ID : ID + 8]) & (1 << 63) - 1
    queue.close(clean=True)
