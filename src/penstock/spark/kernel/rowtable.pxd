# The names and values of rowtable.py as C constants; tests/test_words.py holds them equal.
cdef enum:
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
    FETCH_BYTES_MAX = 2000000000
    INT = 0
    LONG = 1
    TIME = 2
    ONE = 3
    BYTES = 4
    TEXT = 5
    PLACES = 3
    BITMAP = 1
    DATA = 2
    ALIGN = 64
    BITMAP_ROWS = 512
    INT_BYTES = 4
    INT_SHIFT = 2
    LONG_BYTES = 8
    LONG_SHIFT = 3
    LONG_BITS = 64
    BLOCK_ROWS = 64
    ARENAS = 4
cdef enum:  # beyond an int: GCC since 13 would give all of one enumeration their type
    TIME_MIN = -62135596800000
    TIME_MAX = 253402300799999
    NOT_ASCII = -9187201950435737472
