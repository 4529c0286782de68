"""What a RocketMQ master does not write into its log, asked for every ten seconds: topics, groups, committed offsets, and how
far delayed messages are delivered.

    topics, groups ─▶ taken at once
    offsets, delays ─▶ where the master's log ends by now ─▶ held until the log is copied so far ─▶ taken

A group goes on behind a message because it stands elsewhere in the log, with the retries or the dead letters, and a delayed one
is delivered because it stands in its topic. Whoever takes that before the records, and is promoted, never delivers them again.
"""

from __future__ import annotations

import asyncio
import logging
import time

from penstock.broker.taking import TakingRocketmq, log_end
from penstock.errors import PenstockError
from penstock.net import Net
from penstock.registration.caller import Caller
from penstock.registration.registrar import Registration
from penstock.security import security_of
from penstock.wire.codes import LanguageCode, RequestCode
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.ha")

PERIOD_S = 10.0
MORE_S = 1.0  # while the registry has not named the master, and between two looks at whether what is held can be taken
REQUESTS = {
    "topics": RequestCode.GET_ALL_TOPIC_CONFIG,
    "groups": RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    "offsets": RequestCode.GET_ALL_CONSUMER_OFFSET,
    "delays": RequestCode.GET_ALL_DELAY_OFFSET,
    "end": RequestCode.GET_BROKER_RUNTIME_INFO,  # asked behind those that are held: they are of a log that ended there at most
}
AT_ONCE, LATER = ("topics", "groups"), ("offsets", "delays")


class MasterTables:
    """Asks the master that the registry names. `run` until cancelled."""

    def __init__(self, net: Net, registration: Registration) -> None:
        self._net = net
        self._registration = registration
        self._store = registration.broker.store
        self._taking = TakingRocketmq(registration.broker)
        self._later: dict[str, bytes] = {}  # answers that the log is still to be copied for
        self._end = 0  # so far
        self._caller: Caller | None = None
        self._complained = ""

    async def run(self) -> None:
        """Until cancelled."""
        due_s = 0.0
        try:
            while True:
                try:
                    self._take_later()
                    if time.monotonic() >= due_s and await self._ask():
                        due_s = time.monotonic() + PERIOD_S
                except (OSError, TimeoutError, ValueError, PenstockError) as error:  # whatever it is, it is tried again
                    self._complain(str(error) or "it does not answer")
                await asyncio.sleep(MORE_S)
        finally:
            if self._caller is not None:
                self._caller.close()

    async def _ask(self) -> bool:
        """Whether there was somebody to ask. OSError, TimeoutError, ValueError or PenstockError: it did not answer well."""
        address = self._registration.master_address
        if not address:
            self._complain("no registry has said where the master answers: topics and offsets are not taken")
            return False
        if self._caller is None or self._caller.address != address:
            if self._caller is not None:
                self._caller.close()
            self._later = {}
            security = security_of(self._registration.broker.config.security or None)
            self._caller = Caller(self._net, address, security)
        for what in AT_ONCE:
            self._taking.take(what, await self._answer(self._caller, what))
        if not self._later:  # what is held comes first: a log that is always a little behind would wait for ever
            later = {what: await self._answer(self._caller, what) for what in LATER}
            self._end = log_end(await self._answer(self._caller, "end"))
            self._later = later
        return True

    @staticmethod
    async def _answer(caller: Caller, what: str) -> bytes:
        reply = await caller.ask(RemotingCommand(REQUESTS[what], language=LanguageCode.JAVA))
        return bytes(reply.body)

    def _take_later(self) -> None:
        """Offsets and delays, once the log is copied so far. WireError: they make no sense."""
        if not self._later or self._store.end_position < self._end:
            return
        later, self._later = self._later, {}
        if "offsets" in later:
            self._taking.take("offsets", later["offsets"])
        self._taking.take("delays", later["delays"])
        self._complained = ""  # all of it was taken: answers that make no sense each time are complained of once
        if self._taking.more:
            self._later = {"delays": later["delays"]}

    def _complain(self, why: str) -> None:
        if why != self._complained:
            self._complained = why
            log.warning("topics, groups and offsets not taken master=%s error=%s",
                        self._registration.master_address or "unknown", why)  # fmt: skip
