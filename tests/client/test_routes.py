"""`client.routes`: name servers' answers, in all their dialects, to queues."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.routes import MessageQueue, QueueData, Route, parse_route, split_address, split_addresses
from penstock.errors import WireError

BODY = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a","cluster":"C"},'
    b'{"brokerAddrs":{"1":"10.0.0.3:10911"},"brokerName":"b","cluster":"C"}],"filterServerTable":{},'
    b'"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":1,"topicSynFlag":0,"writeQueueNums":1},'
    b'{"brokerName":"a","perm":6,"readQueueNums":3,"topicSysFlag":0,"writeQueueNums":2}]}'
)


def queue(broker: str, queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic, broker, queue_id)


def test_publish_and_subscribe() -> None:
    route = parse_route("T", BODY)
    assert route.publish_queues() == [queue("a", 0), queue("a", 1)]  # b has no master
    assert route.subscribe_queues() == [queue("a", 0), queue("a", 1), queue("a", 2), queue("b", 0)]
    assert (route.address("a"), route.address("a", 1), route.address("b")) == ("10.0.0.1:10911", "10.0.0.2:10911", None)
    assert (route.read_address("a", 7), route.read_address("b"), route.read_address("c")) == (
        "10.0.0.1:10911",
        "10.0.0.3:10911",
        None,
    )


@pytest.mark.parametrize(("perm", "publish", "subscribe"), [(4, 0, 1), (2, 1, 0), (0, 0, 0), (7, 1, 1)])
def test_permissions(perm: int, publish: int, subscribe: int) -> None:
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{"0":"x:1"},"brokerName":"a"}],"queueDatas":[{"brokerName":"a","perm":%d,'
        b'"readQueueNums":1,"writeQueueNums":1}]}' % perm
    )
    route = parse_route("T", body)
    assert (len(route.publish_queues()), len(route.subscribe_queues())) == (publish, subscribe)


@pytest.mark.parametrize(
    ("perm", "address", "read_only"),
    [(4, "h:1", True), (0, "h:1", True), (6, "h:1", False), (2, "h:1", False), (4, "", False)],
)
def test_a_topic_that_nobody_may_write_to(perm: int, address: str, read_only: bool) -> None:
    """A broker that is away may have other permissions when it is back."""
    brokers = {"broker-a": {0: "h:1"}, "broker-b": {0: address} if address else {1: "h:2"}}
    queues = (QueueData("broker-a", 2, 2, 4), QueueData("broker-b", 2, 2, perm))
    assert Route("T", brokers, queues).is_read_only is read_only
    assert not Route("T", brokers, ()).is_read_only


@pytest.mark.parametrize("told", [b'""', b'"x:y"', b'"a b:1"', b'"x:99999"', b"null", b"5", b"[]"])
def test_a_broker_whose_address_is_none_is_away(told: bytes) -> None:
    """Its name server takes whatever it says; a client ended with ValueError, though the topic has another broker."""
    queues = b'"queueDatas":[' + b",".join(
        b'{"brokerName":"%s","perm":6,"readQueueNums":1,"writeQueueNums":1}' % name for name in (b"a", b"b")
    )
    brokers = b'{"brokerAddrs":{"0":%s},"brokerName":"a"},{"brokerAddrs":{"0":"x:1"},"brokerName":"b"}' % told
    route = parse_route("T", b'{"brokerDatas":[' + brokers + b"]," + queues + b"]}")
    assert route.brokers == {"a": {}, "b": {0: "x:1"}}
    assert route.publish_queues() == [queue("b", 0)]
    assert route.read_address("a") is None


def test_order_topics_use_their_own_list() -> None:
    route = parse_route("T", BODY[:-1] + b',"orderTopicConf":"a:2;b:1;junk;c:x"}')
    assert route.publish_queues() == [queue("a", 0), queue("a", 1), queue("b", 0)]


def test_template() -> None:
    route = parse_route("TBW102", BODY.replace(b'"writeQueueNums":2', b'"writeQueueNums":8'))
    assert route.as_template_for("New", 4).publish_queues() == [queue("a", i, "New") for i in range(4)]


@given(st.binary(max_size=60) | st.just(b'{"brokerDatas":[1]}') | st.just(b'{"queueDatas":[{"perm":"x"}]}'))
def test_any_body_is_a_route_or_wire_error(body: bytes) -> None:
    try:
        parse_route("T", body)
    except WireError:
        return


def test_addresses() -> None:
    assert split_addresses("a:9876;b:1") == [("a", 9876), ("b", 1)]
    assert split_addresses(" a , [::1]:5;[::2]; ") == [("a", 9876), ("::1", 5), ("::2", 9876)]
    assert split_address("h", 10911) == ("h", 10911)
    for bad in ("", ";", "a:", "a:x", "a:0", "a:70000", ":5"):
        with pytest.raises(ValueError):
            split_addresses(bad)
    for wrong in (5, None, b"a:9876", ["a:9876"]):
        with pytest.raises(TypeError, match="addresses are text"):
            split_addresses(wrong)  # type: ignore[arg-type]


def test_message_queue_json() -> None:
    assert MessageQueue.from_json({"topic": "T", "brokerName": "a", "queueId": 2, "x": 1}) == queue("a", 2)
    assert queue("a", 2).as_json() == {"brokerName": "a", "queueId": 2, "topic": "T"}
    for bad in (None, [], {"topic": "T"}, {"topic": "T", "brokerName": "a", "queueId": "x"}):
        with pytest.raises(WireError):
            MessageQueue.from_json(bad)
