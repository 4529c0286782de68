"""`client.window`: the committed offset never passes an unsettled message."""

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from penstock.client.window import Window
from penstock.message import ReceivedMessage


def message(offset: int, body: bytes = b"xy") -> ReceivedMessage:
    return ReceivedMessage("T", body, 0, offset, 0)


@given(st.integers(0, 50), st.sets(st.integers(0, 19)), st.permutations(range(20)))
def test_committed(start: int, missing: set[int], order: list[int]) -> None:
    window = Window(start)
    came = [i for i in range(20) if i not in missing]  # the rest was filtered out
    window.add([message(start + i) for i in came], start + 20)
    open_offsets = set(came)
    for i in order:
        assert window.committed == start + min(open_offsets, default=20)
        window.settle(start + i)
        window.settle(start + i)
        open_offsets.discard(i)
        assert len(window) == len(open_offsets)
        assert window.bytes_ == 2 * len(open_offsets)
    assert window.committed == window.next_offset == start + 20
    assert window.span == 0


def test_span() -> None:
    window = Window(5)
    window.add([message(5), message(9)], 10)
    window.settle(9)
    assert (window.committed, window.span) == (5, 5)


def test_many_at_once() -> None:
    class Handed(NamedTuple):
        message: ReceivedMessage

    window = Window(0)
    messages = [message(offset) for offset in range(10)]
    window.add(messages, 10)
    window.settle_all([Handed(one) for one in messages[:4] + messages[2:5]])
    assert (window.committed, len(window), window.bytes_) == (5, 5, 10)
