"""Names of topics and channels as NSQ has them, and what is said of one that is wrong."""

from __future__ import annotations

import re

from penstock.disk.readysegment import FULL
from penstock.errors import Refused
from penstock.wire.names import EPHEMERAL as EPHEMERAL
from penstock.wire.names import NSQ_NAME, NSQ_NAME_BYTES_MAX

NAME_BYTES_MAX = NSQ_NAME_BYTES_MAX

_SHORT = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v"}
_NAME = re.compile(NSQ_NAME)


def valid_nsq_name(name: bytes) -> bool:
    """Topic and channel names of NSQ, and LMQ's `#tmp` beside `#ephemeral`."""
    return 0 < len(name) <= NAME_BYTES_MAX and _NAME.fullmatch(name) is not None


def printable(name: bytes) -> str:
    """A name from the network in a message for people and peers, escaped as nsqd does it (Go's %q)."""
    return "".join(_escape(char) for char in name.decode("utf-8", "surrogateescape"))


def _escape(char: str) -> str:
    if char in '"\\':
        return "\\" + char
    if char.isprintable():
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    short = _SHORT.get(char)
    if short is not None:
        return short
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def refusal(answer: int) -> Refused:
    """Why a publish cannot be stored, from what `ready` answered; 0: it was not asked, for a flush has failed."""
    if answer == FULL:
        return Refused(
            "the disk is full, or a limit for files: nothing is stored until there is room",
            nsq="E_PUB_FAILED",
            http=503,
        )
    text = "the disk failed: restart the broker" if answer == 0 else "nothing can be stored: the broker's log says why"
    return Refused(text, nsq="E_PUB_FAILED", http=503)


def bad_channel(name: bytes) -> Refused:
    """No channel can have this name."""
    return Refused(f'channel name "{printable(name)}" is not valid', nsq="E_BAD_CHANNEL", http=400)


def too_many_channels(most: int) -> Refused:
    """One channel more is refused."""
    return Refused(f"no more than {most} channels of a topic", nsq="E_BAD_CHANNEL", http=400)
