"""The RocketMQ front without sockets: turns, held pulls, answers that wait for a flush, sessions that go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fronts.frontside import RemotingSide
from fronts.raw_peer import RawPeer
from penstock.broker.clients import SHARE_AGAIN_MS
from penstock.disk.job import run_now
from penstock.errors import StoreError
from penstock.fronts.remoting.front import BrokerFront
from penstock.testing import Broker
from penstock.wire.codes import LanguageCode, ResponseCode
from penstock.wire.record import iter_records
from penstock.wire.remoting import RemotingCommand, encode
from polling import eventually

PULL = {"consumerGroup": "G", "topic": "T", "queueId": "0", "queueOffset": "1", "maxMsgNums": "32", "sysFlag": "6",
        "commitOffset": "0", "suspendTimeoutMillis": "5000", "subscription": "*", "subVersion": "0"}  # fmt: skip


def test_a_held_pull_is_answered_in_the_turn_of_its_message(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    assert isinstance(side.front, BrokerFront)
    producer, consumer = side.session(1), side.session(2)
    assert side.send(producer, "T", b"0").code == 0
    assert side.say(consumer, RemotingCommand(11, dict(PULL), opaque=7)) == []
    assert side.broker.held_pulls.count == 1
    side.send(producer, "T", b"1")
    (answer,) = side.answers(consumer)
    assert (answer.opaque, [m.body for m in iter_records(answer.body)]) == (7, [b"1"])
    side.close()


def test_a_held_pull_ends_with_its_time_or_its_connection(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    one, other = side.session(1), side.session(2)
    side.send(one, "T", b"0")
    for session in (one, other):
        assert side.say(session, RemotingCommand(11, dict(PULL), opaque=7)) == []
    other.lost()
    assert (side.front.sessions, side.broker.held_pulls.count) == ({one}, 1)
    assert side.answers(one, 4_999) == []
    (answer,) = side.answers(one, 1)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (19, "1")
    side.close()


def test_the_held_pulls_of_java_clients_are_refused_before_the_broker_ends(tmp_path: Path) -> None:
    """RocketMQ's Java client waits 30 s for the answer to a pull whose connection was closed: each restart of a broker, and each
    `ha switch`, let its consumers stand still so long. Others hear of a closed connection by itself.
    """
    with Broker(tmp_path) as broker, RawPeer(broker.remoting) as java, RawPeer(broker.remoting) as other:
        java.send("T", b"0")
        for peer, language in ((java, LanguageCode.JAVA), (other, LanguageCode.GO)):
            about = heartbeat(f"{language}", "G").body
            assert peer.ask(34, body=about, language=language).code == 0
            peer.write(encode(RemotingCommand(11, dict(PULL), opaque=77, language=language)))
        eventually(lambda: broker.call(lambda server: server.broker.held_pulls.count) == 2)
        broker.stop()
        told = {answer.opaque: answer for answer in said(java)}
        assert (told[77].code, told[77].remark) == (ResponseCode.SYSTEM_BUSY, "the broker ends: ask again")
        assert 77 not in {answer.opaque for answer in said(other)}


def said(peer: RawPeer) -> Iterator[RemotingCommand]:
    """All until the connection is closed."""
    with suppress(EOFError):
        while True:
            yield peer.read()


def test_at_level_disk_answers_wait_for_the_flush(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path, level="disk")
    session = side.session()
    fields = {"a": "P", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "5", "h": "0"}
    assert side.say(session, RemotingCommand(310, dict(fields), b"x", opaque=1)) == []
    assert session.waits == 1
    run_now(side.broker.take_jobs(), side.broker.mono_ms)
    side.broker.stored.settle(side.broker.store.flushed_position)
    (answer,) = side.answers(session)
    assert (answer.code, answer.opaque, session.waits) == (0, 1, 0)
    side.close()


def test_an_answer_that_was_begun_is_not_left_half_written(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    session = side.session()
    side.send(session, "T", b"x")
    side.broker.store.fail(StoreError("the disk failed"))
    answer = side.send(session, "T", b"y")
    assert answer.code == 14
    assert side.ask(session, 30, topic="T", queueId=0).ext["offset"] == "1"
    side.broker.close(False)


def test_answers_leave_when_the_system_has_their_messages(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    session, log = side.session(), side.broker.store.log
    fields = {"a": "P", "b": "T", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "5", "h": "0"}
    sends = [RemotingCommand(310, dict(fields), b"body %d" % n, opaque=n) for n in range(3)]
    data = bytearray(b"".join(map(encode, sends)))
    path = log.file.folder / f"{0:020d}"
    assert session.feed(data, len(data)) == len(data)
    assert log.settled_end() < log.end
    assert b"body 2" not in path.read_bytes()
    assert session.take()
    assert log.settled_end() == log.end
    assert b"body 2" in path.read_bytes()
    side.close()


def test_a_group_that_was_deleted_while_its_members_were_there_is_made_by_nobody_who_leaves(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path, auto_create_subscription_group=False)
    here, there = side.session(1), side.session(2)
    assert side.ask(here, 200, json.dumps({"groupName": "G"}).encode()).code == 0
    told = {"consumerDataSet": [{"groupName": "G", "subscriptionDataSet": []}]}
    for name, session in (("one", here), ("two", there)):
        commands = side.say(session, RemotingCommand(34, {}, json.dumps({"clientID": name, **told}).encode(), opaque=7))
        assert [one.code for one in commands if one.opaque == 7 and one.response] == [0]
    assert side.ask(side.session(3), 207, groupName="G").code == 0
    here.lost()
    assert list(side.broker.clients.consumers["G"].members) == ["two"]
    assert "G" not in side.broker.groups.by_name
    side.close()


def heartbeat(client_id: str, group: str) -> RemotingCommand:
    consumer = {"groupName": group, "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}
    return RemotingCommand(
        34, body=json.dumps({"clientID": client_id, "consumerDataSet": [consumer]}).encode(), opaque=1
    )


def test_members_that_come_and_go_together_are_told_together(tmp_path: Path) -> None:
    """Each would hear of each other one, and ask for all of them: a million of requests for a thousand members."""
    side = RemotingSide(tmp_path)
    first, crowd = side.session(1), [side.session(2 + number) for number in range(20)]
    assert [c.code for c in side.say(first, heartbeat("c", "G"))] == [0, 40]
    for number, session in enumerate(crowd):
        assert [c.code for c in side.say(session, heartbeat(f"c{number}", "G"))] == [0]
    assert side.answers(first) == []
    (notice,) = side.answers(first, SHARE_AGAIN_MS)
    assert (notice.code, notice.ext) == (40, {"consumerGroup": "G"})
    for session in crowd:
        session.lost()
    assert side.answers(first) == []
    assert [c.code for c in side.answers(first, SHARE_AGAIN_MS)] == [40]
    assert side.answers(first, SHARE_AGAIN_MS) == []
    side.broker.groups.update({"groupName": "G", "notifyConsumerIdsChangedEnable": False}, 1)
    side.say(crowd[0], heartbeat("d", "G"))
    assert side.answers(first, SHARE_AGAIN_MS) == []
    side.close()
