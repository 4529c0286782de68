"""NSQ frames, byte by byte."""

from __future__ import annotations

from penstock.wire.nsq import ERROR, HEAD_BYTES, HEARTBEAT_FRAME, OK_FRAME, frame, message_data


def test_frames_count_type_and_data() -> None:
    assert OK_FRAME == b"\x00\x00\x00\x06\x00\x00\x00\x00OK"
    assert HEARTBEAT_FRAME[:8] == b"\x00\x00\x00\x0f\x00\x00\x00\x00"
    assert frame(ERROR, b"E_INVALID") == b"\x00\x00\x00\x0d\x00\x00\x00\x01E_INVALID"


def test_the_data_of_a_message() -> None:
    data = message_data(0x0102030405060708, 3, 0xAB, b"body")
    assert data == bytes(range(1, 9)) + b"\x00\x03" + b"00000000000000ab" + b"body"
    assert len(data) - HEAD_BYTES == 4
