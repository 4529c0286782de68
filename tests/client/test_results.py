"""What client calls give back."""

from __future__ import annotations

import pytest

from penstock.client.results import RETRY_DELAY_MAX_S, SEND_STATUSES, Reject, Retry, SendReceipt, SendStatus
from penstock.client.routes import MessageQueue
from penstock.wire.codes import ResponseCode


def test_the_ids_of_a_batch_are_those_of_its_first_message() -> None:
    receipt = SendReceipt(SendStatus.SEND_OK, MessageQueue("T", "a", 0), 7, ("U1", "U2"), ("O1", "O2"))
    assert (receipt.msg_id, receipt.offset_msg_id) == ("U1", "O1")


def test_a_stored_message_has_a_status_and_a_refused_one_has_none() -> None:
    assert SEND_STATUSES[ResponseCode.SUCCESS] is SendStatus.SEND_OK
    assert set(SEND_STATUSES.values()) == set(SendStatus)
    assert ResponseCode.SYSTEM_ERROR not in SEND_STATUSES


def test_outcomes() -> None:
    assert (Retry().delay, Retry(0).delay, Retry(2.5).delay) == (None, 0, 2.5)
    assert Retry(RETRY_DELAY_MAX_S).delay == RETRY_DELAY_MAX_S
    for delay in (-1, RETRY_DELAY_MAX_S + 1, 1e30, float("inf"), float("nan")):  # such a message would never be settled
        with pytest.raises(ValueError, match="a hundred years"):
            Retry(delay)
    assert (Reject().reason, Reject("bad").reason) == ("", "bad")
