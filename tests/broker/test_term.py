"""What the engine holds of a set, and how long a master may answer."""

from __future__ import annotations

import pytest

from penstock.broker.term import Favours, Seat, SetState, Term, read_seat, read_state
from penstock.errors import WireError

STATE = SetState("aa" * 16, 3, "bb" * 8, "a", {"a": 5, "b": 7})


def test_states_and_seats_come_back() -> None:
    assert read_state(STATE.encode()) == STATE
    assert b'"inSync":{"a":5,"b":7}' in STATE.encode()
    seat = Seat("a", 3, "127.0.0.1:1", "127.0.0.1:2")
    assert read_seat(seat.encode()) == seat


@pytest.mark.parametrize(
    "data",
    [b"", b"{}", b"[]", b"null", STATE.encode()[:-1], STATE.encode().replace(b"aaaa", b"xyzw"),
     STATE.encode().replace(b":3", b":0"), STATE.encode().replace(b':{"a":5,"b":7}', b":{}"),
     STATE.encode().replace(b":7", b':"7"'), b"\xff" * 20, b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_state_is_not_acted_on(data: bytes) -> None:
    with pytest.raises(WireError):
        read_state(data)
    with pytest.raises(WireError):
        read_seat(data)


def test_a_term_ends_before_its_lease() -> None:
    term = Term(STATE, 9, 77, 5_000, 100_000)
    assert term.until_ms == 104_000  # a second for clocks that differ
    term.renewed(101_000)
    assert term.until_ms == 105_000
    term.renewed(100_500)  # an answer that was overtaken
    assert term.until_ms == 105_000
    assert Term(STATE, 9, 77, 60_000, 0).until_ms == 54_000  # a tenth of it
    term.end("the lease is gone")
    term.renewed(200_000)
    term.end("later")
    assert (term.until_ms, term.over) == (0, "the lease is gone")


def test_favours_are_granted_by_all_who_were_asked_last() -> None:
    favours, granted = Favours(), list[int]()
    first = favours.ask({"b", "c"}, 1_000, granted.append)
    favours.hear("b", first, 5_000)
    favours.hear("b", first, 5_000)
    assert granted == []
    second = favours.ask({"b", "c"}, 2_000, granted.append)
    favours.hear("c", first, 5_000)  # to a question that counts no more
    favours.hear("b", second, 5_000)
    assert granted == []
    favours.hear("c", second, 5_000)
    favours.hear("c", second, 5_000)
    assert granted == [2_000]  # from the asking on, and once
    favours.ask((), 3_000, granted.append)
    assert granted == [2_000, 3_000]  # nobody else may stand


def test_promises_and_a_term_by_favour() -> None:
    favours = Favours()
    favours.grant(5_000, 100_000)
    favours.grant(1_000, 101_000)
    assert favours.until_ms == 105_000
    term = Term(STATE, 9, 77, 5_000, 100_000)
    term.favoured(102_000)
    assert (term.until_ms, term.by_favour) == (106_000, True)
    term.sit(78, 103_000)
    assert (term.until_ms, term.by_favour, term.lease) == (107_000, False, 78)
    term.end("over")
    term.favoured(200_000)
    term.sit(79, 200_000)
    assert (term.until_ms, term.by_favour) == (0, False)
