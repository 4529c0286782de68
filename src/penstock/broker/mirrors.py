"""Staged rows at slaves: each has a copy of every spool of its master, byte for byte, and takes them up when it is the master.

    a spool grows ─▶ SPOOL ─▶ written there      sealed ─▶ flushed there ─▶ SPOOLED ─▶ when all in sync have it: SEAL is answered

A slave joins the in-sync set when it has all sealed spools, and a publish begins when all of the set have its spools: so whoever
becomes the master can publish what was sealed. A spool goes from a slave when what made it needless is on all disks, also after
its connection was lost.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from penstock.broker.copies import Copies
from penstock.broker.spool import TOKEN, Answer, Spools, flush, is_made_here, lost
from penstock.disk.files import Files
from penstock.disk.job import Job
from penstock.errors import StoreError, WireError
from penstock.wire import ha

log = logging.getLogger("penstock.staging")

PIECE_BYTES = 256 << 10
TURN_BYTES = 1 << 20
WINDOW_BYTES = 4 << 20  # sent and not acknowledged
LATE_MS = 30_000  # without a word about what it lacks
RETRY_MS = 10_000  # after a slave could not write


class Sender:
    """What one slave has of the spools of this master. `say`: send a frame."""

    def __init__(self, spools: Spools, copies: Copies, say: Callable[[bytes], None]) -> None:
        self._spools = spools
        self._copies = copies
        self._say = say
        self._sent: dict[str, int] = {}
        self._flushed: set[str] = set()
        self._under_way: deque[int] = deque()  # sizes of pieces that are not acknowledged
        self._gone: list[tuple[int, str]] = []  # dropped here: to be dropped there when the log is confirmed so far
        self._to_list = -1  # when the log is confirmed so far, the slave is told which there are; -2: it was
        self._seen = -1  # the changes that are sent
        self._failed_ms = -1
        self._doubtful = True  # whether all is there
        self._heard_ms = -1  # -1: there was no turn yet
        self._quiet = False  # all is there, and nothing is under way
        self.lacks = "its staged rows are not complete"

    @property
    def fresh(self) -> bool:
        """Whether rows were staged, or given up, since."""
        return self._seen != self._spools.changes

    @property
    def failed(self) -> bool:
        """It cannot write them."""
        return self._failed_ms >= 0

    def has(self, token: str) -> bool:
        """Whether a sealed spool is on its disk."""
        return token in self._flushed

    def turn(self, epoch: int, mono_ms: int, end: int) -> None:
        """Send what is new; the log ends there now."""
        spools = self._spools
        if self._heard_ms < 0:  # its time begins with the first that it is sent
            self._heard_ms = mono_ms
        if self._quiet and self._seen == spools.changes:
            self._heard_ms = mono_ms
            return
        if self._to_list == -1:  # what makes the others needless stands below, and the slave may lack it
            self._to_list = end
        if self.failed and mono_ms - self._failed_ms >= RETRY_MS:
            self._failed_ms = -1
            self._doubtful = True
            self._sent.clear()
            self._seen = -1
        if self.fresh and not self.failed:
            self._doubtful = True
            self._gone += [(end, token) for token in self._sent if token not in spools.by_token]
            for _, token in self._gone:
                self._sent.pop(token, None)
            try:
                if self._send(epoch):
                    self._seen = spools.changes
            except StoreError as error:
                log.error("staged rows cannot be sent to a slave error=%s", error)
                self._failed_ms = mono_ms
        if 0 <= self._to_list <= self._copies.confirmed_flushed:
            self._to_list = -2
            self._say(ha.spools_there(epoch, [*spools.by_token, *(token for _, token in self._gone)]))
        while self._gone and self._gone[0][0] <= self._copies.confirmed_flushed:
            _, token = self._gone.pop(0)
            self._flushed.discard(token)
            self._say(ha.spool_gone(epoch, token))
        if self._doubtful:
            self._doubtful = False
            missing = any(s.sealed and s.token not in self._flushed for s in spools.by_token.values())
            self.lacks = "its staged rows are not complete" if missing else ""
        if not self.lacks and not self._under_way:
            self._heard_ms = mono_ms
        elif not self.failed and mono_ms - self._heard_ms >= LATE_MS:
            log.error("a slave says nothing of the staged rows that it was sent for %d ms", LATE_MS)
            self._failed_ms = self._heard_ms = mono_ms
        if self.failed:
            self.lacks = "it cannot keep staged rows"
        self._quiet = (
            not (self.lacks or self.failed or self.fresh or self._under_way or self._gone) and self._to_list == -2
        )

    def _send(self, epoch: int) -> bool:
        """Whether all there is was sent."""
        left = TURN_BYTES
        for spool in self._spools.by_token.values():
            sent = self._sent.get(spool.token, 0)
            while sent < spool.size:
                if left <= 0 or sum(self._under_way) >= WINDOW_BYTES:
                    return False
                data = self._spools.read(spool, sent, min(PIECE_BYTES, spool.size - sent))
                sealed = spool.sealed and sent + len(data) == spool.size
                self._say(ha.spool(epoch, spool.token, sent, data, sealed=sealed))
                self._under_way.append(len(data))
                left -= len(data)
                sent += len(data)
                self._sent[spool.token] = sent
        return True

    def heard(self, told: ha.Spooled, mono_ms: int) -> None:
        """The slave has so much of a spool."""
        self._doubtful = True
        self._quiet = False
        self._heard_ms = mono_ms
        if told.failed:
            self._failed_ms = mono_ms
        if not told.flushed:
            if not self._under_way:
                raise WireError("a slave that acknowledges staged rows which it was not sent")
            self._under_way.popleft()
            return
        spool = self._spools.by_token.get(told.token)
        if spool is not None and spool.sealed and told.size == spool.size == self._sent.get(told.token):
            self._flushed.add(told.token)


class Mirrors:
    """What all slaves have, and who waits for that."""

    def __init__(self, copies: Copies, spools: Spools) -> None:
        self._copies = copies
        self._spools = spools
        self._senders: dict[str, Sender] = {}  # by node
        self._waiting: list[tuple[set[str], Answer]] = []

    def follow(self, node: str, say: Callable[[bytes], None]) -> Sender:
        """A slave follows that keeps spools."""
        sender = self._senders[node] = Sender(self._spools, self._copies, say)
        return sender

    def leave(self, node: str, sender: Sender) -> None:
        """Its connection is gone."""
        if self._senders.get(node) is sender:
            del self._senders[node]

    def _nodes(self) -> Iterable[str]:
        """Those who may become the master and keep spools, or are away."""
        copies = self._copies
        there = copies.members
        nodes = (
            [node for node, member in there.items() if member.in_sync] if copies.roll is None else copies.roll.counted
        )
        return [node for node in nodes if node in self._senders or node not in there]

    @property
    def others(self) -> bool:
        """Whether another node may become the master."""
        return any(True for _ in self._nodes()) or self._copies.available

    def when_copied(self, tokens: Iterable[str], answer: Answer) -> None:
        """Call `answer` when all who may become the master have these sealed spools on their disks; at once when they have."""
        self._waiting.append((set(tokens), answer))
        if not self._nodes():
            self.settle()

    def settle(self) -> None:
        """Answer those whose spools are where they should be. Once a turn."""
        if not self._waiting:
            return
        nodes = list(self._nodes())
        waiting, self._waiting = self._waiting, []
        for tokens, answer in waiting:
            dropped = next((token for token in tokens if token not in self._spools.by_token), "")
            if dropped:
                answer(lost(dropped, "were dropped"))
            elif all(node in self._senders and self._senders[node].has(token) for node in nodes for token in tokens):
                answer(None)
            else:
                self._waiting.append((tokens, answer))


class Mirror:
    """A slave's half: the spools of its master, as files of the same names."""

    def __init__(self, files: Files, folder: Path) -> None:
        self._files = files
        self._folder = folder
        self._sealed: dict[str, int] = {}  # to be flushed, and how large
        self._flushed: list[tuple[str, int]] = []
        self._lost: list[str] = []
        self._running = False

    @property
    def wants_job(self) -> bool:
        """There is something to flush."""
        return bool(self._sealed) and not self._running

    def take(self, told: ha.Spool) -> None:
        """Write a piece where it belongs; what is there already stays. WireError, StoreError."""
        if TOKEN.fullmatch(told.token) is None or told.at < 0:
            raise WireError("staged rows without a name or a place")
        fd = self._files.open(self._folder / told.token, create=True)
        try:
            size = self._files.size(fd)
            if told.at > size:  # what comes before could not be written
                raise StoreError(f"staged rows at {told.at} of a file that ends at {size}")
            if self._files.read(fd, told.at, len(told.data)) != told.data:
                self._files.cut(fd, told.at)
                self._files.write(fd, told.at, told.data)
            if told.sealed and size > told.at + len(told.data):
                self._files.cut(fd, told.at + len(told.data))
        finally:
            self._files.close(fd)
        if told.sealed:
            self._sealed[told.token] = told.at + len(told.data)

    def drop(self, token: str) -> None:
        """The master has no such spool any more."""
        self._sealed.pop(token, None)
        if TOKEN.fullmatch(token) is not None:
            self._files.unlink(self._folder / token)

    def keep_only(self, tokens: Iterable[str]) -> None:
        """The master has these alone. What is another's stays, whatever its name."""
        for name in set(self._files.names(self._folder)) - set(tokens):
            if is_made_here(self._files, self._folder / name):
                self.drop(name)

    @property
    def has_news(self) -> bool:
        """Whether something was flushed, or could not be."""
        return bool(self._flushed or self._lost)

    def take_flushed(self) -> list[tuple[str, int]]:
        """(token, size) of what is on the disk since."""
        flushed, self._flushed = self._flushed, []
        return flushed

    def take_lost(self) -> list[str]:
        """The tokens of what could not be flushed since: they are not here any more."""
        lost, self._lost = self._lost, []
        return lost

    def take_job(self) -> Job | None:
        """Flush what was sealed."""
        if not self.wants_job:
            return None
        self._running = True
        sealed, self._sealed = self._sealed, {}
        files, folder = self._files, self._folder

        def finish(error: BaseException | None, now_ms: int) -> None:
            self._running = False
            if error is None:
                self._flushed += sealed.items()
                return
            log.error("staged rows of the master cannot be flushed error=%s", error)
            for token in sealed:  # the pages are marked clean now: no later success would mean anything
                self._lost.append(token)
                self.drop(token)

        return Job("stage", lambda: flush(files, folder, [folder / token for token in sealed]), finish)
