"""A broker whose flushes of some files take long: `python -m chaos.slowly SIDE MS [defect=NAME] up …`; SIDE is log, queues,
cursors or staged."""

from __future__ import annotations

import os
import sys
import time

from penstock.cli.main import main
from penstock.disk.files import Files

SIDES = {"log": "/commitlog/", "queues": ".queue", "cursors": ".cursor", "staged": "/staging/", "none": "\0"}


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
    if sys.argv[1].startswith("defect="):
        from chaos.defects import CUT_DEFECTS

        CUT_DEFECTS[sys.argv.pop(1).partition("=")[2]].plant()
    main()
