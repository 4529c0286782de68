"""Users, their rights and addresses, and the file that holds them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access.users import Right, User, Verb, address_matches, check_address, read_right, read_users, write_users
from penstock.errors import ConfigError


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*", ["1.2.3.4", "::1"], []),
        ("192.168.0.7", ["192.168.0.7", "::ffff:192.168.0.7"], ["192.168.0.70", "192.168.0.17"]),
        ("192.168.0.*", ["192.168.0.7", "192.168.0.255"], ["192.168.1.7"]),
        ("192.168.*.*", ["192.168.0.7"], ["192.169.1.7"]),
        ("192.168.0.1-10", ["192.168.0.1", "192.168.0.10"], ["192.168.0.0", "192.168.0.11"]),
        ("192.168.0.{1,2}", ["192.168.0.1", "192.168.0.2"], ["192.168.0.3", "192.168.0.12"]),
        ("192.168.{0,2}.*", ["192.168.2.9"], ["192.168.1.9"]),
        ("10.0.0.1,10.0.0.{2,3}", ["10.0.0.1", "10.0.0.3"], ["10.0.0.4"]),
        ("10.0.0.0/8", ["10.200.0.1"], ["11.0.0.1"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2"]),
        ("fe80:0:0:0:0:0:0:*", ["fe80::9"], ["fe81::9"]),
    ],
)
def test_addresses_as_rocketmq_writes_them(pattern: str, yes: list[str], no: list[str]) -> None:
    check_address(pattern)
    assert [address_matches(pattern, host) for host in yes] == [True] * len(yes)
    assert [address_matches(pattern, host) for host in no] == [False] * len(no)


@pytest.mark.parametrize("pattern", ["", "a.b.c.d", "1.2.3", "1.2.3.4.5", "192.168.0.{1,", "10.0.0.0/99", "host.name"])
def test_what_is_no_address(pattern: str) -> None:
    with pytest.raises(ConfigError):
        check_address(pattern)


@pytest.mark.parametrize("text", ["", "publish", "publish:", "admin:x", "write:orders", ":orders", "Publish:x"])
def test_what_is_no_right(text: str) -> None:
    with pytest.raises(ConfigError):
        read_right(text)


def test_a_right_reaches_the_names_it_says_and_no_others() -> None:
    one = User("u", rights=(Right(Verb.PUBLISH, "orders.*"), Right(Verb.SUBSCRIBE, "o.d"), Right(Verb.MONITOR)))
    assert one.may(Verb.PUBLISH, "orders.eu")
    assert one.may(Verb.PUBLISH, "orders.")
    assert not one.may(Verb.PUBLISH, "orders")
    assert not one.may(Verb.PUBLISH, "xorders.eu")
    assert not one.may(Verb.SUBSCRIBE, "orders.eu")
    assert one.may(Verb.SUBSCRIBE, "o.d")
    assert not one.may(Verb.SUBSCRIBE, "oxd")
    assert one.may(Verb.MONITOR)
    assert not one.may(Verb.ADMIN)
    assert not one.may(Verb.REGISTER)
    assert not one.may(Verb.GROUP, "orders.eu")
    assert one.may(Verb.PUBLISH, "orders.eu\n") is not one.may(Verb.PUBLISH, "x")


def test_what_is_said_of_one_name_stands_before_a_pattern() -> None:
    one = User(
        "u", rights=(Right(Verb.PUBLISH, "*"), Right(Verb.GROUP, "*")), topics={"t": frozenset()}, groups={"g": False}
    )
    assert one.may(Verb.PUBLISH, "u")
    assert not one.may(Verb.PUBLISH, "t")
    assert one.may(Verb.GROUP, "h")
    assert not one.may(Verb.GROUP, "g")


def test_an_administrator_may_everything() -> None:
    one = User("root", rights=(Right(Verb.ADMIN),))
    assert all(one.may(verb, "anything") for verb in Verb)


names = st.from_regex(r"[A-Za-z0-9_.@-]{1,20}", fullmatch=True)
secrets = st.text(st.characters(exclude_categories=("C", "Z")), min_size=6, max_size=20)
rights = st.builds(
    Right, st.sampled_from([Verb.PUBLISH, Verb.GROUP]), st.text(min_size=1, max_size=9).filter(str.strip)
)


@given(
    st.lists(st.builds(User, names, secrets, st.lists(rights, max_size=3).map(tuple)), unique_by=lambda one: one.name)
)
def test_what_is_written_is_read(users: list[User]) -> None:
    found = {one.name: one for one in users}
    assert read_users(write_users(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "[[user]]", "user = 1", "[[user]]\nname = 'a b'", "[[user]]\nname = 'a'\nsecret = 'short'", "x = 1",
        "[[user]]\nname = 'a'\nrigths = []", "[[user]]\nname = 'a'\nrights = 'admin'", "[[user]]\nname = 'a'\nrights = [1]",
        "[[user]]\nname = 'a'\n[[user]]\nname = 'a'", "[[user]]\nname = 'a'\naddresses = ['nowhere']", "\x00",
        "[[user]]\nname = 'a'\ntokens = ['plain']", "x = " + "1" * 5000, "x = " + "[" * 5000,
    ],
)  # fmt: skip
def test_a_file_that_says_something_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        read_users(text)


def test_a_secret_is_in_no_text_about_a_user() -> None:
    assert "hush-hush" not in repr(User("u", "hush-hush", tokens=("a" * 64,)))
    assert "a" * 64 not in repr(User("u", tokens=("a" * 64,)))
