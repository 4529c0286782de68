"""`inspecting`: every file of the queue side can be printed, up to where it is known to end, and damage is named."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from broker.queueside import Reader, Side
from disk.ready_parts import SEGMENT, SENT, filled, put
from penstock.disk import inspecting
from penstock.disk.files import Files
from penstock.disk.readyqueue import Pool, ReadyQueue
from penstock.log.verify import inspect, verify

RULES = ({"name": "mem*", "level": "memory"},)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A queue topic with five messages, of which the channel has finished one, rejected and deferred another; a disk queue."""
    side = Side(tmp_path, topic=RULES)
    topic = side.queueing.topic(b"q")
    channel, reader = topic.channel(b"c"), Reader()
    reader.ready_count = 10
    channel.add(reader)
    side.queueing.publish(topic, [b"%d" % n for n in range(5)])
    side.turn()
    given = list(reader.deliveries())
    channel.reject(reader, given[0].id)
    channel.finish(reader, given[2].id, 0, side.broker.mono_ms)
    channel.requeue(reader, given[3].id, 60_000, side.broker.mono_ms)
    side.turn(10)
    memory = side.queueing.topic(b"mem-q")
    memory.channel(b"c")
    side.queueing.publish(memory, [b"m%d" % n for n in range(9)])
    side.turn(10)
    side.close()
    return tmp_path


def entries(path: Path, kind: str) -> list[dict[str, Any]]:
    return [entry for entry in inspect(path) if entry["kind"] == kind]


