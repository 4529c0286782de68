"""Everything a RocketMQ client, tool or dashboard asks of a broker besides sending and pulling: one table by noun each."""

from __future__ import annotations

from collections.abc import Callable

from penstock.access.rights import Rights
from penstock.broker.broker import Broker
from penstock.broker.clients import Peer
from penstock.fronts.requests.accounts import Accounts
from penstock.fronts.requests.admin import Administration
from penstock.fronts.requests.calls import Answer
from penstock.fronts.requests.consuming import Consuming
from penstock.fronts.requests.lookup import Lookup
from penstock.fronts.requests.members import Members
from penstock.fronts.requests.queues import QueueCalls
from penstock.fronts.requests.replies import Replies
from penstock.fronts.requests.settings import Settings
from penstock.fronts.requests.staging import StageCalls
from penstock.fronts.requests.statistics import Statistics
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.remoting import RemotingCommand

TABLES = (Administration, Lookup, Members, QueueCalls, Replies, StageCalls, Statistics)
CODES: tuple[RequestCode, ...] = tuple(
    code for table in (Consuming, Accounts, Settings, *TABLES) for code in table.TABLE
)


class Requests:
    """The cold side of the remoting front of one broker."""

    def __init__(self, broker: Broker, rights: Rights | None = None) -> None:
        rights = rights or Rights()
        self.consuming = Consuming(broker, rights)
        self.table: dict[int, Callable[[Peer, RemotingCommand], Answer]] = {}
        for calls in (
            self.consuming,
            Accounts(broker, rights),
            Settings(broker, rights),
            *(kind(broker) for kind in TABLES),
        ):
            for code, name in calls.TABLE.items():
                self.table[int(code)] = getattr(calls, name)

    def handle(self, session: Peer, request: RemotingCommand) -> Answer:
        """The answer to a request. Refused when it is not done; code 3 for what nobody knows."""
        method = self.table.get(request.code)
        if method is None:
            return request.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=f" request type {request.code} not supported"
            )
        return method(session, request)
