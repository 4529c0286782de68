"""The disk queue: go-diskqueue's bytes both ways, what survives, what damage costs."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lying_disk import LyingFiles

from disk.queue_parts import VECTORS, contents, drain, make, message, messages, put
from penstock.disk import queuefiles
from penstock.disk.diskqueue import DiskQueue, look
from penstock.disk.files import Files
from penstock.disk.queuefiles import queues_in
from penstock.errors import Closed, DiskFull, StoreError

# -- the library's files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("case", "name", "first", "end"),
    [
        ("whole", "whole", 0, 30),
        ("part", "part", 13, 30),
        ("unsynced", "unsynced", 0, 17),
        ("never", "never", 0, 9),
        ("rolled", "rolled", 0, 40),
        ("emptied", "emptied", 5, 8),
        ("channel", "t:c", 5, 14),
    ],
)
def test_theirs_is_read(tmp_path: Path, case: str, name: str, first: int, end: int) -> None:
    folder = shutil.copytree(VECTORS / case, tmp_path / case)
    assert list(queuefiles.records(Files(), folder, name)) == messages(first, end)
    queue = make(folder, name)
    assert queue.depth == end - first
    put(queue, *messages(end, end + 3))
    assert drain(queue) == messages(first, end + 3)
    queue.done(end + 3 - first)
    put(queue, message(0))
    queue.close()
    assert drain(make(folder, name)) == [message(0)]
    assert not list(folder.glob("*.bad"))


@pytest.mark.parametrize("case", ["whole", "part", "emptied", "channel"])
def test_ours_are_the_same_bytes(tmp_path: Path, case: str) -> None:
    sizes = {"emptied": 4000}
    queue = make(tmp_path, "t:c" if case == "channel" else case, max_bytes_per_file=sizes.get(case, 400))
    if case == "emptied":
        put(queue, *messages(5))
        queue.empty()
        put(queue, *messages(5, 8))
    elif case == "channel":
        for n in range(14):
            put(queue, message(n))
            if n < 5:
                assert queue.take_payloads(1) == [message(n)]
                queue.done(1)
    else:
        for n in range(30):
            put(queue, message(n))
        queue.done(len(queue.take_payloads(13 if case == "part" else 0)))
    queue.close()
    assert contents(tmp_path) == contents(VECTORS / case)


# -- in and out --------------------------------------------------------------------------------------------------------


def test_nothing_is_on_the_disk_before_the_first_message(tmp_path: Path) -> None:
    queue = make(tmp_path)
    assert (queue.take_payloads(5), queue.depth, queue.tick(0)) == ([], 0, None)
    put(queue)
    queue.empty()
    queue.sync()
    queue.close()
    assert list(tmp_path.iterdir()) == []


def test_first_in_first_out_over_many_files(tmp_path: Path) -> None:
    queue = make(tmp_path)
    found: list[bytes] = []
    for n in range(200):
        put(queue, message(n))
        if n % 3 == 0:
            found += queue.take_payloads(2)
    assert queue.depth == 200 - len(found)
    assert found + drain(queue) == messages(200)
    queue.done(200)
    assert [path.suffix for path in sorted(tmp_path.iterdir())] == [".dat", ".sum", ".dat"]  # the last file, and meta
    queue.close()
    assert make(tmp_path).depth == 0


def test_a_reader_that_keeps_up_makes_no_bad_file(tmp_path: Path) -> None:
    queue = make(tmp_path)
    for n in range(300):
        put(queue, message(n))
        assert queue.take_payloads(10) == [message(n)]
        queue.done(1)
        assert len(list(tmp_path.glob("*.dat"))) == 2
    assert not list(tmp_path.glob("*.bad"))
    assert queue.damaged == 0


def test_what_is_in_hand_is_still_in_the_queue(tmp_path: Path) -> None:
    queue = make(tmp_path)
    put(queue, *messages(20))
    assert queue.take_payloads(10) == messages(10)
    queue.done(4)
    assert (queue.depth, queue.taken) == (10, 10)
    queue.close()
    assert drain(make(tmp_path)) == messages(4, 20)


def test_finished_in_any_order(tmp_path: Path) -> None:
    queue = make(tmp_path)
    put(queue, *messages(20))
    queue.take_payloads(10)
    for number in (9, 1, 0, 3, 3, 99):
        queue.finish([number])
    queue.close()
    assert drain(make(tmp_path)) == messages(2, 20)


def test_one_call_is_one_file_and_may_be_longer(tmp_path: Path) -> None:
    queue = make(tmp_path)
    put(queue, message(0))
    put(queue, *messages(1, 40))
    put(queue, message(40))
    assert [path.name[-10:] for path in sorted(tmp_path.glob("*.0*.dat"))] == ["000000.dat", "000001.dat", "000002.dat"]
    assert drain(queue) == messages(41)


def test_a_payload_too_short_is_a_mistake_of_ours(tmp_path: Path) -> None:
    queue = make(tmp_path)
    with pytest.raises(ValueError, match="26 is the least"):
        put(queue, message(0), b"short")
    assert (queue.depth, list(tmp_path.iterdir())) == (0, [])


def test_empty_drops_what_is_in_hand_too(tmp_path: Path) -> None:
    queue = make(tmp_path)
    put(queue, *messages(20))
    queue.take_payloads(5)
    queue.empty()
    queue.finish([0])
    assert (queue.depth, queue.take_payloads(1)) == (0, [])
    assert contents(tmp_path) == {"t.diskqueue.meta.dat": b"0\n1,0\n1,0\n"}
    put(queue, message(1))
    assert queue.take_payloads(2) == [message(1)]


def test_delete_leaves_nothing(tmp_path: Path) -> None:
    for n in range(2):
        queue = make(tmp_path)
        put(queue, *messages(n, 30))
        queue.take_payloads(3)
        queue.delete()
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(Closed):
            put(queue, message(0))
        with pytest.raises(Closed):
            queue.take_payloads(1)
        with pytest.raises(Closed):
            queue.empty()
        queue.close()


# -- names -------------------------------------------------------------------------------------------------------------


def test_queues_are_told_apart(tmp_path: Path) -> None:
    for name in ("t", "t:c", "t.diskqueue"):
        queue = make(tmp_path, name)
        put(queue, *messages(20))
        put(queue, *messages(20))
        queue.close()
    (tmp_path / "t.diskqueue.000009.dat.bad").touch()
    (tmp_path / "nsqd.dat").touch()
    assert queues_in(Files(), tmp_path) == {"t": [0, 1], "t:c": [0, 1], "t.diskqueue": [0, 1]}
    assert make(tmp_path, "t", present=[0, 1]).depth == 40


# -- flushing ----------------------------------------------------------------------------------------------------------


def test_flushes_by_operations_and_by_time(tmp_path: Path) -> None:
    files = LyingFiles(tmp_path)
    queue = make(tmp_path, files=files, sync_every=10, sync_timeout_ms=2000, max_bytes_per_file=1 << 20)
    put(queue, message(0))
    assert files.flushes == 0
    assert queue.tick(1000) == 3000
    assert queue.tick(2999) == 3000
    assert files.flushes == 0
    assert queue.tick(3000) == 5000
    assert files.flushes == 3  # data, sums, meta
    put(queue, *messages(9))
    assert queue.tick(3001) == 5000
    queue.take_payloads(1)
    queue.done(1)
    assert queue.tick(3001) == 5001
    assert files.flushes == 6
    put(queue, *messages(10))
    put(queue, message(1))  # the eleventh waits for the ten before it
    assert files.flushes == 9
    assert queue.tick(5001) == 7001
    assert queue.tick(7001) is None
    assert queue.tick(9000) is None
    assert files.flushes == 12


def test_an_idle_queue_holds_no_descriptor(tmp_path: Path) -> None:
    held: set[int] = set()

    class Watched(Files):
        def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
            fd = super().open(path, create=create, writable=writable)
            held.add(fd)
            return fd

        def close(self, fd: int) -> None:
            held.remove(fd)
            super().close(fd)

    queue = make(tmp_path, files=Watched())
    for start in (0, 30):
        put(queue, *messages(start, start + 30))
        queue.take_payloads(3)
        assert len(held) == 3
        now = 0
        while (due := queue.tick(now)) is not None:
            now = due
        assert not held
    assert drain(queue) == messages(6, 60)
    queue.close()
    assert not held


def test_the_meta_file_is_there_before_the_first_answer(tmp_path: Path) -> None:
    put(make(tmp_path), message(0))
    assert (tmp_path / "t.diskqueue.meta.dat").is_file()


@pytest.mark.parametrize("count", [1, 5, 60])
def test_killed(tmp_path: Path, count: int) -> None:
    queue = make(tmp_path)
    for n in range(count):
        put(queue, message(n))
    again = make(tmp_path)
    assert again.depth == count
    put(again, message(count))
    assert drain(again) == messages(count + 1)
    assert not list(tmp_path.glob("*.bad"))


def test_killed_after_a_file_was_used_up(tmp_path: Path) -> None:
    """The meta file still speaks of it."""
    queue = make(tmp_path)
    for n in range(30):
        put(queue, message(n))
    queue.sync()
    queue.take_payloads(20)
    queue.done(15)
    again = make(tmp_path)
    assert again.depth == 19  # from the second file on
    assert drain(again) == messages(11, 30)


def test_a_file_whose_sums_never_reached_the_disk_holds_nothing(tmp_path: Path) -> None:
    queue = make(tmp_path)
    put(queue, *messages(8))
    (tmp_path / "t.diskqueue.000000.sum").write_bytes(b"")
    again = make(tmp_path)
    assert (again.depth, drain(again)) == (0, [])
    assert (tmp_path / "t.diskqueue.000000.dat.bad").is_file()


def test_a_failed_flush_is_final(tmp_path: Path) -> None:
    files = LyingFiles(tmp_path)
    queue = make(tmp_path, files=files)
    put(queue, *messages(5))
    files.fail_flush = True
    queue.tick(0)
    with pytest.raises(StoreError):
        queue.tick(2000)
    files.fail_flush = False
    with pytest.raises(StoreError):
        put(queue, message(5))
    assert queue.tick(4000) is None
    assert queue.take_payloads(9) == messages(5)
    queue.close()
    assert drain(make(tmp_path)) == messages(5)


def test_a_full_disk(tmp_path: Path) -> None:
    files = LyingFiles(tmp_path)
    queue = make(tmp_path, files=files)
    put(queue, *messages(25))
    queue.sync()
    files.full = True
    before = contents(tmp_path)
    for _ in range(3):
        with pytest.raises(DiskFull):
            put(queue, *messages(25, 30))
    assert contents(tmp_path) == before
    assert drain(queue) == messages(25)
    queue.done(25)
    files.full = False
    put(queue, *messages(30, 35))
    assert drain(queue) == messages(30, 35)
    assert drain(make(tmp_path)) == messages(30, 35)


def test_a_write_that_takes_a_part(tmp_path: Path) -> None:
    class Short(Files):
        limit = 1 << 30

        def write(self, fd: int, at: int, data: bytes) -> None:
            super().write(fd, at, data[: max(0, self.limit - at)])
            if at + len(data) > self.limit:
                raise DiskFull("part of it is there")

        def write_parts(self, fd: int, at: int, parts: Sequence[bytes | bytearray | memoryview]) -> None:
            self.write(fd, at, b"".join(parts))

    files = Short()
    queue = make(tmp_path, files=files, max_bytes_per_file=4000)
    put(queue, *messages(10))
    size = (tmp_path / "t.diskqueue.000000.dat").stat().st_size
    files.limit = size + 33
    with pytest.raises(DiskFull):
        put(queue, *messages(10, 20))
    assert (tmp_path / "t.diskqueue.000000.dat").stat().st_size == size
    files.limit = 1 << 30
    put(queue, message(20))
    assert drain(queue) == [*messages(10), message(20)]
    assert drain(make(tmp_path)) == [*messages(10), message(20)]


def test_a_file_that_cannot_be_cut_back_ends_where_it_was_good(tmp_path: Path) -> None:
    class Bad(Files):
        bad = False

        def write(self, fd: int, at: int, data: bytes) -> None:
            super().write(fd, at, data[: len(data) // 2] if self.bad else data)
            if self.bad:
                raise StoreError("by order of the test")

        def cut(self, fd: int, size: int) -> None:
            if self.bad:
                raise StoreError("by order of the test")
            super().cut(fd, size)

    files = Bad()
    queue = make(tmp_path, files=files, max_bytes_per_file=4000)
    put(queue, *messages(10))
    files.bad = True
    with pytest.raises(StoreError):
        put(queue, *messages(10, 20))
    files.bad = False
    put(queue, message(20))
    assert len(list(tmp_path.glob("*.0*.dat"))) == 2
    assert drain(queue) == [*messages(10), message(20)]


# -- damage ------------------------------------------------------------------------------------------------------------


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_every_flipped_byte_costs_one_record(tmp_path: Path) -> None:
    """Length bytes too: where the next record starts is known from the sums."""
    whole = tmp_path / "whole"
    whole.mkdir()
    queue = make(whole, max_bytes_per_file=4000)
    put(queue, *messages(10))
    queue.close()
    size = (whole / "t.diskqueue.000000.dat").stat().st_size
    starts = [sum(len(m) + 4 for m in messages(n)) for n in range(10)]
    for at in range(0, size, 3):
        folder = shutil.copytree(whole, tmp_path / str(at))
        flip(folder / "t.diskqueue.000000.dat", at)
        queue = make(folder, max_bytes_per_file=4000)
        lost = max(n for n in range(10) if starts[n] <= at)
        assert drain(queue) == [message(n) for n in range(10) if n != lost], at
        assert queue.damaged == 1
        assert (folder / "t.diskqueue.000000.dat.bad").stat().st_size == len(message(lost)) + 4


def test_damage_in_a_file_without_sums_costs_its_rest(tmp_path: Path) -> None:
    folder = shutil.copytree(VECTORS / "whole", tmp_path / "q")
    path = folder / "whole.diskqueue.000001.dat"
    size = path.stat().st_size
    flip(path, 0)
    queue = make(folder, "whole")
    found = drain(queue)
    assert [m for m in messages(30) if m not in found] == messages(11, 19)
    assert path.with_name(path.name + ".bad").stat().st_size == size
    queue.done(len(found))
    assert not path.exists()


@pytest.mark.parametrize("meta", [True, False])
def test_what_their_limit_let_in_is_read_though_ours_is_smaller(tmp_path: Path, meta: bool) -> None:
    """A size that nobody would put today is no damage where record follows record to the end."""
    bodies = [message(0), bytes(40) + b"x" * 900, message(1), message(2) + b"y" * 700]
    path = tmp_path / "t.diskqueue.000000.dat"
    data = b"".join(struct.pack(">I", len(body)) + body for body in bodies)
    path.write_bytes(data)
    if meta:
        (tmp_path / "t.diskqueue.meta.dat").write_bytes(b"4\n0,0\n0,%d\n" % len(data))
    sizes = (26, 500)
    queue = make(tmp_path, payload_bytes=sizes)
    assert [payload for _, payload in look(queue)] == bodies
    assert drain(queue) == bodies
    assert (queue.damaged, queue.taken) == (0, 4)
    path.write_bytes(data[:-1] + b"zzz")  # what does not lead on is damage, as ever
    (tmp_path / "t.diskqueue.meta.dat").write_bytes(b"4\n0,0\n0,%d\n" % (len(data) + 2))
    assert drain(make(tmp_path, payload_bytes=sizes)) == bodies[:1]
    assert path.with_name(path.name + ".bad").exists()


def test_damaged_sums_cost_no_message(tmp_path: Path) -> None:
    """Without its sums a file is read as nsqd's; with some of them, what they speak of is checked."""
    whole = tmp_path / "whole"
    whole.mkdir()
    queue = make(whole)
    put(queue, *messages(20))
    put(queue, *messages(20, 40))
    queue.close()
    for name, damage in {
        "missing": lambda p: p.unlink(),
        "empty": lambda p: p.write_bytes(b""),
        "head": lambda p: flip(p, 0),
        "short": lambda p: p.write_bytes(p.read_bytes()[:50]),
        "odd": lambda p: p.write_bytes(p.read_bytes()[:-3]),
    }.items():
        folder = shutil.copytree(whole, tmp_path / name)
        for path in folder.glob("*.sum"):
            damage(path)
        queue = make(folder)
        put(queue, message(40))
        assert drain(queue) == messages(41), name