def test_every_file_of_a_folder_is_printed(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            assert list(inspect(path)), path


@pytest.mark.parametrize("clean", [True, False])
def test_a_segment_that_was_used_before_is_read_as_any_other(tmp_path: Path, clean: bool) -> None:
    files = Files()
    pool = Pool(tmp_path / "queues", files)
    for name in ("t", "u"):
        queue = ReadyQueue(tmp_path / "queues" / name, name, SEGMENT, pool, files)
        queue.open(0)
        for n in range(7):
            assert put(queue, b"%d" % n) == 0
        if name == "t":
            queue.drop_all()
    queue.close(clean)
    path = tmp_path / "queues/u/u_1.queue"
    assert [one["ordinal"] for one in entries(path, "message")] == list(range(7))
    assert not entries(path, "damage")
    (head,) = entries(path.with_suffix(".sums"), "header")
    assert (head["life"], head["clean"]) == (1, clean)


def test_what_is_in_them(folder: Path) -> None:
    (path,) = (folder / "queues/q").glob("*.queue")
    found = entries(path, "message")
    assert [(one["ordinal"], one["bodySize"], one["attempts"]) for one in found] == [(n, 1, 0) for n in range(5)]
    (end,) = entries(path, "end")
    assert (end["position"], end["clean"]) == (found[-1]["position"] + found[-1]["size"], True)
    assert len(entries(path.with_suffix(".sums"), "sum")) == 5
    cursor = folder / "queues/q/c.cursor"
    assert entries(cursor, "committed")[0]["ordinal"] == 1
    assert [(one["first"], one["count"]) for one in entries(cursor, "finished")] == [(2, 2)]
    (line,) = entries(folder / "queues/q.c.dead/deaths.jsonl", "line")
    assert line["properties"]["DLQ_REASON"] == "rejected"
    disk = sorted(folder.glob("mem-q:c.diskqueue.0*.dat"))
    assert sum(len(entries(one, "message")) for one in disk) == 9
    assert sum(len(entries(one.with_suffix(".sum"), "sum")) for one in disk) >= 9
    assert entries(folder / "mem-q:c.diskqueue.meta.dat", "meta")[0]["depth"] == 9
    report = verify(folder)
    assert report.ok, report.findings
    assert (report.queue_segments, report.queue_messages) == (2, 15)


def test_both_stop_at_the_known_end(folder: Path) -> None:
    """A segment that was used before: what stands behind its last message is of an earlier life, and looks like messages."""
    (path,) = (folder / "queues/q").glob("*.queue")
    found = entries(path, "message")
    first, end = found[0], entries(path, "end")[0]["position"]
    data = bytearray(path.read_bytes())
    data[end : end + 2 * first["size"]] = bytes(data[: first["size"]]) * 2
    path.write_bytes(data)
    (log,) = (folder / "commitlog").iterdir()
    log_data = bytearray(log.read_bytes())
    begin = log_data.index(b"\0" * 64)
    log_data[begin + 100 : begin + 132] = b"\xff" * 32
    before = len(list(inspect(log)))
    log.write_bytes(log_data)
    assert len(list(inspect(log))) == before
    assert len(entries(path, "message")) == 5
    report = verify(folder)
    assert report.ok, report.findings
    assert report.queue_messages == 15


@pytest.mark.parametrize("name", ["queues/q/*.queue", "mem-q:c.diskqueue.000000.dat"])
def test_a_flipped_bit_is_named(folder: Path, name: str) -> None:
    path = next(folder.glob(name))
    last = entries(path, "message")[-1]
    data = bytearray(path.read_bytes())
    data[last["position"] + last["size"] - 1] ^= 1
    path.write_bytes(data)
    report = verify(folder)
    assert not report.ok
    (finding,) = [one for one in report.findings if one.level != "note"]
    assert (finding.level, finding.position) == ("damage", last["position"])
    assert report.queue_messages == 14
    assert entries(path, "damage")


def test_derived_files_that_do_not_hold(folder: Path) -> None:
    (folder / "queues/q/c.cursor").write_bytes(b"PCUR" + bytes(4092))
    (folder / "nsqd.dat").write_text("{")
    (folder / "mem-q:c.diskqueue.meta.dat").write_text("x")
    found = {one.file: one.level for one in verify(folder).findings if one.level != "note"}
    assert found == dict.fromkeys(("nsqd.dat", "mem-q:c.diskqueue.meta.dat", "queues/q/c.cursor"), "derived")
    assert not (folder / "lost+found").exists()  # looking changes nothing


def test_a_queue_without_sums_is_read_by_its_lengths(folder: Path) -> None:
    (path,) = (folder / "queues/q").glob("*.queue")
    path.with_suffix(".sums").unlink()
    assert [one["checked"] for one in entries(path, "message")] == [False] * 5
    report = verify(folder)
    assert report.ok
    assert any("no sums" in one.why for one in report.findings)


def test_a_killed_process_has_left_no_damage(tmp_path: Path) -> None:
    side = Side(tmp_path)
    side.queueing.publish(side.queueing.topic(b"q"), [b"x"] * 3)
    side.turn()
    side.broker.close(False)
    (path,) = (tmp_path / "queues/q").glob("*.queue")
    assert len(entries(path, "message")) == 3
    assert entries(path, "end")[0]["clean"] is False
    assert verify(tmp_path).ok


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes(folder: Path, seed: int) -> None:
    """Whatever stands in a file, it is told, not raised, but for what is no JSON."""
    rng = random.Random(seed)
    path = rng.choice(
        [one for one in sorted(folder.rglob("*")) if one.is_file() and inspecting.inspect(one) is not None]
    )
    data = bytearray(path.read_bytes()[: 64 << 10])
    for _ in range(rng.randrange(1, 30)):
        at = rng.randrange(len(data) + 1)
        data[at : at + rng.randrange(20)] = rng.randbytes(rng.randrange(20))
    path.write_bytes(data)
    try:
        list(inspect(path))
    except ValueError:
        assert path.name.startswith("nsqd.dat")
    verify(folder)
    assert path.read_bytes() == data


def test_a_spare_segment_is_nobodys(folder: Path) -> None:
    """A broker that works, or was killed, has them beside the topics; what is in them was a topic's once."""
    before = verify(folder)
    segment = next((folder / "queues" / "q").glob("*.queue"))
    spare = folder / "queues" / ".spare_1.queue"
    data = bytearray(segment.read_bytes())
    data[20:60] = b"x" * 40
    spare.write_bytes(data)
    spare.with_suffix(".sums").write_bytes(segment.with_suffix(".sums").read_bytes())
    report = verify(folder)
    assert report.ok
    assert (report.queue_segments, report.queue_messages) == (before.queue_segments, before.queue_messages)


def test_what_a_broker_at_work_has_let_go_of_meanwhile_is_no_damage(folder: Path) -> None:
    """Each of these was listed, and gone when it came to be read."""
    queue = folder / "queues" / "q"
    for n in (8, 9):
        (queue / f"q_{n}.queue").write_bytes(b"no segment")
    gone = [queue / "q_9.queue", *queue.glob("*.cursor"), *folder.glob("*.diskqueue.*.dat")]
    assert len(gone) > 2
    said: list[str] = []

    def add(level: str, file: str, why: str, begin: int, end: int) -> None:
        said.append(file)
        for path in gone:
            path.unlink(missing_ok=True)

    inspecting.verify(folder, add)
    assert said
    assert set(said) == {"queues/q/q_8.queue"}


def test_a_segment_that_is_used_again_while_it_is_read_is_no_damage(tmp_path: Path) -> None:
    """Some of its messages were written over, others not yet, and of the sums a piece had been read ahead."""
    files = Files()
    pool = Pool(tmp_path / "queues", files)
    old, new = (ReadyQueue(tmp_path / "queues" / name, name, 1 << 17, pool, files) for name in "tu")
    for queue in (old, new):
        queue.open(0)
    for body in SENT:
        assert put(old, body) == 0
    looked = inspect(tmp_path / "queues/t/t_1.queue")
    assert next(looked)["kind"] == "message"
    old.drop_all()
    for body in SENT[: len(SENT) // 3]:
        assert put(new, body[1:]) == 0
    assert (tmp_path / "queues/u/u_1.queue").is_file()
    assert {entry["kind"] for entry in looked} <= {"message", "end"}
    for queue in (old, new):
        queue.close(True)


def test_a_message_that_comes_while_a_segment_is_read_is_no_damage(tmp_path: Path) -> None:
    path = filled(tmp_path, clean=False).with_suffix(".queue")
    whole = path.read_bytes()
    late = entries(path, "message")[5]
    with path.open("r+b") as file:
        file.seek(late["position"])
        file.write(bytes(late["size"]))
    looked = inspect(path)
    first = next(looked)
    path.write_bytes(whole)
    found = [first, *looked]
    assert [one["ordinal"] for one in found if one["kind"] == "message"] == list(range(len(SENT)))
    assert found[-1]["kind"] == "end"
    assert len(found) == len(SENT) + 1
