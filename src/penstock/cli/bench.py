"""`penstock bench`: how fast this broker is from here, with rates and percentiles. A topic of its own is made, and deleted."""

from __future__ import annotations

import asyncio
import re
import secrets
import signal
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NotRequired, TypedDict, TypeVar, Unpack

import click

from penstock.cli.tools import DAY_S, Amount, Command, Whole, duration_ms, print_rows, with_json, with_registry
from penstock.client.routes import Json
from penstock.errors import BrokerRefused, NoRoute, NotFound
from penstock.message import Message, ReceivedMessage
from penstock.wire.names import RETRY_PREFIX

if TYPE_CHECKING:
    from penstock import aio

STAMP_BYTES = 8
QUANTILES = ((50, "p50_ms"), (95, "p95_ms"), (99, "p99_ms"), (99.9, "p999_ms"))
_NS_A_MS = 1_000_000
CLOCKS_NS = 10 * _NS_A_MS  # so far may the broker's clock be ahead of ours, and what is late by it early
_SIZE = re.compile(r"([0-9]{1,9})(B|K|KiB|M|MiB)?")
_UNITS = {"B": 1, "K": 1 << 10, "KiB": 1 << 10, "M": 1 << 20, "MiB": 1 << 20, "": 1}
Kind = Literal["log", "queue"]
T = TypeVar("T")


def size_bytes(text: str) -> int:
    """`128`, `128B`, `4K`, `1MiB` in bytes. BadParameter."""
    found = _SIZE.fullmatch(text)
    size = 0 if found is None else int(found[1]) * _UNITS[found[2] or ""]
    if not STAMP_BYTES <= size <= 4 << 20:
        raise click.BadParameter(f"{text!r} is no size from 8B to 4MiB", param_hint="--size")
    return size


@dataclass
class Figures:
    """What was measured: how many, how long, and each latency in ns."""

    what: str
    bytes_each: int
    count: int = 0
    seconds: float = 0.0
    latencies: list[int] = field(default_factory=list)

    def add(self, count: int, latency_ns: int) -> None:
        """So many messages, done together in that time."""
        self.count += count
        self.latencies.append(latency_ns)

    def took(self, seconds: float) -> None:
        """All together."""
        self.seconds = seconds

    def row(self) -> dict[str, object]:
        """Rate, bandwidth and percentiles."""
        rate = self.count / self.seconds if self.seconds > 0 else 0.0
        row: dict[str, object] = {
            "what": self.what, "messages": self.count, "seconds": round(self.seconds, 3), "per_second": round(rate),
            "mb_per_second": round(rate * self.bytes_each / 1e6, 2),
        }  # fmt: skip
        ordered = sorted(self.latencies)
        for quantile, name in QUANTILES:
            row[name] = round(percentile(ordered, quantile) / _NS_A_MS, 3)
        return row | {"max_ms": round(percentile(ordered, 100) / _NS_A_MS, 3)}


