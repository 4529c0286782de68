"""The history: what was added is what is shown, memory stays within its bound, the file outlives a stop and may be garbage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.broker import history as history_module
from penstock.broker.history import (
    BROKER,
    DISK,
    LISTED_A_SECOND,
    LISTED_AT_ONCE,
    PIECE_MS,
    SAVED_BYTES,
    SECONDS_TRACKS_MAX,
    SWEPT_AT_ONCE,
    Counts,
    History,
    Key,
    Probe,
)
from penstock.disk.files import Files
from penstock.disk.job import run_now
from penstock.errors import DiskFull

START_S = 1_700_000_040  # a minute begins


class Bench:
    """A history over counters that a test sets."""

    def __init__(self, folder: Path, bytes_max: int = 64 << 20, files: Files | None = None) -> None:
        self.counts: dict[Key, Counts] = {}
        self.lag_ms: dict[Key, float | None] = {}
        self.history = History(
            files or Files(), folder, bytes_max, self._probes, lambda: [0.5, 100, 0, 3], lambda: len(self.counts)
        )
        self.history.open()
        self.now_s, self.mono_ms = START_S, 10_000
        self.lists = self.looked = 0

    def _probes(self) -> Iterator[tuple[Key, Probe] | None]:
        self.lists += 1
        yield None
        for key in list(self.counts):
            yield key, _Probe(self, key)

    def run(self, seconds: int, each: Callable[[], None] = lambda: None) -> None:
        for _ in range(seconds):
            for piece in range(5):  # of a list
                self.history.tick(self.mono_ms + piece * PIECE_MS, self.now_s * 1000)
            each()
            self.now_s += 1
            self.mono_ms += 1000

    def read(self, key: Key, field: str, span: str = "hour", points: int = 5) -> list[float | None]:
        told = self.history.read(key, span, points)
        assert told is not None
        values = told[field]
        assert isinstance(values, list)
        return values

    def add(self, key: Key, messages: int, lag: float = 0) -> None:
        have = self.counts.get(key, (0, 0, 0, 0))
        self.counts[key] = have[0] + messages, have[1] + messages, have[2] + 100 * messages, lag


class _Probe:
    def __init__(self, bench: Bench, key: Key) -> None:
        self.bench, self.key = bench, key

    def counts(self) -> Counts:
        self.bench.looked += 1
        return self.bench.counts[self.key]

    def lag_ms(self) -> float | None:
        return self.bench.lag_ms.get(self.key, 0.0)


T = Key("topic", "t")
G = Key("group", "t", "g")


def test_what_was_added_is_what_is_shown(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.counts = {T: (1_000, 0, 0, 0), G: (1_000, 0, 0, 7)}  # from before the start
    bench.lag_ms[G] = 4_000
    bench.run(3)
    assert bench.read(T, "in") == [None, None, 0, 0, 0]  # not measured is not 0
    bench.run(130, lambda: bench.add(T, 10))
    bench.run(1)
    assert bench.read(T, "in") == bench.read(T, "out") == [10] * 5
    assert bench.read(T, "bytes") == bench.read(BROKER, "bytes") == [1000] * 5
    assert bench.read(G, "lag") == [7] * 5
    assert bench.read(G, "lag_s")[-1] in (4, 5, 6, 7, 8)
    assert bench.read(BROKER, "lag")[-1] == 7
    assert bench.read(BROKER, "lag_s")[-1] == bench.read(G, "lag_s")[-1]
    assert bench.read(DISK, "used") == [0.5] * 5
    week = bench.read(T, "in", "week", 2)
    assert week[-1] == pytest.approx(10, rel=0.05)
    assert bench.history.latest(T)[:2] == (10, 10)
    sums = [v or 0 for v in bench.read(BROKER, "in", points=3600)]
    assert sum(sums) == 1300


def test_a_new_topic_counts_from_its_first_message_and_a_deleted_one_is_forgotten(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.run(5)
    bench.add(T, 50)
    bench.run(1)
    assert bench.read(T, "in", points=2) == [None, 50]
    bench.counts.clear()
    used = bench.history.used_bytes
    bench.run(1)
    assert bench.history.read(T, "hour", 5) is None
    assert bench.history.used_bytes < used


def test_a_counter_that_begins_anew_adds_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.counts[T] = (500, 500, 500, 0)
    bench.run(3)
    bench.counts[T] = (2, 2, 2, 0)
    bench.run(2)
    assert bench.read(T, "in") == [0] * 5


def test_unknown_age_is_none(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.counts[G] = (0, 0, 0, 9)
    bench.lag_ms[G] = None
    bench.run(10)
    assert bench.read(G, "lag_s") == [None] * 5
    assert bench.read(G, "lag") == [9] * 5


def test_seconds_that_the_loop_missed_share_what_came(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.add(T, 0)
    bench.run(3)
    bench.add(T, 40)
    bench.now_s += 3
    bench.mono_ms += 3000
    bench.run(1)
    assert bench.read(T, "in") == [0, 10, 10, 10, 10]


@pytest.mark.parametrize("by_s", [-3_600, 86_400])
def test_a_clock_that_jumps(tmp_path: Path, by_s: int) -> None:
    bench = Bench(tmp_path)
    bench.add(T, 0)
    bench.run(30, lambda: bench.add(T, 5))
    bench.now_s += by_s
    bench.run(30, lambda: bench.add(T, 5))
    assert bench.read(T, "in", points=20) == [5] * 20
    if by_s > 0:
        assert bench.read(T, "in", "week", 60)[0] is None


def test_the_busiest_are_those_with_seconds(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    keys = [Key("topic", f"t{n}") for n in range(SECONDS_TRACKS_MAX + 50)]
    for key in keys:
        bench.add(key, 0)
    busy = keys[-20:]
    bench.run(190, lambda: [bench.add(key, 3) for key in busy] and None)
    assert all(bench.read(key, "in", points=1) == [3] for key in busy)
    quiet = [key for key in keys if bench.history.tracks[key].seconds is None]
    assert len(quiet) >= 50
    assert not set(busy) & set(quiet)
    assert bench.read(quiet[0], "in", "week", 1) == [0]


def test_memory_is_bounded_and_the_quietest_give_way(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 400_000)
    keys = [Key("group", "t", f"g{n}") for n in range(50)]

    def traffic() -> None:
        for n, key in enumerate(keys):
            bench.add(key, n + 1, lag=n + 1)

    traffic()
    seen = []
    for _ in range(8):
        bench.run(600, traffic)
        seen.append(bench.history.used_bytes)
    assert max(seen) <= 400_000 + 10_000  # what one second may add before room is made
    assert seen[-1] > 200_000
    loud = [v for v in bench.read(keys[-1], "in", "week", 70) if v is not None]
    assert len(loud) > 60
    assert bench.read(keys[0], "in", "week", 70)[0] is None


def test_it_is_kept_over_a_restart(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.add(T, 0)
    bench.run(100, lambda: bench.add(T, 10))
    before = bench.read(T, "in", points=50)
    bench.history.close()
    again = Bench(tmp_path)
    again.now_s = bench.now_s + 20
    again.counts[T] = (0, 0, 0, 0)
    again.run(3, lambda: again.add(T, 4))
    seen = again.read(T, "in", points=73)
    assert seen[:50] == before
    assert seen[50:70] == [None] * 20
    assert seen[70:] == [0, 4, 4]


def test_it_is_written_while_it_runs(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.add(T, 0)
    bench.run(10, lambda: bench.add(T, 10))
    assert bench.history.take_job(bench.mono_ms) is None
    bench.history.used_bytes += SAVED_BYTES  # a large one less often
    assert bench.history.take_job(bench.mono_ms + 100_000) is None
    bench.history.used_bytes -= SAVED_BYTES
    job = bench.history.take_job(bench.mono_ms + 60_000)
    assert job is not None
    assert bench.history.take_job(bench.mono_ms + 600_000) is None  # one at a time
    run_now([job], bench.mono_ms)
    assert Bench(tmp_path).history.tracks.keys() == bench.history.tracks.keys()


class Full(Files):
    """A disk that takes a part of what is written."""

    full = False

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        if self.full:
            super().write(fd, at, data[: len(data) // 2])
            raise DiskFull("no room (by order of the test)")
        super().write(fd, at, data)


def test_a_full_disk_keeps_the_former_file_and_nothing_of_the_new_one(tmp_path: Path) -> None:
    files = Full()
    bench = Bench(tmp_path, files=files)
    bench.add(T, 0)
    for full in (False, True, False):
        bench.run(70, lambda: bench.add(T, 10))
        files.full = full
        before = (tmp_path / "config" / "history.bin").read_bytes() if full else b""
        job = bench.history.take_job(bench.mono_ms)
        assert job is not None
        run_now([job], bench.mono_ms)
        assert [path.name for path in (tmp_path / "config").iterdir()] == ["history.bin"]
        assert ((tmp_path / "config" / "history.bin").read_bytes() == before) == full
    assert Bench(tmp_path).history.tracks.keys() == bench.history.tracks.keys()


@pytest.mark.parametrize("spoil", ["cut", "flip", "foreign", "empty", "folder", "large"])
def test_a_file_that_is_garbage_is_put_aside(tmp_path: Path, spoil: str) -> None:
    bench = Bench(tmp_path)
    bench.add(T, 0)
    bench.run(100, lambda: bench.add(T, 10))
    bench.history.close()
    path = tmp_path / "config" / "history.bin"
    data = path.read_bytes()
    if spoil == "folder":
        path.unlink()
        path.mkdir()
    else:
        changed = {
            "cut": data[: len(data) // 2], "flip": data[:500] + bytes([data[500] ^ 1]) + data[501:],
            "foreign": b"PNG" + data, "empty": b"", "large": data + bytes(130 << 20),
        }[spoil]  # fmt: skip
        path.write_bytes(changed)
    again = Bench(tmp_path)
    assert not again.history.tracks
    again.add(T, 0)
    again.run(3)
    again.history.close()
    assert list((tmp_path / "lost+found").glob("*history.bin*"))
    assert path.is_file()


def test_none_is_kept_where_none_is_wanted(tmp_path: Path) -> None:
    bench = Bench(tmp_path, 0)
    bench.add(T, 5)
    bench.run(5)
    bench.history.close()
    assert not bench.history.tracks
    assert not (tmp_path / "config").exists()


def test_the_oldest_grows_older_between_two_looks(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.counts[G] = (9, 0, 0, 9)
    bench.lag_ms[G] = 1_000
    bench.run(4)
    assert bench.read(G, "lag_s", points=4) == [1, 2, 3, 4]
    bench.counts[G] = (9, 1, 0, 8)  # one was finished: nobody knows before it is looked at
    bench.run(1)
    assert bench.read(G, "lag_s", points=1) == [4]


def test_a_hundred_thousand_are_listed_in_pieces(tmp_path: Path) -> None:
    """Nobody else is served meanwhile."""
    bench = Bench(tmp_path)
    keys = [Key("topic", f"t{number}") for number in range(3 * LISTED_AT_ONCE)]
    bench.counts = dict.fromkeys(keys, (1, 0, 0, 0))
    now_ms = START_S * 1_000
    assert bench.history.tick(10_000, now_ms) == 10_000 + PIECE_MS
    assert 0 < sum(key in bench.history.tracks for key in keys) < LISTED_AT_ONCE
    for piece in (1, 2):
        assert bench.history.tick(10_000 + piece * PIECE_MS, now_ms) == 10_000 + (piece + 1) * PIECE_MS
    assert bench.history.tick(10_000 + 3 * PIECE_MS, now_ms) == 11_000
    assert all(key in bench.history.tracks for key in keys)
    bench.now_s, bench.mono_ms = START_S + 1, 11_000
    del bench.counts[keys[-1]]
    bench.run(1)  # there is one less
    assert keys[-1] not in bench.history.tracks
    assert keys[0] in bench.history.tracks


def test_what_was_there_before_the_start_is_not_counted_however_late_it_is_listed(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    keys = [Key("topic", f"t{number}") for number in range(2 * LISTED_AT_ONCE)]
    bench.counts = dict.fromkeys(keys, (1_000, 0, 0, 0))
    bench.run(71, lambda: bench.add(keys[-1], 1))
    bench.add(Key("topic", "new"), 5)
    bench.run(72)
    week = [max(filter(None, bench.read(key, "in", "week", 4))) for key in (keys[-1], Key("topic", "new"))]
    assert week[0] < 2  # a second; with the thousand of before it would be 16 at least
    assert week[1] > 0


def test_many_are_swept_in_pieces_and_the_sum_is_right(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    keys = [Key("topic", f"t{number}") for number in range(60 * SWEPT_AT_ONCE)]
    bench.counts = dict.fromkeys(keys, (0, 0, 0, 0))
    bench.run(130)
    bench.add(keys[-1], 300)
    most = 0
    for _ in range(70):
        for piece in range(5):
            before = bench.looked
            bench.history.tick(bench.mono_ms + piece * PIECE_MS, bench.now_s * 1_000)
            most = max(most, bench.looked - before)
        bench.now_s += 1
        bench.mono_ms += 1_000
    assert most <= SECONDS_TRACKS_MAX + SWEPT_AT_ONCE
    assert sum(value or 0 for value in bench.read(BROKER, "in", points=80)) == pytest.approx(300, rel=0.1)
    assert max(value or 0 for value in bench.read(keys[-1], "in", "week", 3)) == pytest.approx(5, rel=0.2)


def test_what_is_gone_gives_up_nothing_more(tmp_path: Path) -> None:
    """Those that are asked for their chunks when there is no room were put in order a while ago."""
    bench = Bench(tmp_path)
    keys = [Key("topic", f"t{number}") for number in range(6)]
    bench.counts = dict.fromkeys(keys, (0, 0, 0, 0))

    def work() -> None:
        for number, key in enumerate(keys):
            if key in bench.counts:
                bench.add(key, 1 + number)

    def squeeze() -> None:
        history = bench.history
        history.bytes_max = history.used_bytes - 1
        assert history._make_room(0)
        series = [one for track in history.tracks.values() for one in (track.minutes, track.seconds) if one is not None]
        chunks = sum(len(one.chunks) for one in series)
        assert history.used_bytes == len(history.tracks) * 1_000 + chunks * 1_400

    bench.run(62, work)
    squeeze()
    for gone in keys[:4]:
        del bench.counts[gone]
    bench.history.bytes_max = 64 << 20
    bench.run(1, work)
    for _ in range(3):
        squeeze()


def test_lists_take_a_share_of_the_time_however_often_something_comes(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.counts = {Key("topic", f"t{number}"): (1, 0, 0, 0) for number in range(2 * LISTED_A_SECOND)}

    def grow() -> None:
        bench.counts[Key("topic", f"new{len(bench.counts)}")] = (0, 0, 0, 0)
        for piece in range(1, 1_000 // PIECE_MS):
            bench.history.tick(bench.mono_ms + piece * PIECE_MS, bench.now_s * 1_000)

    bench.run(20, grow)
    assert 5 <= bench.lists <= 10


def test_those_for_whom_there_is_no_room_cost_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them looked for the quietest of all the others: 80,000 groups stopped the broker for minutes."""
    sorts: list[int] = []
    monkeypatch.setattr(
        history_module, "sorted", lambda items, **how: sorts.append(1) or sorted(items, **how), raising=False
    )
    bench = Bench(tmp_path, bytes_max=100_000)
    bench.counts = {Key("topic", f"t{number}"): (1, 0, 0, 0) for number in range(2_000)}
    bench.run(1)
    assert 50 < len(bench.history.tracks) < 110
    assert len(sorts) <= 3
