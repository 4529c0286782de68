"""The file of users is changed whole, by one at a time."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from access.people import user
from penstock.access.usersfile import changing, read
from penstock.errors import ConfigError


def test_only_its_owner_reads_it(tmp_path: Path) -> None:
    """Nor is anything put beside it by others: the folder is the broker's data folder later."""
    path = tmp_path / "deep" / "users.toml"
    mask = os.umask(0)
    try:
        with changing(path) as users:
            users["u"] = user("u", "admin")
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read(path) == {"u": user("u", "admin")}


def test_it_stays_its_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever changed it as root had a broker that could not read it, and did not start again."""
    given: list[tuple[int, int]] = []
    true_chown, owner = os.fchown, (4_001, 4_002)

    def chown(fd: int, uid: int, gid: int) -> None:
        given.append((uid, gid))
        if os.geteuid() != 0:
            raise PermissionError
        true_chown(fd, uid, gid)

    monkeypatch.setattr(os, "fchown", chown)
    folder, path = tmp_path / "data", tmp_path / "data" / "users.toml"
    folder.mkdir()
    if os.geteuid() == 0:
        os.chown(folder, *owner)
    else:
        owner = (os.geteuid(), folder.stat().st_gid)
    for number in range(2):  # of the folder when it is made, then of the file
        with changing(path) as users:
            users[f"u{number}"] = user(f"u{number}", "admin")
        assert given == [owner] * (number + 1)
        assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (owner[0], 0o600)


def test_an_error_within_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"
    with pytest.raises(KeyError), changing(path) as users:
        users["u"] = user("u")
        raise KeyError
    assert not path.exists()
    assert not list(tmp_path.iterdir())


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    """It was replaced by a file of its own, and what was changed at its target was heard of no more."""
    target, link = tmp_path / "etc" / "users.toml", tmp_path / "data" / "users.toml"
    link.parent.mkdir()
    link.symlink_to(target)
    for number in range(2):  # once where there is no target yet
        with changing(link) as users:
            users[f"u{number}"] = user(f"u{number}", "monitor")
        assert (link.is_symlink(), list(read(target))) == (True, [f"u{at}" for at in range(number + 1)])
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["data", "etc", "users.toml", "users.toml"]


def test_writers_wait_for_each_other(tmp_path: Path) -> None:
    path = tmp_path / "users.toml"

    def add(number: int) -> None:
        with changing(path) as users:
            users[f"u{number}"] = user(f"u{number}")

    threads = [threading.Thread(target=add, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read(path)) == 16


def test_rocketmqs_file_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="RocketMQ's file"), changing(tmp_path / "plain_acl.yml"):
        pass


def test_an_error_in_it_names_it(tmp_path: Path) -> None:
    for name, text in (("users.toml", "bad"), ("users.toml", "[[user]]\nname = 5\n"), ("plain_acl.yml", "a: [")):
        path = tmp_path / name
        path.write_text(text)
        with pytest.raises(ConfigError, match=f"^{path}: "):
            read(path)


def test_no_file_has_no_users(tmp_path: Path) -> None:
    assert read(tmp_path / "users.toml") == {}
