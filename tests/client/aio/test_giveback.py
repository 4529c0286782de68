"""Giving back: by the broker that stores the message, else as a copy to the retry topic."""

from __future__ import annotations

import pytest

from client.scripted import QUEUE, message, scripted
from penstock.client.aio.giveback import GiveBack
from penstock.client.results import Reject, Retry
from penstock.wire.codes import RequestCode
from penstock.wire.record import parse_properties

BACK, SEND = RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2


@pytest.mark.parametrize(
    ("outcome", "level", "millis"),
    [(Retry(), "0", None), (Retry(1.0), "1", "1000"), (Retry(0.25), "1", "250"), (Reject("bad"), "-1", None)],
)
async def test_what_the_broker_is_asked(outcome: Retry | Reject, level: str, millis: str | None) -> None:
    async with scripted() as script:
        give_back = GiveBack(script.cluster, "G", 5)
        assert await give_back.give(QUEUE, message(7), outcome)
        (asked,) = script.asked
        assert (asked.code, asked.ext["delayLevel"], asked.ext.get("delayMillis")) == (BACK, level, millis)
        assert (asked.ext["group"], asked.ext["offset"], asked.ext["maxReconsumeTimes"]) == ("G", "700", "4")


@pytest.mark.parametrize(("outcome", "times"), [(Retry(), "3"), (Reject("bad"), "5")])
async def test_a_message_that_the_broker_has_no_longer_is_sent_again(outcome: Retry | Reject, times: str) -> None:
    async with scripted() as script:
        script.replies[BACK] = lambda command: command.reply(1, remark="no such message")
        properties = {"KEYS": "k", "DELAY": "3", "REAL_TOPIC": "T", "MIN_OFFSET": "0"}
        assert await GiveBack(script.cluster, "G", 5).give(
            QUEUE, message(7, properties=properties, reconsume_times=2), outcome
        )
        back, sent = script.asked
        assert (back.code, sent.code, sent.ext["b"], sent.body) == (BACK, SEND, "%RETRY%G", b"m7")
        kept = parse_properties(sent.ext["i"])
        assert (kept["KEYS"], kept["RETRY_TOPIC"]) == ("k", "T")
        assert "REAL_TOPIC" not in kept
        assert (sent.ext["j"], sent.ext["l"]) == (times, "5")


async def test_nothing_works() -> None:
    async with scripted() as script:
        script.replies = {code: lambda command: command.reply(1, remark="no") for code in (BACK, SEND)}
        assert not await GiveBack(script.cluster, "G", 5).give(QUEUE, message(), Retry())
        assert script.codes() == [BACK, SEND]


async def test_a_copy_goes_to_another_broker_than_the_one_that_did_not_take_the_message() -> None:
    """It went to that one again, for some of the messages, and was waited for as long a second time."""
    async with scripted() as script:
        here = script.cluster.registries[0]
        one = {"perm": 6, "readQueueNums": 2, "topicSysFlag": 0, "writeQueueNums": 2}
        script.route = {
            "brokerDatas": [{"brokerAddrs": {"0": here}, "brokerName": name, "cluster": "C"} for name in "ab"],
            "queueDatas": [{"brokerName": name, **one} for name in "ab"],
            "filterServerTable": {},
        }
        script.replies[BACK] = lambda command: command.reply(1, remark="no")
        for offset in range(4):
            assert await GiveBack(script.cluster, "G", 5).give(QUEUE, message(offset), Retry())
        assert {command.ext["n"] for command in script.asked if command.code == SEND} == {"b"}
