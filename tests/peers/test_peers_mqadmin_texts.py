"""Each command of mqadmin 4.9.8 prints of our broker what it prints of RocketMQ's own, but for what `DIFFERENT` explains."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from peers.conftest import Lines
from peers.rocketmq_broker import QUIET, Installed, Rocketmq
from penstock import Admin
from penstock.testing import Broker
from polling import eventually

VERSION = "4.9.8"
DELAYS = " ".join(["1s"] * 18)

# ADDR: the broker; FOLDER: a folder for exports. They run in this order, over what the flows "looking" and "retry" left.
COMMANDS = """
clusterList
topicList
topicList -c
topicRoute -t Looked
topicRoute -t NoSuch
topicRoute -t Looked -l
topicStatus -t Looked
topicStatus -t NoSuch
topicClusterList -t Looked
updateTopic -b ADDR -t Made -r 3 -w 3
updateTopic -c DefaultCluster -t Made2 -r 2 -w 2
updateTopic -b ADDR -t bad!name -r 3 -w 3
topicRoute -t Made
updateTopicPerm -t Made -p 4
updateTopicPerm -b ADDR -t Made -p 6
updateTopicPerm -t Made -p 9
deleteTopic -c DefaultCluster -t Made2
deleteTopic -c DefaultCluster -t NoSuch
topicRoute -t Made2
updateSubGroup -b ADDR -g MadeGroup -s true -m false -d true -q 1 -r 5
getConsumerConfig -g MadeGroup
getConsumerConfig -g NoGroup
deleteSubGroup -b ADDR -g MadeGroup
deleteSubGroup -b ADDR -g NoGroup
brokerStatus -b ADDR
queryMsgByKey -t Looked -k key-2
queryMsgByKey -t Looked -k none
queryMsgById -i 7F00000100002A9F0000000000000000
queryMsgByUniqueKey -t Looked -i 7F0000010000000000000000DEADBEEF
queryMsgByOffset -t Looked -b broker-a -i 0 -o 1
queryMsgByOffset -t Looked -b broker-a -i 0 -o 999
queryMsgTraceById -i 7F0000010000000000000000DEADBEEF
printMsg -t Looked -d true
printMsgByQueue -t Looked -a broker-a -i 0 -p true
printMsgByQueue -t Looked -a broker-a -i 0 -f true
sendMsgStatus -b broker-a -s 10 -c 2
brokerConsumeStats -b ADDR
brokerConsumeStats -b ADDR -o true
producerConnection -g looking -t Looked
consumerConnection -g retry-Retried
consumerProgress
consumerProgress -g retry-Retried
consumerProgress -g NoGroup
consumerStatus -g retry-Retried
cloneGroupOffset -s retry-Retried -d cloned -t Retried
consumerProgress -g cloned
producer -b ADDR
updateKvConfig -s Space -k Key -v Value
deleteKvConfig -s Space -k Key
wipeWritePerm -b broker-a
topicRoute -t Looked
addWritePerm -b broker-a
topicRoute -t Looked
resetOffsetByTime -g retry-Retried -t Retried -s 0
resetOffsetByTime -g retry-Retried -t Retried -s now -f false
resetOffsetByTime -g NoGroup -t Retried -s -1
skipAccumulatedMessage -g retry-Retried -t Retried
consumerProgress -g retry-Retried
updateOrderConf -t Looked -m put -v broker-a:4
updateOrderConf -t Looked -m get
topicRoute -t Looked
updateOrderConf -t Looked -m delete
updateOrderConf -t Looked -m get
cleanExpiredCQ -b ADDR
cleanUnusedTopic -b ADDR
deleteExpiredCommitLog -b ADDR
statsAll -a
allocateMQ -t Looked -i 10.0.0.1,10.0.0.2
checkMsgSendRT -t Looked -a 3 -s 10
getNamesrvConfig
updateNamesrvConfig -k serverWorkerThreads -v 8
getBrokerConfig -b ADDR
updateBrokerConfig -b ADDR -k brokerPermission -v 6
queryCq -t Looked -q 0 -i 0 -c 3
queryCq -t Looked -q 0 -i 0 -b ADDR
queryCq -t Looked -q 9 -i 0 -b ADDR
sendMessage -t Looked -p hello -b broker-a -i 1
sendMessage -t Looked -p hello -k key-s -c TagS
consumeMessage -t Looked -b broker-a -i 0 -c 3
consumeMessage -t Looked -b broker-a -i 0 -o 2 -c 2
updateAclConfig -b ADDR -a RocketMQ1 -s 12345678 -i DENY -u SUB -m false
clusterAclConfigVersion -b ADDR
deleteAclConfig -b ADDR -a RocketMQ1
updateGlobalWhiteAddr -b ADDR -g 10.10.154.1
exportMetadata -c DefaultCluster -f FOLDER
exportConfigs -c DefaultCluster -f FOLDER
exportMetrics -c DefaultCluster -f FOLDER
"""

# What differs, and why. Each must differ: one that has become the same belongs here no longer.
DIFFERENT = {
    "clusterList": "we say V4_9_8, and how full our disk is without what is kept for root",
    "topicList": "the topic of transactions that were given up is there from the start; a set in no order",
    "topicList -c": "the same",
    "brokerStatus -b ADDR": "versions, rates and times; the offset of each delay level is told, also of those not used",
    "sendMsgStatus -b broker-a -s 10 -c 2": "times",
    "sendMessage -t Looked -p hello -k key-s -c TagS": "the client chooses a queue by chance",
    "wipeWritePerm -b broker-a": "the number of topics",
    "addWritePerm -b broker-a": "the number of topics",
    "statsAll -a": "rates",
    "checkMsgSendRT -t Looked -a 3 -s 10": "times",
    "getNamesrvConfig": "its settings are those of docs/settings.md; of RocketMQ's names kvConfigPath means something",
    "updateNamesrvConfig -k serverWorkerThreads -v 8": "settings are changed from the network by an administrator only",
    "getBrokerConfig -b ADDR": "the settings that mean something here, with true values",
    "updateBrokerConfig -b ADDR -k brokerPermission -v 6": "settings are changed from the network by an administrator only",
    "updateAclConfig -b ADDR -a RocketMQ1 -s 12345678 -i DENY -u SUB -m false": "a NullPointerException there",
    "clusterAclConfigVersion -b ADDR": "no answer there without ACL",
    "deleteAclConfig -b ADDR -a RocketMQ1": "a NullPointerException there",
    "updateGlobalWhiteAddr -b ADDR -g 10.10.154.1": "a NullPointerException there",
}
MAY_DIFFER = {
    "checkMsgSendRT -t Looked -a 3 -s 10", "sendMessage -t Looked -p hello -k key-s -c TagS", "statsAll -a",
    "sendMsgStatus -b broker-a -s 10 -c 2",
}  # fmt: skip

NEVER_THE_SAME = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d([,.]\d+)?", "TIME"),
    (r"\b[0-9A-F]{32,64}\b", "ID"),
    (r"127\.0\.0\.1:\d+", "HOST"),
    (r"\b1[6-9]\d{11}\b", "MS"),
    (r"Consume TPS: [\d.]+", "Consume TPS"),
    (r"[ \t]+", " "),
)


def told_by(broker: Rocketmq | Broker, address: str, folder: Path) -> dict[str, list[str]]:
    """What each command prints, without what is never the same."""
    with Admin(broker.registry) as admin:
        for topic in ("Looked", "Retried"):
            admin.create_topic(topic, 4)
            eventually(lambda topic=topic: topic in admin.topics(system=True))
    flows = Installed("RocketmqFlows", ("rocketmq-client",), VERSION)
    flows.client(broker.registry, folder).run("looking", "Looked")
    flows.client(broker.registry, folder).run("retry", "Retried")
    (folder / "conf").mkdir()
    (folder / "conf" / "logback_tools.xml").write_text(QUIET)
    commands = COMMANDS.split("\n")[1:-1]
    script = folder / "commands"
    words = [command.replace("ADDR", address).replace("FOLDER", str(folder)).split() for command in commands]
    script.write_text("".join("\t".join([*line, "-n", broker.registry]) + "\n" for line in words))
    tools = Installed("RocketmqCommands", ("rocketmq-tools",), VERSION).client(broker.registry, folder)
    told: Lines = tools.run("run", script)
    assert len(told) == len(commands), f"it ended at {commands[len(told)]}"
    found: dict[str, list[str]] = {}
    for command, one in zip(commands, told, strict=True):
        text = base64.b64decode(one["text"]).decode().replace(address, "ADDR").replace(broker.registry, "REGISTRY")
        text = text.replace(str(folder), "FOLDER")
        for pattern, word in NEVER_THE_SAME:
            text = re.sub(pattern, word, text)
        lines = [line.strip() for line in text.splitlines() if not line.strip().startswith("at ")]
        found.setdefault(command, []).extend(lines)
    return found


def test_each_command_prints_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.mkdir()
    monkeypatch.setenv("ROCKETMQ_HOME", str(theirs))
    with Rocketmq(Installed(), theirs, enablePropertyFilter="true", traceTopicEnable="true") as original:
        expected = told_by(original, original.address, theirs)
    monkeypatch.setenv("ROCKETMQ_HOME", str(ours))
    with Broker(ours / "data", message_delay_level=DELAYS) as broker:
        found = told_by(broker, broker.remoting, ours)
    different = {command for command in expected if found[command] != expected[command]}
    for command in sorted(different - set(DIFFERENT)):
        assert found[command] == expected[command], command
    assert set(DIFFERENT) - MAY_DIFFER <= different, "these are the same by now"