@pytest.mark.parametrize("start", [0, 5, 1000, (1 << 31) - 1])
def test_sums_that_speak_of_nothing(tmp_path: Path, start: int) -> None:
    queue = make(tmp_path, max_bytes_per_file=4000)
    put(queue, *messages(10))
    queue.close()
    path = tmp_path / "t.diskqueue.000000.sum"
    path.write_bytes(path.read_bytes()[: -8 * 3] + struct.pack(">II", start << 1, 77))
    queue = make(tmp_path, max_bytes_per_file=4000)
    assert drain(queue)[:7] == messages(7)
    assert queue.damaged <= 1


GARBAGE = [
    b"",
    b"-5\n0,0\n1,385\n",
    b"30\n3,230\n0,0\n",
    b"30\n0,99999999999\n3,230\n",
    b"30\n0,0\n3,231\n",
    b"30\n0,0\n999999999999999,0\n",
    b"30\n2,0\n3,230\n",
    b"30\n2,50\n3,230\n",
    b"30\n9,0\n9,0\n",
    b"30\r\n0,0\r\n3,230\r\n",
    b"\xef\xbb\xbf30\n0,0\n3,230\n",
    b"30\n0,-1\n3,230\n",
    b"30\n-1,0\n3,230\n",
    b"30\n0,0\n",
    b"\0" * 40,
    b"99999999999999999999999\n0,0\n3,230\n",
    "٣٠\n0,0\n3,230\n".encode(),
]


