"""Request-reply: the reply is pushed to the requester, stored, and answered as the requester took it."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from fronts.raw_peer import RawPeer
from penstock.fronts.requests.replies import Replies
from penstock.message import ReceivedMessage
from penstock.wire import record, remoting
from penstock.wire.codes import SEND_V2_NAMES
from penstock.wire.record import iter_records
from penstock.wire.remoting import FLAG_RESPONSE, RemotingCommand

REPLIES = "DefaultCluster_REPLY_TOPIC"
SEND, SEND_V2, PUSH = 324, 325, 326


def requester(peer: RawPeer, client_id: str = "c1", group: str = "RG") -> None:
    body = json.dumps({"clientID": client_id, "producerDataSet": [{"groupName": group}]}).encode()
    assert peer.ask(34, body=body).code == 0


def reply(
    peer: RawPeer,
    body: bytes = b"pong",
    to: str = "c1",
    code: int = SEND,
    more: dict[str, str] | None = None,
    **ext: str,
) -> None:
    """Send a reply and wait for nothing."""
    properties = {"CORRELATION_ID": "7", "MSG_TYPE": "reply", "REPLY_TO_CLIENT": to, "TTL": "3000"} | (more or {})
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items() if value)
    fields = {
        "producerGroup": "PG", "topic": REPLIES, "defaultTopic": "TBW102", "defaultTopicQueueNums": "4", "queueId": "0",
        "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "9", "properties": text, "reconsumeTimes": "0",
        "unitMode": "false", "batch": "false",
    } | ext  # fmt: skip
    if code == SEND_V2:
        letters = {name: letter for letter, name in SEND_V2_NAMES.items()}
        fields = {letters[name]: value for name, value in fields.items()}
    peer.write(remoting.encode(RemotingCommand(code, fields, body, opaque=next(peer.opaques))))


def end(peer: RawPeer) -> int:
    return int(peer.ask(30, {"topic": REPLIES, "queueId": 0}).ext["offset"])


def stored_from(peer: RawPeer, offset: int) -> list[ReceivedMessage]:
    return list(iter_records(peer.pull(REPLIES, 0, offset).body, check=True))


def take(peer: RawPeer, answer: int = 0) -> RemotingCommand:
    """The requester's side: what is pushed, answered with this code."""
    pushed = peer.read()
    assert (pushed.code, pushed.response) == (PUSH, False)
    peer.write(remoting.encode(RemotingCommand(answer, opaque=pushed.opaque, flag=FLAG_RESPONSE)))
    return pushed


@pytest.mark.parametrize("code", [SEND, SEND_V2])
def test_a_reply_goes_to_its_requester_and_into_the_log(connect: Callable[[], RawPeer], code: int) -> None:
    one, two = connect(), connect()
    requester(one)
    reply(two, code=code)
    pushed = take(one)
    assert pushed.body == b"pong"
    properties = record.parse_properties(pushed.ext["properties"])
    assert (properties["CORRELATION_ID"], properties["MSG_TYPE"]) == ("7", "reply")
    assert properties["PUSH_REPLY_TIME"].isdigit()
    assert {name: pushed.ext[name] for name in ("producerGroup", "topic", "sysFlag", "flag", "bornTimestamp")} == {
        "producerGroup": "PG", "topic": REPLIES, "sysFlag": "0", "flag": "9", "bornTimestamp": "1700000000000",
    }  # fmt: skip
    assert pushed.ext["bornHost"].rpartition(":")[0] == "127.0.0.1"
    assert pushed.ext["storeHost"].rpartition(":")[2].isdigit()
    assert pushed.ext["storeTimestamp"].isdigit()
    answer = two.read()
    assert (answer.code, answer.ext["queueId"]) == (0, "0")
    stored = stored_from(two, 0)
    assert answer.ext["queueOffset"] == str(stored[-1].queue_offset)
    assert answer.ext["msgId"] == stored[-1].offset_msg_id
    assert stored[-1].properties["CORRELATION_ID"] == "7"


def test_a_requester_that_is_away_or_says_no_is_told_of(connect: Callable[[], RawPeer]) -> None:
    one, two = connect(), connect()
    before = end(two)
    reply(two)
    answer = two.read()
    assert (answer.code, answer.remark) == (1, "push reply message fail, channel of <c1> not found.")
    requester(one)
    reply(two)
    take(one, answer=1)
    answer = two.read()
    assert (answer.code, answer.remark) == (1, "push reply message to c1fail.")
    reply(two)
    assert one.read().code == PUSH
    one.close()  # while the broker waits for its answer
    answer = two.read()
    assert (answer.code, answer.remark) == (1, "push reply message to c1fail.")
    reply(two, more={"REPLY_TO_CLIENT": ""})
    answer = two.read()
    assert (answer.code, answer.remark) == (1, "reply message properties[REPLY_TO_CLIENT] is null")
    assert len(stored_from(two, before)) == 4  # each is kept, as RocketMQ keeps them


def test_a_responder_that_leaves_costs_nobody_anything(connect: Callable[[], RawPeer]) -> None:
    one, two = connect(), connect()
    requester(one)
    before = end(two)
    reply(two)
    pushed = one.read()
    two.close()
    one.write(remoting.encode(RemotingCommand(0, opaque=pushed.opaque, flag=FLAG_RESPONSE)))
    one.write(remoting.encode(RemotingCommand(0, opaque=pushed.opaque, flag=FLAG_RESPONSE)))  # twice
    assert [m.body for m in stored_from(one, before)] == [b"pong"]


def test_a_requester_in_two_groups_gets_a_reply_once(connect: Callable[[], RawPeer]) -> None:
    one, two = connect(), connect()
    requester(one, group="RG")
    requester(one, group="RG2")
    reply(two)
    take(one)
    assert two.read().code == 0
    assert not one.got


@pytest.mark.parametrize(
    ("more", "ext", "code"),
    [
        ({"PENSTOCK_ID": "1"}, {}, 13),
        ({"a": "b\x01c"}, {}, 13),
        ({"a": "x" * 40_000}, {}, 13),
        ({}, {"queueId": "77"}, 1),
        ({}, {"topic": "a b"}, 1),
        ({}, {"topic": "SCHEDULE_TOPIC_XXXX"}, 16),
        ({}, {"queueId": "x"}, 1),
    ],
)
def test_a_bad_reply_reaches_nobody(
    connect: Callable[[], RawPeer], more: dict[str, str], ext: dict[str, str], code: int
) -> None:
    one, two = connect(), connect()
    requester(one)
    reply(two, more=more, **ext)
    assert two.read().code == code
    reply(two, b"good")
    assert take(one).body == b"good"


def test_what_would_make_another_kind_of_message_of_it_is_not_stored(connect: Callable[[], RawPeer]) -> None:
    one, two = connect(), connect()
    requester(one)
    before = end(two)
    reply(two, more={"DELAY": "18", "TRAN_MSG": "true", "PSEQ": "a:0:1"}, sysFlag="12")
    take(one)
    assert two.read().code == 0
    stored = stored_from(two, before)
    assert [m.sys_flag & 12 for m in stored] == [0]
    assert not {"DELAY", "TRAN_MSG", "PSEQ"} & set(stored[0].properties)


def test_the_table_of_replies() -> None:
    assert set(Replies.TABLE) == {SEND, SEND_V2}
