"""Requests that change who is the master of a replica set (docs/replication.md)."""

from __future__ import annotations

from penstock.broker.broker import Broker
from penstock.broker.clients import Peer
from penstock.broker.mastership import Mastership
from penstock.errors import Refused
from penstock.fronts.requests.calls import Answer, Calls
from penstock.wire import fastjson
from penstock.wire.codes import RequestCode, read_fields
from penstock.wire.remoting import RemotingCommand


class RoleCalls(Calls):
    """The part of the requests' table that is about master and slaves."""

    TABLE = {RequestCode.HA_PROMOTE: "promote", RequestCode.HA_SWITCH: "switch"}

    def promote(self, session: Peer, request: RemotingCommand) -> Answer:
        """This slave is to be the master: it answers, and starts anew."""
        mastership_of(self.broker).promote(bool(read_fields(request.code, request.ext)["acceptLoss"]))
        return request.reply()

    def switch(self, session: Peer, request: RemotingCommand) -> Answer:
        """This master is to change places with a slave; the answer says with which, before it is done."""
        node = mastership_of(self.broker).switch(read_fields(request.code, request.ext)["node"] or "")
        return request.reply(body=fastjson.dumps({"node": node}))


def mastership_of(broker: Broker) -> Mastership:
    """How this broker becomes the master or a slave. Refused where it is neither."""
    if broker.mastership is None:
        raise Refused("this broker is of no replica set: it has no ha_port")
    return broker.mastership
