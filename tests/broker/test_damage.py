"""Every file of a data folder, damaged in every way, and the start after it: what may be lost, held against docs/damage.md.

The folder is made by a broker with all kinds of content, killed or stopped cleanly. After the damage a new broker starts
without an error; every message that was acknowledged is there but, at most, the ones whose own bytes were changed.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from broker.queueside import Reader, Side
from penstock.clock import FakeClock
from penstock.log.reading import ReadResult
from penstock.wire.record import iter_records

DOCS = Path(__file__).parents[2] / "docs" / "damage.md"
HOWS = ("one bit", "zeros", "cut", "empty", "gone", "a folder")
SETTINGS = {"mapped_file_size_commit_log": 1 << 16, "queue_segment_bytes": 1 << 14}


@dataclass
class Held:
    """What was acknowledged, by where it must be found."""

    log: dict[tuple[bytes, int], list[bytes]] = field(default_factory=dict)
    channels: dict[tuple[bytes, bytes], set[bytes]] = field(default_factory=dict)  # not finished there
    finished: dict[tuple[bytes, bytes], set[bytes]] = field(default_factory=dict)
    deferred: set[bytes] = field(default_factory=set)


def fill(side: Side) -> Held:
    """Log topics with keys and delays, groups with offsets, queue topics with channels that have finished some."""
    held, broker, queueing = Held(), side.broker, side.queueing
    for name, queues, count in ((b"T", 2, 60), (b"U", 1, 30)):
        topic = broker.topics.create(name, queues, queues)
        for n in range(count):
            body = b"%s-%d " % (name, n) + b"x" * (n * 7 % 300)
            properties = {"KEYS": f"k{n}", "TAGS": "t", "PSEQ": f"{'d' * 16}.{n + 1}.1"}
            broker.put(topic, n % queues, body, properties, born_host=broker.store_host, born_ms=1)
            held.log.setdefault((name, n % queues), []).append(body)
            if n % 20 == 0:
                side.turn(300)
    for n in range(5):
        properties = {"TIMER_DELIVER_MS": str(broker.now_ms + 600_000)}
        body = b"late-%d" % n
        broker.put(broker.topics.by_name[b"T"], 0, body, properties, born_host=broker.store_host, born_ms=1)
        held.deferred.add(body)
    broker.offsets.commit("G", "T", 0, 7)
    broker.groups.find("G", 0)
    for name, level in ((b"q", "os"), (b"r", "disk"), (b"m", "memory")):
        queue = queueing.topic(name, level)
        for channel in (b"c", b"d"):
            queue.channel(channel)
        for n in range(40):
            body = b"%s-%d " % (name, n) + b"y" * (n * 11 % 900)
            queueing.publish(queue, [body])
            for channel in (b"c", b"d"):
                held.channels.setdefault((name, channel), set()).add(body)
        side.turn(600)
        done = receive(side, name, b"c", 12, finish=True)
        held.channels[name, b"c"] -= done
        held.finished[name, b"c"] = done
        queueing.deferral.publish(queue, name + b" deferred", 700_000)
        held.deferred.add(name + b" deferred")
    face = queueing.find(b"U")
    assert face is not None
    face.channel(b"e")
    held.channels[b"U", b"e"] = set(held.log[b"U", 0])
    done = receive(side, b"U", b"e", 5, finish=True)
    held.channels[b"U", b"e"] -= done
    for _ in range(3):
        side.turn(6000)
    return held


def receive(side: Side, topic: bytes, channel: bytes, limit: int, *, finish: bool) -> set[bytes]:
    """So many messages of a channel, finished or given back."""
    reader = Reader()
    here = side.queueing.topic(topic).channel(channel)
    here.add(reader)
    found: set[bytes] = set()
    idle = 0
    while len(found) < limit and idle < 2:
        reader.ready_count = min(10, limit - len(found))
        side.queueing.mark_channel(here)
        side.turn()
        got = list(reader.deliveries())
        idle = 0 if got else idle + 1
        for message in got:
            found.add(message.body)
            if finish:
                here.finish(reader, message.id, side.broker.now_ns, side.broker.mono_ms)
    here.remove(reader)
    return found


def log_bodies(side: Side, topic: bytes, queue_id: int) -> list[bytes]:
    queue = side.broker.store.queue(topic, queue_id)
    result, found, offset = ReadResult(), [], queue.min_offset
    while True:
        status = side.broker.store.read(queue, offset, 32, 1 << 20, -1, None, result)
        if status == 0:
            found += [record.body for record in iter_records(result.body(), check=True)]
        elif status not in (1, 2, 3):
            return found
        assert result.next_offset > offset
        offset = result.next_offset


def missing(side: Side, held: Held) -> tuple[list[bytes], list[bytes]]:
    """(what was acknowledged and is not there, what is there and was never sent)."""
    lost: list[bytes] = []
    odd: list[bytes] = []
    for (topic, queue_id), bodies in held.log.items():
        found = log_bodies(side, topic, queue_id)
        lost += [body for body in bodies if body not in found]
        odd += [body for body in found if body not in bodies]
    side.turn(800_000)  # what was deferred is due
    for _ in range(3):
        side.turn(2_000)
    waiting = set(held.deferred)
    for (topic, channel), bodies in held.channels.items():
        got = receive(side, topic, channel, 10_000, finish=True)
        lost += [topic + b"/" + channel + b": " + body for body in bodies - got]
        allowed = (
            bodies | held.finished.get((topic, channel), set()) | held.deferred | set(held.log.get((topic, 0), []))
        )
        odd += sorted(got - allowed)
        waiting -= got
    waiting -= set(log_bodies(side, b"T", 0))
    return lost + sorted(waiting), odd


def kind_of(name: str) -> str:
    """The row of the table a file belongs to."""
    name = re.sub(r"\d{17,20}", "N", name)
    name = re.sub(r"consumequeue/[^/]+/\d+/N", "consumequeue/<topic>/<queue>/N", name)
    name = re.sub(r"queues/[^/]+/[^/]+_\d+\.", "queues/<topic>/<topic>_<n>.", name)
    name = re.sub(r"queues/[^/]+/[^/]+\.cursor", "queues/<topic>/<channel>.cursor", name)
    name = re.sub(r"^[^/]+\.diskqueue\.\d{6}\.", "<name>.diskqueue.<n>.", name)
    return re.sub(r"^[^/]+\.diskqueue\.meta", "<name>.diskqueue.meta", name)


SKIPPED = ("lock",)


def damages(data: bytes, how: str, noise: random.Random, head: int) -> Iterator[tuple[str, bytes | None]]:
    """(where, the damaged bytes) for a file: each byte of its head, and a sample of the rest."""
    used = len(data.rstrip(b"\0"))
    if how == "one bit":
        places = [*range(0, min(head, used), 13), *(noise.randrange(used) for _ in range(3 if used else 0))]
        for at in places:
            changed = bytearray(data)
            changed[at] ^= 1 << noise.randrange(8)
            yield f"bit in byte {at}", bytes(changed)
    elif how == "zeros":
        for at, length in ((0, 64), (0, 4096), (used // 2, 64), (max(0, used - 40), 40)):
            yield f"zeros {at}+{length}", data[:at] + bytes(len(data[at : at + length])) + data[at + length :]
    elif how == "cut":
        for size in {1, head, used // 2}:
            yield f"cut to {size}", data[:size]
    elif how == "empty":
        yield "empty", b""
    else:
        yield how, None


# What one damage may cost, by kind of file: the messages whose own bytes were changed, or that a file that is gone held.
ALLOWED: dict[str, dict[str, str]] = {
    "commitlog/N": {"one bit": "1", "zeros": "those bytes", "cut": "those bytes", "empty": "its own", "gone": "its own",
                    "a folder": "its own"},
    "queues/<topic>/<topic>_<n>.queue": {"one bit": "1", "zeros": "those bytes", "cut": "those bytes", "empty": "its own",
                                         "gone": "its own", "a folder": "its own"},
    "queues/<topic>/<topic>_<n>.sums": {"one bit": "1", "zeros": "1"},
    "<name>.diskqueue.<n>.dat": {"one bit": "1", "zeros": "those bytes", "cut": "those bytes", "empty": "its own",
                                 "gone": "its own", "a folder": "its own"},
    "<name>.diskqueue.<n>.sum": {"one bit": "1", "zeros": "1", "cut": "those bytes"},
    "<name>.diskqueue.meta.dat": {"one bit": "those behind", "zeros": "those behind", "cut": "those behind"},
}  # fmt: skip


KINDS = (
    "commitlog/N", "checksums/N", "consumequeue/<topic>/<queue>/N", "index/N", "checkpoint", "abort", "live0", "live1",
    "store.json", "offsets.json", "config/topics.json", "config/consumerOffset.json", "config/delayOffset.json",
    "config/subscriptionGroup.json", "config/sequences.json", "nsqd.dat", "queues/<topic>/<topic>_<n>.queue",
    "queues/<topic>/<topic>_<n>.sums", "queues/<topic>/<channel>.cursor", "<name>.diskqueue.<n>.dat",
    "<name>.diskqueue.<n>.sum", "<name>.diskqueue.meta.dat", "reserve", "schedule/data.mdb", "schedule/lock.mdb",
    "store.json.bak", "offsets.json.bak", "config/topics.json.bak", "config/consumerOffset.json.bak",
    "config/delayOffset.json.bak", "config/subscriptionGroup.json.bak", "config/sequences.json.bak", "nsqd.dat.bak",
    "config/subscriptionGroup.json.changes", "config/topics.json.changes", "nsqd.dat.changes",
    "config/history.bin",
)  # fmt: skip
WORDS = {"0": "nothing", "1": "that message", "those bytes": "the messages in them", "its own": "the messages in it",
         "those behind": "what was written last"}  # fmt: skip


def test_the_table_in_the_docs() -> None:
    rows = ["| file | " + " | ".join(HOWS) + " |", "|---|" + "---|" * len(HOWS)]
    for kind in KINDS:
        rows.append(f"| `{kind}` | " + " | ".join(WORDS[ALLOWED.get(kind, {}).get(how, "0")] for how in HOWS) + " |")
    assert "\n".join(rows) in DOCS.read_text(), "\n".join(rows)


# The sources run many times slower than what is compiled of them: they get a smaller sample of the same places, of one ending.
PURE = os.environ.get("PENSTOCK_PURE") == "1"
SAMPLES = 8 if PURE else 20
IN_BOTH = ("commitlog/", "checksums/", "consumequeue/", "index/", "queues/")  # read by what is compiled


@pytest.fixture(scope="module", params=["killed"] if PURE else ["killed", "stopped"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Held, str, FakeClock]:
    folder = tmp_path_factory.mktemp("made") / "data"
    clock = FakeClock()
    side = Side(folder, clock=clock, **SETTINGS)
    held = fill(side)
    for _ in range(2):  # so that every table has been written twice, and there is the former one
        side.reopen(clean=True)
        side.broker.offsets.commit("G", "T", 1, 7)
        side.broker.topics.create(b"V", 1, 1)
        side.broker.groups.update({"groupName": "G", "retryMaxTimes": 5}, 1)
        side.turn(6_000)
    side.broker.close(clean=request.param == "stopped")
    if request.param == "killed":  # what is in memory only is lost by a kill, as its level says
        for key in [key for key in held.channels if key[0] == b"m"]:
            del held.channels[key]
        held.deferred.discard(b"m deferred")
    return folder, held, request.param, clock


def files_of(folder: Path) -> list[str]:
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".tmp") and path.name not in SKIPPED
    )


def chosen(folder: Path) -> list[str]:
    """One file of each kind: the fullest."""
    best: dict[str, str] = {}
    for name in files_of(folder):
        if PURE and not name.startswith(IN_BOTH):
            continue
        kind = kind_of(name)
        size = len((folder / name).read_bytes().rstrip(b"\0"))
        if kind not in best or size > len((folder / best[kind]).read_bytes().rstrip(b"\0")):
            best[kind] = name
    return sorted(best.values())


def test_every_kind_of_file_is_in_the_table(made: tuple[Path, Held, str, FakeClock]) -> None:
    kinds = {kind_of(name) for name in files_of(made[0])}
    assert kinds <= set(KINDS)
    running = {
        "abort",
        "live0",
        "live1",
        "config/subscriptionGroup.json.changes",
        "config/topics.json.changes",
        "nsqd.dat.changes",
    }
    assert set(KINDS) - kinds <= running | {"offsets.json"}  # of a running broker, or a stopped one


@pytest.mark.parametrize("how", HOWS)
def test_what_damage_costs(made: tuple[Path, Held, str, FakeClock], how: str, tmp_path: Path) -> None:
    folder, held, _, clock = made
    problems: list[str] = []
    now = (clock.now_ms(), clock.monotonic_ms())
    for name in chosen(folder):
        data = (folder / name).read_bytes()
        noise = random.Random(f"{name}{how}")
        for where, changed in damages(data, how, noise, SAMPLES):
            copy = tmp_path / "copy"
            shutil.copytree(folder, copy)
            path = copy / name
            if changed is not None:
                path.write_bytes(changed)
            else:
                path.unlink()
                if how == "a folder":
                    path.mkdir()
                    (path / "inside").write_bytes(b"x")
            again = FakeClock(now_ms=now[0])
            again.advance(1000)
            try:
                side = Side(copy, clock=again, **SETTINGS)
                lost, odd = missing(side, held)
                side.close()
            except Exception as error:
                problems.append(f"{name} {where}: {type(error).__name__}: {error}")
                shutil.rmtree(copy)
                continue
            allowed = ALLOWED.get(kind_of(name), {}).get(how, "0")
            count = len({body.rpartition(b": ")[2] for body in lost})
            if odd or (allowed == "0" and lost) or (allowed == "1" and count > 1):
                problems.append(f"{name} {where}: lost {count} {lost[:3]} odd {odd[:2]}")
            shutil.rmtree(copy)
    assert not problems, "\n".join(problems)


SAID = ("schedule/data.mdb", "m:d.diskqueue.meta.dat", "nsqd.dat.bak", "store.json.bak", "config/topics.json.bak")


@pytest.mark.parametrize("how", ["zeros", "cut", "empty", "a folder"])
@pytest.mark.parametrize("name", SAID)
def test_damage_is_said_or_mended(
    made: tuple[Path, Held, str, FakeClock], name: str, how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be used is kept in lost+found with a word in the log, or there is a good file in its place again."""
    folder, _, _, clock = made
    data = (folder / name).read_bytes()
    where, changed = next(one for one in damages(data, how, random.Random(1), 64) if one[1] != data)
    copy = tmp_path / "copy"
    shutil.copytree(folder, copy)
    if changed is None:
        (copy / name).unlink()
        (copy / name).mkdir()
        (copy / name / "inside").write_bytes(b"x")
    else:
        (copy / name).write_bytes(changed)
    again = FakeClock(now_ms=clock.now_ms())
    again.advance(1000)
    caplog.clear()
    side = Side(copy, clock=again, **SETTINGS)
    side.turn(6_000)
    side.close()
    file = name.rpartition("/")[2]
    kept = [path for path in (copy / "lost+found").rglob("*") if file in path.name]
    said = any(file.partition(".")[0] in record.getMessage() for record in caplog.records if record.levelname != "INFO")
    mended = (copy / name).is_file() and (copy / name).read_bytes() not in (changed, b"")
    if changed is None:
        assert any((path / "inside").is_file() for path in kept), "a folder was deleted"
    assert (kept and said) or mended, where
    if name.endswith("meta.dat") and changed:
        assert kept
        assert said
