"""Names that the protocols and the log share, once each: topics of the system, prefixes, suffixes, property names.

As bytes where topics are handled; what speaks text decodes them.
"""

from __future__ import annotations

from typing import Final

# Topics
SCHEDULE_TOPIC: Final = b"SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = b"rmq_sys_wheel_timer"
HALF_TOPIC: Final = b"RMQ_SYS_TRANS_HALF_TOPIC"
OP_TOPIC: Final = b"RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC: Final = b"RMQ_SYS_TRACE_TOPIC"
TEMPLATE_TOPIC: Final = b"TBW102"
RETRY_PREFIX: Final = b"%RETRY%"
DEAD_PREFIX: Final = b"%DLQ%"

# Topics and channels of NSQ that go with their last consumer; the second is LMQ's.
EPHEMERAL: Final = (b"#ephemeral", b"#tmp")
EPHEMERAL_TEXTS: Final = tuple(suffix.decode() for suffix in EPHEMERAL)
NSQ_NAME: Final = rb"[.a-zA-Z0-9_-]+(?:#ephemeral|#tmp)?"  # a pattern; a name has at most NSQ_NAME_BYTES_MAX bytes
NSQ_NAME_BYTES_MAX: Final = 64
NSQD_VERSION: Final = "1.3.0"  # of nsqd, whose answers ours are: tools read it as a semantic version

# Properties of messages
TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
WAIT: Final = "WAIT"
UNIQUE_KEY: Final = "UNIQ_KEY"
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
SEQUENCE: Final = "PSEQ"
RESERVED_PREFIX: Final = "PENSTOCK_"  # what only the broker sets

# What asks for a delay beside DELAY, RocketMQ's level.
TIMER_PROPERTIES: Final = (TIMER_DELIVER_MS, TIMER_DELAY_MS, TIMER_DELAY_SEC)

# What a send is searched for, as `wire.fields` places it.
SEARCHED: Final = "".join((WAIT, TAGS, KEYS, UNIQUE_KEY, DELAY, HALF, TIMER_PREFIX, SEQUENCE, RESERVED_PREFIX)).encode()
