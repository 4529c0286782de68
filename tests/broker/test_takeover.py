"""An nsqd's data folder is taken over as it is, at every level; and what we leave is nsqd's again at level `memory`."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from broker.queueside import Reader, Side
from penstock.errors import Corrupt

LEFT = Path(__file__).parents[1] / "vectors" / "diskqueue" / "nsqd"


def drain(side: Side, topic: bytes, channel: bytes) -> list[bytes]:
    reader = Reader()
    reader.ready_count = 100
    here = side.keeper.topic(topic).channel(channel)
    here.add(reader)
    found = []
    for _ in range(4):
        side.keeper.mark_channel(here)
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
    orders, empty = side.keeper.topics[b"orders"], side.keeper.topics[b"empty"]
    assert sorted(orders.channels) == [b"bill", b"pack"]
    assert empty.paused
    assert orders.channels[b"pack"].paused
    expected = [b"order %d" % n for n in (3, 4, 5, 1, 2)]  # nsqd writes its memory queue behind the rest when it stops
    side.reopen(clean)
    orders, empty = side.keeper.topics[b"orders"], side.keeper.topics[b"empty"]
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


def test_a_table_that_cannot_be_read_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "nsqd.dat").write_text("{")
    with pytest.raises(Corrupt, match=r"nsqd\.dat"):
        Side(tmp_path)
    assert (tmp_path / "nsqd.dat").read_text() == "{"
