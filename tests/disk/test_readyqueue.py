from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.disk.files import Files
from penstock.disk.readyqueue import FULL, Pool, ReadyQueue, ReadySegment
from penstock.errors import DiskFull

SEGMENT = 4096


def make(folder: Path, files: Files | None = None, size: int = SEGMENT) -> ReadyQueue:
    files = files or Files()
    queue = ReadyQueue(folder / "t", "t", size, Pool(folder, files), files)
    queue.open()
    return queue


def put(queue: ReadyQueue, *bodies: bytes) -> int:
    """One batch; what `ready` said."""
    answer = queue.ready(sum(len(body) + 19 for body in bodies), len(bodies))
    if not answer:
        for body in bodies[:-1]:
            put_one(queue, body, more=True)
        put_one(queue, bodies[-1], more=False)
        queue.show_all()
    return answer


def put_one(queue: ReadyQueue, body: bytes, more: bool) -> None:
    queue.append_bytes(queue.last_id + 1, 0, body, more)
    queue.last_id += 1


def bodies(queue: ReadyQueue) -> list[bytes]:
    found = []
    ordinal = queue.next(queue.begin())
    while ordinal < queue.end():
        if queue.find(ordinal):
            found.append(queue.body())
            ordinal += 1
        else:
            ordinal = max(ordinal + 1, queue.next(ordinal))
    return found


def test_messages_come_back_in_order_after_clean_stops_and_kills(tmp_path: Path) -> None:
    expected: list[bytes] = []
    queue = make(tmp_path)
    for round_ in range(6):
        for n in range(40):
            body = b"%d-%d " % (round_, n) + b"x" * (n * 7)
            assert put(queue, body) == 0
            expected.append(body)
        assert bodies(queue) == expected
        queue.close(clean=round_ % 2 == 0)
        queue = make(tmp_path)
        assert bodies(queue) == expected
        assert queue.total == len(expected)
    assert len(queue.segments) >= 10
    queue.close(True)


def test_the_layout_is_the_seeds(tmp_path: Path) -> None:
    queue = make(tmp_path)
    put(queue, b"hello")
    queue.close(True)
    data = (tmp_path / "t" / "t_1.queue").read_bytes()
    assert data[:24] == b"v" + (19).to_bytes(4) + (1).to_bytes(8) + (0).to_bytes(2) + (0).to_bytes(4) + b"hello"


