"""Errors: what each protocol is told, and what a client may try again."""

from __future__ import annotations

import pytest

from penstock import errors
from penstock.errors import (
    BrokerRefused,
    ClientError,
    Corrupt,
    NotConnected,
    NotTrusted,
    PenstockError,
    Refused,
    StoreError,
)


def test_every_error_is_a_penstock_error() -> None:
    found = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    assert len(found) > 10
    assert all(issubclass(kind, PenstockError) for kind in found)


def test_a_refusal_carries_its_code_in_each_protocol() -> None:
    plain = Refused("no")
    assert (plain.remoting, plain.nsq, plain.http, plain.hint) == (1, "E_INVALID", 400, "")
    full = Refused("full", remoting=14, nsq="E_PUB_FAILED", http=503, hint="free some room")
    assert (str(full), full.remoting, full.nsq, full.http, full.hint) == (
        "full",
        14,
        "E_PUB_FAILED",
        503,
        "free some room",
    )


@pytest.mark.parametrize(
    ("code", "remark", "retryable"),
    [
        (2, "busy", True),
        (14, "the disk is full", True),
        (1, "something went wrong", True),
        (1, "The specified topic is blank.", False),
        (1, "queueId is not a number", False),
        (16, "no permission", False),
        (17, "no such topic", False),
    ],
)
def test_which_refusals_may_go_through_later(code: int, remark: str, retryable: bool) -> None:
    refused = BrokerRefused(code, remark)
    assert (refused.code, refused.remark, refused.retryable) == (code, remark, retryable)


def test_a_request_that_was_never_sent_may_be_sent_again() -> None:
    assert NotConnected.retryable
    assert not NotTrusted.retryable  # what is trusted is no matter of time
    assert not ClientError.retryable


def test_damage_names_its_place() -> None:
    damage = Corrupt("a/file", 17, "a bad sum")
    assert isinstance(damage, StoreError)
    assert (str(damage), damage.offset, damage.why) == ("a/file at byte 17: a bad sum", 17, "a bad sum")
