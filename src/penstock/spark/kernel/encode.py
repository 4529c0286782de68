"""The encode kernel: columns of an Arrow batch to messages as a batch send carries them, without a Python object a row.

    int32 size | int32 magic 0 | int32 CRC 0 | int32 flag 0 | int32 body size, body | int16 properties size, properties

`heads` writes everything but the properties and notes where these begin; `texts` is then called once for each property,
and each row's place moves on behind what it wrote. `rows` says which rows, in their order in the output.
"""

# mypy: disable-error-code="arg-type"
from __future__ import annotations

import cython

from penstock.spark.kernel.buffers import Longs, Octets

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, copy, java_hash, put8, put16, put32
    from cython.cimports.penstock.wire import layout
else:
    from penstock import words
    from penstock.octets import address, copy, java_hash, put8, put16, put32
    from penstock.wire import layout

HEAD = layout.BATCH_FIXED_BYTES  # bytes of a message beside its body and properties


def heads(out: Octets, at: Longs, rows: Longs, data: Octets, offsets: Longs, sizes: Longs) -> int:
    """Write the messages into `out`, leaving room for properties of `sizes` bytes; `at[n]` is where those of the n-th
    row begin. Returns the end."""
    o = address(out)
    d = address(data)
    p = 0
    for n in range(len(rows)):
        row = rows[n]
        start = offsets[row]
        body = offsets[row + 1] - start
        size = sizes[row]
        put32(o, p, layout.BATCH_FIXED_BYTES + body + size)
        put32(o, p + layout.MAGIC, 0)
        put32(o, p + layout.BODY_CRC, 0)
        put32(o, p + layout.BATCH_FLAG, 0)
        put32(o, p + layout.BATCH_BODY_LENGTH, body)
        copy(o, p + layout.BATCH_BODY, d, start, body)
        put16(o, p + layout.BATCH_BODY + body, size)
        at[n] = p + layout.BATCH_FIXED_BYTES + body
        p += layout.BATCH_FIXED_BYTES + body + size
    return p


def texts(
    out: Octets, at: Longs, begun: Octets, rows: Longs, prefix: bytes, data: Octets, offsets: Longs, valid: Octets
) -> None:
    """Write `prefix` and the text of each row that is valid; a separator before it where `begun` says so."""
    o = address(out)
    d = address(data)
    x = address(prefix)
    lead = len(prefix)
    for n in range(len(rows)):
        row = rows[n]
        if valid[row]:
            p = at[n]
            if begun[n]:
                put8(o, p, words.PROPERTY_END)
                p += 1
            start = offsets[row]
            size = offsets[row + 1] - start
            copy(o, p, x, 0, lead)
            copy(o, p + lead, d, start, size)
            at[n] = p + lead + size
            begun[n] = 1


def spread(out: Longs, count: int, data: Octets, offsets: Longs, valid: Octets) -> None:
    """For each valid row that has no number yet (it is negative): Java's hash of its text, made one of 0 … count - 1."""
    d = address(data)
    for row in range(len(out)):
        if valid[row] and out[row] < 0:
            h = java_hash(d, offsets[row], offsets[row + 1] - offsets[row], 0)
            if h < 0:
                h = -h
            out[row] = h % count
