"""What a RocketMQ master does not write into its log, asked for every ten seconds: topics, groups, committed offsets, and how
far delayed messages are delivered.
"""

from __future__ import annotations

import asyncio
import logging

from penstock.broker.taking import TakingRocketmq
from penstock.errors import PenstockError
from penstock.net import Net
from penstock.registration.caller import Caller
from penstock.registration.registrar import Registration
from penstock.security import security_of
from penstock.wire.codes import LanguageCode, RequestCode
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.ha")

PERIOD_S = 10.0
MORE_S = 1.0  # while there is more to be taken, or the registry has not named the master
REQUESTS = {
    "topics": RequestCode.GET_ALL_TOPIC_CONFIG,
    "groups": RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    "offsets": RequestCode.GET_ALL_CONSUMER_OFFSET,
    "delays": RequestCode.GET_ALL_DELAY_OFFSET,
}


class MasterTables:
    """Asks the master that the registry names. `run` until cancelled."""

    def __init__(self, net: Net, registration: Registration) -> None:
        self._net = net
        self._registration = registration
        self._taking = TakingRocketmq(registration.broker)
        self._caller: Caller | None = None
        self._complained = ""

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await asyncio.sleep(PERIOD_S if await self._take() and not self._taking.more else MORE_S)
        finally:
            if self._caller is not None:
                self._caller.close()

    async def _take(self) -> bool:
        """Whether all of it was taken."""
        address = self._registration.master_address
        if not address:
            self._complain("no registry has said where the master answers: topics and offsets are not taken")
            return False
        try:
            if self._caller is None or self._caller.address != address:
                if self._caller is not None:
                    self._caller.close()
                security = security_of(self._registration.broker.config.security or None)
                self._caller = Caller(self._net, address, security)
            for what, code in REQUESTS.items():
                reply = await self._caller.ask(RemotingCommand(code, language=LanguageCode.JAVA))
                self._taking.take(what, reply.body)
        except (OSError, TimeoutError, ValueError, PenstockError) as error:  # whatever it is, it is tried again
            self._complain(str(error) or "it does not answer")
            return False
        self._complained = ""
        return True

    def _complain(self, why: str) -> None:
        if why != self._complained:
            self._complained = why
            log.warning("topics, groups and offsets not taken master=%s error=%s",
                        self._registration.master_address or "unknown", why)  # fmt: skip
