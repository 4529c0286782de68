"""`client.conversation`: who is asked, in which order, how often; no socket and no loop takes part."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import TypeVar

import pytest

from penstock.client import conversation, requests
from penstock.client.conversation import (
    Call,
    Conversation,
    Directory,
    Patience,
    Senseless,
    Unaskable,
    check_texts,
    making_sense,
    number,
)
from penstock.client.routes import MessageQueue
from penstock.errors import BrokerRefused, ClientError, ConnectionLost, NoRoute, TimedOut, WireError
from penstock.wire.codes import RequestCode, ResponseCode
from penstock.wire.fastjson import dumps
from penstock.wire.remoting import RemotingCommand

T = TypeVar("T")
QUEUE = MessageQueue("orders", "a", 0)


@pytest.fixture(autouse=True)
def nobody_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test has waited for in vain is not known in the next."""
    monkeypatch.setattr(conversation, "_silent_s", {})


Answer = RemotingCommand | ClientError


def route_to(address: str, broker: str = "a") -> RemotingCommand:
    """A name server's answer: the topic lives at one broker."""
    body = {
        "brokerDatas": [{"brokerName": broker, "brokerAddrs": {"0": address}, "cluster": "c"}],
        "queueDatas": [{"brokerName": broker, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}],
    }
    return RemotingCommand(ResponseCode.SUCCESS, body=dumps(body))


def hold(conversation: Conversation[T], answers: Sequence[Answer]) -> tuple[T | ClientError, list[str]]:
    """Give these answers one after the other; (the result or the error, the addresses that were asked)."""
    asked: list[str] = []
    left = list(answers)
    step: Callable[[], Call] = lambda: next(conversation)  # noqa: E731
    try:
        while True:
            call = step()
            asked.append(call.address)
            answer = left.pop(0)
            if isinstance(answer, ClientError):
                step = lambda answer=answer: conversation.throw(answer)  # type: ignore[misc]  # noqa: E731
            else:
                step = lambda answer=answer: conversation.send(answer)  # type: ignore[misc]  # noqa: E731
    except StopIteration as end:
        return end.value, asked
    except ClientError as error:
        return error, asked
    finally:
        assert not left, "not everything was asked for"


