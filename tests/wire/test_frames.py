"""One cutter of remoting frames for both ends."""

from __future__ import annotations

import pytest

from penstock.errors import WireError
from penstock.wire.frames import FrameCutter
from penstock.words import FRAME_BYTES_MAX, HEADER_BYTES_MAX


def prefix(length: int, kind: int, size: int) -> bytes:
    return length.to_bytes(4) + (kind << 24 | size).to_bytes(4)


def test_where_frames_lie() -> None:
    stream = prefix(4 + 3 + 2, 1, 3) + b"hhhbb" + prefix(4, 0, 0) + prefix(14, 0, 10) + b"half"
    cutter = FrameCutter(HEADER_BYTES_MAX)
    assert cutter.cut(stream, 0)
    assert (cutter.kind, cutter.header, cutter.size, cutter.end) == (1, 8, 3, 13)
    assert cutter.cut(stream, 13)
    assert (cutter.kind, cutter.header, cutter.size, cutter.end) == (0, 21, 0, 21)
    assert not cutter.cut(stream, 21)
    assert cutter.need == 18
    for known in range(8):
        assert not cutter.cut(stream[: 21 + known], 21)
        assert cutter.need == 0


def test_eight_bytes_say_where_the_header_and_the_body_will_lie() -> None:
    cutter = FrameCutter(HEADER_BYTES_MAX)
    assert not cutter.cut(prefix(4 + 3 + 2, 1, 3), 0)
    assert (cutter.kind, cutter.header, cutter.size, cutter.end, cutter.need) == (1, 8, 3, 13, 13)


@pytest.mark.parametrize(
    ("length", "kind", "size", "says"),
    [
        (3, 0, 0, "a frame of 3 bytes"),
        (FRAME_BYTES_MAX + 1, 0, 0, "a frame of 16777217 bytes"),
        (0xFFFFFFFF, 0, 0, "a frame of 4294967295 bytes"),
        (100, 2, 0, "serialize type 2"),
        (100, 0, 97, "a header of 97 bytes in a frame of 100"),
        (FRAME_BYTES_MAX, 0, HEADER_BYTES_MAX + 1, "a header of 65537 bytes"),
    ],
)
def test_what_no_peer_sends_is_refused_by_its_first_bytes(length: int, kind: int, size: int, says: str) -> None:
    with pytest.raises(WireError, match=says):
        FrameCutter(HEADER_BYTES_MAX).cut(prefix(length, kind, size), 0)


def test_the_limit_of_a_header_is_the_caller_s() -> None:
    frame = prefix(4 + HEADER_BYTES_MAX, 0, HEADER_BYTES_MAX) + bytes(HEADER_BYTES_MAX)
    assert FrameCutter(HEADER_BYTES_MAX).cut(frame, 0)
    with pytest.raises(WireError):
        FrameCutter(HEADER_BYTES_MAX - 1).cut(frame, 0)
