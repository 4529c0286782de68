"""IDENTIFY: fields in any case, ranges, and what is agreed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fronts.frontside import NsqSide
from fronts.nsq_peer import sized
from penstock.fronts.nsq.connection import Failed
from penstock.fronts.nsq.identify import BUFFER_BYTES, DEFLATE_LEVEL, TEXT_CHARS_MAX, parse


def test_fields_of_any_case_the_last_one_counts() -> None:
    found = parse(b'{"Client_ID":"a","client_id":"b","TLS_V1":true,"other":5}')
    assert (found["tls_v1"], found["heartbeat_interval"], found["hostname"]) == (True, 0, "")
    assert found["client_id"] == "b"
    assert parse(b'{"client_id":"b","Client_ID":null}')["client_id"] == "b"
    assert parse(b"null")["deflate"] is False


def test_texts_can_be_written_again() -> None:
    """They are shown to everybody who asks for statistics: half a character made every such answer an error."""
    found = parse(rb'{"client_id":"\ud800a\udc00","hostname":"\ud83d\ude00","user_agent":"' + b"x" * 5_000 + b'"}')
    assert (found["client_id"], found["hostname"]) == ("\ufffda\ufffd", "\U0001f600")
    assert len(found["user_agent"]) == TEXT_CHARS_MAX
    assert parse(rb'{"client_id":"' + b"x" * (TEXT_CHARS_MAX - 1) + rb'\ud83d\ude00"}')["client_id"].encode()


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"tls_v1":1}', b'{"heartbeat_interval":"5"}', b'{"heartbeat_interval":true}',
             b'{"msg_timeout":9223372036854775808}', b"[" * 100_000]
)  # fmt: skip
def test_what_is_no_identify(body: bytes) -> None:
    with pytest.raises(Failed) as failed:
        parse(body)
    assert failed.value.text == b"E_BAD_BODY IDENTIFY failed to decode JSON body"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-8-sig", "utf-32"])
def test_json_is_utf8(encoding: str) -> None:
    """nsqd refuses any other."""
    with pytest.raises(Failed):
        parse('{"client_id":"a"}'.encode(encoding))


def test_a_name_in_another_encoding_is_shown_as_nsqd_does() -> None:
    """A host name in Latin-1 ended the connection."""
    assert parse('{"hostname":"k\xfcche"}'.encode("latin-1"))["hostname"] == "k\ufffdche"


def test_what_is_agreed(tmp_path: Path) -> None:
    side = NsqSide(tmp_path)
    session = side.session()
    asked = {
        "feature_negotiation": True,
        "msg_timeout": 5_000,
        "heartbeat_interval": -1,
        "sample_rate": 7,
        "deflate_level": 3,
    }
    (reply,) = side.say(session, b"IDENTIFY\n" + sized(json.dumps(asked).encode()))
    agreed = json.loads(reply)
    assert (agreed["msg_timeout"], agreed["sample_rate"], agreed["tls_v1"]) == (5_000, 7, False)
    assert (agreed["output_buffer_size"], agreed["deflate_level"]) == (BUFFER_BYTES, DEFLATE_LEVEL)
    assert (session.heartbeat_ms, session.msg_timeout_ms, session.sample_rate) == (0, 5_000, 7)
    side.close()


def test_what_a_client_says_of_its_place_stands_in_the_statistics(tmp_path: Path) -> None:
    """nsqd's `/stats` has both."""
    side = NsqSide(tmp_path)
    session = side.session()
    asked = {"topology_zone": "rack 1", "topology_region": "north"}
    side.say(session, b"IDENTIFY\n" + sized(json.dumps(asked).encode()))
    assert asked.items() <= session.describe(0).items()
    assert side.session().describe(0)["topology_zone"] == ""
    side.close()


@pytest.mark.parametrize(
    "asked", [{"msg_timeout": 1}, {"sample_rate": 100}, {"heartbeat_interval": 999}, {"output_buffer_size": 5}]
)
def test_what_is_out_of_range(tmp_path: Path, asked: dict[str, int]) -> None:
    side = NsqSide(tmp_path)
    (frame,) = side.say(side.session(), b"IDENTIFY\n" + sized(json.dumps(asked).encode()))
    assert frame.startswith(b"E_BAD_BODY IDENTIFY ")
    assert frame.endswith(b"is invalid")
    side.close()


def test_two_compressions_are_one_too_many(tmp_path: Path) -> None:
    side = NsqSide(tmp_path)
    asked = {"feature_negotiation": True, "deflate": True, "snappy": True}
    (frame,) = side.say(side.session(), b"IDENTIFY\n" + sized(json.dumps(asked).encode()))
    assert frame.startswith(b"E_IDENTIFY_FAILED")
    side.close()
