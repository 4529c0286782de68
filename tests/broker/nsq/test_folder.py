"""Names of files: of any topic and channel, each its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.queueside import Side
from disk.queue_parts import messages, put
from penstock.broker.nsq.folder import NOTES, RETRY_MS, QueueFolder, file_name
from penstock.broker.nsq.topics import QueueTopic
from penstock.config import BrokerConfig
from penstock.disk.files import Files
from penstock.disk.job import run_now
from penstock.disk.queuewriting import FLUSHES_BEHIND, PACE_MS
from penstock.errors import NoDescriptor, StoreError


@given(st.binary(min_size=1, max_size=40), st.binary(min_size=1, max_size=40))
def test_a_name_is_a_plain_file_name_and_nobody_elses(one: bytes, other: bytes) -> None:
    name = file_name(one)
    assert "/" not in name
    assert "\0" not in name
    assert name not in (".", "..")
    assert not name.startswith(".")
    assert (name == file_name(other)) == (one == other)


def test_no_message_gets_an_ordinal_below_a_channels_place(tmp_path: Path) -> None:
    side = Side(tmp_path)
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    side.queueing.publish(topic, [b"%d" % n for n in range(9)])
    side.turn()
    file = topic.channels[b"c"].source.lanes[0].file
    file.commit(9)
    side.turn(1_000)
    side.broker.close(False)
    for path in (tmp_path / "queues" / "t").glob("t_*"):
        path.unlink()
    folder = QueueFolder(BrokerConfig(data=str(tmp_path)), Files())
    assert folder.topic_stream(b"t", 0).total >= 9
    assert folder.topic_stream(b"t", 50).total >= 50


def test_a_disk_queue_is_opened_once_and_dropped_with_its_files(tmp_path: Path) -> None:
    folder = QueueFolder(BrokerConfig(data=str(tmp_path)), Files())
    queue = folder.backend(b"t:c")
    assert folder.backend(b"t:c") is queue
    put(queue, b"x" * 40)
    queue.close()
    assert folder.has_backend_files(b"t:c")
    assert not folder.has_backend_files(b"t")
    folder.drop_backend(b"t:c")
    assert not folder.has_backend_files(b"t:c")


def test_a_lost_and_found_of_a_disk_of_its_own_stays(tmp_path: Path) -> None:
    """It is empty as a rule, and was removed as the folder of a topic that is gone."""
    for name in ("lost+found", "gone", "t"):
        (tmp_path / "queues" / name).mkdir(parents=True)
    QueueFolder(BrokerConfig(data=str(tmp_path)), Files()).tidy([b"t"])
    assert sorted(path.name for path in (tmp_path / "queues").iterdir()) == ["lost+found", "t"]


def test_a_tick_raises_what_is_final_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A meta file that cannot be written now ended all publishing."""
    files = Files()
    folder = QueueFolder(BrokerConfig(data=str(tmp_path), sync_every=10), files)
    queue = folder.backend(b"t")
    put(queue, *messages(10 * FLUSHES_BEHIND))  # so far behind the thread that the loop flushes
    queue.syncing.operations = 10 * FLUSHES_BEHIND

    def fail(*_: object) -> None:
        raise NoDescriptor("too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(files, "rename", fail)
        assert folder.tick(0) == RETRY_MS
    with monkeypatch.context() as patch:
        patch.setattr(files, "datasync", fail)
        with pytest.raises(StoreError):
            folder.tick(RETRY_MS)
    folder.close()


def test_a_disk_queue_rests_between_two_flushes(tmp_path: Path) -> None:
    """What was put meanwhile is flushed by the next one, in one go."""
    folder = QueueFolder(BrokerConfig(data=str(tmp_path), sync_every=10), Files())
    queue = folder.backend(b"t")
    failed: list[StoreError] = []
    for size in (11, 1):  # the second one finds that a flush is due
        put(queue, *messages(size))
    (job,) = folder.take_jobs(failed.append, 100)
    run_now([job], 130)
    for size in (11, 1):
        put(queue, *messages(size))
    assert list(folder.take_jobs(failed.append, 130 + PACE_MS - 1)) == []
    assert len(list(folder.take_jobs(failed.append, 130 + PACE_MS))) == 1
    other = folder.backend(b"u")
    for size in (11, 1):
        put(other, *messages(size))
    run_now(folder.take_jobs(failed.append, 200), 200)
    put(other, *messages(10 * FLUSHES_BEHIND // 2))  # soon the loop would have to flush
    put(other, *messages(1))
    assert len(list(folder.take_jobs(failed.append, 201))) == 1
    assert not failed
    folder.close()


def test_a_topic_that_goes_takes_its_folder_along(tmp_path: Path) -> None:
    side = Side(tmp_path)
    for n in range(2):  # it may come again
        topic = side.queueing.topic(b"t")
        topic.channel(b"c")
        side.queueing.publish(topic, [b"x"])
        side.turn(1_000)
        assert (tmp_path / "queues" / "t" / "c.cursor").is_file()
        assert isinstance(topic, QueueTopic)
        side.queueing.notes.add(topic, 0, "id", {"DLQ_REASON": "rejected"})
        assert (tmp_path / "queues" / "t" / NOTES).is_file()
        side.queueing.delete(topic)
        side.turn(1_000)
        assert not (tmp_path / "queues" / "t").exists(), n
    side.close()


def test_empty_folders_of_a_former_process_go_at_a_start(tmp_path: Path) -> None:
    side = Side(tmp_path)
    side.queueing.publish(side.queueing.topic(b"t"), [b"x"])
    side.turn()
    side.broker.close(True)
    for name in ("left", "full"):
        (tmp_path / "queues" / name).mkdir()
    (tmp_path / "queues" / "full" / "file").touch()
    side = Side(tmp_path)
    assert {path.name for path in (tmp_path / "queues").iterdir() if path.is_dir()} == {"t", "full"}
    side.close()


def test_a_topic_is_gone_also_where_its_folder_cannot_be_looked_at(tmp_path: Path) -> None:
    class Failing(Files):
        refuse = False

        def names(self, folder: Path) -> list[str]:
            if folder.name == "t" and self.refuse:
                raise StoreError("Input/output error (by order of the test)")
            return super().names(folder)

    files = Failing()
    side = Side(tmp_path, files=files)
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    side.turn()
    files.refuse = True
    side.queueing.delete(topic)
    side.turn(1_000)
    side.broker.close(True)
    side.open()
    assert b"t" not in side.queueing.topics
    side.broker.close(True)
