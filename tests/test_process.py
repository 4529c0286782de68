"""A turn and a tick are made of steps: each is taken whatever the others raise, and by whom it matters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from penstock.access.rights import Rights
from penstock.broker.broker import Broker
from penstock.broker.clients import SHARE_AGAIN_MS
from penstock.clock import FakeClock
from penstock.config import BrokerConfig
from penstock.delivery.waiters import Owner, Waiter
from penstock.errors import StoreError
from penstock.faults import FAULTS_IN_A_ROW_MAX
from penstock.fronts.front import Front
from penstock.log.consumequeue import ConsumeQueue
from penstock.log.draft import Draft
from penstock.process import Process


class Noted(Front):
    """A protocol that says when it is asked."""

    def __init__(self, name: str, notes: list[str], fails: bool = False) -> None:
        self.name, self.notes, self.fails = name, notes, fails

    def begin_turn(self) -> None:
        self.notes.append(f"{self.name} begins")

    def end_turn(self, news: list[ConsumeQueue]) -> None:
        self.notes.append(f"{self.name} ends")
        if self.fails:
            raise RuntimeError("planted")


class Quiet(Front):
    """One that leaves everything to its sessions."""

    name = "quiet"


def running(folder: Path) -> tuple[Broker, Process]:
    clock = FakeClock()
    broker = Broker(BrokerConfig(data=str(folder), mapped_file_size_commit_log=1 << 20), clock=clock)
    broker.open()
    process = Process(clock, pytest.fail, Rights())
    process.take(broker=broker)
    return broker, process


def test_each_front_is_asked_at_both_ends_of_a_turn_whatever_the_others_raise(tmp_path: Path) -> None:
    broker, process = running(tmp_path)
    notes: list[str] = []
    for front in (Noted("first", notes, fails=True), Quiet(), Noted("last", notes)):
        process.add_front(front)
    process.update_time()
    process.end_turn()
    assert notes == ["first begins", "last begins", "first ends", "last ends"]
    assert process.faults.failing == {"first": "first: planted"}
    process.fronts[0].fails = False  # type: ignore[attr-defined]
    process.end_turn()
    assert not process.faults.failing
    broker.close(True)


class Failing(Broker):
    """The disk fails one of its timers."""

    def __init__(self, folder: Path, fails: str = "") -> None:
        super().__init__(BrokerConfig(data=str(folder), mapped_file_size_commit_log=1 << 20), clock=FakeClock())
        self.fails, self.called = fails, list[str]()

    def timers(self) -> list[tuple[str, Callable[[], int | None]]]:
        return [(name, partial(self._call, name, timer)) for name, timer in super().timers()]

    def _call(self, name: str, timer: Callable[[], int | None]) -> int | None:
        self.called.append(name)
        due_ms = timer()
        if name == self.fails:
            raise StoreError("planted")
        return due_ms


def test_a_timer_that_raises_keeps_no_other_waiting(tmp_path: Path) -> None:
    names = [name for name, _ in Failing(tmp_path).timers()]
    assert len(set(names)) == len(names) > 9
    for fails in names:
        broker = Failing(tmp_path / fails, fails)
        broker.open()
        process = Process(broker.clock, pytest.fail, Rights())
        process.take(broker=broker)
        for _ in range(FAULTS_IN_A_ROW_MAX + 1):
            process.update_time()
            process.tick()
        assert broker.called == names * (FAULTS_IN_A_ROW_MAX + 1)
        assert process.faults.failing == {f"{fails} timer": f"{fails} timer: planted"}
        broker.close(True)


def test_a_front_without_an_end_of_its_own_is_not_asked() -> None:
    assert (Quiet().ends_turns, Noted("noted", []).ends_turns) == (False, True)


def test_the_end_of_a_turn_hands_over_what_nobody_waits_for(tmp_path: Path) -> None:
    broker, process = running(tmp_path)
    process.update_time()
    draft, store = Draft(), broker.store
    draft.queue = store.queue(b"T", 0)
    draft.set_body(b"sent one way")
    draft.set_properties(b"")
    assert store.gather(draft) == 0
    topic = broker.queueing.topic(b"queue")
    gathering = broker.queueing.folder.pool.gathering
    gathering.begins = 0
    assert topic.ready(3, 1, True) == 0
    topic.put_bytes(1, b"pub", 0)
    assert gathering.segment is not None
    path = store.log.file.folder / f"{0:020d}"
    assert b"sent one way" not in path.read_bytes()
    process.end_turn()
    assert b"sent one way" in path.read_bytes()
    assert gathering.segment is None
    broker.close(True)


def test_the_next_moment_is_never_missed(tmp_path: Path) -> None:
    broker, process = running(tmp_path)
    mono_ms = process.update_time()
    process.end_turn()
    idle = process.tick()
    assert idle > mono_ms
    broker.queueing.publish(broker.queueing.topic(b"t"), [b"x"], 300)
    assert process.next_due_ms() <= mono_ms + 300 < idle
    hold = Waiter(b"queue", cast(Owner, None), mono_ms + 200)
    assert broker.held_pulls.park(hold)
    assert process.next_due_ms() <= mono_ms + 200
    broker.copies.look_at(mono_ms + 100)
    assert process.next_due_ms() <= mono_ms + 100
    sharing = broker.clients.sharing
    sharing.change("g")
    assert sharing.take(mono_ms - SHARE_AGAIN_MS + 50) == ["g"]
    sharing.change("g")
    assert process.next_due_ms() <= mono_ms + 50
    broker.close(True)


def test_a_process_without_a_broker_has_nothing_that_is_due() -> None:
    process = Process(FakeClock(monotonic_ms=7), pytest.fail, Rights())
    assert process.update_time() == process.mono_ms == 7
    assert process.next_due_ms() > 1 << 60
