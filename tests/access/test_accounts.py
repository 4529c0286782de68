"""Accounts as mqadmin changes them, in both kinds of file."""

from __future__ import annotations

from pathlib import Path

import pytest

from access.people import user, write
from penstock.access.accounts import account_of, remove, trust, update
from penstock.access.usersfile import read
from penstock.errors import ConfigError

TOLD = {
    "accessKey": "RocketMQ", "secretKey": "12345678", "admin": "false", "defaultTopicPerm": "DENY", "defaultGroupPerm": "DENY",
    "topicPerms": "a=PUB|SUB,b=PUB", "groupPerms": "g=SUB,h=DENY",
}  # fmt: skip


@pytest.fixture(params=["users.toml", "plain_acl.yml"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / request.param


def test_made_changed_removed(path: Path) -> None:
    update(path, TOLD)
    one = read(path)["RocketMQ"]
    account = account_of(one)
    assert account["topicPerms"] in (["a=PUB|SUB", "b=PUB"], ["b=PUB", "a=PUB|SUB"])
    assert account["secretKey"] == "***"
    assert (account["defaultTopicPerm"], account["defaultGroupPerm"], account["admin"]) == ("DENY", "DENY", False)
    groups = account["groupPerms"]
    assert isinstance(groups, list)
    assert "g=SUB" in groups
    update(path, {"accessKey": "RocketMQ", "admin": "true", "topicPerms": "a=SUB"})
    changed = read(path)["RocketMQ"]
    assert changed.is_admin
    assert changed.secret == "12345678"
    assert "a=SUB" in account_of(changed)["topicPerms"]  # type: ignore[operator]
    remove(path, "RocketMQ")
    assert read(path) == {}
    with pytest.raises(ConfigError, match="no user"):
        remove(path, "RocketMQ")


@pytest.mark.parametrize(
    "told", [{"accessKey": ""}, {"accessKey": "a b", "secretKey": "12345678"}, {"accessKey": "abcdefg"},
             {"accessKey": "abcdefg", "secretKey": "123"}, {**TOLD, "topicPerms": "a"}, {**TOLD, "whiteRemoteAddress": "x.y"}],
)  # fmt: skip
def test_a_wrong_account_changes_nothing(path: Path, told: dict[str, str]) -> None:
    update(path, TOLD)
    before = path.read_bytes()
    with pytest.raises(ConfigError):
        update(path, told)
    assert path.read_bytes() == before


def test_addresses_that_are_trusted(tmp_path: Path) -> None:
    trust(tmp_path / "plain_acl.yml", "10.0.0.*, 10.1.0.1")
    assert "10.0.0.*" in (tmp_path / "plain_acl.yml").read_text()
    with pytest.raises(ConfigError):
        trust(tmp_path / "plain_acl.yml", "nowhere")
    with pytest.raises(ConfigError, match="trusts no address"):
        trust(write(tmp_path / "users.toml", user("u")), "10.0.0.1")


def test_a_file_that_is_no_text_is_left_as_it_is(path: Path) -> None:
    path.write_bytes(b"\xff\xfe")
    for change in (lambda: update(path, TOLD), lambda: remove(path, "RocketMQ")):
        with pytest.raises(ConfigError, match="cannot read"):
            change()
    assert path.read_bytes() == b"\xff\xfe"


def test_a_name_denied_below_a_pattern_is_refused_in_toml(tmp_path: Path) -> None:
    path = write(tmp_path / "users.toml", user("RocketMQ", "publish:*"))
    with pytest.raises(ConfigError, match="is denied below a right"):
        update(path, {"accessKey": "RocketMQ", "topicPerms": "a=DENY"})


def test_an_account_of_digits_is_a_number_in_yaml(tmp_path: Path) -> None:
    path = tmp_path / "plain_acl.yml"
    path.write_text("accounts:\n- accessKey: 20261\n  secretKey: 12345678\n")
    update(path, {"accessKey": "20261", "admin": "true"})
    (one,) = read(path).values()
    assert (one.name, one.secret, one.is_admin) == ("20261", "12345678", True)
    remove(path, "20261")
    assert read(path) == {}
