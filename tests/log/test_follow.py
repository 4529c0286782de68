"""A copy of a log: blocks cut and appended byte for byte, with the master's sums, over segments, starts and damage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from lying_disk import LyingFiles
from store_parts import bodies, contents, make, put, snapshot, work

from penstock.errors import StoreError
from penstock.log import status
from penstock.log.follow import Feeder, Follower, Pieces
from penstock.log.store import LogStore
from penstock.log.verify import verify
from penstock.wire import layout


def fill(store: LogStore, count: int, seed: int = 1, size: int = 900) -> list[bytes]:
    """So many messages of random sizes in two queues; those of the first."""
    rng = random.Random(seed)
    first = []
    for number in range(count):
        body = rng.randbytes(rng.randrange(size))
        put(store, body, queue_id=number % 2, properties=b"KEYS\x01k%d" % number)
        first += [body] if number % 2 == 0 else []
    return first


def copy_all(master: LogStore, slave: LogStore, most: int = 2000, position: int | None = None) -> None:
    follower, feeder = Follower(slave), Feeder(master, slave.end_position if position is None else position)
    if follower.empty:
        assert follower.begin_at(feeder.position) == status.OK
    while feeder.next(most):
        block = bytearray(feeder.block())
        assert slave.end_position == feeder.begin
        assert not feeder.damaged or feeder.count == 1  # the others are checked on arrival
        assert follower.take(block, 0, feeder.count, len(block), feeder.damaged) == status.OK
        if feeder.last:
            assert follower.turn() == status.OK
    assert slave.end_position == master.end_position


def same_files(one: Path, other: Path, end: int, size: int = 1 << 14) -> None:
    """The segments and the sums hold the same bytes up to the end."""
    for first in range(0, end, size):
        name, upto = f"{first:020d}", min(size, end - first)
        assert (one / "commitlog" / name).read_bytes()[:upto] == (other / "commitlog" / name).read_bytes()[:upto]
        if upto == size:
            assert (one / "checksums" / name).read_bytes() == (other / "checksums" / name).read_bytes()


@pytest.fixture
def pair(tmp_path: Path) -> tuple[LogStore, LogStore]:
    master, slave = make(tmp_path / "a"), make(tmp_path / "b")
    slave.follow(True)
    master.open()
    slave.open()
    return master, slave


@pytest.mark.parametrize("most", [1, 700, 100_000])
def test_a_copy_is_byte_equal_over_segments_and_reads_the_same(
    pair: tuple[LogStore, LogStore], tmp_path: Path, most: int
) -> None:
    master, slave = pair
    first = fill(master, 200)
    copy_all(master, slave, most)
    assert master.log.file.first + len(master.log.file.segments) * (1 << 14) > 3 << 14
    work(slave)  # readers see offsets that are reserved
    work(master)
    assert bodies(slave) == first
    assert contents(slave, slave.queue(b"T", 1)) == contents(master, master.queue(b"T", 1))
    assert len(slave.query(b"T", b"k7", 9, 0, 1 << 60)) == 1
    end = master.end_position
    master.close()
    slave.close()
    same_files(tmp_path / "a", tmp_path / "b", end)


def test_a_copy_goes_on_after_a_kill_and_after_a_clean_stop(pair: tuple[LogStore, LogStore], tmp_path: Path) -> None:
    master, slave = pair
    expected = []
    for turn in range(6):
        expected += fill(master, 30, seed=turn)
        copy_all(master, slave)
        slave.close(clean=turn % 2 == 0)
        slave = make(tmp_path / "b")
        slave.follow(True)
        slave.open()
        assert slave.end_position == master.end_position
        assert bodies(slave) == expected
    end = master.end_position
    master.close()
    slave.close()
    same_files(tmp_path / "a", tmp_path / "b", end)


def test_a_copy_begins_where_the_master_does(pair: tuple[LogStore, LogStore]) -> None:
    master, slave = pair
    fill(master, 200)
    first = master.log.file.drop_first()
    copy_all(master, slave, position=first.size)
    assert slave.min_position == first.size
    with pytest.raises(StoreError, match="begins at"):
        Feeder(master, 0).next(100)


def test_a_copy_takes_nothing_else_and_a_master_is_one_again(pair: tuple[LogStore, LogStore]) -> None:
    _, slave = pair
    with pytest.raises(AssertionError):
        put(slave, b"own")
    slave.refuse(status.OK)
    assert slave.refusal == status.NOT_MASTER
    slave.follow(False)
    put(slave, b"own")
    assert bodies(slave) == [b"own"]


@pytest.mark.parametrize("seed", range(8))
def test_one_flipped_bit_is_seen_and_nothing_of_the_block_is_taken(pair: tuple[LogStore, LogStore], seed: int) -> None:
    master, slave = pair
    fill(master, 10)
    feeder, follower = Feeder(master, 0), Follower(slave)
    assert feeder.next(100_000)
    assert follower.begin_at(0) == status.OK
    block = bytearray(feeder.block())
    rng = random.Random(seed)
    block[rng.randrange(len(block))] ^= 1 << rng.randrange(8)
    assert follower.take(block, 0, feeder.count, len(block), False) == status.ILLEGAL
    assert 0 <= follower.bad < master.end_position
    assert slave.end_position == 0
    assert follower.take(bytearray(feeder.block()), 0, feeder.count, len(block), False) == status.OK


def test_a_block_lies_where_the_log_does(pair: tuple[LogStore, LogStore]) -> None:
    master, slave = pair
    fill(master, 40)
    feeder = Feeder(master, 0)
    checked = Feeder(master, 0)  # as one that came when all was there
    fill(master, 40, seed=2)
    while feeder.next(3000):
        sums, records = feeder.parts()
        assert b"".join((sums, records)) == feeder.block()
        begin = len(sums) // 8
        assert begin == feeder.count
        assert bytes(records) == master.log.bytes_at(feeder.begin, feeder.size)
        assert checked.next(3000)
        assert checked.block() == feeder.block()
    copy_all(master, slave)
    assert bodies(slave) == bodies(master)


def test_a_sum_that_says_nonsense_of_a_new_record_is_not_believed(pair: tuple[LogStore, LogStore]) -> None:
    master, slave = pair
    feeders = [
        Feeder(master, 0) for _ in range(2)
    ]  # what is appended later they measure by its sums, as far as these agree
    follower = Follower(slave)
    follower.begin_at(0)
    fill(master, 10)
    sidecar = master.log.sums.get(0)
    assert sidecar is not None
    start = sidecar.start(4)
    at = sidecar.map.find(start.to_bytes(4))
    for feeder, wrong in zip(feeders, (start - 3, 0), strict=True):
        sidecar.map[at : at + 4] = wrong.to_bytes(4)
        assert feeder.next(100_000)
        block = bytearray(feeder.block())
        outcome = follower.take(block, 0, feeder.count, len(block), feeder.damaged)
        assert outcome == (
            status.ILLEGAL if wrong == start - 3 else status.OK
        )  # then the next feeder looks at everything
        assert slave.end_position == (0 if outcome else feeder.size)
        sidecar.map[at : at + 4] = start.to_bytes(4)
    copy_all(master, slave)
    assert bodies(slave) == bodies(master)


def test_queues_whose_names_share_a_place_at_hand(pair: tuple[LogStore, LogStore]) -> None:
    master, slave = pair
    names = [b"A-topic", b"B-topic", b"A-topix"]  # as long, with the same letter in the middle
    for number in range(60):
        put(master, b"%d" % number, topic=names[number % 3], queue_id=64 * (number % 2))
    copy_all(master, slave)
    assert {(topic, n): queue.max_offset for topic, by_id in slave.queues.items() for n, queue in by_id.items()} == {
        (topic, n): queue.max_offset for topic, by_id in master.queues.items() for n, queue in by_id.items()
    }
    for name in names:
        for queue_id in (0, 64):
            assert bodies(slave, topic=name, queue_id=queue_id) == bodies(master, topic=name, queue_id=queue_id)


def test_a_block_that_lies_about_its_records_is_refused(pair: tuple[LogStore, LogStore]) -> None:
    master, slave = pair
    fill(master, 10)
    feeder, follower = Feeder(master, 0), Follower(slave)
    assert feeder.next(100_000)
    follower.begin_at(0)
    block = bytearray(feeder.block())
    for count, end in ((feeder.count - 1, len(block)), (feeder.count + 1, len(block)), (0, len(block)), (5, 30),
                       (feeder.count, len(block) - 1), (8_000, len(block))):  # fmt: skip
        for damaged in (False, True):
            before = slave.end_position
            if not damaged or count in (0, 5, 8_000):
                assert follower.take(bytearray(block), 0, count, end, damaged) == status.ILLEGAL
                assert slave.end_position == before
    rng = random.Random(3)
    for _ in range(300):
        noise = bytearray(rng.randbytes(rng.randrange(400)))
        count = rng.randrange(60)
        if count:
            assert follower.take(noise, 0, count, len(noise), False) == status.ILLEGAL


def test_a_record_that_is_damaged_at_the_master_is_copied_as_it_is_and_costs_one_message(tmp_path: Path) -> None:
    master = make(tmp_path / "a")
    master.open()
    draft = put(master, b"0" * 50)
    places = [draft.physical, *(put(master, b"%d" % n * 50).physical for n in range(1, 9))]
    master.close()
    for place, at in ((places[3], 100), (places[6], 2)):  # a body, and a record's length
        with open(tmp_path / "a" / "commitlog" / f"{0:020d}", "r+b") as file:
            file.seek(place + at)
            was = file.read(1)
            file.seek(place + at)
            file.write(bytes([was[0] ^ 1]))
    master = make(tmp_path / "a")
    master.open()
    slave = make(tmp_path / "b")
    slave.follow(True)
    slave.open()
    copy_all(master, slave, most=1)
    assert bodies(slave) == [b"%d" % n * 50 for n in (0, 1, 2, 4, 5, 7, 8)]
    assert slave.damaged == 2
    size = places[8] - places[0]
    name = Path("commitlog") / f"{0:020d}"
    assert (tmp_path / "a" / name).read_bytes()[:size] == (tmp_path / "b" / name).read_bytes()[:size]


def test_a_log_without_sums_is_copied_with_sums_of_its_own(pair: tuple[LogStore, LogStore]) -> None:
    master, slave = pair
    first = fill(master, 20)
    master.log.sums.sidecars.clear()
    for path in (master.folder / "checksums").iterdir():
        path.unlink()
    copy_all(master, slave)
    assert bodies(slave) == first


def test_a_power_cut_leaves_no_gap_in_the_queues_of_a_copy(pair: tuple[LogStore, LogStore], tmp_path: Path) -> None:
    """A master gives no offset out again that it may have shown; a copy gets its offsets from the master."""
    master, slave = pair
    first = fill(master, 40)
    copy_all(master, slave)
    slave.close(clean=False)
    for path in (tmp_path / "b").glob("live*"):
        path.unlink()
    alone = make(snapshot(tmp_path / "b", tmp_path / "c"))
    assert alone.open().power_cut
    assert alone.queue(b"T", 0).max_offset > 20
    slave = make(tmp_path / "b")
    slave.follow(True)
    assert slave.open().power_cut
    assert slave.queue(b"T", 0).max_offset == 20
    more = fill(master, 10, seed=9)
    copy_all(master, slave)
    work(slave)
    assert bodies(slave) == first + more


@pytest.mark.parametrize("ended", ["it gets room", "killed", "stopped"])
def test_records_that_had_no_room_in_their_queue_get_there_later(tmp_path: Path, ended: str) -> None:
    """The log has them, and says so to the master: readers must find them as soon as there is room, or after a start."""
    master, files = make(tmp_path / "a"), LyingFiles(tmp_path / "b")
    slave = make(tmp_path / "b", files=files)
    slave.follow(True)
    master.open()
    slave.open()
    first = fill(master, 12, size=100)
    copy_all(master, slave)
    work(slave)
    first += fill(master, 90, 2, size=20)  # more than one file of a queue
    follower, feeder = Follower(slave), Feeder(master, slave.end_position)
    files.full = True
    outcomes = []
    while not outcomes or outcomes[-1] == status.OK:
        assert feeder.next(2000)
        block = bytearray(feeder.block())
        outcomes.append(follower.take(block, 0, feeder.count, len(block), feeder.damaged))
    assert (outcomes[0], outcomes[-1]) == (status.OK, status.DISK_FULL)  # the log had room
    end = slave.end_position
    assert bodies(slave) != first[: len(bodies(slave)) + 1]
    work(slave)
    files.full = False
    if ended != "it gets room":
        slave.close(clean=ended == "stopped")
        slave = make(tmp_path / "b", files=files)
        slave.follow(True)
        slave.open()
        assert slave.end_position == end
    copy_all(master, slave)
    work(slave)
    assert bodies(slave) == first
    assert slave.query(b"T", b"k80", 10, 0, 1 << 50)
    assert len(slave.query(b"T", b"k5", 10, 0, 1 << 50)) == 2  # each is in the index once
    slave.close()
    assert verify(tmp_path / "b").ok


@pytest.mark.parametrize("clean", [True, False])
def test_a_copy_without_a_record_begins_elsewhere_after_a_start(pair: tuple[LogStore, LogStore], clean: bool) -> None:
    """Its first connection broke before anything came, and then the master let its oldest segments go."""
    master, slave = pair
    fill(master, 120)
    assert Follower(slave).begin_at(0) == status.OK
    work(slave)
    slave.close(clean)
    slave = make(slave.folder)
    slave.follow(True)
    slave.open()
    assert Follower(slave).empty
    copy_all(master, slave, position=1 << 14)
    assert (slave.min_position, slave.end_position) == (1 << 14, master.end_position)
    slave.close()
    assert verify(slave.folder).ok
    again = make(slave.folder)
    again.follow(True)
    again.open()
    assert again.end_position == master.end_position


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("shared", "left_out"), [(0, 64), (6, 64), (6, 3), (90, 1), (38, 2)])
def test_offsets_that_a_master_left_out_are_its_masters_once_it_is_a_copy(
    tmp_path: Path, clean: bool, shared: int, left_out: int
) -> None:
    """Behind a power cut a master gives out no offset again. When it follows another one, that one gives them out: they must
    be found here, too, and no reader may be led past them.
    """
    master, old = make(tmp_path / "a"), make(tmp_path / "b")
    master.open()
    old.open()
    first = fill(master, shared, size=100)
    fill(old, shared, size=100)
    for queue_id in range(2):
        queue = old.queue(b"T", queue_id)
        queue.fill_to(queue.max_offset + left_out)
        old.mark_dirty(queue)
    work(old)
    old.close(clean)
    slave = make(tmp_path / "b")
    slave.follow(True)
    slave.open()
    assert slave.queue(b"T", 0).max_offset == len(first)
    first += fill(master, 40, 2, size=100)
    copy_all(master, slave)
    work(slave)
    assert bodies(slave) == first
    slave.close()
    again = make(tmp_path / "b")
    again.follow(True)
    assert again.open().clean
    assert bodies(again) == first
    again.close()
    assert verify(tmp_path / "b").ok


def whole(store: LogStore, folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / "commitlog").iterdir()))[: store.end_position]


@pytest.mark.parametrize("most", [1, 7, 500, 1 << 16])
def test_pieces_cut_anywhere_make_the_same_log(pair: tuple[LogStore, LogStore], tmp_path: Path, most: int) -> None:
    """As RocketMQ's masters send it: with what stands behind the last record of a segment, without sums."""
    master, slave = pair
    first = fill(master, 200)
    data = bytearray(whole(master, tmp_path / "a"))
    pieces, rng, at = Pieces(slave), random.Random(most), 0
    assert pieces.follower.begin_at(0) == status.OK
    while at < len(data):
        size = rng.randint(1, most)
        assert pieces.position == at
        assert pieces.take(data, at, min(at + size, len(data))) == status.OK
        at = min(at + size, len(data))
    assert slave.end_position == master.end_position
    work(slave)
    work(master)
    assert bodies(slave) == first
    assert len(slave.query(b"T", b"k7", 9, 0, 1 << 60)) == 1
    end = master.end_position
    master.close()
    slave.close()
    same_files(tmp_path / "a", tmp_path / "b", end)
    assert verify(tmp_path / "b").ok


