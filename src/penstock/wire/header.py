"""A remoting header, scanned in place: where each field of a hot request lies, without making an object of it.

Only what SEND (10, 310, 320) and PULL (11, 361) carry is looked for; every other field is checked and passed over. A
scan answers True only for a header that `wire.remoting.decode` reads, too, and then both give the same fields. False
means "not mine": broken bytes, and all that is sound but unusual (blanks with control characters, nesting, floats, an
escaped name, a field given twice). Such a frame goes through `wire.remoting`, which knows all of the format.
Format: docs/protocol.md, and rocketmq.md §1.1, §1.2, §3.2.

A client writes the same header again and again, with another opaque, time, offset or set of properties. The scan keeps the
last JSON header that it went through as a shape; of the next one it compares what lies between these values, looks at the
values alone, and goes through the whole only where something else has changed (decision 90).
"""

from __future__ import annotations

import cython

from penstock.octets import Readable
from penstock.wire.slots import BLOB, LENGTHS, NAMES, SLOTS

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, be16, be32, copy, find2, same, utf8
    from cython.cimports.penstock.wire import fields
    from cython.cimports.penstock.wire.slots import Slots, hex4
else:
    from penstock import words
    from penstock.octets import address, be16, be32, copy, find2, same, utf8
    from penstock.wire import fields
    from penstock.wire.slots import Slots, hex4

_MEMBERS = ("code", "flag", "opaque", "version", "extFields")  # words.CODE to words.EXT_FIELDS, a bit each
_MEMBER_BLOB = b"".join(name.encode().ljust(24, b"\0") for name in _MEMBERS)
_MEMBER_LENGTHS = bytes(len(name) for name in _MEMBERS)
_TRUTH = b"truefalse"


# The texts that change from one request to the next; bytes, a NUMBER or a TEXT for each slot, FIXED for the rest.
_CHANGES = bytearray(SLOTS)
for _slot in (fields.QUEUE_ID, fields.BORN_TIMESTAMP, fields.QUEUE_OFFSET, fields.COMMIT_OFFSET):
    _CHANGES[_slot] = words.NUMBER
for _slot in (fields.PROPERTIES, fields.SIGNATURE):
    _CHANGES[_slot] = words.TEXT


