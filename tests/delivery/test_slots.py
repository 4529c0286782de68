from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.delivery.slots import Slots
from penstock.words import DEFERRED, IN_FLIGHT

STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "drop", "time", "untime"]), st.integers(0, 200), st.integers(0, 50)), max_size=200
)


@given(STEPS)
@settings(deadline=None)
def test_a_table_and_a_heap_beside_dictionaries(steps: list[tuple[str, int, int]]) -> None:
    slots = Slots()
    here: dict[int, int] = {}
    due: dict[int, int] = {}
    for what, message_id, when in steps:
        slot = slots.find(message_id)
        assert slot == here.get(message_id, -1)
        if what == "add":
            fresh = slots.add(message_id, when, 0, 0, IN_FLIGHT)
            assert (fresh < 0) == (message_id in here)
            if fresh >= 0:
                here[message_id] = fresh
                assert slots.place[fresh] == when
        elif slot >= 0:
            if what == "drop":
                slots.drop(slot)
                del here[message_id]
                due.pop(message_id, None)
            elif what == "time":
                slots.time(slot, when)
                due[message_id] = when
            else:
                slots.untime(slot)
                due.pop(message_id, None)
        slots.check()
        first = slots.first()
        assert (first < 0) == (not due)
        if due:
            assert slots.due[first] == min(due.values())


def test_ids_that_follow_each_other_are_found_quickly() -> None:
    slots = Slots()
    begin = 1_800_000_000_000_000_000
    for n in range(5_000):
        slot = slots.add(begin + n, n, 0, 0, DEFERRED)
        slots.time(slot, n // 7)
    assert slots.count == 5_000
    assert [slots.place[slots.find(begin + n)] for n in range(5_000)] == list(range(5_000))
    for _ in range(5_000):
        slots.drop(slots.first())
    assert slots.count == 0
    slots.check()
