"""The encode kernel beside the plain encoder of a batch."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.spark.kernel import encode
from penstock.wire.record import BatchItem, encode_batch, java_hash


def column(values: list[bytes]) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    offsets = np.cumsum([0, *map(len, values)], dtype=np.int64)
    return np.frombuffer(b"".join(values) or b"\0", np.uint8).copy(), offsets


@given(
    st.lists(st.tuples(st.binary(max_size=20), st.none() | st.binary(min_size=1, max_size=9)), min_size=1, max_size=8)
)
def test_messages_as_a_batch_send_carries_them(rows: list[tuple[bytes, bytes | None]]) -> None:
    data, offsets = column([body for body, _ in rows])
    keys, key_offsets = column([key or b"" for _, key in rows])
    valid = np.array([key is not None for _, key in rows], np.uint8)
    sizes = np.array([0 if key is None else 5 + len(key) for _, key in rows], np.int64)
    order = np.arange(len(rows), dtype=np.int64)[::-1].copy()
    total = int(offsets[-1] + sizes.sum() + encode.HEAD * len(rows))
    out, at = np.zeros(total, np.uint8), np.zeros(len(rows), np.int64)
    assert encode.heads(out, at, order, data, offsets, sizes) == total
    encode.texts(out, at, np.zeros(len(rows), np.uint8), order, b"KEYS\1", keys, key_offsets, valid)
    expected = [BatchItem(body, b"" if key is None else b"KEYS\1" + key) for body, key in reversed(rows)]
    assert out.tobytes() == encode_batch(expected)


@given(st.lists(st.text(max_size=9), min_size=1, max_size=8), st.integers(1, 50))
def test_rows_are_spread_by_javas_hash(texts: list[str], count: int) -> None:
    data, offsets = column([text.encode() for text in texts])
    out = np.full(len(texts), -1, np.int64)
    out[0] = 7
    encode.spread(out, count, data, offsets, np.ones(len(texts), np.uint8))
    assert out.tolist() == [7, *(abs(java_hash(text)) % count for text in texts[1:])]
