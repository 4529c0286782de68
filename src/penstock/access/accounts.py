"""Users as RocketMQ's tools see and change them: accounts with permissions for topics and groups (codes 50 to 54).

Both kinds of file can be changed so. In users.toml an account's permissions become rights; DENY of one name below a
default that permits it has no right that says so, and is refused there.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from penstock.access import usersfile
from penstock.access.plainacl import dump, parse, permission, read_acl
from penstock.access.users import Right, User, Verb, check_address, check_name, check_secret
from penstock.errors import ConfigError
from penstock.settingfiles import text_of

Account = dict[str, object]
_TEXTS = ("secretKey", "whiteRemoteAddress", "defaultTopicPerm", "defaultGroupPerm")
_LISTS = ("topicPerms", "groupPerms")


def _words(publish: bool, subscribe: bool) -> str:
    return "|".join(word for word, may in (("PUB", publish), ("SUB", subscribe)) if may) or "DENY"


def account_of(user: User) -> Account:
    """A user as an account, without its secret."""
    topics = {name: (Verb.PUBLISH in verbs, Verb.SUBSCRIBE in verbs) for name, verbs in user.topics.items()}
    groups = dict(user.groups)
    for right in user.rights:
        if right.verb is Verb.GROUP:
            groups.setdefault(right.pattern, True)
        elif right.verb in (Verb.PUBLISH, Verb.SUBSCRIBE):
            publish, subscribe = topics.get(right.pattern, (False, False))
            topics[right.pattern] = publish or right.verb is Verb.PUBLISH, subscribe or right.verb is Verb.SUBSCRIBE
    all_topics, all_groups = topics.pop("*", (False, False)), groups.pop("*", False)
    return {
        "accessKey": user.name,
        "secretKey": "***" if user.secret else "",
        "whiteRemoteAddress": user.trusted_from or ",".join(user.addresses),
        "admin": user.is_admin,
        "defaultTopicPerm": _words(*all_topics),
        "defaultGroupPerm": _words(False, all_groups),
        "topicPerms": [f"{name}={_words(*may)}" for name, may in topics.items()],
        "groupPerms": [f"{name}={_words(False, may)}" for name, may in groups.items()],
    }


def update(path: Path, told: Mapping[str, str]) -> None:
    """Make or change the account that `told` names; what it does not say stays. ConfigError, and nothing has changed."""
    name = check_name(told.get("accessKey"))
    if not usersfile.is_plain_acl(path):
        with usersfile.changing(path) as users:
            users[name] = _user(users.get(name) or User(name), told)
        return
    with usersfile.locked(path):
        table = _table(path)
        accounts = [one for one in _accounts(table) if not _is_of(one, name)]
        before: Account = {"accessKey": name}
        before = next((one for one in _accounts(table) if _is_of(one, name)), before)
        table["accounts"] = [*accounts, _account(before, told)]
        _write(path, table)


def remove(path: Path, name: str) -> None:
    """ConfigError when there is no such user."""
    if not usersfile.is_plain_acl(path):
        with usersfile.changing(path) as users:
            if users.pop(name, None) is None:
                raise ConfigError(f"no user {name}")
        return
    with usersfile.locked(path):
        table = _table(path)
        left = [one for one in _accounts(table) if not _is_of(one, name)]
        if len(left) == len(_accounts(table)):
            raise ConfigError(f"no user {name}")
        table["accounts"] = left
        _write(path, table)


def trust(path: Path, addresses: str) -> None:
    """Set the addresses that need neither name nor right. ConfigError where the file knows none."""
    if not usersfile.is_plain_acl(path):
        raise ConfigError(
            f"{path.name} trusts no address with everything", "A user without a secret has addresses, and rights."
        )
    wanted = [part.strip() for part in addresses.split(",") if part.strip()]
    for address in wanted:
        check_address(address)
    with usersfile.locked(path):
        _write(path, {**_table(path), "globalWhiteRemoteAddresses": wanted})


def _table(path: Path) -> Account:
    try:
        return parse(text_of(path)) if path.exists() else {}
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: {error}") from None


def _accounts(table: Account) -> list[Account]:
    found = table.get("accounts") or []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _is_of(account: Account, name: str) -> bool:
    """Whether the account is this user's. A name of digits alone is a number in YAML."""
    return str(account.get("accessKey")) == name


def _write(path: Path, table: Account) -> None:
    read_acl(table)  # before a wrong one stands on the disk
    usersfile.replace(path, dump(table))


def _account(before: Account, told: Mapping[str, str]) -> Account:
    after = before | {name: told[name] for name in _TEXTS if told.get(name)}
    if "admin" in told:
        after["admin"] = told["admin"].lower() == "true"
    for name in _LISTS:
        if told.get(name):
            after[name] = [part.strip() for part in told[name].split(",") if part.strip()]
    return after


def _user(before: User, told: Mapping[str, str]) -> User:
    """The user of users.toml that such an account is."""
    said = _account({}, told)
    user = before
    if "secretKey" in said:
        user = replace(user, secret=check_secret(user.name, said["secretKey"]))
    if not user.secret:
        raise ConfigError(f"the account {user.name} has no secretKey")
    if white := said.get("whiteRemoteAddress"):
        check_address(str(white))
        user = replace(user, addresses=(str(white),))
    rights = [right for right in user.rights if right.verb is not Verb.ADMIN or "admin" not in said]
    if said.get("admin"):
        rights.append(Right(Verb.ADMIN))
    for field, all_field, verbs in (
        ("topicPerms", "defaultTopicPerm", (Verb.PUBLISH, Verb.SUBSCRIBE)),
        ("groupPerms", "defaultGroupPerm", (Verb.GROUP,)),
    ):
        for name, word in _permissions(said, field, all_field):
            granted = permission(word)
            for verb in verbs:
                right = Right(verb, name)
                rights = [one for one in rights if one != right]
                if (Verb.SUBSCRIBE if verb is Verb.GROUP else verb) in granted:
                    rights.append(right)
                elif name != "*" and User(user.name, rights=tuple(one for one in rights if one.verb is verb)).may(
                    verb, name
                ):
                    raise ConfigError(
                        f"{name}={word} is denied below a right that grants it", "Take that right away first."
                    )
    return replace(user, rights=tuple(rights))


def _permissions(said: Account, field: str, all_field: str) -> list[tuple[str, str]]:
    found = [("*", str(said[all_field]))] if all_field in said else []
    lines = said.get(field) or []
    for line in lines if isinstance(lines, list) else []:
        name, equals, word = str(line).partition("=")
        if not equals or not name:
            raise ConfigError(f"{field}: {line!r}", "As TOPIC=PUB|SUB.")
        found.append((name, word))
    return found
