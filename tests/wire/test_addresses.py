"""Addresses as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.addresses import host_in, split_address


@pytest.mark.parametrize(
    "bad",
    [
        "[::1",
        "::1]:5",
        "[a]:5",
        "::1",
        "a b:3",
        "http://x:9",
        "a@b:1",
        "a\n:1",
        "a\0b:1",
        "a:0009876",
        "a:" + "9" * 5_000,
        "[]:5",
    ],
)
def test_what_is_no_address(bad: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        split_address(bad)


@pytest.mark.parametrize("bad", [5, None, b"a:1", ("a", 1)])
def test_an_address_is_text(bad: object) -> None:
    with pytest.raises(TypeError, match="an address is text, not"):
        split_address(bad)  # type: ignore[arg-type]


def test_addresses_with_colons() -> None:
    """A zone, and what old brokers registered without brackets."""
    assert split_address("[fe80::1%eth0]:5") == ("fe80::1%eth0", 5)
    assert split_address("2001:db8::7:10911") == ("2001:db8::7", 10911)
    assert split_address("bücher_1.example:1") == ("bücher_1.example", 1)


@given(st.text())
def test_any_text_is_an_address_or_a_usage_error(text: str) -> None:
    try:
        host, port = split_address(text)
    except ValueError:
        return
    assert host
    assert not set(host) & set(" /[]@\n\0")
    assert 0 < port < 65_536


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("a", "a"),
        ("a:1", "a"),
        ("10.0.0.1:80", "10.0.0.1"),
        ("::1", "[::1]"),
        ("[::1]", "[::1]"),
        ("[::1]:5", "[::1]"),
        ("", ""),
    ],
)
def test_the_host_of_what_people_write(text: str, host: str) -> None:
    assert host_in(text) == host
