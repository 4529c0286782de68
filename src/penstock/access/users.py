"""A user and what it may do, and the file of users (docs/rights.md).

    [[user]]
    name = "billing"
    secret = "…"                                     # at least 6 characters
    rights = ["subscribe:orders", "publish:invoices.*", "group:billing"]
    addresses = ["192.168.0.*"]                       # empty: from anywhere
    tokens = ["sha256 of a token, in hex"]            # for HTTP

A right is a verb, a colon and a name in which * stands for anything; `admin`, `monitor` and `register` have no name.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache
from typing import NamedTuple

import msgspec

from penstock.errors import ConfigError

SECRET_CHARACTERS_MIN = 6
USERS_MAX = 10_000
RIGHTS_MAX = 10_000
_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,255}")
_TOKEN = re.compile(r"[0-9a-f]{64}")
_FIELDS = frozenset(("name", "secret", "rights", "addresses", "tokens"))


class Verb(StrEnum):
    """What a right is for."""

    PUBLISH = "publish"  # to a topic
    SUBSCRIBE = "subscribe"  # read a topic
    GROUP = "group"  # consume as a group, or by a channel of that name
    MONITOR = "monitor"  # read settings, statistics, lists of everything
    REGISTER = "register"  # a broker or nsqd at a registry
    ADMIN = "admin"  # everything


NAMED = frozenset((Verb.PUBLISH, Verb.SUBSCRIBE, Verb.GROUP))


class Right(NamedTuple):
    """A verb, and a name in which * stands for anything; empty where the verb has none."""

    verb: Verb
    pattern: str = ""

    def __str__(self) -> str:
        return f"{self.verb}:{self.pattern}" if self.verb in NAMED else str(self.verb)


def read_right(text: str) -> Right:
    """`verb:name`, or the verb alone. ConfigError."""
    word, colon, pattern = text.partition(":")
    try:
        verb = Verb(word)
    except ValueError:
        raise ConfigError(f"no right {text!r}", f"Verbs are {', '.join(Verb)}; publish:orders is a right.") from None
    if (verb in NAMED) != bool(colon and pattern):
        needs = "needs a name, as in" if verb in NAMED else "has no name: it is"
        raise ConfigError(f"no right {text!r}", f"{verb} {needs} {Right(verb, 'orders')}.")
    return Right(verb, pattern)


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


class User(msgspec.Struct, frozen=True):
    """One user. `topics` and `groups` say of single names what may be done with them, whatever `rights` say."""

    name: str
    secret: str = ""
    rights: tuple[Right, ...] = ()
    addresses: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    topics: Mapping[str, frozenset[Verb]] = msgspec.field(default_factory=dict)
    groups: Mapping[str, bool] = msgspec.field(default_factory=dict)
    trusted_from: str = ""  # requests in its name from these addresses need no signature and no right (plain_acl.yml)

    def __repr__(self) -> str:
        """Without its secret and its tokens."""
        return f"User(name={self.name!r}, rights={self.rights!r})"

    @property
    def is_admin(self) -> bool:
        return any(right.verb is Verb.ADMIN for right in self.rights)

    def may(self, verb: Verb, name: str = "") -> bool:
        """Whether it has this right."""
        if self.is_admin:
            return True
        if verb is Verb.GROUP and name in self.groups:
            return self.groups[name]
        if verb in (Verb.PUBLISH, Verb.SUBSCRIBE) and name in self.topics:
            return verb in self.topics[name]
        return any(
            right.verb is verb and (verb not in NAMED or _expression(right.pattern).fullmatch(name) is not None)
            for right in self.rights
        )

    def comes_from(self, host: str) -> bool:
        """Whether it may come from this address."""
        return not self.addresses or any(address_matches(pattern, host) for pattern in self.addresses)

    def has_secret(self, secret: str) -> bool:
        """Whether this is its secret; takes the same time for every wrong one."""
        return bool(self.secret) & hmac.compare_digest(self.secret.encode(), secret.encode("utf-8", "replace"))


def token_digest(token: str) -> str:
    """What a file keeps of a token."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


# -- addresses -----------------------------------------------------------------------------------------------------


def address_matches(pattern: str, host: str) -> bool:
    """RocketMQ's address patterns: exact, *, 192.168.0.*, 192.168.0.1-10, 192.168.{0,1}.*, 192.168.0.{1,2}, a comma list;
    and CIDR, 10.0.0.0/8.
    """
    return any(_one_matches(one, host) for one in _split(pattern))


def _split(pattern: str) -> list[str]:
    """At the commas that are not within braces."""
    return [part.strip() for part in re.split(r",(?![^{]*\})", pattern) if part.strip()]


def _one_matches(pattern: str, host: str) -> bool:
    if pattern in ("*", "*.*.*.*"):
        return True
    try:
        address = ipaddress.ip_address(host)
        if "/" in pattern:
            return address in ipaddress.ip_network(pattern, strict=False)
        mapped = getattr(address, "ipv4_mapped", None)
        address = mapped or address
    except ValueError:
        return pattern == host
    parts, numbers = re.split(r"[.:]", pattern), re.split(r"[.:]", str(address))
    if "*" not in pattern and "-" not in pattern and "{" not in pattern:
        try:
            return ipaddress.ip_address(pattern) == address
        except ValueError:
            return False
    if address.version == 6:
        parts, numbers = pattern.lower().split(":"), address.exploded.split(":")
        return len(parts) == len(numbers) and all(
            _part_matches(*both, base=16) for both in zip(parts, numbers, strict=True)
        )
    return len(parts) == len(numbers) and all(
        _part_matches(*both, base=10) for both in zip(parts, numbers, strict=True)
    )


