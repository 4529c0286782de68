"""`client.nsqframes`: any cutting of the stream gives the same frames; commands are NSQ's, byte by byte."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client import nsqframes
from penstock.client.nsqframes import ArrivedMessage, Frame, FrameParser, read_message
from penstock.errors import WireError
from penstock.wire.nsq import ERROR, MESSAGE, RESPONSE, frame, message_data

FRAMES = [
    Frame(RESPONSE, b"OK"),
    Frame(RESPONSE, b"_heartbeat_"),
    Frame(ERROR, b"E_FIN_FAILED FIN 0 failed ID not in flight"),
    Frame(MESSAGE, message_data(7, 2, 0xABC, b"body\n" * 50)),
    Frame(MESSAGE, message_data(8, 1, 1, b"")),
]
STREAM = b"".join(frame(kind, data) for kind, data in FRAMES)


def test_whole_and_byte_by_byte() -> None:
    assert FrameParser().feed(STREAM) == FRAMES
    parser = FrameParser()
    assert [found for byte in STREAM for found in parser.feed(bytes([byte]))] == FRAMES


@given(st.lists(st.integers(0, len(STREAM))))
def test_any_cutting(cuts: list[int]) -> None:
    parser, found = FrameParser(), []
    edges = [0, *sorted(cuts), len(STREAM)]
    for begin, end in itertools.pairwise(edges):
        found += parser.feed(STREAM[begin:end])
    assert found == FRAMES


@given(st.binary(max_size=64))
def test_any_bytes_give_frames_or_wire_error(data: bytes) -> None:
    frames = FrameParser().feed(data)
    assert b"".join(frame(*found) for found in frames) == data[: sum(8 + len(found.data) for found in frames)]
    for found in frames:
        try:
            read_message(found.data)
        except WireError:
            continue


def test_what_is_no_frame() -> None:
    for data in (b"HTTP/1.1 400 Bad", frame(3, b"x"), (3).to_bytes(4) + bytes(8), (1 << 31).to_bytes(4) + bytes(4)):
        parser = FrameParser()
        assert parser.feed(frame(*FRAMES[0]) + data) == FRAMES[:1]
        assert parser.error is not None
        assert parser.feed(frame(*FRAMES[0])) == []
    with pytest.raises(WireError):
        read_message(bytes(25))


def test_a_message() -> None:
    assert read_message(message_data(1 << 60, 3, 0x1234, b"x")) == ArrivedMessage("0000000000001234", b"x", 3, 1 << 60)


def test_commands() -> None:
    assert nsqframes.publish("t", [b"ab"]) == b"PUB t\n\0\0\0\2ab"
    assert nsqframes.publish("t", [b"ab"], 5) == b"DPUB t 5\n\0\0\0\2ab"
    assert nsqframes.publish("t", [b"ab", b"c"]) == b"MPUB t\n\0\0\0\x0f\0\0\0\2\0\0\0\2ab\0\0\0\1c"
    assert nsqframes.subscribe("t", "c") == b"SUB t c\n"
    assert nsqframes.ready(3) == b"RDY 3\n"
    identifier = "0123456789abcdef"
    assert nsqframes.finish(identifier) == b"FIN 0123456789abcdef\n"
    assert nsqframes.requeue(identifier, 90) == b"REQ 0123456789abcdef 90\n"
    assert nsqframes.touch(identifier) == b"TOUCH 0123456789abcdef\n"
    assert nsqframes.reject(identifier) == b"REJECT 0123456789abcdef\n"
    assert nsqframes.greeting({"a": 1}) == b'  V2IDENTIFY\n\0\0\0\x22{"a":1,"feature_negotiation":true}'
