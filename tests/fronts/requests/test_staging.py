"""The five calls of staged writes, as requests."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fronts.frontside import RemotingSide
from penstock.fronts.requests.staging import StageCalls
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import RemotingCommand

OPEN, APPEND, DROP = RequestCode.STAGE_OPEN, RequestCode.STAGE_APPEND, RequestCode.STAGE_DROP
RUN = {"sink": "S", "query": "Q", "run": "r", "coordinator": "broker-a"}
TOKEN = "a" * 32


@pytest.fixture
def side(tmp_path: Path) -> Iterator[RemotingSide]:
    side = RemotingSide(tmp_path)
    yield side
    side.close()


def test_what_is_known_of_a_sink(side: RemotingSide) -> None:
    assert OPEN in StageCalls.TABLE
    session = side.session()
    only_asks = {name: text for name, text in RUN.items() if name != "coordinator"}
    asked = side.ask(session, OPEN, **only_asks, token="")
    assert (asked.code, asked.ext["batch"], asked.ext["coordinator"]) == (0, "-1", "")
    opened = side.ask(session, OPEN, **RUN, token=TOKEN, batch=0)
    assert (opened.code, opened.ext["number"]) == (0, "0")
    assert side.ask(session, OPEN, **only_asks, token="").ext["coordinator"] == "broker-a"


def test_a_run_without_rows_here_is_noted_and_answered_when_that_is_on_the_disk(side: RemotingSide) -> None:
    session, run = side.session(), {name: str(text) for name, text in RUN.items()}
    assert side.say(session, RemotingCommand(OPEN, run, opaque=7)) == []
    only_asks = {name: text for name, text in RUN.items() if name != "coordinator"}
    assert side.ask(session, OPEN, **only_asks).ext["coordinator"] == "broker-a"


def test_a_chunk_that_is_none_is_refused(side: RemotingSide) -> None:
    session = side.session()
    side.ask(session, OPEN, **RUN, token=TOKEN, batch=0)
    answer = side.ask(session, APPEND, b"junk", token=TOKEN, number=1)
    assert answer.code != 0
    assert side.ask(session, APPEND, b"", token="b" * 32, number=1).code != 0


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"tokens": "a"}', b'{"tokens": [1]}'])
def test_tokens_are_a_list_of_texts(side: RemotingSide, body: bytes) -> None:
    assert side.ask(side.session(), DROP, body, sink="S", run="r").code == 1


def test_what_is_dropped_is_counted(side: RemotingSide) -> None:
    session = side.session()
    side.ask(session, OPEN, **RUN, token=TOKEN, batch=0)
    body = json.dumps({"tokens": [TOKEN, "c" * 32]}).encode()
    assert side.ask(session, DROP, body, sink="S", run="r").ext["count"] == "1"
