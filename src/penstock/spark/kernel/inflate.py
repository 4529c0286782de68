"""Compressed message bodies. Which codec, RocketMQ writes into three bits of the system flags (4.x: zlib only)."""

from __future__ import annotations

import zlib

BODY_BYTES_MAX = 256 << 20  # of one inflated body: more is a bomb, not a message
_LZ4, _ZSTD = 1, 2


def inflate(body: bytes, sys_flag: int) -> bytes | None:
    """The body as it was sent, or None when it cannot be inflated (damaged, or over the limit)."""
    codec = sys_flag >> 8 & 7
    if codec in (_LZ4, _ZSTD):
        return _inflate_arrow(body, "lz4" if codec == _LZ4 else "zstd")
    try:
        stream = zlib.decompressobj()
        out = stream.decompress(body, BODY_BYTES_MAX)
    except zlib.error:
        return None
    return out if stream.eof else None


def _inflate_arrow(body: bytes, codec: str) -> bytes | None:
    import pyarrow as pa

    try:
        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            out: bytes = stream.read(BODY_BYTES_MAX + 1)
    except (OSError, pa.ArrowException):
        return None
    return out if len(out) <= BODY_BYTES_MAX else None
