"""`client.tracecontext`: a trace goes on behind a topic, where the program uses OpenTelemetry; else nothing changes."""

from __future__ import annotations

import asyncio
import importlib.util
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

import penstock
from penstock import Message
from penstock.client.tracecontext import context_of, with_context
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
