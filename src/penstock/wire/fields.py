"""What stands where in a hot request and its answer: the slots of `wire.header`, the texts of `wire.answers`, and the
property names that a send is searched for. Pairs of names and numbers, as in `penstock.words`.
"""

from __future__ import annotations

# Slots of a scanned header: the first fourteen are SEND's, in the order of V2's letters a to n.
PRODUCER_GROUP = 0
TOPIC = 1
DEFAULT_TOPIC = 2
DEFAULT_TOPIC_QUEUES = 3
QUEUE_ID = 4
SYS_FLAG = 5
BORN_TIMESTAMP = 6
FLAG = 7
PROPERTIES = 8
RECONSUME_TIMES = 9
UNIT_MODE = 10
RECONSUME_TIMES_MAX = 11
BATCH = 12
BROKER_NAME = 13
CONSUMER_GROUP = 14
QUEUE_OFFSET = 15
MESSAGES_MAX = 16
COMMIT_OFFSET = 17
SUSPEND_MS = 18
SUBSCRIPTION = 19
SUBSCRIPTION_VERSION = 20
EXPRESSION_TYPE = 21
DURABLE = 22
BYTES_MAX = 23
ACCESS_KEY = 24
SIGNATURE = 25
SLOTS = 26
SEND_REQUIRED = 8  # the first fields of SEND must be there

# Property names, beside each other in `wire.names.SEARCHED`: where each begins, and its length.
WAIT_AT = 0
TAGS_AT = 4
KEYS_AT = 8
UNIQUE_AT = 12
DELAY_AT = 20
HALF_AT = 25
TIMER_AT = 33
SEQUENCE_AT = 39
RESERVED_AT = 43
WAIT_BYTES = 4
TAGS_BYTES = 4
KEYS_BYTES = 4
UNIQUE_BYTES = 8
DELAY_BYTES = 5
HALF_BYTES = 8
TIMER_BYTES = 6
SEQUENCE_BYTES = 4
RESERVED_BYTES = 9

# Property names as the integer that their bytes are.
TAGS_WORD = 0x5441_4753
KEYS_WORD = 0x4B45_5953
SEQUENCE_WORD = 0x5053_4551
UNIQUE_WORD = 0x554E_4951_5F4B_4559

# Texts of answers.
JSON_SENT = 0
JSON_SENT_QUEUE = 1
JSON_SENT_OFFSET = 2
JSON_SENT_OPAQUE = 3
JSON_END = 4
JSON_FOUND = 5
JSON_FOUND_MIN = 6
JSON_FOUND_NEXT = 7
JSON_FOUND_OPAQUE = 8
JSON_FOUND_END = 9
HOST_DIGITS = 10
BINARY_SENT = 11
BINARY_QUEUE = 12
BINARY_OFFSET = 13
BINARY_MAX = 14
BINARY_MIN = 15
BINARY_NEXT = 16
BINARY_SUGGESTED = 17
BINARY_HEAD = 18
BINARY_FOUND = 19
TEXTS = 24
ANSWER_ROOM = 64
