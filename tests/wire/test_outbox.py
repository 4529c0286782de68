"""The outbox: what is appended comes out once, whole, whatever it had to grow."""

from __future__ import annotations

import pytest

from penstock.wire.outbox import Outbox
from penstock.words import TURN_BYTES_KEPT


def test_what_is_put_is_taken_once() -> None:
    out = Outbox()
    assert (out.take(), len(out)) == (b"", 0)
    out.put(b"one")
    out.put(b"")
    out.put(b"two")
    assert len(out) == 6
    assert (out.take(), out.take()) == (b"onetwo", b"")


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, TURN_BYTES_KEPT, TURN_BYTES_KEPT + 1, 5_000_000])
def test_it_grows_and_is_used_again(size: int) -> None:
    out = Outbox()
    for _ in range(2):
        out.put(b"x" * size)
        out.put(b"end")
        assert out.take() == b"x" * size + b"end"
