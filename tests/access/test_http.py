"""Who an Authorization header says it is."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from access.people import SECRET, rights_of, user
from penstock.access.http import user_of
from penstock.access.users import User, token_digest

HERE = "127.0.0.1:5"


def basic(text: str) -> bytes:
    return b"Basic " + b64encode(text.encode())


def test_basic_bearer_and_the_connection(tmp_path: Path) -> None:
    local = User("local", addresses=("127.0.0.1",))
    rights = rights_of(tmp_path, user("u", tokens=(token_digest("tok"),)), local)
    one = rights.users["u"]
    assert user_of(rights, basic(f"u:{SECRET}u"), HERE, "") == one
    assert user_of(rights, b"bEaReR tok", HERE, "") == one
    assert user_of(rights, b"", HERE, "") == local
    assert user_of(rights, b"", HERE, "u") == one


@pytest.mark.parametrize(
    "header",
    [
        basic("u:wrong"),
        basic("u"),
        b"Basic !!",
        b"Basic",
        b"Bearer",
        b"Bearer x",
        b"Digest u",
        b"\xff\xfe",
        b"Basic \xff",
    ],
)
def test_a_wrong_one_is_nobody_even_where_the_connection_is_known(tmp_path: Path, header: bytes) -> None:
    rights = rights_of(tmp_path, user("u"), User("local", addresses=("127.0.0.1",)))
    assert user_of(rights, header, HERE, "") is None