@pytest.mark.parametrize("ours", [True, False])
@pytest.mark.parametrize("meta", GARBAGE)
def test_a_meta_file_that_cannot_be_believed(tmp_path: Path, meta: bytes, ours: bool) -> None:
    folder = tmp_path / "q"
    if ours:
        folder.mkdir()
        queue = make(folder, "whole")
        for n in range(30):
            put(queue, message(n))
        queue.close()
    else:
        shutil.copytree(VECTORS / "whole", folder)
    (folder / "whole.diskqueue.meta.dat").write_bytes(meta)
    queue = make(folder, "whole")
    assert queue.depth == 30
    put(queue, message(30))
    assert drain(queue) == messages(31)
    assert not list(folder.glob("*.bad"))


@pytest.mark.parametrize("ours", [True, False])
def test_a_read_position_inside_a_record(tmp_path: Path, ours: bool) -> None:
    """Rather once more than not at all."""
    folder = tmp_path / "q"
    if ours:
        folder.mkdir()
        queue = make(folder, "whole")
        for n in range(30):
            put(queue, message(n))
        queue.close()
    else:
        shutil.copytree(VECTORS / "whole", folder)
    (folder / "whole.diskqueue.meta.dat").write_bytes(b"20\n0,94\n3,230\n")
    assert drain(make(folder, "whole")) == messages(3 if ours else 0, 30)
    assert not list(folder.glob("*.bad"))


