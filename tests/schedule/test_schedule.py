"""Schedule: nothing early, nothing lost, nothing twice, whatever is committed when."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sys
from pathlib import Path

import lmdb
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "log"))

from lying_disk import LyingFiles
from store_parts import SMALL, bodies, make, put, work

from penstock.clock import FakeClock
from penstock.disk.files import Files
from penstock.errors import NoDescriptor, StoreError
from penstock.log import cutting
from penstock.log.draft import Draft
from penstock.log.store import LogStore
from penstock.schedule.delays import due_by_properties
from penstock.schedule.file import ScheduleFile
from penstock.schedule.schedule import LEVEL_TOPIC, TIMER_TOPIC, Due, Schedule
from penstock.wire.record import decode_record


def opened(
    folder: Path, clock: FakeClock, files: LyingFiles | None = None, **more: object
) -> tuple[LogStore, Schedule]:
    schedule = Schedule(folder / "schedule", **more)  # type: ignore[arg-type]
    store = make(folder, clock=clock, files=files)
    store.attach(schedule)
    store.open()
    return store, schedule


def delay(store: LogStore, body: bytes, level: int = 1) -> Draft:
    return put(store, body, LEVEL_TOPIC, level - 1, b"REAL_TOPIC\x01T\x02REAL_QID\x010")


def deliver(store: LogStore, due: Due) -> None:
    """What the broker does with a due message."""
    message = decode_record(due.record)
    assert message is not None
    draft = Draft()
    draft.queue = store.queue(message.properties["REAL_TOPIC"].encode(), int(message.properties["REAL_QID"]))
    draft.set_body(message.body)
    draft.prepared = due.id
    assert store.append(draft) == 0


def run_due(store: LogStore, schedule: Schedule, now_ms: int, limit: int = 1000) -> list[bytes]:
    sent = []
    for due in schedule.pop_due(now_ms, limit):
        deliver(store, due)
        message = decode_record(due.record)
        assert message is not None
        sent.append(message.body)
    return sent


def test_not_early_in_order_and_once(tmp_path: Path) -> None:
    clock = FakeClock()
    store, schedule = opened(tmp_path, clock)
    began = clock.now_ms()
    delay(store, b"ten", 3)
    delay(store, b"one", 1)
    delay(store, b"five", 2)
    assert not (tmp_path / "schedule").exists()  # the first commit makes it
    assert len(schedule) == 3
    assert run_due(store, schedule, began + 999) == []
    assert schedule.next_due_ms() == began + 1000
    work(store)
    assert (tmp_path / "schedule").exists()
    assert run_due(store, schedule, began + 4999) == [b"one"]
    assert run_due(store, schedule, began + 9_999) == [b"five"]
    assert run_due(store, schedule, began + 9_999) == []
    work(store)
    assert len(schedule) == 1
    assert run_due(store, schedule, began + 20_000) == [b"ten"]
    work(store)
    assert (len(schedule), schedule.next_due_ms()) == (0, None)
    assert bodies(store) == [b"one", b"five", b"ten"]
    store.close()


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("delivered", [True, False])
@pytest.mark.parametrize("lost", [True, False])
def test_a_restart_neither_loses_nor_doubles(
    tmp_path: Path, clean: bool, committed: bool, delivered: bool, lost: bool
) -> None:
    clock = FakeClock()
    store, schedule = opened(tmp_path, clock)
    for n in range(20):
        delay(store, b"%d" % n)
    if committed:
        work(store)
    clock.advance(2000)
    sent = run_due(store, schedule, clock.now_ms(), 7) if delivered else []
    store.close(clean)
    if lost and (tmp_path / "schedule").exists():
        for path in (tmp_path / "schedule").iterdir():
            path.unlink()
        (tmp_path / "schedule").rmdir()
    store, schedule = opened(tmp_path, clock)
    assert len(schedule) == 20 - len(sent)
    sent += run_due(store, schedule, clock.now_ms())
    assert sent == [b"%d" % n for n in range(20)]
    assert bodies(store) == sent
    work(store)
    store.close()
    store, schedule = opened(tmp_path, clock)
    assert run_due(store, schedule, clock.now_ms() + 100_000) == []
    store.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_power_cut_takes_nothing_that_was_flushed(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    folder = tmp_path / "a"
    folder.mkdir()
    files = LyingFiles(folder, seed)
    store, schedule = opened(folder, clock, files)
    for n in range(20):
        delay(store, b"%d" % n)
    work(store)
    clock.advance(2000)
    run_due(store, schedule, clock.now_ms(), 5)  # delivered, but not flushed
    for n in range(20, 25):
        delay(store, b"%d" % n)
    # LMDB flushes by itself, and whatever it has is there
    for path in (folder / "schedule").iterdir():
        fd = files.open(path)
        files.datasync(fd)
        files.close(fd)
    files.sync_folder(folder / "schedule")
    files.sync_folder(folder)
    files.power_cut(tmp_path / "b")
    store.close(clean=False)
    monkeypatch.setattr("penstock.log.checkpoint.boot_id", lambda: "another")
    store, schedule = opened(tmp_path / "b", clock)
    before = bodies(store)
    sent = run_due(store, schedule, clock.now_ms() + 10_000)
    assert [int(body) for body in [*before, *sent][:20]] == list(range(20))
    assert len(set(before + sent)) == len(before + sent)
    store.close()


def test_any_moment_by_property(tmp_path: Path) -> None:
    assert due_by_properties({"TIMER_DELIVER_MS": "5000"}, 100) == 5000
    assert due_by_properties({"TIMER_DELAY_MS": "250"}, 100) == 350
    assert due_by_properties({"TIMER_DELAY_SEC": "3"}, 100) == 3100
    assert due_by_properties({"TIMER_DELAY_SEC": "x"}, 100) == 100
    clock = FakeClock()
    store, schedule = opened(tmp_path, clock)
    when = clock.now_ms() + 12_345
    properties = b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02TIMER_DELIVER_MS\x01%d" % when
    put(store, b"then", TIMER_TOPIC, 0, properties)
    assert run_due(store, schedule, when - 1) == []
    assert run_due(store, schedule, when) == [b"then"]
    store.close()


@pytest.mark.parametrize("had", [True, False], ids=["ours before", "new to us"])
def test_what_a_rocketmq_broker_has_delivered_stays_delivered(tmp_path: Path, had: bool) -> None:
    clock = FakeClock()
    store, _ = opened(tmp_path, clock) if had else (make(tmp_path, clock=clock), None)
    if not had:
        store.open()
    for n in range(5):
        delay(store, b"%d" % n)
    if had:
        work(store)
    store.close()
    store, schedule = opened(tmp_path, clock, None, delivered={1: 3})
    assert len(schedule) == 2
    assert run_due(store, schedule, clock.now_ms() + 5000) == [b"3", b"4"]
    store.close()


@pytest.mark.parametrize("committed", ["before", "after", "never"])
def test_what_a_rocketmq_master_has_delivered_is_told_as_it_goes(tmp_path: Path, committed: str) -> None:
    """Level by level, of those that are due; the others stay, and nothing of it is forgotten by the next start."""
    clock = FakeClock()
    store, schedule = opened(tmp_path, clock)
    began = clock.now_ms()
    for n in range(6):
        delay(store, b"%d" % n, 1 + n % 2)  # 1 s, 5 s
    put(store, b"timer", TIMER_TOPIC, 0, b"REAL_TOPIC\x01T\x02REAL_QID\x010\x02TIMER_DELIVER_MS\x01%d" % began)
    if committed == "before":
        work(store)
    assert not schedule.note_delivered({1: 3, 2: 3}, store.end_position - 1, began + 500, 100)
    assert len(schedule) == 7  # none of them can have been
    assert not schedule.note_delivered({1: 2, 2: 3}, store.end_position - 1, began + 1_000, 100)
    assert len(schedule) == 5
    delay(store, b"late", 1)  # behind what was told
    for _ in range(2):
        assert not schedule.note_delivered({1: 2, 2: 1}, store.end_position - 1, began + 5_000, 100)
        assert len(schedule) == 5
    if committed != "never":
        work(store)
    store.close()
    store, schedule = opened(tmp_path, clock)
    if committed == "never":  # derived from the log again: it is told again
        schedule.note_delivered({1: 2, 2: 1}, store.end_position - 1, began + 5_000, 100)
    assert len(schedule) == 5
    assert sorted(run_due(store, schedule, began + 20_000)) == [b"3", b"4", b"5", b"late", b"timer"]
    store.close()


def test_many_that_are_delivered_are_told_of_in_steps(tmp_path: Path) -> None:
    clock = FakeClock()
    store, schedule = opened(tmp_path, clock)
    for n in range(50):
        delay(store, b"%d" % n)
    work(store)
    steps = 0
    while schedule.note_delivered({1: 47}, store.end_position - 1, clock.now_ms() + 5_000, 10):
        steps += 1
    assert (steps, len(schedule)) == (5, 3)  # the last three are due, and not delivered
    store.close()


def test_put_back_cancel_fire_find_count(tmp_path: Path) -> None:
    clock = FakeClock()
    store, schedule = opened(tmp_path, clock)
    began = clock.now_ms()
    for n in range(6):
        delay(store, b"%d" % n, 1 + n % 3)
    for committed in (False, True):
        if committed:
            work(store)
        edges = [(0, began + 2000), (began + 2000, began + 7000), (began + 7000, 1 << 62)]
        assert [len(list(schedule.entries(*edge))) for edge in edges] == [2, 2, 2]
        (found,) = (due for due in schedule.entries() if due.record.find(b"\x00\x00\x00\x014") > 0)
        assert schedule.get(found.id) == found
    assert schedule.get(12345) is None
    first, second = schedule.pop_due(began + 1000, 2)
    schedule.put_back(second.id)
    assert [due.id for due in schedule.pop_due(began + 1000, 9)] == [second.id]
    fired = schedule.fire_now(found.id)
    assert fired == found
    assert schedule.fire_now(found.id) is None
    assert found.id not in [due.id for due in schedule.pop_due(clock.now_ms() + 99_000, 99)]
    deliver(store, first)
    assert len(schedule) == 5
    store.close()


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_what_was_fired_and_put_back_comes_once(tmp_path: Path, limit: int) -> None:
    """A disk without room, say: it is in the heap twice then."""
    clock = FakeClock()
    store, schedule = opened(tmp_path, clock)
    for body in (b"a", b"b"):
        delay(store, body)
    first, second = schedule.entries()
    for _ in range(3):
        assert schedule.fire_now(first.id) is not None
        schedule.put_back(first.id)
    due_ms = clock.now_ms() + 1_000
    found = [due.id for _ in range(4) for due in schedule.pop_due(due_ms, limit)]
    assert found == [first.id, second.id]
    store.close()


def test_entries_between_two_moments(tmp_path: Path) -> None:
    schedule = Schedule(tmp_path / "schedule")
    for n in range(100):
        schedule.put(n * 10, n + 1, b"r", n)

    def numbers(begin_ms: int, end_ms: int) -> list[int]:
        return [due.id for due in schedule.entries(begin_ms, end_ms)]

    expected = [list(range(1, 11)), list(range(11, 51)), list(range(51, 101))]
    assert [numbers(0, 100), numbers(100, 500), numbers(500, 1 << 62)] == expected
    job = schedule.take_job(1000, 1000, 0) or schedule.take_job(1000, 1000, 1000)
    assert job is not None
    job.run()
    job.finish(None, 1000)
    assert schedule.position == 1000
    assert [numbers(0, 100), numbers(100, 500), numbers(500, 1 << 62)] == expected
    schedule.close()


@pytest.mark.parametrize("seed", range(8))
def test_each_is_handed_out_once_whatever_is_written_down_when(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a plain table. What is written down leaves the heap of those in memory, a piece at a time."""
    monkeypatch.setattr("penstock.schedule.schedule.COMMIT_COUNT", 7)
    rng, schedule = random.Random(seed), Schedule(tmp_path / "schedule")
    waiting: dict[int, int] = {}  # id → when it is due
    out: dict[int, int] = {}
    now_ms = 0
    for physical in range(1, 1_501):
        what = rng.random()
        if what < 0.5:
            due_ms = now_ms + rng.randrange(-5, 600)
            waiting[physical + 1] = max(0, due_ms)
            schedule.put(due_ms, physical + 1, b"r", physical)
        elif what < 0.7:
            now_ms += rng.randrange(10)
            limit = rng.randrange(1, 6)
            found = [due.id for due in schedule.pop_due(now_ms, limit)]
            due = sorted((due_ms, id_) for id_, due_ms in waiting.items() if due_ms <= now_ms)
            assert found == [id_ for _, id_ in due[:limit]]
            for id_ in found:
                out[id_] = waiting.pop(id_)
        elif what < 0.85 and out:
            id_ = rng.choice(list(out))
            if rng.random() < 0.3:
                waiting[id_] = out.pop(id_)
                schedule.put_back(id_)
            else:
                del out[id_]
                schedule.done(id_, physical)
        elif job := schedule.take_job(physical + 1, physical + 1, physical * 100):
            job.run()
            job.finish(None, 0)
        if rng.random() < 0.1:
            assert schedule.next_due_ms() == min(waiting.values(), default=None)
        assert len(schedule) == len(waiting) + len(out)
        assert len(schedule._heap) <= 2 * len(schedule._fresh) + 60
    schedule.close()


