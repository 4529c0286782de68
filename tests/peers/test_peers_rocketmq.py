"""RocketMQ 4.9.7 itself: Spark reads its folder, each broker goes on with the other's, its Java client works with ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from spark_bulk import read

from certificates import Certificate
from peers.conftest import Lines
from peers.rocketmq_broker import SEGMENT_BYTES, Installed, Rocketmq
from penstock import Admin, Message, Producer, PullConsumer
from penstock.spark import schema
from penstock.spark.pipelines import audit, reindex
from penstock.testing import Broker

DELAYS = " ".join(["1s"] * 18)
SIZES: dict[str, Any] = {
    "mapped_file_size_commit_log": SEGMENT_BYTES, "mapped_file_size_consume_queue": 6000, "max_hash_slot_num": 500,
    "max_index_num": 2000, "message_delay_level": DELAYS,
}  # fmt: skip
COUNT = 1500
ROLLED_BACK = 75  # of 1,500
TOPIC = "Peer"


@pytest.fixture(scope="session")
def installed() -> Installed:
    return Installed()


@pytest.fixture(scope="module", params=["127.0.0.1", "::1"])
def theirs(request: pytest.FixtureRequest, installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(the store folder RocketMQ left, what its client sent, what its client read), over IPv4 and IPv6."""
    with Rocketmq(installed, tmp_path_factory.mktemp("rocketmq"), host=request.param) as broker:
        sent = broker.send(TOPIC, COUNT)
        got = broker.read(TOPIC)
        for _ in range(20):  # messages of delay level 1 come a second later
            if len(got) == COUNT - ROLLED_BACK:
                break
            got = broker.read(TOPIC)
    return broker.store, sent, got


def plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row of the bulk reader in the words of the Java client."""
    born, _, _ = row["bornHost"].rpartition(":")
    properties = dict(row["properties"])
    return {
        "queue": row["partition"], "offset": row["offset"], "id": row["msgId"], "physical": row["physicalOffset"],
        "size": row["size"], "born": born, "store": row["storeHost"], "stored": row["timestamp"] // 1000,
        "sysFlag": row["sysFlag"], "flag": row["flag"], "crc": crc32(row["value"]), "length": len(row["value"]),
        "keys": " ".join(row["keys"]), "tags": row["tags"], "origin": properties.get("origin"),
    }  # fmt: skip


def ordered(lines: Lines) -> Lines:
    return sorted(lines, key=lambda line: (line["queue"], line["offset"]))


def as_we_write_hosts(line: dict[str, Any]) -> dict[str, Any]:
    long = "0:0:0:0:0:0:0:1"
    born = "[::1]" if line["born"] == long else line["born"]
    return {**line, "born": born, "store": line["store"].removeprefix("/").replace(long, "::1")}


@pytest.mark.parametrize("through_queues", ["true", "false"])
@pytest.mark.parametrize("splits", [1, 7])
def test_the_bulk_reader_sees_what_the_java_client_sees(theirs: Any, through_queues: str, splits: int) -> None:
    store, sent, got = theirs
    assert len(list((store / "commitlog").iterdir())) > 2
    rows = read(store, splits, tuple(schema.BY_NAME), topics=TOPIC, verify="crc", useConsumeQueue=through_queues)
    assert ordered([plain(row) for row in rows]) == ordered([as_we_write_hosts(line) for line in got])
    bodies = {int(row["value"].split()[1]): row for row in rows}
    gone = {line["number"] for line in sent if line["how"] == "rolled back"}
    assert len(gone) == ROLLED_BACK
    assert set(range(COUNT)) - set(bodies) == gone
    assert any(row["sysFlag"] & 1 for row in rows), "nothing was compressed"


def test_audit_finds_no_fault(theirs: Any) -> None:
    store, _, got = theirs
    result = audit.run(None, store, message_delay_level=DELAYS)
    assert result.ok
    assert result.findings == []
    assert result.topics[TOPIC][0] == len(got)
    assert result.entries == result.records > COUNT


def test_reindex_makes_its_consume_queues_byte_for_byte(theirs: Any, tmp_path: Path) -> None:
    store, _, _ = theirs
    result = reindex.run(None, store, to=tmp_path, message_delay_level=DELAYS)
    made = {path.relative_to(tmp_path): path.read_bytes() for path in (tmp_path / "consumequeue").rglob("0" * 12 + "*")}
    own = {path.relative_to(store): path.read_bytes() for path in (store / "consumequeue").rglob("0" * 12 + "*")}
    # It makes a queue's next file ahead.
    assert made == {path: data for path, data in own.items() if data.strip(b"\0")}
    assert result.entries > COUNT


def test_both_brokers_go_on_with_each_others_folder(installed: Installed, tmp_path: Path) -> None:
    """RocketMQ, ours, RocketMQ, ours …: each shows its client what is there, and adds to it."""
    theirs = Rocketmq(installed, tmp_path)
    held: Lines = []
    for turn in range(5):
        ours = Broker(theirs.store, broker_name=theirs.name, **SIZES)
        with theirs if turn % 2 == 0 else ours as broker:
            client = installed.client(broker.registry, tmp_path)
            if turn:
                assert ordered(client.run("read", TOPIC)) == held
            sent = client.run("send", TOPIC, 200 + turn)
            assert {line["status"] for line in sent} == {"SEND_OK"}
            visible = sum(line["how"] != "rolled back" for line in sent) + 4 * sum(
                line["how"] == "batch" for line in sent
            )
            for _ in range(20):  # messages of delay level 1 come a second later
                now = ordered(client.run("read", TOPIC))
                if len(now) == len(held) + visible:
                    break
            assert len(now) == len(held) + visible
            assert [line for line in now if line in held] == held
            held = now
        result = audit.run(None, theirs.store, message_delay_level=DELAYS)
        assert [one for one in result.findings if one.level != "note"] == []
        rows = read(theirs.store, 3, tuple(schema.BY_NAME), topics=TOPIC, useConsumeQueue="true")
        assert ordered([plain(row) for row in rows]) == [as_we_write_hosts(line) for line in held]


def test_messages_of_our_batches_keep_their_ids(installed: Installed, tmp_path: Path) -> None:
    with Rocketmq(installed, tmp_path) as theirs, Producer(theirs.registry) as producer:
        sends = [producer.send_nowait(Message(TOPIC, b"n%d" % number)) for number in range(50)]
        batch = producer.send_batch([Message(TOPIC, b"b%d" % number) for number in range(10)])
        sent = {b"n%d" % number: send.result().msg_id for number, send in enumerate(sends)}
        sent |= {b"b%d" % number: msg_id for number, msg_id in enumerate(batch.msg_ids)}
        with Admin(theirs.registry) as admin:
            stored = [admin.message(of).msg_id for of in batch.offset_msg_ids]
        found: dict[bytes, str] = {}
        with PullConsumer(theirs.registry) as consumer:
            consumer.assign(TOPIC, start="first")
            while len(found) < len(sent):
                for messages in consumer.getmany().values():
                    found |= {message.body: message.msg_id for message in messages}
    assert found == sent
    assert stored == list(batch.msg_ids)


def test_request_reply_goes_as_with_the_original(installed: Installed, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    (tmp_path / "ours").mkdir()
    with Rocketmq(installed, tmp_path / "theirs") as theirs:
        expected = installed.client(theirs.registry, tmp_path / "theirs").run("request", "Asked", 20)
    with Broker(tmp_path / "ours" / "data") as ours:
        found = installed.client(ours.registry, tmp_path / "ours").run("request", "Asked", 20)
    assert [line["how"] for line in expected] == 20 * ["sync"] + 20 * ["async"] + ["late"]
    assert sorted(found, key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize("mode", ["optional", "required"])
def test_the_java_client_speaks_tls(
    installed: Installed, tmp_path: Path, server_certificate: Certificate, mode: str
) -> None:
    """As `setUseTLS(true)` does, with its default of trusting anybody; in the mode that RocketMQ calls permissive a plain
    client works beside it.
    """
    modes = {"remoting_tls": mode, "registry_tls": mode}
    with Broker(tmp_path / "data", **server_certificate.settings, **modes, **SIZES) as ours:
        clients = [installed.client(ours.registry, tmp_path, "-Dtls.enable=true")]
        if mode == "optional":
            clients.append(installed.client(ours.registry, tmp_path))
        for number, client in enumerate(clients):
            topic = f"{TOPIC}{number}"
            sent = client.run("send", topic, 200)
            assert {line["status"] for line in sent} == {"SEND_OK"}
            shaken = ours.call(lambda server: server.net.handshakes["done"])
            assert client.run("read", topic)
            assert (ours.call(lambda server: server.net.handshakes["done"]) > shaken) is (number == 0)
