"""Settings that an administrator changes from the network: numbers of a list, within bounds.

Never a path, an address, a name, a listener, a command or who may do what (docs/rights.md): RocketMQ's list of what is
forbidden was too short twice.
"""

from __future__ import annotations

from collections.abc import Mapping

from penstock.access.rights import Rights
from penstock.broker.broker import Broker
from penstock.broker.clients import Peer
from penstock.errors import Refused
from penstock.fronts.requests import configuration
from penstock.fronts.requests.calls import Answer, Calls
from penstock.wire import fastjson
from penstock.wire.codes import RequestCode, ResponseCode, read_int
from penstock.wire.remoting import RemotingCommand

# RocketMQ's name → our setting, from, to.
CHANGEABLE: Mapping[str, tuple[str, int, int]] = {
    "transactionTimeOut": ("transaction_timeout_ms", 1_000, 86_400_000),
    "transactionCheckInterval": ("transaction_check_interval_ms", 100, 3_600_000),
    "transactionCheckMax": ("transaction_check_max", 1, 1_000),
    "stageMaxBytes": ("stage_max_bytes", 0, 1 << 50),
    "stageTtlMs": ("stage_ttl_ms", 60_000, 30 * 86_400_000),
}


class Settings(Calls):
    """The part of the requests' table that tells settings and changes them."""

    TABLE = {RequestCode.UPDATE_BROKER_CONFIG: "change", RequestCode.GET_BROKER_CONFIG: "tell"}

    def __init__(self, broker: Broker, rights: Rights) -> None:
        Calls.__init__(self, broker)
        self.rights = rights

    def tell(self, session: Peer, request: RemotingCommand) -> Answer:
        body = configuration.text(self.broker, self.rights.on)
        version = fastjson.dumps(dict(self.broker.topics.version)).decode()
        return request.reply(ext={"version": version}, body=body.encode())

    def change(self, session: Peer, request: RemotingCommand) -> Answer:
        """Change settings for as long as the broker runs: all that are named, or none. Refused without users."""
        if not self.rights.on:
            raise Refused(
                "Can not update config from the network: change the configuration file and restart.",
                remoting=ResponseCode.NO_PERMISSION,
            )
        values: dict[str, int] = {}
        for line in request.body.decode("utf-8", "replace").splitlines():
            name, equals, text = (part.strip() for part in line.partition("="))
            if not name or name.startswith("#"):
                continue
            if name not in CHANGEABLE or not equals:
                raise Refused(
                    f"{name} can not be changed from the network, only {', '.join(CHANGEABLE)}",
                    remoting=ResponseCode.NO_PERMISSION,
                )
            setting, least, most = CHANGEABLE[name]
            value = read_int(name, text)
            if not least <= value <= most:
                raise Refused(f"{name} is from {least} to {most}")
            values[setting] = value
        self.broker.core.change(values)
        return request.reply()
