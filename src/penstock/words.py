"""Numbers with a name, the same in both builds.

A compiled module writes

    if cython.compiled:
        from cython.cimports.penstock import words
    else:
        from penstock import words

and then ``words.HEADER_BYTES_MAX`` is a C constant where the module is compiled and this attribute where it is not.
`words.pxd` holds the same names and values; a test compares them.
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
TURN_BYTES_MAX = 2_097_152  # of one connection; what else it asks waits until these are written
