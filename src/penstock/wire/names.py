"""Names that the protocols and the log share, once each: topics of the system, prefixes, suffixes, property names.

As bytes where topics are handled; what speaks text decodes them.
"""

from __future__ import annotations

from typing import Final

from penstock.message import KEYS as KEYS
from penstock.message import SHARDING_KEY as SHARDING_KEY
from penstock.message import TAGS as TAGS
from penstock.message import UNIQUE_KEY as UNIQUE_KEY

# Topics
SCHEDULE_TOPIC: Final = b"SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = b"rmq_sys_wheel_timer"
HALF_TOPIC: Final = b"RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = b"RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC: Final = b"RMQ_SYS_TRACE_TOPIC"
TEMPLATE_TOPIC: Final = b"TBW102"
GIVEN_UP_TOPIC: Final = b"TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = b"SELF_TEST_TOPIC"
BENCHMARK_TOPIC: Final = b"BenchmarkTest"
OFFSET_MOVED_TOPIC: Final = b"OFFSET_MOVED_EVENT"
DONE_TOPIC: Final = b"rmq_sys_penstock_done"  # records here say which entries of the schedule are over
SINK_TOPIC: Final = b"rmq_sys_penstock_sinks"
SYSTEM_PREFIX: Final = "rmq_sys_"  # in small letters
REPLY_SUFFIX: Final = "_REPLY_TOPIC"
SYSTEM_TOPICS: Final = frozenset(  # that have not the prefix
    name.decode()
    for name in (TEMPLATE_TOPIC, SELF_TEST_TOPIC, BENCHMARK_TOPIC, OFFSET_MOVED_TOPIC, SCHEDULE_TOPIC, GIVEN_UP_TOPIC)
)
RETRY_PREFIX: Final = b"%RETRY%"
DEAD_PREFIX: Final = b"%DLQ%"
DEAD_SUFFIX: Final = b".dead"  # of the dead letters of a queue topic's channel
DEAD_NAME_BYTES: Final = 64

SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER",
)  # fmt: skip
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"  # under which a broker keeps what it knows of halves

# Topics and channels of NSQ that go with their last consumer; the second is LMQ's.
EPHEMERAL: Final = (b"#ephemeral", b"#tmp")
EPHEMERAL_TEXTS: Final = tuple(suffix.decode() for suffix in EPHEMERAL)
LOG_NAME: Final = rb"[%|a-zA-Z0-9_-]+"  # a pattern, of RocketMQ's topics and groups
GROUP_BYTES_MAX: Final = 255
SINK_NAME: Final = r"[!-~][ -~]*"  # a pattern, of sinks that rows are staged for, their queries and runs
SINK_NAME_MAX: Final = 255
NSQ_NAME: Final = rb"[.a-zA-Z0-9_-]+(?:#ephemeral|#tmp)?"  # a pattern; a name has at most NSQ_NAME_BYTES_MAX bytes
NSQ_NAME_BYTES_MAX: Final = 64
NSQD_VERSION: Final = "1.3.0"  # of nsqd, whose answers ours are: tools read it as a semantic version

# Properties of messages; the first four are read from any message, so `message` names them
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_PREFIX: Final = "TIMER_"
HALF: Final = "TRAN_MSG"
PRODUCER_GROUP: Final = "PGROUP"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QUEUE: Final = "REAL_QID"
RETRY_TOPIC: Final = "RETRY_TOPIC"
CLUSTER: Final = "CLUSTER"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO: Final = "REPLY_TO_CLIENT"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
TTL: Final = "TTL"
MSG_TYPE: Final = "MSG_TYPE"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
SEQUENCE: Final = "PSEQ"
ORIGIN_ID: Final = "ORIGIN_MESSAGE_ID"
DEAD_REASON: Final = "DLQ_REASON"  # of a dead letter: why it is one
DEAD_TIME: Final = "DLQ_TIME"  # when it became one, ms since the epoch
DEAD_GROUP: Final = "DLQ_GROUP"  # the group, or channel, that gave it up
DEAD_ATTEMPTS: Final = "DLQ_ATTEMPTS"  # how often that was given it
DEAD_CLIENT: Final = "DLQ_CLIENT"  # who had it last
DEAD_DETAIL: Final = "DLQ_DETAIL"  # what that one said
DEAD_PROPERTIES: Final = frozenset((DEAD_REASON, DEAD_TIME, DEAD_GROUP, DEAD_ATTEMPTS, DEAD_CLIENT, DEAD_DETAIL))
RESERVED_PREFIX: Final = "PENSTOCK_"  # what only the broker sets

# What a send is searched for, as `wire.fields` places it.
SEARCHED: Final = "".join((WAIT, TAGS, KEYS, UNIQUE_KEY, DELAY, HALF, TIMER_PREFIX, SEQUENCE, RESERVED_PREFIX)).encode()


def dead_letter_name(topic: bytes, channel: bytes) -> bytes:
    """The dead-letter topic of a queue topic's channel, at most 64 characters."""
    topic, channel = topic.partition(b"#")[0], channel.partition(b"#")[0]
    name = topic + b"." + channel
    return name[: DEAD_NAME_BYTES - len(DEAD_SUFFIX)] + DEAD_SUFFIX
