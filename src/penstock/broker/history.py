"""What the last hour (by second) and the last week (by minute) were like: rates and lag of topics, groups and channels.

    every second     the `SECONDS_TRACKS_MAX` busiest are read, and some of the others: each of those once a minute
    every minute     who is busiest is looked at anew
    every 1–10 min   one file, `config/history.bin`, is written by a worker, the larger the less often; and at a clean stop

Nothing is on a message's path: counters are read that are there anyway. Memory is bounded in bytes. Values are kept in
chunks of 60; one that is all zeros takes none, so whoever is quiet costs next to nothing. Where there is no room the
quietest give up their oldest chunks. What was not measured, because the broker was down or the chunk was given up, is
None and not 0.
"""

from __future__ import annotations

import heapq
import logging
import math
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from penstock.broker.historyfile import Chunks, HistoryFile, Saved, SavedTrack, chunk_of, raw
from penstock.disk.files import Files
from penstock.disk.job import Job
from penstock.errors import StoreError

log = logging.getLogger("penstock.broker")

FIELDS = ("in", "out", "bytes", "lag", "lag_s")  # three rates a second, messages, seconds
DISK_FIELDS = ("used", "log", "behind", "delayed")  # share of the disk, bytes, bytes not flushed, messages
RATES = 3  # of FIELDS, the first ones: counters are read, rates are kept
SPANS = {"hour": (1, 3_600), "week": (60, 10_080)}  # name: step in seconds, points
SECONDS_TRACKS_MAX = 200
LAG_EVERY_S = 5  # the age of the oldest message costs a read of the log for each queue
SWEPT_AT_LEAST = SWEPT_AT_ONCE = 100  # a second; and in a turn of the loop, the next ones PIECE_MS later
SWEPT_AFTER_S = 10
LISTED_AT_ONCE, PIECE_MS = 500, 5  # of what there is, in a turn of the loop; the next piece so many ms later
LISTED_A_SECOND = 5_000  # no more on average, however often something comes or goes
SORTED_EVERY_MS = 10_000  # where all have given up what they had
SAVED_EVERY_MS, SAVED_AT_LEAST_MS = 60_000, 600_000
# So many are written once in SAVED_EVERY_MS: after a kill the last minutes are what one looks for.
SAVED_BYTES = 2 << 20
KEYS_MAX = 100  # of one question
LATEST_S = 5  # a rate for people is the mean over so long
RUNS_MAX = 1_000

_POINTS = 60  # of a chunk
_WIDTH = len(FIELDS)
_CHUNK_BYTES = 4 * _POINTS * _WIDTH + 200  # with what Python adds
_TRACK_BYTES = 1_000
_ZEROS = array("f", bytes(4 * _POINTS * _WIDTH))
_NOTHING = (0.0,) * _WIDTH

Counts = tuple[float, float, float, float]  # in, out, bytes since the start; lag in messages


class Key(NamedTuple):
    """What is tracked: a topic, or a group or channel of one; `broker` and `disk` have no names."""

    kind: str
    topic: str = ""
    name: str = ""


BROKER, DISK = Key("broker"), Key("disk")


class Probe(Protocol):
    """How something is measured."""

    def counts(self) -> Counts:
        """As they are now."""

    def lag_ms(self) -> float | None:
        """How old the oldest message is that is not finished; None where that is not known."""


