"""A broker with a planted defect: `python -m chaos.defects NAME up …`. The oracle must object to each (reliability.md 7.5).

It runs with PENSTOCK_PURE=1: compiled modules cannot be changed from outside.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from penstock.broker.nsq.topics import QueueTopic
from penstock.broker.sending import Placed
from penstock.cli.main import main
from penstock.disk.cursorfile import CursorFile
from penstock.disk.files import Files
from penstock.disk.readyqueue import ReadyQueue
from penstock.disk.readysegment import ReadySegment


def answered_before_appended() -> None:
    """A publish is stored together with a later one."""
    put = QueueTopic.put
    kept: list[tuple[Any, ...]] = []

    def later(self: QueueTopic, now_ns: int, body: Any, at: int, length: int, more: int) -> int:
        kept.append((now_ns, bytes(body[at : at + length]), 0, length, more))
        if len(kept) >= 40 and not more:
            for one in kept:
                if self.ready(one[3], 1) == 0:
                    put(self, *one)
            kept.clear()
        return 0

    QueueTopic.put = later  # type: ignore[method-assign]


def finish_in_memory() -> None:
    """What is finished out of order is remembered by the process, not by the file."""
    done: set[tuple[int, int]] = set()

    def finish(self: CursorFile, ordinal: int) -> int:
        done.add((id(self), ordinal))
        self.beyond += 1
        return 0

    CursorFile.finish = finish  # type: ignore[method-assign]
    CursorFile.finished = lambda self, ordinal: int((id(self), ordinal) in done)  # type: ignore[method-assign]


def read_position_before_finish() -> None:
    """What was handed out counts as consumed after a restart."""
    commit = CursorFile.commit

    def ahead(self: CursorFile, ordinal: int) -> None:
        commit(self, ordinal + 20)
        self.committed = ordinal

    CursorFile.commit = ahead  # type: ignore[method-assign]


def deferred_forgotten() -> None:
    """Every third deferred message is answered and kept nowhere."""
    from penstock.broker.nsq.deferral import Deferral

    append = Deferral._append
    number = 0

    def sometimes(self: Deferral, *words: Any) -> Any:
        nonlocal number
        number += 1
        return append(self, *words) if number % 3 else Placed(0, 0, 0)

    Deferral._append = sometimes  # type: ignore[method-assign]


def deferred_early() -> None:
    """Delays are cut by a tenth."""
    from penstock.broker.nsq.deferral import Deferral

    append = Deferral._append

    def sooner(self: Deferral, about: Any, body: bytes, due_ms: int, *words: Any) -> Any:
        return append(self, about, body, due_ms - (due_ms - self._core.time.now_ms) // 10, *words)

    Deferral._append = sooner  # type: ignore[method-assign]


def position_of_memory() -> None:
    """After a kill the records of the last segment are not looked for: their number is what was known at its start."""
    scan = ReadySegment._scan

    def short(self: ReadySegment, *given: Any) -> None:
        scan(self, *given)
        while self.count and self.count % 64:
            self.count -= 1
            self.end = self.start(self.count)

    ReadySegment._scan = short  # type: ignore[method-assign]


def batches_in_parts() -> None:
    """The records of an MPUB do not say that others follow, and are written slowly."""
    append = ReadyQueue.append

    def slowly(self: ReadyQueue, *words: Any) -> None:
        if words[-1]:
            time.sleep(0.001)
        append(self, *words[:-1], 0)

    ReadyQueue.append = slowly  # type: ignore[method-assign]


def ids_again() -> None:
    """Ids of messages are taken from a counter that begins anew with the process."""
    append = ReadyQueue.append
    numbers = iter(range(1, 1 << 60))

    def counted(self: ReadyQueue, now_ns: int, attempts: int, message_id: int, *words: Any) -> None:
        append(self, now_ns, attempts, message_id or next(numbers), *words)

    ReadyQueue.append = counted  # type: ignore[method-assign]


def answered_before_flush() -> None:
    """Every flush is said to be over when it begins."""
    datasync = Files.datasync

    def later(self: Files, fd: int) -> None:
        copy = os.dup(fd)
        threading.Timer(0.05, lambda: (datasync(self, copy), os.close(copy))).start()

    Files.datasync = later  # type: ignore[method-assign]


def over_before_its_copy() -> None:
    """What fell due is over when it was copied, not when the copy is durable; and queues are flushed slowly."""
    from chaos.slowly import slow
    from penstock.broker.nsq.moving import Moving

    arrive = Moving.arrive

    def over(self: Moving, *words: Any) -> None:
        arrive(self, *words)
        self.arrived[-1].flush = 0

    Moving.arrive = over  # type: ignore[method-assign]
    slow("queues", 300)


DEFECTS: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {  # what is planted, the rules that may object first
    "answered before appended": (answered_before_appended, ("Q1", "Q6")),
    "finished in memory": (finish_in_memory, ("Q5", "Q6")),
    "read position before finish": (read_position_before_finish, ("Q1", "Q6")),
    "deferred forgotten": (deferred_forgotten, ("Q1", "Q6")),
    "deferred early": (deferred_early, ("Q4",)),
    "position of memory": (position_of_memory, ("Q1", "Q5", "Q6")),
    "batches in parts": (batches_in_parts, ("Q7",)),
    "ids again": (ids_again, ("Q3",)),
}


BELOW: dict[str, Callable[[], None]] = {  # what no kill can show, only what the disk did not get (`images`)
    "answered before flush": answered_before_flush,
    "over before its copy": over_before_its_copy,
}


# -- what only a power cut shows, in staged writes


class CutDefect(NamedTuple):
    """`side`: whose flushes are late while it is looked for, and by how much."""

    plant: Callable[[], None]
    side: str
    rules: tuple[str, ...]
    late_ms: int = 1_500


def published_before_flushed() -> None:
    """PUBLISH is answered when the rows are in the log, flushed or not."""
    from penstock.fronts.requests.staging import StageCalls

    publish = StageCalls.stage_publish

    class Hasty:
        """The session of a publish, which does not wait."""

        def __init__(self, session: Any) -> None:
            self.push = session.push

        def answer_when_stored(self, topic: Any, reply: Any) -> None:
            self.push(reply)

    StageCalls.stage_publish = lambda self, session, *words: publish(self, Hasty(session), *words)  # type: ignore


def sealed_before_flushed() -> None:
    """SEAL is answered when the rows are with the kernel."""
    from penstock.broker.staging import Staging

    assert callable(Staging.when_flushed)  # a plant that replaces nothing would find nothing
    Staging.when_flushed = lambda self, spools, answer: answer(None)  # type: ignore[method-assign]


def publish_begun_again() -> None:
    """A publish that was cut short, here after half of its rows, is done once more from its first row."""
    from penstock.broker.publish import BatchPublish

    append, pieces = BatchPublish.append, BatchPublish._append_piece

    def anew(self: BatchPublish, spools: Any, skip: int) -> None:
        append(self, spools, 0)

    def slowly(self: BatchPublish, *words: Any) -> None:
        pieces(self, *words)
        self._core.flush_log()
        time.sleep(0.05)

    BatchPublish.append = anew  # type: ignore[method-assign]
    BatchPublish._append_piece = slowly  # type: ignore[method-assign]


CUT_DEFECTS = {
    # "answer": who asks on is told to ask again, for the batch that was answered can still be lost
    # The first PUBLISH of a run waits for flushes before it: where these are later, the cut comes first.
    "published before flushed": CutDefect(published_before_flushed, "log", ("S1", "answer"), 300),
    "sealed before flushed": CutDefect(sealed_before_flushed, "staged", ("S4",)),
    # S3: what is flushed in the middle of it a durable reader may see, on a machine that is slow enough
    "publish begun again": CutDefect(publish_begun_again, "none", ("S2", "S3")),
}


if __name__ == "__main__":
    name = sys.argv.pop(1)
    PLANTS = {known: plant for known, (plant, *_) in (DEFECTS | CUT_DEFECTS).items()} | BELOW
    PLANTS[name]()
    main()
