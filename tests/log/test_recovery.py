"""What a store finds after a kill, a power cut, damage: nothing acknowledged lost, nothing invented, one bad byte one
message.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from lying_disk import LyingFiles
from store_parts import SMALL, bodies, contents, make, put, snapshot, work

from penstock.clock import FakeClock
from penstock.disk.job import run_now
from penstock.errors import PenstockError, StoreError
from penstock.log import status
from penstock.log.draft import Draft
from penstock.log.reading import ReadResult
from penstock.log.recovery import Recovery
from penstock.log.store import LogStore
from penstock.log.verify import verify

PURE = os.environ.get("PENSTOCK_PURE") == "1"  # whose searches try fewer places: the code is the same


def filled(folder: Path, count: int = 200, *, flushed: bool = True, **more: Any) -> LogStore:
    store = make(folder, **more)
    store.open()
    for n in range(count):
        put(store, b"m%d" % n, queue_id=n % 2, properties=b"TAGS\x01t\x02KEYS\x01k%d" % n)
    if flushed:
        work(store)
        assert store.flushed_position == store.end_position
    return store


def flush_log(store: LogStore) -> None:
    """What an answer of level `disk` waits for."""
    mono_ms = store.clock.monotonic_ms()
    store.durability.look(mono_ms)
    store.want_flush()
    run_now(store.take_flush(mono_ms), mono_ms)


def everything(store: LogStore) -> list[tuple[int, int, bytes]]:
    return [(n, *one) for n in range(2) for one in contents(store, store.queue(b"T", n))]


EXPECTED = [(n % 2, n // 2, b"m%d" % n) for n in [*range(0, 200, 2), *range(1, 200, 2)]]


def files_of(folder: Path) -> dict[str, bytes]:
    """What must not change when a store is opened twice."""
    kept = ("commitlog", "consumequeue", "index", "checksums")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for name in kept
        for path in sorted((folder / name).rglob("*"))
        if path.is_file()
    }


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path, flushed=False)
    end = store.end_position
    store.close(clean=False)
    report: Recovery = store.open()
    assert (report.clean, report.end, report.records, report.gap_queues) == (False, end, 200, 0)
    assert everything(store) == EXPECTED
    assert put(store, b"next").queue_offset == 100
    assert len(store.query(b"T", b"k150", 9, 0, 1 << 50)) == 1
    store.close()


def test_recovery_twice_changes_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path / "a", flushed=False)
    store.close(clean=False)
    store.open()
    store.close(clean=False)
    before = files_of(tmp_path / "a")
    report = store.open()
    assert report.cut_bytes == 0
    assert report.moved == []
    store.close(clean=False)
    assert files_of(tmp_path / "a") == before
    store.open()
    store.close()
    assert files_of(tmp_path / "a") == before


def test_a_torn_tail_of_every_length(tmp_path: Path) -> None:
    store = filled(tmp_path / "a", 20)
    last = put(store, b"the last one", properties=b"TAGS\x01x")
    whole = store.record_at(last.physical)
    assert whole is not None
    store.close(clean=False)
    for kept in range(0, len(whole), 7):
        folder = snapshot(tmp_path / "a", tmp_path / f"b{kept}")
        path = folder / "commitlog" / "00000000000000000000"
        data = bytearray(path.read_bytes())
        data[last.physical + kept : last.physical + len(whole)] = bytes(len(whole) - kept)
        path.write_bytes(data)
        copy = make(folder)
        report = copy.open()
        assert report.end == last.physical, kept
        assert report.damage == []
        assert len(everything(copy)) == 20
        again = put(copy, b"after")
        assert again.physical == last.physical
        copy.close(clean=False)
        copy.open()
        assert bodies(copy)[-1] == b"after"
        copy.close()
        shutil.rmtree(folder)


def field_places(size: int, body: int, topic: int) -> dict[str, int]:
    names = ["size", "magic", "crc", "queue id", "flag"]
    places = {name: 4 * n for n, name in enumerate(names)}
    places |= {"queue offset": 27, "physical": 35, "sys flag": 39, "born": 47, "born host": 48, "store time": 63}
    places |= {"store host": 64, "reconsume": 75, "prepared": 83, "body length": 87, "body": 88}
    places |= {
        "topic length": 88 + body,
        "topic": 89 + body,
        "properties length": 90 + body + topic,
        "properties": size - 1,
    }
    return places


@pytest.mark.parametrize("name", list(field_places(100, 5, 1)))
@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_flipped_bit_below_the_durable_position_costs_one_message(
    tmp_path: Path, name: str, checkpoint: bool
) -> None:
    store = filled(tmp_path, 40)
    entry = store.queue(b"T", 1).entry(5)
    assert entry is not None
    physical, size, _ = entry
    store.close(clean=False)
    place = field_places(size, len(b"m11"), 1)[name]
    path = tmp_path / "commitlog" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    data[physical + place] ^= 0x10
    path.write_bytes(data)
    if not checkpoint:  # then the whole log is looked at
        (tmp_path / "checkpoint").unlink()
    report = store.open()
    assert len(report.damage) == (0 if checkpoint else 1)
    found = everything(store)
    assert found == [one for one in EXPECTED if one[1] < 20 and one[:2] != (1, 5)]
    assert store.record_at(physical) is None
    store.tick(store.clock.now_ms(), store.clock.monotonic_ms())
    lines = [json.loads(line) for line in (tmp_path / "damage.jsonl").read_bytes().splitlines()]
    assert [line["position"] for line in lines] == [physical]
    assert store.damaged == 1
    result = ReadResult()
    assert store.read(store.queue(b"T", 1), 5, 1, 1, -1, None, result) == status.FOUND
    assert result.next_offset == 7
    assert put(store, b"next").queue_offset == 20
    store.close()


def test_a_zero_filled_middle_is_damage_and_nothing_is_cut(tmp_path: Path) -> None:
    store = filled(tmp_path)
    end = store.end_position
    store.close(clean=False)
    path = tmp_path / "commitlog" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes(4096)
    path.write_bytes(data)
    (tmp_path / "checkpoint").unlink()
    report = store.open()
    assert report.end == end
    assert len(report.damage) == 1
    found = everything(store)
    assert 130 < len(found) < 200
    assert set(found) <= set(EXPECTED)
    assert put(store, b"next").queue_offset == 100
    store.close()


def test_a_missing_segment_is_damage(tmp_path: Path) -> None:
    store = filled(tmp_path, 400)
    end = store.end_position
    segments = [segment.path for segment in store.log.file.segments]
    assert len(segments) >= 3
    store.close(clean=False)
    segments[1].unlink()
    report = store.open()
    assert report.end == end
    found = everything(store)
    assert 100 < len(found) < 400
    store.close()


DERIVED = [
    "consumequeue",
    "consumequeue/T/1",
    "index",
    "checkpoint",
    "offsets.json",
    "checksums",
    "abort",
    "live0",
    "store.json",
]


@pytest.mark.parametrize("name", DERIVED)
@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["missing", "empty", "garbage"])
def test_what_is_derived_is_rebuilt(tmp_path: Path, name: str, clean: bool, how: str) -> None:
    store = filled(tmp_path)
    store.close(clean=clean)
    path = tmp_path / name
    noise = random.Random(name + how)
    for file in [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()):
        if how == "empty":
            file.write_bytes(b"")
        elif how == "garbage":
            file.write_bytes(noise.randbytes(file.stat().st_size))
    if how == "missing":
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    store = make(tmp_path)
    store.open()
    assert everything(store) == EXPECTED
    for n in (0, 77, 199):
        assert len(store.query(b"T", b"k%d" % n, 9, 0, 1 << 50)) == 1, n
    offset = put(store, b"next").queue_offset
    assert offset == 100 or (name == "live0" and not clean)  # without it a power cut cannot be ruled out
    store.close()
    assert make(tmp_path).open().clean


def test_a_folder_of_rocketmqs(tmp_path: Path) -> None:
    store = filled(tmp_path / "a", 300)
    store.close()
    (tmp_path / "b").mkdir()
    shutil.copytree(tmp_path / "a" / "commitlog", tmp_path / "b" / "commitlog")
    (tmp_path / "b" / "abort").write_bytes(b"")
    (tmp_path / "b" / "checkpoint").write_bytes(bytes(4096))
    other = make(tmp_path / "b", options=SMALL.__class__(max_hash_slot_num=50, max_index_num=60))
    report = other.open()
    assert report.records == 300
    assert other.log.file.size == SMALL.mapped_file_size_commit_log  # as on the disk, not as in the options
    assert len(everything(other)) == 300
    put(other, b"ours", queue_id=1)
    other.close()
    report = other.open()
    assert report.clean
    assert bodies(other, queue_id=1)[-1] == b"ours"
    other.close()


def test_a_failed_flush_is_final(tmp_path: Path) -> None:
    files = LyingFiles(tmp_path)
    store = filled(tmp_path, 20, files=files)
    flushed = store.flushed_position
    put(store, b"never answered")
    files.fail_flush = True
    store.want_flush()
    work(store, 1)
    assert not store.healthy
    files.fail_flush = False
    work(store)
    draft = Draft()
    draft.queue = store.queue(b"T", 0)
    assert store.append(draft) == status.NOT_WRITABLE
    assert store.flushed_position == flushed
    assert store.blocked(store.clock.monotonic_ms())
    assert len(everything(store)) == 21  # reading goes on
    store.close()
    store.open()
    assert store.healthy
    put(store, b"again")
    store.close()


@pytest.mark.parametrize("fails_again", [False, True])
def test_what_a_failed_flush_was_for_is_written_once_more(tmp_path: Path, fails_again: bool) -> None:
    """The kernel calls it written, shows it to the next start as it would any reader, and forgets it."""
    files = LyingFiles(tmp_path / "store")
    store = filled(tmp_path / "store", 100, files=files)
    for n in range(100, 150):
        put(store, b"m%d" % n, queue_id=n % 2)  # answered: level os
    files.fail_flush = True
    flush_log(store)
    assert not store.healthy
    store.close(clean=False)
    if fails_again:
        again = make(tmp_path / "store", files=files)
        with pytest.raises(StoreError):
            again.open()
        again.close(clean=False)
    files.fail_flush = False
    found = filled(tmp_path / "store", 0, files=files)
    for n in range(150, 200):
        put(found, b"m%d" % n, queue_id=n % 2)
    work(found)
    assert found.healthy
    assert everything(found) == EXPECTED
    found.close()
    files.power_cut(tmp_path / "cut")
    assert everything(filled(tmp_path / "cut", 0)) == EXPECTED
    assert not (tmp_path / "store" / "unwritten").exists()


def test_a_full_disk_refuses_and_recovers(tmp_path: Path) -> None:
    files = LyingFiles(tmp_path)
    store = filled(tmp_path, 20, files=files)
    files.full = True
    draft = Draft()
    draft.queue = store.queue(b"T", 0)
    draft.set_body(bytes(500))
    sent = 0
    while (code := store.append(draft)) == 0:
        sent += 1
    assert code == status.DISK_FULL
    assert sent < 100
    work(store)
    assert store.healthy
    assert store.append(draft) == status.DISK_FULL
    assert len(everything(store)) == 20 + sent
    files.full = False
    assert store.append(draft) == 0
    work(store)
    assert store.flushed_position == store.end_position
    store.close()
    assert store.open().clean
    assert len(everything(store)) == 21 + sent
    store.close()


def test_the_window_of_level_os(tmp_path: Path) -> None:
    clock = FakeClock()
    store = make(tmp_path, clock=clock)
    store.open()
    put(store, b"x")
    mono_ms = clock.monotonic_ms()
    assert [job.kind for job in store.take_jobs(mono_ms) if job.kind == "flush"] == []
    assert not store.blocked(mono_ms + 1000)
    assert store.blocked(mono_ms + 1001)
    (flush,) = [job for job in store.take_jobs(mono_ms + 500) if job.kind == "flush"]
    run_now([flush], mono_ms + 600)
    assert not store.blocked(mono_ms + 5000)
    put(store, b"y")
    store.want_flush()
    assert [job.kind for job in store.take_jobs(mono_ms + 700)].count("flush") == 1
    store.close()


@pytest.mark.parametrize("seed", range(25))
def test_a_power_cut_keeps_what_was_flushed_and_invents_nothing(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = random.Random(seed)
    folder, files = tmp_path / "0", LyingFiles(tmp_path / "0", seed)
    folder.mkdir()
    store = make(folder, files=files)
    store.open()
    log: list[tuple[int, int, bytes, int]] = []  # queue id, offset, body, end
    for cut in range(3):
        for _ in range(noise.randrange(1, 150)):
            body = noise.randbytes(noise.randrange(300))
            draft = put(store, body, queue_id=noise.randrange(2), properties=b"KEYS\x01k%d" % len(log))
            log.append((draft.queue.queue_id, draft.queue_offset, body, store.end_position))
            if noise.random() < 0.02:
                work(store, 1)
            elif noise.random() < 0.1:  # somebody waits: the sums stay behind
                flush_log(store)
        flushed = store.flushed_position
        seen = [store.queue(b"T", n).visible_end() for n in range(2)]
        folder = tmp_path / str(cut + 1)
        files.power_cut(folder)
        store.close(clean=False)
        files = LyingFiles(folder, seed + 100)
        for path in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
            files.sync_folder(path)
        for path in (p for p in folder.rglob("*") if p.is_file()):
            fd = files.open(path)
            files.datasync(fd)
            files.close(fd)
        store = make(folder, files=files)
        monkeypatch.setattr("penstock.log.checkpoint.boot_id", lambda cut=cut: f"boot {cut}")
        report = store.open()
        assert report.end >= flushed
        assert report.damage == []
        log = [one for one in log if one[3] <= report.end]
        for n in range(2):
            assert contents(store, store.queue(b"T", n)) == [one[1:3] for one in log if one[0] == n]
            assert store.queue(b"T", n).max_offset >= seen[n] or seen[n] <= SMALL.reserve_offsets
    store.close()


def cut(store: LogStore, monkeypatch: pytest.MonkeyPatch, *, sums: bytes) -> None:
    """The power goes: of the sums the disk has these."""
    store.close(clean=False)
    (store.folder / SUMS).write_bytes(sums)
    monkeypatch.setattr("penstock.log.checkpoint.boot_id", lambda: f"boot {random.random()}")


@pytest.mark.parametrize("hole", [(0, 0), (10, 40), (15, 20), (39, 40), (11, 12)])
def test_records_whose_sums_came_too_late_prove_themselves_and_get_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hole: tuple[int, int]
) -> None:
    store = filled(tmp_path, 10)
    for n in range(10, 40):
        put(store, b"m%d" % n, queue_id=n % 2, properties=b"KEYS\x01k%d" % n)
    flush_log(store)
    written = (tmp_path / SUMS).read_bytes()
    assert store.flushed_position == store.end_position
    begin, end = (32 + 8 * n for n in hole)
    cut(store, monkeypatch, sums=written[:begin] + bytes(end - begin) + written[end:])
    assert [finding for finding in verify(tmp_path).findings if finding.kind == "damage"] == []
    report = store.open()
    assert (report.power_cut, report.damage, report.cut_bytes) == (True, [], 0)
    assert everything(store) == [one for one in EXPECTED if int(one[2][1:]) < 40]
    assert (tmp_path / SUMS).read_bytes() == written
    # they are sums like any other: a byte that changes later is found out
    entry = store.queue(b"T", 1).entry(15)
    assert entry is not None
    store.close()
    path = tmp_path / "commitlog" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    data[entry[0] + field_places(entry[1], len(b"m31"), 1)["topic"]] ^= 2
    path.write_bytes(data)
    store.open()
    assert everything(store) == [one for one in EXPECTED if int(one[2][1:]) < 40 and one[:2] != (1, 15)]
    store.close()


@pytest.mark.parametrize("body", [b"", b"the last one"])
def test_a_torn_record_without_its_sum_is_not_taken_for_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    """Any one byte may be the first that is missing, and any one the last."""
    store = filled(tmp_path, 10)
    sums, path = (tmp_path / SUMS).read_bytes(), tmp_path / "commitlog" / "00000000000000000000"
    last = put(store, body, properties=b"KEYS\x01a key\x02TAGS\x01x")
    whole = path.read_bytes()
    at, end = last.physical, last.physical + last.size
    lengths = [
        at + 84,
        at + 85,
        at + 86,
        at + 87,
    ]  # of the body: zeros when it is empty, as the fields before it may be
    lost = [(begin, end) for begin in range(at, end)]
    lost += [(at, stop) for stop in range(at + 8, end)]  # with the magic, which is written last
    lost += [(n, n + 1) for n in range(at + 88, end) if whole[n]]
    assert whole[lengths[0] : lengths[3] + 1] == len(body).to_bytes(4)
    for begin, stop in lost[:: 4 if PURE else 1]:
        if not any(whole[begin:stop]):
            continue
        cut(store, monkeypatch, sums=sums)
        data = bytearray(whole)
        data[begin:stop] = bytes(stop - begin)
        path.write_bytes(data)
        report = store.open()
        assert report.end == at, (begin - at, stop - at)
        assert report.damage == []
        assert everything(store) == [one for one in EXPECTED if int(one[2][1:]) < 10]
        for lost_file in (tmp_path / "lost+found").glob("*"):
            lost_file.unlink()
    cut(store, monkeypatch, sums=sums)
    path.write_bytes(whole)
    assert store.open().end == end
    store.close()


def test_a_record_that_proves_nothing_is_flushed_with_its_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, 10)
    odd = b"KEYS\x01k\x02odd\x01a\0b"
    before = (tmp_path / SUMS).read_bytes()
    first = put(store, b"never flushed", properties=odd)
    whole = (tmp_path / SUMS).read_bytes()
    cut(store, monkeypatch, sums=before)
    assert store.open().end == first.physical  # whole or torn: nobody can tell, and nobody was told that it is stored
    last = put(store, b"flushed", properties=odd)
    flush_log(store)
    assert store.durability.summed == store.end_position
    assert (tmp_path / SUMS).read_bytes() != whole
    cut(store, monkeypatch, sums=(tmp_path / SUMS).read_bytes())
    report = store.open()
    assert (report.end, report.damage) == (last.physical + last.size, [])
    assert bodies(store)[-1] == b"flushed"
    store.close()


def test_offsets_that_may_have_been_seen_are_not_given_out_again(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    files = LyingFiles(folder, 1)
    store = filled(folder, 20, files=files)
    work(store)
    for n in range(30):
        put(store, b"unflushed %d" % n)
    seen = store.queue(b"T", 0).visible_end()
    assert seen == 40
    files.power_cut(tmp_path / "b")
    store.close(clean=False)
    other = make(tmp_path / "b")
    report = other.open()
    assert report.gap_queues == 2
    queue = other.queue(b"T", 0)
    draft = put(other, b"new")
    assert draft.queue_offset >= seen
    result = ReadResult()
    at = report.end and queue.max_offset - 2
    assert other.read(queue, at, 1, 1 << 20, queue.max_offset - 1, None, result) == status.OFFSET_FOUND_NULL
    assert result.next_offset == queue.max_offset - 1
    assert bodies(other)[-1] == b"new"
    other.close(clean=False)
    report = other.open()
    assert report.gap_queues == 0
    assert put(other, b"newer").queue_offset == draft.queue_offset + 1
    other.close()


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes_as_a_segment(tmp_path: Path, seed: int) -> None:
    noise = random.Random(seed)
    store = filled(tmp_path, 60, flushed=seed % 2 == 0)
    store.close(clean=seed % 3 == 0)
    for path in sorted(p for p in tmp_path.rglob("*") if p.is_file() and p.name != "store.json"):
        if noise.random() < 0.5 and path.stat().st_size:
            data = bytearray(path.read_bytes())
            for _ in range(noise.randrange(1, 30)):
                at = noise.randrange(len(data))
                piece = noise.choice(
                    [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", noise.randbytes(5), b"\xda\xa3\x20\xa7"]
                )
                data[at : at + len(piece)] = piece
            path.write_bytes(data[: len(data) if noise.random() < 0.8 else noise.randrange(len(data))])
    store = make(tmp_path)
    try:
        store.open()
    except PenstockError:
        return
    found = everything(store)
    assert {one[2] for one in found} <= {b"m%d" % n for n in range(60)}
    put(store, b"still alive")
    store.close()


def test_group_commit_goes_on_at_once(tmp_path: Path) -> None:
    clock = FakeClock()
    store = make(tmp_path, clock=clock)
    store.open()
    mono_ms = clock.monotonic_ms()
    for n in range(3):
        put(store, b"%d" % n)
        store.want_flush()
        (flush,) = [job for job in store.take_jobs(mono_ms) if job.kind == "flush"]
        put(store, b"meanwhile")
        store.want_flush()
        assert [job for job in store.take_jobs(mono_ms) if job.kind == "flush"] == []
        run_now([flush], mono_ms)
        assert store.flushed_position < store.end_position
        (flush,) = [job for job in store.take_jobs(mono_ms) if job.kind == "flush"]
        run_now([flush], mono_ms)
        assert store.flushed_position == store.end_position
    store.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_prepared_and_never_used(tmp_path: Path, clean: bool) -> None:
    store = filled(tmp_path)
    size, end = store.log.file.size, store.log.file.end
    store.close(clean)
    (tmp_path / "commitlog" / f"{end:020d}").write_bytes(bytes(size))
    (tmp_path / "commitlog" / f"{end + size:020d}").write_bytes(b"")
    report = store.open()
    assert report.damage == []
    assert store.log.file.end == end
    for _ in range(100):
        put(store, bytes(1000), queue_id=0)
    work(store)
    assert len(bodies(store)) == 200
    store.close()
    assert verify(tmp_path).ok
    assert store.open().clean
    assert len(bodies(store)) == 200
    store.close()


def test_entries_that_lead_nowhere_are_written_anew(tmp_path: Path) -> None:
    store = filled(tmp_path, 10)
    queue = store.queue(b"T", 0)
    good = queue.entry(4)
    assert good is not None
    nowhere = [(1 << 60, -1), (good[0] + 1, good[1]), (-5, 100), (good[0], 0), (store.end_position, 100), (0, 1 << 30)]
    for physical, size in nowhere:
        queue.put_at(1, physical, size, 0)
        assert store.store_time(queue, 1) == -1
        assert store.offset_by_time(queue, store.clock.now_ms()) == 4
        assert contents(store, queue) == [(n, b"m%d" % (2 * n)) for n in range(5)]
        assert queue.entry(1) != (physical, size, 0)
    store.close()


def test_an_entry_that_leads_to_another_record_is_written_anew(tmp_path: Path) -> None:
    """Records of one size: a changed bit of the place may lead to a good one, which another offset means."""
    store = filled(tmp_path, 10)
    queue = store.queue(b"T", 0)
    first, third = queue.entry(0), queue.entry(2)
    assert first is not None
    assert third is not None
    store.close()
    path = tmp_path / "consumequeue" / "T" / "0" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    data[40:48] = first[0].to_bytes(8)
    path.write_bytes(data)
    store.open()
    assert contents(store, store.queue(b"T", 0)) == [(n, b"m%d" % (2 * n)) for n in range(5)]
    assert store.queue(b"T", 0).entry(2) == third
    store.close()


def all_found(store: LogStore, count: int = 200) -> None:
    assert everything(store) == [(n % 2, n // 2, b"m%d" % n) for n in [*range(0, count, 2), *range(1, count, 2)]]
    for n in range(count):
        assert len(store.query(b"T", b"k%d" % n, 9, 0, 1 << 50)) == 1, n


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["removed", "header", "begin"])
@pytest.mark.parametrize("which", range(4))
def test_any_index_file_damaged(tmp_path: Path, which: int, how: str, clean: bool) -> None:
    store = filled(tmp_path)
    for n in range(200, 220):
        put(store, b"m%d" % n, queue_id=n % 2, properties=b"TAGS\x01t\x02KEYS\x01k%d" % n)
    store.close(clean=clean)
    files = sorted((tmp_path / "index").iterdir())
    assert len(files) == 4
    path = files[which]
    if how == "removed":
        path.unlink()
    else:
        data = path.read_bytes()
        path.write_bytes(b"\xff" * 40 + data[40:] if how == "header" else data[:16] + b"\xff" * 8 + data[24:])
    report = store.open()
    all_found(store, 220)
    assert how == "begin" or "index" in report.rebuilt
    store.close(clean=False)
    assert store.open().rebuilt == []
    all_found(store, 220)
    store.close()


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("noise", [b"\xff" * 20, bytes(range(20)), bytes(20), b"\0" * 8 + b"\x7f" + b"\xff" * 11])
@pytest.mark.parametrize("entry", [0, 1, 49, 50, 74, 98, 99, 100, 101, 119])
def test_any_queue_entry_overwritten(tmp_path: Path, entry: int, noise: bytes, checkpoint: bool) -> None:
    store = filled(tmp_path)
    store.close(clean=False)
    at = entry * 20
    path = tmp_path / "consumequeue" / "T" / "1" / f"{at // 400 * 400:020d}"
    data = bytearray(path.read_bytes() if path.exists() else bytes(400))
    data[at % 400 : at % 400 + 20] = noise
    path.write_bytes(data)
    if not checkpoint:
        (tmp_path / "checkpoint").unlink()
    report = store.open()
    assert report.damage == []
    all_found(store)
    assert put(store, b"next", queue_id=1).queue_offset == 100
    assert contents(store, store.queue(b"T", 1))[-1] == (100, b"next")
    store.close()
    assert store.open().clean
    store.close()


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("clean", [True, False])
def test_any_queue_file_removed(tmp_path: Path, number: int, clean: bool) -> None:
    store = filled(tmp_path)
    store.close(clean=clean)
    (tmp_path / "consumequeue" / "T" / "1" / f"{number * 400:020d}").unlink()
    store.open()
    all_found(store)
    store.close()


@pytest.mark.parametrize("how", [(-1, -1), (5, 100), (0, 1 << 20)])
def test_an_entry_a_reader_stumbles_over_is_mended_by_the_next_start(tmp_path: Path, how: tuple[int, int]) -> None:
    store = filled(tmp_path)
    before = store.queue(b"T", 1).entry(19)
    assert before is not None
    segment = store.log.file.at(before[0])
    segment.map[before[0] - segment.first + 92] ^= 1  # the record before it is damaged: this run does not find the way
    store.queue(b"T", 1).put_at(20, how[0], how[1], 0)
    assert len(everything(store)) == 199
    work(store)
    assert len((tmp_path / "damage.jsonl").read_bytes().splitlines()) == 1
    store.close()
    report = store.open()
    assert report.rebuilt == ["consumequeue/T/1"]
    assert (1, 20, b"m41") in everything(store)
    assert len(everything(store)) == 199
    store.close()
    assert store.open().clean
    store.close()


def test_a_damaged_record_does_not_make_the_next_start_slow(tmp_path: Path) -> None:
    store = filled(tmp_path)
    store.close()
    path = tmp_path / "commitlog" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    at = data.index(b"m77")
    data[at] ^= 1
    path.write_bytes(data)
    store.open()
    assert len(everything(store)) == 199
    store.close()
    assert store.open().clean
    store.close()


@pytest.mark.parametrize("more", [20, 300])
@pytest.mark.parametrize("clean", [True, False])
def test_what_a_rocketmq_broker_has_put_behind_ours_stays(tmp_path: Path, clean: bool, more: int) -> None:
    """It keeps the checkpoint's slots, writes its own store times, and knows nothing of our other files."""
    filled(tmp_path, 40).close(clean)
    ours = [name for name in ("checksums", "checkpoint", "store.json", "offsets.json") if (tmp_path / name).exists()]
    for name in ours:
        place = tmp_path / name
        (shutil.copytree if place.is_dir() else shutil.copy)(place, tmp_path / f"{name}.kept")
    other = make(tmp_path, clock=FakeClock(now_ms=1_800_000_000_000))
    other.open()
    for n in range(40, 40 + more):
        put(other, b"m%d" % n, queue_id=n % 2, properties=b"KEYS\x01k%d" % n)
    other.close()
    for name in ours:
        shutil.rmtree(tmp_path / name) if (tmp_path / name).is_dir() else (tmp_path / name).unlink()
        (tmp_path / f"{name}.kept").rename(tmp_path / name)
    with (tmp_path / "checkpoint").open("r+b") as file:
        file.write((1_800_000_000_000).to_bytes(8) * 3)

    wanted = sorted(b"m%d" % n for n in range(40 + more))
    before = verify(tmp_path)
    assert before.ok
    assert before.unchecked == more
    store = make(tmp_path)
    report = store.open()
    assert report.damage == []
    assert sorted(body for _, _, body in everything(store)) == wanted
    for n in range(40 + more, 100 + more):
        put(store, b"m%d" % n, queue_id=n % 2)
    store.close()
    after = verify(tmp_path)
    assert after.ok
    assert after.unchecked < more  # those behind our records in the same segment have sums now
    assert (after.unchecked == 0) == (more == 20)
    store = make(tmp_path)
    assert store.open().clean
    assert sorted(body for _, _, body in everything(store)) == sorted(b"m%d" % n for n in range(100 + more))
    store.close()


