"""Compressed bodies of every codec; what is damaged or too large is None."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest

from penstock.spark.kernel import inflate as module
from penstock.spark.kernel.inflate import inflate

BODY = b"a body " * 100


def packed(codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(BODY)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("sys_flag", "data"),
    [
        (1, zlib.compress(BODY)),
        (1 | 3 << 8, zlib.compress(BODY)),
        (1 | 1 << 8, packed("lz4")),
        (1 | 2 << 8, packed("zstd")),
    ],
)
def test_every_codec(sys_flag: int, data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert inflate(data, sys_flag) == BODY
    assert inflate(data[:-5], sys_flag) is None
    assert inflate(b"junk" * 9, sys_flag) is None
    monkeypatch.setattr(module, "BODY_BYTES_MAX", len(BODY) - 1)
    assert inflate(data, sys_flag) is None
