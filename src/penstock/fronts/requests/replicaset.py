"""Requests that tend a replica set: pause its failover, forget a node (docs/replication.md)."""

from __future__ import annotations

from penstock.broker.clients import Peer
from penstock.broker.mastership import Told
from penstock.errors import PenstockError, Refused
from penstock.fronts.requests.calls import Answer, Calls
from penstock.fronts.requests.roles import mastership_of
from penstock.wire import fastjson
from penstock.wire.codes import RequestCode, ResponseCode, read_fields
from penstock.wire.remoting import RemotingCommand


class SetCalls(Calls):
    """The part of the requests' table that is about a replica set as a whole; any node of it is asked."""

    TABLE = {RequestCode.HA_PAUSE: "pause", RequestCode.HA_FORGET: "forget"}

    def pause(self, session: Peer, request: RemotingCommand) -> Answer:
        """No failover by itself, or as ever again: answered when the engine has it."""
        paused = bool(read_fields(request.code, request.ext)["paused"])
        tending = mastership_of(self.broker).tending
        if tending is None:
            raise Refused("no engine decides about this replica set: there is no failover by itself")
        tending.pause(paused, self._told(session, request))
        return None

    def forget(self, session: Peer, request: RemotingCommand) -> Answer:
        """Know nothing of a node any more; what was known is the answer."""
        fields = read_fields(request.code, request.ext)
        mastership = mastership_of(self.broker)
        node, dry_run = str(fields["node"]), bool(fields["dryRun"])
        if mastership.tending is None:
            address = mastership.forget(node, dry_run=dry_run)
            return request.reply(body=fastjson.dumps({"address": address, "engine": False}))
        mastership.tending.forget(node, dry_run, self._told(session, request))
        return None

    def _told(self, session: Peer, request: RemotingCommand) -> Told:
        """What answers when the engine has done it, or has not."""

        def told(found: dict[str, object] | PenstockError) -> None:
            if request.oneway:
                return
            if isinstance(found, PenstockError):
                code = found.remoting if isinstance(found, Refused) else ResponseCode.SYSTEM_ERROR
                session.push(request.reply(code, remark=str(found)))
            else:
                session.push(request.reply(body=fastjson.dumps(found)))

        return told
