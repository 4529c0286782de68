"""W3C trace context in the properties of messages, where a program uses OpenTelemetry: `traceparent`, `tracestate`, `baggage`.

    producer.send(with_context(Message("orders", body)))      the span of here goes along
    with context_of(message): …                               spans begun within belong to that trace

Listeners are called within the context of their message without being asked. Nothing here needs OpenTelemetry: where the
program has not imported it, a message goes as it is. Messages of queue topics have no properties.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Protocol, cast

from msgspec import structs

from penstock.message import Message, ReceivedMessage

PARENT = "traceparent"
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
    carrier: dict[str, str] = {}
    cast(_Propagate, import_module("opentelemetry.propagate")).inject(carrier)
    found = {name: text for name, text in carrier.items() if not any(sign in text for sign in _SEPARATORS)}
    if not found:
        return message
    return structs.replace(message, properties={**message.properties, **found})


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
