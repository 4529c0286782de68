"""What a user of ours is granted on an NSQ connection, in the form in which an auth server's answer is kept."""

from __future__ import annotations

from penstock.access.needs import group, publish, subscribe
from penstock.access.rights import Rights, host_of
from penstock.access.users import User, token_digest


class Granted:
    """See the module. `by_name`: the user has logged in, by a token (its digest) or its secret; otherwise its connection says
    who it is.
    """

    identity_url = ""

    def __init__(self, users: Rights, user: User, by_name: bool, remote: str, token: str = "") -> None:
        self.users = users
        self.remote = remote
        self.user = user
        self.by_name = by_name
        self.token = token
        self.identity = user.name

    @property
    def rules(self) -> list[object]:
        """All that it is granted, for the count that AUTH answers."""
        return [*self.user.rights, *self.user.topics, *self.user.groups]

    def grants(self, permission: bytes, topic: bytes, channel: bytes, mono_ms: int) -> bool:
        """Whether the user may."""
        name = topic.decode("utf-8", "replace")
        if permission == b"publish":
            return self.users.missing(self.user, (publish(name),)) is None
        return self.users.missing(self.user, (subscribe(name), group(channel.decode("utf-8", "replace")))) is None

    def again(self) -> Granted | None:
        """The same user after the file of users has changed; None when what it logged in with is no longer its own, it is gone,
        or may not come from there any more.
        """
        user = self.users.users.get(self.identity)
        if not self.by_name or user is None:
            return None
        is_proven = self.token in user.tokens if self.token else user.secret == self.user.secret
        if not is_proven or not user.comes_from(host_of(self.remote)):
            return None
        return Granted(self.users, user, True, self.remote, self.token)


def met(users: Rights, remote: str, certificate: str) -> Granted | None:
    """What a connection is granted before it says anything."""
    user = users.by_connection(remote, certificate)
    return None if user is None else Granted(users, user, False, remote)


def login(users: Rights, said: bytes, remote: str) -> Granted | None:
    """What AUTH is granted: `name:secret`, or a token."""
    text = said.decode("utf-8", "replace")
    name, colon, secret = text.partition(":")
    user = users.of_password(name, secret, remote) if colon else users.of_token(text, remote)
    return None if user is None else Granted(users, user, True, remote, "" if colon else token_digest(text))
