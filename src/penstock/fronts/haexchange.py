"""Damaged records, asked of a peer and given to it: WANT and GIVE, in both directions of a connection of replication.

Both nodes follow one table of epochs while the connection stands, so a position means the same bytes to them. A frame of another
epoch is none of this. Whether a copy is the record is judged by `log.repair`, by the sum that stands there.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.log.repair import Repairs
from penstock.wire import ha, haframe, hawords

ASKED_MAX = 64  # records at a time
ANSWER_MS = 3_000  # then it is asked again
TRIES = 3  # without an answer: then the peer counts as one that has none
AGAIN_MS = 60_000  # one that has none is asked again: it may have been mended meanwhile
PACE_MS = 20
GIVEN_BYTES_MAX = 4 << 20  # in a turn; who asks for more asks again


class Exchange:
    """With one peer. `say`: send a frame."""

    def __init__(self, repairs: Repairs, say: Callable[[bytes], None]) -> None:
        self._repairs = repairs
        self._say = say
        self._asked: dict[int, tuple[int, int]] = {}  # position → (when it is over, how often it was asked)
        self._cannot: dict[int, int] = {}  # position → when the peer is asked again
        self._given_bytes = 0
        self.due_ms = 0  # when it looks again at what is wanted

    @property
    def busy(self) -> bool:
        """Whether a turn has something to do here, though nothing is wanted."""
        return bool(self._asked or self._cannot or self._given_bytes)

    def turn(self, epoch: int, mono_ms: int, end: int) -> None:
        """Ask for what is wanted below the end of the peer's log."""
        self._given_bytes = 0
        repairs = self._repairs
        if self._asked or self._cannot:
            self._look(mono_ms)
        if not repairs.wanted or mono_ms < self.due_ms:
            return
        self.due_ms = mono_ms + PACE_MS
        for want in repairs.due(mono_ms):
            position = want.position
            until_ms, tries = self._asked.get(position, (0, 0))
            if position in self._cannot or position >= end or mono_ms < until_ms:
                continue
            if not until_ms and len(self._asked) >= ASKED_MAX:
                return
            self._asked[position] = mono_ms + ANSWER_MS, tries + 1
            self._say(ha.want(epoch, ha.Wanted(position, *repairs.told(position))))

    def _look(self, mono_ms: int) -> None:
        wanted = self._repairs.wanted
        for position, (until_ms, tries) in list(self._asked.items()):
            if position not in wanted:
                del self._asked[position]
            elif mono_ms >= until_ms and tries >= TRIES:
                self._note_cannot(position, mono_ms)
        for position, again_ms in list(self._cannot.items()):
            if mono_ms >= again_ms or position not in wanted:
                del self._cannot[position]
                self._repairs.hope_again(position)

    def _note_cannot(self, position: int, mono_ms: int) -> None:
        self._asked.pop(position, None)
        if position in self._repairs.wanted and position not in self._cannot:
            self._cannot[position] = mono_ms + AGAIN_MS
            self._repairs.cannot(position)

    def hear(self, head: haframe.Head, body: bytes, mono_ms: int) -> None:
        """A WANT or a GIVE."""
        told, record = ha.read_wanted(body)
        if head.kind == hawords.WANT:
            if self._given_bytes < GIVEN_BYTES_MAX:
                record = self._repairs.give(told.position, told.crc)
                self._given_bytes += len(record) + hawords.HEAD_BYTES
                self._say(ha.give(head.epoch, told._replace(size=len(record)), record))
        elif told.position in self._asked:  # else it was given already, or never asked for
            if record and self._repairs.given(told.position, record):
                del self._asked[told.position]
            else:
                self._note_cannot(told.position, mono_ms)

    def lost(self) -> None:
        """The connection is gone."""
        for position in self._cannot:
            self._repairs.hope_again(position)
