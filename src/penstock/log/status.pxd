# The names and values of status.py as C constants; tests/test_words.py holds them equal.
cdef enum:
    OK = 0
    DISK_FULL = 1
    NOT_WRITABLE = 2
    TOO_LARGE = 3
    ILLEGAL = 4
    NOT_MASTER = 5
    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    SCAN_MIN = 800
    READ_AHEAD = 120
    READ_AHEAD_BYTES = 512
    RUN_LENGTH = 8
    RUN_BYTES = 16