def percentile(ordered: list[int], quantile: float) -> int:
    """The smallest value that so many percent of the values do not exceed; 0 of none."""
    if not ordered:
        return 0
    return ordered[max(0, min(len(ordered) - 1, -int(-quantile * len(ordered) // 100) - 1))]


@dataclass(frozen=True)
class Plan:
    """What a run is to do."""

    registry: str
    topic: str
    kind: Kind
    count: int
    size: int
    clients: int
    batch: int
    timeout_s: float
    began_ns: int = field(default_factory=time.time_ns)

    def message(self, due_ms: int | None = None) -> Message:
        """A message that says when it was made, or is due."""
        stamp = time.time_ns() if due_ms is None else due_ms * _NS_A_MS
        return Message(self.topic, stamp.to_bytes(STAMP_BYTES) + bytes(self.size - STAMP_BYTES), deliver_at_ms=due_ms)


async def publish(plan: Plan, due_ms: Callable[[], int] | None = None) -> Figures:
    """Send all the messages, each client one request after the other."""
    from penstock import aio

    figures = Figures("pub", plan.size)

    async def one(producer: aio.Producer, left: int) -> None:
        while left > 0:
            n = min(plan.batch, left)
            messages = [plan.message(None if due_ms is None else due_ms()) for _ in range(n)]
            began = time.perf_counter_ns()
            await (producer.send(messages[0]) if n == 1 else producer.send_batch(messages))
            figures.add(n, time.perf_counter_ns() - began)
            left -= n

    async with AsyncExitStack() as stack:
        producers = [
            await stack.enter_async_context(aio.Producer(plan.registry, kind=plan.kind)) for _ in range(plan.clients)
        ]
        for producer in producers:
            await producer.queues(plan.topic)
        began = time.perf_counter()
        shares = [plan.count // plan.clients + (n < plan.count % plan.clients) for n in range(plan.clients)]
        await asyncio.gather(*(one(producer, share) for producer, share in zip(producers, shares, strict=True)))
        figures.took(time.perf_counter() - began)
    return figures


async def consume(plan: Plan, group: str, ready: asyncio.Event, what: str = "sub") -> Figures:
    """Receive all the messages. `ready` is set when the consumers are there. TimeoutError."""
    from penstock import aio

    figures, done = Figures(what, plan.size), asyncio.Event()
    first: list[float] = []
    seen: set[str] = set()

    async def listener(message: ReceivedMessage) -> None:
        now_ns = time.time_ns()
        stamp = int.from_bytes(message.body[:STAMP_BYTES])
        if len(message.body) != plan.size or not plan.began_ns <= stamp <= now_ns + CLOCKS_NS:
            return  # somebody else's: the topic was there
        if message.msg_id in seen:
            return  # it came twice: the consumers have just shared the queues anew
        seen.add(message.msg_id)
        if not first:
            first.append(time.perf_counter())
        figures.add(1, max(0, now_ns - stamp))
        if figures.count >= plan.count:
            done.set()

    async with AsyncExitStack() as stack:
        for _ in range(plan.clients):
            consumer = aio.PushConsumer(group, plan.registry, listener=listener, start="first", kind=plan.kind)
            await stack.enter_async_context(consumer)
            await consumer.subscribe(plan.topic)
        ready.set()
        await asyncio.wait_for(done.wait(), plan.timeout_s)
        figures.took(time.perf_counter() - first[0])
    return figures


async def run(plan: Plan, role: str, delay_ms: int = 0, *, own: bool) -> list[Figures]:
    """One of the four roles. The topic is made, and deleted, where it is our own; so are group and channel."""
    from penstock import aio

    group, ready = f"bench-{secrets.token_hex(4)}", asyncio.Event()
    async with aio.Admin(plan.registry) as admin:
        if not own:
            await admin.route(plan.topic)  # NoRoute
            if plan.kind == "log" and role != "pub":
                await _begin_behind(plan, group)
            elif role != "pub":
                _check_channels(plan.topic, await admin.queue_topics(plan.topic))
        elif plan.kind == "queue":
            await admin.change_queue(plan.topic, "add")
        else:
            await admin.create_topic(plan.topic)
        if plan.kind == "queue" and role != "pub":
            await admin.change_queue(plan.topic, "add", channel=group)
        try:
            if role == "pub":
                return [await publish(plan)]
            if role == "sub":
                await publish(plan)
                return [await consume(plan, group, ready)]
            reader = asyncio.create_task(consume(plan, group, ready, "late" if role == "delayed" else "sub"))
            try:
                await asyncio.wait({reader, asyncio.ensure_future(ready.wait())}, return_when=asyncio.FIRST_COMPLETED)
                due = (lambda: time.time_ns() // _NS_A_MS + delay_ms) if role == "delayed" else None
                sent = await publish(plan, due)
                return [sent, await reader]
            finally:
                reader.cancel()
                await asyncio.gather(reader, return_exceptions=True)
        finally:
            if own:
                await _cancel_delayed(admin, plan)
                await admin.delete_topic(plan.topic)
            elif plan.kind == "queue" and role != "pub":
                await admin.change_queue(plan.topic, "rm", channel=group)
            if plan.kind == "log" and role != "pub":
                await _forget(admin, group)


async def _cancel_delayed(admin: aio.Admin, plan: Plan) -> None:
    """What nobody waits for any longer: it would make the topic again when it is due."""
    for row in await admin.delayed(topic=plan.topic, limit=plan.count):
        with suppress(BrokerRefused, NotFound):
            await admin.cancel_delayed(row["id"])


async def _until_terminated(work: Coroutine[object, object, T]) -> T:
    """What `work` returns. SIGTERM ends it as Ctrl-C does, so that it takes away what it has made; a second one ends all at once.
    SystemExit.
    """
    loop, task, terminated = asyncio.get_running_loop(), asyncio.ensure_future(work), False

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        loop.remove_signal_handler(signal.SIGTERM)
        task.cancel()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    try:
        return await task
    except asyncio.CancelledError:
        if not terminated:
            raise
        sys.exit(128 + signal.SIGTERM)


async def _begin_behind(plan: Plan, group: str) -> None:
    """What the topic holds already is none of ours."""
    from penstock import aio

    async with aio.PullConsumer(plan.registry, group=group) as reader:
        await reader.commit({queue: (await reader.offsets(queue))[1] for queue in await reader.queues(plan.topic)})


def _check_channels(topic: str, rows: list[Json]) -> None:
    """UsageError for a queue topic without a channel: the first one is owed all there is, and ours is deleted."""
    if any(not row["channels"] for row in rows):
        raise click.UsageError(
            f"{topic} has no channel: the bench's own would be the first, and take what waits there. "
            f"`penstock channel add {topic} NAME` makes one that keeps it"
        )


async def _forget(admin: aio.Admin, group: str) -> None:
    """Our own group, and its retry topic; who may not do that leaves them there."""
    with suppress(BrokerRefused, NotFound):
        await admin.delete_group(group)
    with suppress(BrokerRefused, NotFound, NoRoute):
        await admin.delete_topic(RETRY_PREFIX.decode() + group)


def _options(command: Command) -> Command:
    for option in (
        click.option(
            "--timeout", "timeout_s", type=Amount(1, DAY_S), default=120, show_default=True,
            help="Seconds, to receive all.",
        ),
        click.option("--kind", type=click.Choice(["log", "queue"]), default="log", show_default=True, help="Of our own topic."),
        click.option("--topic", default="", help="A topic that is there, in place of our own: it keeps the messages."),
        click.option("--batch", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Messages of one request."),
        click.option("--clients", type=click.IntRange(1, 1_000), default=1, show_default=True, help="So many at once."),
        click.option("--size", default="128B", show_default=True, help="Of a body: 128B, 4K, 1MiB."),
        click.option("--msgs", type=click.IntRange(1), default=10_000, show_default=True, help="So many messages."),
    ):  # fmt: skip
        command = option(command)
    return with_registry(with_json(command))


@click.group(cls=Whole)
def bench() -> None:
    """Measure what a broker does from here: rates and percentiles."""


class Given(TypedDict):
    """The options of a role."""

    msgs: int
    size: str
    clients: int
    batch: int
    topic: str
    kind: Kind
    timeout_s: float
    delay: NotRequired[str]


def _role(name: str, about: str) -> None:
    def command(registry: str, as_json: bool, **given: Unpack[Given]) -> None:
        delay = given.get("delay", "")
        delay_ms = duration_ms(delay, "--delay") if delay else 0
        topic, kind, count = given["topic"], given["kind"], given["msgs"]
        if name == "delayed" and given["batch"] > 1:
            raise click.UsageError("delayed messages go one by one: no --batch")
        if topic:
            from penstock.cli.sending import check_topic

            kind = check_topic(registry, topic)
        plan = Plan(
            registry, topic or f"bench-{secrets.token_hex(4)}", kind, count, size_bytes(given["size"]), given["clients"],
            given["batch"], given["timeout_s"],
        )  # fmt: skip
        try:
            figures = asyncio.run(_until_terminated(run(plan, name, delay_ms, own=not topic)))
        except TimeoutError:
            click.echo(f"penstock: not all {count} came in {plan.timeout_s:g} s", err=True)
            click.get_current_context().exit(124)
        print_rows([one.row() for one in figures], as_json)

    made: Callable[..., None] = command
    if name == "delayed":
        made = click.option("--delay", default="2s", show_default=True, help="How long each waits.")(made)
    bench.command(name, help=about)(_options(made))


_role("pub", "Send: how many a second, and how long an answer takes.")
_role("sub", "Receive what was sent before: how many a second; the latency is the age of each.")
_role("both", "Send and receive at once; the latency of sub is from the send to the listener.")
_role("delayed", "Send with a delay: `late` is how much later than its time each came.")