def test_a_file_of_gmq_itself_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    records = b""
    for n, body in enumerate((b"one", b"two", b"three")):
        records += b"v" + (14 + len(body)).to_bytes(4) + (100 + n).to_bytes(8) + b"\x00\x02" + bytes(4) + body
    (folder / "t_1.queue").write_bytes(records + bytes(2000))
    queue = make(tmp_path)
    assert bodies(queue) == [b"one", b"two", b"three"]
    assert queue.find(1)
    assert (queue.message_id, queue.attempts) == (101, 2)
    put(queue, b"four")
    queue.close(False)
    queue = make(tmp_path)
    assert bodies(queue) == [b"one", b"two", b"three", b"four"]
    queue.close(True)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_one_bad_byte_costs_one_message(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("flip")
    queue = make(folder, size=1 << 16)
    sent = [b"%03d" % n + b"y" * data.draw(st.integers(0, 60)) for n in range(30)]
    for body in sent:
        put(queue, body)
    queue.close(clean=False)
    suffix = data.draw(st.sampled_from([".queue", ".sums"]))
    path = folder / "t" / f"t_1{suffix}"
    raw = bytearray(path.read_bytes())
    begin, end = (0, sum(map(len, sent)) + 19 * 30) if suffix == ".queue" else (32, 32 + 8 * 30)
    at = data.draw(st.integers(begin, end - 1))
    raw[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    queue = make(folder, size=1 << 16)
    left = bodies(queue)
    assert len(left) >= 29
    assert all(body in sent for body in left)
    assert left == [body for body in sent if body in left]
    assert put(queue, b"after") == 0
    assert bodies(queue)[-1] == b"after"
    queue.close(False)
    queue = make(folder, size=1 << 16)
    assert bodies(queue) == [*left, b"after"]
    queue.close(True)


@given(cut=st.integers(0, 400), sums_cut=st.integers(0, 60))
@settings(max_examples=60, deadline=None)
def test_a_torn_tail_is_left_out_and_a_batch_is_whole_or_absent(
    tmp_path_factory: pytest.TempPathFactory, cut: int, sums_cut: int
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    queue = make(folder)
    put(queue, b"first")
    put(queue, *(b"batch %d" % n for n in range(5)))
    end, count = queue.last.end, queue.last.count
    queue.close(clean=False)
    for suffix, keep in ((".queue", end - cut), (".sums", 32 + 8 * count - sums_cut)):
        path = folder / "t" / f"t_1{suffix}"
        raw = path.read_bytes()
        path.write_bytes(raw[: max(32, keep)] + bytes(len(raw) - max(32, keep)))
    queue = make(folder)
    left = bodies(queue)
    assert left in ([], [b"first"], [b"first", *(b"batch %d" % n for n in range(5))])
    put(queue, b"next")
    queue.close(clean=False)
    queue = make(folder)
    assert bodies(queue) == [*left, b"next"]
    queue.close(True)


def test_a_segment_is_used_again_and_its_old_life_is_not_seen(tmp_path: Path) -> None:
    queue = make(tmp_path)
    expected = []
    for n in range(2000):
        body = b"same size %06d" % n
        put(queue, body)
        expected.append(body)
        if len(expected) > 300:
            queue.drop_below(n - 300)
            expected = expected[-301:]
    assert len(list((tmp_path / "t").glob("*.queue"))) < 8
    kept = bodies(queue)
    assert kept[-301:] == expected
    queue.close(clean=False)
    queue = make(tmp_path)
    assert bodies(queue) == kept
    assert queue.total == 2000
    queue.close(True)


def test_an_empty_queue_goes_on_behind_what_its_channels_finished(tmp_path: Path) -> None:
    queue = make(tmp_path)
    queue.close(True)
    queue.open(ordinal=77)
    put(queue, b"a")
    assert queue.begin() == 77
    assert queue.total == 78
    queue.close(True)


class Full(Files):
    """Has no room when asked for more."""

    full = False

    def allocate(self, fd: int, at: int, length: int) -> None:
        if self.full:
            raise DiskFull("no room")
        super().allocate(fd, at, length)


def test_no_room_is_said_and_nothing_is_half_there(tmp_path: Path) -> None:
    files = Full()
    queue = make(tmp_path, files, size=1 << 20)
    stored = 0
    files.full = True
    while put(queue, b"z" * 1000) == 0:
        stored += 1
    assert put(queue, b"z" * 1000) == FULL
    assert len(bodies(queue)) == stored
    files.full = False
    assert put(queue, b"room") == 0
    assert bodies(queue)[-1] == b"room"
    queue.close(True)


@pytest.mark.parametrize("junk", [b"", b"PRDY", b"\xff" * 64, b"PRDY" + b"\xff" * 100])
def test_sums_full_of_anything_end_no_start(tmp_path: Path, junk: bytes) -> None:
    queue = make(tmp_path)
    put(queue, b"kept")
    queue.close(False)
    path = tmp_path / "t" / "t_1.sums"
    size = path.stat().st_size
    path.write_bytes(junk.ljust(size, b"\0"))
    queue = make(tmp_path)
    assert bodies(queue) == ([b"kept"] if junk else [])
    put(queue, b"more")
    assert bodies(queue)[-1] == b"more"
    queue.close(True)


def test_a_batch_that_fits_no_segment_gets_its_own(tmp_path: Path) -> None:
    queue = make(tmp_path)
    large = [b"%d" % n + b"w" * SEGMENT for n in range(3)]
    assert put(queue, b"before") == put(queue, *large) == put(queue, b"after") == 0
    queue.close(clean=False)
    queue = make(tmp_path)
    assert bodies(queue) == [b"before", *large, b"after"]
    assert isinstance(queue.last, ReadySegment)
    queue.close(True)
