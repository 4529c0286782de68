"""What every table of requests stands on; and that each code of each table has a method that answers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fronts.frontside import RemotingSide
from penstock.errors import Refused
from penstock.fronts.requests import CODES, TABLES
from penstock.fronts.requests.calls import Calls
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import RemotingCommand


@pytest.fixture(scope="module")
def side(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemotingSide]:
    side = RemotingSide(tmp_path_factory.mktemp("calls"))
    yield side
    side.close()


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_a_request_that_says_nothing_is_refused_or_answered(side: RemotingSide, code: RequestCode) -> None:
    session = side.session()
    for body in (b"", b"{", b"[]"):
        answers = side.say(session, RemotingCommand(code, {}, body, opaque=5))
        assert all((answer.opaque, answer.code != 3) == (5, True) for answer in answers), answers
        assert "the log of the server says why" not in "".join(answer.remark or "" for answer in answers)
    session.lost()


def test_no_code_stands_twice() -> None:
    assert len(set(CODES)) == len(CODES)
    assert all(issubclass(table, Calls) for table in TABLES)


def test_steps_of_an_answer(side: RemotingSide) -> None:
    calls = Calls(side.broker)
    side.broker.topics.create(b"T", 2, 2)
    assert calls.topic("T").queue_count == 2
    with pytest.raises(Refused, match="topic\\[none\\] not exist"):
        calls.topic("none")
    assert calls.queue({"topic": "T", "queueId": 1}) is not None
    assert calls.queue({"topic": "T", "queueId": 2}) is None
    assert calls.json(RemotingCommand(1, body=b'{"a": 1}')) == {"a": 1}
    for bad in (b"", b"[]", b"{"):
        with pytest.raises(Refused, match="JSON"):
            calls.json(RemotingCommand(1, body=bad))
    with pytest.raises(Refused, match="not online"):
        calls.online("G")
