"""Level offsets: never beyond what waits, however much that is, and whoever asks when."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.queueside import Side
from penstock.broker.broker import Broker
from penstock.broker.leveloffsets import EVERY_MS, PIECE, STEP_MS, LevelOffsets
from penstock.broker.topics import SCHEDULE_TOPIC
from penstock.errors import Refused
from penstock.fronts.requests.admin import Administration

MANY = 2 * PIECE + 10


def side_of(folder: Path) -> Side:
    side = Side(folder, mapped_file_size_commit_log=4 << 20)
    side.broker.topics.create(b"T", 4, 4)
    return side


def send(side: Side, count: int, **properties: str) -> None:
    topic = side.broker.topics.by_name[b"T"]
    for _ in range(count):
        side.broker.put(topic, 0, b"x", properties, born_host=side.broker.store_host, born_ms=1)


def flushed(side: Side) -> None:
    for _ in range(3):
        side.broker.store.want_flush()
        side.turn(200)


def waiting(side: Side) -> dict[str, int]:
    """As it is: the first message of each level that waits, or the end of its queue."""
    queues = side.broker.topics.by_name[SCHEDULE_TOPIC].queues
    found = {str(n + 1): queue.max_offset for n, queue in enumerate(queues)}
    starts = {(n, queue.entry(at)[0]): at for n, queue in enumerate(queues) for at in range(queue.max_offset)}  # type: ignore[index]
    for due in side.broker.schedule.entries():
        for (n, physical), at in starts.items():
            if physical == due.id - 1:
                found[str(n + 1)] = min(found[str(n + 1)], at)
    return found


def test_a_short_schedule_is_known_at_once(tmp_path: Path) -> None:
    side = side_of(tmp_path)
    levels = LevelOffsets(side.broker.core)
    assert set((levels.table() or {}).values()) == {0}
    send(side, 3, DELAY="1")
    send(side, 2, DELAY="5")
    send(side, 2, TIMER_DELAY_MS="90000")
    flushed(side)
    table = levels.table()
    assert table == waiting(side)
    assert table is not None
    assert (table["1"], table["5"], table["2"]) == (0, 0, 0)
    side.turn(1_500)  # level 1 is due
    flushed(side)
    table = levels.table()
    assert table == waiting(side)
    assert table is not None
    assert (table["1"], table["5"]) == (3, 0)
    side.close()


def moment(side: Side, ms: int = STEP_MS) -> None:
    side.clock.advance(ms)
    side.broker.time.update()


def test_a_long_one_is_gone_through_in_pieces(tmp_path: Path) -> None:
    side = side_of(tmp_path)
    send(side, 3, DELAY="1")
    flushed(side)
    side.turn(1_500)
    send(side, 2, DELAY="2")
    send(side, MANY - 2, DELAY="5")
    flushed(side)
    levels = LevelOffsets(side.broker.core)
    assert levels.table() is None
    for steps in range(1, 4):
        levels.step()
        levels.step()  # not twice in a moment
        assert (levels.table() is None) == (steps < 3)
        moment(side)
    assert levels.table() == waiting(side)
    side.turn(5_500)  # level 2 is due
    flushed(side)
    truth, before = waiting(side), levels.table()
    assert (truth["1"], truth["2"], truth["5"]) == (3, 2, 0)
    assert before is not None
    assert before["2"] == 0  # not looked at since: behind, never ahead
    moment(side, EVERY_MS)
    for _ in range(3):
        levels.step()
        moment(side)
    assert levels.table() == truth
    side.close()


@pytest.mark.parametrize("looked", [True, False])
def test_the_file_never_says_that_what_waits_is_delivered(tmp_path: Path, looked: bool) -> None:
    """Beyond 10,000 delayed messages it said so of all: a RocketMQ broker that opened the folder would have passed them over."""
    side = side_of(tmp_path)
    path = tmp_path / "config" / "delayOffset.json"
    send(side, 3, DELAY="1")
    flushed(side)
    side.broker.offsets.commit("G", "T", 0, 1)
    side.turn(6_000)
    side.turn(6_000)
    send(side, MANY, DELAY="5")
    flushed(side)
    if looked:
        for _ in range(30):
            side.turn(200)
    truth = waiting(side)
    assert truth["5"] == 0
    if not looked:
        side.reopen(clean=False)
    side.close()
    table = json.loads(path.read_bytes())["offsetTable"]
    assert all(table[level] <= truth[level] for level in table)
    assert table["1"] == 3


class Asked:
    """What the answer to request 45 is made with."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker


def test_who_asks_too_early_is_told_so(tmp_path: Path) -> None:
    side = side_of(tmp_path)
    send(side, MANY, DELAY="5")
    flushed(side)
    side.broker.level_offsets = LevelOffsets(side.broker.core).table
    with pytest.raises(Refused, match="not known yet"):
        Administration.all_delay_offsets(Asked(side.broker), None, None)  # type: ignore[arg-type]
    side.close()
