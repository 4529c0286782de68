"""A remoting header, scanned in place: where each field of a hot request lies, without making an object of it.

Only what SEND (10, 310, 320) and PULL (11, 361) carry is looked for; every other field is checked and passed over. A
scan answers True only for a header that `wire.remoting.decode` reads, too, and then both give the same fields. False
means "not mine": broken bytes, and all that is sound but unusual (blanks with control characters, nesting, floats, an
escaped name, a field given twice). Such a frame goes through `wire.remoting`, which knows all of the format.
Format: docs/protocol.md, and rocketmq.md §1.1, §1.2, §3.2.
"""

from __future__ import annotations

import cython

from penstock.octets import Readable, Writable

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, be16, be32, copy, find, find2, same, utf8
    from cython.cimports.penstock.wire import fields
else:
    from penstock import words
    from penstock.octets import address, be16, be32, copy, find, find2, same, utf8
    from penstock.wire import fields

SLOTS = 26

# The field of each slot. 0 to 13 are SEND's, in the order of V2's one-letter names a to n; PULL shares topic, queueId and
# sysFlag with it and goes on from 14. The last two say who asks, and prove it.
# fmt: off
NAMES = (
    "producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag",
    "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch", "bname",
    "consumerGroup", "queueOffset", "maxMsgNums", "commitOffset", "suspendTimeoutMillis",
    "subscription", "subVersion", "expressionType", "durable", "maxBytes", "AccessKey", "Signature",
)
# fmt: on
_BLOB = b"".join(name.encode().ljust(24, b"\0") for name in NAMES)  # words.SLOT_WIDTH; the longest has 21 bytes
_LENGTHS = bytes(len(name) for name in NAMES)
_MEMBERS = ("code", "flag", "opaque", "version", "extFields")  # words.CODE to words.EXT_FIELDS, a bit each
_MEMBER_BLOB = b"".join(name.encode().ljust(24, b"\0") for name in _MEMBERS)
_MEMBER_LENGTHS = bytes(len(name) for name in _MEMBERS)
_TRUTH = b"truefalse"
# The slots in the order of their names, as a signature covers them: with SEND V2's letters, and with long names.
_BY_LETTER = bytes((24, *range(14)))
_BY_NAME = bytes(sorted(range(SLOTS - 1), key=NAMES.__getitem__))


