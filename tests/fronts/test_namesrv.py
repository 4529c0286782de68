"""`fronts.namesrv` through `handle`: every code, and the refusals of a registry."""

import json
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fronts.raw_peer import RawPeer
from penstock.fronts.namesrv import NameServer
from penstock.registry.registration import is_local_host
from penstock.testing import Broker
from penstock.wire.codes import RequestCode, header_fields
from penstock.wire.remoting import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand
from polling import eventually

NOW = 1_700_000_000_000


@dataclass(eq=False)
class Peer:
    remote: str = "127.0.0.1:50000"


PEER = Peer()


@pytest.fixture
def names(tmp_path: Path) -> NameServer:
    return NameServer(tmp_path)


def ask(
    names: NameServer, code: int, ext: dict[str, str] | None = None, body: bytes = b"", peer: Peer = PEER
) -> RemotingCommand:
    answer = names.handle(peer, RemotingCommand(code, ext, body, opaque=9), NOW)
    assert answer is not None
    assert (answer.opaque, answer.flag) == (9, FLAG_RESPONSE)
    return answer


def broker_ext(**changes: str) -> dict[str, str]:
    return {
        "brokerName": "broker-a",
        "brokerAddr": "127.0.0.1:10911",
        "clusterName": "DefaultCluster",
        "haServerAddr": "127.0.0.1:10912",
        "brokerId": "0",
        **changes,
    }


def plain_body(topics: dict[str, Any] | None = None, timestamp: int = NOW) -> bytes:
    table = {"T": {"topicName": "T", "perm": 6, "readQueueNums": 4, "writeQueueNums": 4}} if topics is None else topics
    wrapper = {"dataVersion": {"timestamp": timestamp, "counter": 1}, "topicConfigTable": table}
    return json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}).encode()


def piece(text: str) -> bytes:
    return len(text.encode()).to_bytes(4, "big") + text.encode()


def compressed_body(lines: list[str], count: int | None = None) -> bytes:
    data = piece('{"timestamp":5,"counter":6}') + (len(lines) if count is None else count).to_bytes(4, "big")
    return zlib.compress(data + b"".join(map(piece, lines)) + piece("[]"))


def test_registered_and_found(names: NameServer) -> None:
    answer = ask(names, 103, broker_ext(), plain_body())
    assert (answer.code, answer.ext) == (0, {})
    route = ask(names, 105, {"topic": "T"})
    assert route.code == 0
    assert json.loads(route.body) == {
        "brokerDatas": [
            {"brokerAddrs": {"0": "127.0.0.1:10911"}, "brokerName": "broker-a", "cluster": "DefaultCluster"}
        ],
        "filterServerTable": {},
        "queueDatas": [
            {
                "brokerName": "broker-a",
                "perm": 6,
                "readQueueNums": 4,
                "topicSynFlag": 0,
                "topicSysFlag": 0,
                "writeQueueNums": 4,
            }
        ],
    }
    assert json.loads(ask(names, 106).body) == {
        "brokerAddrTable": {
            "broker-a": {
                "brokerAddrs": {"0": "127.0.0.1:10911"},
                "brokerName": "broker-a",
                "cluster": "DefaultCluster",
            }
        },
        "clusterAddrTable": {"DefaultCluster": ["broker-a"]},
    }
    assert json.loads(ask(names, 206).body) == {"topicList": ["T"]}
    assert json.loads(ask(names, 224, {"cluster": "DefaultCluster"}).body) == {"topicList": ["T"]}
    assert json.loads(ask(names, 304).body) == {
        "topicList": ["DefaultCluster", "broker-a"],
        "brokerAddr": "127.0.0.1:10911",
    }
    for code in (311, 312, 313):
        assert json.loads(ask(names, code).body) == {"topicList": []}


def test_golden_no_route(names: NameServer) -> None:
    answer = ask(names, 105, {"topic": "X"})
    assert answer.code == 17
    assert answer.remark == (
        "No topic route info in name server for the topic: X\n"
        "See http://rocketmq.apache.org/docs/faq/ for further details."
    )


def test_our_own_topics_are_not_among_those_that_tools_list() -> None:
    with Broker() as broker, RawPeer(broker.registry) as peer, RawPeer(broker.remoting) as direct:
        assert direct.send("T", b"x").code == 0
        for code, ext in ((206, {}), (224, {"cluster": "DefaultCluster"})):
            listed = json.loads(peer.ask(code, ext).body)["topicList"]
            assert "T" in listed
            assert "SCHEDULE_TOPIC_XXXX" in listed
            assert not [name for name in listed if "penstock" in name or "wheel" in name]
        assert peer.ask(105, {"topic": "rmq_sys_penstock_sinks"}).code == 0  # who knows of it finds it


