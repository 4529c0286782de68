"""The in-sync set: who is in it, what is acknowledged, what readers see, which answers go."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.broker.copies import Copies, Member, seen
from penstock.broker.levels import LEVEL_DISK, LEVEL_OS, LEVEL_PAIR, LEVEL_PAIR_DISK
from penstock.broker.roll import Roll
from penstock.clock import FakeClock
from penstock.config import BrokerConfig
from penstock.delivery.waiters import Outcome
from penstock.disk.job import run_now
from penstock.errors import StoreError
from penstock.log.draft import Draft
from penstock.log.store import LogStore


class Bench:
    """A store with copies."""

    def __init__(self, folder: Path, **settings: int) -> None:
        self.store = LogStore(folder, clock=FakeClock())
        self.store.open()
        self.copies = Copies(BrokerConfig(**settings), self.store)  # type: ignore[arg-type]
        self.ms = 1000

    def put(self) -> int:
        draft = Draft()
        draft.queue = self.store.queue(b"T", 0)
        draft.set_body(b"x" * 100)
        assert self.store.append(draft) == 0
        return self.store.end_position

    def flush(self) -> None:
        run_now([self.store.durability.start(self.ms)], self.ms)

    def join(self, name: str = "b", loss: int = 0) -> Member:
        member = Member(name, 1, "127.0.0.1:1", loss=loss)
        self.copies.enter(member)
        return member

    def ack(self, member: Member, written: int, flushed: int = 0) -> None:
        member.heard(written, flushed, self.store.end_position, self.ms)
        self.copies.settle(self.ms)
        self.copies.release()

    def later(self, ms: int) -> None:
        self.ms += ms
        self.copies.settle(self.ms)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_lone_master_confirms_what_it_has_flushed_and_acknowledges_nothing(bench: Bench) -> None:
    end = bench.put()
    bench.copies.settle(bench.ms)
    assert (bench.copies.confirmed, bench.copies.acknowledged, bench.copies.in_sync) == (0, 0, 1)
    bench.flush()
    bench.copies.settle(bench.ms)
    assert (bench.copies.confirmed, bench.copies.acknowledged) == (end, 0)
    assert not bench.copies.available


def test_the_slowest_member_decides(bench: Bench) -> None:
    first = bench.put()
    one, two = bench.join("b"), bench.join("c")
    bench.ack(one, first)
    bench.ack(two, first)
    assert bench.copies.in_sync == 3
    second = bench.put()
    bench.ack(one, second)
    assert bench.copies.acknowledged == first
    bench.ack(two, second)
    assert (bench.copies.acknowledged, bench.copies.acknowledged_flushed) == (second, 0)
    bench.ack(one, second, second)
    bench.ack(two, second, second)
    assert bench.copies.acknowledged_flushed == 0  # the master's own disk counts, too
    bench.flush()
    bench.copies.settle(bench.ms)
    assert bench.copies.acknowledged_flushed == second


def test_a_member_that_does_not_reach_the_end_leaves_and_comes_back(bench: Bench) -> None:
    first = bench.put()
    member = bench.join()
    bench.ack(member, first)
    assert member.in_sync
    bench.put()
    bench.later(3_001)
    assert not member.in_sync
    assert "3,001 ms" in member.why_not
    bench.ack(member, bench.store.end_position)
    assert member.in_sync


def test_a_member_that_is_always_a_little_behind_stays(bench: Bench) -> None:
    member = bench.join()
    bench.ack(member, bench.store.end_position)
    end = bench.put()
    for _ in range(20):
        bench.ms += 1_000
        last, end = end, bench.put()
        bench.ack(member, last)  # what was the end when it was heard before
        assert member.in_sync


def test_a_member_too_many_bytes_behind_is_not_waited_for(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ha_slave_lag_bytes_max=300)
    member = bench.join()
    bench.ack(member, 0)
    for _ in range(3):
        bench.put()
    bench.later(1)
    assert not member.in_sync
    assert not bench.copies.available


def test_a_member_comes_in_only_with_all_that_is_confirmed(bench: Bench) -> None:
    first = bench.put()
    bench.put()
    bench.flush()
    bench.copies.settle(bench.ms)  # alone: all of it
    member = bench.join()
    member.heard(first, 0, first, bench.ms)
    bench.copies.settle(bench.ms)
    assert not member.in_sync
    bench.ack(member, bench.store.end_position)
    assert member.in_sync


def test_positions_never_fall(bench: Bench) -> None:
    end = bench.put()
    member = bench.join()
    bench.ack(member, end)
    assert bench.copies.confirmed == end
    bench.copies.leave(member)
    bench.later(1)
    assert (bench.copies.confirmed, bench.copies.acknowledged) == (end, end)
    assert bench.store.flushed_position < end
    fresh = bench.join()
    bench.ack(fresh, 0)
    assert not fresh.in_sync
    assert bench.copies.confirmed == end


def test_answers_go_when_all_have_it_and_never_because_a_member_left(bench: Bench) -> None:
    first = bench.put()
    member = bench.join()
    bench.ack(member, first)
    told: list[tuple[str, Outcome]] = []
    end = bench.put()
    bench.copies.waiting.wait(end, bench, lambda o: told.append(("pair", o)), bench.ms + 3000)
    bench.copies.waiting_flushed.wait(end, bench, lambda o: told.append(("disk", o)), bench.ms + 3000)
    bench.copies.leave(member)
    bench.flush()
    bench.later(100)
    bench.copies.release()
    assert told == []
    fresh = bench.join()
    bench.ack(fresh, end)
    assert told == [("pair", Outcome.REACHED)]
    bench.copies.expire(bench.ms + 3000)
    assert told[1:] == [("disk", Outcome.EXPIRED)]


def test_after_a_failed_flush_no_answer_is_good(bench: Bench) -> None:
    member = bench.join()
    bench.ack(member, bench.put())
    told: list[Outcome] = []
    end = bench.put()
    bench.copies.waiting.wait(end, bench, told.append)
    bench.store.fail(OSError())
    bench.ack(member, end)
    assert told == [Outcome.FAILED]


def test_min_in_sync(tmp_path: Path) -> None:
    bench = Bench(tmp_path, min_in_sync=2)
    assert bench.copies.short
    member = bench.join()
    bench.ack(member, bench.store.end_position)
    assert not bench.copies.short
    bench.copies.leave(member)
    assert bench.copies.short


def test_a_second_connection_of_a_node_replaces_the_first(bench: Bench) -> None:
    first, second = bench.join("b"), bench.join("b")
    bench.copies.leave(first)
    assert list(bench.copies.members.values()) == [second]


def test_what_readers_see(bench: Bench) -> None:
    """By level; a master before and after somebody followed, and a slave."""
    copies, end = bench.copies, bench.put()
    assert copies.visible(LEVEL_PAIR, False) == 0
    bench.flush()
    assert {copies.visible(level, False) for level in (LEVEL_DISK, LEVEL_PAIR, LEVEL_PAIR_DISK)} == {end}
    member = bench.join()
    bench.ack(member, end)
    second = bench.put()
    bench.ack(member, second)
    assert copies.visible(LEVEL_PAIR, False) == second
    assert copies.visible(LEVEL_PAIR, True) == copies.visible(LEVEL_PAIR_DISK, False) == end
    assert copies.visible(LEVEL_OS, True) == end
    third = bench.put()
    bench.flush()
    assert copies.visible(LEVEL_PAIR, False) == second
    assert copies.visible(LEVEL_DISK, False) == third  # of a master's own
    assert (seen(copies, LEVEL_OS), seen(copies, LEVEL_PAIR)) == (None, second)
    slave = Copies(BrokerConfig(), bench.store)
    slave.follow(end)
    assert {slave.visible(level, durable) for level in range(5) for durable in (False, True)} == {end}
    slave.told(second, end)
    assert slave.visible(LEVEL_OS, False) == seen(slave, LEVEL_OS) == second
    assert slave.visible(LEVEL_PAIR_DISK, False) == end
    slave.told(0, 0)
    assert slave.visible(LEVEL_OS, False) == second


def test_until_it_is_known_who_is_the_master_readers_see_what_was_confirmed(bench: Bench) -> None:
    """A master that comes back may have a successor, whose messages stand at the offsets of what only it has."""
    copies, end = bench.copies, bench.put()
    second = bench.put()
    bench.flush()
    copies.lead(False, end)
    assert {copies.visible(level, durable) for level in (LEVEL_PAIR, LEVEL_PAIR_DISK) for durable in (False, True)} == {
        end
    }
    assert (seen(copies, LEVEL_OS), seen(copies, LEVEL_PAIR)) == (None, end)
    assert (bench.store.confirmed, bench.store.confirmed_flushed) == (
        end,
        end,
    )  # nor is what stands behind derived for good
    version = copies.version
    copies.lead(True)
    assert copies.version > version
    assert bench.store.confirmed == -1
    assert {copies.visible(level, False) for level in (LEVEL_DISK, LEVEL_PAIR, LEVEL_PAIR_DISK)} == {second}
    third = bench.put()
    bench.flush()
    copies.lead(False)  # its place is given away: so much have readers seen
    bench.put()
    bench.flush()
    assert {copies.visible(level, False) for level in (LEVEL_PAIR, LEVEL_PAIR_DISK)} == {third}


def enroll(bench: Bench, known: dict[str, int], patient_ms: int = 0) -> Roll:
    roll = Roll("a", known, bench.ms + patient_ms, lambda: None)
    bench.copies.enroll(roll, 0)
    return roll


def ask(bench: Bench, roll: Roll) -> None:
    """The engine is asked for what is wanted."""
    bench.copies.settle(bench.ms)
    roll.ask(roll.wanted)
    bench.copies.settle(bench.ms)


def test_with_an_engine_who_leaves_is_waited_for_until_that_has_heard_of_it(bench: Bench) -> None:
    roll = enroll(bench, {"a": 1, "b": 5, "c": 6})
    one, two = bench.join("b", 5), bench.join("c", 6)
    first = bench.put()
    bench.flush()
    bench.ack(one, first)
    bench.ack(two, first)
    assert (bench.copies.acknowledged, bench.copies.in_sync) == (first, 3)
    bench.copies.leave(two)
    second = bench.put()
    bench.ack(one, second)
    assert bench.copies.acknowledged == bench.copies.confirmed == first
    ask(bench, roll)
    assert roll.wanted == {"a": 1, "b": 5}
    assert bench.copies.acknowledged == first
    roll.settle(roll.wanted)
    bench.copies.settle(bench.ms)
    assert bench.copies.acknowledged == bench.copies.confirmed == second


def test_with_an_engine_who_comes_is_waited_for_from_the_asking_on(bench: Bench) -> None:
    roll = enroll(bench, {"a": 1, "b": 5})
    one, two = bench.join("b", 5), bench.join("c", 6)
    first = bench.put()
    bench.ack(one, first)
    bench.ack(two, first)
    assert (bench.copies.in_sync, two.why_not) == (2, "the engine has not taken it in yet")
    ask(bench, roll)
    second = bench.put()
    bench.ack(one, second)
    assert bench.copies.acknowledged == first  # it may be in the set by now
    bench.ack(two, second)
    assert bench.copies.acknowledged == second
    roll.settle(roll.wanted)
    bench.copies.settle(bench.ms)
    assert bench.copies.in_sync == 3


def test_with_an_engine_one_that_may_be_alone_confirms_what_it_has_flushed(bench: Bench) -> None:
    roll = enroll(bench, {"a": 1, "b": 5})
    one = bench.join("b", 5)
    first = bench.put()
    bench.ack(one, first)
    assert bench.copies.confirmed == first
    bench.copies.leave(one)
    ask(bench, roll)
    assert roll.wanted == {"a": 1, "b": 5}  # what is confirmed is not on the own disk yet
    bench.flush()
    ask(bench, roll)
    assert roll.wanted == {"a": 1}
    roll.settle(roll.wanted)
    bench.copies.settle(bench.ms)
    second = bench.put()
    bench.copies.settle(bench.ms)
    assert (bench.copies.confirmed, bench.copies.available) == (first, False)
    bench.flush()
    bench.copies.settle(bench.ms)
    assert (bench.copies.confirmed, bench.copies.acknowledged) == (second, first)


def test_with_an_engine_a_node_of_another_loss_number_is_not_the_one_in_the_set(bench: Bench) -> None:
    roll = enroll(bench, {"a": 1, "b": 5})
    one = bench.join("b", 6)
    end = bench.put()
    bench.flush()
    bench.ack(one, end)
    assert (bench.copies.in_sync, roll.wanted) == (1, {"a": 1, "b": 6})


def test_a_new_master_of_an_engine_confirms_nothing_of_its_own(bench: Bench) -> None:
    first = bench.put()
    bench.flush()
    bench.put()
    roll = enroll(bench, {"a": 1, "b": 5}, 3_000)
    bench.later(2_999)
    assert (bench.copies.confirmed, roll.wanted) == (0, {"a": 1, "b": 5})
    bench.flush()
    bench.later(1)
    assert roll.wanted == {"a": 1}  # it has not come
    assert bench.copies.confirmed == 0
    roll.settle(roll.wanted)
    bench.copies.settle(bench.ms)
    assert bench.copies.confirmed > first


def test_a_publish_is_confirmed_whole_or_not_at_all(bench: Bench) -> None:
    member = bench.join()
    begin = bench.put()
    bench.ack(member, begin)
    middle, end = bench.put(), bench.put()
    bench.copies.keep_whole(begin, end)
    bench.flush()
    bench.ack(member, middle, middle)
    assert bench.copies.acknowledged == bench.copies.confirmed == begin
    bench.ack(member, end, middle)
    assert (bench.copies.confirmed, bench.copies.confirmed_flushed) == (end, begin)
    bench.ack(member, end, end)
    assert bench.copies.confirmed_flushed == end


def test_a_look_that_broke_off_is_begun_anew(bench: Bench) -> None:
    """The news of a member is taken by then: the next turn must not go by what was found before."""

    class Shaky(Roll):
        sound = True

        @property
        def counted(self) -> set[str]:
            if not self.sound:
                raise StoreError("by order of the test")
            return super().counted

    roll = Shaky("a", {"a": 1, "b": 5}, bench.ms, lambda: None)
    bench.copies.enroll(roll, 0)
    one = bench.join("b", 5)
    first = bench.put()
    bench.ack(one, first)
    second = bench.put()
    one.heard(second, 0, second, bench.ms)
    roll.sound = False
    with pytest.raises(StoreError):
        bench.copies.settle(bench.ms)
    roll.sound = True
    assert bench.copies.acknowledged == first
    bench.copies.settle(bench.ms)
    assert bench.copies.acknowledged == second


def test_that_a_node_is_alone_no_more_is_noted_again_until_it_is(bench: Bench) -> None:
    notes: list[bool] = []

    class Full:
        def note_alone(self, alone: bool) -> None:
            notes.append(alone)
            if len(notes) <= 2:
                raise StoreError("no room (by order of the test)")

    bench.copies.belong(Full())  # type: ignore[arg-type]
    one = bench.join()
    bench.ack(one, bench.put())
    for _ in range(4):
        bench.copies.settle(bench.ms)
    assert notes == [False] * 3  # then it holds
