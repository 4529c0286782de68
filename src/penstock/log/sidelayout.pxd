# The names and values of sidelayout.py as C constants; tests/test_words.py holds them equal.
cdef enum:
    MAGIC = 1347638605
    VERSION_NOW = 2
    VERSION_OLD = 1
    VERSION = 4
    FIRST = 8
    COVERS_FROM = 16
    HEAD_SUM = 20
    HEAD_BYTES = 32
    START = 32
    CRC = 36
    ENTRY_BYTES = 8
    STARTS_MAX = 512
    REPORTS_MAX = 20
    BROKEN = 0
    MATCHES = 1
    UNCHECKED = 2
    MISSING = 3
    LIVE_END = 16
    LIVE_NEXT = 24
cdef enum:  # beyond an int: GCC since 13 would give all of one enumeration their type
    NO_SUM = 4294967295
