"""NSQ's commands where there are users: AUTH by name and secret or by token, rights by topic and channel, changes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from access.people import SECRET, looked, rights_of, user, write
from fronts.frontside import NsqSide
from fronts.nsq_peer import mpub, sized
from penstock.access.rights import LOOK_MS
from penstock.access.users import User, read_right, token_digest
from penstock.fronts.nsq.commands import COMMANDS
from penstock.fronts.nsq.granted import Granted, login, met
from penstock.fronts.nsq.session import NsqSession

HERE = "127.0.0.1:5"
# What each command needs. The rest says nothing of a topic: it is for who has subscribed, or changes nothing.
NEEDS = {
    b"PUB": (b"PUB T\n" + sized(b"x"), ("publish:T",)),
    b"MPUB": (mpub(b"T", b"x"), ("publish:T",)),
    b"DPUB": (b"DPUB T 1000\n" + sized(b"x"), ("publish:T",)),
    b"SUB": (b"SUB T C\n", ("subscribe:T", "group:C")),
}
FREE = {b"IDENTIFY", b"AUTH", b"FIN", b"RDY", b"REQ", b"TOUCH", b"CLS", b"NOP", b"REJECT"}


class Guarded(NsqSide):
    def __init__(self, folder: Path) -> None:
        NsqSide.__init__(self, folder / "data", rights_of(folder / "rights", user("root", "admin")))
        self.folder = folder / "rights"

    def grant(self, *users: User) -> None:
        write(self.folder / "users.toml", user("root", "admin"), *users)
        self.clock.advance(2 * LOOK_MS)
        self.broker.time.update()
        rights = self.front.shared.users
        assert rights is not None
        looked(rights, self.broker.mono_ms)

    def auth(self, session: NsqSession, said: str) -> bytes:
        return b"".join(self.say(session, b"AUTH\n" + sized(said.encode())))

    def logged_in(self, name: str, secret: str = "") -> NsqSession:
        session = self.session()
        self.auth(session, f"{name}:{secret or SECRET + name}")
        return session


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Guarded]:
    side = Guarded(tmp_path)
    yield side
    side.close()


def test_no_command_is_without_a_row() -> None:
    hot = {b"FIN", b"PUB", b"MPUB", b"RDY"}
    assert {*COMMANDS, *hot} == {*NEEDS, *FREE}


@pytest.mark.parametrize("verb", NEEDS, ids=bytes.decode)
def test_who_may(side: Guarded, verb: bytes) -> None:
    line, wanted = NEEDS[verb]

    def answer(session: NsqSession) -> bytes:
        return b"".join(side.say(session, line))

    assert answer(side.session()).startswith(b"E_AUTH_FIRST")
    side.grant(user("all", *wanted), user("other", "publish:X", "subscribe:X", "group:X"))
    assert answer(side.logged_in("other")).startswith(b"E_UNAUTHORIZED")
    for number, right in enumerate(wanted):
        side.grant(user("all", *wanted), user("almost", "publish:X", *wanted[:number], *wanted[number + 1 :]))
        assert answer(side.logged_in("almost")).startswith(b"E_UNAUTHORIZED"), right
    for name in ("all", "root"):
        assert answer(side.logged_in(name)) == b"OK"


def test_auth_answers_as_with_an_auth_server(side: Guarded) -> None:
    side.grant(user("u", "publish:T", "group:C", tokens=(token_digest("tok"),)), user("empty"))
    for said in (f"u:{SECRET}u", "tok"):
        told = json.loads(side.auth(side.session(), said))
        assert told == {"identity": "u", "identity_url": "", "permission_count": 2}
    wrong = [side.auth(side.session(), said) for said in ("u:wrong-one", "nobody:wrong-one", "u:", "tik", f"{SECRET}u")]
    assert set(wrong) == {b"E_AUTH_FAILED AUTH failed"}
    assert side.auth(side.session(), f"empty:{SECRET}empty").startswith(b"E_UNAUTHORIZED")
    assert json.loads(b"".join(side.say(side.session(), b"IDENTIFY\n" + sized(b'{"feature_negotiation":true}'))))[
        "auth_required"
    ]


def test_auth_twice(side: Guarded) -> None:
    session = side.logged_in("root")
    assert side.auth(session, f"root:{SECRET}root").startswith(b"E_INVALID AUTH already set")


def test_who_is_known_by_its_address_needs_no_auth(side: Guarded) -> None:
    side.grant(User("local", addresses=("127.0.0.1",), rights=user("x", "publish:T").rights))
    session = side.session()
    assert side.pub(session, b"T", b"x") == [b"OK"]
    assert b"".join(side.pub(session, b"X", b"x")).startswith(b"E_UNAUTHORIZED")


def test_rights_that_are_taken_away_end_what_they_allowed(side: Guarded) -> None:
    side.grant(user("u", "publish:T", "subscribe:T", "group:C"))
    producer, consumer = side.logged_in("u"), side.logged_in("u")
    assert side.pub(producer, b"T", b"x") == [b"OK"]
    assert side.say(consumer, b"SUB T C\n") == [b"OK"]
    side.grant(user("u", "subscribe:T", "group:C"))
    assert not consumer.closing
    assert b"".join(side.pub(producer, b"T", b"x")).startswith(b"E_UNAUTHORIZED")
    side.grant(user("u", "subscribe:T"))
    assert b"".join(side.frames(consumer)).startswith(b"E_UNAUTHORIZED")
    assert consumer.closing


def test_another_secret_ends_what_the_old_one_opened(side: Guarded) -> None:
    side.grant(user("u", "publish:T"))
    session = side.logged_in("u")
    assert side.pub(session, b"T", b"x") == [b"OK"]
    side.grant(User("u", "another-secret", user("x", "publish:T").rights))
    assert b"".join(side.pub(session, b"T", b"x")).startswith(b"E_AUTH_FIRST")


def test_who_may_not_come_from_there_any_more_is_let_go(side: Guarded) -> None:
    rights = user("u", "publish:T").rights
    side.grant(User("u", f"{SECRET}u", rights, addresses=("127.0.0.*",)))
    session = side.logged_in("u")
    assert side.pub(session, b"T", b"x") == [b"OK"]
    side.grant(User("u", f"{SECRET}u", rights, addresses=("10.0.0.1",)))
    assert b"".join(side.pub(session, b"T", b"x")).startswith(b"E_AUTH_FIRST")


def test_a_granted_user_is_asked_for_again_by_name(tmp_path: Path) -> None:
    rights = rights_of(tmp_path, user("u", "publish:T"), User("local", addresses=("127.0.0.1",)))
    granted = login(rights, f"u:{SECRET}u".encode(), HERE)
    assert isinstance(granted, Granted)
    assert granted.grants(b"publish", b"T", b"", 0)
    assert granted.again() is not None
    by_address = met(rights, HERE, "")
    assert by_address is not None
    assert by_address.again() is None  # it is met anew
    assert met(rights, "10.0.0.1:1", "") is None


def test_another_way_in_does_not_end_a_login(tmp_path: Path) -> None:
    """A token was made, and the consumers that had said the secret were cut off."""
    one, other = "one" * 12, "other" * 8
    rights = rights_of(tmp_path, user("u", "publish:T", tokens=(token_digest(one),)))
    by_secret, by_token = login(rights, f"u:{SECRET}u".encode(), HERE), login(rights, one.encode(), HERE)
    assert by_secret is not None
    assert by_token is not None

    def now(name: str, *tokens: str, secret: str = SECRET + "u") -> list[bool]:
        digests = tuple(map(token_digest, tokens))
        write(tmp_path / "users.toml", User(name, secret, (read_right("publish:T"),), tokens=digests))
        rights.look_again()
        return [login.again() is not None for login in (by_secret, by_token)]

    assert now("u", one, other) == [True, True]
    assert now("u", other) == [True, False]
    assert now("u", one, secret="another secret") == [False, True]
    assert now("u", other, secret="another secret") == [False, False]
    assert now("v", one) == [False, False]  # the token is another's now
