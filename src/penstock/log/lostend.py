"""A start that finds that a power cut may have taken the end of the log, of a node of a replica set: `ha/lost-end`, empty.

The start marks the store as its own, and the next one would find a process that was killed, no power cut. So this is written
before, and goes when the node has written down what follows from it: a raised loss number, and, of a master, a new epoch.
"""

from __future__ import annotations

from pathlib import Path

from penstock.disk.files import Files

NAME = Path("ha") / "lost-end"


def note(files: Files, root: Path) -> None:
    """The end may be lost; nothing where no set is. StoreError."""
    path = root / NAME
    if path.parent.is_dir() and not path.exists():
        files.close(files.open(path, create=True))
        files.sync_folder(path.parent)


def noted(root: Path) -> bool:
    """Whether a start has found so, and nobody has written down what follows."""
    return (root / NAME).exists()


def over(files: Files, root: Path) -> None:
    """It is written down. StoreError."""
    path = root / NAME
    if path.exists():
        files.unlink(path)
        files.sync_folder(path.parent)
