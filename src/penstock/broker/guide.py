"""Where a reader goes on: one that is far behind reads from the disk, and does so at a slave, away from those who send.

master:  more than `access_message_in_memory_max_ratio` of the memory behind ─▶ a slave in sync, the group's own choice first
slave:   less than three quarters of that behind, or no longer in sync ─▶ where the group reads as a rule (0: the master)
"""

from __future__ import annotations

import os

from penstock.broker.clock import BrokerClock
from penstock.broker.copies import Copies
from penstock.broker.groups import Group
from penstock.config import BrokerConfig
from penstock.wire.codes import MASTER_ID

PERCENT = 100
BACK_PART = 3, 4  # of the way to a slave: whoever stands at the limit is not sent to and fro
SILENT_MS = 10_000  # a slave that has not heard its master for so long may be far behind


def memory_of(config: BrokerConfig) -> int:
    """How many bytes of memory there are for what was stored last."""
    return config.memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Guide:
    """See the module. `far`: who is not so many bytes behind stays at the master."""

    def __init__(self, config: BrokerConfig, copies: Copies, time: BrokerClock) -> None:
        self.reads = config.slave_read_enable
        self.far = memory_of(config) * config.access_message_in_memory_max_ratio // PERCENT
        self._back = self.far * BACK_PART[0] // BACK_PART[1]
        self._copies = copies
        self._time = time

    def next_id(self, behind: int, group: Group | None) -> int:
        """The id of the broker that a reader of the group, so many bytes behind the end of the log, asks next."""
        copies = self._copies
        usual, slow = (group.broker_id, group.which_broker_when_slow) if group is not None else (MASTER_ID, 1)
        if not self.reads:
            return MASTER_ID
        if copies.following:
            replica = copies.replica
            lags = replica is None or not replica.in_sync or copies.heard_ms < 0
            if lags or behind < self._back or self._time.mono_ms - copies.heard_ms > SILENT_MS:
                return usual
            return copies.number
        if behind <= self.far or slow == MASTER_ID:
            return MASTER_ID
        able = [member.broker_id for member in copies.members.values() if member.in_sync]
        return slow if slow in able else min(able, default=MASTER_ID)
