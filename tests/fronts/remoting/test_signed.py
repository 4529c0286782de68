"""Signed requests of one connection: the first is decoded, the others are proven in place, and both say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from access.people import SECRET, rights_of, user, write
from fronts.frontside import RemotingSide
from penstock.access.rights import Rights
from penstock.fronts.remoting.front import BrokerSession
from penstock.wire import remoting
from penstock.wire.acl import SIGNATURE, sign
from penstock.wire.remoting import BINARY, JSON, RemotingCommand

SEND = {"a": "P", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "5", "h": "0", "i": "TAGS\x01a"}


def send(side: RemotingSide, session: BrokerSession, name: str, secret: str = "", **more: str) -> int:
    command = RemotingCommand(310, SEND | {"b": more.pop("topic", "T")}, b"body", opaque=3)
    command.serialize = int(more.pop("serialize", str(JSON)))
    sign(command, name, secret or SECRET + name)
    command.ext.update(more)
    (answer,) = side.say(session, command)
    return answer.code


@pytest.fixture
def rights(tmp_path: Path) -> Rights:
    return rights_of(tmp_path / "users", user("anna", "publish:T"), user("bert", "publish:other"), limit=3)


def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each header that is decoded."""
    seen: list[int] = []
    decode = remoting.decode

    def look(kind: int, header: bytes, *rest: object) -> RemotingCommand:
        seen.append(kind)
        return decode(kind, header, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(remoting, "decode", look)
    return seen


@pytest.mark.parametrize("serialize", [JSON, BINARY])
def test_only_the_first_of_a_connection_is_decoded(
    tmp_path: Path, rights: Rights, monkeypatch: pytest.MonkeyPatch, serialize: int
) -> None:
    side = RemotingSide(tmp_path, rights)
    session = side.session()
    seen = decoded(monkeypatch)
    before = [send(side, session, "anna", serialize=str(serialize)) for _ in range(5)]
    assert before == [0] * 5
    assert len([kind for kind in seen if kind == serialize]) - 5 * (len(seen) > 5) <= 1
    side.close()


def test_what_is_wrong_is_refused_and_counted_however_much_was_right_before(tmp_path: Path, rights: Rights) -> None:
    side = RemotingSide(tmp_path, rights)
    session = side.session()
    assert [send(side, session, "anna") for _ in range(3)] == [0, 0, 0]
    assert send(side, session, "anna", "wrong secret") == 1
    assert send(side, session, "anna", topic="other") == 1  # no right
    assert send(side, session, "anna", **{SIGNATURE: "x"}) == 1
    assert send(side, session, "anna", j="7") == 1  # a field that was not signed
    assert send(side, session, "anna") == 0  # who is known goes on
    assert rights.failed_logins.too_many("127.0.0.1", "anna", 0)
    (answer,) = side.say(session, RemotingCommand(310, dict(SEND), b"body", opaque=4))  # nobody's
    assert (answer.code, answer.remark) == (1, "No accessKey is configured")
    assert send(side, session, "anna") == 1  # not known any more, and too many have failed
    side.close()


def test_a_secret_that_is_changed_holds_at_once(tmp_path: Path, rights: Rights) -> None:
    side = RemotingSide(tmp_path, rights)
    session = side.session()
    assert [send(side, session, "anna") for _ in range(3)] == [0, 0, 0]
    assert rights.path is not None
    write(rights.path, user("bert", "publish:T"))
    rights.look_again()
    assert send(side, session, "anna") == 1
    assert send(side, session, "bert") == 0
    side.close()
