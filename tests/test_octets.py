"""Octets beside the standard library: integers, CRC-32, Java's hash, searches, hexadecimal digits."""

from __future__ import annotations

import mmap
import random
import socket
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import octets


@given(st.integers(-(1 << 63), (1 << 64) - 1))
def test_what_is_put_is_read(value: int) -> None:
    room = bytearray(12)
    octets.put64(room, 2, value)
    assert octets.be64(room, 2) == int.from_bytes((value & (1 << 64) - 1).to_bytes(8), signed=True)
    octets.put32(room, 2, value)
    low = (value & 0xFFFFFFFF).to_bytes(4)
    assert (octets.ube32(room, 2), octets.be32(room, 2)) == (int.from_bytes(low), int.from_bytes(low, signed=True))
    octets.put16(room, 0, value)
    octets.put8(room, 11, value)
    assert (octets.be16(room, 0), room[11]) == (value & 0xFFFF, value & 0xFF)


PUTTER = """
import mmap, sys
from penstock import octets
with open(sys.argv[1], "r+b") as file:
    b = memoryview(mmap.mmap(file.fileno(), 0))
while True:
    for n in range(1, 256):
        octets.put16(b, 0, n * 0x0101)
        octets.put32(b, 8, n * 0x01010101)
        octets.put64(b, 16, n * 0x0101010101010101)
"""


def test_a_number_is_put_as_a_whole(tmp_path: Path) -> None:
    """No other process, and none that comes after one that was killed, finds half of it, or the zeros of none."""
    path = tmp_path / "numbers"
    path.write_bytes(b"\1" * 4096)
    putter = subprocess.Popen([sys.executable, "-c", PUTTER, str(path)])
    try:
        with open(path, "rb") as file:
            view = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            # Each read is one of the processor's: for a slice of two bytes the C library reads the second one twice.
            places = ((view.cast("H"), 0, 2), (view.cast("I"), 2, 4), (view.cast("Q"), 2, 8))
            seen: set[bytes] = set()
            looks = 0
            while looks < 30_000 or len(seen) < 3 * 200:
                assert putter.poll() is None
                looks += 1
                for numbers, place, size in places:
                    number = numbers[place].to_bytes(size, sys.byteorder)
                    assert number[0] > 0
                    assert number == number[:1] * size
                    seen.add(number)
    finally:
        putter.kill()
        putter.wait()


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_sums_go_on_from_one_piece_to_the_next(one: bytes, two: bytes) -> None:
    assert octets.crc32(two, 0, len(two), octets.crc32(one, 0, len(one), 0)) == zlib.crc32(one + two)
    joined = octets.java_hash(b"ab" + b"cd", 0, 4, 0)
    assert octets.java_hash(b"cd", 0, 2, octets.java_hash(b"ab", 0, 2, 0)) == joined


def test_sums_of_any_length_begun_or_gone_on() -> None:
    """Sixteen lanes, four lanes, single pieces and rests of a piece each take over from the one before."""
    data = random.Random(5).randbytes(3_000)
    for length in (*range(1_200), 2_047, 2_048, 2_303, 2_304, 2_305, 2_990):
        at, crc = length % 7, length * 0x9E3779B1 & 0xFFFFFFFF
        assert octets.crc32(data, at, length, crc) == zlib.crc32(data[at : at + length], crc), length


@given(
    st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 64) - 1), st.integers(0, (1 << 16) - 1), st.binary(max_size=40)
)
def test_the_sum_of_a_head_that_is_not_there_yet(length: int, number: int, count: int, body: bytes) -> None:
    head = b"v" + length.to_bytes(4) + number.to_bytes(8) + count.to_bytes(2) + (length ^ 77).to_bytes(4)
    crc = octets.crc32_head(ord("v"), length, number, count, length ^ 77, 5)
    assert octets.crc32(body, 0, len(body), crc) == zlib.crc32(head + body, 5)


def test_javas_string_hash() -> None:
    for text, value in (("", 0), ("TagA", 2598919), ("polygenelubricants", -(1 << 31)), ("é😀", 1996812)):
        data = text.encode()
        assert octets.java_hash(data, 0, len(data), 0) == value, text