def test_compressed_registration(names: NameServer) -> None:
    body = compressed_body(["T 4 3 6 SINGLE_TAG", "%RETRY%g 1 1 6 SINGLE_TAG {}"])
    answer = ask(names, 103, broker_ext(compressed="true", bodyCrc32=str(zlib.crc32(body))), body)
    assert answer.code == 0, answer.remark
    assert json.loads(ask(names, 206).body)["topicList"] == ["%RETRY%g", "T"]
    changed = ask(names, 322, broker_ext(), b'{"timestamp":5,"counter":6}')
    assert (changed.ext["changed"], json.loads(changed.body)["counter"]) == ("false", 6)
    assert ask(names, 322, broker_ext(), b'{"timestamp":5,"counter":7}').ext["changed"] == "true"


def test_lost_connection_and_silence(names: NameServer) -> None:
    other = Peer("127.0.0.1:50001")
    ask(names, 103, broker_ext(), plain_body())
    ask(names, 103, broker_ext(brokerName="b", brokerAddr="127.0.0.1:2"), plain_body(), other)
    names.connection_lost(other)
    assert len(json.loads(ask(names, 105, {"topic": "T"}).body)["brokerDatas"]) == 1
    due = names.tick(NOW)
    while due <= NOW + 130_001:
        due = names.tick(due)
    assert ask(names, 105, {"topic": "T"}).code == 17


def test_unregister(names: NameServer) -> None:
    ask(names, 103, broker_ext(), plain_body())
    answer = ask(names, 104, broker_ext(), peer=Peer("127.0.0.1:9"))
    assert answer.code == 1
    assert ask(names, 105, {"topic": "T"}).code == 0
    assert ask(names, 104, broker_ext()).code == 0
    assert ask(names, 105, {"topic": "T"}).code == 17


def test_slave_gets_its_master(names: NameServer) -> None:
    ask(names, 103, broker_ext(), plain_body())
    answer = ask(names, 103, broker_ext(brokerId="1", brokerAddr="127.0.0.1:3"), plain_body({}))
    assert answer.ext == {"haServerAddr": "127.0.0.1:10912", "masterAddr": "127.0.0.1:10911"}


def test_write_permission_and_deletion(names: NameServer) -> None:
    ask(names, 103, broker_ext(), plain_body())
    assert ask(names, 205, {"brokerName": "broker-a"}).ext == {"wipeTopicCount": "1"}
    assert json.loads(ask(names, 105, {"topic": "T"}).body)["queueDatas"][0]["perm"] == 4
    assert ask(names, 327, {"brokerName": "broker-a"}).ext == {"addTopicCount": "1"}
    assert json.loads(ask(names, 105, {"topic": "T"}).body)["queueDatas"][0]["perm"] == 6
    assert ask(names, 216, {"topic": "T"}).code == 0
    assert ask(names, 105, {"topic": "T"}).code == 17


def test_a_topic_that_a_tool_registers(names: NameServer) -> None:
    ask(names, 103, broker_ext(), plain_body())
    queues = {"brokerName": "broker-a", "readQueueNums": 3, "writeQueueNums": 2, "perm": 6, "topicSysFlag": 0}
    tell = lambda topic, *told: ask(names, 217, {"topic": topic}, json.dumps({"queueDatas": told}).encode())  # noqa: E731
    assert tell("Made", queues).code == 0
    (found,) = json.loads(ask(names, 105, {"topic": "Made"}).body)["queueDatas"]
    assert {name: found[name] for name in queues} == queues
    refused = tell("Other", queues, {**queues, "brokerName": "broker-z"})
    assert (refused.code, refused.remark) == (1, "no broker broker-z is registered")
    assert tell("no good", queues).code == tell("Other", {**queues, "perm": "x"}).code == tell("Other", 7).code == 1
    assert ask(names, 217, {"topic": "Other"}, b"junk").code == tell("Other").code == 0  # it says nothing of queues
    assert ask(names, 105, {"topic": "Other"}).code == 17


