"""Framing: the bytes of go-diskqueue's records and of our sums, runs of them, and what is not taken for a record."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from zlib import crc32

import pytest

from penstock.disk.framing import cut, rise, weigh
from penstock.disk.runs import Run, framed

PAYLOADS = [b"%d" % n * (n * 37 % 300 + 1) for n in range(50)]
AT = (1 << 30) + 5  # with the bit that "more follows" shifts to the top


def plainly(payloads: Sequence[bytes], at: int) -> tuple[bytes, list[int]]:
    data, entries = b"", []
    for n, payload in enumerate(payloads, 1):
        record = len(payload).to_bytes(4) + payload
        entries.append((at + len(data)) << 33 | (n < len(payloads)) << 32 | crc32(record))
        data += record
    return data, entries


def several(payloads: Sequence[bytes], parts: int) -> list[Run]:
    """Runs of the payloads, cut from one."""
    rest = framed(payloads)
    return [*(rest.split(len(payloads) // parts) for _ in range(parts - 1)), rest]


@pytest.mark.parametrize("payloads", [PAYLOADS, tuple(PAYLOADS), [b"one"], [b""], []])
@pytest.mark.parametrize("at", [0, 77, AT])
@pytest.mark.parametrize("parts", [1, 3])
def test_records_and_entries_are_those_of_the_files(payloads: Sequence[bytes], at: int, parts: int) -> None:
    runs = several(payloads, parts)
    data, entries = plainly(payloads, at)
    assert (b"".join(run.octets() for run in runs), list(weigh(runs, at, 0))) == (data, entries)
    assert [payload for run in runs for payload in run.payloads()] == list(payloads)


def test_a_payload_that_is_too_short_is_named() -> None:
    with pytest.raises(ValueError, match="a payload of 3 bytes; 4 is the least"):
        weigh([framed([b"four", b"six"])], 0, 4)
    with pytest.raises(ValueError, match="a payload of 3 bytes"):
        weigh([framed([b"four"]), framed([b"six"])], 0, 4)


def found(
    chunk: bytes, chunk_at: int, room: int, entries: array[int], least: int = 0, most: int = 1 << 20
) -> list[bytes]:
    run = cut(chunk, chunk_at, room, AT, entries, least, most)
    assert run is None or run.at == AT - chunk_at
    return [] if run is None else run.payloads()


def test_records_are_cut_as_far_as_nothing_is_odd() -> None:
    data, numbers = plainly(PAYLOADS, AT)
    entries = array("Q", numbers)
    chunk, chunk_at = b"before" + data, AT - 6
    assert found(chunk, chunk_at, len(chunk), entries) == PAYLOADS
    assert found(chunk, chunk_at, len(chunk), entries[:7]) == PAYLOADS[:7]
    assert found(chunk, chunk_at, len(chunk) - 1, entries) == PAYLOADS[:-1]
    assert found(chunk[:-1], chunk_at, len(chunk) - 1, entries) == PAYLOADS[:-1]
    tenth = 6 + sum(len(payload) + 4 for payload in PAYLOADS[:10])
    for place in (tenth, tenth + 3, tenth + 4):  # its length, huge or a little wrong, and its payload
        bad = chunk[:place] + bytes([chunk[place] ^ 0x81]) + chunk[place + 1 :]
        assert found(bad, chunk_at, len(bad), entries) == PAYLOADS[:10]
    largest = max(map(len, PAYLOADS))
    first = next(n for n, payload in enumerate(PAYLOADS) if len(payload) == largest)
    assert found(chunk, chunk_at, len(chunk), entries, 0, largest - 1) == PAYLOADS[:first]
    assert found(chunk, chunk_at, len(chunk), entries, len(PAYLOADS[0]) + 1, largest) == []
    assert found(chunk, chunk_at, len(chunk), array("Q", entries[1:])) == []
    assert found(b"", AT, 0, entries) == []


@pytest.mark.parametrize("count", [0, 1, 2, 500])
def test_sums_are_in_order_or_not(count: int) -> None:
    entries = array("Q", [n << 33 | (n & 1) << 32 | 0xFFFFFFFF - n for n in range(count)])
    assert rise(entries)
    for n in {1, count // 2, count - 1} if count > 1 else ():
        assert not rise(array("Q", [*entries[:n], entries[n - 1], *entries[n + 1 :]]))
        assert not rise(array("Q", [*entries[:n], entries[n - 1] | 1 << 32, *entries[n + 1 :]]))  # the same start
    assert rise(array("Q", [1 << 33, 1 << 63]))  # of the upper half
