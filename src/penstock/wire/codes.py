"""RocketMQ's numbers: request and response codes, languages, flags, and each request's header fields as data.

A field is written as in the protocol page: name, a colon, a type (``s`` text, ``i`` 32-bit, ``l`` 64-bit, ``b``
boolean), and ``!`` when it must be there. `read_fields` turns ext fields into values by that table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import cache
from typing import Any, Final, NamedTuple

from penstock import words
from penstock.errors import Refused
from penstock.wire import layout, names

Fields = dict[str, Any]  # by name, each of the type that its header's table says


class LanguageCode(IntEnum):
    """Who wrote the peer; the names are the JSON header's."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12


class RequestCode(IntEnum):
    """What a request asks for."""

    SEND_MESSAGE = words.SEND_MESSAGE
    PULL_MESSAGE = words.PULL_MESSAGE
    QUERY_MESSAGE = 12
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTIONGROUP = 207
    GET_CONSUME_STATS = 208
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = words.SEND_MESSAGE_V2
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = words.SEND_BATCH_MESSAGE
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    QUERY_TOPICS_BY_CONSUMER = 343
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTIONGROUP_CONFIG = 352
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353
    LITE_PULL_MESSAGE = words.LITE_PULL_MESSAGE
    SET_MESSAGE_REQUEST_MODE = 401
    # Ours, where RocketMQ has none: staged writes (docs/protocol.md).
    STAGE_OPEN = 77_001
    STAGE_APPEND = 77_002
    STAGE_SEAL = 77_003
    STAGE_PUBLISH = 77_004
    STAGE_DROP = 77_005
    # Ours, too: delayed messages and queue topics for the tools.
    DELAYED_LIST = 77_011
    DELAYED_COUNT = 77_012
    DELAYED_CANCEL = 77_013
    DELAYED_FIRE = 77_014
    QUEUE_TOPICS = 77_021
    QUEUE_CHANGE = 77_022
    BROWSE = 77_023
    TOPIC_PURGE = 77_024
    CLIENTS = 77_025
    CONFIG_RELOAD = 77_026
    DEAD_REDRIVE = 77_027
    CLIENT_DISCONNECT = 77_028
    TOPIC_KEEP = 77_029
    TOPIC_CONVERT = 77_030
    # And the roles of a replica set.
    HA_PROMOTE = 77_031
    HA_SWITCH = 77_032
    HA_PAUSE = 77_033
    HA_FORGET = 77_034