def test_only_flushed_records_are_committed(tmp_path: Path) -> None:
    schedule = Schedule(tmp_path / "schedule")
    for n in range(10):
        schedule.put(n, n + 1, b"r", n)
    assert schedule.take_job(0, 10, 0) is None
    assert schedule.take_job(4, 10, 0) is None  # not yet time
    job = schedule.take_job(4, 10, 1000)
    assert job is not None
    job.run()
    job.finish(None, 1000)
    assert schedule.position == 4
    schedule.close()
    again = Schedule(tmp_path / "schedule")
    assert (again.position, len(again)) == (4, 4)
    again.close()


def test_a_failed_commit_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = Schedule(tmp_path / "schedule")
    schedule.put(1, 1, b"r", 0)
    schedule.take_job(10, 10, 0)
    job = schedule.take_job(10, 10, 1000)
    assert job is not None
    real = schedule._file._env

    class Broken:
        def begin(self, **more: object) -> object:
            raise lmdb.Error("No space left on device")

    schedule._file._env = Broken()
    with pytest.raises(StoreError):
        job.run()
    schedule._file._env = real
    job.finish(StoreError("No space left on device"), 1000)
    assert schedule.take_job(10, 10, 1500) is None
    schedule.take_job(10, 10, 2000)
    job = schedule.take_job(10, 10, 3000)
    assert job is not None
    job.run()
    job.finish(None, 3000)
    assert schedule.pop_due(5, 5) == [Due(1, 1, b"r")]
    schedule.close()


