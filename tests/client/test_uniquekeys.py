"""`client.uniquekeys`: ids that no two messages share."""

from __future__ import annotations

from penstock.client.uniquekeys import UniqueKeys


def test_unique_keys() -> None:
    keys = UniqueKeys(b"\x7f\0\0\1", 0x12345, b"\xaa\xbb\xcc\xdd")
    first = keys.next(1_798_761_599_999)  # the last millisecond of 2026
    assert first.startswith("7F0000012345AABBCCDD")
    assert len(first) == 32
    assert keys.next(1_798_761_600_000)[20:28] == "00000000"
    assert len({keys.next(1_798_761_600_000) for _ in range(1000)}) == 1000
