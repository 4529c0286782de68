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


def test_parts_stand_between_what_is_put() -> None:
    body = bytearray(b"body")
    out = Outbox()
    for joined in (True, False):
        out.put(b"head")
        out.put_part(memoryview(body))
        out.put_part(memoryview(body)[1:3])
        out.put(b"tail")
        assert len(out) == 14
        assert out.parted == 10
        if joined:
            assert out.take() == b"headbodyodtail"
        else:
            parts = out.take_parts()
            assert b"".join(parts) == b"headbodyodtail"
            with pytest.raises(BufferError):  # nothing was copied
                body.append(0)
            del parts
            body.append(0)
        assert (len(out), out.parted, out.parts, out.take()) == (0, 0, None, b"")


def test_parts_behind_each_other_and_nothing_else() -> None:
    out = Outbox()
    for _ in range(3):
        out.put_part(memoryview(b"part"))
    assert out.take_parts() == [b"part"] * 3
    out.put(b"x")
    assert out.take() == b"x"
