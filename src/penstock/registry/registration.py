"""Reading what a broker registers: header fields and body, plain or zlib, checked whole before anything is taken.

compressed:  int32 n, DataVersion JSON | int32 topics, each int32 n, "topic readQ writeQ perm filterType" |
             int32 n, filter servers JSON

A plain body may have a field of ours: {"nsq": {"address": "host:port", "topics": ["a queue topic", …]}}, or, instead of all
topics, {"changes": {"a new one": true, "one that is gone": false}}.
"""

from __future__ import annotations

import re
import socket

from isal import isal_zlib

from penstock.errors import Refused, WireError
from penstock.registry.routes import Registration, TopicQueues, Version
from penstock.wire.codes import Fields
from penstock.wire.fastjson import JsonObject, loads
from penstock.wire.layout import CRC_MASK

BODY_BYTES_MAX = 64 << 20  # after decompression
TOPICS_MAX = 65_536
QUEUES_MAX = 65_536
NAME_BYTES_MAX = 255

_TOPIC = re.compile(r"[%|a-zA-Z0-9_-]{1,255}")
_NAME = re.compile(r"[%|a-zA-Z0-9_.-]{1,255}")
_NSQ_TOPIC = re.compile(r"[.a-zA-Z0-9_-]{1,64}(?:#[a-z]{1,16})?")
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]{2,45}\]|[a-zA-Z0-9_.-]{1,255}):([1-9][0-9]{0,4})")


def read_registration(fields: Fields, body: bytes) -> Registration:
    """The registration in a request. Refused (code 1) for anything that cannot be right."""
    broker, address, cluster = fields["brokerName"], fields["brokerAddr"], fields["clusterName"]
    for name in (broker, cluster):
        if not _NAME.fullmatch(name):
            raise Refused("broker and cluster names hold letters, digits and %|_.- only")
    check_address(address)
    if fields["haServerAddr"]:
        check_address(fields["haServerAddr"])
    if fields["brokerId"] < 0 or (fields["epoch"] or 0) < 0:
        raise Refused("brokerId or epoch is negative")
    if fields["bodyCrc32"] and (isal_zlib.crc32(body) ^ fields["bodyCrc32"]) & CRC_MASK:  # Java's sum has 31 bits
        raise Refused("crc32 not match")
    nsq_address, nsq_topics, nsq_changes = _NO_NSQ
    if fields["compressed"]:
        version, topics = _read_compressed(body)
    else:
        value = _read_object(body)
        version, topics = _read_plain(value)
        nsq_address, nsq_topics, nsq_changes = _read_nsq(value)
    if len(topics) > TOPICS_MAX:
        raise Refused(f"{len(topics)} topics, at most {TOPICS_MAX}")
    for topic in topics:
        if not _TOPIC.fullmatch(topic) and topic not in (broker, cluster):
            raise Refused("a topic name holds letters, digits and %|_- only")
    return Registration(
        broker, address, cluster, fields["brokerId"], fields["haServerAddr"], version, topics, nsq_address, nsq_topics,
        nsq_changes, fields["epoch"] or 0,
    )  # fmt: skip


def read_queues(topic: str, value: object) -> dict[str, TopicQueues]:
    """By broker what the queueDatas of a route say of a topic. Refused for anything that cannot be right."""
    if not _TOPIC.fullmatch(topic):
        raise Refused("a topic name holds letters, digits and %|_- only")
    if not isinstance(value, list) or not all(isinstance(queues, dict) for queues in value):
        raise Refused("queueDatas is no list of queues")
    return {
        str(queues.get("brokerName")): _queues(
            _int(queues, "readQueueNums"),
            _int(queues, "writeQueueNums"),
            _int(queues, "perm"),
            _int(queues, "topicSysFlag"),
        )
        for queues in value
    }


def check_address(address: str) -> None:
    """Refused unless it is host:port with a port that can be connected to."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[1]) > 65_535:
        raise Refused("a broker's address is host:port")


def is_local_host(host: str) -> bool:
    """Whether an address, without its port, is one of this machine's: only those can be bound."""
    host = host.strip("[]")
    if host == "localhost":
        return True
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            socket.inet_pton(probe.family, host)  # a name would be looked up, which may take its time
            probe.bind((host, 0))
        except OSError:
            return False
    return True


def read_version(body: bytes) -> Version:
    """The DataVersion in a body. Refused when it is none."""
    try:
        return _version(loads(body))
    except WireError:
        raise Refused("the body is no data version") from None


def _version(value: object) -> Version:
    if not isinstance(value, dict):
        raise Refused("the body holds no data version")
    return _int(value, "timestamp"), _int(value, "counter"), _int(value, "stateVersion")


def _int(value: dict[str, object], name: str) -> int:
    number = value.get(name, 0)
    if type(number) is not int or not -(2**63) <= number < 2**63:
        raise Refused(f"{name} is not a number")
    return number


