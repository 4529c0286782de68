"""Crash images: what a disk may hold after a power cut, any of it, not only what this disk happened to write.

A broker runs under load on a file system whose disk writes everything down (`blocklog`), while its clients tell the same
disk what they were answered. Afterwards any number of images is made of that one run: all writes before the last flush
below a cut, each 4 KiB page of the rest with probability ½. An image is mounted, the broker is started on it, and the
oracles of the power cuts hold what the clients knew at the last mark below the cut against what is there.

    seed of an image ─▶ its cut and its pages; journal and tape are kept when one fails, so that it can be made again
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import itertools
import json
import mmap
import os
import pickle
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from chaos import victim as senders
from chaos.blocklog import FLUSH, HEAD, MARK, WRITE
from chaos.campaign import Tell, _cut, _mount, can_cut_power
from chaos.jobs import Load, counts, drain, prepare
from chaos.queuecuts import WINDOW_S, CutRecorder, LogLoad
from chaos.queuekills import QUIET_S, SETTINGS, Objection
from chaos.slowly import SIDES
from chaos.victim import SRC, Victim
from fronts.raw_peer import RawPeer
from penstock.log.verify import verify

MIB = 384
PAGE = 4096
IMAGES_PER_RUN = 25
LEVELS = ("disk", "os")
SLOW_MS = {"disk": (0, 40), "os": (0, 300, 800)}
NEEDED = 2 << 30
TORN = {  # what a power cut leaves and a start sets aside; that nothing is lost with it the oracles see
    "the torn end of the log",
    "behind the end of the log",
    "not an index file that can be read",
    "an index that does not fit the log",
    "an index that no checkpoint of ours vouches for: it is made again from the log",
    "messages without sums: a power cut came before they were flushed",
    "another queue's segment, under a new name that was never flushed",
}
MKFS = ("-qF", "-b", "4096", "-N", "4096", "-J", "size=4", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0")


@dataclass(frozen=True)
class Kind:
    """A load. `sends`: producers of the log, and readers of what is durable; `log`: which of `LogLoad`; `jobs`: NSQ."""

    sends: bool = False
    log: tuple[str, ...] = ()
    jobs: bool = False
    gives_back: float = 0.08
    delays_ms: tuple[int, ...] = (1, 50, 300, 1500)


KINDS = {
    "log": Kind(sends=True, log=("_later", "_deal", "_once", "_many")),
    "queues": Kind(jobs=True),
    "schedule": Kind(log=("_later", "_later"), jobs=True, gives_back=0.4, delays_ms=(1, 20, 100, 400, 800, 2_000)),
}


@functools.cache
def can_make_images() -> str | None:
    """None where file systems of our own can be mounted, else the reason why not."""
    reason = can_cut_power()
    if reason is not None:
        return reason
    if not os.path.exists("/dev/fuse"):
        return "no /dev/fuse"
    if shutil.which("losetup") is None:
        return "no losetup"
    try:
        import fuse  # noqa: F401
    except ImportError:
        return "the Python package fusepy is not installed"
    except OSError as error:  # that is how it says so
        return f"no libfuse 2 (Debian: libfuse2): {error}"
    try:
        with tempfile.TemporaryDirectory() as name, journalled_disk(Path(name), 16):
            pass
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no FUSE mount: {error}"
    return None


# -- the disk that writes everything down ------------------------------------------------------------------------------


@contextlib.contextmanager
def journalled_disk(folder: Path, mib: int = MIB) -> Iterator[tuple[Path, Path]]:
    """A mounted ext4 on such a disk, and the file for marks; the journal is `folder`/journal."""
    blocks, at = folder / "blocks", folder / "run"
    for path in (blocks, at):
        path.mkdir()
    with contextlib.ExitStack() as stack:
        command = [sys.executable, "-m", "chaos.blocklog", str(blocks), str(mib), str(folder / "journal")]
        with (folder / "blocklog.err").open("w") as errors:
            server = subprocess.Popen(
                command, stderr=errors, env={**os.environ, "PYTHONPATH": f"{SRC.parent / 'tests'}"}
            )
        stack.callback(_end, server)
        deadline = time.monotonic() + 30
        while not (blocks / "disk").exists():
            if server.poll() is not None or time.monotonic() > deadline:
                raise OSError((folder / "blocklog.err").read_text().strip()[-300:] or "it does not answer")
            time.sleep(0.01)
        stack.callback(_run, "umount", blocks)
        _run("mkfs.ext4", *MKFS, blocks / "disk", check=True)
        loop = _run("losetup", "-f", "--show", blocks / "disk", check=True).strip()
        stack.callback(_run, "losetup", "-d", loop)
        _run("mount", loop, at, check=True)
        stack.callback(_run, "umount", at)
        yield at, blocks / "mark"


def _run(*command: object, check: bool = False) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=check)
    return done.stdout


def _end(server: subprocess.Popen[bytes]) -> None:
    try:
        server.wait(30)  # it ends when its file system is unmounted
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait(30)


class Journal:
    """What was written to the disk, in order, and what the clients said meanwhile."""

    def __init__(self, path: Path) -> None:
        self.kinds: list[int] = []
        self.at: list[tuple[int, int, int]] = []  # offset on the disk, size, position in the journal
        self.moments: list[float] = []
        self.flushes: list[int] = []  # numbers of records
        self.marks: list[tuple[int, int]] = []  # number of the record, events told
        self.blocks: list[int] = []  # numbers of writes and flushes behind the first mark: where a cut may be
        with path.open("rb") as file:
            self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        position, told = 0, 0
        while position + HEAD.size <= len(self.data):
            kind, offset, size, moment = HEAD.unpack_from(self.data, position)
            position += HEAD.size
            number = len(self.kinds)
            if kind == MARK:
                told = max(told, struct.unpack_from("<Q", self.data, position)[0])
                self.marks.append((number, told))
            elif self.marks:
                self.blocks.append(number)
            if kind == FLUSH:
                self.flushes.append(number)
            self.kinds.append(kind)
            self.at.append((offset, size, position))
            self.moments.append(moment)
            position += size

    def told(self, cut: int) -> int:
        """How many events the clients had told of when the disk had got the records below `cut`."""
        return self.marks[bisect.bisect_left(self.marks, (cut, 0)) - 1][1]

    def last_flush(self, cut: int) -> int:
        """The number of records that a flush below `cut` covers."""
        at = bisect.bisect_left(self.flushes, cut)
        return self.flushes[at - 1] + 1 if at else 0

    def write(self, fd: int, first: int, end: int, some: random.Random | None = None) -> tuple[int, int]:
        """Write these records, or of each page one half of them. How many pages of how many."""
        written = pages = 0
        for number in range(first, end):
            if self.kinds[number] != WRITE:
                continue
            offset, size, position = self.at[number]
            if some is None:
                os.pwrite(fd, self.data[position : position + size], offset)
                continue
            at = 0
            while at < size:
                step = min(size - at, PAGE - (offset + at) % PAGE)
                pages += 1
                if some.random() < 0.5:
                    written += 1
                    os.pwrite(fd, self.data[position + at : position + at + step], offset + at)
                at += step
        return written, pages


class Cut(NamedTuple):
    seed: int
    at: int  # a number of a record


class Images:
    """Images of one run, cheapest when their cuts ascend: the flushed part is written once."""

    def __init__(self, journal: Journal, folder: Path, mib: int = MIB) -> None:
        self.journal, self.folder, self.size = journal, folder, mib << 20
        self._begin()

    def _begin(self) -> None:
        self.done = 0
        with (self.folder / "flushed").open("wb") as file:
            file.truncate(self.size)

    def cut(self, seed: int) -> Cut:
        """The cut of the image with this seed."""
        return Cut(seed, random.Random(seed).choice(self.journal.blocks))

    def make(self, cut: Cut) -> tuple[Path, str]:
        """The image, and what is in it."""
        journal, flushed = self.journal, self.folder / "flushed"
        sure = journal.last_flush(cut.at)
        if sure < self.done:
            self._begin()
        with flushed.open("r+b") as file:
            journal.write(file.fileno(), self.done, sure)
        self.done = sure
        image = self.folder / "image"
        image.unlink(missing_ok=True)  # a new file: mount goes on with the device, and the cache, of one it has seen
        _run("cp", "--sparse=always", flushed, image, check=True)
        with image.open("r+b") as file:
            written, pages = journal.write(file.fileno(), sure, cut.at, random.Random(~cut.seed))
        return image, f"record {cut.at:,} of {len(journal.kinds):,}, {written} of {pages} unflushed pages"


# -- what the clients knew ---------------------------------------------------------------------------------------------


class Tape:
    """What the recorders were told, in order, with the moment. Each claim of theirs is marked on the disk."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str, str, tuple[Any, ...], Any]] = []
        self.fd = -1

    def mark(self) -> None:
        os.pwrite(self.fd, struct.pack("<Q", len(self.events)), 0)

    def listen(self, recorder: Any, who: str, claims: str, others: str) -> None:
        """Write these methods' calls down: `claims` stand for an answer, `others` come before a question."""
        for name in (*claims.split(), *others.split()):
            setattr(recorder, name, self._method(recorder, who, name, name in claims.split()))

    def _method(self, recorder: Any, who: str, name: str, claim: bool) -> Callable[..., Any]:
        method = getattr(recorder, name)

        def say(*words: Any) -> Any:
            result = method(*words)
            self.events.append((time.monotonic(), who, name, words, result))
            if claim:
                with contextlib.suppress(OSError):
                    self.mark()
            return result

        return say