SUMS = "checksums/00000000000000000000"


@pytest.mark.parametrize("clean", [True, False])
def test_no_bit_of_the_sums_costs_a_message(tmp_path: Path, clean: bool) -> None:
    store = filled(tmp_path / "a", 40)
    store.close(clean=clean)
    whole = (tmp_path / "a" / SUMS).read_bytes()
    noise = random.Random(7)
    places = [*range(0, 32 * 8, 3), *(32 * 8 + noise.randrange(40 * 64) for _ in range(60))]
    for bit in places:
        folder = snapshot(tmp_path / "a", tmp_path / "b")
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        (folder / SUMS).write_bytes(data)
        copy = make(folder)
        assert copy.open().damage == []
        assert len(everything(copy)) == 40, bit
        put(copy, b"next")
        copy.close()
        copy.open()
        assert len(everything(copy)) == 41, bit
        copy.close()
        shutil.rmtree(folder)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("fill", [b"\0", b"\xff"])
@pytest.mark.parametrize(("begin", "end"), [(0, 32), (0, 200), (100, 300), (32, 40), (200, 1 << 20), (0, 1 << 20)])
def test_no_part_of_the_sums_costs_a_message(tmp_path: Path, begin: int, end: int, fill: bytes, clean: bool) -> None:
    store = filled(tmp_path, 40)
    store.close(clean=clean)
    path = tmp_path / SUMS
    data = path.read_bytes()
    end = min(end, len(data))
    path.write_bytes(data[:begin] + fill * (end - begin) + data[end:])
    assert store.open().damage == []
    assert len(everything(store)) == 40
    put(store, b"next")
    store.close(clean=False)
    store.open()
    assert len(everything(store)) == 41
    store.close()
    path.write_bytes(path.read_bytes()[: begin + 10])
    assert store.open().damage == []
    assert len(everything(store)) == 41
    store.close()


