"""The bytes a session wants sent: one growing buffer, taken whole once per loop turn.

Replies are written field by field into it, so that a message costs no Python object on its way out. A large body is not
copied: it stays where it lies, as a part of its own between those of the buffer (`put_part`).
`room(n)` makes sure that n more bytes fit; afterwards `base` and `size` may be used directly.
"""

from __future__ import annotations

import cython

from penstock.octets import Readable

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, blank_array, copy, put32
else:
    from penstock import words
    from penstock.octets import address, blank_array, copy, put32

Part = bytes | memoryview


def unwritten(size: int) -> bytearray:
    """Room whose pages nobody has touched; it is written before it is read."""
    return blank_array(size)


class Outbox:
    """A byte buffer that is appended to and taken; empty ones hold no memory."""

    def __init__(self) -> None:
        self.size = 0  # of what stands in the buffer, behind all parts
        self.parted = 0  # bytes in parts
        self.parts: list[Part] | None = None
        self.capacity = 0
        self.owner: bytearray | None = None
        self.base: memoryview = cython.NULL

    def __len__(self) -> int:
        return self.parted + self.size

    def room(self, n: int) -> int:
        """Make place for n more bytes. Returns 0."""
        if self.size + n <= self.capacity:
            return 0
        capacity = max(words.OUTBOX_BYTES_MIN, self.capacity * 2)
        while capacity < self.size + n:
            capacity *= 2
        owner = blank_array(capacity)
        base = address(owner)
        if self.size:
            copy(base, 0, self.base, 0, self.size)
        self.owner = owner
        self.base = base
        self.capacity = capacity
        return 0

    def put(self, data: bytes) -> None:
        """Append bytes."""
        self.put_from(data, 0, len(data))

    def put_from(self, source: Readable, pos: int, n: int) -> None:
        """Append n bytes found at a position of a buffer."""
        self.room(n)
        copy(self.base, self.size, source, pos, n)
        self.size += n

    def put_int32(self, value: int) -> None:
        """Append four bytes, big-endian."""
        self.room(words.LENGTH_BYTES)
        put32(self.base, self.size, value)
        self.size += words.LENGTH_BYTES

    def put_decimal(self, value: int) -> None:
        """Append a decimal number as text."""
        self.room(words.DECIMAL_BYTES_MAX)
        if value < 0:
            self.base[self.size] = words.MINUS
            self.size += 1
            value = -value
        length = 1
        rest = value // words.TEN
        while rest:
            length += 1
            rest //= words.TEN
        at = self.size + length
        self.size = at
        while True:
            at -= 1
            self.base[at] = words.DIGIT_0 + value % words.TEN
            value //= words.TEN
            length -= 1
            if not length:
                break

    def put_hex(self, value: int, digits: int) -> None:
        """Append the low digits of a number in upper-case hexadecimal."""
        self.room(digits)
        at = self.size + digits
        self.size = at
        while digits:
            at -= 1
            digit = value & words.HEX_DIGIT_MAX
            self.base[at] = words.DIGIT_0 + digit if digit < words.TEN else words.HEX_CAPITALS + digit
            value >>= words.HEX_BITS
            digits -= 1

    def cut(self, size: int) -> None:
        """Forget everything behind the first `size` bytes of the buffer."""
        self.size = size

    def put_part(self, part: memoryview) -> None:
        """Append bytes that are not copied: they stay as they are until `part` is let go of."""
        if self.parts is None:
            self.parts = []
        if self.size:
            self.parted += self.size
            self.parts.append(self._take_buffer())
        self.parts.append(part)
        self.parted += len(part)

    def take(self) -> bytes:
        """All bytes so far, as a copy of their own; the outbox is empty afterwards."""
        if self.parts is not None:
            return b"".join(self.take_parts())
        return self._take_buffer()

    def take_parts(self) -> list[Part]:
        """The same as parts, after `put_part`: each is let go of when it was written."""
        parts = self.parts
        assert parts is not None
        if self.size:
            parts.append(self._take_buffer())
        self.parts = None
        self.parted = 0
        return parts

    def _take_buffer(self) -> bytes:
        if not self.size:
            return b""
        size = self.size
        self.size = 0
        if cython.compiled:
            data: bytes = self.base[:size]  # type: ignore[assignment]
        else:
            data = bytes(self.base[:size])
        if self.capacity > words.TURN_BYTES_KEPT:
            self.owner = None
            self.base = cython.NULL
            self.capacity = 0
        return data
