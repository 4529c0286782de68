"""RocketMQ's plain_acl.yml, as it is (rocketmq.md §14.3): accounts become users, permissions become rights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.access.users import Right, User, Verb, by_name, check_address, check_name, check_secret
from penstock.errors import ConfigError

_PERMISSIONS = {
    "PUB": frozenset((Verb.PUBLISH,)),
    "SUB": frozenset((Verb.SUBSCRIBE,)),
    "PUB|SUB": frozenset((Verb.PUBLISH, Verb.SUBSCRIBE)),
    "SUB|PUB": frozenset((Verb.PUBLISH, Verb.SUBSCRIBE)),
}
DENY: frozenset[Verb] = frozenset()


class PlainAcl(NamedTuple):
    """What such a file says. Whoever comes from one of `trusted` needs neither name nor right."""

    users: dict[str, User]
    trusted: tuple[str, ...]


def parse(text: str) -> dict[str, object]:
    """The YAML of the file. ConfigError."""
    import yaml

    try:
        table = yaml.safe_load(text)
    except RecursionError:
        raise ConfigError("no YAML: nested too deep") from None
    except (
        yaml.YAMLError,
        AttributeError,
        LookupError,
        ValueError,
    ) as error:  # the latter of a date or number that is none
        raise ConfigError(f"no YAML: {error}") from None
    if table is None:
        table = {}
    if not isinstance(table, dict):
        raise ConfigError("a plain_acl.yml has globalWhiteRemoteAddresses and accounts")
    return table


def dump(table: Mapping[str, object]) -> str:
    """The file of such a table."""
    import yaml

    text: str = yaml.safe_dump(dict(table), sort_keys=False, allow_unicode=True)
    return text


def read_acl(table: Mapping[str, object]) -> PlainAcl:
    """Users and trusted addresses. ConfigError."""
    trusted = _list(table, "globalWhiteRemoteAddresses", "the file")
    for address in trusted:
        check_address(address)
    accounts = table.get("accounts") or []
    if not isinstance(accounts, list):
        raise ConfigError("accounts is a list")
    return PlainAcl(by_name(map(_user, accounts)), tuple(trusted))


def _list(table: Mapping[str, object], name: str, of: str) -> list[str]:
    value = table.get(name) or []
    if not isinstance(value, list):
        raise ConfigError(f"{name} of {of} is a list")
    return [str(one) for one in value if one is not None]


def permission(text: object) -> frozenset[Verb]:
    """What a word of the file permits; a word that is none denies, as at RocketMQ."""
    return _PERMISSIONS.get(str(text).strip(), DENY)


def _user(account: object) -> User:
    if not isinstance(account, dict):
        raise ConfigError("an account is a table")
    name = check_name(str(account.get("accessKey") or ""))
    secret = check_secret(name, str(account.get("secretKey") or ""))
    rights = [Right(Verb.ADMIN)] if account.get("admin") is True else []
    rights += [Right(verb, "*") for verb in sorted(permission(account.get("defaultTopicPerm")))]
    if Verb.SUBSCRIBE in permission(account.get("defaultGroupPerm")):
        rights.append(Right(Verb.GROUP, "*"))
    white = str(account.get("whiteRemoteAddress") or "").strip()
    if white:
        check_address(white)
    return User(
        name,
        secret,
        tuple(rights),
        topics={key: permission(word) for key, word in _pairs(account, "topicPerms", name)},
        groups={key: Verb.SUBSCRIBE in permission(word) for key, word in _pairs(account, "groupPerms", name)},
        trusted_from=white,
    )


def _pairs(account: Mapping[str, object], field: str, name: str) -> list[tuple[str, str]]:
    found = []
    for line in _list(account, field, f"account {name}"):
        key, equals, word = line.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{field} of account {name}: {line!r}", "As TOPIC=PUB|SUB.")
        found.append((key.strip(), word))
    return found
