"""Files that a setting names, or a person: read whole, and only what has an end.

Who opens a named pipe waits for whoever writes into it, and a loop that does so serves nobody meanwhile, nor is it ended by a
signal. A pipe that is open already (`<(…)` of a shell, or standard input) has its writer.
"""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_ISBLK, S_ISCHR, S_ISFIFO, S_ISSOCK

from penstock.errors import ConfigError

FILE_BYTES_MAX = 16 << 20


def demand_file(path: Path | str) -> None:
    """ConfigError for what is there and is no file to be read to its end; what cannot be looked at is for who opens it."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return
    mode = found.st_mode
    named_pipe = S_ISFIFO(mode) and os.path.exists(os.path.realpath(path))
    if named_pipe or S_ISSOCK(mode) or S_ISBLK(mode) or (S_ISCHR(mode) and os.fspath(path) != os.devnull):
        raise ConfigError(f"{path} is no file but a named pipe, a socket or a device")
    if found.st_size > FILE_BYTES_MAX:
        raise _too_large(path)


def whole(path: Path | str) -> bytes:
    """What the file holds. ConfigError as above, OSError."""
    demand_file(path)
    with open(path, "rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise _too_large(path)
    return data


def text_of(path: Path | str) -> str:
    """The same as text. The byte order mark that editors on Windows put first says nothing of it. ConfigError, OSError,
    UnicodeDecodeError.
    """
    return whole(path).decode("utf-8-sig")


def _too_large(path: Path | str) -> ConfigError:
    return ConfigError(f"{path} has more than {FILE_BYTES_MAX >> 20} MiB")
