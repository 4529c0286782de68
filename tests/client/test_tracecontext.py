"""`client.tracecontext`: a trace goes on behind a topic, where the program uses OpenTelemetry; else nothing changes."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

import penstock
from penstock import Message
from penstock.client.tracecontext import ENVELOPE, context_of, from_envelope, in_envelope, with_context
from penstock.message import ReceivedMessage

Fresh = Callable[[str], str]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_without_opentelemetry_a_message_goes_as_it_is() -> None:
    script = """if True:
        import sys
        from penstock import Message, ReceivedMessage, context_of, with_context
        message = Message("t", b"x", properties={"a": "1"})
        assert with_context(message) is message
        with context_of(ReceivedMessage("t", b"", 0, 0, 0, properties={"traceparent": "00-1-2-3"})):
            pass
        assert not [name for name in sys.modules if name.startswith("opentelemetry")]
    """
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_a_trace_goes_on_behind_a_topic(registry: str, fresh: Fresh) -> None:
    if importlib.util.find_spec("opentelemetry") is None:
        pytest.skip("opentelemetry-api and -sdk are not installed")
    from opentelemetry import propagate, trace  # type: ignore[import-not-found, unused-ignore]

    def current() -> int:
        return int(trace.get_current_span().get_span_context().trace_id)

    parent = propagate.extract({"traceparent": PARENT, "tracestate": "a=1"})
    wanted = int(PARENT.split("-")[1], 16)
    seen: dict[bytes, int] = {}
    done = threading.Event()

    def plain(message: ReceivedMessage) -> None:
        seen[message.body] = current()
        if len(seen) == 2:
            done.set()

    topic = fresh("traced")
    assert with_context(Message(topic, b"")).properties == {}  # no span, no property
    with penstock.Producer(registry) as producer:
        from opentelemetry import context  # type: ignore[import-not-found, unused-ignore]

        token = context.attach(parent)
        try:
            sent = with_context(Message(topic, b"with", properties={"mine": "1"}))
            assert sent.properties == {"mine": "1", "traceparent": PARENT, "tracestate": "a=1"}
            assert with_context(sent) is sent
            producer.send(sent)
            producer.send(Message(topic, b"without"))
        finally:
            context.detach(token)
        with penstock.PushConsumer(fresh("g"), registry, listener=plain, start="first") as consumer:
            consumer.subscribe(topic)
            assert done.wait(60)
    assert seen == {b"with": wanted, b"without": 0}
    assert current() == 0

    async def coroutines() -> dict[bytes, int]:
        found: dict[bytes, int] = {}
        both = asyncio.Event()

        async def listener(message: ReceivedMessage) -> None:
            await asyncio.sleep(0)
            found[message.body] = current()
            if len(found) == 2:
                both.set()

        async with penstock.aio.PushConsumer(fresh("g"), registry, listener=listener, start="first") as consumer:
            await consumer.subscribe(topic)
            async with asyncio.timeout(60):
                await both.wait()
        return found

    assert asyncio.run(coroutines()) == {b"with": wanted, b"without": 0}
    hostile = ReceivedMessage("t", b"", 0, 0, 0, properties={"traceparent": "\x00" * 99, "tracestate": "=" * 999})
    with context_of(hostile):
        assert current() == 0


def test_an_envelope_for_queue_topics(registry: str, fresh: Fresh) -> None:
    """Through a real queue topic and channel: the body is what was sent, and spans of the consumer belong to the trace."""
    if importlib.util.find_spec("opentelemetry") is None:
        pytest.skip("opentelemetry-api and -sdk are not installed")
    from opentelemetry import context, propagate, trace

    topic = fresh("audit")
    parent = propagate.extract({"traceparent": PARENT})
    token = context.attach(parent)
    try:
        message = in_envelope(Message(topic, b"\x00\xff body\n"))
        odd = in_envelope(Message(topic, ENVELOPE + b"nothing of ours"))
    finally:
        context.detach(token)
    assert message.body.startswith(ENVELOPE)
    assert in_envelope(Message(topic, b"none")).body == b"none"  # nothing to tell
    seen: dict[bytes, int] = {}
    with penstock.Producer(registry, kind="queue") as producer, penstock.PushConsumer("c", registry) as consumer:
        consumer.subscribe(topic)
        for one in (message, odd, Message(topic, b"plain")):
            producer.send(one)
        for delivery in itertools.islice(consumer, 3):
            opened = from_envelope(delivery.message)
            with context_of(opened):
                seen[opened.body] = int(trace.get_current_span().get_span_context().trace_id)
            delivery.ack()
    wanted = int(PARENT.split("-")[1], 16)
    assert seen == {b"\x00\xff body\n": wanted, ENVELOPE + b"nothing of ours": wanted, b"plain": 0}


def test_what_only_looks_like_an_envelope() -> None:
    """Whoever sent it: it is given as it came; and what begins like one comes back whole without OpenTelemetry, too."""
    for rest in (
        b"",
        b"\n",
        b"{",
        b"{}",
        b"[]\nx",
        b'{"a": 1}\nx',
        b"\xff\xff\nx",
        b"{" * 20_000 + b"\n",
        b'"x"\n',
        b"1\n",
    ):
        message = ReceivedMessage("t", ENVELOPE + rest, 0, 0, 0)
        assert from_envelope(message) is message, rest
    with_nothing = in_envelope(Message("t", ENVELOPE + b"{}\nx"))
    assert from_envelope(ReceivedMessage("t", with_nothing.body, 0, 0, 0)).body == ENVELOPE + b"{}\nx"
