"""`broker.acknowledged`: what groups commit, by a clock that is set. The channels' part: `tests/fronts/test_prometheus.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock import Admin, Message, Producer
from penstock.broker.acknowledged import EVERY_MS, Acknowledged
from penstock.broker.clock import BrokerClock
from penstock.broker.core import Core
from penstock.clock import FakeClock
from penstock.config import BrokerConfig
from penstock.disk.files import Files
from penstock.histogram import Attempts
from penstock.limits import Limits
from penstock.testing import Broker


def test_what_makes_no_sense_is_not_counted(tmp_path: Path) -> None:
    """Through a broker: topics and queues that there are not, offsets that go back or stay, or where nothing is stored."""
    clock = FakeClock()
    with (
        Broker(tmp_path, clock=clock) as broker,
        Admin(broker.registry) as admin,
        Producer(broker.registry) as producer,
    ):
        admin.create_topic("t", 1)
        producer.send(Message("t", b"x"))
        clock.advance(1_000)

        def count(topic: str, queue: int, before: int | None, offset: int) -> int:
            def call(server: Any) -> int:
                acknowledged = server.broker.queueing.acknowledged
                acknowledged.committed(topic, queue, before, offset)
                return int(acknowledged.log.count)

            clock.advance(EVERY_MS)
            found: int = broker.call(call)
            return found

        for case in (
            ("no", 0, 0, 1),
            ("t", 9, 0, 1),
            ("t", -1, 0, 1),
            ("t", 0, None, 1),
            ("t", 0, 1, 1),
            ("t", 0, 2, 1),
            ("t", 0, 5, 9),
        ):
            assert count(*case) == 0, case
        assert count("t", 0, 0, 1) == 1


def test_what_was_counted_stays(tmp_path: Path) -> None:
    core = Core(BrokerConfig(data=str(tmp_path)), Files(), BrokerClock(FakeClock()), Limits())
    acknowledged = Acknowledged(core)
    gone = Attempts()
    gone.add(3)
    gone.finished(2)
    acknowledged.gone("queue", gone)
    past = acknowledged.past("queue")
    past.finished(100)  # a copy
    assert (acknowledged.past("queue").count, acknowledged.past("queue").sum, acknowledged.past("log").count) == (
        2,
        4,
        0,
    )
