"""Small files beside the log, for people: epochs, what a set has confirmed, staged rows, users. Nothing is written."""

from __future__ import annotations

import json
import re
import struct
import tomllib
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

from penstock.log import epochs
from penstock.wire import staged

Entry = dict[str, object]

_CONFIRMED = struct.Struct(">QI")  # position, CRC-32 of it
_TOKEN = re.compile(r"[0-9a-f]{8,64}")
_SECRETS = ("secret", "secretKey", "tokens")


def inspect(path: Path) -> Iterator[Entry] | None:
    """What stands in such a file; None when it is none of them."""
    name = path.name
    if name in ("epochs", "epochs.bak") and path.parent.name == "ha":
        return _of_epochs(path)
    if name == "confirmed" and path.parent.name == "ha":
        return _of_confirmed(path)
    if _TOKEN.fullmatch(name) and path.parent.name == "staging":
        return _of_spool(path)
    if name == "users.toml":
        return _of_users(path)
    return None


def _of_epochs(path: Path) -> Iterator[Entry]:
    try:
        for number, tag, start in epochs.decode(path.read_bytes()):
            yield {"kind": "epoch", "number": number, "tag": tag.hex(), "start": start}
    except ValueError as error:
        yield {"kind": "damage", "why": str(error)}


def _of_confirmed(path: Path) -> Iterator[Entry]:
    data = path.read_bytes()
    if len(data) != _CONFIRMED.size or crc32(data[:8]) != _CONFIRMED.unpack(data)[1]:
        yield {"kind": "damage", "why": "the sum does not hold: it counts as 0"}
    else:
        yield {"kind": "confirmed", "position": _CONFIRMED.unpack(data)[0]}


def _of_spool(path: Path) -> Iterator[Entry]:
    """The head, each chunk with its pieces, and the seal; up to what cannot be."""
    data = path.read_bytes()
    try:
        magic, version, size = staged.HEADER.unpack_from(data)
        at = staged.HEADER.size + size
        head = data[staged.HEADER.size : at]
        if magic != staged.MAGIC or staged.U32.unpack_from(data, at)[0] != crc32(head):
            raise ValueError("the sum of its head does not hold")
        yield {"kind": "header", "version": version, **json.loads(head)}
        at += staged.U32.size
        expected = 1
        while at < len(data):
            number, size, told = staged.CHUNK.unpack_from(data, at)
            begin = at + staged.CHUNK.size
            body = data[begin : begin + size]
            if len(body) != size or crc32(body) != told:
                raise ValueError(f"the sum does not hold at byte {at}")
            if number not in (0, expected):
                raise ValueError(f"chunk {number} at byte {at} stands where {expected} should")
            expected += 1
            if number == 0:
                rows, chunk_bytes, _, _ = staged.SEAL.unpack(body)
                yield {"kind": "seal", "position": at, "rows": rows, "bytes": chunk_bytes}
            else:
                yield {"kind": "chunk", "position": at, "number": number, "size": size}
                yield from _pieces(body)
            at = begin + size
    except (ValueError, struct.error) as error:
        yield {"kind": "damage", "why": str(error)}


def _pieces(chunk: bytes) -> Iterator[Entry]:
    at = 0
    while at < len(chunk):
        rest, kind, size = staged.PIECE.unpack_from(chunk, at)
        place = at + staged.PIECE.size
        queue_id, _, born_ms, count = staged.PLACE.unpack_from(chunk, place + size)
        yield {
            "kind": "piece", "topic": chunk[place : place + size].decode("utf-8", "backslashreplace"), "queueId": queue_id,
            "messages": count, "born": born_ms, "delayed": kind == staged.DELAYED,
        }  # fmt: skip
        at += staged.U32.size + rest


def _of_users(path: Path) -> Iterator[Entry]:
    """The users without what they prove themselves with."""
    try:
        told = tomllib.loads(path.read_text())
    except ValueError as error:
        yield {"kind": "damage", "why": str(error)}
        return
    for name, found in told.items():
        for one in found if isinstance(found, list) else [found]:
            if isinstance(one, dict):
                yield {"kind": name, **{key: value for key, value in one.items() if key not in _SECRETS}}