def test_a_wrong_depth_is_put_right(tmp_path: Path) -> None:
    for depth in (0, 7, 1000):
        folder = shutil.copytree(VECTORS / "whole", tmp_path / str(depth))
        (folder / "whole.diskqueue.meta.dat").write_bytes(b"%d\n0,0\n3,230\n" % depth)
        queue = make(folder, "whole")
        assert drain(queue) == messages(30)
        assert queue.depth == 0


@pytest.mark.parametrize("length", range(0, 70, 4))
def test_a_torn_tail_is_cut(tmp_path: Path, length: int) -> None:
    """Of the last call nothing is found unless all of it is there; the ones before are."""
    queue = make(tmp_path, max_bytes_per_file=4000)
    put(queue, *messages(5))
    path = tmp_path / "t.diskqueue.000000.dat"
    size = path.stat().st_size
    put(queue, *messages(5, 7))
    path.write_bytes(path.read_bytes()[: size + length])
    again = make(tmp_path, max_bytes_per_file=4000)
    assert drain(again) == messages(5)
    assert path.stat().st_size == size
    assert not list(tmp_path.glob("*.bad"))


@pytest.mark.parametrize("kept", [0, 2])
def test_calls_of_which_no_page_came_to_the_disk_were_never_there(tmp_path: Path, kept: int) -> None:
    """The power went before anything was flushed: the disk has the length of the file and its sums, and zeros behind `kept`
    calls of five. That is no damage.
    """
    queue = make(tmp_path, max_bytes_per_file=4000)
    path = tmp_path / "t.diskqueue.000000.dat"
    ends = [0]
    for n in range(5):
        put(queue, message(n))
        ends.append(path.stat().st_size)
    path.write_bytes(path.read_bytes()[: ends[kept]] + bytes(ends[5] - ends[kept]))
    (tmp_path / "t.diskqueue.meta.dat").unlink(missing_ok=True)
    again = make(tmp_path, max_bytes_per_file=4000)
    assert (again.depth, drain(again), again.damaged) == (kept, messages(kept), 0)
    assert not list(tmp_path.glob("*.bad"))


