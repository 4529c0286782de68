"""`client.nsqframes`: any cutting of the stream gives the same frames; commands are NSQ's, byte by byte."""

import itertools
import sys

from hypothesis import given
from hypothesis import strategies as st

from penstock.client import nsqframes
from penstock.client.nsqframes import Frame, FrameParser
from penstock.errors import WireError
from penstock.message import ReceivedMessage
from penstock.wire.nsq import ERROR, MESSAGE, RESPONSE, frame, message_data

FRAMES = [
    Frame(RESPONSE, b"OK"),
    Frame(RESPONSE, b"_heartbeat_"),
    Frame(ERROR, b"E_FIN_FAILED FIN 0 failed ID not in flight"),
]
MESSAGES = [message_data(7_500_000, 2, 0xABC, b"body\n" * 50), message_data(8_000_000, 0, 1, b"")]
STREAM = b"".join(
    [frame(*FRAMES[0]), frame(MESSAGE, MESSAGES[0]), *(frame(*one) for one in FRAMES[1:]), frame(MESSAGE, MESSAGES[1])]
)


def received(stored_ms: int, attempts: int, message_id: str, body: bytes) -> ReceivedMessage:
    return ReceivedMessage(
        "T", body, 0, -1, -1, born_ms=stored_ms, store_ms=stored_ms, reconsume_times=max(0, attempts - 1),
        size=len(body), broker="a", nsq_id=message_id,
    )  # fmt: skip


RECEIVED = [received(7, 2, "0000000000000abc", b"body\n" * 50), received(8, 0, "0000000000000001", b"")]


def test_whole_and_byte_by_byte() -> None:
    parser = FrameParser("T", "a")
    assert (parser.feed(STREAM), parser.take()) == (FRAMES, RECEIVED)
    assert [found for byte in STREAM for found in parser.feed(bytes([byte]))] == FRAMES
    assert (parser.take(), parser.take()) == (RECEIVED, [])


@given(st.lists(st.integers(0, len(STREAM))))
def test_any_cutting(cuts: list[int]) -> None:
    parser, found = FrameParser("T", "a"), []
    edges = [0, *sorted(cuts), len(STREAM)]
    for begin, end in itertools.pairwise(edges):
        found += parser.feed(STREAM[begin:end])
    assert (found, parser.take()) == (FRAMES, RECEIVED)


@given(st.binary(max_size=64))
def test_any_bytes_give_frames_or_wire_error(data: bytes) -> None:
    parser = FrameParser()
    frames = parser.feed(data)
    assert sum(8 + len(found.data) for found in frames) + sum(34 + len(one.body) for one in parser.take()) <= len(data)
    assert all(frame(*found) in data for found in frames)


def test_what_is_no_frame() -> None:
    bad_id = bytearray(frame(MESSAGE, MESSAGES[0]))
    bad_id[20] = 0x80
    for data in (
        b"HTTP/1.1 400 Bad",
        frame(3, b"x"),
        (3).to_bytes(4) + bytes(8),
        (1 << 31).to_bytes(4) + bytes(4),
        (4).to_bytes(4) + (0xFFFFFFFF).to_bytes(4),
        frame(MESSAGE, bytes(25)),
        bytes(bad_id),
    ):
        parser = FrameParser("T", "a")
        assert parser.feed(frame(*FRAMES[0]) + frame(MESSAGE, MESSAGES[1]) + data + frame(*FRAMES[0])) == FRAMES[:1]
        assert isinstance(parser.error, WireError)
        assert parser.take() == RECEIVED[1:]
        assert parser.feed(frame(*FRAMES[0]) + frame(MESSAGE, MESSAGES[0])) == []
        assert parser.take() == []


def test_every_byte_of_a_message_may_lie() -> None:
    """Nothing is read beyond what came: the message is as long as its frame says, or it is not there yet."""
    whole = frame(MESSAGE, message_data(7_000_000, 2, 0xABC, b"body"))
    for at in range(len(whole)):
        for value in (0, 1, 0x7F, 0x80, 0xFF, whole[at] ^ 1, (whole[at] + 1) % 256):
            lying = whole[:at] + bytes([value]) + whole[at + 1 :]
            parser = FrameParser("T", "a")
            parser.feed(lying)
            for one in parser.take():
                assert one.size == len(one.body) == int.from_bytes(lying[:4]) - 30 <= 4
                assert one.body == lying[34 : 34 + one.size]
                assert 0 <= one.store_ms < 1 << 63


def test_a_message_that_is_kept_keeps_no_read() -> None:
    data = frame(MESSAGE, MESSAGES[1]) + frame(MESSAGE, message_data(1, 1, 1, bytes(100_000)))
    parser, before = FrameParser("T", "a"), sys.getrefcount(data)
    parser.feed(data)
    kept = parser.take()
    assert (len(kept), sys.getrefcount(data)) == (2, before)


def test_commands() -> None:
    assert nsqframes.publish("t", [b"ab"]) == b"PUB t\n\0\0\0\2ab"
    assert nsqframes.publish("t", [b"ab"], 5) == b"DPUB t 5\n\0\0\0\2ab"
    assert nsqframes.publish("t", [b"ab", b"c"]) == b"MPUB t\n\0\0\0\x0f\0\0\0\2\0\0\0\2ab\0\0\0\1c"
    assert nsqframes.subscribe("t", "c") == b"SUB t c\n"
    assert nsqframes.ready(3) == b"RDY 3\n"
    identifier = "0123456789abcdef"
    assert nsqframes.finish_all([identifier]) == b"FIN 0123456789abcdef\n"
    assert nsqframes.finish_all([identifier, "0" * 16]) == b"FIN 0123456789abcdef\nFIN 0000000000000000\n"
    assert nsqframes.requeue(identifier, 90) == b"REQ 0123456789abcdef 90\n"
    assert nsqframes.touch(identifier) == b"TOUCH 0123456789abcdef\n"
    assert nsqframes.reject(identifier) == b"REJECT 0123456789abcdef\n"
    assert nsqframes.greeting({"a": 1}) == b'  V2IDENTIFY\n\0\0\0\x22{"a":1,"feature_negotiation":true}'