ASKED = {"publish", "tell", "postpone", "send"}  # said before the broker can have heard of it


class ImageRecorder(CutRecorder):
    """Knows also of batches that nobody has seen yet: answered or not, each comes whole or not at all."""

    def unseen(self) -> list[tuple[bytes, list[bytes]]]:
        return [
            (channel, batch)
            for channel, seen in self.seen.items()
            for batch in self.batches
            if not any(body in seen for body in batch)
        ]


class Known:
    """What the clients of a run know, now or at a mark."""

    def __init__(self, kind: Kind, chance: random.Random, events: Path) -> None:
        self.sends, self.log, self.jobs = senders.Recorder(), LogLoad(chance), ImageRecorder(events)
        self.log.works = kind.log
        self.log.pause_s = 0.005
        self.log.delays_ms = kind.delays_ms

    def on(self, tape: Tape) -> None:
        tape.listen(self.sends, "sends", "answered read ends", "send")
        tape.listen(self.log, "log", "answered", "")
        tape.listen(self.jobs, "jobs", "answered effective received", "publish tell postpone")

    def replay(self, tape: Tape, told: int, moment: float) -> None:
        """Say again what was said up to a mark; what was asked until a moment may have happened, too."""
        now = 0.0
        for recorder in (self.sends, self.log, self.jobs):
            recorder.now = lambda: now
        self.jobs.line = lambda *words: None  # type: ignore[method-assign]
        self.jobs.life = 1
        postponed: dict[int, list[float]] = {}
        for number, (at, who, name, words, result) in enumerate(tape.events):
            if number >= told and (name not in ASKED or at > moment):
                continue
            now = at
            if name == "effective":
                channel, finished, requeued = words
                words = (channel, finished, [postponed[id(one)] for one in requeued])
            said = getattr(getattr(self, who), name)(*words)
            if name == "postpone":
                postponed[id(result)] = said
        for recorder in (self.sends, self.log, self.jobs):
            recorder.now = time.monotonic
        del self.jobs.line
        assert not self.jobs.fault, self.jobs.fault