def test_the_name_server_that_answers_is_asked_first_from_then_on() -> None:
    directory = Directory("one:1;two:2;three:3")
    request = RemotingCommand(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    good = RemotingCommand(ResponseCode.SUCCESS)
    answer, asked = hold(directory.ask_registry(request), [ConnectionLost("away"), TimedOut("slow"), good])
    assert (answer, asked) == (good, ["one:1", "two:2", "three:3"])
    assert hold(directory.ask_registry(request), [good])[1] == ["three:3"]


def test_one_that_gave_no_answer_is_asked_last_by_the_next_client_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task of Spark's is a client of its own: while a machine was gone each of them waited for its name server."""
    now = [1_000.0]
    monkeypatch.setattr(conversation.time, "monotonic", lambda: now[0])
    Directory("away:1;there:2").answered_not("away:1")
    assert Directory("away:1;there:2;other:3").registries == ["there:2", "other:3", "away:1"]
    assert Directory("away:1").registries == ["away:1"]
    now[0] += conversation.SILENT_S + 1
    assert Directory("away:1;there:2").registries == ["away:1", "there:2"]
    assert not conversation._silent_s


def test_no_name_server_answers() -> None:
    lost = [ConnectionLost("one"), TimedOut("two")]
    error, asked = hold(Directory("one:1;two:2").ask_registry(RemotingCommand(105)), lost)
    assert (error, asked) == (lost[1], ["one:1", "two:2"])


def test_an_error_answer_ends_the_round() -> None:
    refused = RemotingCommand(ResponseCode.SYSTEM_ERROR, remark="no")
    error, asked = hold(Directory("one:1;two:2").ask_registry(RemotingCommand(105)), [refused])
    assert isinstance(error, BrokerRefused)
    assert asked == ["one:1"]


def test_a_queue_is_asked_once_more_after_a_lost_connection_with_a_fresh_route() -> None:
    learned: list[tuple[str, object]] = []
    directory = Directory("reg:1", route_learned=lambda topic, error: learned.append((topic, error)))
    good = RemotingCommand(ResponseCode.SUCCESS)
    talk = directory.ask_queue(QUEUE, requests.max_offset(QUEUE))
    answer, asked = hold(talk, [route_to("old:1"), ConnectionLost("old"), route_to("new:2"), good])
    assert (answer, asked) == (good, ["reg:1", "old:1", "reg:1", "new:2"])
    assert learned == [("orders", None)]
    assert hold(directory.ask_queue(QUEUE, requests.max_offset(QUEUE)), [good])[1] == ["new:2"]  # the route is known


def test_the_old_route_stays_while_no_name_server_answers() -> None:
    learned: list[object] = []
    directory = Directory("reg:1", route_learned=lambda topic, error: learned.append(error))
    hold(directory.find_route("orders"), [route_to("a:1")])
    good, away = RemotingCommand(ResponseCode.SUCCESS), ConnectionLost("registry")
    answer, asked = hold(directory.ask_queue(QUEUE, RemotingCommand(30)), [ConnectionLost("a"), away, good])
    assert (answer, asked) == (good, ["a:1", "reg:1", "a:1"])
    assert learned == [away]


def test_a_second_lost_connection_is_the_callers() -> None:
    directory = Directory("reg:1")
    again = ConnectionLost("again")
    answers = [route_to("a:1"), ConnectionLost("once"), route_to("a:1"), again]
    assert hold(directory.ask_queue(QUEUE, RemotingCommand(30)), answers)[0] is again


@pytest.mark.parametrize("error", [TimedOut("slow"), BrokerRefused(1, "no")])
def test_other_errors_are_not_tried_again(error: ClientError) -> None:
    directory = Directory("reg:1")
    assert hold(directory.ask_queue(QUEUE, RemotingCommand(30)), [route_to("a:1"), error])[0] is error


def test_a_broker_that_is_away_is_looked_for_once() -> None:
    directory = Directory("reg:1")
    error, asked = hold(directory.ask_queue(QUEUE, RemotingCommand(30)), [route_to("b:1", "b"), route_to("b:1", "b")])
    assert isinstance(error, NoRoute)
    assert asked == ["reg:1", "reg:1"]


def test_a_topic_that_nobody_serves_is_forgotten() -> None:
    directory = Directory("reg:1")
    hold(directory.find_route("orders"), [route_to("a:1")])
    error, _ = hold(directory.find_route("orders"), [RemotingCommand(ResponseCode.TOPIC_NOT_EXIST)])
    assert isinstance(error, NoRoute)
    assert directory.routes == {}


def test_a_number_that_is_none() -> None:
    with pytest.raises(WireError, match="offset"):
        number(RemotingCommand(0, {"offset": "x"}), "offset")


def test_name_servers_share_the_time_of_one_answer() -> None:
    patience = Patience(12.0)
    assert [patience.left_for(3, 100.0), patience.left_for(2, 104.0), patience.left_for(1, 104.0)] == [4.0, 4.0, 8.0]
    assert patience.left_for(0, 200.0) == 12.0  # a broker has a time of its own
    assert [patience.left_for(1, 200.0), patience.left_for(1, 200.0)] == [12.0, 12.0]  # each is a round
    assert patience.left_for(2, 200.0) == 6.0
    assert 0 < patience.left_for(1, 300.0) < 0.01  # never none: a socket would take it for no limit


def test_who_is_asked_says_how_many_are_still_to_be_asked() -> None:
    talk = Directory("one:1;two:2").ask_registry(RemotingCommand(105))
    assert next(talk).among == 2
    assert talk.throw(TimedOut("slow")).among == 1
    talk = Directory("reg:1").ask_queue(QUEUE, RemotingCommand(30))
    assert next(talk).among == 1
    assert talk.send(route_to("a:1")).among == 0


def test_an_answer_that_makes_no_sense_is_said_once_to_be_one() -> None:
    """Whatever the error within begins with: it is known by its class."""
    with pytest.raises(Senseless) as told, making_sense("b"), making_sense("a"):
        raise WireError("the answer of nobody", "body")
    for error in (told.value, pickle.loads(pickle.dumps(told.value))):
        assert str(error) == "the answer of a makes no sense: the answer of nobody"
        assert (error.who, error.limit) == ("a", "body")
    with pytest.raises(Unaskable, match="topic is text, not 5"), making_sense("a"):
        check_texts(RemotingCommand(1, {"topic": 5}))  # type: ignore[dict-item]
