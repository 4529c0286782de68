"""What the store answers: to an append, and to a read."""

# append
OK = 0
DISK_FULL = 1
"""No room now; the same append may go through later."""
NOT_WRITABLE = 2
"""A flush failed, or the store is not open."""
TOO_LARGE = 3
"""The record would not fit into any segment, or a part of it exceeds its limit."""
ILLEGAL = 4
"""A batch whose inner lengths do not add up."""
NOT_MASTER = 5
"""This log is a copy: it gets what its master has, and nothing else."""

# read: RocketMQ's GetMessageStatus, in its order
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
"""A read that a filter makes long looks at so many entries of a queue at least: what RocketMQ does."""

# Six entries before a record is read, the processor is asked for its first bytes; behind them it sees by itself what comes.
READ_AHEAD = 120
READ_AHEAD_BYTES = 512

# A run of records that lie together, as a read keeps it: physical offset (8), length (8).
RUN_LENGTH = 8
RUN_BYTES = 16

READ_NAMES = (
    "FOUND",
    "NO_MATCHED_MESSAGE",
    "MESSAGE_WAS_REMOVING",
    "OFFSET_FOUND_NULL",
    "OFFSET_OVERFLOW_BADLY",
    "OFFSET_OVERFLOW_ONE",
    "OFFSET_TOO_SMALL",
    "NO_MATCHED_LOGIC_QUEUE",
    "NO_MESSAGE_IN_QUEUE",
)
"""The remark a pull answer carries, by status."""
