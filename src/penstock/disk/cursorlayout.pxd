# The names and values of cursorlayout.py as C constants; tests/test_words.py holds them equal.
cdef enum:
    MAGIC = 1346590034
    VERSION_NOW = 2
    VERSION = 4
    PAGE_BYTES = 4096
    PAGES_MIN = 2
    PAGES_MAX = 32
    SLOT = 512
    SLOT_BYTES = 512
    TURN = 0
    COMMITTED = 8
    CHECK = 16
    SLOT_END = 24
    FIRST = 0
    SUM = 8
    BITS = 16
    BITS_BYTES = 4080
    PAGE_BITS = 32640
    MIX_SHIFT = 29
cdef enum:  # beyond an int: GCC since 13 would give all of one enumeration their type
    CHECK_CONSTANT = 4859222839644157029
    MIX_FACTOR = 2177342782468422677
    MIX_MASK = 9223372036854775807
