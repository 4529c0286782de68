"""The rows that a Penstock broker tells its tools, by what is asked for: which fields each has, and of what type.

A row is looked at where it comes in, so that whoever prints or counts it finds what it needs. Fields beyond these, which
a newer broker may have, are passed on as they came.
"""

from __future__ import annotations

from typing import NotRequired, TypedDict

import msgspec

from penstock.client.routes import Json
from penstock.errors import WireError


class ChannelRow(TypedDict):
    """A channel of a topic."""

    channel: str
    paused: bool
    depth: int
    lagMillis: NotRequired[int | None]  # not known without a search; older brokers do not tell it
    onDisk: int
    inFlight: int
    deferred: int
    messages: int
    requeued: int
    timedOut: int
    rejected: int
    consumers: int


class TopicRow(TypedDict):
    """A topic as NSQ sees it."""

    topic: str
    kind: str
    level: str
    paused: bool
    depth: int
    onDisk: int
    messages: int
    channels: list[ChannelRow]


class MessageRow(TypedDict):
    """A message that is looked at."""

    channel: str
    id: str
    stored: int
    attempts: int
    size: int
    cut: bool
    encoding: str
    body: str
    queue: NotRequired[int]
    offset: NotRequired[int]
    tags: NotRequired[str]
    keys: NotRequired[list[str]]
    properties: NotRequired[dict[str, str]]
    due: NotRequired[int | None]
    client: NotRequired[str]
    delivered: NotRequired[int]


class DelayedRow(TypedDict):
    """A message that waits for its time."""

    id: int
    due: int
    kind: str
    topic: str
    channel: str
    attempts: int
    size: int
    body: str


class ClientRow(TypedDict):
    """A client that is connected."""

    address: str
    protocol: str
    role: str
    of: str
    client: str
    about: str
    inFlight: int | None


class PurgedRow(TypedDict):
    """What a purge takes of one queue."""

    queue: int
    messages: int


class RedrivenRow(TypedDict):
    """A dead letter that is sent again."""

    id: str
    offset: int
    to: str


class ChangeRow(TypedDict):
    """A setting that has changed."""

    effect: str


class NodeRow(TypedDict):
    """A node of a replica set, as one of them tells it."""

    node: str
    role: str
    epoch: int | str
    written: int | str
    in_sync: str
    id: int


class KnownRow(TypedDict):
    """What a node knew of one that it forgets."""

    address: str
    engine: bool


def rows_of(value: object, shape: type) -> list[Json]:
    """The rows themselves. WireError where they are not a list of JSON objects of this shape."""
    try:
        msgspec.convert(value, list[shape])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise WireError(f"no {shape.__name__}: {error}") from None
    rows: list[Json] = value  # type: ignore[assignment]
    return rows
