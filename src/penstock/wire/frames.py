"""Where the frames of a remoting stream lie: the one cutter, of the broker's sessions and of every client.

    int32 length                    of what follows
    int32 type << 24 | header size  type 0: JSON, 1: binary
    header
    body                            length - 4 - header size

A frame whose length, type or header size no correct peer sends is a WireError as soon as its first eight bytes are
there: nothing is allocated from a length, nothing is awaited that would be refused. Format: rocketmq.md §1.1.
"""

from __future__ import annotations

import cython

from penstock.errors import WireError
from penstock.octets import Readable

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, ube32
else:
    from penstock import words
    from penstock.octets import address, ube32


class FrameCutter:
    """The frame that was found last: its `kind`, where its `header` begins, the header's `size`, where the body ends.

    `need` is the size of a frame that is not complete, or 0 when its first eight bytes are not there; with them the other
    four are known.
    """

    def __init__(self, header_bytes_max: int, frame_bytes_max: int = words.FRAME_BYTES_MAX) -> None:
        self.header_bytes_max = header_bytes_max
        self.frame_bytes_max = frame_bytes_max
        self.kind = 0
        self.header = 0
        self.size = 0
        self.end = 0
        self.need = 0

    def next(self, base: Readable, pos: int, total: int) -> bool:
        """Find the frame at `pos` in the first `total` bytes; False when it is not complete. WireError for a bad one."""
        self.need = 0
        if total - pos < words.LENGTH_BYTES:
            return False
        length = ube32(base, pos)
        if length < words.LENGTH_BYTES:
            raise WireError(f"a frame of {length} bytes")
        if length > self.frame_bytes_max:
            raise WireError(f"a frame of {length} bytes, at most {self.frame_bytes_max}", "frame")
        if total - pos < words.PREFIX_BYTES:
            return False
        size = ube32(base, pos + words.LENGTH_BYTES)
        kind = size >> words.TYPE_SHIFT
        size &= words.SIZE_MASK
        if kind > words.BINARY:
            raise WireError(f"serialize type {kind}")
        if size > length - words.LENGTH_BYTES:
            raise WireError(f"a header of {size} bytes in a frame of {length}")
        if size > self.header_bytes_max:
            raise WireError(f"a header of {size} bytes, at most {self.header_bytes_max}", "header")
        self.kind = kind
        self.header = pos + words.PREFIX_BYTES
        self.size = size
        self.end = pos + words.LENGTH_BYTES + length
        if self.end <= total:
            return True
        self.need = words.LENGTH_BYTES + length
        return False

    def cut(self, owner: bytes | bytearray | memoryview, pos: int) -> bool:
        """`next` in all of a buffer, for callers that are not compiled."""
        return self.next(address(owner), pos, len(owner))
