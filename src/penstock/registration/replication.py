"""Replication at the outside: the port where slaves connect, and a slave's connection to its master, made again and again."""

from __future__ import annotations

import asyncio
import logging
import socket

from penstock.broker.broker import Broker
from penstock.broker.replica import Replica
from penstock.config import BrokerConfig
from penstock.fronts.ha import HaFront
from penstock.net import Net
from penstock.registration.registrar import Registration

log = logging.getLogger("penstock.ha")

RECONNECT_S = 1.0


def node_of(config: BrokerConfig) -> str:
    """The name of a broker within its replica set."""
    return config.node or f"{socket.gethostname()}-{config.remoting_port}"


def make_front(broker: Broker, address: str, *, lossy: bool) -> HaFront:
    """The front of replication of a slave, or of a master that slaves may follow. StoreError."""
    config = broker.config
    replica = Replica(broker.files, broker.folder, node_of(config))
    replica.open(lossy=lossy)
    broker.copies.belong(replica)
    if config.role == "slave":
        broker.copies.follow(replica.confirmed())
    else:
        if lossy and replica.followed:
            log.warning("a loss is accepted: what slaves have beyond %d is refused; unset ha_accept_loss",
                        broker.store.end_position)  # fmt: skip
        replica.lead(broker.store.min_position, broker.store.end_position, lossy=lossy)
    return HaFront(broker, replica, address)


class MasterLink:
    """Keeps a slave connected to its master: the one of the settings, or the one that the registry names."""

    def __init__(self, net: Net, front: HaFront, registration: Registration) -> None:
        self._net = net
        self._front = front
        self._registration = registration
        self._away = True
        self._address = front.broker.config.ha_master
        self._known = asyncio.Event()
        self._complained = ""
        registration.seek(lambda: self._away, self.hear)

    def hear(self, ha_address: str) -> None:
        """The registry says where the master's slaves connect; empty: it does not know."""
        if not self._front.broker.config.ha_master and ha_address:
            self._address = ha_address
            self._known.set()

    async def run(self) -> None:
        """Until cancelled."""
        if self._address:
            self._known.set()
        while True:
            await self._known.wait()
            address = self._address
            host, _, port = address.rpartition(":")
            try:
                connection = await self._net.connect(host.strip("[]"), int(port), self._front.to_master)
                self._complained = ""
                self._away = False
                while connection.transport is not None:
                    await asyncio.sleep(RECONNECT_S / 4)
                self._away = True
                self._registration.ask_again()
            except (OSError, ValueError) as error:
                if self._complained != address:
                    log.warning("master not reached master=%s error=%s", address, error)
                    self._complained = address
            await asyncio.sleep(RECONNECT_S)
