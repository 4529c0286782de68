"""What an entry of the schedule says of a message: written and read again, and what makes no sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.nsq.entry import AGAIN_LANE, Deferred, deferred, reserved
from penstock.message import ReceivedMessage

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