def test_a_record_is_still_found_out_beside_damaged_sums(tmp_path: Path) -> None:
    """A changed topic byte holds its body sum: only the sum over the whole record tells."""
    store = filled(tmp_path, 40)
    entry = store.queue(b"T", 1).entry(5)
    assert entry is not None
    store.close(clean=False)
    path = tmp_path / "commitlog" / "00000000000000000000"
    data = bytearray(path.read_bytes())
    data[entry[0] + field_places(entry[1], len(b"m11"), 1)["topic"]] ^= 2
    path.write_bytes(data)
    sums = tmp_path / SUMS
    damaged = bytearray(sums.read_bytes())
    damaged[32 + 8 * 20 + 1] ^= 4
    sums.write_bytes(damaged)
    store.open()
    assert everything(store) == [one for one in EXPECTED if one[1] < 20 and one[:2] != (1, 5)]
    store.close()


@pytest.mark.parametrize("torn", ["three new times", "one changed bit"])
def test_times_of_a_torn_checkpoint_are_not_taken_for_another_brokers(tmp_path: Path, torn: str) -> None:
    """A record that a power cut left half written must not be adopted as RocketMQ's."""
    store = filled(tmp_path, 40)
    last = put(store, b"half", properties=b"TAGS\x01t")
    store.close(clean=False)
    abort = (tmp_path / "abort").read_text()
    (tmp_path / "abort").write_text(abort[: abort.index("boot")] + "boot of another life")
    path = tmp_path / "checkpoint"
    data = bytearray(path.read_bytes())
    if torn == "three new times":
        data[:24] = (int.from_bytes(data[:8]) + 777).to_bytes(8) * 3
    else:
        data[6] ^= 1
    path.write_bytes(data)
    log = tmp_path / "commitlog" / "00000000000000000000"
    data = bytearray(log.read_bytes())
    data[last.physical + field_places(100, 4, 1)["topic"]] ^= 2
    log.write_bytes(data)
    report = store.open()
    assert report.cut_bytes > 0
    assert store.log.end == last.physical
    assert set(store.queues) == {b"T"}
    assert everything(store) == [one for one in EXPECTED if one[1] < 20]
    store.close()


