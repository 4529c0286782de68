"""Changing the file of users: one writer at a time, the new file whole or not at all, readable by its owner alone."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.access.plainacl import parse, read_acl
from penstock.access.users import User, read_users, write_users
from penstock.errors import ConfigError
from penstock.settingfiles import text_of

MODE = 0o600


class NotFlushed(ConfigError):
    """The file is in its place, and a power cut may bring the one before it back."""


def is_plain_acl(path: Path) -> bool:
    """Whether it is RocketMQ's kind of file."""
    return path.suffix in (".yml", ".yaml")


def read(path: Path) -> dict[str, User]:
    """The users of either kind of file; none where there is no file. ConfigError."""
    try:
        text = text_of(path)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    try:
        return read_acl(parse(text)).users if is_plain_acl(path) else read_users(text)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}", error.hint) from None


@contextmanager
def changing(path: Path) -> Iterator[dict[str, User]]:
    """The users, to be changed within: what they are at the end is written. ConfigError for a plain_acl.yml."""
    if is_plain_acl(path):
        raise ConfigError(
            f"{path} is RocketMQ's file", "Edit it, or use `mqadmin updateAclConfig`; it is read again at once."
        )
    path.resolve().parent.mkdir(0o700, parents=True, exist_ok=True)  # a data folder, as a broker makes it
    with locked(path):
        users = read(path)
        yield users
        replace(path, write_users(users))


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else changes it meanwhile, by whichever link."""
    folder = os.open(path.resolve().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def replace(path: Path, text: str) -> None:
    """Put another text in its place, durably; a link stays one. ConfigError, NotFlushed."""
    path = path.resolve()
    fresh = path.with_name(path.name + ".new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, MODE)
    try:
        os.fchmod(fd, MODE)
        before = path.stat() if path.exists() else path.parent.stat()
        with suppress(PermissionError):  # root may give it to the broker's user, which could not read root's
            os.fchown(fd, before.st_uid, before.st_gid)
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {path}: {error.strerror}") from None
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    except OSError as error:
        raise NotFlushed(
            f"{path} is changed, but cannot be made durable: {error.strerror}",
            "A power cut may undo it: look at the disk.",
        ) from None
    finally:
        os.close(folder)
