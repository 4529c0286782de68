"""Offsets, messages given back, dead letters."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from fronts.frontside import RemotingSide
from fronts.nsq_peer import NsqPeer
from fronts.raw_peer import RawPeer, heartbeat, wait_for
from fronts.test_ha import SECRET, hello, opened
from penstock.broker.clients import Member
from penstock.fronts.requests.consuming import Consuming
from penstock.testing import Broker
from penstock.wire import ha, haframe, hawords
from penstock.wire.codes import SYS_COMMIT, SYS_ROLLBACK, ResponseCode
from penstock.wire.remoting import RemotingCommand, encode
from polling import eventually


def test_offsets(peer: RawPeer) -> None:
    key = {"consumerGroup": "Offs", "topic": "Offsets", "queueId": 0}
    for _ in range(3):
        peer.send("Offsets", b"x")
    assert peer.ask(14, key).ext["offset"] == "0"  # a young queue is read from its start
    assert peer.ask(15, key | {"commitOffset": 2}).code == 0
    assert peer.ask(14, key).ext["offset"] == "2"
    assert peer.ask(30, key).ext["offset"] == "3"
    assert peer.ask(31, key).ext["offset"] == "0"
    assert int(peer.ask(32, key).ext["timestamp"]) > 1_700_000_000_000
    assert peer.ask(29, key | {"timestamp": 0}).ext["offset"] == "0"
    assert peer.ask(29, key | {"timestamp": 1 << 50}).ext["offset"] == "2"
    assert peer.ask(29, key | {"timestamp": 1 << 50, "boundaryType": "LOWER"}).ext["offset"] == "3"
    stats = peer.ask(208, {"consumerGroup": "Offs"}).body
    assert b'"consumerOffset":2' in stats
    assert b'{"brokerName":"broker-a","queueId":0,"topic":"Offsets"}:{' in stats


def test_offsets_are_kept_only_of_queues_and_groups_that_there_can_be(peer: RawPeer) -> None:
    """A client that says numbers does not fill the table."""
    key = {"consumerGroup": "Offs", "topic": "Bounded", "queueId": 0, "commitOffset": 1}
    assert peer.ask(15, key).code == ResponseCode.TOPIC_NOT_EXIST
    peer.send("Bounded", b"x")
    assert peer.ask(15, key).code == 0
    for number in (1_000_000, (1 << 31) - 1):
        assert peer.ask(15, key | {"queueId": number}).code == 1
    assert b"1000000" not in peer.ask(43, {}).body


def test_the_offsets_of_the_brokers_own_group_are_not_moved(peer: RawPeer) -> None:
    """They say which transactions are still to be asked about."""
    own = {"consumerGroup": "CID_RMQ_SYS_TRANS", "topic": "RMQ_SYS_TRANS_HALF_TOPIC", "queueId": 0}
    pull = {"queueOffset": 0, "maxMsgNums": 1, "subscription": "*", "subVersion": 0, "suspendTimeoutMillis": 0}
    before = peer.ask(14, own).ext.get("offset")
    refused = [
        peer.ask(15, own | {"commitOffset": 99}),
        peer.ask(11, own | pull | {"sysFlag": 5, "commitOffset": 99}),
        peer.ask(314, {"srcGroup": "Any", "destGroup": own["consumerGroup"], "topic": own["topic"], "offline": "true"}),
        peer.ask(207, {"groupName": own["consumerGroup"], "removeOffset": "true"}),
    ]
    assert [answer.code for answer in refused] == [16] * len(refused)
    assert peer.ask(14, own).ext.get("offset") == before
    assert peer.ask(11, own | pull | {"sysFlag": 4, "commitOffset": 0}).code in (17, 19)


def test_a_slaves_channel_goes_where_its_masters_is(tmp_path: Path) -> None:
    key = {"topic": "jobs"}
    with Broker(tmp_path / "a", ha_port=0, node="a") as master:
        peer = NsqPeer(master.nsq)
        peer.subscribe(b"jobs", b"c", 1)
        peer.publish(b"jobs", b"x")  # in hand of nobody's cursor: it is not finished
        with Broker(
            tmp_path / "b", ha_port=0, node="b", role="slave", registry=master.registry, registry_port=-1,
            lookup_port=-1, lookup_http_port=-1, ha_master=master.addresses["ha"],
        ) as slave:  # fmt: skip

            def depth() -> int:
                with urllib.request.urlopen(f"http://{slave.http}/stats?format=json&topic=jobs", timeout=30) as answer:
                    (topic,) = json.load(answer)["topics"] or [{"channels": []}]
                return next((one["depth"] for one in topic["channels"]), -1)

            eventually(lambda: depth() == 1, 60, "the slave has not got the channel")
            there = RawPeer(slave.remoting)
            reset = there.ask(222, key | {"group": "c", "timestamp": -1, "isForce": "true"})
            assert (reset.code, "this broker is a slave" in reset.remark) == (1, True)
            assert there.ask(15, key | {"consumerGroup": "c", "queueId": 0, "commitOffset": 1}).code == 0
            assert depth() == 1
            there.close()
        peer.close()


def test_delays_send_back_and_dead_letters() -> None:
    with Broker(message_delay_level=" ".join(["200ms".replace("200ms", "1s")] * 18)) as broker:
        peer = RawPeer(broker.remoting)
        now = int(time.time() * 1000)
        peer.send("Later", b"level", {"DELAY": "1", "TAGS": "A"})
        peer.send("Later", b"moment", {"TIMER_DELIVER_MS": str(now + 600)}, e=1)
        (moment,) = wait_for(peer, "Later", 1)
        assert moment.body == b"moment"
        assert moment.store_ms >= now + 600
        (level,) = wait_for(peer, "Later", 0)
        assert level.body == b"level"
        assert level.store_ms >= now + 1000
        kept = {"DELAY": "1", "REAL_TOPIC": "Later", "REAL_QID": "0"}
        assert dict(level.properties) == {"TAGS": "A", "CLUSTER": "DefaultCluster"} | kept
        back = {"offset": level.physical_offset, "group": "Back", "delayLevel": 0, "originTopic": "Later",
                "originMsgId": level.offset_msg_id, "maxReconsumeTimes": 1}  # fmt: skip
        assert peer.ask(36, back).code == 0
        heartbeat(peer, "c", "Back", "Later")
        (again,) = wait_for(peer, "%RETRY%Back")
        assert again.reconsume_times == 1
        assert again.properties["RETRY_TOPIC"] == "Later"
        assert (again.properties["DELAY"], again.properties["REAL_TOPIC"]) == ("3", "%RETRY%Back")
        assert again.properties["ORIGIN_MESSAGE_ID"] == level.offset_msg_id
        assert peer.ask(36, back | {"offset": again.physical_offset}).code == 0
        (dead,) = wait_for(peer, "%DLQ%Back")
        assert dead.body == b"level"
        assert peer.ask(36, back | {"offset": 7}).code == 1
        peer.close()


def test_one_member_that_cannot_be_told_keeps_nothing_from_the_others(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    clients, told = side.broker.clients, []

    class Hearing:
        remote = "here"

        def push(self, command: RemotingCommand) -> None:
            told.append(command.ext["consumerGroup"])

    class Failing(Hearing):
        def push(self, command: RemotingCommand) -> None:
            raise MemoryError

    for group in ("G", "H"):
        for client_id, peer in (("1", Hearing()), ("2", Failing()), ("3", Hearing())):
            clients.consumer_heard(group, Member(client_id, peer, "JAVA", 409, 0), {}, {})  # type: ignore[arg-type]
    with pytest.raises(MemoryError):
        side.front.requests.consuming.share(1_000)
    assert sorted(told) == ["G", "G", "H", "H"]
    side.broker.close()


def test_each_request_of_the_table_has_its_method() -> None:
    assert Consuming.TABLE
    for code, name in Consuming.TABLE.items():
        assert callable(getattr(Consuming, name, None)), code


class SlaveByHand:
    """Follows a master, and says that it has the log only as far as it is told to."""

    def __init__(self, master: Broker) -> None:
        self._peer = opened(master, hello())
        head, _ = self._peer.frame() or pytest.fail("closed")
        self._peer.send(ha.start(head.epoch, 0))
        self._holds = threading.Event()
        self.had = 0
        self._said = 0
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        while (found := self._peer.frame()) is not None:
            head, body = found
            if head.kind == hawords.DATA:
                self.had = haframe.read_positions(body, 0).position + len(body) - 40 - 8 * head.entries
            self._say(head.epoch)

    def _say(self, epoch: int) -> None:
        if not self._holds.is_set():
            self._said = self.had
        with contextlib.suppress(OSError):
            self._peer.send(haframe.ack(epoch, haframe.Ack(self._said, 0, self._said, 1 << 30)))

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """From now on it does not say that it has more."""
        self._holds.set()
        try:
            yield
        finally:
            self._holds.clear()

    def close(self) -> None:
        """The connection ends."""
        self._peer.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._peer.close()


def test_the_end_of_a_transaction_is_answered_at_the_level_of_its_topic(tmp_path: Path) -> None:
    """A commit that the master alone has goes with it: of level `pair` its answer waits for the slave."""
    (tmp_path / "secret").write_bytes(SECRET)
    with Broker(
        tmp_path / "a", node="a", ha_port=0, ha_secret_file=str(tmp_path / "secret"), level="pair",
        ha_answer_ms=60_000, ha_in_sync_ms=60_000,
    ) as master, RawPeer(master.remoting) as peer:  # fmt: skip
        slave = SlaveByHand(master)
        eventually(lambda: master.call(lambda server: server.broker.copies.available))
        properties = {"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": "U"}
        halves = [peer.send("Tx", b"%d" % n, properties, f=4) for n in range(3)]
        assert [half.code for half in halves] == [0, 0, 0]

        def end(half: RemotingCommand, what: int) -> RemotingCommand:
            fields = {"producerGroup": "PG", "tranStateTableOffset": half.ext["queueOffset"], "commitOrRollback": what,
                      "commitLogOffset": int(half.ext["msgId"][16:], 16), "msgId": "U"}  # fmt: skip
            command = RemotingCommand(37, {k: str(v) for k, v in fields.items()}, opaque=next(peer.opaques))
            peer.write(encode(command))
            return command

        for half, what in ((halves[0], SYS_COMMIT), (halves[1], SYS_ROLLBACK)):
            with slave.silent():
                before = slave.had
                asked = [end(half, what), end(half, what)]  # whoever asks again waits for the same
                eventually(lambda before=before: slave.had > before)  # type: ignore[misc]
                assert peer.ask(30, {"topic": "Tx", "queueId": 0}).code == 0
                assert peer.got == [], "an answer for what the master alone has"
            assert [(answer.opaque, answer.code) for answer in (peer.read(), peer.read())] == [
                (command.opaque, 0) for command in asked
            ]
        slave.close()
        eventually(lambda: not master.call(lambda server: server.broker.copies.available))
        end(halves[2], SYS_COMMIT)
        assert peer.read().code == ResponseCode.SLAVE_NOT_AVAILABLE
