"""The ready queue: order, segments used again, torn tails, batches whole or absent."""

from __future__ import annotations

import mmap
import random
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from disk.ready_parts import SEGMENT, SENT, bodies, filled, found_again, make, put, put_one
from occupants import OCCUPANTS, demand_aside, occupy
from penstock.disk.files import Files
from penstock.disk.readylayout import LIVES, WRITTEN_BYTES_MIN
from penstock.disk.readyqueue import Pool, ReadyQueue
from penstock.disk.readysegment import BROKEN, FULL, ReadySegment
from penstock.errors import DiskFull, StoreError
from penstock.octets import monotonic_s


def test_messages_come_back_in_order_after_clean_stops_and_kills(tmp_path: Path) -> None:
    expected: list[bytes] = []
    queue: ReadyQueue = make(tmp_path)
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
    queue = make(folder, after_cut=True)
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


@pytest.mark.parametrize("length", [1, 7, 17, 40])
@pytest.mark.parametrize("heir", ["t", "u"])
def test_a_queue_finds_no_message_of_the_one_that_had_its_segment_before(
    tmp_path: Path, length: int, heir: str
) -> None:
    """A topic is deleted, another one, or one of the same name, takes its segment, and the process is killed: behind the
    messages of the new one lie those of the old one, with the very ordinals that would come next.
    """
    files = Files()
    pool = Pool(tmp_path, files)
    for name, count, of in (("t", 100, b"another's"), (heir, 60, b"x" * length)):
        queue = ReadyQueue(tmp_path / name, name, SEGMENT, pool, files)
        queue.open(0)
        for _ in range(count):
            assert put(queue, of) == 0
        if of == b"another's":
            queue.drop_all()
            assert pool.spares
    assert not pool.spares  # they are used again
    queue.close(clean=False)
    queue = ReadyQueue(tmp_path / heir, heir, SEGMENT, Pool(tmp_path, files), files)
    queue.open(0)
    assert bodies(queue) == [b"x" * length] * 60
    queue.close(True)


@pytest.mark.parametrize("heir", ["t", "u"])
def test_pages_of_an_earlier_life_that_a_power_cut_left_hold_no_message(tmp_path: Path, heir: str) -> None:
    """Of a segment that is used again the system wrote some pages of messages and sums, and not others; one copy of the head at
    least, for without it the files are those of the life before.
    """
    files, size, page = Files(), 1 << 15, 4096
    pool = Pool(tmp_path, files)
    queue = ReadyQueue(tmp_path / "t", "t", size, pool, files)
    queue.open(0)
    for n in range(900):
        assert put(queue, b"another's %04d" % n) == 0
    queue.drop_all()
    assert len(pool.spares) == 1
    before = [path.read_bytes() for path in (pool.spares[0].path, pool.spares[0].sums_path)]
    queue = ReadyQueue(tmp_path / heir, heir, size, pool, files)
    queue.open(0)
    sent = [b"the heir's%4d" % n for n in range(700)]
    for body in sent:
        assert put(queue, body) == 0
    queue.take_flush()
    paths = [queue.last.path, queue.last.sums_path]
    after = [path.read_bytes() for path in paths]
    queue.close(clean=False)
    found_some = 0
    for seed in range(100):
        chosen = random.Random(seed)
        for path, old, new in zip(paths, before, after, strict=True):
            pages = range(0, len(new), page)
            kept = [at for at in pages if chosen.random() < 0.8] or [0]
            if path == paths[1]:
                kept.append(chosen.choice((pages[0], pages[-1])))
            path.write_bytes(b"".join((new if at in kept else old)[at : at + page] for at in pages))
        queue = ReadyQueue(tmp_path / heir, heir, size, Pool(tmp_path, files), files)
        queue.pool.after_cut = True
        queue.open(0)
        found = bodies(queue)
        assert set(found) <= set(sent), seed
        found_some += len(found) > 0
        queue.close(False)
    assert found_some > 30


