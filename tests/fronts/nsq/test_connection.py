"""A connection below its commands: answers that wait for a flush hold back what is behind them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fronts.frontside import NsqSide
from fronts.nsq_peer import sized
from penstock.errors import StoreError
from penstock.fronts.nsq.connection import Failed, NsqConnection


def test_at_level_disk_an_answer_comes_after_the_flush_and_those_behind_it_too(tmp_path: Path) -> None:
    side = NsqSide(tmp_path, level="disk")
    session = side.session()
    assert isinstance(session, NsqConnection)
    data = bytearray(b"PUB t\n" + sized(b"x") + b"FIN " + b"0" * 16 + b"\n")
    side.front.begin_turn()
    session.feed(data, len(data))
    assert session.take() == b""
    side.turn()  # the flush
    first, *_ = side.frames(session)
    assert first == b"OK"
    side.close()


def test_a_failed_flush_is_answered_with_an_error_and_the_end(tmp_path: Path) -> None:
    side = NsqSide(tmp_path, level="disk")
    session = side.session()
    data = bytearray(b"PUB t\n" + sized(b"x"))
    side.front.begin_turn()
    session.feed(data, len(data))
    side.queueing.flush.fail(StoreError("the disk failed"))
    side.turn()
    (frame,) = side.frames(session)
    assert frame.startswith(b"E_PUB_FAILED")
    assert session.closing
    side.broker.close(False)


def test_errors_are_counted_by_their_code(tmp_path: Path) -> None:
    side = NsqSide(tmp_path)
    session = side.session()
    session.error(b"E_FIN_FAILED FIN x failed")
    session.fail(b"E_INVALID no")
    assert dict(side.front.rejected) == {b"E_FIN_FAILED": 1, b"E_INVALID": 1}
    assert side.frames(session) == [b"E_FIN_FAILED FIN x failed", b"E_INVALID no"]
    side.close()


def test_where_rights_are_asked_for_nobody_has_any_before_auth(tmp_path: Path) -> None:
    side = NsqSide(tmp_path, auth_http_address="127.0.0.1:1")
    session = side.session()
    with pytest.raises(Failed) as failed:
        session.check_right(b"publish", b"t", b"", b"PUB")
    assert failed.value.text == b"E_AUTH_FIRST AUTH required before PUB"
    side.close()