class HeaderScan:
    """The outcome of one scan; reused for every frame of a session. `kind` is ABSENT, PLAIN or ESCAPED."""

    def __init__(self, fields_max: int = words.EXT_KEYS_MAX) -> None:
        self.code = 0
        self.flag = 0
        self.opaque = 0
        self.version = 0
        self.names = address(_BLOB)
        self.lengths = address(_LENGTHS)
        self.base: Readable = self.names
        self.members = address(_MEMBER_BLOB)
        self.member_lengths = address(_MEMBER_LENGTHS)
        self.truth = address(_TRUTH)
        self.key = 0
        self.key_length = 0
        self.value = 0
        self.bad = -1
        self.fields_max = fields_max
        self.keys = 0  # ext fields, and those of them that have one letter
        self.letters = 0
        self.odd = False  # one is unknown, or no text: what a signature covers is not all here
        self.by_letter = address(_BY_LETTER)
        self.by_name = address(_BY_NAME)
        if not cython.compiled:
            self.kind = [0] * SLOTS
            self.at = [0] * SLOTS
            self.length = [0] * SLOTS

    def look(self, kind: int, header: bytes, size: int = -1) -> dict[str, bytes] | None:
        """The fields of a header, the first `size` bytes, by their long names, for callers that are not compiled; None
        when it is not ours.
        """
        base = address(header)
        size = len(header) if size < 0 else size
        known = self.binary(base, 0, size) if kind == words.BINARY else self.json(base, 0, size)
        return {NAMES[slot]: self.text(slot) for slot in range(SLOTS) if self.kind[slot]} if known else None

    # -- what was found ----------------------------------------------------------------------------------------

    def number(self, slot: int, default: int) -> int:
        """The integer in a slot, or the default when it is absent. Text that is no integer sets `bad` to the slot."""
        n = self.length[slot]
        if self.kind[slot] == words.ABSENT:
            return default
        p = self.at[slot]
        end = p + n
        negative = n > 1 and self.base[p] == words.MINUS
        if negative:
            p += 1
        if self.kind[slot] != words.PLAIN or p == end:
            self.bad = slot
            return default
        value = 0
        while p < end:
            digit = self.base[p] - words.DIGIT_0
            if digit < 0 or digit >= words.TEN or value > words.INT64_TENTH:  # the next digit might not fit 63 bits
                self.bad = slot
                return default
            value = value * words.TEN + digit
            p += 1
        return -value if negative else value

    def true(self, slot: int) -> bool:
        """Whether a boolean field says true, in any case of letters."""
        p = self.at[slot]
        return bool(
            self.kind[slot] == words.PLAIN
            and self.length[slot] == words.TRUE_BYTES
            and (self.base[p] | words.LOWER_CASE) == 116
            and (self.base[p + 1] | words.LOWER_CASE) == 114
            and (self.base[p + 2] | words.LOWER_CASE) == 117
            and (self.base[p + words.TRUE_BYTES - 1] | words.LOWER_CASE) == 101
        )

    def text(self, slot: int) -> bytes:
        """The bytes of a field (UTF-8), without escapes; empty when absent."""
        n = self.length[slot]
        if self.kind[slot] == words.ABSENT or n == 0:
            return b""
        p = self.at[slot]
        if self.kind[slot] == words.PLAIN:
            return bytes(self.base[p : p + n])
        room = bytearray(n)
        n = self.unescape(slot, address(room), 0)
        return bytes(room[:n])

    def unescape(self, slot: int, to: Writable, tp: int) -> int:
        """Write a field without its JSON escapes at a position of a buffer that has room; how many bytes it became.

        The scan has found every escape sound.
        """
        p = self.at[slot]
        end = p + self.length[slot]
        start = tp
        if self.kind[slot] == words.PLAIN:
            copy(to, tp, self.base, p, end - p)
            return end - p
        while p < end:
            q = find(self.base, p, end, words.BACKSLASH)
            if q < 0:
                q = end
            if q > p:
                copy(to, tp, self.base, p, q - p)
                tp += q - p
                p = q
            if p >= end:
                break
            c = self.base[p + 1]
            if c == 117:  # \uXXXX
                unit = _hex4(self.base, p + 2)
                p += words.UNICODE_ESCAPE_BYTES
                if words.HIGH_SURROGATE <= unit < words.SURROGATE_END:
                    unit = (unit - words.HIGH_SURROGATE) << words.SURROGATE_BITS
                    unit += words.BEYOND_16_BITS + _hex4(self.base, p + 2) - words.LOW_SURROGATE
                    p += words.UNICODE_ESCAPE_BYTES
                tp = _utf8(unit, to, tp)
            else:
                if c == 110:
                    c = words.LINE_FEED
                elif c == 116:
                    c = words.TAB
                elif c == 114:
                    c = words.CARRIAGE_RETURN
                elif c == 98:
                    c = words.BACKSPACE
                elif c == 102:
                    c = words.FORM_FEED
                to[tp] = c
                tp += 1
                p += 2
        return tp - start

    # -- what a signature covers -------------------------------------------------------------------------------

    def signed(self, header: int, body: int, end: int) -> bytearray | None:
        """What the signature of the scanned request covers: the values by ascending name, then the body, in [body, end).

        None when that cannot be told from the slots: `wire.acl` finds it in the decoded request.
        """
        if self.odd or self.kind[fields.SIGNATURE] == words.ABSENT or self.kind[fields.ACCESS_KEY] == words.ABSENT:
            return None
        if self.letters == 0:
            order, count = self.by_name, SLOTS - 1
        elif self.letters == self.keys - 2:
            order, count = self.by_letter, words.LETTERS + 1
        else:
            return None
        content = bytearray(end - header)  # no value is longer than in the header
        to = address(content)
        tp = 0
        for i in range(count):
            slot = order[i]
            if self.kind[slot] != words.ABSENT:
                tp += self.unescape(slot, to, tp)
        copy(to, tp, self.base, body, end - body)
        return content[: tp + end - body]

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
                p = self._whole(p, end)
                if p < 0 or self.value < -words.INT32_MAX or self.value > words.INT32_MAX:
                    return False
                if member == words.CODE:
                    self.code = self.value
                elif member == words.FLAG:
                    self.flag = self.value
                elif member == words.OPAQUE:
                    self.opaque = self.value
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


def _utf8(unit: int, to: Writable, tp: int) -> int:
    """Write one code point as UTF-8; the position behind it."""
    if unit < words.UTF8_ONE_BYTE_END:
        to[tp] = unit
        return tp + 1
    more = 1
    lead = words.UTF8_TWO_BYTES
    if unit >= words.BEYOND_16_BITS:
        more = words.UTF8_FOUR_BYTES_MORE
        lead = words.UTF8_FOUR_BYTES
    elif unit >= words.UTF8_TWO_BYTES_END:
        more = 2
        lead = words.UTF8_THREE_BYTES
    to[tp] = lead | unit >> more * words.UTF8_NEXT_BITS
    while more > 0:
        more -= 1
        tp += 1
        to[tp] = words.UTF8_NEXT_BYTE | unit >> more * words.UTF8_NEXT_BITS & words.UTF8_NEXT_MASK
    return tp + 1


def _hex4(base: Readable, p: int) -> int:
    """The number that four hexadecimal digits spell, or -1."""
    value = 0
    for i in range(words.HEX4):
        c = base[p + i]
        if words.DIGIT_0 <= c <= words.DIGIT_9:
            c -= words.DIGIT_0
        else:
            c = (c | words.LOWER_CASE) - words.HEX_LETTERS
            if c < words.TEN or c > words.HEX_DIGIT_MAX:
                return -1
        value = value << words.HEX_BITS | c
    return value


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
    return _hex4(base, p + 2)


def _blank(base: Readable, p: int, end: int) -> int:
    while p < end and base[p] == words.SPACE:
        p += 1
    return p
