"""A message as a line of JSON, and back: what `tail --json` and `export` write, `send --jsonl` and `import` read."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from penstock.cli.tools import TIME_MAX_MS
from penstock.message import KEYS, TAGS, Message, ReceivedMessage
from penstock.wire import names
from penstock.words import INT32_MAX

Row = dict[str, Any]

# What a broker or client sets by itself: it is another message that is sent.
_OWN = names.DEAD_PROPERTIES | {
    names.RETRY_TOPIC, names.WAIT, names.DELAY, names.HALF, names.PRODUCER_GROUP, names.REAL_TOPIC, names.REAL_QUEUE,
    names.MIN_OFFSET, names.MAX_OFFSET, names.CONSUME_START_TIME, names.CHECK_TIMES, names.SEQUENCE, names.UNIQUE_KEY,
}  # fmt: skip
_TEXTS = ("topic", "kind", "tags", "tag", "shardingKey", "body", "bodyBase64", "encoding", "stored")
_NUMBERS = ("due", "delayMs", "flag")


class BadRow(ValueError):
    """A line that is no message."""


def body_fields(body: bytes) -> Row:
    """The body as text where it is text, else in base64: what is read back is the same bytes."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"bodyBase64": base64.b64encode(body).decode()}


def row_of(message: ReceivedMessage) -> Row:
    """All there is of a message of a log topic."""
    return {
        "topic": message.topic,
        "kind": "log",
        "broker": message.broker,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "id": message.msg_id,
        "stored": message.stored_at.isoformat(timespec="milliseconds"),
        "flag": message.flag,
        "properties": dict(message.properties),
        **body_fields(message.body),
    }


def row_of_browsed(row: Row) -> Row:
    """The same as `row_of` of a message of a queue topic, as BROWSE shows it."""
    found = {
        name: row[name] for name in ("topic", "channel", "state", "id", "attempts") if row.get(name) not in (None, "")
    }
    body = {"bodyBase64" if row["encoding"] == "base64" else "body": row["body"]}
    due = {} if row.get("due") is None else {"due": row["due"]}
    return {**found, "kind": "queue", "stored": row["stored"], **due, **body}


def parse_row(line: str | bytes) -> Row:
    """The object of a line. BadRow."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRow(f"no JSON: {error}") from None
    if not isinstance(row, dict):
        raise BadRow("no JSON object")
    return row


def message_of(row: Row, topic: str, now_ms: int) -> Message:
    """What is to be sent to `topic` for a row. BadRow for what is no message."""
    for name in _TEXTS:
        if name in row and name != "stored" and not isinstance(row[name], str | None):
            raise BadRow(f"{name} is no text")
    for name in _NUMBERS:
        if row.get(name) is not None and (not isinstance(row[name], int) or isinstance(row[name], bool)):
            raise BadRow(f"{name} is no whole number")
    properties = {} if row.get("properties") is None else row["properties"]
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise BadRow("properties is no object of texts")
    kept = {
        name: value
        for name, value in properties.items()
        if name not in _OWN and not name.startswith((names.RESERVED_PREFIX, names.TIMER_PREFIX))
    }
    keys = row.get("keys") or ()
    if isinstance(keys, str):
        keys = keys.split()
    if not isinstance(keys, list | tuple) or not all(isinstance(key, str) for key in keys):
        raise BadRow("keys is no list of texts")
    flag = row.get("flag") or 0
    if not -INT32_MAX - 1 <= flag <= INT32_MAX:
        raise BadRow(f"flag has 32 bits: it is no {flag}")
    if keys:
        kept.pop(KEYS, None)
    tags = row.get("tags") or row.get("tag") or None
    if tags:
        kept.pop(TAGS, None)
    return Message(
        topic, _body(row), tuple(keys), tags, kept, flag, deliver_at_ms=_due_ms(row, now_ms),
        sharding_key=row.get("shardingKey"),
    )  # fmt: skip


def _due_ms(row: Row, now_ms: int) -> int | None:
    """When it is to be delivered; what is past is delivered at once, however long it is."""
    due_ms, delay_ms = row.get("due"), row.get("delayMs")
    if delay_ms is not None:
        if due_ms is not None:
            raise BadRow("give due or delayMs")
        if delay_ms < 0:
            raise BadRow(f"delayMs is below 0: {delay_ms}")
        due_ms = now_ms + delay_ms if delay_ms else None
    if due_ms is not None and due_ms > TIME_MAX_MS:
        raise BadRow(f"{'due' if delay_ms is None else 'delayMs'} ends after the year 9999")
    return due_ms if due_ms is None else max(0, due_ms)


def _body(row: Row) -> bytes:
    encoded = row.get("bodyBase64")
    if row.get("encoding") == "base64":
        encoded = row.get("body")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, ValueError):
            raise BadRow("bodyBase64 is no base64") from None
    text = row.get("body")
    if not isinstance(text, str):
        raise BadRow("neither body nor bodyBase64")
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadRow("body has half of a surrogate pair, which is no text") from None
