"""What the engine knows of a replica set, and what it grants to one node: a term, to be the master of an epoch while its lease
is renewed.

    lease asked for at t ─▶ the master answers until t + lease − margin ─▶ the engine may let another one stand from t + lease

The clock is the steady one, which goes on while the machine sleeps. Clocks that differ by a tenth do no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import msgspec

from penstock.errors import WireError

MARGIN_MS_MIN = 1_000
MARGIN_PART = 10  # of the lease


class SetState(msgspec.Struct, frozen=True, rename="camel"):
    """A replica set in the engine. `in_sync`: the nodes that may be the master, each with the loss number it had when it was
    taken in; `heir`: to whom the last master has given its place; `paused`: nobody else takes the place unasked.
    """

    set_id: str
    epoch: int
    tag: str
    master: str
    in_sync: dict[str, int]
    heir: str = ""
    paused: bool = False

    def encode(self) -> bytes:
        """The value of the key."""
        return msgspec.json.encode(self)


class Seat(msgspec.Struct, frozen=True, rename="camel"):
    """Who is the master, in the engine while its lease lives: the epoch, where clients and where slaves connect, whose store."""

    node: str
    epoch: int
    remoting: str
    ha: str
    store: str = ""

    def encode(self) -> bytes:
        """The value of the key."""
        return msgspec.json.encode(self)


def read_state(data: bytes) -> SetState:
    """The state in a value. WireError when it is none: nobody may act on half of it."""
    try:
        state = msgspec.json.decode(data, type=SetState)
        right = bytes.fromhex(state.set_id) and bytes.fromhex(state.tag) and state.epoch > 0 and state.in_sync
    except (msgspec.DecodeError, ValueError, RecursionError):
        right = False
    if not right:
        raise WireError("the engine holds something else than the state of a replica set")
    return state


def read_seat(data: bytes) -> Seat:
    """The seat in a value. WireError when it is none."""
    try:
        return msgspec.json.decode(data, type=Seat)
    except (msgspec.DecodeError, RecursionError):
        raise WireError("the engine holds something else than the name of a master") from None


class Term:
    """One node's time as the master."""

    def __init__(self, state: SetState, revision: int, lease: int, lease_ms: int, asked_ms: int) -> None:
        self.state = state  # as this node has written it last
        self.revision = revision
        self.lease = lease
        self._answers_ms = lease_ms - max(MARGIN_MS_MIN, lease_ms // MARGIN_PART)
        self.until_ms = asked_ms + self._answers_ms  # nothing is answered from then on
        self.over = ""  # why it is
        self.by_favour = False  # the members let it go on, the engine does not answer

    def renewed(self, asked_ms: int) -> None:
        """The lease was asked for then, and lives."""
        if not self.over:
            self.until_ms = max(self.until_ms, asked_ms + self._answers_ms)
            self.by_favour = False

    def favoured(self, asked_ms: int) -> None:
        """Everybody who could stand was asked then, and does not for as long as a lease."""
        self.renewed(asked_ms)
        self.by_favour = not self.over

    def sit(self, lease: int, asked_ms: int) -> None:
        """The former lease is gone, nobody has stood, and this one was given instead."""
        self.lease = lease
        self.renewed(asked_ms)

    def written(self, state: SetState, revision: int) -> None:
        """This is what the engine holds."""
        self.state, self.revision = state, revision

    def end(self, why: str) -> None:
        """It is over, for good."""
        self.over = self.over or why
        self.until_ms = 0


class Favours:
    """What a master asks of its slaves while the engine does not answer, and what a slave has promised: not to stand."""

    def __init__(self) -> None:
        self._number = 0
        self._asked_ms = 0
        self._wanted: set[str] = set()
        self._granted: Callable[[int], None] | None = None
        self.until_ms = 0  # this node does not stand before

    def ask(self, nodes: Collection[str], asked_ms: int, granted: Callable[[int], None]) -> int:
        """The number of a new question to all of these; `granted(asked_ms)` when each has said yes. Older ones count no more."""
        self._number += 1
        self._asked_ms, self._wanted, self._granted = asked_ms, set(nodes), granted
        self._look()
        return self._number

    def hear(self, node: str, number: int, for_ms: int) -> None:
        """A slave says yes."""
        if number == self._number:
            self._wanted.discard(node)
            self._look()

    def _look(self) -> None:
        granted = self._granted
        if granted is not None and not self._wanted:
            self._granted = None
            granted(self._asked_ms)

    def grant(self, for_ms: int, mono_ms: int) -> None:
        """The master asks, and it is promised."""
        self.until_ms = max(self.until_ms, mono_ms + for_ms)
