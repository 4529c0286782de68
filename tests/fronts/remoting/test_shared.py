"""What RocketMQ sessions share of their broker."""

from __future__ import annotations

from pathlib import Path

from broker.queueside import Side
from penstock.fronts.remoting.shared import Shared


def test_settings_reach_the_sessions(tmp_path: Path) -> None:
    side = Side(tmp_path, max_message_size=1_000, long_polling_enable=False, cluster_name="C7")
    shared = Shared(side.broker)
    assert (shared.body_max, shared.hold_enabled, shared.holding, shared.blocked) == (1_000, False, [], False)
    assert shared.store is side.broker.store
    side.close()