def test_a_file_whose_lives_are_used_up_is_not_used_again(tmp_path: Path) -> None:
    queue = make(tmp_path)
    for life, spares in ((LIVES - 2, 1), (LIVES - 1, 0)):
        assert put(queue, b"x") == 0
        queue.last.life = life
        queue.drop_all()
        assert len(queue.pool.spares) == spares
        queue.pool.spares.clear()
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


def test_the_log_says_why_nothing_can_be_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Who publishes is told no reason, and it need not be the disk: here it is memory that cannot be mapped."""

    class Narrow(Files):
        def map(self, fd: int, size: int, *, writable: bool = True, scattered: bool = False) -> mmap.mmap:
            raise StoreError(f"cannot map {size} bytes: no memory")

    queue = make(tmp_path, Narrow(), size=1 << 20)
    assert put(queue, b"body") == BROKEN
    assert "nothing is stored error=cannot map 1048576 bytes: no memory" in caplog.text


def test_a_bad_byte_is_found_after_a_clean_stop_too(tmp_path: Path) -> None:
    filled(tmp_path, True, SENT[:50])
    path = tmp_path / "t" / "t_1.queue"
    data = path.read_bytes()
    at = data.index(SENT[23])
    path.write_bytes(data[:at] + b"?" + data[at + 1 :])
    assert found_again(tmp_path) == SENT[:23] + SENT[24:50]


def test_a_batch_that_fits_no_segment_gets_its_own(tmp_path: Path) -> None:
    queue = make(tmp_path)
    large = [b"%d" % n + b"w" * SEGMENT for n in range(3)]
    assert put(queue, b"before") == put(queue, *large) == put(queue, b"after") == 0
    queue.close(clean=False)
    queue = make(tmp_path)
    assert bodies(queue) == [b"before", *large, b"after"]
    assert isinstance(queue.last, ReadySegment)
    queue.close(True)


def paths(folder: Path, number: int = 1) -> tuple[Path, Path]:
    return folder / "t" / f"t_{number}.queue", folder / "t" / f"t_{number}.sums"


def lose(path: Path, begin: int, end: int) -> None:
    """These bytes never reached the disk."""
    raw = bytearray(path.read_bytes())
    raw[begin:end] = bytes(end - begin)
    path.write_bytes(raw)


def test_a_torn_message_is_not_served_because_its_sum_was_lost_too(tmp_path: Path) -> None:
    """A power cut took a page of bodies and the page of their sums; the sums behind reached the disk."""
    queue = make(tmp_path, size=1 << 17)
    for n in range(9):
        put(queue, b"%d " % n + b"x" * 200)
    third, size = queue.last.start(3), queue.last.end
    queue.close(False)
    messages, sums = paths(tmp_path)
    lose(messages, third + 100, third + 150)
    lose(sums, 32 + 3 * 8, 32 + 4 * 8)
    sent = [b"%d " % n + b"x" * 200 for n in range(9)]
    for after_cut in (True, False, False):  # the starts behind it must not think otherwise
        queue = make(tmp_path, size=1 << 17, after_cut=after_cut)
        found = bodies(queue)
        assert set(found) <= set(sent)
        assert found[:3] == sent[:3]
        assert found[-4:] == sent[-4:]
        assert queue.total >= 9
        queue.close(False)
    assert size == 9 * 221


@pytest.mark.parametrize("lost", range(3, 8))
@pytest.mark.parametrize("with_sum", [False, True])
def test_a_batch_with_a_torn_message_is_left_out_as_a_whole(tmp_path: Path, lost: int, with_sum: bool) -> None:
    """Also by the start behind the next kill, and what lies between two whole ones, too."""
    queue = make(tmp_path, size=1 << 17)
    batch = [b"batch %d " % n + b"x" * 200 for n in range(3, 8)]
    for n in range(3):
        put(queue, b"%d" % n)
    put(queue, *batch)
    for n in range(8, 13):
        put(queue, b"%d" % n)
    at = queue.last.start(lost)
    queue.close(False)
    messages, sums = paths(tmp_path)
    lose(messages, at + 100, at + 200)
    if with_sum:
        lose(sums, 32 + lost * 8, 40 + lost * 8)
    for after_cut in (True, False, False, True, True):
        queue = make(tmp_path, size=1 << 17, after_cut=after_cut)
        found = bodies(queue)
        assert not set(batch) & set(found)
        assert found[:3] == [b"0", b"1", b"2"]
        assert found[-4:] == [b"9", b"10", b"11", b"12"]
        queue.close(False)


@pytest.mark.parametrize("seed", range(40))
def test_what_came_behind_a_power_cut_is_there_after_the_next_one(tmp_path: Path, seed: int) -> None:
    """A start that finds what an earlier one has left out must not take the batch behind it for the rest of that."""
    chance = random.Random(seed)
    queue = make(tmp_path, size=1 << 17)
    for n in range(12):
        put(
            queue,
            *(b"%d of %d " % (part, n) + b"x" * chance.choice((3, 200)) for part in range(chance.choice((1, 1, 3)))),
        )
    torn = sorted(chance.sample(range(1, queue.total - 1), 2))
    at = [queue.last.start(n) for n in (*torn, *(n + 1 for n in torn))]
    queue.close(False)
    messages, sums = paths(tmp_path)
    lose(messages, at[0], at[2])
    lose(messages, *((at[1] + 4, at[3]) if chance.random() < 0.5 else (at[0], at[1])))
    if chance.random() < 0.5:
        lose(sums, 32 + torn[0] * 8, 40 + torn[chance.randrange(2)] * 8)
    queue = make(tmp_path, size=1 << 17, after_cut=True)
    sent = bodies(queue)
    for cuts in range(3):
        put(queue, b"fresh %d" % cuts)
        put(queue, b"together %d" % cuts, b"with %d" % cuts)
        sent += [b"fresh %d" % cuts, b"together %d" % cuts, b"with %d" % cuts]
        queue.close(False)
        queue = make(tmp_path, size=1 << 17, after_cut=chance.random() < 0.8)
        assert bodies(queue) == sent
    queue.close(False)


@pytest.mark.parametrize("length", [33_000, 1_000])
def test_what_a_power_cut_tore_off_is_not_found_by_the_start_behind_a_kill(tmp_path: Path, length: int) -> None:
    """Its messages were read again without sums, under ordinals that others had got: those were thrown away."""
    queue = make(tmp_path, size=1 << 20)
    put(queue, b"a" * length)
    put(queue, b"b" * length)
    put(queue, b"c" * length)
    for n in range(12):
        put(queue, b"torn %d" % n)
    queue.close(False)
    lose(paths(tmp_path)[1], 32 + 3 * 8, 32 + 20 * 8)
    queue = make(tmp_path, size=1 << 20, after_cut=True, ordinal=8)  # a channel had finished up to here
    assert [body[:1] for body in bodies(queue)] == [b"a", b"b", b"c"]
    fresh = [b"fresh %d" % n for n in range(30)]
    for body in fresh:
        put(queue, body)
    queue.close(False)
    queue = make(tmp_path, size=1 << 20)
    assert bodies(queue)[3:] == fresh
    queue.close(True)


def test_messages_are_served_though_a_former_start_left_more_before_them(tmp_path: Path) -> None:
    """What a former version left: a torn rest that reaches into the ordinals of the next segment."""
    queue = make(tmp_path, size=1 << 20)
    for n in range(15):
        put(queue, b"old %d" % n)
    messages, sums = (path.read_bytes() for path in paths(tmp_path))
    queue.close(False)
    lose(paths(tmp_path)[1], 32 + 3 * 8, 32 + 20 * 8)
    queue = make(tmp_path, size=1 << 20, after_cut=True, ordinal=8)
    fresh = [b"fresh %d" % n for n in range(30)]
    for body in fresh:
        put(queue, body)
    queue.close(False)
    for path, data in zip(paths(tmp_path), (messages, sums), strict=True):
        path.write_bytes(data)
    queue = make(tmp_path, size=1 << 20)
    assert bodies(queue) == [b"old %d" % n for n in range(8)] + fresh
    queue.close(False)


class Refusing(Files):
    """Writes so many bytes of the parts and then fails, or the process is killed."""

    def __init__(self, error: type[BaseException], part: int) -> None:
        self.error = error
        self.part = part
        self.count = 0

    def write_parts(self, fd: int, at: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        self.write(fd, at, b"".join(parts)[: self.part])
        self.count += 1
        raise self.error("by order of the test")


LARGE = WRITTEN_BYTES_MIN
MIXED = [b"small", b"a" * LARGE, b"b" * (LARGE - 1), b"c" * (3 * LARGE), b"small again", b"d" * LARGE, b"e" * LARGE]


@pytest.mark.parametrize("clean", [True, False])
def test_large_messages_are_written_beside_the_mapping_and_found_again(tmp_path: Path, clean: bool) -> None:
    queue = make(tmp_path, size=1 << 20)
    for body in MIXED:
        assert put(queue, body) == 0
    assert put(queue, *MIXED) == 0
    assert queue.gather(sum(len(body) + 19 for body in MIXED), len(MIXED)) == 0
    for n, body in enumerate(MIXED, 1):
        put_one(queue, body, more=n < len(MIXED))
    queue.all_visible()
    assert bodies(queue) == MIXED * 3
    queue.close(clean)
    queue = make(tmp_path, size=1 << 20)
    assert bodies(queue) == MIXED * 3
    queue.close(True)


@pytest.mark.parametrize(
    ("error", "part"), [(StoreError, 0), (DiskFull, 3_000), (StoreError, 1 << 20), (MemoryError, 7)]
)
def test_large_messages_that_a_write_refuses_go_through_the_mapping(
    tmp_path: Path, error: type[Exception], part: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of them was told of by a line."""
    files = Refusing(error, part)
    queue = make(tmp_path, files, size=1 << 20)
    for body in MIXED:
        assert put(queue, body) == 0
    assert files.count == 4
    assert len([line for line in caplog.messages if "goes on through the mapping" in line]) == 1
    assert bodies(queue) == MIXED
    queue.close(clean=False)
    assert bodies(make(tmp_path, size=1 << 20)) == MIXED


