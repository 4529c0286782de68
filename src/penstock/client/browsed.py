"""Messages as BROWSE shows them, with their whole bodies: it cuts off what is too large for one page."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Protocol

from penstock.client.routes import Json
from penstock.errors import ClientError

PIECE_BYTES = 7 << 20  # of a body that BROWSE gives


class WentAway(ClientError):
    """A message was taken while its body was read."""


class Pages(Protocol):
    """One broker's rows behind a place, and where to go on; with `body_from` one, from so many bytes on."""

    def __call__(self, after: str, body_from: int = 0) -> tuple[list[Json], str | None]:
        """A page."""


def browsed(pages: Pages) -> Iterator[Json]:
    """All rows, each with its whole body. WentAway when one went while it was read."""
    after: str | None = ""
    while after is not None:
        rows, following = pages(after)
        begin = after

        def more(body_from: int, begin: str = begin) -> Json | None:
            found, _ = pages(begin, body_from)  # what is cut off is a page's first row: it has no room behind another
            return found[0] if found else None

        for row in rows:
            yield whole(row, more)
        after = following


def whole(row: Json, more: Callable[[int], Json | None]) -> Json:
    """A row with its whole body: `more` gives it again with what is behind so many bytes. WentAway."""
    if not row["cut"]:
        return row
    body, piece = bytearray(), row
    while piece["id"] == row["id"] and (part := _part(piece)):
        body += part
        found = more(len(body)) if len(body) < row["size"] else None
        if found is None:
            break
        piece = found
    if len(body) != row["size"]:
        raise WentAway(f"message {row['id']} of {row['size']:,} bytes went away while it was read")
    return {**row, "cut": False} | _fields(body)


def _part(row: Json) -> bytes:
    body: str = row["body"]
    return base64.b64decode(body) if row["encoding"] == "base64" else body.encode()


def _fields(body: bytearray) -> Json:
    try:
        return {"encoding": "text", "body": body.decode()}
    except UnicodeDecodeError:
        return {"encoding": "base64", "body": base64.b64encode(body).decode()}
