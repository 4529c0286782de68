"""The settings of a push consumer in one object, for those that work for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.client.rebalance import Allocate
from penstock.client.subscriptions import Start
from penstock.security import PLAIN, Security


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings:
    """What `PushConsumer` was made with; its docstring says what each means."""

    group: str
    model: Literal["cluster", "broadcast"]
    start: Start
    orderly: bool
    concurrency: int
    attempts_max: int
    window_count: int
    window_bytes: int
    in_flight_max: int
    kind: Literal["log", "queue"]
    allocate: Allocate
    offsets_folder: Path
    timeout_s: float
    security: Security = PLAIN

    @property
    def shared(self) -> bool:
        """The members of the group share the queues."""
        return self.model == "cluster"
