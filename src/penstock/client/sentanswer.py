"""The answer to a send, read where it lies: no object of the protocol is made of it.

    {"code":0,"extFields":{"msgId":"…","queueId":"3","queueOffset":"17",…},"flag":1,"opaque":5,…}

What is sound and unusual (an escape, a blank, a letter beyond ASCII, a word without quotes, a member given twice) is left to
`wire.remoting`, as is all that is broken.
"""

from __future__ import annotations

import cython

from penstock.octets import Readable

if cython.compiled:
    from cython.cimports.penstock import words
    from cython.cimports.penstock.client.received import text
    from cython.cimports.penstock.client.sentanswer import (
        CODE,
        END,
        EXT_FIELDS,
        FIRST_TEXT,
        FLAG,
        MSG_ID,
        NAME_WIDTH,
        OPAQUE,
        QUEUE_ID,
        QUEUE_OFFSET,
        TRANSACTION_ID,
    )  # fmt: skip
    from cython.cimports.penstock.octets import address, same
else:
    from penstock import words
    from penstock.client.received import text
    from penstock.octets import address, same

    # The numbers of an answer, the texts of its `extFields`, and those themselves.
    CODE, FLAG, OPAQUE, MSG_ID, QUEUE_ID, QUEUE_OFFSET, TRANSACTION_ID, EXT_FIELDS, END = range(9)
    FIRST_TEXT = MSG_ID
    NAME_WIDTH = 16

_NAMES = b"".join(
    name.ljust(NAME_WIDTH, b"\0")
    for name in (b"code", b"flag", b"opaque", b"msgId", b"queueId", b"queueOffset", b"transactionId", b"extFields")
)


class SentAnswer:
    """The answer that was read last: its numbers, -1 where there is none, and its texts."""

    def __init__(self) -> None:
        self.code = -1
        self.flag = -1
        self.opaque = -1
        self.queue_id = -1
        self.queue_offset = -1
        self._names = address(_NAMES)
        self._data = _NAMES  # what `_base` points into
        self._base: Readable = address(_NAMES)
        self._seen = 0  # members, a bit each
        if not cython.compiled:
            self._at = [0] * END
            self._size = [0] * END

    def read(self, data: bytes, begin: int, end: int) -> bool:
        """Whether these bytes are a header that can be read here; else nothing is known of it."""
        self._data, self._base = data, address(data)
        self._seen = 0
        known = begin < end and self._base[begin] == words.BRACE and self._object(begin + 1, end, False) == end
        if not known:
            self._seen = 0
        self.code, self.flag, self.opaque = self._number(CODE), self._number(FLAG), self._number(OPAQUE)
        self.queue_id, self.queue_offset = self._number(QUEUE_ID), self._number(QUEUE_OFFSET)
        return known

    def msg_id(self) -> str | None:
        """The id, or ids with commas between."""
        return self._text(MSG_ID)

    def transaction_id(self) -> str | None:
        """The id of a transaction's half message."""
        return self._text(TRANSACTION_ID)

    def _number(self, member: int) -> int:
        """The number that the digits of a member are; -1 where they are not, or there is none."""
        p, n, value = self._at[member], self._size[member], 0
        if not self._seen >> member & 1 or not 0 < n <= words.DIGITS_MAX:
            return -1
        if n > 1 and self._base[p] == words.DIGIT_0:
            return -1
        for i in range(n):
            digit = self._base[p + i] - words.DIGIT_0
            if digit < 0 or digit >= words.TEN:
                return -1
            value = value * words.TEN + digit
        return value

    def _text(self, member: int) -> str | None:
        return text(self._base, self._at[member], self._size[member]) if self._seen >> member & 1 else None

    def _object(self, p: int, end: int, ext: bool) -> int:
        """Read the members of an object, or of its `extFields`, from behind the brace; where they end, or -1."""
        base = self._base
        while p < end and base[p] == words.QUOTE:
            name = p + 1
            p = self._text_end(name, end)
            if p < 0 or p + 2 >= end or base[p + 1] != words.COLON:
                return -1
            member = self._member(name, p - name, ext)
            p += 2
            start, letter = p, base[p]
            if letter == words.QUOTE:
                start += 1
                p = self._text_end(start, end)
                if p < 0 or (member >= 0 and not ext):
                    return -1
                self._keep(member, start, p)
                p += 1
            elif letter == words.BRACE:
                p = -1 if member != EXT_FIELDS else self._object(p + 1, end, True)
                if p < 0:
                    return -1
                self._keep(member, start, p)
            else:
                while p < end and words.DIGIT_0 <= base[p] <= words.DIGIT_9:
                    p += 1
                if p == start or ext or member == EXT_FIELDS:
                    return -1
                if p - start > words.DIGITS_MAX or (base[start] == words.DIGIT_0 and p - start > 1):
                    return -1
                self._keep(member, start, p)
            if p >= end or self._seen >> END & 1:
                return -1
            p += 1
            if base[p - 1] == words.BRACE_END:
                return p
            if base[p - 1] != words.COMMA:
                return -1
        return -1

    def _text_end(self, p: int, end: int) -> int:
        """The quote behind a text; -1 where a control character, an escape or a letter beyond ASCII comes before it."""
        base = self._base
        while p < end:
            letter = base[p]
            if letter == words.QUOTE:
                return p
            if letter < words.PRINTABLE or letter == words.BACKSLASH or letter >= words.UTF8_ONE_BYTE_END:
                return -1
            p += 1
        return -1

    def _member(self, p: int, n: int, ext: bool) -> int:
        """Which one this name is, or -1."""
        if n < NAME_WIDTH:
            for member in range(FIRST_TEXT if ext else 0, EXT_FIELDS if ext else END):
                at = member * NAME_WIDTH
                if not self._names[at + n] and same(self._base, p, self._names, at, n):
                    return -1 if not ext and FIRST_TEXT <= member < EXT_FIELDS else member
        return -1

    def _keep(self, member: int, at: int, end: int) -> None:
        """A member lies there. One that comes twice is noted as `END`."""
        if member >= 0:
            if self._seen >> member & 1:
                member = END
            else:
                self._at[member], self._size[member] = at, end - at
            self._seen |= 1 << member
