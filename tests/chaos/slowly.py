"""A broker whose flushes of some files take long: `python -m chaos.slowly SIDE MS up …`; SIDE is log, queues or cursors."""

from __future__ import annotations

import os
import sys
import time

from penstock.cli.main import main
from penstock.disk.files import Files

SIDES = {"log": "/commitlog/", "queues": ".queue", "cursors": ".cursor", "none": "\0"}


def slow(side: str, ms: int) -> None:
    """Let every flush of this side begin so much later."""
    datasync = Files.datasync

    def later(self: Files, fd: int) -> None:
        if SIDES[side] in os.readlink(f"/proc/self/fd/{fd}"):
            time.sleep(ms / 1000)  # the slow disk is the experiment
        datasync(self, fd)

    Files.datasync = later  # type: ignore[method-assign]


if __name__ == "__main__":
    slow(sys.argv.pop(1), int(sys.argv.pop(1)))
    main()