# -- one run -----------------------------------------------------------------------------------------------------------


class Run:
    """A broker's life on such a disk, and the images of it."""

    def __init__(self, kind: str, level: str, seed: int, folder: Path) -> None:
        self.kind, self.level, self.seed, self.folder = kind, level, seed, folder
        self.tape = Tape()

    def record(self, seconds: float, planted: dict[str, Any]) -> None:
        """Let clients work for so long."""
        chance = random.Random(self.seed)
        kind = KINDS[self.kind]
        known = Known(kind, chance, self.folder / "events")
        if not planted:
            planted = {
                "program": ("-m", "chaos.slowly", chance.choice(list(SIDES)), str(chance.choice(SLOW_MS[self.level])))
            }
        with journalled_disk(self.folder) as (at, mark), contextlib.ExitStack() as stack:
            self.tape.fd = os.open(mark, os.O_WRONLY)
            stack.callback(os.close, self.tape.fd)
            victim = stack.enter_context(self._victim(at, "log", planted))
            known.jobs.life = 1
            victim.start()
            prepare(victim.addresses["http"])
            with RawPeer(victim.address) as peer:
                for topic in LogLoad.topics:
                    assert peer.send(topic, b"first").code == 0
            known.on(self.tape)
            self.tape.mark()
            loads: list[Any] = []
            if kind.sends:
                loads.append(senders.Load(victim, known.sends, self.seed, pause_s=0.004))
            if kind.jobs:
                loads.append(Load(victim.addresses["nsq"], known.jobs, chance, pause_s=0.006))
                loads[-1].behind_max, loads[-1].gives_back, loads[-1].delays_ms = 400, kind.gives_back, kind.delays_ms
            for load in loads:
                load.start()
            known.log.start(victim.address)
            time.sleep(seconds)  # how long it is written to
            known.jobs.is_cut = True
            with contextlib.suppress(OSError):
                _cut(at)
            victim.end()
            for load in (*loads, known.log):
                load.join()
        known.jobs.lines.close()
        if known.jobs.fault:
            raise Objection(known.jobs.fault)

    def _victim(self, at: Path, log: str, planted: dict[str, Any]) -> Victim:
        return Victim(at / "data", self.folder / log, self.level, settings=SETTINGS, **planted)

    def save(self) -> None:
        """Everything an image can be made of again."""
        with (self.folder / "tape").open("wb") as file:
            pickle.dump(self.tape.events, file)
        about = {"kind": self.kind, "level": self.level, "seed": self.seed, "mib": MIB}
        (self.folder / "run.json").write_text(json.dumps(about))

    @classmethod
    def load(cls, folder: Path, work: Path) -> Run:
        """A run that was saved; its images are made in `work`."""
        about = json.loads((folder / "run.json").read_text())
        run = cls(about["kind"], about["level"], about["seed"], work)
        with (folder / "tape").open("rb") as file:
            run.tape.events = pickle.load(file)
        shutil.copy(folder / "journal", work / "journal")
        return run

    def judge(self, journal: Journal, cut: Cut, image: Path) -> str:
        """Start a broker on this image and hold what is there against what was known. AssertionError, or a summary."""
        chance = random.Random(cut.seed)
        known = Known(KINDS[self.kind], chance, Path(os.devnull))
        known.replay(self.tape, journal.told(cut.at), journal.moments[cut.at])
        fresh = known.jobs.unseen()
        known.jobs.power_cut(self.level)
        at = self.folder / "mounted"
        at.mkdir(exist_ok=True)
        (self.folder / "checked").unlink(missing_ok=True)
        _mount(image, at)
        try:
            found = [one for one in verify(at / "data").findings if one.level == "damage"]
            assert not found, f"offline, before the start: {found[:3]}"
            with self._victim(at, "checked", {}) as victim:
                victim.start()
                if chance.random() < 0.25:  # cut off again, just when it has put things in order
                    victim.end(signal.SIGKILL)
                    victim.start()
                there = self._ask(victim, known, fresh)
                victim.end(signal.SIGTERM)
            report = verify(at / "data")
            assert report.ok, f"offline, after a clean stop: {report.findings[:3]}"
            if (lost := at / "data" / "lost+found" / "manifest.jsonl").exists():
                strange = [line for line in lost.read_text().splitlines() if json.loads(line)["why"] not in TORN]
                assert not strange, f"set aside: {strange[:3]}"
        finally:
            known.jobs.lines.close()
            _run("umount", at, check=True)
        return there

    def _ask(self, victim: Victim, known: Known, fresh: list[tuple[bytes, list[bytes]]]) -> str:
        kind, jobs = KINDS[self.kind], known.jobs
        there = []
        if kind.sends:
            bound = None if self.level == "disk" else known.sends.last_answered - WINDOW_S
            there.append(senders.check(victim.address, known.sends, bound))
        if kind.log:
            said = known.log.check(victim.address, self.level)
            assert not said, f"L: {said}"
            there.append(len(known.log.acked))
        if kind.jobs:
            jobs.life = 2
            deadline = time.monotonic() + QUIET_S
            while (said := jobs.judge_counts(counts(victim.addresses["http"]))) and time.monotonic() < deadline:
                time.sleep(0.02)
            drain(victim.addresses["nsq"], victim.addresses["http"], jobs)
            for channel, batch in fresh:
                came = sum(body in jobs.seen[channel] for body in batch)
                if came not in (0, len(batch)):
                    jobs.object("Q7", f"channel {channel!r} got {came} of the {len(batch)} messages of one MPUB")
            if jobs.fault or said:
                raise Objection("; ".join(filter(None, (said and f"Q6: {said}", jobs.fault))))
            there.append(len(jobs.acked))
        return f"{' and '.join(f'{n:,}' for n in there)} there"