def test_a_file_that_was_given_up_and_opened_anew_is_counted_once(tmp_path: Path) -> None:
    clock = FakeClock()
    store, schedule = opened(tmp_path, clock)
    for number in range(5):
        delay(store, b"%d" % number, 1 + number % 2)
    work(store)
    deliver(store, schedule.pop_due(clock.now_ms() + 1_000, 1)[0])
    delay(store, b"fresh", 3)
    assert len(schedule) == 5
    schedule._file.close()  # as LMDB leaves it when a commit failed and it could not be opened at once
    delay(store, b"more", 3)
    assert len(schedule) == 6
    work(store)
    assert len(schedule) == 6
    assert len(run_due(store, schedule, clock.now_ms() + 60_000)) == 6
    work(store)
    assert len(schedule) == 0
    store.close()


def test_what_is_delivered_while_a_file_cannot_be_opened_again_is_not_delivered_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    store, schedule = opened(tmp_path, clock)
    for number in range(3):
        delay(store, b"%d" % number, 1)
    work(store)
    out = schedule.pop_due(clock.now_ms() + 1_000, 2)

    def refuse(*_: object, **__: object) -> None:
        raise lmdb.Error("Too many open files")

    with monkeypatch.context() as scarce:
        scarce.setattr(lmdb, "open", refuse)
        schedule._file._env.close()  # as LMDB leaves it when a commit failed
        with pytest.raises(StoreError):
            schedule._file.take_up()
        deliver(store, out[0])
        schedule.put_back(out[1].id)
        assert len(schedule) == 2
    delay(store, b"more", 3)
    work(store)
    store.close()
    store, schedule = opened(tmp_path, clock)
    assert sorted(run_due(store, schedule, clock.now_ms() + 60_000)) == [b"1", b"2", b"more"]
    store.close()


