"""A folder for nsqd: read back by go-diskqueue's rules, and by our own broker; tests/peers has nsqd itself."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.broker.nsq import export as module
from penstock.broker.nsq.export import Exported, QueueWriter, export, unnameable
from penstock.broker.nsq.looking import Seen
from penstock.disk import nsqdata, queuefiles
from penstock.disk.files import Files
from penstock.errors import ConfigError, DiskFull
from penstock.testing import Broker


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path / "data")
    yield side
    side.close()


def fill(side: Side) -> None:
    """Every kind of place that a message may wait in."""
    queueing = side.queueing
    for level in ("os", "disk", "memory"):
        topic = queueing.topic(f"q-{level}".encode(), level)
        topic.channel(b"one")
        topic.channel(b"two").pause(True)
        topic.channel(b"gone#ephemeral")
        for n in range(9):
            queueing.publish(topic, [b"%d\0\xff" % n])
            side.turn(5)
        topic.pause()
        queueing.publish(topic, [b"while paused"])
        side.turn(5)
    lone = queueing.topic(b"lone", "os")
    queueing.publish(lone, [b"nobody", b"has me"])
    log = side.broker.topics.create(b"logged", 2, 2)
    queueing.find(b"logged").channel(b"c")  # type: ignore[union-attr]
    side.broker.topics.create(b"archive", 1, 1)
    for n in range(6):
        for stored in (log, side.broker.topics.by_name[b"archive"]):
            side.broker.put(stored, n % len(stored.queues), b"l%d" % n, {}, born_host=side.broker.store_host, born_ms=1)
        side.turn(5)
    side.turn(1000)


def bodies(folder: Path, topic: str, channel: str = "") -> list[bytes]:
    return [message.body for message in nsqdata.messages(Files(), folder, topic, channel)]


NINE = [b"%d\0\xff" % n for n in range(9)]


def test_everything_is_there(side: Side, tmp_path: Path) -> None:
    fill(side)
    folder = tmp_path / "nsqd"
    found = list(export(side.broker, Files(), folder))
    table = {entry["name"]: entry for entry in json.loads((folder / "nsqd.dat").read_bytes())["topics"]}
    assert sorted(table) == ["logged", "lone", "q-disk", "q-memory", "q-os"]
    for level in ("os", "disk", "memory"):
        entry = table[f"q-{level}"]
        assert entry["paused"]
        assert entry["channels"] == [{"name": "one", "paused": False}, {"name": "two", "paused": True}]
        assert bodies(folder, entry["name"]) == [b"while paused"]
        assert bodies(folder, entry["name"], "one") == bodies(folder, entry["name"], "two") == NINE
    assert bodies(folder, "lone") == [b"nobody", b"has me"]
    assert sorted(bodies(folder, "logged", "c")) == [b"l%d" % n for n in range(6)]
    assert Exported("lone", "", 2, 6) in found
    for path in folder.glob("*.meta.dat"):
        depth, read, write = queuefiles.read_meta(Files(), path) or (0, (0, 0), (0, 0))
        assert (depth > 0, read) == (True, (0, 0))
        assert (folder / path.name.replace("meta", f"{write[0]:06d}")).stat().st_size == write[1]
    with pytest.raises(ConfigError, match="not empty"):
        list(export(side.broker, Files(), folder))


def test_log_topics_that_nobody_reads_over_nsq(side: Side, tmp_path: Path) -> None:
    fill(side)
    dead = side.broker.topics.create(b"%DLQ%billing", 1, 1)
    side.broker.put(dead, 0, b"lost", {}, born_host=side.broker.store_host, born_ms=1)
    side.turn(5)
    known = {topic.name for topic in side.queueing.all()}
    found = list(export(side.broker, Files(), tmp_path / "nsqd", logs=True))
    assert len(bodies(tmp_path / "nsqd", "archive")) == 6
    assert Exported("archive", "", 6, 2) in found
    assert not [one for one in found if "%" in one.topic]
    table = json.loads((tmp_path / "nsqd" / "nsqd.dat").read_bytes())["topics"]
    assert [entry["name"] for entry in table] == ["archive", "logged", "lone", "q-disk", "q-memory", "q-os"]
    assert unnameable(side.broker) == ["%DLQ%billing"]
    assert {topic.name for topic in side.queueing.all()} == known  # and our folder is as it was


def test_what_waits_for_its_time_is_ready(side: Side, tmp_path: Path) -> None:
    topic = side.queueing.topic(b"later", "os")
    topic.channel(b"c")
    side.queueing.publishing.publish(topic, [b"deferred"], 60_000)
    side.turn(10)
    list(export(side.broker, Files(), tmp_path / "nsqd"))
    assert bodies(tmp_path / "nsqd", "later", "c") == [b"deferred"]


def test_files_end_where_they_must(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_BYTES", 500)
    writer = QueueWriter(Files(), tmp_path, "q", 1_000)
    sent = [b"%d" % n * 20 for n in range(200)]
    for n, body in enumerate(sent):
        writer.put(Seen(f"{n:016x}", n, 70_000, body, {}))
    writer.close()
    assert len(list(tmp_path.glob("q.diskqueue.0*.dat"))) > 5
    found = list(nsqdata.messages(Files(), tmp_path, "q"))
    assert [message.body for message in found] == sent
    assert {message.attempts for message in found} == {0xFFFF}
    assert found[7].id == b"0000000000000007"


def test_our_own_broker_takes_it(side: Side, tmp_path: Path) -> None:
    fill(side)
    list(export(side.broker, Files(), tmp_path / "nsqd"))
    with Broker(tmp_path / "nsqd", level="os") as broker:
        stats = json.loads(urllib.request.urlopen(f"http://{broker.http}/stats?format=json").read())
    found = {
        (t["topic_name"], c["channel_name"]): (c["depth"], c["paused"]) for t in stats["topics"] for c in t["channels"]
    }
    assert found["q-os", "one"] == (9, False)
    assert found["q-memory", "two"] == (9, True)
    assert found["logged", "c"] == (6, False)


class Failing(Files):
    """Does so many changes, and then none."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left
        self.held: set[int] = set()

    def _count(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise DiskFull("no space left on the device")

    def open(self, path: Path, *, create: bool = False, writable: bool = True) -> int:
        if create:
            self._count()
        fd = super().open(path, create=create, writable=writable)
        self.held.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self.held.discard(fd)
        super().close(fd)

    def write(self, fd: int, at: int, data: bytes | memoryview) -> None:
        self._count()
        super().write(fd, at, data)

    def datasync(self, fd: int) -> None:
        self._count()
        super().datasync(fd)

    def rename(self, old: Path, new: Path) -> None:
        self._count()
        super().rename(old, new)

    def sync_folder(self, folder: Path) -> None:
        self._count()
        super().sync_folder(folder)


@pytest.mark.parametrize("there", [False, True])
def test_what_is_not_finished_is_not_left_behind(side: Side, tmp_path: Path, there: bool) -> None:
    fill(side)
    folder, count = tmp_path / "nsqd", 0
    whole = len(list(export(side.broker, Files(), tmp_path / "whole")))
    while True:
        if there:
            folder.mkdir()
        files = Failing(count)
        try:
            assert len(list(export(side.broker, files, folder))) == whole
        except DiskFull:
            assert folder.exists() is there
            assert not files.held
            if there:
                folder.rmdir()  # it is empty
            count += 1
            continue
        break
    assert count > 20
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )


def test_an_export_that_was_killed_is_refused(side: Side, tmp_path: Path) -> None:
    fill(side)
    steps = export(side.broker, Files(), tmp_path / "nsqd")
    next(steps)
    shutil.copytree(tmp_path / "nsqd", tmp_path / "killed")
    with pytest.raises(ConfigError, match="did not come to its end"):
        list(export(side.broker, Files(), tmp_path / "killed"))
    steps.close()  # type: ignore[attr-defined]
    assert not (tmp_path / "nsqd").exists()