@pytest.mark.parametrize("tail", [b"\0\0", struct.pack(">I", 300) + b"x" * 50, bytes(900)])
def test_a_torn_tail_of_theirs_is_cut(tmp_path: Path, tail: bytes) -> None:
    folder = shutil.copytree(VECTORS / "unsynced", tmp_path / "q")
    with (folder / "unsynced.diskqueue.000000.dat").open("ab") as file:
        file.write(tail)
    assert drain(make(folder, "unsynced")) == messages(17)
    assert not list(folder.glob("*.bad"))


def test_nsqd_goes_on_in_our_file_and_we_after_it(tmp_path: Path) -> None:
    queue = make(tmp_path, max_bytes_per_file=4000)
    put(queue, *messages(5))
    queue.close()
    path = tmp_path / "t.diskqueue.000000.dat"
    with path.open("ab") as file:
        for m in messages(5, 8):
            file.write(struct.pack(">I", len(m)) + m)
    (tmp_path / "t.diskqueue.meta.dat").write_bytes(b"8\n0,0\n0,%d\n" % path.stat().st_size)
    queue = make(tmp_path, max_bytes_per_file=4000)
    put(queue, *messages(8, 10))
    assert drain(queue) == messages(10)
    assert drain(make(tmp_path)) == messages(10)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_bytes_in_any_file(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever stands in the files: it opens, what it hands out fits the files, and it goes on working."""
    folder = tmp_path_factory.mktemp("fuzz")
    queue = make(folder, max_bytes_per_file=600)
    for n in range(12):
        put(queue, *messages(2 * n, 2 * n + 2))
    queue.take_payloads(5)
    queue.done(3)
    if data.draw(st.booleans(), "closed"):
        queue.close()
    for path in data.draw(st.lists(st.sampled_from(sorted(folder.iterdir())), min_size=1, max_size=3, unique=True)):
        content = bytearray(path.read_bytes())
        what = data.draw(st.sampled_from(["cut", "add", "set", "length", "remove", "replace"]), path.name)
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        if what == "cut":
            del content[at:]
        elif what == "add":
            content += data.draw(st.binary(max_size=80))
        elif what == "set":
            piece = data.draw(st.binary(max_size=20))
            content[at : at + len(piece)] = piece
        elif what == "length":
            content[at : at + 4] = struct.pack(">I", data.draw(st.sampled_from([0, 1, 25, 26, 1 << 31, (1 << 32) - 1])))
        elif what == "replace":
            content = bytearray(data.draw(st.binary(max_size=200)))
        if what == "remove":
            path.unlink()
        else:
            path.write_bytes(content)
    queue = make(folder, max_bytes_per_file=600)
    found = drain(queue)
    assert all(len(payload) >= 26 for payload in found)
    put(queue, *messages(100, 103))
    assert drain(queue) == messages(100, 103)
    queue.done(len(found) + 3)
    put(queue, message(7))
    queue.close()
    assert drain(make(folder, max_bytes_per_file=600)) == [message(7)]


# -- a call that fails -------------------------------------------------------------------------------------------------

CALLS = ("open", "read", "write", "cut", "datasync", "sync_folder", "rename", "unlink", "names")


class NthFails(Files):
    """The n-th call raises; the ones before and after do not."""

    def __init__(self, n: int, error: type[StoreError]) -> None:
        self.left = n
        self.error = error
        self.failed = ""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in CALLS:
            self.left -= 1
            if self.left == 0:
                self.failed = name

                def fail(*args: object, **more: object) -> None:
                    raise self.error(f"{name}: by order of the test")

                return fail
        return found


def live(folder: Path, files: Files) -> tuple[list[bytes], set[bytes]]:
    """Put, take and finish; returns what was accepted, and what of it was finished."""
    accepted: list[bytes] = []
    finished: set[bytes] = set()
    queue: DiskQueue | None = None
    for n in range(0, 36, 2):
        try:
            queue = queue or make(folder, files=files, max_bytes_per_file=300, sync_every=9)
            put(queue, *messages(n, n + 2))
            accepted += messages(n, n + 2)
            got = queue.take_payloads(1)
            finished.update(got)
            queue.done(len(got))
            queue.tick(n * 100)
        except StoreError:
            if queue is not None and queue.syncing.failed is not None:
                queue = None  # a failed flush: it takes a restart
    return accepted, finished


@pytest.mark.parametrize("error", [StoreError, DiskFull])
def test_any_call_may_fail(tmp_path: Path, error: type[StoreError]) -> None:
    """What was accepted and not finished is there, in order, and once; nothing that was refused is."""
    n = 0
    while True:
        n += 1
        folder = tmp_path / str(n)
        folder.mkdir()
        files = NthFails(n, error)
        accepted, finished = live(folder, files)
        if not files.failed:
            break
        found = drain(make(folder))
        there = set(found)
        assert found == [m for m in accepted if m in there], (n, files.failed)
        assert set(accepted) - there <= finished, (n, files.failed)
        assert not list(folder.glob("*.bad")), (n, files.failed)
    assert n > 60


class Counting(Files):
    """Counts what is read."""

    bytes = 0

    def read(self, fd: int, at: int, length: int) -> bytes:
        data = super().read(fd, at, length)
        self.bytes += len(data)
        return data


def test_a_file_of_records_that_are_all_beyond_our_limit_is_walked_once(tmp_path: Path) -> None:
    sent = [message(n) + bytes(3_000) for n in range(300)]
    data = b"".join(struct.pack(">I", len(payload)) + payload for payload in sent)
    (tmp_path / "q.diskqueue.000000.dat").write_bytes(data)
    files = Counting()
    queue = make(tmp_path, "q", files, payload_bytes=(26, 1_000))
    opened = files.bytes
    assert drain(queue) == sent
    assert files.bytes - opened < 8 * len(data)
    assert not list(tmp_path.glob("*.bad"))
    queue.close()


@pytest.mark.parametrize("flushes", ["nobody", "a thread, in a moment", "a thread, now"])
def test_a_file_ends_early_where_nobody_has_to_wait_for_a_flush(tmp_path: Path, flushes: str) -> None:
    """At its end the loop flushes what is left, and waits for the thread that may be at it: 100 ms."""
    queue = make(tmp_path, max_bytes_per_file=4_000)
    record = len(message(0)) + 4
    job = None
    if flushes != "nobody":
        queue.syncing.beside(set())
    while not queue.paths.data(1).exists():
        put(queue, message(0))
        if flushes == "a thread, now" and job is None:
            job = queue.syncing.take_job(lambda error: None)
    size = queue.paths.data(0).stat().st_size
    full = 3_000 if flushes == "a thread, in a moment" else 4_000
    assert full - record < size <= full
    assert len(drain(queue)) == queue.taken == size // record + 1
    queue.close()


class Keeping(Files):
    """Names of data files, or of their sums, cannot be taken away."""

    kept: tuple[str, ...] = ()

    def unlink(self, path: Path) -> None:
        if path.suffix in self.kept and ".meta." not in path.name:
            raise StoreError(f"{path}: Input/output error")
        super().unlink(path)


@pytest.mark.parametrize("kept", [(".dat",), (".sum",), (".dat", ".sum")])
@pytest.mark.parametrize("killed", [True, False])
def test_a_used_up_file_that_the_disk_keeps_is_not_delivered_again(
    tmp_path: Path, kept: tuple[str, ...], killed: bool
) -> None:
    files = Keeping()
    queue = make(tmp_path, files=files, sync_every=1)
    put(queue, *messages(10))
    put(queue, *messages(10, 20))
    put(queue, *messages(20, 30))
    files.kept = kept
    assert queue.take_payloads(20) == messages(20)
    queue.done(20)
    queue.sync()
    stays = {path.name for path in tmp_path.iterdir() if path.suffix in kept and ".00000" in path.name}
    assert len(stays) >= 3
    if not killed:
        queue.close()
    assert list(queuefiles.records(Files(), tmp_path, "t")) == messages(20, 30)
    for still in (kept, ()):
        files.kept = still
        again = make(tmp_path, files=files)
        assert again.depth == 10
        assert drain(again) == messages(20, 30)
        again.close()
    assert len(list(tmp_path.glob("t.diskqueue.00000*.dat"))) == 1


def test_a_new_file_that_is_neither_made_nor_removed_is_made_of_the_same_name_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each publish set both files aside once more."""
    files: Any = Keeping()
    queue = make(tmp_path, files=files)
    put(queue, *messages(10))
    files.kept = (".dat", ".sum")

    def refuse(folder: Path) -> None:
        raise StoreError(f"a flush of the folder {folder}: Input/output error")

    files.sync_folder = refuse
    for _ in range(5):
        with pytest.raises(StoreError, match="a flush of the folder"):
            put(queue, *messages(10, 20))
    assert not (tmp_path / "lost+found").exists()
    assert len([record for record in caplog.records if "is not used cannot be removed" in record.getMessage()]) == 2
    del files.sync_folder
    put(queue, *messages(10, 20))
    queue.close()
    assert drain(make(tmp_path)) == messages(20)


def test_a_meta_file_that_leads_too_far_is_not_believed_for_a_used_up_file(tmp_path: Path) -> None:
    queue = make(tmp_path)
    for n in range(0, 30, 10):
        put(queue, *messages(n, n + 10))
    queue.close()
    meta = tmp_path / "t.diskqueue.meta.dat"
    depth, _, write = meta.read_text().split()
    meta.write_text(f"{depth}\n{write}\n{write}\n")
    assert drain(make(tmp_path)) == messages(30)


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize("kept", [(".dat",), (".sum",), (".dat", ".sum")])
def test_what_was_emptied_on_a_disk_that_keeps_files_is_gone(
    tmp_path: Path, kept: tuple[str, ...], deleted: bool
) -> None:
    """A queue of the same name, of a channel that is made later, has none of it either."""
    files = Keeping()
    queue = make(tmp_path, files=files)
    put(queue, *messages(10))
    put(queue, *messages(10, 20))
    assert queue.take_payloads(3) == messages(3)
    files.kept = kept
    if deleted:
        with pytest.raises(StoreError):
            queue.delete()
    else:
        queue.empty()
        put(queue, *messages(20, 22))
        queue.close()
    files.kept = ()
    again = make(tmp_path, files=files)
    assert drain(again) == ([] if deleted else messages(20, 22))
    put(again, *messages(30, 32))
    assert drain(again) == messages(30, 32)
    again.close()


@pytest.mark.parametrize("suffix", ["000001.dat", "000001.sum", "meta.dat.tmp"])
def test_a_link_in_place_of_a_new_file_is_not_followed(tmp_path: Path, suffix: str) -> None:
    """The file that it leads to was overwritten."""
    folder, elsewhere = tmp_path / "q", tmp_path / "elsewhere"
    folder.mkdir()
    elsewhere.write_bytes(b"precious")
    queue = make(folder, max_bytes_per_file=300)
    put(queue, message(0))
    link = next(folder.glob("*.000000.dat")).name.replace("000000.dat", suffix)
    (folder / link).symlink_to(elsewhere)
    for n in range(1, 30):
        put(queue, message(n))
    queue.close()
    assert elsewhere.read_bytes() == b"precious"
    again = make(folder, max_bytes_per_file=300)
    assert drain(again) == messages(30)
