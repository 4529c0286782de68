"""A connection to one address at which RocketMQ's requests are answered, made when it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from penstock.fronts.remoting.session import RemotingSession
from penstock.net import Connection, Net
from penstock.security import PLAIN, Security
from penstock.wire.addresses import split_address
from penstock.wire.remoting import RemotingCommand

ANSWER_MS = 6_000


class Caller:
    """Asks, and waits for the answer. `lost()` when the connection is gone."""

    def __init__(
        self, net: Net, address: str, security: Security = PLAIN, lost: Callable[[], None] = lambda: None
    ) -> None:
        self.address = address
        self._net = net
        self._host, self._port = split_address(address)
        self._security = security
        self._lost = lost
        self._connection: Connection | None = None

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        """The answer. OSError when there is none (ConnectionRefusedError: it is no), TimeoutError."""
        connection = self._connection
        session = None if connection is None else connection.session
        if not isinstance(session, RemotingSession) or session.closed:
            # A machine that is off refuses nothing, and the kernel tries for minutes.
            async with asyncio.timeout(ANSWER_MS / 1000):
                connection = self._connection = await self._net.connect(
                    self._host,
                    self._port,
                    lambda remote, wake: RemotingSession(self, remote, wake),
                    self._security.context,
                )
            session = connection.session
            assert isinstance(session, RemotingSession)
        answer: asyncio.Future[RemotingCommand | None] = self._net.loop.create_future()

        def done(reply: RemotingCommand | None) -> None:
            if not answer.done():
                answer.set_result(reply)

        self._security.sign(command)
        session.call(command, done, self._net.role.mono_ms + ANSWER_MS)
        async with asyncio.timeout(ANSWER_MS / 1000):
            reply = await answer
        if reply is None:
            raise ConnectionResetError("the connection was lost")
        if reply.code:
            raise ConnectionRefusedError(f"refused with code {reply.code}: {reply.remark}")
        return reply

    def close(self) -> None:
        """Nothing more is asked."""
        if self._connection is not None and self._connection.transport is not None:
            self._connection.close()

    def handle(self, session: RemotingSession, request: RemotingCommand) -> None:
        """Nothing is asked of us there."""

    def lost(self, session: RemotingSession) -> None:
        """The connection is gone."""
        self._lost()