@given(st.binary(max_size=30), st.integers(0, 255), st.integers(0, 255), st.integers(0, 30), st.integers(0, 30))
def test_searches(data: bytes, c: int, d: int, a: int, b: int) -> None:
    begin, end = min(a, b, len(data)), min(max(a, b), len(data))
    assert octets.find(data, begin, end, c) == data.find(bytes([c]), begin, end)
    first = [at for at in range(begin, end) if data[at] in (c, d)]
    assert octets.find2(data, begin, end, c, d) == (first[0] if first else -1)


def test_copies_zeros_and_comparisons() -> None:
    room = bytearray(b"..........")
    octets.copy(room, 2, b"abcdef", 1, 3)
    assert room == b"..bcd....."
    octets.copy(room, 0, b"xyz", 0, -1)
    octets.zero(room, 3, 2)
    assert room == b"..b\0\0....."
    assert octets.same(room, 0, b"x..b", 1, 3)
    assert not octets.same(room, 0, b"x..c", 1, 3)
    assert octets.same(b"", 0, b"", 0, 0)


@pytest.mark.parametrize(
    ("data", "least", "whole"),
    [(b"plain", 32, True), ("é😀".encode(), 32, True), (b"a\x01b", 32, False), (b"a\x01b", 0, True), (b"\xff", 0, False),
     (b"\xed\xa0\x80", 0, False), (b"", 32, True)],
)  # fmt: skip
def test_utf8(data: bytes, least: int, whole: bool) -> None:
    assert octets.utf8(b"??" + data + b"\xff", 2, len(data), least) is whole


def test_hexadecimal_digits() -> None:
    room = bytearray(20)
    octets.put_hex16(room, 1, 0xABC)
    assert room[1:17] == b"0000000000000abc"
    assert octets.hex16(room, 1) == 0xABC
    octets.put_hex16(room, 1, -2)
    assert room[1:] == b"fffffffffffffffe" + bytes(3)
    for bad in (b"0000000000000ABC", b"000000000000 abc", b"short", b"8" + b"0" * 15):
        assert octets.hex16(bad, 0) == -1


def test_a_socket_takes_what_it_has_room_for_and_a_broken_one_nothing() -> None:
    here, there = socket.socketpair()
    with here, there:
        here.setblocking(False)
        data = bytes(range(256)) * (16 << 10)  # more than a socket holds
        assert octets.send_now(here.fileno(), data, 3, 5) == 5
        assert there.recv(100) == data[3:8]
        sent = octets.send_now(here.fileno(), data, 0, len(data))
        assert 0 < sent < len(data)
        assert octets.send_now(here.fileno(), data, sent, len(data) - sent) == 0
        there.settimeout(30)
        came = b""
        while len(came) < sent:
            came += there.recv(1 << 20)
        assert came == data[:sent]
        there.close()
        assert octets.send_now(here.fileno(), data, 0, 5) == 0


def test_a_socket_gives_what_it_has_and_takes_the_first_of_what_it_is_given() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert octets.deliver(here.fileno(), b"abcdef", 1, 4) == 4
        assert octets.receive(there.fileno(), 2, socket.MSG_PEEK) == b"bc"
        assert octets.receive(there.fileno(), 100, 0) == b"bcde"
        assert there.fileno() >= 0  # it is still there
        here.close()
        assert octets.receive(there.fileno(), 100, 0) == b""


def test_a_socket_is_silent_until_something_comes_or_it_ends() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert octets.silent(here.fileno())
        there.sendall(b"x")
        assert not octets.silent(here.fileno())
        assert here.recv(10) == b"x"  # it was not taken
        assert octets.silent(here.fileno())
        there.close()
        assert not octets.silent(here.fileno())
        here.close()
        assert not octets.silent(here.fileno())


def test_the_steady_clock_goes_on() -> None:
    before = octets.steady_ns()
    assert before <= octets.steady_ns() <= before + 60 * 10**9
