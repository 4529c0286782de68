"""`wire.staged`: what the sink writes is what the broker reads."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.spool import pieces
from penstock.wire import staged

i32 = st.integers(-(2**31), 2**31 - 1)


@given(st.binary(min_size=1, max_size=255), i32, st.booleans(), i32, st.integers(0, 2**62), st.binary(max_size=300))
def test_a_piece_is_read_as_it_was_written(
    topic: bytes, queue_id: int, delayed: bool, sys_flag: int, born_ms: int, messages: bytes
) -> None:
    head = staged.piece_head(
        topic, queue_id, delayed=delayed, sys_flag=sys_flag, born_ms=born_ms, count=7, size=len(messages)
    )
    for piece in pieces((head + messages) * 2):
        assert (piece.topic, piece.queue_id, piece.delayed, piece.sys_flag) == (topic, queue_id, delayed, sys_flag)
        assert (piece.born_ms, piece.count, piece.messages) == (born_ms, 7, messages)


def test_a_piece_byte_by_byte() -> None:
    head = staged.piece_head(b"ab", 3, delayed=True, sys_flag=1, born_ms=5, count=2, size=4)
    assert head.hex(" ") == "00 00 00 1c 01 02 61 62 00 00 00 03 00 00 00 01 00 00 00 00 00 00 00 05 00 00 00 02"