class Watching(Files):
    """Keeps what a process leaves that is killed when so much of the parts is written."""

    def __init__(self, folder: Path, part: int) -> None:
        self.folder = folder
        self.part = part
        self.kept: dict[Path, bytes] = {}

    def write_parts(self, fd: int, at: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        self.write(fd, at, b"".join(parts)[: self.part])
        self.kept = {path: path.read_bytes() for path in self.folder.iterdir()}
        super().write_parts(fd, at, parts)


@pytest.mark.parametrize("part", [0, 1, 4, 5, 18, 19, 4_000, LARGE + 18, LARGE + 19, LARGE + 20])
@pytest.mark.parametrize("before", [[], [b"before", b"x" * LARGE]])
@pytest.mark.parametrize("used", [False, True])
def test_killed_in_the_middle_of_a_large_message(tmp_path: Path, part: int, before: list[bytes], used: bool) -> None:
    """In a segment that is used again, too, whose life before ended in the middle of where the message lies."""
    files, body = Watching(tmp_path / "t", part), b"y" * LARGE
    queue = make(tmp_path, files, size=1 << 18)
    if used:
        for n in range(4 + sum(map(len, before)) // 5_000):
            assert put(queue, b"%d" % (n % 10) * 5_000) == 0
        queue.drop_all()
    begin = queue.total
    for large in [*before, body]:
        assert put(queue, large) == 0
    assert bodies(queue) == [*before, body]
    queue.close(clean=False)
    assert files.kept
    for path, data in files.kept.items():
        path.write_bytes(data)
    queue = make(tmp_path, size=1 << 18)
    found = bodies(queue)
    assert found in ([*before, body], before)
    assert queue.total == begin + len(found)
    assert put(queue, b"behind") == 0
    queue.close(False)
    assert bodies(make(tmp_path, size=1 << 18)) == [*found, b"behind"]


@pytest.mark.parametrize("part", [0, 1, 4, 5, 18, 19, 4_000, LARGE + 18, LARGE + 19, LARGE + 20])
@pytest.mark.parametrize("before", [b"small", b"large" * 10_000])
def test_large_messages_go_through_the_mapping_where_an_earlier_life_has_left_pages(
    tmp_path: Path, part: int, before: bytes
) -> None:
    """No call is made. Killed in the middle of one, its process has left a part of it, and then what stood there before."""
    files, body = Refusing(StoreError, 0), b"y" * LARGE
    queue = make(tmp_path, files, size=1 << 18)
    for n in range(24):
        assert put(queue, b"%d" % (n % 10) * 9_000) == 0
    queue.drop_all()
    begin = queue.total
    assert put(queue, before) == 0
    at = queue.last.end
    kept = {path: path.read_bytes() for path in (tmp_path / "t").iterdir()}
    assert put(queue, body) == 0
    assert files.count == 0
    assert bodies(queue) == [before, body]
    whole = queue.last.path.read_bytes()[at:]
    assert whole[19 : 19 + LARGE] == body
    queue.close(clean=False)
    assert bodies(make(tmp_path, size=1 << 18)) == [before, body]
    for path, data in kept.items():
        torn = data[:at] + whole[:part] + data[at + part :] if path.suffix == ".queue" else data
        path.write_bytes(torn)
    queue = make(tmp_path, size=1 << 18)
    assert bodies(queue) == [before]
    assert queue.total == begin + 1
    assert put(queue, b"behind") == 0
    queue.close(False)
    assert bodies(make(tmp_path, size=1 << 18)) == [before, b"behind"]


def test_large_messages_are_written_by_calls_where_the_pages_of_an_earlier_life_went_to_the_disk(
    tmp_path: Path,
) -> None:
    """Each page would be a fault again, or come from the disk first. The life after that has written pages of its own."""
    files = Refusing(StoreError, 0)
    queue = make(tmp_path, files, size=1 << 18)
    calls = []
    for life in range(12):
        count = files.count
        for _ in range(5):
            assert put(queue, b"y" * LARGE) == 0
        if life == 2:
            queue.take_flush()
        elif life == 6:
            queue.last.dirty_until_s = monotonic_s()  # a slow topic: the system has had time to write them
        elif life == 8:
            queue.last.datasync()  # by a thread that was told to in the life before
        assert put(queue, b"y" * LARGE) == 0
        assert queue.last.life == life
        queue.drop_all()
        calls.append(files.count - count)
    assert calls == [6, 0, 1, 6, 0, 0, 1, 0, 1, 6, 0, 0]
    queue.close(clean=False)


def test_a_segment_is_not_used_again_while_a_body_of_it_is_lent(tmp_path: Path) -> None:
    queue = make(tmp_path, size=1 << 16)
    assert put(queue, b"a" * 20_000) == 0
    assert queue.find(0) == 1
    lent = queue.lend()
    assert lent is not None
    assert lent == b"a" * 20_000
    for n in range(1, 20):
        assert put(queue, b"%d" % (n % 10) * 40_000) == 0
        queue.drop_below(n)
        assert lent == b"a" * 20_000
    assert [spare.lent() for spare in queue.pool.spares] == [True, False]
    del lent
    assert not any(spare.lent() for spare in queue.pool.spares)
    queue.close(True)


def test_the_sum_of_a_record_of_any_length_is_zlibs(tmp_path: Path) -> None:
    noise = random.Random(7).randbytes(700)
    queue = make(tmp_path, size=1 << 18)
    sent = [noise[n % 17 : n % 17 + n] for n in range(1, 330)]
    for body in sent:
        assert put(queue, body) == 0
    queue.close(False)
    data = (tmp_path / "t" / "t_1.queue").read_bytes()
    sums = (tmp_path / "t" / "t_1.sums").read_bytes()
    at = 0
    for n, body in enumerate(sent):
        record = data[at : at + 19 + len(body)]
        assert record.endswith(body)
        assert int.from_bytes(sums[32 + 8 * n + 4 :][:4]) == zlib.crc32(record, n)
        at += len(record)


@pytest.mark.parametrize("suffix", [".queue", ".sums"])
@pytest.mark.parametrize("what", OCCUPANTS)
def test_what_has_the_name_of_the_next_segment_makes_way(tmp_path: Path, what: str, suffix: str) -> None:
    """A link was followed and what it leads to overwritten; a pipe was deleted, and a message refused for it."""
    queue = make(tmp_path)
    assert put(queue, b"first") == 0
    path, outside = tmp_path / "t" / f"t_2{suffix}", tmp_path / "outside"
    occupy(path, what, SEGMENT, outside)
    sent = [b"%d" % n * 400 for n in range(20)]
    for body in sent:
        assert put(queue, body) == 0
    queue.close(False)
    queue = make(tmp_path)
    assert bodies(queue) == [b"first", *sent]
    queue.close(True)
    demand_aside(tmp_path / "t", path.name, outside)


@pytest.mark.parametrize("suffix", [".queue", ".sums"])
def test_a_segment_that_is_a_link_to_nowhere_ends_the_start_with_what_to_do(tmp_path: Path, suffix: str) -> None:
    """What is behind it may be on a disk that is not mounted: an error without a remedy said that no file is there."""
    queue = make(tmp_path)
    assert put(queue, b"first") == 0
    queue.close(True)
    path = tmp_path / "t" / f"t_1{suffix}"
    path.unlink()
    path.symlink_to(tmp_path / "disk" / path.name)
    with pytest.raises(StoreError, match=r"disk/t_1\.\w+, which is not there: mount it, or remove the link"):
        make(tmp_path)
    path.unlink()
    assert bodies(make(tmp_path)) == ([] if suffix == ".queue" else [b"first"])


class KeepsNames(Files):
    """No file whose name ends like this gets another one."""

    ending = ""

    def rename(self, old: Path, new: Path) -> None:
        if self.ending and old.name.endswith(self.ending):
            raise StoreError(f"{old}: Input/output error")
        super().rename(old, new)


@pytest.mark.parametrize("ending", [".queue", ".sums"])
@pytest.mark.parametrize("all_of_it", [True, False])
def test_a_used_up_segment_that_keeps_its_name_is_removed(tmp_path: Path, ending: str, all_of_it: bool) -> None:
    """A publish that was stored, and let go of it, was not answered, and its connection ended."""
    files = KeepsNames()
    queue = make(tmp_path, files=files)
    for n in range(60):
        put(queue, b"%d " % n + b"x" * 200)
    assert len(queue.segments) >= 4
    files.ending = ending
    if all_of_it:
        queue.drop_all()
        assert not queue.segments
        again = ReadyQueue(tmp_path / "t", "t", SEGMENT, Pool(tmp_path, Files()), Files())
        again.open(0)  # of a topic made anew before a thread has removed them
        assert (bodies(again), again.total) == ([], queue.total)
        again.close(False)
    else:
        third = queue.segments[2].first
        assert queue.drop_below(third) == 2
    assert not queue.pool.spares
    put(queue, b"new")
    rest = bodies(queue)
    assert rest[-1] == b"new"
    queue.pool.remove(queue.pool.take_gone())
    assert not list(tmp_path.glob(".spare*"))
    numbers = {segment.path.name for segment in queue.segments}
    assert {path.name for path in (tmp_path / "t").glob("*.queue")} == numbers
    queue.close(False)
    assert bodies(make(tmp_path)) == rest


class Stubborn(Files):
    """`keeps` what is to be removed; `full`: no room, either."""

    keeps = full = False

    def unlink(self, path: Path) -> None:
        if self.keeps and path.exists():
            raise StoreError(f"{path}: Input/output error")
        super().unlink(path)

    def allocate(self, fd: int, at: int, length: int) -> None:
        if self.full:
            raise DiskFull("no room")
        super().allocate(fd, at, length)


def test_a_segment_that_can_be_neither_made_nor_removed_is_made_of_the_same_files_again(tmp_path: Path) -> None:
    """Each send left two more of them behind."""
    files = Stubborn()
    queue = make(tmp_path, files)
    assert put(queue, b"x" * 3000) == 0
    files.keeps = files.full = True
    assert [put(queue, b"y" * 3000) for _ in range(5)] == [FULL] * 5
    names = [f"t_{n}.{kind}" for n in (1, 2) for kind in ("queue", "sums")]
    assert sorted(path.name for path in (tmp_path / "t").iterdir()) == names
    files.full = False
    assert put(queue, b"y" * 3000) == 0
    assert put(queue, b"z" * 3000) == 0
    assert len(list((tmp_path / "t").iterdir())) == 6
    queue.close(True)
    assert bodies(make(tmp_path)) == [letter * 3000 for letter in (b"x", b"y", b"z")]


def test_a_spare_that_cannot_be_used_again_gives_its_room_back(tmp_path: Path) -> None:
    """It lay there until the next start, while the disk was full."""
    files = Stubborn()
    queue = make(tmp_path, files)
    for _ in range(3):
        assert put(queue, b"x" * 3000) == 0
    queue.drop_below(queue.total - 1)
    assert len(queue.pool.spares) == 2
    refused = iter([StoreError("Input/output error")])

    def rename(old: Path, new: Path) -> None:
        for error in refused:
            raise error
        Files.rename(files, old, new)

    files.rename = rename  # type: ignore[method-assign]
    assert put(queue, b"y" * 3000) == BROKEN
    assert put(queue, b"y" * 3000) == 0
    queue.pool.remove(queue.pool.take_gone())
    assert not list(tmp_path.glob(".spare*"))
    assert bodies(queue) == [b"x" * 3000, b"y" * 3000]


def test_a_used_up_segment_that_the_disk_keeps_is_tried_again_with_the_next(tmp_path: Path) -> None:
    files = Stubborn()
    queue = make(tmp_path, files)
    for _ in range(8):
        assert put(queue, b"x" * 3000) == 0
    queue.drop_below(4)
    files.keeps = True
    with pytest.raises(StoreError):
        queue.pool.remove(queue.pool.take_gone())
    spares = {path.name for path in tmp_path.glob(".spare_*.queue")}
    assert len(spares) == 4
    assert bodies(make(tmp_path, files)) == [b"x" * 3000] * 4  # a start goes on behind them, too
    Pool(tmp_path, files).begin(after_cut=False)
    assert {path.name for path in tmp_path.glob(".spare_*.queue")} == spares
    files.keeps = False
    queue.drop_below(5)
    queue.pool.remove(queue.pool.take_gone())
    assert len(list(tmp_path.glob(".spare_*"))) == 4  # two to be used again


@pytest.mark.parametrize("how", ["cut", "zeros"])
@pytest.mark.parametrize("keeps", [0, 2])
def test_a_segment_that_was_cut_short_behind_a_kill(
    tmp_path: Path, how: str, keeps: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Others follow it, so no kill left it so: what is lost is told, and a segment without a whole batch is set aside."""
    queue = make(tmp_path, size=1 << 14)
    batches = [[b"%d-%d " % (n, k) + b"z" * 200 for k in range(10)] for n in range(18)]
    for batch in batches:
        assert put(queue, *batch) == 0
    held = queue.segments[0].count // 10
    assert len(queue.segments) >= 3
    queue.close(False)
    path = tmp_path / "t" / "t_1.queue"
    data, end = path.read_bytes(), keeps * 10 * 223 + 1000
    path.write_bytes(data[:end] + (bytes(len(data) - end) if how == "zeros" else b""))
    for _ in range(2):
        queue = make(tmp_path, size=1 << 14)
        assert bodies(queue) == [body for batch in [*batches[:keeps], *batches[held:]] for body in batch]
        assert queue.total == 180
        queue.close(False)
    told = f"messages missing at the end of t_1.queue: {10 * (held - keeps)};"
    assert caplog.text.count(told) == (2 if keeps else 1)
    aside = [found.name for found in tmp_path.rglob("lost+found/*")]
    assert [any(name in one for one in aside) for name in ("t_1.queue", "t_1.sums")] == [not keeps] * 2


def test_what_a_power_cut_took_from_a_segment_is_not_called_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make(tmp_path, size=1 << 14)
    for n in range(18):
        assert put(queue, *[b"%d-%d " % (n, k) + b"z" * 200 for k in range(10)]) == 0
    queue.close(False)
    path = tmp_path / "t" / "t_1.queue"
    path.write_bytes(path.read_bytes()[:1000])
    queue = make(tmp_path, size=1 << 14, after_cut=True)
    queue.close(False)
    assert "missing" not in caplog.text
