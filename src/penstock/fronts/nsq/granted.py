"""What a user of ours is granted on an NSQ connection, in the form in which an auth server's answer is kept."""

from __future__ import annotations

from penstock.access.needs import group, publish, subscribe
from penstock.access.rights import Rights, host_of
from penstock.access.users import User


class Granted:
    """See the module. `by_name`: the user has logged in; otherwise its connection says who it is."""

    identity_url = ""

    def __init__(self, users: Rights, user: User, by_name: bool, remote: str) -> None:
        self.users = users
        self.remote = remote
        self.user = user
        self.by_name = by_name
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
        """The same user after the file of users has changed; None when its secret is another, it is gone, or may not come from
        there any more.
        """
        user = self.users.users.get(self.identity)
        if not self.by_name or user is None or (user.secret, user.tokens) != (self.user.secret, self.user.tokens):
            return None
        return Granted(self.users, user, True, self.remote) if user.comes_from(host_of(self.remote)) else None


def met(users: Rights, remote: str, certificate: str) -> Granted | None:
    """What a connection is granted before it says anything."""
    user = users.by_connection(remote, certificate)
    return None if user is None else Granted(users, user, False, remote)


def login(users: Rights, said: bytes, remote: str) -> Granted | None:
    """What AUTH is granted: `name:secret`, or a token."""
    text = said.decode("utf-8", "replace")
    name, colon, secret = text.partition(":")
    user = users.of_password(name, secret, remote) if colon else users.of_token(text, remote)
    return None if user is None else Granted(users, user, True, remote)
