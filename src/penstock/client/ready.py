"""How many messages each connection may have in flight, when several share a limit. No I/O here."""

from __future__ import annotations

from collections.abc import Sequence


def share_ready(in_flight_max: int, names: Sequence[str], turn: int = 0) -> dict[str, int]:
    """A ready count for each name, together `in_flight_max`.

    What does not divide goes to the names from the `turn`-th on: with more names than messages to be had, a caller that
    counts `turn` up lets every name have its time.
    """
    if not names:
        return {}
    each, rest = divmod(max(0, in_flight_max), len(names))
    return {name: each + ((number - turn) % len(names) < rest) for number, name in enumerate(names)}
