"""`client.outgoing`: what leaves as one request stays the same when it leaves again."""

from __future__ import annotations

import pytest

from penstock.client.outgoing import Outgoing, batch_request
from penstock.client.routes import MessageQueue
from penstock.clock import FakeClock
from penstock.message import Message
from penstock.wire.codes import RequestCode
from penstock.wire.record import decode_batch

ONE, OTHER = MessageQueue("T", "a", 0), MessageQueue("T", "b", 3)


def test_a_message_is_sent_again_under_its_id() -> None:
    sent = Outgoing("G", [Message("T", b"x")], ["I"], FakeClock(), 4096)
    first, again = sent.request(ONE), sent.request(OTHER)
    assert (first.code, first.ext["e"], again.ext["e"], again.ext["n"]) == (RequestCode.SEND_MESSAGE_V2, "0", "3", "b")
    assert first.ext["i"] == again.ext["i"]


def test_a_batch_is_encoded_once() -> None:
    sent = Outgoing("G", [Message("T", b"1"), Message("T", b"2")], ["I", "J"], FakeClock(), 4096)
    first, again = sent.request(ONE), sent.request(OTHER)
    assert first.code == RequestCode.SEND_BATCH_MESSAGE
    assert first.body is again.body
    assert [item.body for item in decode_batch(first.body)] == [b"1", b"2"]


def test_long_bodies_travel_compressed() -> None:
    sent = Outgoing("G", [Message("T", b"x" * 5000)], ["I"], FakeClock(), 4096).request(ONE)
    assert len(sent.body) < 100
    assert sent.ext["f"] == "1"


@pytest.mark.parametrize("bad", [[], [Message("T", b""), Message("U", b"")], [Message("%RETRY%g", b"")] * 2])
def test_what_is_no_batch(bad: list[Message]) -> None:
    with pytest.raises(ValueError):
        batch_request("G", bad, ONE, ["I"] * len(bad), 0)