class ResponseCode(IntEnum):
    """What an answer says."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOWN = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    UPDATE_AND_CREATE_ACL_CONFIG_FAILED = 209
    DELETE_ACL_CONFIG_FAILED = 210
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED = 211
    FLOW_CONTROL = 215
    STAGE_STALE = 77_001
    STAGE_LOST = 77_002
    STAGE_GAP = 77_003
    STAGE_FULL = 77_004
    STAGE_OTHER_QUERY = 77_005
    SEQUENCE_TOO_OLD = 77_006


# permissions of a topic
PERM_INHERIT: Final = 1
PERM_WRITE: Final = words.PERM_WRITE
PERM_READ: Final = words.PERM_READ

# sysFlag of a message
SYS_COMPRESSED: Final = layout.SYS_COMPRESSED
SYS_MULTI_TAGS: Final = 0x2
SYS_PREPARED: Final = layout.SYS_HALF
SYS_COMMIT: Final = 0x8
SYS_ROLLBACK: Final = layout.SYS_TRANSACTION
SYS_BORN_IPV6: Final = layout.SYS_BORN_IPV6
SYS_STORE_IPV6: Final = layout.SYS_STORE_IPV6
SYS_COMPRESSION_SHIFT: Final = 8  # three bits: 0 and 3 zlib, 1 LZ4, 2 ZSTD

# sysFlag of a pull
PULL_COMMIT_OFFSET: Final = words.PULL_COMMIT_OFFSET
PULL_SUSPEND: Final = words.PULL_SUSPEND
PULL_SUBSCRIPTION: Final = words.PULL_SUBSCRIPTION
PULL_CLASS_FILTER: Final = 0x8
PULL_LITE: Final = 0x10

MASTER_ID: Final = 0
DEFAULT_TOPIC: Final = names.TEMPLATE_TOPIC.decode()
RETRY_PREFIX: Final = names.RETRY_PREFIX.decode()
DLQ_PREFIX: Final = names.DEAD_PREFIX.decode()
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


class HeaderField(NamedTuple):
    """One ext field of a request: its name, its type letter, and whether it must be there."""

    name: str
    kind: str
    required: bool


_SEND = (
    "producerGroup:s! topic:s! defaultTopic:s! defaultTopicQueueNums:i! queueId:i! sysFlag:i! bornTimestamp:l! flag:i! "
    "properties:s reconsumeTimes:i unitMode:b batch:b maxReconsumeTimes:i bname:s"
)
_SEND_V2 = "a:s! b:s! c:s! d:i! e:i! f:i! g:l! h:i! i:s j:i k:b l:i m:b n:s"
# the long name of each letter of the V2 send header
SEND_V2_NAMES: Final = {
    "a": "producerGroup",
    "b": "topic",
    "c": "defaultTopic",
    "d": "defaultTopicQueueNums",
    "e": "queueId",
    "f": "sysFlag",
    "g": "bornTimestamp",
    "h": "flag",
    "i": "properties",
    "j": "reconsumeTimes",
    "k": "unitMode",
    "l": "maxReconsumeTimes",
    "m": "batch",
    "n": "bname",
}
_PULL = (
    "consumerGroup:s! topic:s! queueId:i! queueOffset:l! maxMsgNums:i! sysFlag:i! commitOffset:l! "
    "suspendTimeoutMillis:l! subscription:s subVersion:l! expressionType:s durable:b maxBytes:i"
)
_BROKER = "brokerName:s! brokerAddr:s! clusterName:s! brokerId:l!"

HEADER_TEXTS: Final[dict[RequestCode, str]] = {
    RequestCode.SEND_MESSAGE: _SEND,
    RequestCode.SEND_MESSAGE_V2: _SEND_V2,
    RequestCode.SEND_BATCH_MESSAGE: _SEND_V2,
    RequestCode.SEND_REPLY_MESSAGE: _SEND,
    RequestCode.SEND_REPLY_MESSAGE_V2: _SEND_V2,
    RequestCode.PULL_MESSAGE: _PULL,
    RequestCode.LITE_PULL_MESSAGE: _PULL,
    RequestCode.QUERY_MESSAGE: "topic:s! key:s! maxNum:i! beginTimestamp:l! endTimestamp:l! _UNIQUE_KEY_QUERY:b",
    RequestCode.QUERY_CONSUMER_OFFSET: "consumerGroup:s! topic:s! queueId:i! setZeroIfNotFound:b",
    RequestCode.UPDATE_CONSUMER_OFFSET: "consumerGroup:s! topic:s! queueId:i! commitOffset:l!",
    RequestCode.UPDATE_AND_CREATE_TOPIC: (
        "topic:s! defaultTopic:s! readQueueNums:i! writeQueueNums:i! perm:i! topicFilterType:s! topicSysFlag:i order:b"
    ),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: "topic:s! queueId:i! timestamp:l! boundaryType:s",
    RequestCode.GET_MAX_OFFSET: "topic:s! queueId:i! durable:b",
    RequestCode.GET_MIN_OFFSET: "topic:s! queueId:i!",
    RequestCode.GET_EARLIEST_MSG_STORETIME: "topic:s! queueId:i!",
    RequestCode.VIEW_MESSAGE_BY_ID: "offset:l!",
    RequestCode.HEART_BEAT: "",
    RequestCode.UNREGISTER_CLIENT: "clientID:s! producerGroup:s consumerGroup:s",
    RequestCode.CONSUMER_SEND_MSG_BACK: (
        "offset:l! group:s! delayLevel:i! originMsgId:s originTopic:s unitMode:b maxReconsumeTimes:i delayMillis:l "
        "reason:s"
    ),
    RequestCode.END_TRANSACTION: (
        "producerGroup:s! tranStateTableOffset:l! commitLogOffset:l! commitOrRollback:i! fromTransactionCheck:b "
        "msgId:s! transactionId:s"
    ),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: "consumerGroup:s!",
    RequestCode.CHECK_TRANSACTION_STATE: (
        "tranStateTableOffset:l! commitLogOffset:l! msgId:s transactionId:s offsetMsgId:s"
    ),
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: "consumerGroup:s!",
    RequestCode.LOCK_BATCH_MQ: "",
    RequestCode.UNLOCK_BATCH_MQ: "",
    RequestCode.CHECK_CLIENT_CONFIG: "",
    RequestCode.GET_ALL_TOPIC_CONFIG: "",
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: "",
    RequestCode.GET_ALL_CONSUMER_OFFSET: "",
    RequestCode.GET_ALL_DELAY_OFFSET: "",
    RequestCode.UPDATE_BROKER_CONFIG: "",
    RequestCode.GET_BROKER_CONFIG: "",
    RequestCode.GET_BROKER_RUNTIME_INFO: "",
    RequestCode.PUT_KV_CONFIG: "namespace:s! key:s! value:s!",
    RequestCode.GET_KV_CONFIG: "namespace:s! key:s!",
    RequestCode.DELETE_KV_CONFIG: "namespace:s! key:s!",
    RequestCode.GET_KVLIST_BY_NAMESPACE: "namespace:s!",
    RequestCode.REGISTER_BROKER: _BROKER + " haServerAddr:s! compressed:b bodyCrc32:i epoch:i",
    RequestCode.UNREGISTER_BROKER: _BROKER,
    RequestCode.QUERY_DATA_VERSION: _BROKER,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: "topic:s! acceptStandardJsonOnly:b",
    RequestCode.GET_BROKER_CLUSTER_INFO: "",
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: "",
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: "brokerName:s!",
    RequestCode.ADD_WRITE_PERM_OF_BROKER: "brokerName:s!",
    RequestCode.DELETE_TOPIC_IN_NAMESRV: "topic:s! clusterName:s",
    RequestCode.GET_TOPICS_BY_CLUSTER: "cluster:s!",
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: "",
    RequestCode.GET_UNIT_TOPIC_LIST: "",
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: "",
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: "",
    RequestCode.UPDATE_NAMESRV_CONFIG: "",
    RequestCode.GET_NAMESRV_CONFIG: "",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "",
    RequestCode.DELETE_SUBSCRIPTIONGROUP: "groupName:s! removeOffset:b",
    RequestCode.DELETE_TOPIC_IN_BROKER: "topic:s!",
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: "",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "",
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: "topic:s!",
    RequestCode.RESUME_CHECK_HALF_MESSAGE: "msgId:s!",
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: "group:s! topic:s!",
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: "group:s! topic:s! readable:b",
    RequestCode.SET_MESSAGE_REQUEST_MODE: "",
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: "",
    RequestCode.GET_TOPIC_STATS_INFO: "topic:s!",
    RequestCode.GET_CONSUME_STATS: "consumerGroup:s! topic:s",
    RequestCode.GET_CONSUMER_CONNECTION_LIST: "consumerGroup:s!",
    RequestCode.GET_PRODUCER_CONNECTION_LIST: "producerGroup:s!",
    RequestCode.GET_ALL_PRODUCER_INFO: "",
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: "topic:s!",
    RequestCode.QUERY_TOPICS_BY_CONSUMER: "group:s!",
    RequestCode.QUERY_CONSUME_TIME_SPAN: "topic:s! group:s!",
    RequestCode.GET_BROKER_CONSUME_STATS: "isOrder:b!",
    RequestCode.VIEW_BROKER_STATS_DATA: "statsName:s! statsKey:s!",
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "topic:s! group:s! timestamp:l! isForce:b!",
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: "topic:s! group:s! timestamp:l! isForce:b!",
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: "topic:s! group:s! clientAddr:s",
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: "topic:s! group:s! clientAddr:s",
    RequestCode.GET_CONSUMER_RUNNING_INFO: "consumerGroup:s! clientId:s! jstackEnable:b",
    RequestCode.CONSUME_MESSAGE_DIRECTLY: "consumerGroup:s! clientId:s msgId:s brokerName:s",
    RequestCode.QUERY_CORRECTION_OFFSET: "filterGroups:s compareGroup:s! topic:s!",
    RequestCode.CLONE_GROUP_OFFSET: "srcGroup:s! destGroup:s! topic:s offline:b",
    RequestCode.QUERY_CONSUME_QUEUE: "topic:s! queueId:i! index:l! count:i! consumerGroup:s",
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: "",
    RequestCode.CLEAN_UNUSED_TOPIC: "",
    RequestCode.DELETE_EXPIRED_COMMITLOG: "",
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: (
        _SEND.replace("sysFlag:i!", "sysFlag:i! bornHost:s! storeHost:s! storeTimestamp:l!")
    ),
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: (
        "accessKey:s! secretKey:s whiteRemoteAddress:s admin:b defaultTopicPerm:s defaultGroupPerm:s topicPerms:s "
        "groupPerms:s"
    ),
    RequestCode.DELETE_ACL_CONFIG: "accessKey:s!",
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO: "",
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG: "",
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: "globalWhiteAddrs:s! aclFileFullPath:s",
    RequestCode.GET_TOPIC_CONFIG: "topic:s!",
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: "group:s!",
    RequestCode.STAGE_OPEN: "sink:s! query:s! run:s! coordinator:s token:s batch:l reset:b once:b",
    RequestCode.STAGE_APPEND: "token:s! number:l!",
    RequestCode.STAGE_SEAL: "token:s! rows:l! bytes:l! sums:l! level:s",
    RequestCode.STAGE_PUBLISH: "sink:s! query:s! run:s! coordinator:s! batch:l! reset:b once:b",
    RequestCode.STAGE_DROP: "sink:s! run:s!",
    RequestCode.DELAYED_LIST: "topic:s channel:s text:s key:s after:s limit:i",
    RequestCode.DELAYED_COUNT: "edges:s! topic:s channel:s after:s",
    RequestCode.DELAYED_CANCEL: "id:l!",
    RequestCode.DELAYED_FIRE: "id:l due:l move:l",
    RequestCode.QUEUE_TOPICS: "topic:s after:s",
    RequestCode.QUEUE_CHANGE: "action:s! topic:s! channel:s level:s",
    RequestCode.HA_PROMOTE: "acceptLoss:b",
    RequestCode.HA_SWITCH: "node:s",
    RequestCode.HA_PAUSE: "paused:b!",
    RequestCode.HA_FORGET: "node:s! dryRun:b",
    RequestCode.BROWSE: "topic:s! channel:s state:s from:s key:s queue:i limit:i after:s bodyBytes:i bodyFrom:i",
    RequestCode.TOPIC_PURGE: "topic:s! to:s! queue:i dryRun:b",
    RequestCode.DEAD_REDRIVE: "topic:s! channel:s to:s text:s id:s limit:i after:s dryRun:b",
    RequestCode.CLIENT_DISCONNECT: "address:s!",
    RequestCode.TOPIC_CONVERT: "topic:s! kind:s! dryRun:b",
    RequestCode.TOPIC_KEEP: "topic:s! retentionMs:l retentionBytes:l trace:b",
    RequestCode.CLIENTS: "after:s",
    RequestCode.CONFIG_RELOAD: "",
}


@cache
def header_fields(code: int) -> tuple[HeaderField, ...]:
    """The ext fields of a request. Read from the text when the first such request comes: a start does not wait for it."""
    return tuple(
        HeaderField(name, kind.rstrip("!"), kind.endswith("!"))
        for name, _, kind in (word.partition(":") for word in HEADER_TEXTS[RequestCode(code)].split())
    )


_BITS = {"i": 31, "l": 63}


def read_int(name: str, text: str, bits: int = 63) -> int:
    """The decimal integer in an ext field. Refused when it is none; Python's `int` also takes ``1_0``, `` 5``."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
        raise Refused(f"{name} is not a number")
    value = int(text)
    if not -(1 << bits) <= value < 1 << bits:
        raise Refused(f"{name} is out of range")
    return value


def read_fields(code: int, ext: Mapping[str, str]) -> Fields:
    """The header of a request with this code: text, int or bool by name, None where an optional field is absent.

    Refused (code 1) when a required field is missing or a number is not one. Fields not in the table are left out.
    """
    values: Fields = {}
    for name, kind, required in header_fields(code):
        text = ext.get(name)
        if text is None:
            if required:
                raise Refused(f"the custom field <{name}> is null")
            values[name] = None
        elif kind == "s":
            values[name] = text
        elif kind == "b":
            values[name] = text.lower() == "true"
        else:
            values[name] = read_int(name, text, _BITS[kind])
    return values
