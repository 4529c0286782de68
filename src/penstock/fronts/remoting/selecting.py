"""What a SQL92 subscription leaves of the records that a read has found."""

from __future__ import annotations

import struct
from typing import Final

from penstock.log.reading import ReadResult
from penstock.wire import record
from penstock.wire.sql92 import Selector

LOOKED_AT_MAX: Final = 4096  # records of which none matches, before a pull is answered that it go on behind them
_SIZE = struct.Struct(">I")


def keep_selected(result: ReadResult, selector: Selector) -> bool:
    """Leave those records in the result that the selector wants; False when there are none. The offsets stay as they are."""
    data, at = result.body(), 0
    kept: list[tuple[int, int]] = []
    for begin, length in result.runs:
        physical, end = begin, at + length
        while at < end:
            size = _SIZE.unpack_from(data, at)[0]
            if selector.matches_text(record.properties_text(data, at, size)):
                kept.append((physical, size))
            physical += size
            at += size
    if len(kept) < result.count:
        result.narrow(kept)
    return bool(kept)
