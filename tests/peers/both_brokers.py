"""RocketMQ's own broker and ours, with the same settings, for flows that must go the same way with either."""

from __future__ import annotations

from pathlib import Path

from peers.rocketmq_broker import Installed, Rocketmq
from penstock.testing import Broker


def original(folder: Path) -> Rocketmq:
    return Rocketmq(Installed(), folder, enablePropertyFilter="true", traceTopicEnable="true")


def own(folder: Path) -> Broker:
    """Each delay is a second; transactions are asked about after one."""
    delays = " ".join(["1s"] * 18)
    settings = {"message_delay_level": delays, "transaction_timeout_ms": 1000, "transaction_check_interval_ms": 1000}
    return Broker(folder, **settings)
