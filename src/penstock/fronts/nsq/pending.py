"""Pending: what one connection is answered behind something that must come first."""

from __future__ import annotations

from penstock.broker.nsq.copied import WHY, Copy
from penstock.broker.nsq.topics import Topic
from penstock.wire.nsq import ERROR, OK_FRAME, frame

SUB = b"SUB"


class Pending:
    """Answers behind flush number `flush`, or (0) behind the copies of what was published with `verb` to a topic."""

    __slots__ = ("_answers", "_topic", "_verb", "behind", "flush", "over", "publishes", "turn")

    def __init__(self, flush: int, topic: Topic | None = None, verb: bytes = b"") -> None:
        self.flush = flush
        self.over = False  # what it waited for has come, or never will
        self.publishes = 0  # that are answered first
        self.turn = 0  # in which they were published, while more may be
        self.behind = b""
        self._topic = topic
        self._verb = verb
        self._answers = b""

    def put(self, data: bytes) -> None:
        """Something is answered behind what is waited for."""
        self.behind += data

    def flushed(self, number: int) -> None:
        """Flushes up to this one are over."""
        if 0 < self.flush <= number:
            self.over = True

    def join(self) -> None:
        """One more publish is answered first."""
        self.publishes += 1

    def wait_for(self, turn: int) -> None:
        """It waits with all that is published in this turn (0: with nothing else)."""
        self.turn = turn

    def joins(self, topic: Topic, verb: bytes, turn: int) -> bool:
        """Whether one more publish waits for the same, and nothing was answered between."""
        same = self._topic is topic and self._verb == verb and self.turn == turn
        return same and not self.behind and not self.over

    def tell(self, outcome: Copy, rejected: dict[bytes, int]) -> None:
        """What became of the publishes; those that are not what their topic's level says are counted as rejected."""
        self.over = True
        self._answers = OK_FRAME
        if outcome != Copy.THERE and self._verb != SUB:  # the channel is there, whoever knows of it
            code = b"E_%s_FAILED" % self._verb
            self._answers = frame(ERROR, b"%s %s failed %s" % (code, self._verb, WHY[outcome].encode()))
            rejected[code] = rejected.get(code, 0) + self.publishes

    def answers(self) -> bytes:
        """All of them, in their order."""
        return self._answers * self.publishes + self.behind
