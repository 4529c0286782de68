"""The RocketMQ front through real sockets: sends, pulls, holds, and every row of the bad-input catalogue."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from fronts.raw_peer import RawPeer, json_frame, raw_frame
from penstock.fronts.remoting.session import FAILED, RemotingSession
from penstock.testing import Broker
from penstock.wire import remoting
from penstock.wire.record import iter_records
from penstock.wire.remoting import RemotingCommand


def test_any_cutting_of_the_stream(broker: Broker, connect: Callable[[], RawPeer]) -> None:
    frames = b"".join(
        remoting.encode(
            RemotingCommand(
                310,
                {"a": "P", "b": "Cuts", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0"},
                b"%d" % i * (1 + i * 40),
                opaque=i,
                serialize=i & 1,
            )
        )
        for i in range(30)
    )
    peer = connect()
    for at in range(0, len(frames), 97):
        peer.write(frames[at : at + 97])
    assert [peer.read().ext["queueOffset"] for _ in range(30)] == [str(i) for i in range(30)]


def test_a_frame_larger_than_the_shared_buffer(peer: RawPeer) -> None:
    body = bytes(range(256)) * 16_384  # 4 MiB
    assert peer.send("Large", body).code == 0
    (message,) = iter_records(peer.pull("Large", 0, 0).body, check=True)
    assert message.body == body
    assert peer.send("Large", b"and on").ext["queueOffset"] == "1"


def test_a_header_of_more_than_four_times_the_limit_ends_the_connection(connect: Callable[[], RawPeer]) -> None:
    for size in (4 * 65_536 + 1, 4_000_124):
        peer = connect()
        peer.write((4 + size).to_bytes(4) + size.to_bytes(4))  # refused before its bytes come
        assert peer.socket.recv(1) == b""


def test_a_permission_that_is_taken_away_ends_the_sends_and_pulls_of_a_connection(
    peer: RawPeer, connect: Callable[[], RawPeer]
) -> None:
    assert peer.send("Closing", b"x", e=0).code == 0
    assert peer.pull("Closing", 0, 0).code == 0
    fields = {"topic": "Closing", "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4}
    for perm, told in ((4, (16, 0)), (2, (0, 16)), (6, (0, 0))):
        assert connect().ask(17, {**fields, "perm": perm, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}).code == 0
        assert (peer.send("Closing", b"x", e=0).code, peer.pull("Closing", 0, 0).code) == told


@pytest.mark.parametrize(
    "header",
    [
        b'{"opaque":7,"weight":3,"code":361,"extFields":{"topic":"Odd"}}',
        b'{"opaque":7,"code":361,"extFields":{"topic":"Odd","b":"Even","x":"\\u0041"}}',
        b'{"opaque":7,"code":361,\n"extFields":{"topic":"Odd","queueId":null,"b":[1]}}\n',
    ],
)
def test_an_unusual_header_is_answered_under_its_opaque(peer: RawPeer, header: bytes) -> None:
    peer.write(raw_frame(header))
    answer = peer.read()
    assert answer.opaque == 7
    assert answer.code != 0


@pytest.mark.parametrize("version", [32_768, -32_769, 2**31 - 1, -(2**31)])
def test_a_send_of_a_version_that_no_binary_header_holds_is_stored(peer: RawPeer, version: int) -> None:
    """Its unusual header is written again as a binary one: the connection ended, with a traceback in the log."""
    fields = {"a": "P", "b": "Versions", "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 5, "h": 0, "i": ""}
    header = {"opaque": 7, "weight": [3], "code": 310, "version": version, "extFields": fields}
    peer.write(json_frame(header, b"body"))
    answer = peer.read()
    assert (answer.opaque, answer.code) == (7, 0)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 0), struct.pack(">I", 3), struct.pack(">I", 16_777_217), struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">II", 20, 100) + b"x" * 16,
        raw_frame(b"{}", kind=2), raw_frame(b"junk", kind=1), raw_frame(b"junk"), raw_frame(b""), raw_frame(b"null"),
        raw_frame(b"[]"), json_frame({"code": "ten"}), raw_frame(b'{"a":' * 20_000 + b"1" + b"}" * 20_000),
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 100,
    ],
)  # fmt: skip
def test_bytes_no_peer_sends_close_the_connection(peer: RawPeer, connect: Callable[[], RawPeer], data: bytes) -> None:
    peer.write(data)
    assert peer.closed()
    assert connect().send("StillThere", b"x").code == 0


def test_unknown_code(peer: RawPeer) -> None:
    answer = peer.ask(9999)
    assert (answer.code, answer.flag & 1, answer.remark) == (3, 1, " request type 9999 not supported")
    peer.write(remoting.encode(RemotingCommand(9999, opaque=5, flag=2)))
    peer.write(remoting.encode(RemotingCommand(0, opaque=12345, flag=1)))  # an answer nobody asked for
    assert peer.ask(9999).code == 3


def test_a_mistake_of_ours_is_told_in_one_sentence_and_the_connection_lives() -> None:
    class Broken:
        def handle(self, session: RemotingSession, request: RemotingCommand) -> RemotingCommand | None:
            if request.code == 1:
                raise ZeroDivisionError
            return request.reply()

        def lost(self, session: RemotingSession) -> None:
            pass

    session = RemotingSession(Broken(), "127.0.0.1:1", lambda: None)
    data = bytearray(b"".join(remoting.encode(RemotingCommand(code, opaque=code)) for code in (1, 2)))
    assert session.feed(data, len(data)) == len(data)
    first, second = remoting.CommandParser().feed(session.take())
    assert (first.code, first.remark, second.code, second.opaque) == (1, FAILED, 0, 2)


def test_a_question_to_a_peer_ends_with_its_deadline() -> None:
    told: list[RemotingCommand | None] = []
    session = RemotingSession(object(), "127.0.0.1:1", lambda: None)  # type: ignore[arg-type]
    session.call(RemotingCommand(40), told.append, 100)
    session.tick(99)
    assert told == []
    session.tick(100)
    assert told == [None]