class HeaderScan(Slots):
    """The outcome of one scan; reused for every frame of a session."""

    def __init__(self, fields_max: int = words.EXT_KEYS_MAX) -> None:
        Slots.__init__(self)
        self.code = 0
        self.flag = 0
        self.opaque = 0
        self.version = 0
        self.names = address(BLOB)
        self.lengths = address(LENGTHS)
        self.members = address(_MEMBER_BLOB)
        self.member_lengths = address(_MEMBER_LENGTHS)
        self.truth = address(_TRUTH)
        self.changes = address(_CHANGES)
        self.key = 0
        self.key_length = 0
        self.value = 0
        self.opaque_at = 0
        self.opaque_end = 0
        self.fields_max = fields_max
        self._kept = bytearray(words.SHAPE_BYTES_MAX)
        self.shape = address(self._kept)
        self.shape_bytes = 0
        self.misses = 0
        self.parts = 0
        self.shape_code = 0
        self.shape_opaque = 0
        self.shape_flag = 0
        self.shape_version = 0
        self.shape_keys = 0
        self.shape_letters = 0
        self.shape_odd = False
        if not cython.compiled:
            self.part_slot = [0] * words.SHAPE_PARTS
            self.part_how = [0] * words.SHAPE_PARTS
            self.part_kind = [0] * words.SHAPE_PARTS
            self.part_at = [0] * words.SHAPE_PARTS
            self.part_length = [0] * words.SHAPE_PARTS

    def look(self, kind: int, header: bytes, size: int = -1) -> dict[str, bytes] | None:
        """The fields of a header, the first `size` bytes, by their long names, for callers that are not compiled; None
        when it is not ours.
        """
        base = address(header)
        size = len(header) if size < 0 else size
        known = self.binary(base, 0, size) if kind == words.BINARY else self.json(base, 0, size)
        return {NAMES[slot]: self.text(slot) for slot in range(SLOTS) if self.kind[slot]} if known else None

    # -- scanning ----------------------------------------------------------------------------------------------

    def clear(self, base: Readable) -> None:
        """Forget the last frame; the next lies in `base`."""
        self.base = base
        self.bad = -1
        self.keys = 0
        self.letters = 0
        self.odd = False
        self.code = -1
        self.flag = 0
        self.opaque = 0
        self.opaque_end = 0  # it may have none
        self.version = 0
        for slot in range(SLOTS):
            self.kind[slot] = words.ABSENT

    def slot_of(self, p: int, n: int) -> int:
        """The slot of one more field, by its name, or -1."""
        self.keys += 1
        if n == 1:
            self.letters += 1
            slot = self.base[p] - words.LETTER_A
            if 0 <= slot < words.LETTERS:
                return slot
        else:
            for slot in range(SLOTS):
                if self.lengths[slot] == n and same(self.base, p, self.names, slot * words.SLOT_WIDTH, n):
                    return slot
        self.odd = True
        return -1

    def binary(self, base: Readable, p: int, n: int) -> bool:
        """Scan a ROCKETMQ (binary) header of n bytes at p; False when it is not one, or is unusual."""
        self.clear(base)
        end = p + n
        if n < words.BINARY_HEADER_BYTES + 2 * words.LENGTH_BYTES:
            return False
        code = be16(base, p)
        self.code = code if code <= words.INT16_MAX else code - words.INT16_RANGE
        version = be16(base, p + words.BINARY_VERSION)
        self.version = version if version <= words.INT16_MAX else version - words.INT16_RANGE
        self.opaque = be32(base, p + words.BINARY_OPAQUE)
        self.flag = be32(base, p + words.BINARY_FLAG)
        p += words.BINARY_HEADER_BYTES
        length = be32(base, p)
        p += words.LENGTH_BYTES
        if length < 0 or p + length + words.LENGTH_BYTES > end or not utf8(base, p, length, 0):
            return False
        p += length
        length = be32(base, p)
        p += words.LENGTH_BYTES
        if length < 0 or p + length != end:
            return False
        keys = 0
        while p < end:
            if p + 2 > end:
                return False
            length = be16(base, p)
            p += 2
            keys += 1
            if length > words.INT16_MAX or p + length + words.LENGTH_BYTES > end or keys > self.fields_max:
                return False
            slot = self.slot_of(p, length)
            if slot >= 0:
                if self.kind[slot] != words.ABSENT:
                    return False
            elif not utf8(base, p, length, 0):
                return False
            p += length
            length = be32(base, p)
            p += words.LENGTH_BYTES
            if length < 0 or p + length > end or not utf8(base, p, length, 0):
                return False
            if slot >= 0:
                self.kind[slot] = words.PLAIN
                self.at[slot] = p
                self.length[slot] = length
            p += length
        return True

    def json(self, base: Readable, p: int, n: int) -> bool:
        """Scan a JSON header of n bytes at p; False when it is not the flat object this scanner knows."""
        if self.shape_bytes > 0 and self._as_before(base, p, p + n):
            self.misses = 0
            return True
        if not self._whole_json(base, p, n):
            return False
        self.misses += 1
        # Headers that are always others are kept now and then only: keeping one costs a tenth of a scan.
        if n <= words.SHAPE_BYTES_MAX and (self.misses <= words.SHAPE_MISSES or self.misses % words.SHAPE_RETRY == 0):
            self._keep(p, n)
        return True

    def _keep(self, p: int, n: int) -> None:
        """Keep the header of n bytes at p, which was just scanned, as the shape of the next; its parts by position."""
        copy(self.shape, 0, self.base, p, n)
        self.shape_bytes = n
        self.shape_code = self.code
        self.shape_opaque = self.opaque
        self.shape_flag = self.flag
        self.shape_version = self.version
        self.shape_keys = self.keys
        self.shape_letters = self.letters
        self.shape_odd = self.odd
        self.parts = 0
        if self.opaque >= 0 and self.opaque_end > 0:
            self._keep_part(
                words.NO_SLOT, words.NUMBER, words.PLAIN, self.opaque_at - p, self.opaque_end - self.opaque_at
            )
        for slot in range(SLOTS):
            if self.kind[slot] != words.ABSENT:
                at = self.at[slot]
                how = self.changes[slot] if self.base[at - 1] == words.QUOTE else words.FIXED
                self._keep_part(slot, how, self.kind[slot], at - p, self.length[slot])

    def _keep_part(self, slot: int, how: int, kind: int, at: int, length: int) -> None:
        i = self.parts
        while i > 0 and self.part_at[i - 1] > at:
            self.part_slot[i] = self.part_slot[i - 1]
            self.part_how[i] = self.part_how[i - 1]
            self.part_kind[i] = self.part_kind[i - 1]
            self.part_at[i] = self.part_at[i - 1]
            self.part_length[i] = self.part_length[i - 1]
            i -= 1
        self.part_slot[i] = slot
        self.part_how[i] = how
        self.part_kind[i] = kind
        self.part_at[i] = at
        self.part_length[i] = length
        self.parts += 1

    def _as_before(self, base: Readable, p: int, end: int) -> bool:
        """Whether the header has the kept shape; then it is scanned. What is not compared is a number of digits, or a text
        that ends where its quote does: the structure around them is that of a header that was sound.
        """
        self.clear(base)
        self.opaque = self.shape_opaque  # a negative one is compared
        old = 0  # compared up to here in the shape, and up to p in the header
        for i in range(self.parts):
            slot, how, gap = self.part_slot[i], self.part_how[i], self.part_at[i] - old
            start = p + gap
            if how == words.FIXED:  # the comparison with what lies around it covers it
                self.kind[slot] = self.part_kind[i]
                self.at[slot] = start
                self.length[slot] = self.part_length[i]
                continue
            if start >= end or not same(base, p, self.shape, old, gap):
                return False
            kind = words.PLAIN
            if how == words.NUMBER:
                q = start
                while q < end and words.DIGIT_0 <= base[q] <= words.DIGIT_9:
                    q += 1
                if q == start:
                    return False
            else:
                q = find2(base, start, end, words.QUOTE, words.BACKSLASH)
                if q < 0:
                    return False
                if base[q] == words.BACKSLASH:
                    kind = words.ESCAPED
                    q = _string_end(base, q, end)
                    if q < 0:
                        return False
                if not utf8(base, start, q - start, words.PRINTABLE):
                    return False
            if slot == words.NO_SLOT:
                if self._whole(start, end) != q or self.value > words.INT32_MAX:
                    return False
                self.opaque = self.value
            else:
                self.kind[slot] = kind
                self.at[slot] = start
                self.length[slot] = q - start
            old = self.part_at[i] + self.part_length[i]
            p = q
        if self.shape_bytes - old != end - p or not same(base, p, self.shape, old, end - p):
            return False
        self.code = self.shape_code
        self.flag = self.shape_flag
        self.version = self.shape_version
        self.keys = self.shape_keys
        self.letters = self.shape_letters
        self.odd = self.shape_odd
        return True

    def _whole_json(self, base: Readable, p: int, n: int) -> bool:
        self.clear(base)
        end = p + n
        while end > p and (
            base[end - 1] == words.SPACE
            or base[end - 1] == words.CARRIAGE_RETURN
            or words.TAB <= base[end - 1] <= words.LINE_FEED
        ):
            end -= 1  # the C++ client ends its header with a newline
        if not utf8(base, p, end - p, words.PRINTABLE):
            return False
        p = _blank(self.base, p, end)
        if p >= end or base[p] != words.BRACE:
            return False
        p += 1
        seen = 0
        while True:
            p = self._key(p, end)
            if p < 0:
                return False
            member = self._member()
            if seen & member:
                return False
            seen |= member
            c = base[p]
            if member == words.EXT_FIELDS:
                if c != words.BRACE:
                    return False
                p = self._fields(p + 1, end)
            elif member != 0:
                start = p
                p = self._whole(p, end)
                if p < 0 or self.value < -words.INT32_MAX or self.value > words.INT32_MAX:
                    return False
                if member == words.CODE:
                    self.code = self.value
                elif member == words.FLAG:
                    self.flag = self.value
                elif member == words.OPAQUE:
                    self.opaque = self.value
                    self.opaque_at = start
                    self.opaque_end = p
                else:
                    self.version = self.value
            elif c == words.QUOTE:
                p = _string_end(self.base, p + 1, end) + 1
                if p == 0:
                    return False
            else:
                p = self._whole(p, end)
            if p < 0:
                return False
            p = _blank(self.base, p, end)
            if p >= end:
                return False
            if base[p] == words.BRACE_END:
                break
            if base[p] != words.COMMA:
                return False
            p += 1
        return self.code >= 0 and _blank(self.base, p + 1, end) == end

    def _fields(self, p: int, end: int) -> int:
        """The members of extFields; the position behind its brace, or -1."""
        base = self.base
        p = _blank(self.base, p, end)
        if p < end and base[p] == words.BRACE_END:
            return p + 1
        keys = 0
        while True:
            p = self._key(p, end)
            keys += 1
            if p < 0 or keys > self.fields_max:
                return -1
            slot = self.slot_of(self.key, self.key_length)
            if slot >= 0 and self.kind[slot] != words.ABSENT:
                return -1
            start = p
            kind = words.PLAIN
            if base[p] == words.QUOTE:
                start = p + 1
                q = find2(base, start, end, words.QUOTE, words.BACKSLASH)
                if q < 0:
                    return -1
                if base[q] == words.BACKSLASH:
                    kind = words.ESCAPED
                    q = _string_end(self.base, q, end)
                    if q < 0:
                        return -1
                p = q + 1
            else:
                self.odd = True
                p = self._word(p, end)
                if p < 0:
                    return -1
                q = p
            if slot >= 0:
                self.kind[slot] = kind
                self.at[slot] = start
                self.length[slot] = q - start
            p = _blank(self.base, p, end)
            if p >= end:
                return -1
            if base[p] == words.BRACE_END:
                return p + 1
            if base[p] != words.COMMA:
                return -1
            p += 1

    def _key(self, p: int, end: int) -> int:
        """Take a member's name, without escapes, and its colon; where the value begins, or -1."""
        p = _blank(self.base, p, end)
        if p >= end or self.base[p] != words.QUOTE:
            return -1
        q = find2(self.base, p + 1, end, words.QUOTE, words.BACKSLASH)
        if q < 0 or self.base[q] == words.BACKSLASH:
            return -1
        self.key = p + 1
        self.key_length = q - p - 1
        p = _blank(self.base, q + 1, end)
        if p >= end or self.base[p] != words.COLON:
            return -1
        p = _blank(self.base, p + 1, end)
        return p if p < end else -1

    def _member(self) -> int:
        """Which member of a header the key names: 0 for one that is passed over."""
        for i in range(words.MEMBERS):
            if self.member_lengths[i] == self.key_length and same(
                self.base, self.key, self.members, i * words.SLOT_WIDTH, self.key_length
            ):
                return 1 << i
        return 0

    def _word(self, p: int, end: int) -> int:
        """Behind a whole number, true or false, or -1. Java reads a null as no field: rare, and not ours."""
        left = end - p
        if left > words.TRUE_BYTES and same(self.base, p, self.truth, 0, words.TRUE_BYTES):
            return p + words.TRUE_BYTES  # type: ignore[no-any-return]
        if left > words.FALSE_BYTES and same(self.base, p, self.truth, words.TRUE_BYTES, words.FALSE_BYTES):
            return p + words.FALSE_BYTES  # type: ignore[no-any-return]
        return self._whole(p, end)

    def _whole(self, p: int, end: int) -> int:
        """Read a whole number as JSON writes it into `value`; the position behind it, or -1."""
        base = self.base
        negative = p < end and base[p] == words.MINUS
        if negative:
            p += 1
        start = p
        value = 0
        while p < end and words.DIGIT_0 <= base[p] <= words.DIGIT_9:
            if p - start == words.DIGITS_MAX:
                return -1
            value = value * words.TEN + base[p] - words.DIGIT_0
            p += 1
        if p == start or (base[start] == words.DIGIT_0 and (p - start > 1 or negative)):
            return -1  # no digits, leading zeros, and -0, whose text is another
        if p < end and (base[p] == words.POINT or (base[p] | words.LOWER_CASE) == 101):
            return -1
        self.value = -value if negative else value
        return p


