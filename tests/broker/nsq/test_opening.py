"""An nsqd's data folder is taken over as it is, at every level; and what we leave is nsqd's again at level `memory`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker.queueside import Reader, Side
from penstock.broker.nsq.opening import Opening

LEFT = Path(__file__).parents[2] / "vectors" / "diskqueue" / "nsqd"


def drain(side: Side, topic: bytes, channel: bytes) -> list[bytes]:
    reader = Reader()
    reader.ready_count = 100
    here = side.queueing.topic(topic).channel(channel)
    here.add(reader)
    found = []
    for _ in range(4):
        side.queueing.mark_channel(here)
        side.turn()
        for message in reader.deliveries():
            found.append(message.body)
            here.finish(reader, message.id, side.broker.now_ns, side.broker.mono_ms)
    here.remove(reader)
    return found


@pytest.mark.parametrize("level", ["os", "disk", "memory"])
@pytest.mark.parametrize("clean", [True, False])
def test_a_folder_of_nsqd(tmp_path: Path, level: str, clean: bool) -> None:
    folder = tmp_path / "data"
    shutil.copytree(LEFT, folder)
    side = Side(folder, level=level, mem_queue_size=2, queue_segment_bytes=1 << 20)
    side.turn()
    orders, empty = side.queueing.topics[b"orders"], side.queueing.topics[b"empty"]
    assert sorted(orders.channels) == [b"bill", b"pack"]
    assert empty.paused
    assert orders.channels[b"pack"].paused
    expected = [b"order %d" % n for n in (3, 4, 5, 1, 2)]  # nsqd writes its memory queue behind the rest when it stops
    side.reopen(clean)
    orders, empty = side.queueing.topics[b"orders"], side.queueing.topics[b"empty"]
    assert drain(side, b"orders", b"bill") == expected
    assert drain(side, b"orders", b"pack") == []
    orders.pause_channel(orders.channels[b"pack"], False)
    assert drain(side, b"orders", b"pack") == expected
    empty.unpause()
    assert drain(side, b"empty", b"first") == [b"alone"]
    side.reopen(clean=True)
    assert drain(side, b"orders", b"bill") == []
    if level != "memory":
        assert not list(folder.glob("*.diskqueue.*.dat"))
    side.close()


@pytest.mark.parametrize("damage", ["{", "[]", '{"topics": 5}', "folder", "gone"])
def test_a_table_that_cannot_be_read_costs_no_message(tmp_path: Path, damage: str) -> None:
    """Topics and channels are told from their files: ours, and nsqd's own."""
    side = Side(tmp_path)
    topic = side.queueing.topic(b"t")
    topic.channel(b"c")
    side.queueing.publish(topic, [b"kept"])
    side.turn(1000)
    side.broker.close(True)
    for name in ("nsqd.dat", "nsqd.dat.bak"):
        (tmp_path / name).unlink(missing_ok=True)
        if damage == "folder":
            (tmp_path / name).mkdir()
        elif damage != "gone":
            (tmp_path / name).write_text(damage)
    side.open()
    assert drain(side, b"t", b"c") == [b"kept"]
    side.reopen(clean=True)
    assert list(side.queueing.topics[b"t"].channels) == [b"c"]
    assert bool(list(tmp_path.glob("lost+found/nsqd.dat.*"))) == (damage != "gone")
    side.close()


def test_an_empty_folder_has_no_topics(tmp_path: Path) -> None:
    side = Side(tmp_path)
    Opening(side.broker.core, side.queueing.registry, side.queueing.claims).load()
    assert side.queueing.all() == []
    side.close()
