"""Runs `penstock` with other words again and again, each time in a process of its own, forked from one that has all modules.

    python forked.py AT_ONCE  <  {"folder": …, "calls": {name: [word, …]}}  >  {name: [exit code, standard error]}

Only the start of an interpreter is spared, which costs ten times what a verb does.
"""

from __future__ import annotations

import json
import os
import pkgutil
import signal
import sys
from importlib import import_module
from pathlib import Path

import penstock.cli
from penstock.cli.__main__ import main

WITHIN_S = 300  # a verb that takes longer is ended, and its exit code is a signal's


def become(words: list[str], told: Path) -> None:
    """This process is the command now: its input is empty, what it says goes into `told`, and it ends as one ends."""
    signal.alarm(WITHIN_S)
    nothing, says = os.open(os.devnull, os.O_RDWR), os.open(told, os.O_WRONLY | os.O_CREAT)
    for fd, to in ((0, nothing), (1, nothing), (2, says)):
        os.dup2(to, fd)
    sys.argv = ["penstock", *words]
    main()


def run(at_once: int, folder: Path, calls: dict[str, list[str]]) -> None:
    """All calls, so many side by side."""
    running: dict[int, str] = {}
    ended: dict[str, int] = {}
    left = list(calls)
    while left or running:
        if left and len(running) < at_once:
            name = left.pop(0)
            pid = os.fork()
            if not pid:
                become(calls[name], folder / name)
                return
            running[pid] = name
        else:
            pid, status = os.wait()
            ended[running.pop(pid)] = os.waitstatus_to_exitcode(status)
    print(json.dumps({name: [ended[name], (folder / name).read_text()] for name in calls}))


if __name__ == "__main__":
    for module in pkgutil.walk_packages(penstock.cli.__path__, "penstock.cli."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
    asked = json.load(sys.stdin)
    run(int(sys.argv[1]), Path(asked["folder"]), asked["calls"])
