"""Hosts, origins and tokens."""

from __future__ import annotations

import pytest

from penstock.console.guard import POLICY, Guard


@pytest.mark.parametrize(
    ("host", "ours"),
    [
        ("127.0.0.1:4171", True), ("localhost", True), ("LOCALHOST:4171", True), ("[::1]:4171", True), ("10.1.2.3", True),
        ("console.example:80", True), ("console.example.", True), ("evil.example", False), ("", False),
        ("localhost.evil.example", False), ("127.0.0.1.evil.example", False), ("[evil", False), ("@localhost:1", False),
        ("127.0.0.1:80.evil.example", False), ("[::1].evil.example", False), ("[::1]:x", False), ("::1", False),
        ("localhost:", True),
    ],
)  # fmt: skip
def test_hosts(host: str, ours: bool) -> None:
    assert Guard(["console.example"]).host_is_ours(host) is ours


@pytest.mark.parametrize(
    ("origin", "ours"),
    [(None, True), ("http://localhost:4171", True), ("https://LOCALHOST:4171", True), ("null", False), ("", False),
     ("http://localhost:4172", False), ("http://localhost:4171.evil.example", False)],
)  # fmt: skip
def test_origins(origin: str | None, ours: bool) -> None:
    assert Guard().origin_is_ours(origin, "localhost:4171") is ours


def test_tokens_are_of_one_session_and_one_process() -> None:
    guard = Guard()
    session = guard.new_session()
    assert guard.token_is_right(session, guard.token(session))
    assert not guard.token_is_right(guard.new_session(), guard.token(session))
    assert not guard.token_is_right(session, Guard().token(session))
    assert not guard.token_is_right("", guard.token(""))
    assert not guard.token_is_right(session, "é\udcff")


def test_no_page_asks_another_host() -> None:
    assert "http" not in POLICY
    assert "unsafe" not in POLICY
