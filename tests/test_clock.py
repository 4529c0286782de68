"""Clocks: the machine's, and the one that tests move."""

from __future__ import annotations

from penstock.clock import Clock, FakeClock


def test_the_machines_clocks_agree_with_each_other() -> None:
    clock = Clock()
    before = clock.monotonic_ms()
    assert before <= clock.monotonic_ns() // 1_000_000
    assert clock.now_ms() > 1_700_000_000_000


def test_time_goes_on_for_both_and_a_jump_moves_the_wall_clock_alone() -> None:
    clock = FakeClock(now_ms=10, monotonic_ms=100)
    clock.advance(5)
    assert (clock.now_ms(), clock.monotonic_ms(), clock.monotonic_ns()) == (15, 105, 105_000_000)
    clock.jump(-20)
    assert (clock.now_ms(), clock.monotonic_ms()) == (-5, 105)


def test_another_machines_clock_is_followed() -> None:
    for clock in (Clock(), FakeClock()):
        clock.follow(clock.now_ms() + 315_360_000_000)
        clock.follow(clock.now_ms() - 1_000)
        assert clock.now_ms() > 1_700_000_000_000 + 315_000_000_000
        assert 1_700_000_000_000 <= clock.machine_ms() < clock.now_ms() - 315_000_000_000
        assert clock.monotonic_ms() < 315_000_000_000