def _queues(read: int, write: int, perm: int, sys_flag: int) -> TopicQueues:
    if not (0 <= read <= QUEUES_MAX and 0 <= write <= QUEUES_MAX):
        raise Refused(f"a topic has 0 to {QUEUES_MAX} queues")
    if not (0 <= perm <= 15 and 0 <= sys_flag <= 255):
        raise Refused("no such permission or flag of a topic")
    return TopicQueues(read, write, perm, sys_flag)


def _read_object(body: bytes) -> JsonObject:
    """A plain body; nothing is an empty one."""
    try:
        value = loads(body) if body else {}
    except WireError:
        raise Refused("the body is no JSON") from None
    if not isinstance(value, dict):
        raise Refused("the body is no JSON object")
    return value


def _read_plain(value: JsonObject) -> tuple[Version | None, dict[str, TopicQueues]]:
    wrapper = value.get("topicConfigSerializeWrapper")
    if wrapper is None:
        return None, {}
    table = wrapper.get("topicConfigTable") or {} if isinstance(wrapper, dict) else None
    if not isinstance(table, dict):
        raise Refused("the body holds no topic table")
    topics = {}
    alike: dict[tuple[int, int, int, int], TopicQueues] = {}  # of ten thousand topics most are
    for topic, config in table.items():
        if not isinstance(config, dict):
            raise Refused("the body holds no topic table")
        read, write = config.get("readQueueNums", 16), config.get("writeQueueNums", 16)
        perm, flag = config.get("perm", 6), config.get("topicSysFlag", 0)
        # To a dictionary 4.0 is 4, and true is 1.
        whole = type(read) is type(write) is type(perm) is type(flag) is int
        queues = alike.get((read, write, perm, flag)) if whole else None
        if queues is None:
            config = {"readQueueNums": read, "writeQueueNums": write, "perm": perm, "topicSysFlag": flag}
            queues = _queues(*[_int(config, name) for name in config])
            alike[read, write, perm, flag] = queues
        topics[topic] = queues
    version = wrapper.get("dataVersion")
    return (None if version is None else _version(version)), topics


_Nsq = tuple[str, frozenset[str] | None, dict[str, bool]]
_NO_NSQ: _Nsq = ("", frozenset(), {})


def _read_nsq(value: JsonObject) -> _Nsq:
    """The NSQ address that our brokers add, their queue topics (None where only changes are told), and the changes: whether
    each is there now. Empty when there are none.
    """
    side = value.get("nsq")
    if side is None:
        return _NO_NSQ
    if not isinstance(side, dict):
        raise Refused("nsq holds an address and a list of topics")
    address, changes = side.get("address"), side.get("changes") or {}
    whole = "topics" in side or not changes
    names = side.get("topics") if whole else list(changes)
    if not isinstance(address, str) or not isinstance(names, list) or len(names) > TOPICS_MAX:
        raise Refused("nsq holds an address and a list of topics")
    if not isinstance(changes, dict) or not all(isinstance(there, bool) for there in changes.values()):
        raise Refused("nsq holds an address and which topics came and went")
    check_address(address)
    if not all(isinstance(topic, str) and _NSQ_TOPIC.fullmatch(topic) for topic in names):
        raise Refused("a queue topic's name holds letters, digits and ._- only")
    return address, frozenset(names) if whole else None, {} if whole else changes


def _read_compressed(body: bytes) -> tuple[Version | None, dict[str, TopicQueues]]:
    opener = isal_zlib.decompressobj()
    try:
        data: bytes = opener.decompress(body, BODY_BYTES_MAX + 1)
    except isal_zlib.error:  # type: ignore[misc]
        raise Refused("the body is not zlib") from None
    if len(data) > BODY_BYTES_MAX or not opener.eof:
        raise Refused("the body is cut short or expands too far")
    raw, at = _piece(data, 0)
    version = read_version(raw)
    count = int.from_bytes(data[at : at + 4], "big")
    if count > TOPICS_MAX:
        raise Refused(f"{count} topics, at most {TOPICS_MAX}")
    at += 4
    topics = {}
    for _ in range(count):
        raw, at = _piece(data, at)
        words = raw.decode("utf-8", "replace").split(" ")
        if len(words) < 5 or not all(w.isascii() and w.isdigit() and len(w) < 10 for w in words[1:4]):
            raise Refused("a topic's line is not: name readQ writeQ perm filterType")
        topics[words[0]] = _queues(int(words[1]), int(words[2]), int(words[3]), 0)
    return version, topics


def _piece(data: bytes, at: int) -> tuple[bytes, int]:
    size = int.from_bytes(data[at : at + 4], "big")
    end = at + 4 + size
    if len(data) < at + 4 or end > len(data):
        raise Refused("the body is cut short")
    return data[at + 4 : end], end
