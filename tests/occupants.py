"""What has the name of a file that is about to be made, and is none of the broker's."""

from __future__ import annotations

import os
from pathlib import Path

OCCUPANTS = ("longer", "link", "link to nothing", "folder", "pipe")
PRECIOUS = b"precious"


def occupy(path: Path, what: str, size: int, outside: Path) -> None:
    """Make one of OCCUPANTS there: a file longer than `size`, or something else; links lead to a folder `outside`."""
    outside.mkdir()
    elsewhere = outside / "elsewhere"
    elsewhere.write_bytes(PRECIOUS)
    match what:
        case "longer":
            path.write_bytes(b"theirs" * size)
        case "link":
            path.symlink_to(elsewhere)
        case "link to nothing":
            path.symlink_to(outside / "nothing")
        case "folder":
            path.mkdir()
        case "pipe":
            os.mkfifo(path)


def demand_aside(data: Path, name: str, outside: Path) -> None:
    """It is in the data folder's `lost+found` under this name and a suffix, alone; what its link led to is as it was."""
    assert {one.name: one.read_bytes() for one in outside.iterdir()} == {"elsewhere": PRECIOUS}
    aside = [one.name for one in (data / "lost+found").iterdir() if one.name != "manifest.jsonl"]
    assert [one.rpartition(".")[0] for one in aside] == [name]
