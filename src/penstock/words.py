"""Numbers with a name, the same in both builds.

A compiled module writes

    if cython.compiled:
        from cython.cimports.penstock import words
    else:
        from penstock import words

and then ``words.HEADER_BYTES_MAX`` is a C constant where the module is compiled and this attribute where it is not.
`words.pxd` holds the same names and values; a test compares them. A value above INT32_MAX is for arithmetic with C integers
only: where a compiled module makes a Python object of it, Cython takes it for an int of 32 bits, and the compiler warns.
"""

from __future__ import annotations

# Remoting frames (docs/protocol.md, rocketmq.md §1.1)
FRAME_BYTES_MAX = 16_777_216  # the value of the length field
HEADER_BYTES_MAX = 65_536  # of a request; the answer to a batch names every message in its header
LENGTH_BYTES = 4  # of the length field, which counts what is behind it
PREFIX_BYTES = 8  # length, type and header size
TYPE_SHIFT = 24  # of the type in the second word; the header's size lies below
SIZE_MASK = 0xFFFFFF
JSON = 0
BINARY = 1
EXT_KEYS_MAX = 256

# Remoting headers
ABSENT = 0  # a field that a header does not have
PLAIN = 1  # one whose bytes are its text
ESCAPED = 2  # one with JSON escapes
FIXED = 0  # a part of a kept header that the next one must have, too
NUMBER = 1  # one that may be other digits
TEXT = 2  # one that may be another text
NO_SLOT = -1  # the opaque's
SHAPE_BYTES_MAX = 1024  # of a header that is kept
SHAPE_PARTS = 27  # a slot each, and the opaque
SHAPE_MISSES = 4  # headers in a row that were others, before they are kept now and then only
SHAPE_RETRY = 64
BINARY_HEADER_BYTES = 13  # code, language, version, opaque, flag
CODE = 1  # the members of a header, a bit each
FLAG = 2
OPAQUE = 4
VERSION = 8
EXT_FIELDS = 16
MEMBERS = 5
TRUE_BYTES = 4  # of the word true
FALSE_BYTES = 5
BINARY_VERSION = 3  # where the version begins in a binary header
BINARY_OPAQUE = 5
BINARY_FLAG = 9
LETTERS = 14  # SEND's fields have the names a to n, too
LETTER_A = 97  # their names begin here
SLOT_WIDTH = 24  # of a name in the scanner's table
INT16_MAX = 0x7FFF
INT16_RANGE = 0x10000
INT32_MAX = 0x7FFFFFFF
INT64_TENTH = 922_337_203_685_477_579  # one more digit fits 63 bits
DIGITS_MAX = 18  # of a whole number that fits 63 bits whatever its digits are
PRINTABLE = 32  # below it are the control characters, which a JSON text may not hold

# UTF-16 and UTF-8
HIGH_SURROGATE = 0xD800
LOW_SURROGATE = 0xDC00
SURROGATE_END = 0xE000
SURROGATE_BITS = 10
BEYOND_16_BITS = 0x10000
UNICODE_ESCAPE_BYTES = 6  # backslash, u, four hexadecimal digits
HEX4 = 4  # hexadecimal digits of an escape
HEX_BITS = 4
UTF8_ONE_BYTE_END = 0x80
UTF8_TWO_BYTES_END = 0x800
UTF8_TWO_BYTES = 0xC0
UTF8_THREE_BYTES = 0xE0
UTF8_FOUR_BYTES = 0xF0
UTF8_FOUR_BYTES_MORE = 3  # bytes behind the first
UTF8_NEXT_BYTE = 0x80
UTF8_NEXT_BITS = 6
UTF8_NEXT_MASK = 0x3F

# Answers of one turn
TURN_BYTES_KEPT = 262_144  # of an outbox: a larger buffer is given back once it was taken
OUTBOX_BYTES_MIN = 1_024
PART_BYTES_MIN = 4_096  # a larger body is written from where it lies, not copied into the outbox

# Characters with a meaning in the texts that are read and written in place
TAB = 9
LINE_FEED = 10
CARRIAGE_RETURN = 13
FORM_FEED = 12
BACKSPACE = 8
SPACE = 32
LOWER_CASE = 32  # the bit that makes a letter small
QUOTE = 34
COMMA = 44
MINUS = 45
POINT = 46
SLASH = 47
DIGIT_0 = 48
DIGIT_9 = 57
COLON = 58
BACKSLASH = 92
BRACE = 123
BRACE_END = 125
TEN = 10  # the base of decimal digits
HEX_DIGIT_MAX = 15
HEX_LETTERS = 87  # what a small letter is above its value as a digit
HEX_CAPITALS = 55
DECIMAL_BYTES_MAX = 20  # of a 64-bit number with its sign
PHYSICAL_DIGITS = 16  # of a place in the log, in hexadecimal