# -- the characters of a JSON text ------------------------------------------------------------------------------------


def _string_end(base: Readable, p: int, end: int) -> int:
    """The closing quote of a string, looked for from p on, or -1 when it has none or an escape is not sound."""
    while True:
        p = find2(base, p, end, words.QUOTE, words.BACKSLASH)
        if p < 0 or base[p] == words.QUOTE:
            return p
        if p + 1 >= end:
            return -1
        c = base[p + 1]
        if c == 117:
            unit = _unit(base, p, end)
            p += words.UNICODE_ESCAPE_BYTES
            if unit < 0 or words.LOW_SURROGATE <= unit < words.SURROGATE_END:
                return -1
            if words.HIGH_SURROGATE <= unit < words.LOW_SURROGATE:
                unit = _unit(base, p, end)
                p += words.UNICODE_ESCAPE_BYTES
                if unit < words.LOW_SURROGATE or unit >= words.SURROGATE_END:
                    return -1
        elif (
            c == words.QUOTE
            or c == words.SLASH
            or c == words.BACKSLASH
            or c == 98
            or c == 102
            or c == 110
            or c == 114
            or c == 116
        ):
            p += 2
        else:
            return -1


def _unit(base: Readable, p: int, end: int) -> int:
    """The UTF-16 unit that the escape at p spells, or -1 when there is none."""
    if p + words.UNICODE_ESCAPE_BYTES > end or base[p] != words.BACKSLASH or base[p + 1] != 117:
        return -1
    return hex4(base, p + 2)


def _blank(base: Readable, p: int, end: int) -> int:
    while p < end and base[p] == words.SPACE:
        p += 1
    return p