class Shown(Exception):
    """An image of a broker with a planted defect shows it."""


# -- campaigns ---------------------------------------------------------------------------------------------------------


def crash_images(
    count: int, tell: Tell, *, kind: str, level: str, seed: int = 0, seconds: float = 5, done: int = 0, of: int = 0,
    planted: dict[str, Any] | None = None,
) -> int:  # fmt: skip
    """So many images of one run; `done` of `of` were made before. Raises AssertionError. How many were judged."""
    began = time.monotonic()
    of = of or count
    with _work() as folder:
        run = Run(kind, level, seed, folder)
        run.record(seconds, planted or {})
        journal = Journal(folder / "journal")
        images = Images(journal, folder)
        cuts = sorted((images.cut(seed * 10_000 + number) for number in range(count)), key=lambda cut: cut.at)
        for number, cut in enumerate(cuts):
            image, what = images.make(cut)
            try:
                there = run.judge(journal, cut, image)
            except Exception as error:
                if planted:
                    raise Shown(f"{what}: {error}") from error
                run.save()
                kept = Path(tempfile.mkdtemp(prefix=f"penstock-chaos-failed-{cut.seed}-"))
                for part in ("events", "log", "checked", "journal", "tape", "run.json"):
                    _run("cp", "--sparse=always", folder / part, kept)
                tell(
                    f"FAILED: {kind}, level {level}, image {cut.seed}, {what}: {error}\n"
                    f"the same image again: ./run chaos --only images --again {kept} --seed {cut.seed}"
                )
                raise
            if number % 5 == 4 or number == count - 1:
                tell(
                    f"image {done + number + 1}/{of}: {kind} at level {level}, {what}: {there}; "
                    f"{(time.monotonic() - began) / (number + 1):.1f} s each"
                )
    return count


