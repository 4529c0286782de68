"""What the modules of the kernel share: the columns of the decoder's table of rows, and how a sheet lays out a batch.

Pairs of names and numbers, as in `penstock.words`: compiled modules take them from `rowtable.pxd` as C constants.
"""

from __future__ import annotations

# Columns of the table: a position in the records, then (for all but START) a length, -1 where there is none.
START = 0
BODY = 1
TOPIC = 3
PROPERTIES = 5
KEYS = 7
TAGS = 9
UNIQUE = 11
BORN = 13
STORE = 15
VALUE = 17
WIDTH = 19
FETCH_BYTES_MAX = 2_000_000_000  # positions are 32-bit

# How a column of a sheet is copied.
INT = 0
LONG = 1
TIME = 2
ONE = 3
BYTES = 4
TEXT = 5

# The buffers of a sheet, three places a column: values or offsets, the bitmap, the bytes.
PLACES = 3
BITMAP = 1
DATA = 2
ALIGN = 64  # of a buffer
BITMAP_ROWS = 512  # of 64 bytes of bitmap
INT_BYTES = 4
INT_SHIFT = 2
LONG_BYTES = 8
LONG_SHIFT = 3
LONG_BITS = 64
BLOCK_ROWS = 64  # framed before their columns are copied
ARENAS = 4  # Spark holds the first batch, the one before and the one it writes

# Years 1 to 9999, in ms: what a timestamp column can show.
TIME_MIN = -62_135_596_800_000
TIME_MAX = 253_402_300_799_999
NOT_ASCII = -0x7F7F_7F7F_7F7F_7F80  # the upper bit of each of eight bytes
