"""Time as a broker sees it: a jump of the wall clock moves nothing, a true correction is followed slowly."""

from __future__ import annotations

import pytest

from penstock.broker.clock import Alarm, BrokerClock
from penstock.clock import Clock, FakeClock


class Jumping(Clock):
    """A wall clock that somebody sets, and a steady one."""

    def __init__(self) -> None:
        self.wall_ms, self.steady_ms = 1_700_000_000_000, 5_000

    def now_ms(self) -> int:
        return self.wall_ms

    def now_ns(self) -> int:
        return self.wall_ms * 1_000_000

    def follow(self, now_ms: int) -> None:
        self.wall_ms = now_ms

    def monotonic_ms(self) -> int:
        return self.steady_ms

    def monotonic_ns(self) -> int:
        return self.steady_ms * 1_000_000

    def pass_ms(self, ms: int) -> None:
        self.wall_ms += ms
        self.steady_ms += ms


def test_time_goes_on_with_the_steady_clock() -> None:
    clock = Jumping()
    time = BrokerClock(clock)
    begin = time.now_ms
    assert (begin, time.mono_ms) == (clock.wall_ms, 5_000)
    clock.pass_ms(250)
    assert time.now_ms == begin  # read once a turn
    time.update()
    assert (time.now_ms, time.mono_ms, time.now_ns) == (begin + 250, 5_250, (begin + 250) * 1_000_000)


class Fine(FakeClock):
    """Its wall clock is 0.3 ms past the millisecond that it says, its steady clock 0.9 ms."""

    def now_ns(self) -> int:
        return super().now_ns() + 300_000

    def monotonic_ns(self) -> int:
        return super().monotonic_ns() + 900_000


def test_the_line_is_the_wall_clock_to_the_nanosecond_and_stays_there() -> None:
    clock = Fine()
    time = BrokerClock(clock)
    for _ in range(5):
        assert (time.now_ns, time.now_ms) == (clock.now_ns(), clock.now_ms())
        clock.advance(1_000)
        time.update()


def test_a_delay_is_counted_from_the_next_millisecond_however_long_the_turn_has_lasted() -> None:
    clock = Fine()
    time = BrokerClock(clock)
    clock.advance(40)
    assert (time.next_ms(), time.mono_next_ms()) == (clock.now_ms() + 1, clock.monotonic_ms() + 1)
    whole = FakeClock()
    time = BrokerClock(whole)
    assert (time.next_ms(), time.mono_next_ms()) == (whole.now_ms(), whole.monotonic_ms())


def test_a_turn_that_has_lasted_catches_up_and_is_as_old_as_it_is() -> None:
    clock = Fine()
    time = BrokerClock(clock)
    clock.advance(40)
    time.catch_up()
    assert (time.now_ns, time.now_ms, time.mono_ms) == (clock.now_ns(), clock.now_ms(), clock.monotonic_ms())
    assert time.since_ns() == 40_000_000
    assert (time.next_ms(), time.mono_next_ms()) == (clock.now_ms() + 1, clock.monotonic_ms() + 1)


def test_a_jump_is_followed_by_a_millisecond_a_second() -> None:
    for jump in (3_600_000, -3_600_000):
        clock = Jumping()
        time = BrokerClock(clock)
        begin = time.now_ms
        clock.wall_ms += jump
        for second in range(1, 6):
            clock.pass_ms(1_000)
            time.update()
            assert time.now_ms == begin + second * 1_000 + second * (1 if jump > 0 else -1)


@pytest.mark.parametrize("years", [10, -10])
def test_who_follows_another_line_goes_by_his_own_clock_again_when_that_is_put_right(years: int) -> None:
    clock = FakeClock()
    right = clock.now_ms()
    clock.jump(years * 365 * 86_400_000)
    time = BrokerClock(clock)
    time.follow(right)
    for second in range(1, 200):
        if second == 20:
            clock.jump(-years * 365 * 86_400_000)
        clock.advance(1_000)
        time.update()
        assert time.now_ms == right + second * 1_000
    assert clock.now_ms() == clock.machine_ms()


def test_a_small_correction_is_reached() -> None:
    clock = Jumping()
    time = BrokerClock(clock)
    clock.wall_ms += 3
    for _ in range(10):
        clock.pass_ms(1_000)
        time.update()
    assert time.now_ms == clock.wall_ms


def test_another_line_is_followed_at_once_and_stays() -> None:
    for jump in (3_600_000, -3_600_000):
        clock = Jumping()
        time = BrokerClock(clock)
        begin = time.now_ms
        time.follow(begin + jump)
        assert (time.now_ms, time.now_ns // 1_000_000) == (begin + jump, begin + jump)
        for second in range(1, 6):
            clock.pass_ms(1_000)
            time.update()
            assert time.now_ms == begin + jump + second * 1_000


def test_the_alarm_keeps_the_earliest() -> None:
    alarm = Alarm()
    alarm.set(1_000)
    alarm.at_latest(2_000)
    assert alarm.due_ms == 1_000
    alarm.at_latest(500)
    assert alarm.due_ms == 500
    alarm.set(9_000)
    assert alarm.due_ms == 9_000