class Series:
    """One track at one step."""

    __slots__ = ("chunks", "since", "span", "step")

    def __init__(self, step: int, span: int) -> None:
        self.step = step
        self.span = span // _POINTS  # chunks
        self.since = 0  # number of the first point that is known
        self.chunks: Chunks = {}

    def put(self, point: int, values: list[float]) -> int:
        """Set one point; how many chunks more (or fewer) there are."""
        number, at = divmod(point, _POINTS)
        chunk = self.chunks.get(number)
        before = len(self.chunks)
        if chunk is None:
            if not any(values):
                return 0
            for old in [n for n in self.chunks if not number - self.span < n <= number]:
                del self.chunks[old]
            chunk = self.chunks[number] = array("f", _ZEROS)
        for place, value in enumerate(values, at * _WIDTH):
            chunk[place] = value
        return len(self.chunks) - before

    def has(self, point: int) -> bool:
        """Whether something was put there, zeros aside."""
        chunk = self.chunks.get(point // _POINTS)
        return chunk is not None and any(chunk[point % _POINTS * _WIDTH :][:_WIDTH])

    def drop_oldest(self) -> bool:
        """Give up a chunk; False when there is none."""
        if not self.chunks:
            return False
        number = min(self.chunks)
        del self.chunks[number]
        self.since = max(self.since, (number + 1) * _POINTS)
        return True

    def points(self, field: int, first: int, end: int) -> Iterator[float | None]:
        """The values of one field; what is not known is None."""
        for point in range(first, end):
            if point < self.since:
                yield None
                continue
            chunk = self.chunks.get(point // _POINTS)
            value = 0.0 if chunk is None else chunk[point % _POINTS * _WIDTH + field]
            yield None if math.isnan(value) else value


class Track:
    """The history of one thing."""

    __slots__ = (
        "at_s", "base", "base_s", "busy", "lag", "lag_at_s", "lag_s", "last", "listed", "minutes", "probe", "seconds",
    )  # fmt: skip

    def __init__(self) -> None:
        self.probe: Probe | None = None
        self.listed = 0  # number of the last list that it was in
        self.last: Counts | None = None  # what was read for the seconds
        self.at_s = 0
        self.base: Counts | None = None  # … and for the minutes
        self.base_s = 0
        self.busy = 0.0  # messages a second in the last minute
        self.lag = 0.0
        self.lag_s = 0.0
        self.lag_at_s = 0
        self.seconds: Series | None = None
        self.minutes = Series(*SPANS["week"])

    def no_later_than(self, now_s: int) -> None:
        """The clock was set back: nothing is known before it is measured again, and nothing comes from the future."""
        self.at_s, self.base_s = min(self.at_s, now_s - 1), min(self.base_s, now_s - 1)
        for series in (self.minutes, self.seconds):
            if series is not None:
                series.since = min(series.since, now_s // series.step)


Parts = tuple[list[tuple[int, int]], list[tuple[Key, Track, Chunks, Chunks]]]


class History:
    """See the module. `probes()` lists what there is now, a step at a time, and is asked when `shape()` is another one, or a
    minute ends; `disk()` gives the values of `DISK_FIELDS`.
    """

    def __init__(
        self, files: Files, folder: Path, bytes_max: int, probes: Callable[[], Iterator[tuple[Key, Probe] | None]],
        disk: Callable[[], list[float]], shape: Callable[[], object],
    ) -> None:  # fmt: skip
        self._shape = shape
        self._file = HistoryFile(files, folder, 4 * _POINTS * _WIDTH)
        self.bytes_max = bytes_max
        self.seconds_max = min(SECONDS_TRACKS_MAX, bytes_max // 4 // (SPANS["hour"][1] // _POINTS * _CHUNK_BYTES))
        self._probes = probes
        self._disk = disk
        self.tracks: dict[Key, Track] = {}
        self.runs: list[list[int]] = []  # [first second, last second] in which this was kept
        self.used_bytes = 0
        self._quietest: list[Track] = []  # who gives up chunks; the quietest last
        self._to_sweep: list[tuple[Key, Track]] = []
        self._a_second, self._sweep_left = SWEPT_AT_LEAST, 0
        self._swept = [0.0] * _WIDTH  # of topics, since the last second was told
        self._minute = 0
        self._listed: object = None
        self._listing: Iterator[None] | None = None
        self._lists = self._list_from_ms = self._sort_from_ms = 0
        self._lag = 0.0  # messages that are not finished, of all groups and channels
        self._oldest = [0.0, 0.0, 0.0]  # seconds, of the busiest; of others in this minute; in the one before
        self._begun = False
        self._next_ms = 0
        self._saved_ms = 0
        self._mono_ms = self._now_s = 0
        self._saving = False

    # -- time ----------------------------------------------------------------------------------------------------

    def tick(self, mono_ms: int, now_ms: int) -> int:
        """Measure if it is time; when it will be again."""
        if not self.bytes_max:
            return mono_ms + 3_600_000
        if mono_ms >= self._next_ms:
            self._next_ms = mono_ms + 1_000 - now_ms % 1_000
            self._second(now_ms // 1_000, mono_ms)
        elif self._listing is not None:
            self._list_on()
        elif self._sweep_left:
            self._sweep_some(self._swept)
        rests = self._listing is None and not self._sweep_left
        return self._next_ms if rests else min(self._next_ms, mono_ms + PIECE_MS)

    def _second(self, now_s: int, mono_ms: int) -> None:
        passed = (mono_ms - self._mono_ms) // 1_000
        if not self.runs or not self._begun or abs(now_s - self._now_s - passed) > 2 or passed > _POINTS:
            for run in self.runs:  # the clock was set back
                run[:] = min(run[0], now_s), min(run[1], now_s)
            self.runs = [*[run for run in self.runs if run[1] > run[0]][-RUNS_MAX:], [now_s, now_s]]
            for track in self.tracks.values():
                track.no_later_than(now_s)
            if not self._begun:
                self._saved_ms = mono_ms
        if now_s == self._now_s and self._begun:
            return
        self._now_s, self._mono_ms = now_s, mono_ms
        self.runs[-1][1] = now_s
        listed = self._shape(), now_s // 60
        if self._listing is None and listed != self._listed and mono_ms >= self._list_from_ms:
            self._listed, self._listing = listed, self._list()
            self._list_on()
        if now_s // 60 != self._minute:
            self._rank()
            self._minute = now_s // 60
        self._begun = True
        totals, self._swept = self._swept, [0.0] * _WIDTH
        self._oldest[0] = 0.0
        for key, track in self.tracks.items():
            if track.seconds is not None and track.probe is not None:
                self._measure(key, track, now_s, totals)
        self._sweep_left = self._a_second
        self._sweep_some(totals)
        self._put_own(now_s, totals)

    def _measure(self, key: Key, track: Track, now_s: int, totals: list[float]) -> None:
        """A second of one of the busiest."""
        assert track.probe is not None
        assert track.seconds is not None
        counts = track.probe.counts()
        values = _rates(counts, track.last, max(1, now_s - track.at_s))
        if not counts[3]:
            track.lag_s = 0.0
        elif not 0 <= now_s - track.lag_at_s < LAG_EVERY_S or not track.lag_s:
            track.lag_s = _seconds(track.probe.lag_ms())
            track.lag_at_s = now_s
        elif (
            track.last is not None and counts[1] == track.last[1]
        ):  # nothing was finished: the oldest is still that one
            track.lag_s += now_s - track.at_s
        self._note_lag(key, track, counts[3])
        values += counts[3], track.lag_s
        for point in range(max(track.at_s + 1, now_s - _POINTS), now_s + 1):
            self._take(track.seconds.put(point, values))
        track.last, track.at_s = counts, now_s
        _add(totals, key, values)

    def _sweep_some(self, totals: list[float]) -> None:
        """Look at some more of those that are looked at in this second; `totals`: of the second that is told next."""
        some = min(SWEPT_AT_ONCE, self._sweep_left)
        sweep, self._to_sweep = self._to_sweep[:some], self._to_sweep[some:]
        self._sweep_left = min(self._sweep_left - some, len(self._to_sweep))
        for key, track in sweep:
            if track.probe is not None:
                self._sweep(key, track, self._now_s, totals)

    def _sweep(self, key: Key, track: Track, now_s: int, totals: list[float]) -> None:
        """A minute of anybody."""
        assert track.probe is not None
        counts = track.probe.counts()
        values = _rates(counts, track.base, max(1, now_s - track.base_s))
        if track.seconds is None:
            track.lag_s = _seconds(track.probe.lag_ms()) if counts[3] else 0.0
            # What came within the minute is told in this second, so that the sum over time is right.
            if now_s - track.base_s >= SWEPT_AFTER_S:
                _add(totals, key, [value * min(60, now_s - track.base_s) for value in values])
        self._note_lag(key, track, counts[3])
        track.busy = values[0] + values[1]
        values += counts[3], track.lag_s
        self._take(track.minutes.put(now_s // 60, values))
        if now_s - track.base_s >= SWEPT_AFTER_S:  # else it is new: its first minute goes on
            track.base, track.base_s = counts, now_s

    def _put_own(self, now_s: int, totals: list[float]) -> None:
        """The broker as a whole, and its disk: both by second and, as the mean and the last, by minute."""
        disk = self._disk()
        totals[3], totals[4] = self._lag, max(self._oldest)
        for key, values in ((BROKER, totals), (DISK, disk)):
            track = self.tracks.get(key)
            if track is None:
                track = self.tracks[key] = self._new_track(now_s)
                track.busy = math.inf
            if track.seconds is None:
                track.seconds = self._new_seconds(now_s)
            self._take(track.seconds.put(now_s, values))
            minute = now_s // 60
            number, at = divmod(minute, _POINTS)
            chunk, done = track.minutes.chunks.get(number), now_s % 60
            if key is BROKER:
                before = [0.0] * RATES if chunk is None else list(chunk[at * _WIDTH : at * _WIDTH + RATES])
                mean = [(b * done + v) / (done + 1) for b, v in zip(before, values[:RATES], strict=True)]
                values = mean + values[RATES:]
            self._take(track.minutes.put(minute, values))

    def _note_lag(self, key: Key, track: Track, lag: float) -> None:
        """Sums over all groups and channels are kept as they change."""
        if key.kind != "topic":
            self._lag += lag - track.lag
        track.lag = lag
        if not math.isnan(track.lag_s):
            place = 0 if track.seconds is not None else 1
            self._oldest[place] = max(self._oldest[place], track.lag_s)

    # -- who there is --------------------------------------------------------------------------------------------

    def _list_on(self) -> None:
        """Look at some more of what there is."""
        assert self._listing is not None
        listing, self._listing = self._listing, None
        for _ in listing:
            self._listing = listing
            return

    def _list(self) -> Iterator[None]:
        """Take in what is new, and forget what is gone: a piece at a time, for there may be a hundred thousand."""
        self._lists, steps = self._lists + 1, 0
        room = self.seconds_max + 2 - sum(track.seconds is not None for track in self.tracks.values())
        for steps, found in enumerate(self._probes(), 1):
            if found is not None:
                track = self._take_in(*found)
                if track is not None and track.seconds is None and room > 0:
                    track.seconds = self._new_seconds(self._now_s)
                    room -= 1
            if steps % LISTED_AT_ONCE == 0:
                yield
        for key, gone in [item for item in self.tracks.items() if item[1].listed < self._lists]:
            if key in (BROKER, DISK):
                continue
            del self.tracks[key]
            gone.probe = None  # a sweep may still hold the track, and the probe its topic's files
            self._note_lag(key, gone, 0.0)
            for series in filter(None, (gone.minutes, gone.seconds)):
                self._take(-len(series.chunks))
                series.chunks.clear()  # it may still stand among the quietest, who are asked for chunks
            self.used_bytes -= _TRACK_BYTES
        self._list_from_ms = self._mono_ms + 1_000 * steps // LISTED_A_SECOND

    def _take_in(self, key: Key, probe: Probe) -> Track | None:
        """The track of something that there is; None where there is no room for one more."""
        track = self.tracks.get(key)
        if track is None:
            if self.used_bytes + _TRACK_BYTES > self.bytes_max and not self._make_room(_TRACK_BYTES):
                return None
            track = self.tracks[key] = self._new_track(self._now_s)
            track.last = track.base = (0.0, 0.0, 0.0, 0.0) if self._lists > 1 else probe.counts()
            self._to_sweep.append((key, track))
        elif track.probe is None:  # of the file
            track.last = track.base = probe.counts()
            track.at_s = track.base_s = self._now_s
            self._to_sweep.append((key, track))
        track.probe, track.listed = probe, self._lists
        return track

    def _new_track(self, now_s: int) -> Track:
        track = Track()
        track.at_s = track.base_s = max(0, now_s - 1)
        track.minutes.since = now_s // 60
        self.used_bytes += _TRACK_BYTES
        return track

    @staticmethod
    def _new_seconds(now_s: int) -> Series:
        series = Series(*SPANS["hour"])
        series.since = now_s
        return series

    def _rank(self) -> None:
        """A minute ends: the busiest are those with seconds; all are to be swept."""
        self._oldest[1:] = 0.0, self._oldest[1]
        left = self.seconds_max + 2
        floor = min(heapq.nlargest(left, [track.busy for track in self.tracks.values()]), default=0.0)
        others: list[tuple[Key, Track]] = []
        for item in self.tracks.items():
            if item[1].busy > floor:
                left -= self._rank_one(*item, True)
            else:
                others.append(item)
        for item in others:  # of those who are as busy as the last one some have seconds
            left -= self._rank_one(*item, left > 0 and item[1].busy == floor)
        self._quietest, self._sort_from_ms = [], 0
        self._to_sweep = [item for item in self.tracks.items() if item[0] not in (BROKER, DISK)]
        self._a_second = max(SWEPT_AT_LEAST, -(-len(self._to_sweep) // 50))

    def _rank_one(self, key: Key, track: Track, busy: bool) -> bool:
        """Give one its seconds, or take them away; whether it has a place among the busiest."""
        if key not in (BROKER, DISK):
            if busy and track.seconds is None:
                track.seconds = self._new_seconds(self._now_s + 1)
                track.last, track.at_s = track.base, track.base_s
            elif not busy and track.seconds is not None:
                self._take(-len(track.seconds.chunks))
                track.seconds = None
        return busy

    # -- bytes ---------------------------------------------------------------------------------------------------

    def _take(self, chunks: int) -> None:
        """So many chunks more are there, or fewer; where there is no room the quietest lose their oldest."""
        self.used_bytes += chunks * _CHUNK_BYTES
        if chunks > 0 and self.used_bytes > self.bytes_max:
            self._make_room(0)

    def _make_room(self, need: int) -> bool:
        """Give up chunks until `need` bytes are free; False when there are none to give up."""
        if not self._quietest and self._mono_ms >= self._sort_from_ms:
            self._sort_from_ms = self._mono_ms + SORTED_EVERY_MS
            self._quietest = sorted(self.tracks.values(), key=lambda track: -track.busy)
        quietest = self._quietest
        while self.used_bytes + need > self.bytes_max:
            while quietest and not quietest[-1].minutes.chunks:
                loser = quietest.pop()
                if loser.seconds is not None and loser.seconds.chunks:
                    self.used_bytes -= len(loser.seconds.chunks) * _CHUNK_BYTES
                    loser.seconds = None
            if not quietest:
                break
            quietest[-1].minutes.drop_oldest()
            self.used_bytes -= _CHUNK_BYTES
        return self.used_bytes + need <= self.bytes_max

    # -- questions -----------------------------------------------------------------------------------------------

    def read(self, key: Key, span: str, points: int) -> dict[str, object] | None:
        """The last points of one thing, None where nothing is known; None when it is not tracked."""
        track = self.tracks.get(key)
        if track is None:
            return None
        step, count = SPANS[span]
        series = track.seconds if step == 1 else track.minutes
        end = self._now_s // step + 1
        if series is None:  # by minute there is something
            return {"since": (end - min(points, count)) * step, "step": step} | {name: [] for name in FIELDS}
        first = end - min(points, count)
        known = self._known(first, end, step)
        names = DISK_FIELDS if key == DISK else FIELDS
        told: dict[str, object] = {"since": first * step, "step": step}
        for field, name in enumerate(names):
            values = series.points(field, first, end)
            told[name] = [_rounded(value) if up else None for value, up in zip(values, known, strict=True)]
        return told

    def _known(self, first: int, end: int, step: int) -> bytearray:
        """For each point whether the broker was there."""
        known = bytearray(end - first)
        for begin_s, end_s in self.runs:
            low, high = max(first, begin_s // step), min(end, end_s // step + 1)
            if low < high:
                known[low - first : high - first] = b"\x01" * (high - low)
        return known

    def latest(self, key: Key) -> tuple[float | None, ...]:
        """The newest values of `FIELDS`, rates over `LATEST_S`; of one that is not among the busiest those of the last
        minute. None where nothing is known.
        """
        track = self.tracks.get(key)
        if track is None:
            return (None,) * _WIDTH
        if (series := track.seconds) is None:
            minute = self._now_s // 60
            series, end, back = track.minutes, minute + track.minutes.has(minute), 1
        else:
            end, back = self._now_s + 1, LATEST_S
        if not series.chunks and end - back >= series.since:  # who is quiet is told at once: they are many
            return _NOTHING
        found: list[float | None] = []
        for field in range(_WIDTH):
            values = [v for v in series.points(field, end - (back if field < RATES else 1), end) if v is not None]
            found.append(_rounded(sum(values) / len(values)) if values else None)
        return tuple(found)

    # -- the file ------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Read the file."""
        saved = self._file.open(2 * self.bytes_max + (1 << 20)) if self.bytes_max else None
        if saved is None:
            return
        self.runs = [list(run) for run in saved.runs][-RUNS_MAX:]
        for one in saved.tracks:
            if self.used_bytes + _TRACK_BYTES > self.bytes_max:
                break
            track = self._new_track(0)
            track.minutes.since = one.minutes_since
            track.minutes.chunks = self._chunks(one.minutes)
            if one.seconds:
                track.seconds = self._new_seconds(one.seconds_since)
                track.seconds.chunks = self._chunks(one.seconds)
            self.tracks[Key(*one.key)] = track

    def _chunks(self, told: dict[int, bytes]) -> Chunks:
        found = {}
        for number, data in sorted(told.items()):
            if self.used_bytes + _CHUNK_BYTES > self.bytes_max:
                break
            found[number] = chunk_of(data)
            self.used_bytes += _CHUNK_BYTES
        return found

    def take_job(self, mono_ms: int) -> Job | None:
        """Writing the file, when it is time."""
        wait_ms = min(SAVED_AT_LEAST_MS, SAVED_EVERY_MS * (1 + self.used_bytes // SAVED_BYTES))
        if not self._begun or self._saving or mono_ms < self._saved_ms + wait_ms:
            return None
        parts = self._parts()
        self._saving = True

        def finish(error: BaseException | None, mono_ms: int) -> None:
            self._saving = False
            self._saved_ms = mono_ms
            if error is not None:
                log.error("history not written error=%s", error)

        return Job("history", lambda: self._write(parts), finish)

    def close(self) -> None:
        """A clean stop: write the file."""
        if self._begun:
            try:
                self._write(self._parts())
            except StoreError as error:
                log.error("history not written error=%s", error)

    def _parts(self) -> Parts:
        """What a worker may read while this goes on: only the newest chunks still change, one number at a time."""
        runs = [(run[0], run[1]) for run in self.runs]
        return runs, [
            (key, track, dict(track.minutes.chunks), dict(track.seconds.chunks) if track.seconds else {})
            for key, track in self.tracks.items()
        ]

    def _write(self, parts: Parts) -> None:
        runs, tracks = parts
        saved = [
            SavedTrack(
                (key.kind, key.topic, key.name), track.minutes.since, raw(minutes),
                track.seconds.since if track.seconds else 0, raw(seconds),
            )
            for key, track, minutes, seconds in tracks
        ]  # fmt: skip
        self._file.write(Saved(runs, saved))


def _rates(counts: Counts, before: Counts | None, seconds: int) -> list[float]:
    """How many a second were added; a counter that began anew has added nothing."""
    if before is None:
        return [0.0] * RATES
    return [
        max(0.0, counts[0] - before[0]) / seconds,
        max(0.0, counts[1] - before[1]) / seconds,
        max(0.0, counts[2] - before[2]) / seconds,
    ]


def _add(totals: list[float], key: Key, values: list[float]) -> None:
    """What a topic took and gave is the broker's, too."""
    if key.kind == "topic":
        for field in range(RATES):
            totals[field] += values[field]


def _seconds(ms: float | None) -> float:
    return math.nan if ms is None else ms / 1_000


def _rounded(value: float | None) -> float | None:
    """As people read it: five digits."""
    return value if value is None or value == int(value) else float(f"{value:.5g}")
