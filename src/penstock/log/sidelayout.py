"""Where the parts of what stands beside the commit log lie: the sums of a segment, the live page.

`checksums` and `checkpoint` draw them. Pairs of names and numbers, as in `penstock.words`: compiled modules take them from
`sidelayout.pxd` as C constants.
"""

from __future__ import annotations

# The head of a sums file.
MAGIC = 0x5053554D  # PSUM
VERSION_NOW = 2
VERSION_OLD = 1  # its head has no sum
VERSION = 4
FIRST = 8
COVERS_FROM = 16
HEAD_SUM = 20
HEAD_BYTES = 32

# The entry of a record in it: add n entries.
START = 32
CRC = 36
ENTRY_BYTES = 8
NO_SUM = 0xFFFFFFFF  # what stands where a page was overwritten
STARTS_MAX = 512  # so many tell where the sums of a file with a damaged head begin
REPORTS_MAX = 20  # damaged sums that the log names; more are counted

# What the sums say of a record.
BROKEN = 0
MATCHES = 1
UNCHECKED = 2
MISSING = 3  # not flushed before the power went: the record must prove itself

# The live page: where the log ends, and where it will end after the appends at work.
LIVE_END = 16
LIVE_NEXT = 24
