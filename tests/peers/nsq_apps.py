"""NSQ's own programs 1.3.0, built from its module."""

from __future__ import annotations

import os
from pathlib import Path

from peers.conftest import CACHE, install

NAMES = "nsqd", "nsqadmin", "nsq_stat"
# `go install` would ask which versions there are; this asks for the one alone.
BUILD = (
    "mkdir FOLDER/src && cd FOLDER/src"
    ' && from=$(go mod download -json github.com/nsqio/nsq@v1.3.0 | sed -n \'s/.*"Dir": "\\(.*\\)".*/\\1/p\')'
    ' && cp -r "$from"/. . && chmod -R u+w . && go build -o FOLDER/ ' + " ".join(f"./apps/{name}" for name in NAMES)
)


def apps() -> Path:
    """The folder of `NAMES`; with NSQD=<path of a real nsqd> the one it is in. Skipped where none can be built."""
    if "NSQD" in os.environ:
        return Path(os.environ["NSQD"]).parent
    return install(CACHE / "nsq-1.3.0", ["go", "version"], ["sh", "-c", BUILD])