def test_pieces_go_on_at_the_last_whole_record(pair: tuple[LogStore, LogStore], tmp_path: Path) -> None:
    """A connection that ends within a record, or within what stands behind the last one of a segment."""
    master, slave = pair
    fill(master, 120)
    data = bytearray(whole(master, tmp_path / "a"))
    assert Pieces(slave).follower.begin_at(0) == status.OK
    rng = random.Random(4)
    while slave.end_position < master.end_position:
        pieces, at = Pieces(slave), slave.end_position
        assert pieces.position == at
        assert pieces.take(data, at, min(at + rng.randint(1, 5_000), len(data))) == status.OK
    assert whole(slave, tmp_path / "b") == data


@pytest.mark.parametrize("where", ["size", "body", "position", "blank", "large"])
def test_pieces_of_something_else_are_not_taken(pair: tuple[LogStore, LogStore], tmp_path: Path, where: str) -> None:
    """All that is sound before it is."""
    master, slave = pair
    fill(master, 10)
    data = bytearray(whole(master, tmp_path / "a"))
    begin = 0
    for _ in range(4):
        begin += master.log.size_at(begin)
    if where == "size":
        data[begin + layout.SIZE + 3] ^= 1
    elif where == "body":
        data[begin + layout.BODY] ^= 1
    elif where == "position":
        data[begin + layout.PHYSICAL + 7] ^= 1
    elif where == "blank":
        data[begin + layout.MAGIC : begin + layout.BLANK_BYTES] = layout.MAGIC_BLANK.to_bytes(4, "big")
    else:
        data[begin : begin + layout.LENGTH_BYTES] = (1 << 30).to_bytes(4, "big")
    pieces = Pieces(slave)
    assert pieces.follower.begin_at(0) == status.OK
    assert pieces.take(data, 0, len(data)) == status.ILLEGAL
    assert pieces.bad == begin
    assert slave.end_position == begin