def test_what_is_put_back_while_a_file_cannot_be_opened_again_is_handed_out_again(tmp_path: Path) -> None:
    clock = FakeClock()
    store, schedule = opened(tmp_path, clock)
    for body in (b"x", b"y"):
        delay(store, body, 1)
    work(store)
    first, _ = schedule.pop_due(clock.now_ms() + 1_000, 2)
    schedule._file.close()
    schedule._file.given_up = True
    schedule.put_back(first.id)
    delay(store, b"more", 3)
    work(store)
    assert schedule.pop_due(clock.now_ms() + 1_000, 2) == [first]
    store.close()


def test_the_map_grows(tmp_path: Path) -> None:
    schedule = Schedule(tmp_path / "schedule", map_size=1 << 20)
    at = 0
    for group in range(8):
        for _ in range(100):
            schedule.put(at, at + 1, bytes(5000), at)
            at += 1
        mono_ms = group * 10_000
        schedule.take_job(at, at, mono_ms)
        job = schedule.take_job(at, at, mono_ms + 5000)
        assert job is not None
        job.run()
        job.finish(None, mono_ms + 5000)
    assert len(schedule.pop_due(10_000, 10_000)) == 800
    schedule.close()


def test_garbage_is_set_aside_and_rebuilt(tmp_path: Path) -> None:
    clock = FakeClock()
    store, _ = opened(tmp_path, clock)
    delay(store, b"x")
    work(store)
    store.close()
    (tmp_path / "schedule" / "data.mdb").write_bytes(b"garbage" * 2000)
    store, schedule = opened(tmp_path, clock)
    assert run_due(store, schedule, clock.now_ms() + 5000) == [b"x"]
    store.close()
    assert SMALL


