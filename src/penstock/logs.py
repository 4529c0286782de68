"""The lines of the log: logfmt on a terminal, JSON otherwise; one event a line, with its fields.

    2026-11-20T10:00:00.123+01:00 level=info logger=penstock.net event="client left" protocol=nsq peer=127.0.0.1:5004

A caller writes `log.info("client left protocol=%s peer=%s", protocol, peer)`: what stands before the first `name=` is
the event, and each `name=` of the template is a field with the value that was given, whatever is in that value. A line
is never two: what would end it, or do something to a terminal, is written as an escape.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import NamedTuple, TextIO

FORMATS = ("auto", "logfmt", "json")
BURST, PERIOD_S = 100, 10.0  # lines of one kind in so many seconds; more are counted
TEMPLATES_MAX = 1_000
_ZONE_AT = 19  # behind the seconds
VALUE_CHARS_MAX = 8_000
_ALWAYS = ("penstock.audit", "penstock.serve")  # whatever their number
_OFTEN = ("penstock.net",)  # limited below a warning, too: one line for each client
_FIELD = re.compile(r"(?:^|(?<=[ ,;]))([a-z_]+)=(%(?:\d+)?(?:\.\d+)?[sdrgfx]|[a-z0-9-]+(?= |$))")
_WORD = re.compile(r"[^\s\"=\\]+")

Fields = dict[str, object]


class Part(NamedTuple):
    """A piece of a template: the name of its field, "" of the event; its text, and how many values that takes."""

    name: str
    text: str
    takes: int


@lru_cache(TEMPLATES_MAX)
def _parts(template: str) -> tuple[Part, ...]:
    """The event and the fields of a template; none where it has no field with a value."""
    found = list(_FIELD.finditer(template))
    if not any("%" in one[2] for one in found):
        return ()
    ends = [one.start() for one in found[1:]] + [len(template)]
    texts = [("", template[: found[0].start()])]
    texts += [(one[1], template[one.start(2) : end].rstrip()) for one, end in zip(found, ends, strict=True)]
    return tuple(Part(name, text, text.count("%") - 2 * text.count("%%")) for name, text in texts)


def fields_of(record: logging.LogRecord) -> tuple[str, Fields]:
    """The event of a record and its fields."""
    parts = _parts(str(record.msg))
    arguments = record.args if isinstance(record.args, tuple) else ()
    if not parts or sum(part.takes for part in parts) != len(arguments):
        return record.getMessage(), {}
    head = parts[0]
    event = (head.text % arguments[: head.takes]).rstrip(" :")
    fields: Fields = {}
    used = head.takes
    for name, text, count in parts[1:]:
        own, used = arguments[used : used + count], used + count
        plain = text in ("%s", "%d") and isinstance(own[0], int | float)
        fields[name] = own[0] if plain else text % own
    return event, fields


@lru_cache(1)
def _second_text(second: int) -> tuple[str, str]:
    """What stands before and behind the milliseconds of a second, with the zone of this machine."""
    text = datetime.fromtimestamp(second).astimezone().isoformat(timespec="seconds")
    return text[:_ZONE_AT], text[_ZONE_AT:]


def time_text(record: logging.LogRecord) -> str:
    """When, as RFC 3339 has it."""
    second = int(record.created // 1)
    before, behind = _second_text(second)
    micros = min(round((record.created - second) * 1_000_000), 999_999)
    return f"{before}.{micros // 1000:03}{behind}"


class Lines(logging.Formatter):
    """Makes the lines; `log_as`: a name for each."""

    def __init__(self, log_as: str, line: Callable[[Fields], str]) -> None:
        super().__init__()
        self._log_as = log_as
        self._line = line

    def format(self, record: logging.LogRecord) -> str:
        event, own = fields_of(record)
        fields: Fields = {"time": time_text(record), "level": record.levelname.lower()}
        if self._log_as:
            fields["broker"] = self._log_as
        fields |= {"logger": record.name, "event": event}
        for name, value in own.items():
            fields[f"{name}_" if name in fields else name] = value
        if left_out := getattr(record, "left_out", 0):
            fields["left_out"] = left_out
        if record.exc_info and record.exc_info[0] is not None:
            fields["traceback"] = self.formatException(record.exc_info)
        return self._line(fields)


def json_line(fields: Fields) -> str:
    """A JSON object."""
    inside = ", ".join([f'"{name}": {_json(_plain(value))}' for name, value in fields.items()])
    return f"{{{inside}}}"


def _json(value: object) -> str:
    """`json.dumps` takes three times as long for a text, and a new topic has a line."""
    return encode_basestring_ascii(value) if isinstance(value, str) else json.dumps(value)


def logfmt_line(fields: Fields) -> str:
    """`name=value` with spaces between, behind the time."""
    words = [str(fields["time"])]
    words += [f"{name}={_word(_plain(value))}" for name, value in fields.items() if name != "time"]
    return " ".join(words)


def _plain(value: object) -> object:
    if isinstance(value, bool | int | float):
        return value
    text = str(value)
    return text if len(text) <= VALUE_CHARS_MAX else text[:VALUE_CHARS_MAX] + "…"


def _word(value: object) -> str:
    text = str(value)
    return text if _WORD.fullmatch(text) and text.isprintable() else json.dumps(text, ensure_ascii=True)


class Limit(logging.Filter):
    """Lets through so many lines of one kind in a while; the next that goes through says how many were left out."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}  # template → its period's begin, lines in it

    def filter(self, record: logging.LogRecord) -> bool:
        name = record.name
        if name in _ALWAYS or record.levelno >= logging.CRITICAL:
            return True
        if record.levelno < logging.WARNING and name not in _OFTEN:
            return True
        kind, now_s = (name, str(record.msg)), self._now_s()
        since_s, count = self._kinds.get(kind, (now_s, 0))
        if now_s - since_s >= PERIOD_S:
            vars(record)["left_out"] = max(0, count - BURST)
            since_s, count = now_s, 0
        if len(self._kinds) >= TEMPLATES_MAX and kind not in self._kinds:
            self._kinds.clear()
        self._kinds[kind] = since_s, count + 1
        return count < BURST


def line_of(log_format: str, stream: TextIO) -> Callable[[Fields], str]:
    """What makes a line of this `log_format`, for a stream: auto is logfmt on a terminal and JSON otherwise."""
    if log_format == "auto":
        log_format = "logfmt" if stream.isatty() else "json"
    return logfmt_line if log_format == "logfmt" else json_line


def to_stderr(log_format: str = "auto", log_as: str = "") -> None:
    """Write what is logged to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines(log_as, line_of(log_format, sys.stderr)))
    handler.addFilter(Limit())
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, Lines):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    if os.name == "posix" and os.geteuid() == 0:
        logging.getLogger("penstock.serve").warning("running as root; a user of its own is safer")
