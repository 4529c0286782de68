"""Users, as `mqadmin`'s access-control commands ask for them and change them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from penstock.access import accounts
from penstock.access.rights import Rights
from penstock.broker.broker import Broker
from penstock.broker.clients import Peer
from penstock.errors import ConfigError, Refused
from penstock.fronts.requests.calls import Answer, Calls
from penstock.wire import fastjson
from penstock.wire.addresses import host_in
from penstock.wire.codes import RequestCode, ResponseCode, read_fields
from penstock.wire.remoting import RemotingCommand


class Accounts(Calls):
    """The part of the requests' table that is about users."""

    TABLE = {
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: "update",
        RequestCode.DELETE_ACL_CONFIG: "delete",
        RequestCode.GET_BROKER_CLUSTER_ACL_INFO: "version",
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: "trust",
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: "every_account",
    }

    def __init__(self, broker: Broker, rights: Rights) -> None:
        Calls.__init__(self, broker)
        self.rights = rights

    def _change(self, request: RemotingCommand, failure: ResponseCode, change: Callable[[Path], None]) -> Answer:
        path = self.rights.path
        if path is None or not self.rights.on:
            raise Refused("There are no users yet: make the first with `penstock user add`.", remoting=failure)
        try:
            change(path)
        except (ConfigError, OSError) as error:
            raise Refused(f"{error} {getattr(error, 'hint', '')}".rstrip(), remoting=failure) from None
        self.rights.look_again()
        return request.reply()

    def update(self, session: Peer, request: RemotingCommand) -> Answer:
        """Make an account, or change it."""
        read_fields(request.code, request.ext)
        return self._change(
            request,
            ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED,
            lambda path: accounts.update(path, request.ext),
        )

    def delete(self, session: Peer, request: RemotingCommand) -> Answer:
        name = read_fields(request.code, request.ext)["accessKey"]
        return self._change(request, ResponseCode.DELETE_ACL_CONFIG_FAILED, lambda path: accounts.remove(path, name))

    def trust(self, session: Peer, request: RemotingCommand) -> Answer:
        """Set the addresses that plain_acl.yml trusts with everything."""
        told = read_fields(request.code, request.ext)["globalWhiteAddrs"]
        return self._change(
            request, ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED, lambda path: accounts.trust(path, told)
        )

    def version(self, session: Peer, request: RemotingCommand) -> Answer:
        """Which state of the file the broker goes by."""
        config = self.broker.config
        version = {"counter": self.rights.times_read, "timestamp": self.rights.modified_ms}
        text = fastjson.dumps(version).decode()
        return request.reply(
            ext={
                "version": text,
                "allAclFileVersion": fastjson.dumps({str(self.rights.path): version}).decode(),
                "brokerName": config.broker_name,
                "brokerAddr": f"{host_in(config.advertise or config.host)}:{config.remoting_port}",
                "clusterName": config.cluster_name,
            }
        )

    def every_account(self, session: Peer, request: RemotingCommand) -> Answer:
        """All accounts; secrets are not told."""
        rows = [accounts.account_of(user) for user in self.rights.users.values()]
        body = {"globalWhiteAddrs": list(self.rights.trusted), "plainAccessConfigs": rows}
        return request.reply(body=fastjson.dumps(body))
