"""RocketMQ's plain_acl.yml: its own example, and what a wrong one is told."""

from __future__ import annotations

import pytest

from penstock.access.plainacl import dump, parse, read_acl
from penstock.access.users import Verb
from penstock.errors import ConfigError

FILE = """
globalWhiteRemoteAddresses:
- 10.10.103.*
- 192.168.0.*
accounts:
- accessKey: RocketMQ
  secretKey: 12345678
  whiteRemoteAddress:
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - topicA=DENY
  - topicB=PUB|SUB
  - topicC=SUB
  groupPerms:
  - groupA=DENY
  - groupB=PUB|SUB
  - groupC=SUB
- accessKey: rocketmq2
  secretKey: 12345678
  whiteRemoteAddress: 192.168.1.*
  admin: true
"""


def test_its_own_example() -> None:
    users, trusted = read_acl(parse(FILE))
    one, root = users["RocketMQ"], users["rocketmq2"]
    assert trusted == ("10.10.103.*", "192.168.0.*")
    assert one.secret == "12345678"
    assert not one.is_admin
    assert root.is_admin
    assert root.trusted_from == "192.168.1.*"
    may = {
        (verb, name): one.may(verb, name)
        for name in ("topicA", "topicB", "topicC", "other")
        for verb in (Verb.PUBLISH, Verb.SUBSCRIBE)
    }
    assert [key for key, yes in may.items() if yes] == [
        (Verb.PUBLISH, "topicB"), (Verb.SUBSCRIBE, "topicB"), (Verb.SUBSCRIBE, "topicC"),
    ]  # fmt: skip
    assert [name for name in ("groupA", "groupB", "groupC", "other") if one.may(Verb.GROUP, name)] == [
        "groupB",
        "groupC",
        "other",
    ]
    assert read_acl(parse(dump(parse(FILE)))) == (users, trusted)


def test_a_word_that_is_no_permission_denies() -> None:
    users, _ = read_acl(parse(FILE.replace("topicB=PUB|SUB", "topicB=pub").replace("topicC=SUB", "topicC= SUB ")))
    assert not users["RocketMQ"].may(Verb.PUBLISH, "topicB")
    assert users["RocketMQ"].may(Verb.SUBSCRIBE, "topicC")


@pytest.mark.parametrize(
    "text", ["- 1", "accounts: 1", "accounts: [1]", "accounts:\n- accessKey: a", "{", "globalWhiteRemoteAddresses: [x]",
             "accounts:\n- {accessKey: aaaaaaa, secretKey: bbbbbbb, topicPerms: [t]}", "!!python/object:os.system x",
             "a: 2026-13-45", "a: 0x_", "a: !!bool x", "a: !!timestamp x", "a: " + "1" * 5000, "[" * 5000],
)  # fmt: skip
def test_a_wrong_file_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_acl(parse(text))


def test_an_empty_file_has_no_users() -> None:
    assert read_acl(parse("")) == ({}, ())
