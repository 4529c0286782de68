"""The door of the NSQ front: a session for each connection, and what is done in each turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.access.rights import Rights
from penstock.broker.broker import Broker
from penstock.fronts.front import Front
from penstock.fronts.nsq.commands import COMMANDS
from penstock.fronts.nsq.session import NsqSession
from penstock.fronts.nsq.shared import Ask, Shared
from penstock.tls import Tls
from penstock.wire.nsq import ERROR, frame

TOO_MANY = frame(ERROR, b"E_INVALID too many connections")


class NsqFront(Front):
    """All NSQ sessions of a broker. `ask_authority(session, secret, done)` asks for rights, where there are some."""

    name = "nsq"

    def __init__(
        self,
        broker: Broker,
        tls: Tls | None = None,
        ask_authority: Ask | None = None,
        users: Rights | None = None,
    ) -> None:
        self.shared = Shared(broker, tls, ask_authority, users)
        self.sessions: set[NsqSession] = set()
        if users is not None:
            users.changed.append(self._look_at_rights)

    def _look_at_rights(self) -> None:
        """Users or rights have changed: nobody goes on with what it was once allowed."""
        self.shared.look_at_users()
        if self.shared.users is not None:
            for session in list(self.sessions):
                session.look_at_rights()

    @property
    def rejected(self) -> Mapping[bytes, int]:
        """Error code → how often it was answered."""
        found: dict[bytes, int] = self.shared.rejected
        return found

    def session(self, remote: str, wake: Callable[[], None]) -> NsqSession:
        """A session for a new connection."""
        session = NsqSession(self.shared, COMMANDS, remote, wake, self._forget)
        self.sessions.add(session)
        self.shared.look_at(session, self.shared.mono_ms + self.shared.limits.greeting_timeout_ms)
        return session

    def _forget(self, session: NsqSession) -> None:
        self.sessions.discard(session)
        self.shared.forget(session)

    @property
    def begin_turn(self) -> Callable[[], None]:
        """Called first in each turn."""
        begin: Callable[[], None] = self.shared.update
        return begin

    def tick(self) -> int | None:
        """Heartbeats that are due; when the next one is."""
        due_ms: int | None = self.shared.tick()
        return due_ms
