"""The broker's settings as RocketMQ's tools read them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fronts.frontside import RemotingSide
from fronts.raw_peer import RawPeer
from penstock.fronts.requests import configuration
from penstock.testing import Broker

EXPORTED = (  # what `mqadmin exportConfigs` of 4.9.8 reads, and throws without
    "brokerClusterName", "brokerId", "brokerName", "brokerRole", "fileReservedTime", "filterServerNums", "flushDiskType",
    "maxMessageSize", "messageDelayLevel", "msgTraceTopicName", "slaveReadEnable", "traceOn", "traceTopicEnable", "useTLS",
    "autoCreateTopicEnable", "autoCreateSubscriptionGroup", "aclEnable",
    "clientCallbackExecutorThreads",  # and exportMetrics
)  # fmt: skip


def test_every_key_that_a_tool_reads_is_there_with_what_is_true(tmp_path: Path) -> None:
    settings = {"level": "disk", "delete_when": 3, "auto_create_topic_enable": False, "broker_name": "broker-x"}
    with Broker(tmp_path, **settings) as broker, RawPeer(broker.remoting) as peer:
        answer = peer.ask(26)
        told = dict(line.split("=", 1) for line in answer.body.decode().splitlines())
        assert told == {
            name: configuration._written(value)
            for name, value in broker.call(lambda server: configuration.properties(server.broker)).items()
        }
        assert "counter" in answer.ext["version"]
    assert set(EXPORTED) <= told.keys()
    assert (told["flushDiskType"], told["deleteWhen"], told["brokerName"]) == ("SYNC_FLUSH", "03", "broker-x")
    assert (told["autoCreateTopicEnable"], told["traceTopicEnable"], told["useTLS"]) == ("false", "true", "false")
    assert (told["maxMessageSize"], told["brokerIP1"]) == ("4194304", "127.0.0.1")
    assert told["storePathCommitLog"] == str(tmp_path / "commitlog")
    assert Path(told["storePathRootDir"], "commitlog").is_dir()


def test_whether_there_are_users(tmp_path: Path) -> None:
    side = RemotingSide(tmp_path)
    assert [configuration.properties(side.broker, users)["aclEnable"] for users in (False, True)] == [False, True]
    side.close()


@pytest.mark.parametrize(
    ("given", "told"),
    [({}, False), ({"tls_cert": "c.pem"}, True), ({"tls_cert": "c.pem", "remoting_tls": "off"}, False)],
)
def test_whether_the_port_speaks_tls(tmp_path: Path, given: dict[str, str], told: bool) -> None:
    side = RemotingSide(tmp_path, **given)
    assert configuration.properties(side.broker)["useTLS"] is told
    side.close()
