"""Where the parts of a ready queue's record and of its sums lie; `readyqueue` draws both.

Pairs of names and numbers, as in `penstock.words`: compiled modules take them from `readylayout.pxd` as C constants.
"""

from __future__ import annotations

# A record.
LETTER = 118  # v, with which each begins
LENGTH = 1
ID = 5  # the length counts from here on
ATTEMPTS = 13
MARK = 15
BODY = 19
COUNTED_BYTES = 14  # what the length counts beside the body
SMALLEST = 20
STAMP_BYTES = 8  # at the start of a body, where bodies begin with a timestamp
BYTES_MAX = 0x7FFFFFFF  # of what is appended at once
WRITTEN_BYTES_MIN = 0x8000  # a larger body goes to the file by a system call, where it would meet a fault for each page

# The head of a sums file, which stands once more at its end.
MAGIC = 0x50524459  # PRDY
VERSION_NOW = 2
VERSION = 4
VERSION_BITS = 0xFF  # the rest of the word is the life
LIFE_BIT = 8
LIVES = 0x1000000  # so often a file is used
SUM_BITS = 0xFFFFFFFF
SALT = 0x9E3779B1  # 2^32 over the golden ratio: times the life, what is mixed into the ordinals
FIRST = 8
SEGMENT_SIZE = 16
TAG = 20
COUNT = 24
HEAD_SUM = 28
HEAD_BYTES = 32
HEADS_BYTES = 64
COUNT_BYTES = 4
WORD_BITS = 32  # count and sum are written as one word

# The entry of a record in the sums file: add n entries.
START = 32
CRC = 36
ENTRY_END = 40
ENTRY_BYTES = 8
START_BITS = 0x7FFFFFFF
MORE_BIT = 31  # of the start: the batch goes on
NO_SUM = 0xFFFFFFFF  # what stands where a page was overwritten
SPOILED = 0x5A5A5A5A  # what makes the sum of a record that is left out a wrong one

# Looking at what is found.
SUMS_STEP_MAX = 1_048_576
EMPTY_ENTRIES_MAX = 4_096  # so many empty entries are the end of the sums
FIRST_RECORDS = 64  # of which one sum must hold, else the first ordinal is wrong
