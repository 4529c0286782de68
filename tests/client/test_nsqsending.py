"""`client.nsqsending`: delays and names."""

import pytest

from penstock.client.nsqsending import check_channel, check_plain, defer_ms, ladder_s, level_for
from penstock.message import Message


def test_delays() -> None:
    assert defer_ms(Message("t", b"x"), 1_000) == 0
    assert defer_ms(Message("t", b"x", deliver_at_ms=1_500), 1_000) == 500
    assert defer_ms(Message("t", b"x", deliver_at_ms=500), 1_000) == 0
    assert [defer_ms(Message("t", b"x", delay_level=level), 0) for level in (1, 18, 99)] == [
        1_000,
        7_200_000,
        7_200_000,
    ]
    assert [ladder_s(attempts) for attempts in (1, 2, 3, 16, 900)] == [10, 30, 60, 7_200, 7_200]
    assert [level_for(seconds) for seconds in (0, 1, 1.5, 6, 99_999)] == [1, 1, 2, 3, 18]


def test_batches_are_of_one_topic_and_not_delayed() -> None:
    check_plain([Message("t", b"x"), Message("t", b"y")])
    for messages in (
        [],
        [Message("t", b"x"), Message("u", b"x")],
        [Message("t", b"x"), Message("t", b"y", delay_level=1)],
    ):
        with pytest.raises(ValueError, match="batch"):
            check_plain(messages)


@pytest.mark.parametrize("name", ["", "a b", "a\nFIN", "%RETRY%g", "é", "x" * 65, "a#b", "a#ephemeral#tmp"])
def test_bad_names(name: str) -> None:
    with pytest.raises(ValueError, match="NSQ topic"):
        check_channel(name, "c")
    with pytest.raises(ValueError, match="NSQ channel"):
        check_channel("t", name)


def test_good_names() -> None:
    check_channel("a.b_C-9", "x" * 64)
    check_channel("t#ephemeral", "c#tmp")
