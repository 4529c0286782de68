"""Who must have a message before it counts: those in the set that the engine has, and those in any it may yet have."""

from __future__ import annotations

from penstock.broker.roll import Roll


class Bell:
    def __init__(self) -> None:
        self.rung = 0

    def ring(self) -> None:
        self.rung += 1


def roll(known: dict[str, int], patient_until_ms: int = 0) -> tuple[Roll, Bell]:
    bell = Bell()
    return Roll("a", known, patient_until_ms, bell.ring), bell


def test_one_who_is_asked_for_is_waited_for_at_once() -> None:
    it, bell = roll({"a": 1})
    assert (it.counted, it.maybe_alone) == (set(), True)
    it.propose({"b": 5}, {"b"}, 0, whole=True)
    assert (bell.rung, it.wanted, it.counted) == (1, {"a": 1, "b": 5}, set())
    it.ask(it.wanted)
    assert (it.counted, it.maybe_alone) == ({"b"}, True)  # the engine may have it, or not
    it.settle({"a": 1, "b": 5})
    assert (it.counted, it.maybe_alone) == ({"b"}, False)
    assert it.holds("b", 5)
    assert not it.holds("b", 6)  # the same name, another store


def test_one_who_leaves_is_waited_for_until_the_engine_has_heard_of_it() -> None:
    it, bell = roll({"a": 1, "b": 5, "c": 6})
    it.propose({"c": 6}, {"c"}, 0, whole=True)
    it.ask(it.wanted)
    assert it.counted == {"b", "c"}
    it.propose({}, {}, 0, whole=True)
    assert bell.rung == 1  # one thing after the other
    it.settle({"a": 1, "c": 6})
    assert it.counted == {"c"}


def test_changes_of_which_nothing_was_heard_add_up() -> None:
    it, _ = roll({"a": 1, "b": 5})
    it.ask({"a": 1, "b": 5, "c": 6})
    it.ask({"a": 1})
    assert (it.counted, it.maybe_alone) == ({"b", "c"}, True)
    it.settle({"a": 1, "b": 5})
    assert (it.counted, it.maybe_alone) == ({"b"}, False)


def test_nobody_is_left_alone_with_what_is_not_on_its_disk() -> None:
    it, bell = roll({"a": 1, "b": 5})
    it.propose({}, {}, 0, whole=False)
    assert (bell.rung, it.wanted) == (0, {"a": 1, "b": 5})
    it.propose({}, {}, 0, whole=True)
    assert (bell.rung, it.wanted) == (1, {"a": 1})


def test_a_new_master_gives_those_in_its_set_time_to_connect() -> None:
    it, _ = roll({"a": 1, "b": 5, "c": 6}, 3_000)
    it.propose({}, {"c"}, 2_999, whole=True)
    assert it.wanted == {"a": 1, "b": 5}  # c is there, and not fit
    it.propose({}, {"c"}, 3_000, whole=True)
    assert it.wanted == {"a": 1}


def test_a_store_that_lost_its_end_is_taken_in_anew() -> None:
    it, bell = roll({"a": 1, "b": 5})
    it.propose({"b": 6}, {"b"}, 0, whole=True)
    assert (bell.rung, it.wanted) == (1, {"a": 1, "b": 6})
