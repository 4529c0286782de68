"""A remoting header, scanned in place: where each field of a hot request lies, without making an object of it.

Only what SEND (10, 310, 320) and PULL (11, 361) carry is looked for; every other field is passed over. Anything
that is not the flat object clients write (nesting, a number where text belongs, …) makes the scan answer False;
the frame then goes through `wire.remoting`, which knows all of the format. Format: rocketmq.md §1.1, §1.2, §3.2.
"""

from __future__ import annotations

import cython

if cython.compiled:
    from cython.cimports.penstock.octets import address, be16, be32, copy, find, find2, same
else:
    from penstock.octets import address, be16, be32, copy, find, find2, same

SLOTS = 24

# The field of each slot. 0 to 13 are SEND's, in the order of V2's one-letter names a to n; PULL shares topic, queueId and
# sysFlag with it and goes on from 14.
# fmt: off
NAMES = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "bname",
    "consumerGroup", "queueOffset", "maxMsgNums", "commitOffset", "suspendTimeoutMillis",
    "subscription", "subVersion", "expressionType", "durable", "maxBytes",
)
# fmt: on
_WIDTH = 24  # longest name is 21 bytes
_BLOB = b"".join(name.encode().ljust(_WIDTH, b"\0") for name in NAMES)
_LENGTHS = bytes(len(name) for name in NAMES)