def test_after_a_failed_flush_it_is_built_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = FakeClock()
    store, schedule = opened(tmp_path, clock)
    delay(store, b"x")
    work(store)
    delay(store, b"y")
    clock.advance(1000)
    mono_ms = clock.monotonic_ms()
    schedule.take_job(1 << 40, 1 << 40, mono_ms)
    job = schedule.take_job(1 << 40, 1 << 40, mono_ms + 1000)
    assert job is not None
    job.finish(StoreError("mdb_txn_commit: Input/output error"), mono_ms + 1000)
    assert schedule.error is not None
    assert "again from the log at the next start" in caplog.text
    assert schedule.take_job(1 << 40, 1 << 40, mono_ms + 9000) is None
    assert len(schedule.pop_due(clock.now_ms() + 5000, 9)) == 2  # served all the same
    store.close()
    store, schedule = opened(tmp_path, clock)
    assert run_due(store, schedule, clock.now_ms() + 5000) == [b"x", b"y"]
    store.close()


def test_a_file_that_cannot_be_made_keeps_no_flush_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs of a turn are taken together: an exception of one of them loses the flush that was taken before."""
    clock = FakeClock()
    store, schedule = opened(tmp_path, clock)

    def full(self: ScheduleFile) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(ScheduleFile, "_open_environment", full)
        for number in range(3):
            delay(store, b"%d" % number)
            work(store)
            assert store.flushed_position == store.end_position
    assert not (tmp_path / "lost+found").exists()
    work(store)
    assert schedule.position == store.end_position
    assert run_due(store, schedule, clock.now_ms() + 5000) == [b"0", b"1", b"2"]
    store.close()


# -- damage ------------------------------------------------------------------------------------------------------------


def filled(folder: Path, clock: FakeClock, count: int = 60) -> None:
    """A stopped folder: `count` delayed messages, a third of them delivered before."""
    store, schedule = opened(folder, clock)
    for n in range(count):
        delay(store, b"%d " % n + bytes(range(200)), 1 if n < count // 3 else 18)
        if n % 10 == 9:
            work(store)
    clock.advance(1_000)
    assert len(run_due(store, schedule, clock.now_ms())) == count // 3
    work(store)
    store.close()


def everything(folder: Path, clock: FakeClock) -> list[int]:
    """What comes of a folder in the end."""
    store, schedule = opened(folder, clock)
    schedule.lookup = store.record_at
    found = []
    for due in schedule.pop_due(clock.now_ms() + 10_000_000, 10_000):
        message = decode_record(due.record, check=True)
        assert message is not None
        assert not due.damaged
        assert message.body.endswith(bytes(range(200)))
        found.append(int(message.body.split(b" ")[0]))
        deliver(store, due)
    work(store)
    assert len(schedule) == 0
    store.close()
    return found


@pytest.mark.parametrize("tenths", range(11))
def test_a_cut_file_is_rebuilt(tmp_path: Path, tenths: int) -> None:
    clock = FakeClock()
    filled(tmp_path, clock)
    path = tmp_path / "schedule" / "data.mdb"
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size * tenths // 10)
    assert everything(tmp_path, clock) == list(range(20, 60))
    assert everything(tmp_path, clock) == []
    if 0 < tenths < 8:
        assert len(list((tmp_path / "lost+found").glob("schedule.*"))) == 1


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_no_schedule_is_set_aside(tmp_path: Path, what: str) -> None:
    clock = FakeClock()
    filled(tmp_path, clock)
    for path in sorted((tmp_path / "schedule").iterdir()):
        path.unlink()
    if what == "file":
        (tmp_path / "schedule").rmdir()
        (tmp_path / "schedule").write_bytes(b"x")
    else:
        (tmp_path / "schedule" / "data.mdb").mkdir()
    assert everything(tmp_path, clock) == list(range(20, 60))


@pytest.mark.parametrize("part", range(8))
def test_any_bit_of_the_file(tmp_path: Path, part: int) -> None:
    """Every byte of both meta pages' heads and a sample of all others; each bit flip, zeroed and filled runs of bytes."""
    clock = FakeClock()
    filled(tmp_path / "a", clock)
    image = (tmp_path / "a" / "schedule" / "data.mdb").read_bytes()
    chance = random.Random(part)
    heads = [*range(160), *range(4096, 4256)]
    for number in range(14):
        folder = tmp_path / str(number)
        shutil.copytree(tmp_path / "a", folder)
        broken = bytearray(image)
        at = chance.choice(heads) if number % 2 else chance.randrange(len(image))
        how = chance.randrange(4)
        if how < 2:
            broken[at] ^= 1 << chance.randrange(8)
        else:
            broken[at : at + 40] = bytes(40) if how == 2 else b"\xff" * 40
        (folder / "schedule" / "data.mdb").write_bytes(broken[: len(image)])
        assert everything(folder, FakeClock(clock.now_ms(), clock.monotonic_ms())) == list(range(20, 60)), (at, how)
        shutil.rmtree(folder)


