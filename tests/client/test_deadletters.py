"""`client.deadletters`: what is sent again, what of it, and that an interrupted call is gone on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from access.people import SECRET, user, write
from penstock import Admin, Message, Producer
from penstock.client.deadletters import DeadLetters, again, describe
from penstock.client.line import Line
from penstock.client.routes import split_address
from penstock.errors import BrokerRefused, ConnectionLost, NotFound
from penstock.message import ReceivedMessage
from penstock.security import Security
from penstock.testing import Broker
from penstock.wire.codes import RequestCode
from penstock.wire.fastjson import dumps
from penstock.wire.names import DEAD_PROPERTIES
from penstock.wire.remoting import RemotingCommand
from polling import eventually

Fresh = Callable[[str], str]


def letter(**properties: str) -> ReceivedMessage:
    return ReceivedMessage(
        "%DLQ%g", b"body of k", 0, 7, 100, properties=properties, flag=3, store_ms=5, store_host="127.0.0.1:1"
    )


def filled(registry: str, group: str, origin: str, bodies: list[bytes], security: Security | None = None) -> None:
    """Dead letters as a broker of RocketMQ leaves them: with their topic, and without the reason."""
    topic = f"%DLQ%{group}"
    with Admin(registry, security=security) as admin, Producer(registry, security=security) as producer:
        admin.create_topic(topic, 1)
        admin.create_topic(origin, 1)
        eventually(lambda: {topic, origin} <= set(admin.topics(system=True)))
        for body in bodies:
            producer.send(Message(topic, body, keys=("k",), properties={"RETRY_TOPIC": origin}))


def count(registry: str, topic: str) -> int:
    with Admin(registry) as admin:
        return sum(stats.max_offset for stats in admin.topic_stats(topic).values())


def test_what_the_delivery_and_the_death_added_is_not_sent_again() -> None:
    added = dict.fromkeys(DEAD_PROPERTIES, "1") | {
        "RETRY_TOPIC": "t", "WAIT": "false", "DELAY": "3", "PSEQ": "p.1.1", "UNIQ_KEY": "u", "TIMER_DELAY_MS": "5",
        "PENSTOCK_ID": "9", "TRAN_MSG": "true", "PGROUP": "p", "REAL_TOPIC": "t", "REAL_QID": "0",
    }  # fmt: skip
    own = {"KEYS": "a b", "TAGS": "x", "price": "9", "ORIGIN_MESSAGE_ID": "o", "__SHARDINGKEY": "s"}
    sent = again(letter(**added, **own), "t")
    assert (sent.topic, sent.body, sent.flag, sent.sharding_key) == ("t", b"body of k", 3, "s")
    assert sent.properties == own


def test_what_is_not_noted_is_not_made_up() -> None:
    row = describe(letter(DLQ_TIME="soon", DLQ_ATTEMPTS="²"), redriven=False)
    assert (row["died_ms"], row["attempts"], row["reason"], row["origin"]) == (5, 0, None, None)


def test_an_interrupted_call_is_gone_on_with(registry: str, fresh: Fresh) -> None:
    group, origin = fresh("g"), fresh("origin")
    filled(registry, group, origin, [b"%d" % n for n in range(5)])
    told: list[bytes] = []

    def interrupt(message: ReceivedMessage, topic: str) -> None:
        told.append(message.body)
        if len(told) == 3:
            raise KeyboardInterrupt

    with DeadLetters(registry) as letters:
        with pytest.raises(KeyboardInterrupt):
            letters.redrive(group, each=interrupt)
        assert count(registry, origin) == 3
        done = letters.redrive(group, each=lambda message, topic: told.append(message.body))
        assert told == [b"0", b"1", b"2", b"2", b"3", b"4"]  # what was under way is sent again, and stored once
        assert (done.count, done.topics) == (3, {origin: 3})
        assert count(registry, origin) == 5
        assert letters.redrive(group).count == 0


def test_two_calls_at_a_time_store_each_once(registry: str, fresh: Fresh) -> None:
    group, origin = fresh("g"), fresh("origin")
    filled(registry, group, origin, [b"%d" % n for n in range(80)])
    with DeadLetters(registry) as first, DeadLetters(registry) as second:

        def overtake(message: ReceivedMessage, topic: str) -> None:
            if message.body == b"3":
                assert second.redrive(group).count == 80 - 4 + 4  # it cannot know of those that are not committed

        assert first.redrive(group, each=overtake).count <= 80
        assert count(registry, origin) == 80


def test_the_chosen_ones_and_then_those_sent_are_deleted(registry: str, fresh: Fresh) -> None:
    group, origin = fresh("g"), fresh("origin")
    filled(registry, group, origin, [b"%d" % n for n in range(6)])
    with DeadLetters(registry) as letters:
        ids = [message.msg_id for message, _ in letters.letters(group)]
        assert letters.resend(group, [ids[1], ids[0], ids[4]]).topics == {origin: 3}
        assert letters.resend(group, [ids[4], "nosuch"]).count == 0
        assert [redriven for _, redriven in letters.letters(group)] == [True, True, False, False, True, False]
        assert letters.delete_sent(group) == 2
        assert [message.msg_id for message, _ in letters.letters(group)] == ids[2:]
        assert letters.redrive(group).count == 3
        assert letters.delete_sent(group) == 4
        assert letters.delete_sent(group) == 0
        assert list(letters.letters(group)) == []
        assert count(registry, origin) == 6


def test_a_dry_run_sends_and_notes_nothing(registry: str, fresh: Fresh) -> None:
    group, origin = fresh("g"), fresh("origin")
    filled(registry, group, origin, [b"1", b"2"])
    with DeadLetters(registry) as letters:
        assert letters.redrive(group, dry_run=True).topics == {origin: 2}
        assert count(registry, origin) == 0
        assert letters.redrive(group).count == 2
        (row,) = [one for one in letters.topics() if one.name == group]
        assert (row.count, row.left) == (2, 0)


def test_nothing_goes_to_a_topic_that_is_gone(registry: str, fresh: Fresh) -> None:
    group, origin = fresh("g"), fresh("origin")
    filled(registry, group, origin, [b"1"])
    with Admin(registry) as admin, DeadLetters(registry) as letters:
        admin.delete_topic(origin)
        with pytest.raises(NotFound, match="no broker has the topic"):
            letters.redrive(group)
        assert origin not in admin.topics()
        admin.create_topic(fresh("x"))
        (row,) = [one for one in letters.topics() if one.name == group]
        assert row.left == 1


def test_so_many_a_second(registry: str, fresh: Fresh) -> None:
    group, origin, now, slept = fresh("g"), fresh("origin"), [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    filled(registry, group, origin, [b"1", b"2", b"3"])
    with DeadLetters(registry, clock=lambda: now[0], sleep=sleep) as letters:
        letters.redrive(group, rate=2)
    assert slept == [0.5, 0.5]


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_sends_nothing(registry: str, fresh: Fresh, rate: float) -> None:
    group, origin = fresh("g"), fresh("origin")
    filled(registry, group, origin, [b"1"])
    with DeadLetters(registry) as letters, pytest.raises(ValueError, match="rate is a number above 0"):
        letters.redrive(group, rate=rate)
    assert count(registry, origin) == 0


def test_who_may_look_and_send_again(tmp_path: Path) -> None:
    users = write(
        tmp_path / "users.toml", user("root", "admin"),
        user("ops", "group:bil*", "group:penstock-redrive*", "publish:orders"), user("other", "publish:orders"),
    )  # fmt: skip
    with Broker(users=str(users)) as broker:
        everything, ops, other = (Security(user=name, secret=SECRET + name) for name in ("root", "ops", "other"))
        filled(broker.registry, "billing", "orders", [b"1", b"2"], security=everything)
        with DeadLetters(broker.registry, security=other) as letters, pytest.raises(BrokerRefused) as refused:
            letters.redrive("billing")
        assert refused.value.denied
        with DeadLetters(broker.registry, security=ops) as letters:
            assert len(list(letters.letters("billing"))) == 2
            assert letters.redrive("billing").topics == {"orders": 2}
            assert letters.redrive("billing").count == 0
            with pytest.raises(NotFound, match="has no dead letters"):
                letters.redrive("biling")
            with pytest.raises(BrokerRefused):
                letters.topics()


@contextmanager
def beside_one_that_is_gone(registry: str, *topics: str) -> Iterator[None]:
    """The registry knows another broker, `gone`, that has these topics and answers nobody."""
    config = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0}
    table = {topic: config | {"topicName": topic, "order": False} for topic in topics}
    body = dumps(
        {"topicConfigSerializeWrapper": {"dataVersion": {"timestamp": 1, "counter": 1}, "topicConfigTable": table}}
    )
    ext = {
        "brokerName": "gone", "brokerAddr": "127.0.0.1:1", "clusterName": "DefaultCluster", "brokerId": "0",
        "haServerAddr": "",
    }  # fmt: skip
    with closing(Line(split_address(registry, 0), 60.0)) as line:
        assert line.call(RemotingCommand(RequestCode.REGISTER_BROKER, ext, body), 60.0).code == 0
        yield


def test_a_look_may_be_partial_and_a_redrive_never_is() -> None:
    with Broker() as broker:
        filled(broker.registry, "g", "origin", [b"a", b"b"])
        with DeadLetters(broker.registry) as letters:
            assert letters.redrive("g", limit=1).count == 1
        with beside_one_that_is_gone(broker.registry, "%DLQ%g"):
            with DeadLetters(broker.registry) as letters, pytest.raises(ConnectionLost):
                list(letters.letters("g"))
            with DeadLetters(broker.registry, partial=True) as letters:
                assert [(letter.body, sent) for letter, sent in letters.letters("g")] == [(b"a", True), (b"b", False)]
                assert set(letters.missed) == {"gone"}
                for change in (letters.redrive, letters.delete_sent, lambda name: letters.resend(name, ["x"])):
                    with pytest.raises(ConnectionLost):
                        change("g")
            with DeadLetters(broker.registry, partial=True) as letters, pytest.raises(ConnectionLost):
                letters.redrive("g")
        assert count(broker.registry, "origin") == 1


def test_those_of_a_queue_topic_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(self: Admin, *words: str, **more: object) -> object:
        raise ConnectionLost("away")

    with Broker() as broker, Admin(broker.registry) as admin, Producer(broker.registry) as producer:
        admin.change_queue("jobs.c.dead", "add")
        producer.send(Message("jobs.c.dead", b"x"))
        with DeadLetters(broker.registry, partial=True) as letters:
            assert [letter.body for letter, _ in letters.letters("jobs.c")] == [b"x"]
        monkeypatch.setattr(Admin, "browse_page", away)
        with DeadLetters(broker.registry, partial=True) as letters:
            assert (list(letters.letters("jobs.c")), set(letters.missed)) == ([], {"broker-a"})
        with DeadLetters(broker.registry) as letters, pytest.raises(ConnectionLost):
            list(letters.letters("jobs.c"))
