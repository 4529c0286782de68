"""The format of staged rows: what the sink's tasks send in chunks, and what a broker keeps of them in a spool file.

spool    "PSTG" | version (4) | size of the header (4) | header, JSON | its CRC-32 (4)
chunk    number, from 1 (8) | size (4) | CRC-32 (4) | pieces
piece    size of the rest (4) | kind, 1: delayed (1) | size of the topic (1) | topic | queue id (4) | sys flag (4)
         | born time (8) | count (4) | messages as in a batch send
seal     0 (8) | 24 (4) | CRC-32 (4) | rows (8) | bytes of all chunks (8) | CRC-32 over their CRC-32s (4) | 0 (4)
"""

from __future__ import annotations

from struct import Struct

MAGIC = b"PSTG"
VERSION = 1
DELAYED = 1

HEADER = Struct(">4sII")  # magic, version, size of the header
CHUNK = Struct(">QII")  # number, size, CRC-32
SEAL = Struct(">QQII")  # rows, bytes, CRC-32 over the CRC-32s, 0
PIECE = Struct(">IBB")  # size of the rest, kind, size of the topic
PLACE = Struct(">iiqI")  # queue id, sys flag, born time, count; behind the topic
U32 = Struct(">I")


def piece_head(
    topic: bytes, queue_id: int, *, delayed: bool, sys_flag: int, born_ms: int, count: int, size: int
) -> bytes:
    """What stands before `count` messages of together `size` bytes."""
    place = PLACE.pack(queue_id, sys_flag, born_ms, count)
    kind = DELAYED if delayed else 0
    # The size counts what stands behind its own four bytes.
    return PIECE.pack(PIECE.size - 4 + len(topic) + len(place) + size, kind, len(topic)) + topic + place
