"""What an entry of the schedule says of a message: written and read again, and what makes no sense."""

from __future__ import annotations

import time

import pytest
from http_rows import ask
from hypothesis import given
from hypothesis import strategies as st

from penstock import Message, Producer
from penstock.broker.nsq.entry import AGAIN_LANE, Deferred, deferred, deferred_of, reserved
from penstock.message import ReceivedMessage
from penstock.testing import Broker

NAMES = st.binary(min_size=1, max_size=64).filter(lambda name: name.isascii())
NUMBERS = st.integers(0, (1 << 62) - 1)


def message(properties: dict[str, str]) -> ReceivedMessage:
    real = {"REAL_TOPIC": "rmq_sys_wheel_timer"} | properties
    return ReceivedMessage("rmq_sys_wheel_timer", b"", 0, 0, 0, real)


@given(
    NAMES, st.one_of(st.just(b""), NAMES), NUMBERS, st.integers(0, 65_535), NUMBERS,
    st.integers(AGAIN_LANE, 1000), st.integers(-1, 1 << 40),
)  # fmt: skip
def test_an_entry_says_all(
    topic: bytes, channel: bytes, id_: int, attempts: int, stamp_ns: int, lane: int, place: int
) -> None:
    about = Deferred(topic, channel, id_, attempts, stamp_ns, lane, place)
    assert deferred(message(about.properties())) == about
    assert reserved(about.properties()) != ""


def test_an_ordinary_message_is_none() -> None:
    assert deferred(message({})) is None
    about = Deferred(b"t", b"c", 1, 1, 1).properties()
    assert deferred(message(about | {"REAL_TOPIC": "t"})) is None  # a sender wrote that
    assert reserved({"KEYS": "k"}) == ""


@pytest.mark.parametrize("name", ["ID", "ATTEMPTS", "STAMP", "LANE", "PLACE"])
@pytest.mark.parametrize("value", ["", "x", "-2", "1.0", "٣", "9" * 20, str(1 << 63)])
def test_without_sense(name: str, value: str) -> None:
    about = Deferred(b"t", b"c", 1, 1, 2, 1, 1).properties() | {f"PENSTOCK_{name}": value}
    with pytest.raises(ValueError, match="no number"):
        deferred(message(about))


def test_what_waits_in_a_schedule_is_told_apart() -> None:
    """A message may say the property's name in its body: an entry is told by its properties."""
    with Broker() as broker, Producer(broker.registry) as producer:
        due_ms = time.time_ns() // 1_000_000 + 3_600_000
        producer.send(Message("log", b"\x01PENSTOCK_QUEUE\x01other\x02", deliver_at_ms=due_ms))
        assert ask(broker.http, "POST", "/pub?topic=queue&defer=60000", b"PENSTOCK_QUEUE").status == 200
        found = broker.call(lambda server: [deferred_of(due) for due in server.broker.schedule.entries()])
    assert [about.topic if about else None for about in found] == [b"queue", None]
