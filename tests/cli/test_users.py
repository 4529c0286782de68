"""`penstock user`, as it is typed."""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock.access.users import token_digest
from penstock.access.usersfile import read
from penstock.cli.main import main
from penstock.cli.users import user


def run(folder: Path, *words: str, status: int = 0, typed: str = "") -> str:
    assert user.name == "user"
    result = CliRunner().invoke(main, ["user", words[0], "--data", str(folder), *words[1:]], input=typed)
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return result.output


def test_from_the_first_user_to_the_last(tmp_path: Path) -> None:
    told = run(tmp_path, "add", "billing", "publish:orders", "subscribe:o*", "group:g", "--address", "10.0.0.*")
    secret = told.split()[-1]
    one = read(tmp_path / "users.toml")["billing"]
    assert (one.secret, one.addresses) == (secret, ("10.0.0.*",))
    run(tmp_path, "grant", "billing", "monitor", "group:g")
    run(tmp_path, "revoke", "billing", "publish:orders")
    (row,) = [json.loads(line) for line in run(tmp_path, "ls", "--json").splitlines()]
    assert row == {
        "user": "billing", "secret": True, "tokens": 0, "rights": ["subscribe:o*", "group:g", "monitor"],
        "addresses": ["10.0.0.*"],
    }  # fmt: skip
    token = run(tmp_path, "token", "billing").strip()
    assert token not in (tmp_path / "users.toml").read_text()
    another = run(tmp_path, "secret", "billing").strip()
    assert read(tmp_path / "users.toml")["billing"].secret == another != secret
    assert another not in run(tmp_path, "ls")
    run(tmp_path, "rm", "billing", "--force")
    assert read(tmp_path / "users.toml") == {}


def test_check_says_why_not(tmp_path: Path) -> None:
    run(tmp_path, "add", "u", "publish:orders", "--address", "10.0.0.*")
    assert "u may publish:orders" in run(tmp_path, "check", "u", "publish:orders", "--address", "10.0.0.1")
    assert "no right publish:x" in run(tmp_path, "check", "u", "publish:x", status=1)
    assert "may not come from" in run(tmp_path, "check", "u", "publish:orders", "--address", "1.1.1.1", status=1)
    assert json.loads(run(tmp_path, "check", "u", "admin", "--json", status=1))["granted"] is False


def test_a_secret_of_ones_own_is_not_printed(tmp_path: Path) -> None:
    told = run(tmp_path, "add", "u", "--secret-file", "-", typed="my-own-secret\n")
    assert "my-own-secret" not in told
    assert read(tmp_path / "users.toml")["u"].secret == "my-own-secret"
    run(tmp_path, "add", "v", "--no-secret", "--address", "127.0.0.1")
    assert read(tmp_path / "users.toml")["v"].secret == ""


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("add", "u"), "is there already"),
        (("add", "a b"), "no name for a user"),
        (("add", "v", "write:x"), "no right"),
        (("add", "v", "--address", "nowhere"), "no address"),
        (("add", "v", "--secret-file", "-"), "fewer than 6"),
        (("grant", "v", "admin"), "no user v"),
        (("revoke", "u", "admin"), "has not been granted"),
        (("rm", "u"), "say --force"),
    ],
)
def test_what_cannot_be_done_changes_nothing(tmp_path: Path, words: tuple[str, ...], why: str) -> None:
    run(tmp_path, "add", "u", "publish:x")
    before = (tmp_path / "users.toml").read_bytes()
    assert why in run(tmp_path, *words, status=2, typed="abc")
    assert (tmp_path / "users.toml").read_bytes() == before


def test_a_secret_that_counts_is_told_though_the_folder_cannot_be_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = os.fsync

    def no_folder(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        flush(fd)

    monkeypatch.setattr(os, "fsync", no_folder)
    told = run(tmp_path, "add", "u", "publish:x", status=1)
    assert "cannot be made durable" in told
    secret = read(tmp_path / "users.toml")["u"].secret
    assert secret
    assert f"secret {secret}" in told
    told = run(tmp_path, "secret", "u", status=1)
    now = read(tmp_path / "users.toml")["u"].secret
    assert now != secret
    assert now in told
    token = json.loads(run(tmp_path, "token", "u", "--json", status=1).splitlines()[0])["token"]
    assert token_digest(token) in read(tmp_path / "users.toml")["u"].tokens