def test_a_damaged_entry_comes_from_the_log_and_else_says_so(tmp_path: Path) -> None:
    clock = FakeClock()
    filled(tmp_path, clock)
    path = tmp_path / "schedule" / "data.mdb"
    data = path.read_bytes()
    assert data.count(b"40 " + bytes(range(100))) >= 1
    path.write_bytes(data.replace(b"40 " + bytes(range(100)), b"4o " + bytes(range(100))))
    schedule = Schedule(tmp_path / "schedule")
    (damaged,) = [due for due in schedule.entries() if due.damaged]
    assert b"4o " in damaged.record
    assert schedule.get(damaged.id) == damaged
    schedule.close()
    assert everything(tmp_path, clock) == list(range(20, 60))


def test_what_was_read_before_one_that_cannot_be_read_now_is_handed_out_with_it(tmp_path: Path) -> None:
    """Entry 40 is damaged, and the log's record of it is not to be had while descriptors are short."""
    clock = FakeClock()
    filled(tmp_path, clock)
    path = tmp_path / "schedule" / "data.mdb"
    path.write_bytes(path.read_bytes().replace(b"40 " + bytes(range(100)), b"4o " + bytes(range(100))))
    store, schedule = opened(tmp_path, clock)
    lookup = schedule.lookup

    def no_descriptor(physical: int) -> bytes | None:
        raise NoDescriptor("by order of the test")

    schedule.read_lost_from(no_descriptor)
    with pytest.raises(NoDescriptor):
        schedule.pop_due(1 << 50, 100)
    schedule.read_lost_from(lookup)
    assert len(schedule.pop_due(1 << 50, 100)) == 40
    store.close()


