"""The ids that producers give their messages: 32 hex digits, different in all processes.

    IPv4 address (4) | process id (2) | salt (4) | ms since the start of the month (4) | counter (2)

Format: rocketmq.md §5.5.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import cython

if cython.compiled:
    from cython.cimports.penstock import words
else:
    from penstock import words

ADDRESS_BYTES = 4
PID_BYTES = 2
SALT_BYTES = 4
COUNT_DIGITS = 4  # of the counter at the end
MONTHS = 12  # a year


class UniqueKeys:
    """Makes them, of the process's IPv4 address, its process id and a salt."""

    def __init__(self, address: bytes, pid: int, salt: bytes) -> None:
        host, process = address[len(address) - ADDRESS_BYTES :], (pid & words.UINT16_MAX).to_bytes(PID_BYTES, "big")
        self._prefix = (host + process + salt[:SALT_BYTES]).hex().upper()
        self._count = itertools.count()
        self._month_ms = 0
        self._next_month_ms = 0

    def next(self, now_ms: int) -> str:
        """A new id; at most 65,536 a millisecond are different."""
        if not self._month_ms <= now_ms < self._next_month_ms:
            self._turn_to_month(now_ms)
        moment, number = now_ms - self._month_ms, next(self._count) & words.UINT16_MAX
        return f"{self._prefix}{moment:08X}{number:04X}"

    def take(self, count: int, now_ms: int) -> list[str]:
        """`count` new ids."""
        start = self.next(now_ms)
        following, moment = itertools.islice(self._count, count - 1), start[: len(start) - COUNT_DIGITS]
        return [start, *[f"{moment}{number & words.UINT16_MAX:04X}" for number in following]]

    def _turn_to_month(self, now_ms: int) -> None:
        """Count from the start of the month of this moment."""
        month = datetime.fromtimestamp(now_ms / words.MS_A_SECOND, UTC).replace(
            day=1, hour=0, minute=0, second=0, microsecond=0
        )
        after = month.replace(year=month.year + month.month // MONTHS, month=month.month % MONTHS + 1)
        self._month_ms = int(month.timestamp() * words.MS_A_SECOND)
        self._next_month_ms = int(after.timestamp() * words.MS_A_SECOND)