def test_brokers_are_told_that_no_topic_is_ordered_any_more(names: NameServer) -> None:
    assert ask(names, 103, broker_ext(), plain_body()).body == b""
    ask(names, 100, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"})
    ask(names, 102, {"namespace": "ORDER_TOPIC_CONFIG", "key": "T"})
    assert json.loads(ask(names, 103, broker_ext(), plain_body()).body) == {"table": {}}


def test_kv_survives_a_restart(names: NameServer, tmp_path: Path) -> None:
    put = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
    assert ask(names, 100, put).code == 0
    assert ask(names, 100, {"namespace": "n", "key": "k", "value": "v"}).code == 0
    told = json.loads((tmp_path / "kvConfig.json").read_text())
    assert told["configTable"] == {"ORDER_TOPIC_CONFIG": {"T": "broker-a:4"}, "n": {"k": "v"}}
    again = NameServer(tmp_path, order_message_enable=True)
    assert ask(again, 101, {"namespace": "n", "key": "k"}).ext == {"value": "v"}
    assert json.loads(ask(again, 219, {"namespace": "n"}).body) == {"table": {"k": "v"}}
    assert ask(again, 102, {"namespace": "n", "key": "k"}).code == 0
    assert ask(again, 101, {"namespace": "n", "key": "k"}).code == 22
    assert ask(again, 101, {"namespace": "x", "key": "k"}).code == 22
    assert ask(again, 219, {"namespace": "x"}).code == 22
    answer = ask(again, 103, broker_ext(), plain_body())
    assert json.loads(answer.body) == {"table": {"T": "broker-a:4"}}
    assert json.loads(ask(again, 105, {"topic": "T"}).body)["orderTopicConf"] == "broker-a:4"


def test_configuration(names: NameServer) -> None:
    assert b"orderMessageEnable=false\n" in ask(names, 319).body
    assert ask(names, 318, body=b"kvConfigPath=/etc/x\n").code == 16


def test_a_broker_whose_clock_was_years_ahead_when_a_topic_was_made_is_registered(names: NameServer) -> None:
    """And one of today, where it is the registry's clock that is wrong, as without a battery."""
    years = 10 * 365 * 86_400_000
    assert ask(names, 103, broker_ext(), plain_body({"T": {}}, timestamp=NOW + years)).code == 0
    assert ask(names, 103, broker_ext(), plain_body({"U": {}}, timestamp=NOW)).code == 0  # the clock was put right
    assert [ask(names, 105, {"topic": topic}).code for topic in "TU"] == [0, 0]


def test_unknown_oneway_and_responses(names: NameServer) -> None:
    answer = ask(names, 9999)
    assert (answer.code, answer.remark) == (3, " request type 9999 not supported")
    assert names.handle(PEER, RemotingCommand(9999, flag=FLAG_ONEWAY), NOW) is None
    assert names.handle(PEER, RemotingCommand(105, flag=FLAG_RESPONSE), NOW) is None


MANY = {f"T{i}": {} for i in range(100_000)}
BOMB = zlib.compress(bytes(80 << 20), 9)


@pytest.mark.parametrize(
    ("ext", "body"),
    [
        ({}, plain_body(MANY)),
        ({}, plain_body({"../x": {}})),
        ({}, plain_body({"T\n": {}})),
        ({}, plain_body({"T": {"readQueueNums": -1}})),
        ({}, plain_body({"T": {"readQueueNums": 10**6}})),
        ({}, plain_body({"T": {"perm": "6"}})),
        ({}, b'{"topicConfigSerializeWrapper":[]}'),
        ({}, b"junk"),
        ({"brokerName": "a/b"}, plain_body()),
        ({"clusterName": ""}, plain_body()),
        ({"brokerAddr": "127.0.0.1:0"}, plain_body()),
        ({"brokerAddr": ":0"}, plain_body()),
        ({"brokerAddr": "127.0.0.1"}, plain_body()),
        ({"brokerAddr": "127.0.0.1:70000"}, plain_body()),
        ({"brokerAddr": "10.0.0.7:10911"}, plain_body()),
        ({"haServerAddr": "x"}, plain_body()),
        ({"brokerId": "-1"}, plain_body()),
        ({"brokerId": "1_0"}, plain_body()),
        ({"bodyCrc32": "5"}, plain_body()),
        ({"compressed": "true"}, plain_body()),
        ({"compressed": "true"}, BOMB),
        ({"compressed": "true"}, compressed_body(["T 4 4 6 SINGLE_TAG"])[:-5]),
        ({"compressed": "true"}, compressed_body(["T 4 4 6"])),
        ({"compressed": "true"}, compressed_body(["T ٣ 4 6 SINGLE_TAG"])),
        ({"compressed": "true"}, compressed_body([], count=2**31)),
        ({"compressed": "true"}, compressed_body([], count=3)),
        ({"compressed": "true"}, zlib.compress(b"\xff\xff\xff\xff")),
    ],
)
def test_refused_registrations_leave_nothing(names: NameServer, ext: dict[str, str], body: bytes) -> None:
    answer = ask(names, 103, broker_ext(**ext), body)
    assert answer.code == 1
    assert "Traceback" not in (answer.remark or "")
    assert (names.routes.topics, names.routes.addresses, names.routes.live) == ({}, {}, {})


def test_missing_fields(names: NameServer) -> None:
    answer = ask(names, 103, {"brokerName": "a"}, plain_body())
    assert (answer.code, answer.remark) == (1, "the custom field <brokerAddr> is null")


@pytest.mark.parametrize("bad", ["a/b", "a\0b", "", "x" * 100_000, "a b", "a\n"])
def test_refused_kv_names(names: NameServer, bad: str) -> None:
    assert ask(names, 100, {"namespace": bad, "key": "k", "value": "v"}).code == 1
    assert ask(names, 100, {"namespace": "n", "key": bad, "value": "v"}).code == 1
    assert ask(names, 100, {"namespace": "n", "key": "k", "value": "v" * 100_000}).code == 1
    assert ask(names, 219, {"namespace": "n"}).code == 22


def test_addresses_behind_others_can_be_allowed(tmp_path: Path) -> None:
    open_names = NameServer(tmp_path, foreign_addresses=True)
    assert ask(open_names, 103, broker_ext(brokerAddr="10.0.0.7:10911"), plain_body()).code == 0
    names = NameServer(tmp_path)
    assert ask(names, 103, broker_ext(brokerAddr="localhost:10911"), plain_body()).code == 0
    assert ask(names, 103, broker_ext(brokerAddr="10.0.0.7:10911"), plain_body(), Peer("")).code == 0


@given(
    st.sampled_from([int(code) for code in RequestCode if 100 <= code < 110 or 200 <= code < 330]),
    st.data(),
    st.binary(max_size=40),
)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_request_gets_an_answer(names: NameServer, code: int, data: st.DataObject, body: bytes) -> None:
    ext = {f.name: data.draw(st.text(max_size=8) | st.just("1")) for f in header_fields(code)}
    assert isinstance(ask(names, code, ext, body).code, int)


def test_a_broker_of_this_machine_may_register_any_of_its_addresses(tmp_path: Path) -> None:
    names = NameServer(tmp_path, is_local=lambda host: host == "192.168.1.5")
    assert ask(names, 103, broker_ext(brokerAddr="192.168.1.5:10911"), plain_body()).code == 0
    assert ask(names, 103, broker_ext(brokerAddr="192.168.1.6:10911"), plain_body()).code == 1
    far = Peer("192.168.1.9:50000")
    assert ask(names, 103, broker_ext(brokerAddr="192.168.1.5:10911"), plain_body(), far).code == 1
    assert ask(names, 103, broker_ext(brokerAddr="192.168.1.9:10911"), plain_body(), far).code == 0


def test_local_hosts() -> None:
    assert is_local_host("127.0.0.1")
    assert is_local_host("localhost")
    for other in ("192.0.2.1", "example.invalid", "", "[2001:db8::1]"):
        assert not is_local_host(other)


def test_no_broker_of_ours_says_that_it_replicates(caplog: pytest.LogCaptureFixture) -> None:
    with Broker() as broker:
        ext = broker_ext(brokerName="broker-a", brokerAddr="127.0.0.1:1", brokerId="1")
        with RawPeer(broker.registry) as slave:
            answer = slave.ask(103, ext, plain_body())
            assert answer.code == 0
            assert "haServerAddr" not in answer.ext
            assert answer.ext["masterAddr"] == broker.remoting
    assert "a slave registered whose master replicates nothing" in caplog.text


def test_a_second_broker_of_one_name_does_not_flip_the_route(caplog: pytest.LogCaptureFixture) -> None:
    with Broker() as first, RawPeer(first.remoting) as peer:
        assert peer.send("T", b"x").code == 0
        with Broker(registry=first.registry) as second:  # broker-a, too
            eventually(lambda: "two brokers of one name" in caplog.text and "the registry says" in caplog.text)
            with RawPeer(first.registry) as asker:
                route = json.loads(asker.ask(105, {"topic": "T"}).body)
            assert route["brokerDatas"][0]["brokerAddrs"] == {"0": first.remoting}
            assert second.remoting != first.remoting


def test_a_slave_that_takes_another_id_is_no_error(names: NameServer, caplog: pytest.LogCaptureFixture) -> None:
    """At the start of a replica set all may have the same for a moment."""
    caplog.set_level("INFO")

    def register(port: int, number: int) -> RemotingCommand:
        ext = broker_ext(brokerId=str(number), brokerAddr=f"127.0.0.1:{port}")
        return ask(names, 103, ext, plain_body(), Peer(f"127.0.0.1:5{port}"))

    register(1001, 0), register(1002, 1)
    assert register(1003, 1).ext["freeBrokerId"] == "2"
    assert "two brokers of one name" not in caplog.text
    register(1003, 2)
    register(1003, 1)  # later
    assert "two brokers of one name" not in caplog.text
    register(1003, 1)  # it lasts
    assert "two brokers of one name" in caplog.text
    caplog.clear()
    register(1004, 0)
    assert "two brokers of one name" in caplog.text  # a master takes no other one