def _part_matches(part: str, number: str, base: int) -> bool:
    if part == "*":
        return True
    try:
        if part.startswith("{") and part.endswith("}"):
            return int(number, base) in [int(one, base) for one in part[1:-1].split(",")]
        low, dash, high = part.partition("-")
        return int(low, base) <= int(number, base) <= int(high if dash else low, base)
    except ValueError:
        return False


def check_address(pattern: str) -> None:
    """ConfigError for what is no address pattern."""
    for one in _split(pattern) or [""]:
        body = re.sub(r"\{[0-9a-fA-F]+(,[0-9a-fA-F]+)*\}", "1", one)
        plain = body.replace("*", "1")
        plain = re.sub(r"([0-9a-fA-F]+)-[0-9a-fA-F]+", r"\1", plain)
        try:
            if one != "*":
                ipaddress.ip_network(plain, strict=False)
        except ValueError:
            raise ConfigError(
                f"no address {pattern!r}", "As 192.168.0.7, 192.168.0.*, 192.168.0.1-10 or 10.0.0.0/8."
            ) from None


# -- the file ------------------------------------------------------------------------------------------------------


def read_users(text: str) -> dict[str, User]:
    """The users of a TOML file, by name. ConfigError."""
    import tomllib  # a broker without users does not pay for it

    try:
        tables = tomllib.loads(text)
    except RecursionError:
        raise ConfigError("no TOML: nested too deep") from None
    except ValueError as error:  # a number of thousands of digits is one, too
        raise ConfigError(f"no TOML: {error}") from None
    entries = tables.pop("user", [])
    if tables or not isinstance(entries, list):
        raise ConfigError("a file of users has [[user]] tables and nothing else")
    return by_name(_user(entry) for entry in entries)


def by_name(users: Iterable[User]) -> dict[str, User]:
    """Each user once. ConfigError."""
    found: dict[str, User] = {}
    for user in users:
        if user.name in found:
            raise ConfigError(f"user {user.name} is there twice")
        found[user.name] = user
    if len(found) > USERS_MAX:
        raise ConfigError(f"more than {USERS_MAX} users")
    return found


def check_name(name: object) -> str:
    """ConfigError for what no user can be called."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"no name for a user: {name!r}", "1 to 255 letters, digits, and any of _ . @ -")
    return name


def check_secret(name: str, secret: object) -> str:
    """ConfigError for what is too short, and for what no client can say."""
    if not isinstance(secret, str) or len(secret) < SECRET_CHARACTERS_MIN or not secret.isprintable():
        raise ConfigError(
            f"the secret of user {name} has fewer than {SECRET_CHARACTERS_MIN} characters, or unprintable ones"
        )
    return secret


def _texts(entry: Mapping[str, object], name: str) -> tuple[str, ...]:
    value = entry.get(name, [])
    if not isinstance(value, list) or len(value) > RIGHTS_MAX or not all(isinstance(one, str) for one in value):
        raise ConfigError(f"{name} of user {entry.get('name')} is a list of texts")
    return tuple(value)


def _user(entry: object) -> User:
    if not isinstance(entry, dict):
        raise ConfigError("a user is a table")
    name = check_name(entry.get("name"))
    if unknown := sorted(entry.keys() - _FIELDS):
        raise ConfigError(f"user {name} has no {unknown[0]}", f"A user has {', '.join(sorted(_FIELDS))}.")
    secret = check_secret(name, entry["secret"]) if "secret" in entry else ""
    tokens = _texts(entry, "tokens")
    if not all(map(_TOKEN.fullmatch, tokens)):
        raise ConfigError(f"a token of user {name} is no SHA-256 in hex", "`penstock user token` makes one.")
    addresses = _texts(entry, "addresses")
    for address in addresses:
        check_address(address)
    return User(name, secret, tuple(map(read_right, _texts(entry, "rights"))), addresses, tokens)


def write_users(users: Mapping[str, User]) -> str:
    """The file of these users."""
    lines = ["# Who may do what. Written by `penstock user`; it may be edited, and is read again when it changes."]
    for user in users.values():
        lines += ["", "[[user]]", f"name = {_quoted(user.name)}"]
        if user.secret:
            lines.append(f"secret = {_quoted(user.secret)}")
        for name, values in (("rights", map(str, user.rights)), ("addresses", user.addresses), ("tokens", user.tokens)):
            told = [_quoted(value) for value in values]
            if told:
                lines.append(f"{name} = [{', '.join(told)}]")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A basic string of TOML."""
    return '"' + "".join(_escaped(letter) for letter in text) + '"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return "\\" + letter
    return letter if letter.isprintable() or letter == " " else f"\\U{ord(letter):08x}"
