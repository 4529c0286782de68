"""The settings of a push consumer in one object, for those that work for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from penstock.client.rebalance import Allocate
from penstock.client.subscriptions import Start, start_ms
from penstock.security import PLAIN, Security


@dataclass(frozen=True, kw_only=True)
class ConsumerSettings:
    """What `PushConsumer` was made with; its docstring says what each means. ValueError for what cannot be."""

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
    consume_timeout_s: float = 900.0
    security: Security = PLAIN

    def __post_init__(self) -> None:
        start_ms(self.start)
        if self.model not in ("cluster", "broadcast"):
            raise ValueError(f"model is cluster or broadcast, not {self.model!r}")
        if self.kind not in ("log", "queue"):
            raise ValueError(f"kind is log or queue, not {self.kind!r}")
        for name in (
            "concurrency", "attempts_max", "window_count", "window_bytes", "in_flight_max", "consume_timeout_s", "timeout_s",
        ):  # fmt: skip
            if not getattr(self, name) > 0:  # a NaN is not, either
                raise ValueError(f"{name} is above 0, not {getattr(self, name)}")

    @property
    def shared(self) -> bool:
        """The members of the group share the queues."""
        return self.model == "cluster"
