"""Files of users for tests."""

from __future__ import annotations

import os
from pathlib import Path

from penstock.access.rights import LOOK_MS, REST_MS, Rights
from penstock.access.users import User, read_right, write_users
from penstock.access.usersfile import replace

SECRET = "secret-of-"


def user(name: str, *rights: str, **more: object) -> User:
    return User(name, SECRET + name, tuple(map(read_right, rights)), **more)  # type: ignore[arg-type]


def write(path: Path, *users: User) -> Path:
    replace(path, write_users({one.name: one for one in users}))
    return path


def rights_of(folder: Path, *users: User, limit: int = 0) -> Rights:
    folder.mkdir(exist_ok=True)
    return Rights(write(folder / "users.toml", *users), limit)


def touched(path: Path) -> None:
    """Let the file have been changed a moment later: a file system may give two changes within some milliseconds one time."""
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 10_000_000))


def looked(rights: Rights, mono_ms: int = LOOK_MS) -> None:
    """The file is looked at until it is at rest."""
    rights.tick(mono_ms)
    rights.tick(mono_ms + REST_MS)
