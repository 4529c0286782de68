"""Readers that are far behind are sent to a slave, and back; a slave corrects nobody's offset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from broker.queueside import Side
from fronts.raw_peer import RawPeer
from fronts.test_ha import slave_of
from penstock.broker.copies import Member
from penstock.broker.groups import Group
from penstock.broker.guide import Guide, memory_of
from penstock.broker.replica import Replica
from penstock.config import BrokerConfig
from penstock.disk.files import Files
from penstock.testing import Broker
from penstock.wire.record import iter_records
from polling import eventually

MEMORY = 100_000  # so a reader is far behind from 40,000 bytes on
COUNT = 300
SMALL_MEMORY = {"memory_bytes": MEMORY}


def test_whom_a_reader_of_the_master_asks_next(tmp_path: Path) -> None:
    side = Side(tmp_path)
    copies, time = side.broker.copies, side.broker.time
    guide = Guide(BrokerConfig(memory_bytes=1_000), copies, time)
    one, two = Member("b", 1, ""), Member("c", 3, "")
    copies.enter(one)
    copies.enter(two)
    assert guide.far == 400
    assert guide.next_id(401, None) == 0  # nobody is in sync
    two.judge(True, "")
    assert guide.next_id(401, Group("g")) == 3  # its own choice is not
    one.judge(True, "")
    assert guide.next_id(401, Group("g")) == 1
    assert guide.next_id(400, Group("g")) == 0
    assert guide.next_id(1 << 40, Group("g", which_broker_when_slow=3)) == 3
    assert guide.next_id(1 << 40, Group("g", which_broker_when_slow=7)) == 1
    assert guide.next_id(1 << 40, Group("g", which_broker_when_slow=0)) == 0  # it wants to stay
    assert guide.next_id(1 << 40, None) == 1
    copies.leave(one)
    assert guide.next_id(1 << 40, Group("g")) == 3
    assert Guide(BrokerConfig(memory_bytes=1_000, slave_read_enable=False), copies, time).next_id(1 << 40, None) == 0
    assert memory_of(BrokerConfig()) > 1 << 24
    side.close()


def test_whom_a_reader_of_a_slave_asks_next(tmp_path: Path) -> None:
    side = Side(tmp_path)
    copies, time = side.broker.copies, side.broker.time
    guide = Guide(BrokerConfig(memory_bytes=1_000), copies, time)
    copies.follow(0)
    copies.renumber(5)
    assert guide.next_id(1 << 40, None) == 0
    replica = Replica(Files(), tmp_path, "b")
    replica.open(lossy=False)
    copies.belong(replica)
    copies.hear("a", 0, time.mono_ms)
    assert guide.next_id(1 << 40, None) == 0  # it lags
    replica.note_in_sync(True)
    assert guide.next_id(300, Group("g")) == 5
    assert guide.next_id(299, Group("g")) == 0
    assert guide.next_id(299, Group("g", broker_id=5)) == 5  # a group that reads there as a rule
    side.clock.advance(10_001)
    side.broker.time.update()
    assert guide.next_id(1 << 40, Group("g")) == 0  # the master was not heard
    side.close()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Broker]:
    secret = tmp_path / "secret"
    secret.write_bytes(b"0123456789abcdef")
    with Broker(
        tmp_path / "a", ha_port=0, node="a", ha_secret_file=str(secret), register_broker_period_ms=500, **SMALL_MEMORY
    ) as broker:
        with penstock.Admin(broker.registry) as admin:
            admin.create_topic("T", 1)
        with penstock.Producer(broker.registry) as producer:
            for n in range(COUNT):
                producer.send(penstock.Message("T", b"%06d" % n * 50))
        yield broker


def follower(tmp_path: Path, master: Broker, **settings: object) -> Broker:
    return slave_of(
        tmp_path, master.addresses["ha"], str(tmp_path / "secret"), registry=master.registry,
        register_broker_period_ms=500, **{**SMALL_MEMORY, **settings},
    )  # fmt: skip


def in_sync(master: Broker, slave: Broker) -> None:
    eventually(lambda: master.call(lambda server: server.broker.copies.available))
    eventually(lambda: slave.call(lambda server: server.broker.copies.replica.in_sync))
    ends = [one.call(lambda server: server.broker.store.end_position) for one in (master, slave)]
    assert ends[0] == ends[1]
    eventually(lambda: slave.call(lambda server: server.broker.copies.confirmed) == ends[0])


def suggested(peer: RawPeer, offset: int, **fields: object) -> tuple[int, str]:
    answer = peer.pull("T", 0, offset, **fields)
    return answer.code, answer.ext["suggestWhichBrokerId"]


@pytest.mark.parametrize("serialize", [0, 1])
def test_over_the_wire(master: Broker, tmp_path: Path, serialize: int) -> None:
    with RawPeer(master.addresses["remoting"]) as peer, follower(tmp_path, master) as slave:
        in_sync(master, slave)
        with RawPeer(slave.addresses["remoting"]) as other:
            for offset, found in ((0, (0, "1")), (100, (0, "1")), (290, (0, "0")), (COUNT, (19, "0"))):
                assert suggested(peer, offset, serialize=serialize) == found
                assert suggested(other, offset, serialize=serialize) == found
            nothing = {"subscription": "nothing", "serialize": serialize}
            assert suggested(peer, 0, **nothing) == (20, "0")  # it has looked at all there is
            beyond = other.pull("T", 0, COUNT + 5, serialize=serialize)
            assert (beyond.code, beyond.ext["nextBeginOffset"]) == (20, str(COUNT + 5))
            assert beyond.ext["suggestWhichBrokerId"] == "0"
            assert other.pull("T", 0, -1, serialize=serialize).code == 20
            assert peer.pull("T", 0, COUNT + 5, serialize=serialize).code == 21
    eventually(lambda: not master.call(lambda server: server.broker.copies.available))
    with RawPeer(master.addresses["remoting"]) as peer:
        assert suggested(peer, 0) == (0, "0")


def test_a_slave_lets_those_wait_who_ask_for_what_it_has_not_got(master: Broker, tmp_path: Path) -> None:
    with follower(tmp_path, master) as slave:
        in_sync(master, slave)
        with RawPeer(slave.addresses["remoting"]) as peer:
            waited = peer.pull("T", 0, COUNT + 2, sysFlag=6, suspendTimeoutMillis=300)
            assert (waited.code, waited.ext["nextBeginOffset"]) == (20, str(COUNT + 2))
            fields = {
                "consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": COUNT + 1, "maxMsgNums": 32, "sysFlag": 6,
                "commitOffset": 0, "suspendTimeoutMillis": 15_000, "subscription": "*", "subVersion": 0,
            }  # fmt: skip
            bodies: list[bytes] = []
            with penstock.Producer(master.registry) as producer:
                for n in range(2):
                    producer.send(penstock.Message("T", b"late %d" % n))

            def found() -> bool:  # it is answered 20 and asks again, or is woken
                answer = peer.ask(11, fields)
                bodies.extend(record.body for record in iter_records(answer.body))
                return bool(bodies)

            eventually(found)
            assert bodies == [b"late 1"]


def test_a_slave_that_is_not_to_be_read(master: Broker, tmp_path: Path) -> None:
    with follower(tmp_path, master, slave_read_enable=False) as slave:
        in_sync(master, slave)
        with RawPeer(slave.addresses["remoting"]) as peer:
            for offset in (0, 290, COUNT, COUNT + 1):
                answer = peer.pull("T", 0, offset)
                assert (answer.code, answer.ext["nextBeginOffset"], answer.body) == (20, str(offset), b"")
                assert answer.ext["suggestWhichBrokerId"] == "0"
            held = peer.pull("T", 0, 0, sysFlag=6, suspendTimeoutMillis=300)
            assert (held.code, held.body) == (20, b"")


def pulls(broker: Broker, group: str) -> int:
    """How many messages this broker has given to the group."""

    def count(server: object) -> int:
        found = server.broker.groups.by_name.get(group)  # type: ignore[attr-defined]
        return found.get_counts.get(b"T", [0])[0] if found is not None else 0

    return broker.call(count)


def filled(master: Broker) -> list[bytes]:
    """Bodies enough for several pulls."""
    wanted = [b"%06d" % n * 50 for n in range(COUNT)]
    with penstock.Producer(master.registry) as producer:
        for n in range(8):
            wanted += (bodies := [b"%d %d " % (n, k) + b"x" * 300 for k in range(500)])
            producer.send_batch([penstock.Message("T", body) for body in bodies])
    return wanted


def test_our_clients_go_there_and_back_and_miss_nothing(master: Broker, tmp_path: Path) -> None:
    wanted = filled(master)
    with follower(tmp_path, master) as slave:
        in_sync(master, slave)
        with penstock.Admin(master.registry) as admin:
            eventually(lambda: 1 in admin.cluster_info().brokers["broker-a"])
        seen: list[bytes] = []
        with penstock.PushConsumer("push", master.registry, start="first", window_count=64) as consumer:
            consumer.subscribe("T")
            for message in consumer:
                seen.append(message.body)
                if len(seen) == len(wanted):
                    break
        assert sorted(seen) == sorted(wanted)
        assert pulls(master, "push") > 0
        assert pulls(slave, "push") > 0


def test_a_pull_consumer_goes_there_and_back(master: Broker, tmp_path: Path) -> None:
    wanted = filled(master)
    with follower(tmp_path, master) as slave:
        in_sync(master, slave)
        with penstock.Admin(master.registry) as admin:
            eventually(lambda: 1 in admin.cluster_info().brokers["broker-a"])
        with penstock.PullConsumer(master.registry, group="pull") as puller:
            puller.assign("T", start="first")
            read: list[bytes] = []

            def all_read() -> bool:
                read.extend(m.body for got in puller.getmany(0.2, 400).values() for m in got)
                return len(read) >= len(wanted)

            eventually(all_read)
            assert read == wanted
            assert pulls(slave, "pull") > 0
            before = pulls(master, "pull")
            with penstock.Producer(master.registry) as producer:

                def back() -> bool:
                    producer.send(penstock.Message("T", b"new"))
                    assert {m.body for got in puller.getmany(0.2).values() for m in got} <= {b"new"}
                    return pulls(master, "pull") > before

                eventually(back)
