"""W3C trace context in the properties of messages, where a program uses OpenTelemetry: `traceparent`, `tracestate`, `baggage`.

    producer.send(with_context(Message("orders", body)))      the span of here goes along
    with context_of(message): …                               spans begun within belong to that trace

Listeners are called within the context of their message without being asked. Nothing here needs OpenTelemetry: where the
program has not imported it, a message goes as it is.

Messages of queue topics have no properties, and their bodies are their senders' own. Where both ends agree on it, the context
goes in front of the body (decision 121), and other consumers of the topic see it there:

    producer.send(in_envelope(Message("audit", body)))
    with context_of(opened := from_envelope(message)): …      `opened.body` is what was sent
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Protocol, cast

from msgspec import structs

from penstock.message import Message, ReceivedMessage

PARENT = "traceparent"
ENVELOPE = b"\x00trace1 "  # then a JSON object in a line of its own, then the body
_HEAD_BYTES_MAX = 16 << 10  # of that line
_SEPARATORS = "\x01\x02"  # of properties, as they travel


class _Propagate(Protocol):
    def inject(self, carrier: dict[str, str]) -> None:
        """Put the current context into the carrier."""

    def extract(self, carrier: Mapping[str, str]) -> object:
        """The context in the carrier."""


class _Context(Protocol):
    def attach(self, context: object) -> object:
        """Make it the current one; what `detach` wants."""

    def detach(self, token: object) -> None:
        """Make the former one current again."""


def used() -> bool:
    """Whether this program uses OpenTelemetry."""
    return "opentelemetry.context" in sys.modules


def with_context(message: Message) -> Message:
    """The message with the trace context of the caller; as it is, where there is none or it has one already."""
    if not used() or PARENT in message.properties:
        return message
    found = {name: text for name, text in _current().items() if not any(sign in text for sign in _SEPARATORS)}
    if not found:
        return message
    return structs.replace(message, properties={**message.properties, **found})


def _current() -> dict[str, str]:
    carrier: dict[str, str] = {}
    cast(_Propagate, import_module("opentelemetry.propagate")).inject(carrier)
    return carrier


def in_envelope(message: Message) -> Message:
    """The message with the trace context of the caller before its body, for a queue topic; as it is where there is none. What
    begins like an envelope gets one in any case, so that `from_envelope` gives back what was sent.
    """
    found = _current() if used() else {}
    head = json.dumps(found).encode()
    if len(head) > _HEAD_BYTES_MAX:
        head = b"{}"
    if not found and not message.body.startswith(ENVELOPE):
        return message
    return structs.replace(message, body=ENVELOPE + head + b"\n" + message.body)


def from_envelope(message: ReceivedMessage) -> ReceivedMessage:
    """The message as it was put into `in_envelope`, with the trace context among its properties; any other as it is."""
    if not message.body.startswith(ENVELOPE):
        return message
    end = message.body.find(b"\n", 0, len(ENVELOPE) + _HEAD_BYTES_MAX + 1)
    try:
        told = json.loads(message.body[len(ENVELOPE) : end]) if end >= 0 else None
    except ValueError:
        return message
    if not isinstance(told, dict) or not all(isinstance(text, str) for text in told.values()):
        return message
    return structs.replace(message, body=message.body[end + 1 :], properties={**message.properties, **told})


@contextmanager
def context_of(message: ReceivedMessage) -> Iterator[None]:
    """Within it the trace context of the message is the current one, where it has one. What makes no sense is none."""
    if not used() or PARENT not in message.properties:
        yield
        return
    context = cast(_Context, import_module("opentelemetry.context"))
    token = context.attach(cast(_Propagate, import_module("opentelemetry.propagate")).extract(message.properties))
    try:
        yield
    finally:
        context.detach(token)
