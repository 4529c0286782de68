"""A broker on a disk that is full or slow while a file says so: `python faulty.py CONTROL [defect=NAME] broker …`; CONTROL holds
`full`, `slow MS` or nothing. NAME is of `DEFECTS`: what is planted, for the oracle to find.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from penstock.cli.main import main
from penstock.disk.files import Files
from penstock.errors import DiskFull

CONTROL = Path(sys.argv[1]) if __name__ == "__main__" else Path()


def said() -> list[str]:
    try:
        return CONTROL.read_text().split()
    except OSError:
        return []


def without_room(call: Callable[..., Any]) -> Callable[..., Any]:
    """What takes room, on a disk that may be full."""

    def refused(self: Files, fd: int, at: int, *words: Any) -> Any:
        if said() == ["full"] and not (call.__name__ == "write" and at + len(words[0]) <= self.size(fd)):
            raise DiskFull("no space left (by order of the test)")
        return call(self, fd, at, *words)

    return refused


def plant() -> None:
    datasync = Files.datasync

    def slowly(self: Files, fd: int) -> None:
        words = said()
        if words[:1] == ["slow"]:
            time.sleep(int(words[1]) / 1000)  # the slow disk is the experiment
        datasync(self, fd)

    Files.datasync = slowly  # type: ignore[method-assign]
    Files.allocate = without_room(Files.allocate)  # type: ignore[method-assign]
    Files.write = without_room(Files.write)  # type: ignore[method-assign]
    Files.write_parts = without_room(Files.write_parts)  # type: ignore[method-assign]


def answered_alone() -> None:
    """Level `pair` is answered when the master has it."""
    from penstock.delivery.waiters import Outcome
    from penstock.fronts.remoting.front import BrokerFront

    def at_once(self: BrokerFront, session: Any, answers: bytes, on_disk: bool) -> None:
        session.copied(answers, Outcome.REACHED)

    BrokerFront._await_copies = at_once  # type: ignore[method-assign]


def shown_unconfirmed() -> None:
    """Readers see what no slave has."""
    from penstock.broker.copies import Copies

    Copies.visible = lambda self, level, durable: 1 << 60  # type: ignore[method-assign]


def damage_passed_over() -> None:
    """Readers do not wait for the copy of a damaged record."""
    from penstock.log.repair import Repairs

    Repairs.awaits = lambda self, topic, queue_id, offset, position: False  # type: ignore[method-assign]


def sealed_alone() -> None:
    """SEAL is answered when the master has the rows; they go to slaves late."""
    from penstock.broker.mirrors import Mirrors, Sender

    Mirrors.when_copied = lambda self, tokens, answer: answer(None)  # type: ignore[method-assign]
    turn = Sender.turn

    def late(self: Sender, epoch: int, mono_ms: int, end: int) -> None:
        if mono_ms % 4_000 < 500:
            turn(self, epoch, mono_ms, end)
        self.lacks = ""

    Sender.turn = late  # type: ignore[method-assign]


def published_alone() -> None:
    """PUBLISH is answered when the master has the batch; the log goes to slaves late."""
    from penstock.broker.mirrors import Mirrors
    from penstock.fronts.ha import MasterSession

    Mirrors.others = property(lambda self: False)  # type: ignore[assignment]
    send = MasterSession._send

    def late(self: MasterSession, *words: Any) -> None:
        if words[-1] % 2_000 < 500:
            send(self, *words)

    MasterSession._send = late  # type: ignore[method-assign]


def timed_by_the_wall() -> None:
    """Timeouts and leases go by the wall clock."""
    from penstock import app
    from penstock.clock import Clock

    class WallClock(Clock):
        """One that does not know the other."""

        def monotonic_ns(self) -> int:
            return time.time_ns()

    app.Clock = WallClock  # type: ignore[misc]


DEFECTS: dict[str, Callable[[], None]] = {
    "answered alone": answered_alone, "shown unconfirmed": shown_unconfirmed,
    "damage passed over": damage_passed_over, "sealed alone": sealed_alone, "published alone": published_alone,
    "timed by the wall": timed_by_the_wall,
}  # fmt: skip


if __name__ == "__main__":
    del sys.argv[1]
    plant()
    if sys.argv[1].startswith("defect="):
        DEFECTS[sys.argv.pop(1).removeprefix("defect=")]()
    main()
