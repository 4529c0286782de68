"""Everything a RocketMQ client, tool or dashboard asks of a broker besides sending and pulling: one table by noun each."""

from __future__ import annotations

from collections.abc import Callable

from penstock.access.rights import Rights
from penstock.broker.broker import Broker
from penstock.broker.clients import Peer
from penstock.errors import OF_A_SLAVE, Refused
from penstock.fronts.requests.accounts import Accounts
from penstock.fronts.requests.admin import Administration
from penstock.fronts.requests.calls import Answer
from penstock.fronts.requests.consuming import Consuming
from penstock.fronts.requests.lookup import Lookup
from penstock.fronts.requests.members import Members
from penstock.fronts.requests.operation import Operation
from penstock.fronts.requests.queues import QueueCalls
from penstock.fronts.requests.replicaset import SetCalls
from penstock.fronts.requests.replies import Replies
from penstock.fronts.requests.roles import RoleCalls
from penstock.fronts.requests.settings import Settings
from penstock.fronts.requests.staging import StageCalls
from penstock.fronts.requests.statistics import Statistics
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.remoting import RemotingCommand

TABLES = (Administration, Lookup, Members, Operation, QueueCalls, Replies, RoleCalls, SetCalls, StageCalls)
CODES: tuple[RequestCode, ...] = tuple(
    code for table in (Consuming, Statistics, Accounts, Settings, *TABLES) for code in table.TABLE
)


# What only a master does: a slave gets all of it from there.
MASTERS_WORK = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
        RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION, RequestCode.RESUME_CHECK_HALF_MESSAGE,
        RequestCode.LOCK_BATCH_MQ, RequestCode.STAGE_OPEN, RequestCode.STAGE_APPEND, RequestCode.STAGE_SEAL,
        RequestCode.STAGE_PUBLISH, RequestCode.STAGE_DROP, RequestCode.DELAYED_CANCEL, RequestCode.DELAYED_FIRE,
        RequestCode.QUEUE_CHANGE, RequestCode.TOPIC_PURGE, RequestCode.DEAD_REDRIVE, RequestCode.TOPIC_KEEP,
        RequestCode.TOPIC_CONVERT, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    }
)  # fmt: skip


class Requests:
    """The cold side of the remoting front of one broker."""

    def __init__(self, broker: Broker, rights: Rights | None = None) -> None:
        rights = rights or Rights()
        self._broker = broker
        self.consuming = Consuming(broker, rights)
        self.statistics = Statistics(broker)
        self.table: dict[int, Callable[[Peer, RemotingCommand], Answer]] = {}
        for calls in (
            self.consuming,
            self.statistics,
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
        if self._broker.copies.following and request.code in MASTERS_WORK:
            raise Refused(f"{OF_A_SLAVE}; its master is {self._broker.copies.master or 'away'}")
        return method(session, request)
