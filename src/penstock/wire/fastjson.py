"""The JSON that Java peers write, which is not quite JSON, and the JSON we write for them.

Java's fastjson writes a map with integer keys as ``{0:"x"}`` and a map with object keys as ``{{"topic":"T"}:5}``.
`loads` reads both and proper JSON; `dumps` quotes integer keys, as every client can read, but writes object keys
literally, because Java's tools read nothing else. In Python such a map is a `Pairs`: (key, value) in a row.
What Go peers write is JSON; `folded` finds the fields in it that Go would.
"""

from __future__ import annotations

import re
from collections import UserList
from typing import Any

import msgspec

from penstock.errors import WireError

JsonObject = dict[str, Any]  # what a peer wrote, or what is written for one

DEPTH_MAX = 32  # nested objects and arrays
BAD_JSON = (msgspec.DecodeError, RecursionError, ValueError)  # everything that msgspec raises for bytes it cannot read

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)
_STRING_OR_REST = re.compile(
    rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL
)  # never tried again from a later quote: linear
_AS_BRACES = bytes.maketrans(b"[]", b"{}")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_OPENING = ord("{")
_BLANKS = re.compile(rb"[ \t\r\n]*")
_SCALAR = re.compile(rb"true|false|null|-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][+-]?[0-9]{1,3})?")
_any = msgspec.json.Decoder()


class Pairs(UserList[tuple[JsonObject, object]]):
    """A map whose keys are objects, as (key, value) in the order it was written. No `list`, as which msgspec would write it."""


def _literal(value: object) -> msgspec.Raw:
    """What msgspec does not know."""
    if not isinstance(value, Pairs):
        raise TypeError(f"no JSON can be made of {type(value).__name__}")
    return msgspec.Raw(b"{" + b",".join(dumps(key) + b":" + dumps(item) for key, item in value) + b"}")


_encode = msgspec.json.Encoder(enc_hook=_literal).encode


def check_depth(data: bytes, depth_max: int = DEPTH_MAX) -> None:
    """WireError when objects and arrays are nested deeper than this."""
    if data.count(b"{") + data.count(b"[") <= depth_max:
        return
    # Ten thousand topics are a megabyte: what can be done by calls that go through all of it is.
    outside = _STRING_OR_REST.sub(b"", data) if b"\\" in data else b"".join(data.split(b'"')[::2])
    nest = left = outside.translate(_AS_BRACES, _NO_BRACKETS)
    for _ in range(depth_max):
        left = left.replace(b"{}", b"")  # the innermost ones
        if not left:
            return
    depth = 0
    for byte in nest:
        depth += 1 if byte == _OPENING else -1
        if depth > depth_max:
            raise WireError(f"JSON nested deeper than {depth_max}", "json_depth")


def folded(table: JsonObject) -> JsonObject:
    """An object with its names in small letters. To Go their case does not matter: the last one that is not null counts."""
    found: JsonObject = {}
    for name, value in table.items():
        if value is not None or name.lower() not in found:
            found[name.lower()] = value
    return found


def loads(data: bytes) -> Any:
    """The value in a JSON body, proper or Java's. WireError for anything else."""
    check_depth(data)
    try:
        return _any.decode(data)
    except BAD_JSON:
        return _Reader(data).read()


def dumps(value: object) -> bytes:
    """The value as Java peers read it: integer keys quoted, the object keys of `Pairs` literal."""
    return _encode(value)


class _Reader:
    """A recursive reader of Java's dialect; `check_depth` has limited the recursion."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def read(self) -> Any:
        value = self.value()
        self.blanks()
        if self.at != len(self.data):
            raise WireError("bytes after the JSON value")
        return value

    def blanks(self) -> None:
        match = _BLANKS.match(self.data, self.at)
        self.at = match.end() if match else self.at

    def take(self, mark: bytes) -> bool:
        """Step over mark, if it is next."""
        self.blanks()
        if not self.data.startswith(mark, self.at):
            return False
        self.at += 1
        return True

    def expect(self, mark: bytes) -> None:
        if not self.take(mark):
            raise WireError(f"JSON: {mark.decode()} expected at byte {self.at}")

    def value(self) -> Any:
        if self.take(b"{"):
            return self.members()
        if self.take(b"["):
            return self.items()
        self.blanks()
        match = _STRING.match(self.data, self.at) or _SCALAR.match(self.data, self.at)
        if match is None:
            raise WireError(f"JSON: no value at byte {self.at}")
        self.at = match.end()
        try:
            return _any.decode(match[0])
        except BAD_JSON as error:
            raise WireError(f"JSON: {error}") from None

    def items(self) -> list[Any]:
        found: list[Any] = []
        if self.take(b"]"):
            return found
        while True:
            found.append(self.value())
            if self.take(b"]"):
                return found
            self.expect(b",")

    def members(self) -> JsonObject | Pairs:
        found: list[tuple[Any, Any]] = []
        if self.take(b"}"):
            return {}
        while True:
            key = self.value()
            self.expect(b":")
            found.append((key, self.value()))
            if self.take(b"}"):
                break
            self.expect(b",")
        if all(isinstance(key, dict) for key, _ in found):
            return Pairs(found)
        if any(isinstance(key, dict | list) for key, _ in found):
            raise WireError("JSON: a map with keys of several kinds")
        return {key if isinstance(key, str) else _encode(key).decode(): item for key, item in found}