# Requests and answers of RocketMQ that the hot path knows; wire.codes has all
SEND_MESSAGE = 10
PULL_MESSAGE = 11
SEND_MESSAGE_V2 = 310
SEND_BATCH_MESSAGE = 320
LITE_PULL_MESSAGE = 361
FLAG_RESPONSE = 1
FLAG_ONEWAY = 2
PERM_WRITE = 2
PERM_READ = 4
PULL_COMMIT_OFFSET = 1
PULL_SUSPEND = 2
PULL_SUBSCRIPTION = 4

# Limits of messages and pulls
PULL_BYTES_MAX = 4_194_304
PULL_BYTES = 262_144  # of a pull that does not say how many
PULL_COUNT_MAX = 65_536
PULL_COUNT = 32
HOLD_MS_MAX = 120_000
LACK_MS = 1_000  # a slave lets those wait so long who ask for what it has not got
FLUSH_MS_MAX = 5_000  # rocketmq.md §7: then code 10

# Levels of a topic
LEVEL_OS = 0
LEVEL_DISK = 1
LEVEL_MEMORY = 2
LEVEL_PAIR = 3
LEVEL_PAIR_DISK = 4

# Separators of a properties text
NAME_END = 1
PROPERTY_END = 2

# NSQ: frames, lines, sessions (nsq.md §2 to §5)
RESPONSE = 0
ERROR = 1
MESSAGE = 2
FRAME_HEAD_BYTES = 8  # size and type
TYPE_AT = 4
STAMP_AT = 8
ATTEMPTS_AT = 16
ID_AT = 18
BODY_AT = 34
ID_BYTES = 16
SIZE_BYTES = 4  # of what stands before a body
MAGIC_BYTES = 4
VERB_BYTES = 3  # of FIN, PUB and RDY
MPUB_BYTES = 4
OK_BYTES = 10  # of the frame that says OK
MESSAGE_BYTES_MIN = 5  # of one in an MPUB: its size, and a byte
INIT = 0
SUBSCRIBED = 3
CLOSING = 4
ATTEMPTS_MAX = 65_535  # two bytes in a frame

# Deliveries to a channel's consumers
DONE = 0
NOT_IN_FLIGHT = 1
NOT_OWNER = 2
FREE = 0  # states of a slot
IN_FLIGHT = 1
WAITING = 2
DEFERRED = 3
SHARE_MIN = 4  # messages for one consumer before it is the next one's turn
SHARE_MAX = 256
BEHIND_MAX = 1_024  # messages that one which comes again waits behind
OUT_BYTES_MAX = 8_388_608  # a consumer has not read yet: then it gets no more
PERCENT = 100
HAND_OVER_MAX = 2_500  # messages that a topic in memory hands over to its channels in one turn
REFILL_MAX = 1_024  # messages that a memory queue takes back from its files at once
SLOTS_MIN = 16
RUN_BYTES_MAX = 32_768  # of the buffer that a memory queue's messages lie in, one behind the other
ENTRY_START_SHIFT = 33  # of a record's place in the entry of its sum
ENTRY_MORE_SHIFT = 32
ID_FOLD = 17  # a message's id to its place in the table of slots: a hash
ID_FACTOR = 40_503
ID_FOLD_AGAIN = 31
MS_A_SECOND = 1_000
US_A_MS = 1_000
NS_A_MS = 1_000_000

# Bits and bytes
BYTE_BITS = 8
BYTE_SHIFT = 3  # of the number of a bit to its byte
BIT_MASK = 7  # of the number of a bit to its place in the byte
BYTE_MASK = 0xFF
INT64_BYTES = 8
PAGE_BYTES = 4_096  # of memory, and of most file systems
UNMAP_BYTES_MIN = 1 << 20  # from this much to be flushed on, its pages are unmapped before, all at once

# A message's data as NSQ stores it: timestamp, attempts, id, body
DATA_ATTEMPTS_AT = 8
DATA_ID_AT = 10
DATA_ID_END_AT = 18  # the last eight bytes of the id
DATA_BODY_AT = 26
HEX = 16
INT63_MAX = 0x7FFF_FFFF_FFFF_FFFF
FAR_MS = 1 << 62  # a moment that does not come
UINT16_MAX = 0xFFFF

# Queue topics of level os
FLUSH_INTERVAL_MS = 500
FLUSH_WINDOW_MS = 1_000  # what is acknowledged is on the disk after that

# Replication
RECENT_QUEUES = 64  # that a follower keeps at hand
BLOCK_RECORDS_MAX = 8_192  # in one block of a log that is copied
