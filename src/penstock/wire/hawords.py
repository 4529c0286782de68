"""Types and flags of replication's frames, the same in both builds (docs/replication-protocol.md)."""

from __future__ import annotations

HEAD_BYTES = 16
FLAGS_AT = 1  # in the head
COUNT_AT = 2
LENGTH_AT = 4
EPOCH_AT = 8
SUM_AT = 12  # it is that of the bytes before, and of the fixed part
FRAME_BYTES_MAX = 32 << 20  # one record of any size fits
SKIPPED = 0x40  # the bit of a type that may be passed over by those who do not know it
UNKNOWN = 0xFF  # in the table of fixed parts: no such type

ACCEPT = 0x01
REFUSE = 0x02
DATA = 0x03
BEAT = 0x04
META = 0x05
SPOOL = 0x06  # staged rows, to a slave whose HELLO says that it keeps them
MAY_I = 0x08
TAKE = 0x09
GIVE = 0x0A  # either side says this and WANT, to a peer whose HELLO or ACCEPT says that it knows them
HELLO = 0x81
START = 0x82
ACK = 0x83
WANT = 0x84
SPOOLED = 0x86
YES = 0x87
TAKEN = 0x89

POSITIONS_BYTES = 40  # the fixed part of DATA, and the beginning of BEAT's
WRITTEN_AT = 8  # in the positions, behind that of what follows
CONFIRMED_AT = 16
CONFIRMED_FLUSHED_AT = 24
BEGIN_AT = 32
ACK_BYTES = 32  # all of it is its fixed part
FLUSHED_AT = 8  # in an ACK, behind what is written
DISPATCHED_AT = 16
FREE_AT = 24
SUM_BYTES = 8  # of a record of DATA: its place, and its CRC-32

FLUSH_NOW = 1  # flags of DATA
LAST = 2
DAMAGED = 4
IN_SYNC = 8  # a flag of DATA and BEAT: the master counts on this slave
NO_HURRY = 16  # a flag of DATA: nobody waits for its ACK
DISK_FULL = 1  # flags of ACK
FLUSH_FAILED = 2
