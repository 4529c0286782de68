"""Failed logins: five a minute for an address, and for a name."""

from __future__ import annotations

from penstock.access.logins import KEPT_MAX, WINDOW_MS, FailedLogins


def test_five_a_minute_for_an_address_and_for_a_name() -> None:
    logins = FailedLogins(5)
    for number in range(5):
        assert not logins.too_many("1.1.1.1", f"u{number}", 0)
        logins.failed("1.1.1.1", f"u{number}", 0)
    assert logins.too_many("1.1.1.1", "another", WINDOW_MS - 1)
    assert not logins.too_many("2.2.2.2", "u0", 0)
    for number in range(5):
        logins.failed(f"3.3.3.{number}", "u0", 0)
    assert logins.too_many("4.4.4.4", "u0", 0)
    assert logins.refused == 2
    assert not logins.too_many("1.1.1.1", "u0", WINDOW_MS)


def test_an_address_is_no_name() -> None:
    logins = FailedLogins(1)
    logins.failed("1.1.1.1", "u", 0)
    assert not logins.too_many("2.2.2.2", "1.1.1.1", 0)
    logins.failed("3.3.3.3", "@2.2.2.2", 0)  # a user may be called so
    assert not logins.too_many("2.2.2.2", "v", 0)


def test_wrong_tokens_of_one_address_refuse_none_of_another() -> None:
    logins = FailedLogins(1)
    logins.failed("1.1.1.1", "", 0)
    assert logins.too_many("1.1.1.1", "", 0)
    assert not logins.too_many("2.2.2.2", "", 0)


def test_no_limit_and_a_bound_on_what_is_remembered() -> None:
    logins = FailedLogins(0)
    for _ in range(100):
        logins.failed("1.1.1.1", "u", 0)
    assert not logins.too_many("1.1.1.1", "u", 0)
    limited = FailedLogins(1)
    for number in range(KEPT_MAX):
        limited.failed(f"h{number}", f"u{number}", 0)
    assert not limited.too_many("h1", "u1", 0)
    assert limited.too_many(f"h{KEPT_MAX - 1}", "x", 0)