@pytest.mark.parametrize("name", ["lock", "abort", "checkpoint", "live0", "offsets.json", "store.json", "suspects.json",
                                  "damage.jsonl", SUMS, "commitlog/00000000000000000000.x"])  # fmt: skip
@pytest.mark.parametrize("clean", [True, False])
def test_a_folder_where_a_file_should_be(tmp_path: Path, name: str, clean: bool) -> None:
    store = filled(tmp_path)
    store.close(clean=clean)
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name / "inside").mkdir(parents=True)
    store = make(tmp_path)
    store.open()
    assert everything(store) == EXPECTED
    assert [path for path in (tmp_path / "lost+found").iterdir() if path.is_dir()]
    put(store, b"next")
    work(store)
    store.close()
    assert make(tmp_path).open().clean


@pytest.mark.parametrize("clean", [True, False])
def test_store_times_do_not_decrease_when_a_clock_was_set_back(tmp_path: Path, clean: bool) -> None:
    """Not behind a process either that was killed and has stored nothing: look-ups by time go by their order."""
    clock = FakeClock()
    store = make(tmp_path, clock=clock)
    store.open()
    first = put(store, b"a")
    store.close(clean)
    killed = make(tmp_path, clock=clock)
    killed.open()
    killed.close(False)
    clock.jump(-3_600_000)
    store = make(tmp_path, clock=clock)
    store.open()
    assert put(store, b"b").store_ms == first.store_ms
    assert store.offset_by_time(store.queue(b"T", 0), first.store_ms, lower=True) == 0
    store.close()