class HeaderScan:
    """The outcome of one scan; reused for every frame of a session. `kind` is 0 absent, 1 plain text, 2 text with escapes."""

    def __init__(self) -> None:
        self.code = 0
        self.flag = 0
        self.opaque = 0
        self.version = 0
        self.names = address(_BLOB)
        self.lengths = address(_LENGTHS)
        self.base = self.names
        self.last = 922337203685477579  # as a literal in the loop it would be a Python object
        self.bad = -1
        if not cython.compiled:
            self.kind = [0] * SLOTS
            self.at = [0] * SLOTS
            self.length = [0] * SLOTS

    # -- what was found ----------------------------------------------------------------------------------------

    def number(self, slot: int, default: int) -> int:
        """The integer in a slot, or the default when it is absent. Text that is no integer sets `bad` to the slot."""
        n = self.length[slot]
        if self.kind[slot] == 0:
            return default
        p = self.at[slot]
        end = p + n
        negative = n > 1 and self.base[p] == 45
        if negative:
            p += 1
        if self.kind[slot] != 1 or p == end:
            self.bad = slot
            return default
        value = 0
        while p < end:
            digit = self.base[p] - 48
            if digit < 0 or digit > 9 or value > self.last:  # the next digit might not fit 63 bits
                self.bad = slot
                return default
            value = value * 10 + digit
            p += 1
        return -value if negative else value

    def true(self, slot: int) -> bool:
        """Whether a boolean field says true, in any case of letters."""
        p = self.at[slot]
        return (
            self.kind[slot] == 1
            and self.length[slot] == 4
            and (self.base[p] | 32) == 116
            and (self.base[p + 1] | 32) == 114
            and (self.base[p + 2] | 32) == 117
            and (self.base[p + 3] | 32) == 101
        )

    def text(self, slot: int) -> bytes:
        """The bytes of a field (UTF-8), without escapes; empty when absent."""
        n = self.length[slot]
        if self.kind[slot] == 0 or n == 0:
            return b""
        p = self.at[slot]
        if self.kind[slot] == 1:
            return bytes(self.base[p : p + n])
        room = bytearray(n)
        n = self.unescape(slot, address(room), 0)
        return bytes(room[:n])

    def unescape(self, slot: int, to: bytearray, tp: int) -> int:
        """Write a field without its JSON escapes at a position of a buffer that has room; how many bytes it became."""
        p = self.at[slot]
        end = p + self.length[slot]
        start = tp
        if self.kind[slot] == 1:
            copy(to, tp, self.base, p, end - p)
            return end - p
        while p < end:
            q = find(self.base, p, end, 92)
            if q < 0:
                q = end
            if q > p:
                copy(to, tp, self.base, p, q - p)
                tp += q - p
                p = q
            if p >= end:
                break
            c = self.base[p + 1] if p + 1 < end else 0
            if c == 117 and p + 6 <= end:  # \uXXXX
                unit = self._hex4(p + 2)
                p += 6
                if 0xD800 <= unit < 0xDC00 and p + 6 <= end and self.base[p] == 92 and self.base[p + 1] == 117:
                    low = self._hex4(p + 2)
                    unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00)
                    p += 6
                if unit < 0x80:
                    to[tp] = unit
                    tp += 1
                elif unit < 0x800:
                    to[tp] = 0xC0 | unit >> 6
                    to[tp + 1] = 0x80 | unit & 63
                    tp += 2
                elif unit < 0x10000:
                    to[tp] = 0xE0 | unit >> 12
                    to[tp + 1] = 0x80 | unit >> 6 & 63
                    to[tp + 2] = 0x80 | unit & 63
                    tp += 3
                else:
                    to[tp] = 0xF0 | unit >> 18 & 7
                    to[tp + 1] = 0x80 | unit >> 12 & 63
                    to[tp + 2] = 0x80 | unit >> 6 & 63
                    to[tp + 3] = 0x80 | unit & 63
                    tp += 4
            else:
                if c == 110:
                    c = 10
                elif c == 116:
                    c = 9
                elif c == 114:
                    c = 13
                elif c == 98:
                    c = 8
                elif c == 102:
                    c = 12
                to[tp] = c
                tp += 1
                p += 2
        return tp - start

    def _hex4(self, p: int) -> int:
        value = 0
        for i in range(4):
            c = self.base[p + i]
            if 48 <= c <= 57:
                c -= 48
            else:
                c = (c | 32) - 87
                if c < 10 or c > 15:
                    return 0xFFFD
            value = value << 4 | c
        return value

    # -- scanning ----------------------------------------------------------------------------------------------

    def clear(self, base: bytes) -> None:
        """Forget the last frame; the next lies in `base`."""
        self.base = base
        self.bad = -1
        self.code = -1
        self.flag = 0
        self.opaque = 0
        self.version = 0
        for slot in range(SLOTS):
            self.kind[slot] = 0

    def slot_of(self, p: int, n: int) -> int:
        """The slot of a field name, or -1."""
        if n == 1:
            slot = self.base[p] - 97
            return slot if 0 <= slot < 14 else -1
        for slot in range(SLOTS):
            if self.lengths[slot] == n and same(self.base, p, self.names, slot * _WIDTH, n):
                return slot
        return -1

    def binary(self, base: bytes, p: int, n: int) -> bool:
        """Scan a ROCKETMQ (binary) header of n bytes at p; False when it is not one."""
        self.clear(base)
        end = p + n
        if n < 21:
            return False
        code = be16(base, p)
        self.code = code - 65536 if code > 32767 else code
        self.version = be16(base, p + 3)
        self.opaque = be32(base, p + 5)
        self.flag = be32(base, p + 9)
        length = be32(base, p + 13)
        if length < 0 or p + 21 + length > end:
            return False
        p += 17 + length
        length = be32(base, p)
        p += 4
        if length < 0 or p + length != end:
            return False
        while p < end:
            if p + 2 > end:
                return False
            length = be16(base, p)
            p += 2
            if p + length + 4 > end:
                return False
            slot = self.slot_of(p, length)
            p += length
            length = be32(base, p)
            p += 4
            if length < 0 or p + length > end:
                return False
            if slot >= 0:
                self.kind[slot] = 1
                self.at[slot] = p
                self.length[slot] = length
            p += length
        return True

    def json(self, base: bytes, p: int, n: int) -> bool:
        """Scan a JSON header of n bytes at p; False when it is not the flat object this scanner knows."""
        self.clear(base)
        end = p + n
        p = self._blank(p, end)
        if p >= end or base[p] != 123:
            return False
        p += 1
        while True:
            p = self._blank(p, end)
            if p >= end:
                return False
            c = base[p]
            if c == 125:  # }
                break
            if c == 44:
                p += 1
                continue
            if c != 34:
                return False
            q = find2(base, p + 1, end, 34, 92)
            if q < 0 or base[q] == 92:
                return False
            key = p + 1
            length = q - key
            p = self._blank(q + 1, end)
            if p >= end or base[p] != 58:
                return False
            p = self._blank(p + 1, end)
            if p >= end:
                return False
            c = base[p]
            if c == 123:  # only extFields is an object
                if length != 9 or base[key] != 101:
                    return False
                p = self._fields(p + 1, end)
                if p < 0:
                    return False
            elif c == 34:
                p = self._string_end(p + 1, end)
                if p < 0:
                    return False
                p += 1
            elif c == 45 or 48 <= c <= 57:
                negative = c == 45
                if negative:
                    p += 1
                value = 0
                digits = 0
                while p < end and 48 <= base[p] <= 57:
                    value = value * 10 + base[p] - 48
                    digits += 1
                    p += 1
                if digits == 0 or digits > 10 or (p < end and (base[p] == 46 or (base[p] | 32) == 101)):
                    return False
                if negative:
                    value = -value
                if length == 4 and base[key] == 99:
                    self.code = value
                elif length == 4 and base[key] == 102:
                    self.flag = value
                elif length == 6:
                    self.opaque = value
                elif length == 7:
                    self.version = value
            else:
                p = self._word(p, end)
                if p < 0:
                    return False
        return self.code >= 0 and self._blank(p + 1, end) == end

    def _fields(self, p: int, end: int) -> int:
        """The members of extFields; the position behind its brace, or -1."""
        base = self.base
        while True:
            p = self._blank(p, end)
            if p >= end:
                return -1
            c = base[p]
            if c == 125:
                return p + 1
            if c == 44:
                p += 1
                continue
            if c != 34:
                return -1
            q = find2(base, p + 1, end, 34, 92)
            if q < 0 or base[q] == 92:
                return -1
            slot = self.slot_of(p + 1, q - p - 1)
            p = self._blank(q + 1, end)
            if p >= end or base[p] != 58:
                return -1
            p = self._blank(p + 1, end)
            if p >= end:
                return -1
            c = base[p]
            if c == 34:
                start = p + 1
                q = find2(base, start, end, 34, 92)
                if q < 0:
                    return -1
                escaped = base[q] == 92
                if escaped:
                    q = self._string_end(start, end)
                    if q < 0:
                        return -1
                if slot >= 0:
                    self.kind[slot] = 2 if escaped else 1
                    self.at[slot] = start
                    self.length[slot] = q - start
                p = q + 1
            else:
                start = p
                p = self._word(p, end)
                if p < 0:
                    return -1
                if slot >= 0 and not (p - start == 4 and c == 110):  # null is absence
                    self.kind[slot] = 1
                    self.at[slot] = start
                    self.length[slot] = p - start

    def _string_end(self, p: int, end: int) -> int:
        """The closing quote of a string that begins at p, or -1."""
        q = p
        while True:
            q = find(self.base, q, end, 34)
            if q < 0:
                return -1
            slashes = 0
            while q - 1 - slashes >= p and self.base[q - 1 - slashes] == 92:
                slashes += 1
            if slashes & 1 == 0:
                return q  # type: ignore[no-any-return]
            q += 1

    def _word(self, p: int, end: int) -> int:
        """Behind a bare number, true, false or null, or -1."""
        start = p
        while p < end:
            c = self.base[p]
            if not (48 <= c <= 57 or 97 <= (c | 32) <= 122 or c == 43 or c == 45 or c == 46):
                break
            p += 1
        return p if p > start else -1

    def _blank(self, p: int, end: int) -> int:
        while p < end and (self.base[p] == 32 or 9 <= self.base[p] <= 13):
            p += 1
        return p
