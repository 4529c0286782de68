"""Framing: the bytes of go-diskqueue's records and of our sums, and what is not taken for a record."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from zlib import crc32

import pytest

from penstock.disk.framing import cut, frame

PAYLOADS = [b"%d" % n * (n * 37 % 300 + 1) for n in range(50)]
AT = (1 << 30) + 5  # with the bit that "more follows" shifts to the top


def plainly(payloads: Sequence[bytes], at: int) -> tuple[bytes, list[int]]:
    data, entries = b"", []
    for n, payload in enumerate(payloads, 1):
        record = len(payload).to_bytes(4) + payload
        entries.append((at + len(data)) << 33 | (n < len(payloads)) << 32 | crc32(record))
        data += record
    return data, entries


@pytest.mark.parametrize("payloads", [PAYLOADS, tuple(PAYLOADS), [b"one"], [b""], []])
@pytest.mark.parametrize("at", [0, 77, AT])
def test_records_and_entries_are_those_of_the_files(payloads: Sequence[bytes], at: int) -> None:
    data, entries = frame(payloads, at)
    assert (data, list(entries)) == plainly(payloads, at)


def test_records_are_cut_as_far_as_nothing_is_odd() -> None:
    data, entries = frame(PAYLOADS, AT)
    chunk, chunk_at = b"before" + data, AT - 6
    assert cut(chunk, chunk_at, len(chunk), AT, entries, 0, 1 << 20) == PAYLOADS
    assert cut(chunk, chunk_at, len(chunk), AT, entries[:7], 0, 1 << 20) == PAYLOADS[:7]
    assert cut(chunk, chunk_at, len(chunk) - 1, AT, entries, 0, 1 << 20) == PAYLOADS[:-1]
    assert cut(chunk[:-1], chunk_at, len(chunk) - 1, AT, entries, 0, 1 << 20) == PAYLOADS[:-1]
    tenth = 6 + sum(len(payload) + 4 for payload in PAYLOADS[:10])
    for place in (tenth, tenth + 3, tenth + 4):  # its length, huge or a little wrong, and its payload
        bad = chunk[:place] + bytes([chunk[place] ^ 0x81]) + chunk[place + 1 :]
        assert cut(bad, chunk_at, len(bad), AT, entries, 0, 1 << 20) == PAYLOADS[:10]
    largest = max(map(len, PAYLOADS))
    first = next(n for n, payload in enumerate(PAYLOADS) if len(payload) == largest)
    assert cut(chunk, chunk_at, len(chunk), AT, entries, 0, largest - 1) == PAYLOADS[:first]
    assert cut(chunk, chunk_at, len(chunk), AT, entries, len(PAYLOADS[0]) + 1, largest) == []
    assert cut(chunk, chunk_at, len(chunk), AT, array("Q", entries[1:]), 0, 1 << 20) == []
    assert cut(b"", AT, 0, AT, entries, 0, 1 << 20) == []
