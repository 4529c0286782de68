"""Names as NSQ has them, and what is said of one that is wrong."""

from __future__ import annotations

import pytest

from penstock.broker.nsq.names import bad_channel, printable, refusal, too_many_channels, valid_nsq_name
from penstock.disk.readysegment import BROKEN, FULL


@pytest.mark.parametrize("name", [b"a", b"a.b-C_9", b"x" * 64, b"e#ephemeral", b"e#tmp"])
def test_valid(name: bytes) -> None:
    assert valid_nsq_name(name)


@pytest.mark.parametrize(
    "name", [b"", b"x" * 65, b"a b", b"a/b", b"a#other", b"#ephemeral", b"a\n", "ü".encode(), b"%RETRY%g"]
)
def test_invalid(name: bytes) -> None:
    assert not valid_nsq_name(name)


@pytest.mark.parametrize(
    ("name", "text"),
    [(b"plain", "plain"), (b'a"b\\', 'a\\"b\\\\'), (b"\n\t\x00\x7f", "\\n\\t\\x00\\x7f"), ("ü漢".encode(), "ü漢"),
     (b"\xff", "\\xff"), ("\u200b".encode(), "\\u200b"), ("\U000e0001".encode(), "\\U000e0001")],
)  # fmt: skip
def test_escaped_as_go_escapes(name: bytes, text: str) -> None:
    assert printable(name) == text


def test_refusals_in_each_protocol() -> None:
    assert "disk is full" in str(refusal(FULL))
    assert "restart the broker" in str(refusal(0))
    assert "log says why" in str(refusal(BROKEN))
    assert (refusal(FULL).nsq, refusal(FULL).http) == ("E_PUB_FAILED", 503)
    assert (bad_channel(b"a b").nsq, str(bad_channel(b"a b"))) == ("E_BAD_CHANNEL", 'channel name "a b" is not valid')
    assert "no more than 5" in str(too_many_channels(5))
