"""Where queue topics live: told by brokers in a field of ours, answered to those who ask for any kind."""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import Refused
from penstock.fronts.namesrv import NameServer
from penstock.registry.registration import read_registration
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import RemotingCommand


@dataclass(eq=False)
class Peer:
    remote: str = ""


@pytest.fixture
def names(tmp_path: Path) -> NameServer:
    return NameServer(tmp_path)


def register(
    names: NameServer, letter: str, topics: Any, peer: Peer, *, logs: tuple[str, ...] = (), changes: Any = None
) -> RemotingCommand:
    table = {name: {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for name in logs}
    port = ord(letter)
    body = {
        "topicConfigSerializeWrapper": {"dataVersion": {"timestamp": 1, "counter": 1}, "topicConfigTable": table},
        "nsq": {"address": f"127.0.0.1:1{port}"} | ({"topics": topics} if changes is None else {"changes": changes}),
    }
    ext = {
        "brokerName": f"broker-{letter}", "brokerAddr": f"127.0.0.1:2{port}", "clusterName": "c", "brokerId": "0",
        "haServerAddr": "",
    }  # fmt: skip
    answer = names.handle(peer, RemotingCommand(RequestCode.REGISTER_BROKER, ext, json.dumps(body).encode()), 0)
    assert answer is not None
    return answer


def ask(names: NameServer, topic: str, kind: str | None) -> Any:
    ext = {"topic": topic} | ({} if kind is None else {"kind": kind})
    answer = names.handle(Peer(), RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext), 0)
    assert answer is not None
    return json.loads(answer.body) if answer.code == 0 else answer.code


def test_only_those_who_ask_see_them(names: NameServer) -> None:
    one, two = Peer(), Peer()
    assert register(names, "a", ["jobs", "more.jobs#ephemeral"], one, logs=("events",)).code == 0
    assert register(names, "b", ["jobs"], two).code == 0
    both = {"broker-a": "127.0.0.1:197", "broker-b": "127.0.0.1:198"}
    assert ask(names, "jobs", None) == 17
    assert ask(names, "jobs", "any") == {"kind": "queue", "nsq": both}
    assert ask(names, "more.jobs#ephemeral", "any") == {"kind": "queue", "nsq": {"broker-a": "127.0.0.1:197"}}
    assert ask(names, "new", "any") == 17
    assert ask(names, "new", "queue") == {"kind": "queue", "nsq": both}
    assert ask(names, "events", "queue")["queueDatas"]  # a log topic stays one
    names.connection_lost(two)
    assert ask(names, "jobs", "any") == {"kind": "queue", "nsq": {"broker-a": "127.0.0.1:197"}}
    assert register(names, "a", [], one).code == 0  # the same data version: topics of this side have none
    assert ask(names, "jobs", "any") == 17
    names.connection_lost(one)
    assert ask(names, "new", "queue") == 17


def test_changes_alone(names: NameServer) -> None:
    one = Peer()
    assert register(names, "a", ["jobs", "old"], one).code == 0
    assert register(names, "a", None, one, changes={"new": True, "old": False}).code == 0
    here = {"kind": "queue", "nsq": {"broker-a": "127.0.0.1:197"}}
    assert [ask(names, topic, "any") for topic in ("jobs", "new", "old")] == [here, here, 17]
    assert register(names, "a", ["old"], one).code == 0
    assert [ask(names, topic, "any") for topic in ("jobs", "new", "old")] == [17, 17, here]
    assert register(names, "b", None, Peer(), changes={"other": True}).code == 0  # what it had before is not known
    assert ask(names, "other", "any")["nsq"] == {"broker-b": "127.0.0.1:198"}


@pytest.mark.parametrize(
    "nsq",
    [1, [], {}, {"address": "127.0.0.1:1"}, {"address": "nowhere", "topics": []}, {"address": "h:1", "topics": ["a b"]},
     {"address": "h:1", "topics": [7]}, {"address": "h:1", "topics": {}}, {"address": "h:1", "changes": {}},
     {"address": "h:1", "changes": []}, {"address": "h:1", "changes": {"a b": True}}, {"address": "h:1", "changes": {"a": 1}},
     {"address": "", "changes": {"a": True}}],
)  # fmt: skip
def test_what_cannot_be_right(nsq: Any) -> None:
    fields = {
        "brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": 0, "haServerAddr": "",
        "compressed": False, "bodyCrc32": 0, "epoch": None,
    }  # fmt: skip
    with pytest.raises(Refused):
        read_registration(fields, json.dumps({"nsq": nsq}).encode())


@pytest.mark.parametrize("body", [b"[1]", b"5", b"null", b'"nsq"', b"{"])
def test_a_body_that_is_no_object_is_refused(names: NameServer, body: bytes) -> None:
    ext = {
        "brokerName": "broker-a", "brokerAddr": "192.0.2.1:10911", "clusterName": "c", "brokerId": "0", "haServerAddr": "",
    }  # fmt: skip
    answer = names.handle(Peer("192.0.2.1:5000"), RemotingCommand(RequestCode.REGISTER_BROKER, ext, body), 0)
    assert answer is not None
    assert answer.code == 1
    assert "no JSON" in str(answer.remark)


@pytest.mark.parametrize("perm", [6.0, True, None, [6], "6", 2**70])
def test_a_number_is_a_number_beside_another_topic_too(perm: Any) -> None:
    """To a dictionary 6.0 is 6."""
    fields = {
        "brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": 0, "haServerAddr": "",
        "compressed": False, "bodyCrc32": 0, "epoch": None,
    }  # fmt: skip
    table: dict[str, Any] = {"first": {"perm": 6}, "second": {}, "third": {"perm": 4, "readQueueNums": 1}}

    def body() -> bytes:
        return json.dumps({"topicConfigSerializeWrapper": {"topicConfigTable": table}}).encode()

    topics = read_registration(fields, body()).topics
    assert [(topics[name].perm, topics[name].read_count) for name in table] == [(6, 16), (6, 16), (4, 1)]
    table["fourth"] = {"perm": perm}
    with pytest.raises(Refused, match="perm is not a number"):
        read_registration(fields, body())


def test_nobody_registers_another_machine_s_listener(names: NameServer) -> None:
    ext = {
        "brokerName": "broker-a", "brokerAddr": "192.0.2.1:10911", "clusterName": "c", "brokerId": "0", "haServerAddr": "",
    }  # fmt: skip
    body = {"nsq": {"address": "192.0.2.9:4150", "topics": ["jobs"]}}
    answer = names.handle(
        Peer("192.0.2.1:5000"), RemotingCommand(RequestCode.REGISTER_BROKER, ext, json.dumps(body).encode()), 0
    )
    assert answer is not None
    assert answer.code == 1
    assert ask(names, "jobs", "any") == 17


@pytest.mark.parametrize("high", [False, True])
def test_the_sum_of_a_rocketmq_broker_has_31_bits(high: bool) -> None:
    """Else every second one is refused, by its topics' luck."""
    fields = {
        "brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": 1, "haServerAddr": "127.0.0.1:2",
        "compressed": False, "epoch": None,
    }  # fmt: skip
    bodies = (b'{"filterServerList":[%d]}' % number for number in range(1_000))
    body = next(body for body in bodies if (zlib.crc32(body) >= 1 << 31) is high)
    told = zlib.crc32(body) & 0x7FFFFFFF
    assert read_registration({**fields, "bodyCrc32": told}, body).broker_id == 1
    with pytest.raises(Refused, match="crc32"):
        read_registration({**fields, "bodyCrc32": told ^ 1}, body)
