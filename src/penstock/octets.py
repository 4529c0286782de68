"""Bytes at a position of a buffer: big-endian integers, CRC-32 and Java's string hash.

Every function takes ``(buffer, position, …)``. Compiled modules get the C functions of ``octets.h`` under the
same names, where the buffer is a pointer; here it is anything with the buffer protocol. A hot module writes

    if cython.compiled:
        from cython.cimports.penstock.octets import be32, put32
    else:
        from penstock.octets import be32, put32

and then ``be32(buf, pos)`` is one line for both builds. Nothing here checks bounds: the caller did.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from mmap import mmap
from operator import index
from struct import Struct

from isal import isal_zlib

Readable = bytes | bytearray | memoryview
Writable = bytearray | memoryview

_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_U16, _I32, _U32, _I64 = Struct(">H"), Struct(">i"), Struct(">I"), Struct(">q")


def address(owner: Readable | mmap) -> memoryview:
    """What the other functions take as their first argument, for any object with a contiguous buffer.

    The caller keeps the owner alive and unresized for as long as it uses the address.
    """
    return memoryview(owner)


def be16(b: Readable, p: int) -> int:
    """The unsigned 16-bit integer at p."""
    return int(_U16.unpack_from(b, p)[0])


def be32(b: Readable, p: int) -> int:
    """The signed 32-bit integer at p."""
    return int(_I32.unpack_from(b, p)[0])


def ube32(b: Readable, p: int) -> int:
    """The unsigned 32-bit integer at p."""
    return int(_U32.unpack_from(b, p)[0])


def be64(b: Readable, p: int) -> int:
    """The signed 64-bit integer at p."""
    return int(_I64.unpack_from(b, p)[0])


def put8(b: Writable, p: int, v: int) -> None:
    """Write the low 8 bits of v at p."""
    b[p] = v & 0xFF


# A number, numpy's too, goes into its place as a whole: `struct.pack_into` writes zeros there first, and a process that is
# killed in between has left them in a mapped file.


def put16(b: Writable, p: int, v: int) -> None:
    """Write the low 16 bits of v at p."""
    b[p : p + 2] = (index(v) & 0xFFFF).to_bytes(2)


def put32(b: Writable, p: int, v: int) -> None:
    """Write the low 32 bits of v at p."""
    b[p : p + 4] = (index(v) & 0xFFFFFFFF).to_bytes(4)


def put64(b: Writable, p: int, v: int) -> None:
    """Write the low 64 bits of v at p."""
    b[p : p + 8] = (index(v) & 0xFFFFFFFFFFFFFFFF).to_bytes(8)


def copy(to: Writable, tp: int, src: Readable, fp: int, n: int) -> None:
    """Copy n bytes from src[fp:] to to[tp:]."""
    if n > 0:
        to[tp : tp + n] = bytes(src[fp : fp + n])


def blank(n: int) -> bytes:
    """A fresh object that compiled code may still write to; here nobody can."""
    return bytes(n)


def blank_array(n: int) -> bytearray:
    """Room that is still to be written; here it is zero."""
    return bytearray(n)


def lend(b: Readable, p: int, n: int) -> memoryview:
    """n bytes at p as an object, which compiled holds no reference: for as long as the caller knows that they stay."""
    return memoryview(b)[p : p + n]


def fence() -> None:
    """Nothing: what is stored first is seen first."""


def expect(b: Readable, p: int, n: int) -> None:
    """Nothing: compiled code tells the processor that n bytes at p are read or written soon."""


def zero(b: Writable, p: int, n: int) -> None:
    """Write n zero bytes at p."""
    if n > 0:
        b[p : p + n] = bytes(n)


def same(a: Readable, ap: int, b: Readable, bp: int, n: int) -> bool:
    """Whether n bytes at both places are equal."""
    return n <= 0 or bytes(a[ap : ap + n]) == bytes(b[bp : bp + n])


def find(b: Readable, p: int, end: int, c: int) -> int:
    """The position of byte c in b[p:end], or -1."""
    at = bytes(b[p:end]).find(c)
    return -1 if at < 0 else p + at


def find2(b: Readable, p: int, end: int, c: int, d: int) -> int:
    """The position of the first byte in b[p:end] that is c or d, or -1."""
    one, two = find(b, p, end, c), find(b, p, end, d)
    return max(one, two) if one < 0 or two < 0 else min(one, two)


def utf8(b: Readable, p: int, n: int, least: int) -> bool:
    """Whether n bytes at p are UTF-8 and none of them is below `least` (32: no control characters)."""
    data = bytes(b[p : p + n])
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return min(data, default=least) >= least


def put_hex16(b: Writable, p: int, v: int) -> None:
    """Write the low 64 bits of v as sixteen lower-case hexadecimal digits at p."""
    b[p : p + 16] = b"%016x" % (v & 0xFFFFFFFFFFFFFFFF)


def hex16(b: Readable, p: int) -> int:
    """The number that sixteen lower-case hexadecimal digits at p spell; -1 when they are none, or it has 64 bits."""
    text = bytes(b[p : p + 16])
    if len(text) != 16 or text.strip(b"0123456789abcdef"):
        return -1
    value = int(text, 16)
    return -1 if value >> 63 else value


def crc32(b: Readable, p: int, n: int, crc: int) -> int:
    """CRC-32 (zlib's polynomial) of n bytes at p, going on from crc (0 at the start)."""
    return int(isal_zlib.crc32(bytes(b[p : p + n]), crc & 0xFFFFFFFF))


def crc32_head(letter: int, n4: int, n8: int, n2: int, m4: int, crc: int) -> int:
    """`crc32` of 19 bytes that need not be there yet: a letter, then numbers of 4, 8, 2 and 4 bytes."""
    head = bytearray(19)
    put8(head, 0, letter)
    put32(head, 1, n4)
    put64(head, 5, n8)
    put16(head, 13, n2)
    put32(head, 15, m4)
    return crc32(head, 0, len(head), crc)


def java_hash(b: Readable, p: int, n: int, h: int) -> int:
    """Java's ``String.hashCode`` of n bytes of UTF-8 at p, going on from h (0 at the start); signed 32 bits."""
    h &= 0xFFFFFFFF
    units = bytes(b[p : p + n]).decode("utf-8", "replace").encode("utf-16-be", "surrogatepass")
    for at in range(0, len(units), 2):
        h = (h * 31 + (units[at] << 8 | units[at + 1])) & 0xFFFFFFFF
    return h - 0x100000000 if h >= 0x80000000 else h


def send_now(fd: int, b: Readable, p: int, n: int) -> int:
    """Give a socket n bytes at p, as many as it takes at once: how many. 0 also where it is broken, which the next one to ask is
    told.
    """
    with contextlib.suppress(OSError):
        return os.write(fd, memoryview(b)[p : p + n])
    return 0


def receive(fd: int, n: int, flags: int) -> bytes:
    """Wait for what a socket has, at most n bytes. The C function raises InterruptedError behind a signal's handler; this one
    waits on.
    """
    peer = socket.socket(fileno=fd)
    try:
        return peer.recv(n, flags)
    finally:
        peer.detach()


def deliver(fd: int, b: Readable, p: int, n: int) -> int:
    """Give a socket n bytes at p, or the first of them: how many. It waits as `receive` does."""
    return os.write(fd, memoryview(b)[p : p + n])


def silent(fd: int) -> bool:
    """Whether an open socket has nothing to be read, not even its end or an error."""
    if fd < 0:
        return False
    asked = select.poll()
    asked.register(fd, select.POLLIN)
    return not asked.poll(0)


def monotonic_s() -> float:
    """The clock of deadlines, `time.monotonic`, in seconds."""
    return time.monotonic()


def steady_ns() -> int:
    """The steady clock that goes on while the machine sleeps, in nanoseconds."""
    return time.clock_gettime_ns(_STEADY)


def populate(b: Writable, p: int, n: int) -> None:
    """Back n bytes at p with written pages ahead of their use; only the compiled build does."""


def unmap(b: Writable, p: int, n: int) -> None:
    """Unmap n bytes of a file's mapping before they are flushed, which costs less then; only the compiled build does."""
