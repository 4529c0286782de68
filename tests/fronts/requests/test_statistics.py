"""Figures in the words of RocketMQ's tools."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fronts.frontside import RemotingSide
from penstock.errors import StoreError
from penstock.fronts.requests.statistics import NO_BOUND, TOPICS_A_PIECE, Statistics
from penstock.wire import fastjson
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.remoting import RemotingCommand


@pytest.fixture
def side(tmp_path: Path) -> Iterator[RemotingSide]:
    side = RemotingSide(tmp_path)
    session = side.session()
    for n in range(3):
        assert side.send(session, "T", b"%d" % n).code == 0
    side.broker.offsets.commit("G", "T", 0, 1)
    yield side
    side.close()


def ask(side: RemotingSide, code: RequestCode, **ext: str) -> Any:
    assert code in Statistics.TABLE
    answer = side.ask(side.session(), code, **ext)
    assert isinstance(answer, RemotingCommand)
    assert answer.code == 0, answer.remark
    return fastjson.loads(answer.body)


def test_a_topic(side: RemotingSide) -> None:
    table = {
        queue["queueId"]: figures
        for queue, figures in ask(side, RequestCode.GET_TOPIC_STATS_INFO, topic="T")["offsetTable"]
    }
    assert (table[0]["minOffset"], table[0]["maxOffset"]) == (0, 3)
    assert table[0]["lastUpdateTimestamp"] == side.broker.now_ms


def test_a_group_and_all_groups(side: RemotingSide) -> None:
    stats = ask(side, RequestCode.GET_CONSUME_STATS, consumerGroup="G")
    ((queue, figures),) = stats["offsetTable"]
    assert (queue["topic"], figures["brokerOffset"], figures["consumerOffset"]) == ("T", 3, 1)
    assert figures["lagMillis"] == 0
    every = ask(side, RequestCode.GET_BROKER_CONSUME_STATS, isOrder="false")
    assert every["totalDiff"] == 2
    assert [list(entry) for entry in every["consumeStatsList"]] == [["G"]]
    side.clock.advance(2_500)
    side.turn()
    ((_, figures),) = ask(side, RequestCode.GET_CONSUME_STATS, consumerGroup="G")["offsetTable"]
    assert figures["lagMillis"] == 2_500
    side.broker.offsets.commit("G", "T", 0, 3)
    ((_, figures),) = ask(side, RequestCode.GET_CONSUME_STATS, consumerGroup="G")["offsetTable"]
    assert figures["lagMillis"] == 0


def test_the_figures_of_many_groups_are_gathered_a_piece_a_turn(side: RemotingSide) -> None:
    """Others waited for a second, where 40,000 pairs of group and topic were."""
    code, count = RequestCode.GET_BROKER_CONSUME_STATS, TOPICS_A_PIECE
    for number in range(count):
        name = f"T{number}".encode()
        side.broker.topics.create(name, 1, 1)
        for group in ("G", "H"):
            side.broker.offsets.commit(group, name.decode(), 0, 0)
    asking, gone, other = (side.session(port) for port in (1, 2, 3))
    assert side.say(asking, RemotingCommand(code, {"isOrder": "false"}, opaque=7)) == []
    assert side.say(gone, RemotingCommand(code, {"isOrder": "false"}, opaque=8)) == []
    assert side.broker.core.alarm.due_ms <= side.broker.mono_ms  # the timer goes on with it at once
    assert side.ask(other, RequestCode.GET_TOPIC_STATS_INFO, topic="T").code == 0  # others are answered meanwhile
    gone.lost()
    turns = 0
    while side.front.tick() == side.broker.mono_ms:
        turns += 1
    assert turns == 2  # the third of them has seen that the other one left
    (answer,) = side.answers(asking)
    assert (answer.code, answer.opaque) == (0, 7)
    body = fastjson.loads(answer.body)
    assert body["totalDiff"] == 2
    listed = {group: stats for entry in body["consumeStatsList"] for group, (stats,) in entry.items()}
    assert {group: len(stats["offsetTable"]) for group, stats in listed.items()} == {"G": count + 1, "H": count}
    for group, stats in listed.items():
        alone = ask(side, RequestCode.GET_CONSUME_STATS, consumerGroup=group)
        key = repr
        assert sorted(stats["offsetTable"], key=key) == sorted(alone["offsetTable"], key=key)
        assert stats["consumeTps"] == alone["consumeTps"]


def test_figures_that_cannot_be_gathered_are_an_answer_and_hold_up_nobody(
    side: RemotingSide, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2 * TOPICS_A_PIECE):
        side.broker.offsets.commit("G", f"T{number}", 0, 0)
    first, second = side.session(1), side.session(2)
    for session in (first, second):
        side.say(session, RemotingCommand(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"}, opaque=7))
    side.broker.topics.create(b"T99", 1, 1)

    def unreadable(*names: str) -> None:
        raise StoreError("no descriptor is left")

    monkeypatch.setattr(side.broker.stats, "rates", unreadable)
    while side.front.tick() == side.broker.mono_ms:
        """Both come to the topic that is there."""
    for session in (first, second):
        (answer,) = side.answers(session)
        assert (answer.code, answer.opaque) == (ResponseCode.SERVICE_NOT_AVAILABLE, 7)
        assert "no descriptor is left" in str(answer.remark)


def test_who_reads_what(side: RemotingSide) -> None:
    assert ask(side, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, topic="T")["groupList"] == ["G"]
    assert ask(side, RequestCode.QUERY_TOPICS_BY_CONSUMER, group="G")["topicList"] == ["T"]
    (span,) = ask(side, RequestCode.QUERY_CONSUME_TIME_SPAN, topic="T", group="G")["consumeTimeSpanSet"]
    assert (span["messageQueue"]["queueId"], span["delayTime"]) == (0, 0)


def test_the_broker(side: RemotingSide) -> None:
    table = ask(side, RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
    assert all(isinstance(value, str) for value in table.values())
    assert (table["brokerVersion"], table["commitLogMinOffset"]) == ("409", "0")
    assert int(table["commitLogMaxOffset"]) == side.broker.store.end_position


def test_how_far_the_slowest_group_is(side: RemotingSide) -> None:
    for group, offset in (("G", 2), ("slow", 1), ("left", 0)):
        side.broker.offsets.commit(group, "T", 0, offset)
    ask_ = lambda **more: ask(side, RequestCode.QUERY_CORRECTION_OFFSET, topic="T", **more)["correctionOffsets"]  # noqa: E731
    assert ask_(compareGroup="G", filterGroups="left") == {"0": 1}
    assert ask_(compareGroup="left", filterGroups="left,x") == {"0": NO_BOUND}
    assert ask_(compareGroup="nobody") == {"0": 0}
    assert side.broker.offsets.get("left", "T", 0) == 0  # what is left out stays
    assert ask(side, RequestCode.QUERY_CORRECTION_OFFSET, topic="U", compareGroup="G") == {"correctionOffsets": {}}


def test_the_figures_of_the_broker_in_rocketmqs_form(side: RemotingSide) -> None:
    session, now_ms = side.session(), side.broker.now_ms
    pull = {"consumerGroup": "G", "topic": "T", "queueId": 0, "maxMsgNums": 2, "sysFlag": 4, "commitOffset": 0,
            "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}  # fmt: skip
    side.broker.stats.tick(side.broker.mono_ms, now_ms)
    for offset in (0, 2, 3, 3):
        side.ask(session, 11, queueOffset=offset, **pull)
    side.broker.stats.tick(side.broker.mono_ms + 10_000, now_ms + 10_000)
    table = ask(side, RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
    assert re.fullmatch(r"Total : [0-9.]+ [KMGTP]iB, Free : [0-9.]+ [KMGTP]?i?B\.", table["commitLogDirCapacity"])
    assert re.fullmatch(r"\d+(\.\d)? [KM]?i?B", table["remainHowManyDataToFlush"])
    assert re.fullmatch(r"[01]\.\d{1,2}", table["commitLogDiskRatio"])
    assert (
        table["getTransferredTps"] == table["getTransferedTps"] == "0.3  "
    )  # the last 10 s; longer ones are not over yet
    assert (table["getFoundTps"], table["getMissTps"], table["getTotalTps"]) == ("0.2  ", "0.2  ", "0.4  ")
    assert (table["putMessageTimesTotal"], table["msgPutTotalTodayNow"], table["msgGetTotalTodayNow"]) == (
        "3",
        "3",
        "3",
    )
    assert float(table["putMessageAverageSize"]) * 3 == int(table["putMessageSizeTotal"])
    assert int(table["earliestMessageTimeStamp"]) == now_ms


def test_how_far_a_group_has_pulled(side: RemotingSide) -> None:
    def offsets() -> tuple[int, int]:
        ((_, figures),) = ask(side, RequestCode.GET_CONSUME_STATS, consumerGroup="G")["offsetTable"]
        return figures["consumerOffset"], figures["pullOffset"]

    assert offsets() == (1, 1)  # nothing is on its way
    pull = {"consumerGroup": "G", "topic": "T", "queueId": 0, "maxMsgNums": 2, "sysFlag": 4, "commitOffset": 0,
            "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}  # fmt: skip
    side.ask(side.session(), 11, queueOffset=3, **pull)  # so that what is before has come
    assert offsets() == (1, 3)
    side.broker.offsets.commit("G", "T", 0, 3)
    assert offsets() == (3, 3)


@pytest.mark.parametrize("jump_ms", [-86_400_000, 86_400_000])
def test_how_long_it_runs_is_not_told_by_a_clock_that_was_set(side: RemotingSide, jump_ms: int) -> None:
    side.clock.advance(65_500)
    side.clock.jump(jump_ms)
    side.broker.time.update()
    told = ask(side, RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
    assert told["runtime"] == "[ 0 days, 0 hours, 1 minutes, 5 seconds ]"