def test_what_the_log_has_no_more_is_taken_over_from_a_damaged_file(tmp_path: Path) -> None:
    schedule = Schedule(tmp_path / "schedule")
    for n in range(200):
        schedule.put(n * 10, n + 1, b"record %d" % n, n)
    schedule.take_job(1000, 1000, 0)
    job = schedule.take_job(1000, 1000, 1000)
    assert job is not None
    job.run()
    job.finish(None, 1000)
    schedule.close()
    path = tmp_path / "schedule" / "data.mdb"
    data = bytearray(path.read_bytes())
    at = data.index(b"record 150")
    data[at - 40 : at + 10] = b"\xff" * 50  # and the page around it makes no sense
    path.write_bytes(data)
    again = Schedule(tmp_path / "schedule")
    found = [due.record for due in again.entries()]
    assert set(found) <= {b"record %d" % n for n in range(200)}
    assert len(found) >= 100
    assert b"record 150" not in found
    again.close()


def test_entries_without_sums_are_read(tmp_path: Path) -> None:
    """As the version before wrote them."""
    clock = FakeClock()
    filled(tmp_path, clock)
    env = lmdb.open(str(tmp_path / "schedule"), max_dbs=3)
    due, meta = env.open_db(b"due"), env.open_db(b"meta")
    with env.begin(write=True) as txn:
        for key, value in list(txn.cursor(db=due)):
            txn.put(key, value[:-4], db=due)
        txn.delete(b"sum", db=meta)
    env.close()
    assert everything(tmp_path, clock) == list(range(20, 60))


def test_a_schedule_that_was_being_made_is_no_damage(tmp_path: Path) -> None:
    """A power cut between the first bytes of the file and its last database: nothing was in it, nothing is set aside."""
    clock = FakeClock()
    filled(tmp_path / "whole", clock)
    folder = tmp_path / "making"
    folder.mkdir()
    with lmdb.open(str(folder), max_dbs=3) as env:
        states = [(folder / "data.mdb").read_bytes()]
        for name in (b"due", b"ids"):
            env.open_db(name)
            states.append((folder / "data.mdb").read_bytes())
    states += [bytes(8192), bytes(4096) + states[0][4096:], states[0][:4096] + bytes(4096), states[0][:4096], b""]
    for number, state in enumerate(states):
        copy = tmp_path / str(number)
        shutil.copytree(tmp_path / "whole", copy)
        (copy / "schedule" / "data.mdb").write_bytes(state)
        assert everything(copy, FakeClock(clock.now_ms(), clock.monotonic_ms())) == list(range(20, 60))
        assert not (copy / "lost+found").exists(), number


def test_what_is_appended_behind_a_cut_is_there_after_a_kill(tmp_path: Path) -> None:
    """The log has reached the position again that was committed before the cut, with other records."""
    clock = FakeClock()
    store, schedule = opened(tmp_path, clock)
    delay(store, b"kept")
    to = store.end_position
    for n in range(20):
        put(store, b"%d" % n)
    work(store)
    assert schedule.position > to
    end = store.end_position
    store.close(clean=False)
    cutting.intend(Files(), tmp_path, to, end, 0, "a publish that cannot be finished")
    store, schedule = opened(tmp_path, clock)
    while store.end_position <= end:
        delay(store, b"new")
    fresh = len(schedule)
    store.close(clean=False)  # before any commit
    store, schedule = opened(tmp_path, clock)
    assert len(schedule) == fresh > 1
    store.close()