@contextlib.contextmanager
def _work() -> Iterator[Path]:
    """A folder for disks, in memory where there is room."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > NEEDED and os.access(memory, os.W_OK)
    with tempfile.TemporaryDirectory(prefix="penstock-chaos-", dir=memory if roomy else None) as name:
        yield Path(name)


def all_images(total: int, tell: Tell, *, seed: int = 0, kinds: tuple[str, ...] = tuple(KINDS)) -> int:
    """So many images, of log, queues and schedule in turn, at both levels."""
    done = 0
    for number, (level, kind) in enumerate(itertools.cycle(itertools.product(LEVELS, kinds))):
        count = min(IMAGES_PER_RUN, total - done)
        if count <= 0:
            return done
        done += crash_images(count, tell, kind=kind, level=level, seed=seed + number, done=done, of=total)
    return done


def again(kept: Path, seed: int, tell: Tell) -> None:
    """Make an image of a run that was kept, and judge it."""
    with _work() as folder:
        run = Run.load(kept, folder)
        journal = Journal(folder / "journal")
        images = Images(journal, folder)
        cut = images.cut(seed)
        image, what = images.make(cut)
        try:
            there = run.judge(journal, cut, image)
        finally:
            _run("cp", folder / "checked", kept)
        tell(f"image {seed}, {run.kind} at level {run.level}, {what}: {there}")


PLANTED = {  # a defect of `defects`, where it shows
    "answered before flush": ("log", "disk"),
    "over before its copy": ("schedule", "os"),
}


def find_in_images(defect: str, *, seed: int = 0, count: int = 40, seconds: float = 4) -> tuple[str, float]:
    """Images of a broker with a planted defect: the first objection, and the seconds that took."""
    began = time.monotonic()
    kind, level = PLANTED[defect]
    planted = {"program": ("-m", "chaos.defects", defect), "environment": {"PENSTOCK_PURE": "1"}}
    try:
        crash_images(count, lambda text: None, kind=kind, level=level, seed=seed, seconds=seconds, planted=planted)
    except Shown as shown:
        return str(shown), time.monotonic() - began
    raise AssertionError(f"no image shows {defect}")
