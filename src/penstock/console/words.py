"""Figures as people read them. None, which is what is not known, is a dash, and never a zero."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import quote, unquote

DASH = "–"
_LAST_MS = 253_402_300_799_000
_MARK = "~"  # no topic, group or channel begins with it


def part(name: object) -> str:
    """A name as a part of a path. Browsers take the parts `.` and `..` away, however they are spelled: these names are marked."""
    text = str(name)
    return (_MARK if text in (".", "..") or text.startswith(_MARK) else "") + quote(text, safe="")


def name_of(text: str) -> str:
    """The name that such a part stands for."""
    return unquote(text).removeprefix(_MARK)


def count(value: float | None) -> str:
    """A number of messages."""
    return DASH if value is None else f"{round(value):,}"


def rate(value: float | None) -> str:
    """So many a second."""
    if value is None:
        return DASH
    if not value:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 0.01 else "<0.01"


def size(value: float | None) -> str:
    """Bytes."""
    if value is None:
        return DASH
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.3g} {unit}"
        value /= 1024
    return f"{value:,.3g} TiB"


def age(value: float | None) -> str:
    """Seconds."""
    if value is None:
        return DASH
    if value < 10:
        return f"{value:.1f} s" if value else "0 s"
    for limit, unit, step in ((120, "s", 1), (7_200, "min", 60), (172_800, "h", 3_600)):
        if value < limit:
            return f"{value / step:.0f} {unit}"
    return f"{value / 86_400:,.0f} d"


def share(value: float | None) -> str:
    """A part of a whole."""
    return DASH if value is None else f"{value * 100:.0f} %"


def moment(ms: float | None) -> str:
    """A time in ms, UTC."""
    if not ms or ms < 0:
        return DASH
    return datetime.fromtimestamp(min(ms, _LAST_MS) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def shown(body: str, view: str, encoding: str = "text") -> str:
    """A body as text, as JSON laid out where it is JSON, or in hexadecimal."""
    if view == "hex" or encoding == "base64":
        return _hex(body, encoding)
    if view == "json":
        try:
            return json.dumps(json.loads(body), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return body
    return body


def _hex(body: str, encoding: str) -> str:
    try:
        data = base64.b64decode(body, validate=True) if encoding == "base64" else body.encode()
    except (binascii.Error, ValueError):
        return body
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<47}  {letters}")
    return "\n".join(lines)


# Control characters but tab and line ends, what turns the direction of a line, and halves of characters.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def visible(value: object) -> object:
    """What a page writes, whatever it is: text in which each character that is not seen stands as an escape."""
    if not isinstance(value, str) or hasattr(value, "__html__") or not _UNSEEN.search(value):
        return value
    return _UNSEEN.sub(lambda found: found[0].encode("unicode_escape").decode(), value)


FILTERS: dict[str, Callable[..., str]] = {
    "count": count, "rate": rate, "size": size, "age": age, "share": share, "moment": moment, "shown": shown,
}  # fmt: skip