@pytest.mark.parametrize("most", [1, 37, 700, 1 << 20])
@pytest.mark.parametrize("where", ["size", "body", "position", "magic", "zeros", "last"])
def test_what_is_no_record_at_its_master_either_is_passed_over(
    pair: tuple[LogStore, LogStore], tmp_path: Path, where: str, most: int
) -> None:
    """The bytes are kept, nobody is served them, and the log goes on."""
    master, slave = pair
    for number in range(60):
        put(master, b"%d" % number * 300)
    data = bytearray(whole(master, tmp_path / "a"))
    places = [master.queue(b"T", 0).entry(n)[:2] for n in range(60)]  # type: ignore[index]
    lost = {4}
    if where == "last":  # of a segment: its blank record follows
        lost = {max(n for n, (at, _) in enumerate(places) if at < 1 << 14)}
    elif where == "zeros":
        lost = {4, 5, 6}
    begin, size = places[min(lost)]
    if where == "zeros":
        data[begin : begin + sum(places[n][1] for n in lost)] = bytes(sum(places[n][1] for n in lost))
    elif where == "body":
        data[begin + size // 2] ^= 1
    else:
        data[begin + {"size": 3, "position": layout.PHYSICAL + 7, "magic": layout.MAGIC, "last": 2}[where]] ^= 1
    assert Pieces(slave).follower.begin_at(0) == status.OK
    stopped = Pieces(slave)
    assert stopped.take(data, 0, len(data)) == status.ILLEGAL
    assert stopped.bad == begin
    pieces, at = Pieces(slave, begin), begin
    while at < len(data):
        following = min(at + most, len(data))
        assert pieces.take(data, at, following) == status.OK
        at = following
    assert slave.end_position == master.end_position
    assert whole(slave, tmp_path / "b") == data
    work(slave)
    assert bodies(slave) == [b"%d" % n * 300 for n in range(60) if n not in lost]
    slave.close()
    again = make(tmp_path / "b")
    again.follow(True)
    again.open()
    assert bodies(again) == [b"%d" % n * 300 for n in range(60) if n not in lost]
    again.close()


def test_noise_without_an_end_is_not_passed_over(pair: tuple[LogStore, LogStore], tmp_path: Path) -> None:
    """Up to the end of the segment there is nothing: another log, or segments of another size."""
    _, slave = pair
    assert Pieces(slave).follower.begin_at(0) == status.OK
    noise = bytearray(random.Random(1).randbytes(1 << 15))
    assert Pieces(slave, 0).take(noise, 0, len(noise)) == status.ILLEGAL
    assert slave.end_position == 0


def test_zeros_where_a_master_had_records_are_copied_too(tmp_path: Path) -> None:
    """A size of nothing leads on nowhere."""
    master = make(tmp_path / "a")
    master.open()
    for number in range(20):
        put(master, b"%d" % number * 300)
    (begin, size), end = master.queue(b"T", 0).entry(4)[:2], master.end_position  # type: ignore[index]
    master.close()
    path = tmp_path / "a" / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    path.write_bytes(data[:begin] + bytes(size) + data[begin + size :])
    master, slave = make(tmp_path / "a"), make(tmp_path / "b")
    slave.follow(True)
    master.open()
    slave.open()
    copy_all(master, slave)
    work(slave)
    assert bodies(slave) == [b"%d" % n * 300 for n in range(20) if n != 4]
    master.close()
    slave.close()
    same_files(tmp_path / "a", tmp_path / "b", end)
