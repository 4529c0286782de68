"""Where the parts of a cursor file lie; `cursorfile` draws them.

Pairs of names and numbers, as in `penstock.words`: compiled modules take them from `cursorlayout.pxd` as C constants.
"""

from __future__ import annotations

MAGIC = 0x50435552  # PCUR
VERSION_NOW = 2
VERSION = 4  # where it stands
PAGE_BYTES = 4_096
PAGES_MIN = 2
PAGES_MAX = 32

# A slot of page 0 with the committed ordinal; two are written in turns.
SLOT = 512  # where the first begins
SLOT_BYTES = 512
TURN = 0
COMMITTED = 8
CHECK = 16
SLOT_END = 24
CHECK_CONSTANT = 0x436F6D6D69747465

# A page of finished ordinals.
FIRST = 0
SUM = 8
BITS = 16
BITS_BYTES = 4_080
PAGE_BITS = 32_640

# What a bit adds to its page's sum: a hash of its number.
MIX_FACTOR = 0x1E37_79B9_7F4A_7C15
MIX_MASK = 0x7FFF_FFFF_FFFF_FFFF
MIX_SHIFT = 29
