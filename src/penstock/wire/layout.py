"""Where the parts of a stored message lie: the log's record, a message of a batch, the entries of queues and indexes.

`wire.record` draws the record. Pairs of names and numbers, as in `penstock.words`: compiled modules take them from
`layout.pxd` as C constants.
"""

from __future__ import annotations

# The record; behind the born host offsets depend on whether hosts have 4 or 16 bytes of address (here: 4).
MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194  # what is left at the end of a segment
SIZE = 0
MAGIC = 4
BODY_CRC = 8
QUEUE_ID = 12
FLAG = 16
QUEUE_OFFSET = 20
PHYSICAL = 28
SYS_FLAG = 36
BORN_MS = 40
BORN_HOST = 48
STORE_MS = 56
STORE_HOST = 64
RECONSUME_TIMES = 72
PREPARED = 76
BODY_LENGTH = 84
BODY = 88
HOST_BYTES = 8  # address and port
HOST_V6_BYTES = 20
HOST_V6_MORE = 12  # bytes by which an IPv6 host is longer
RECORD_FIXED_BYTES = 91  # everything but body, topic and properties, with IPv4 hosts
RECORD_BARE_BYTES = 75  # the same without hosts
TAIL_BYTES_MIN = 3  # behind the body: the lengths of an empty topic and of no properties
TOPIC_SHIFT = 8  # of two bytes, to the first one: the topic's length
LENGTH_BYTES = 4
MS_BYTES = 8
SYS_COMPRESSED = 0x1
SYS_BORN_IPV6 = 0x10
SYS_STORE_IPV6 = 0x20
SYS_HALF = 0x4
SYS_TRANSACTION = 0xC  # both bits: half, committed or rolled back
BLANK_BYTES = 8  # size and magic
SUM_BYTES = 8  # of a record in a block that is copied: where it begins there, and its CRC-32
CRC_MASK = 0x7FFFFFFF
TOPIC_BYTES_MAX = 127
PROPERTIES_BYTES_MAX = 32_767
BODY_BYTES_MAX = 4_194_304

# A message of a batch: size, magic, CRC, flag, body length; the body; two bytes of properties length; the properties.
BATCH_FLAG = 12
BATCH_BODY_LENGTH = 16
BATCH_BODY = 20
BATCH_FIXED_BYTES = 22

# An entry of a consume queue.
ENTRY_PHYSICAL = 0
ENTRY_SIZE = 8
ENTRY_TAGS = 12
ENTRY_BYTES = 20
FILLER_SIZE = 0x7FFFFFFF  # of an entry without a record

# An index file: its head, then hash slots, then entries.
INDEX_BEGIN_MS = 0
INDEX_END_MS = 8
INDEX_BEGIN_PHYSICAL = 16
INDEX_END_PHYSICAL = 24
INDEX_SLOTS_USED = 32
INDEX_COUNT = 36
INDEX_HEAD_BYTES = 40
INDEX_SLOT_BYTES = 4
INDEX_HASH_MAX = 0x7FFFFFFF
INDEX_SECONDS_MAX = 0x7FFFFFFF
INDEX_HASH = 0
INDEX_PHYSICAL = 4
INDEX_SECONDS = 12
INDEX_PREVIOUS = 16
INDEX_ENTRY_BYTES = 20
