"""What a scan of a remoting header found: where the text of each field lies, and what it says.

A slot is a place for one field of a hot request. Texts lie where they came in, with their JSON escapes; nothing is an
object until somebody asks for one.
"""

from __future__ import annotations

import cython

from penstock.octets import Readable, Writable

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.octets import address, copy, find
    from cython.cimports.penstock.wire import fields
else:
    from penstock import words
    from penstock.octets import address, copy, find
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
BLOB = b"".join(name.encode().ljust(24, b"\0") for name in NAMES)  # words.SLOT_WIDTH; the longest has 21 bytes
LENGTHS = bytes(len(name) for name in NAMES)
# The slots in the order of their names, as a signature covers them: with SEND V2's letters, and with long names.
_BY_LETTER = bytes((24, *range(14)))
_BY_NAME = bytes(sorted(range(SLOTS - 1), key=NAMES.__getitem__))


class Slots:
    """The fields of one header, in the frame at `base`. `kind` is ABSENT, PLAIN or ESCAPED."""

    def __init__(self) -> None:
        self.base: Readable = address(BLOB)
        self.bad = -1
        self.keys = 0  # ext fields, and those of them that have one letter
        self.letters = 0
        self.odd = False  # one is unknown, or no text: what a signature covers is not all here
        self.by_letter = address(_BY_LETTER)
        self.by_name = address(_BY_NAME)
        if not cython.compiled:
            self.kind = [0] * SLOTS
            self.at = [0] * SLOTS
            self.length = [0] * SLOTS

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
                unit = hex4(self.base, p + 2)
                p += words.UNICODE_ESCAPE_BYTES
                if words.HIGH_SURROGATE <= unit < words.SURROGATE_END:
                    unit = (unit - words.HIGH_SURROGATE) << words.SURROGATE_BITS
                    unit += words.BEYOND_16_BITS + hex4(self.base, p + 2) - words.LOW_SURROGATE
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


def hex4(base: Readable, p: int) -> int:
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
