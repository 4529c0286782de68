"""How long a single message takes through an idle broker: RDY 100, one at a random moment, end to end on loopback.

And how long a request waits for its reply (RocketMQ's 324 to 326): our Python client asks and replies, at our broker and, where
`PENSTOCK_BENCH_ROCKETMQ` names its folder, at RocketMQ's own, some requests to each by turns.
"""

from __future__ import annotations

import json
import statistics
import time
from contextlib import ExitStack
from typing import Any

from bench.machine import describe
from bench.servers import HERE, Running, find_nsqd, find_rocketmq, name_server, nsq_load, nsqd, penstock, rocketmq
from penstock import Admin, Message, Producer, PushConsumer, ReceivedMessage
from penstock.errors import NoRoute

MEDIAN_MS_MAX = 0.5
REGISTERED_S = 60  # a Java that starts registers when it has time
TOPIC = "BenchmarkRequests"
WARM_UP, TURN = 1_000, 20  # requests: until a Java has compiled its code; to one broker before it is the other's turn


def measure(messages: int = 500) -> dict[str, Any]:
    """Levels `os` and `disk`, and nsqd where there is one; requests."""
    result: dict[str, Any] = {"machine": describe(), "messages": messages, "body_bytes": 200, "rows": {}}
    result["goal_median_ms"] = MEDIAN_MS_MAX
    for level in ("os", "disk"):
        with penstock(level=level) as broker:
            result["rows"][f"penstock, level {level}"] = nsq_load("latency", broker, n=messages)
    peer = find_nsqd()
    if peer is not None:
        with nsqd(peer) as server:
            result["rows"]["nsqd"] = nsq_load("latency", server, n=messages // 2)
    result["requests"] = requests(messages)
    return result


def requests(count: int) -> dict[str, dict[str, float]]:
    """From `Producer.request` until the reply is there: ms, by broker."""
    with ExitStack() as stack:
        servers = {"penstock": stack.enter_context(penstock())}
        jars = find_rocketmq()
        if jars is not None:
            servers["RocketMQ"] = stack.enter_context(rocketmq(jars, registry=stack.enter_context(name_server())))
        asking = {name: _ready(stack, server) for name, server in servers.items()}
        for producer in asking.values():
            _ask(producer, WARM_UP if jars is not None else TURN)
        found: dict[str, list[float]] = {name: [] for name in asking}
        for number in range(max(1, count // TURN)):
            for name in asking if number % 2 == 0 else reversed(asking):
                found[name] += _ask(asking[name], TURN)
    return {name: _row(took_ms) for name, took_ms in found.items()}


def _ready(stack: ExitStack, server: Running) -> Producer:
    """A producer at the broker, where a consumer replies."""
    with Admin(server.registry) as admin:
        deadline = time.monotonic() + REGISTERED_S
        while True:
            try:
                admin.create_topic(TOPIC, 4)
                break
            except NoRoute:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    stack.enter_context(PushConsumer("BenchmarkReplies", server.registry, start="first", listener=_reply)).subscribe(
        TOPIC
    )
    return stack.enter_context(Producer(server.registry))


def _reply(message: ReceivedMessage) -> bytes:
    return message.body


def _ask(producer: Producer, count: int) -> list[float]:
    took_ms = []
    for _ in range(count):
        began = time.perf_counter()
        producer.request(Message(TOPIC, b"x" * 200), timeout_s=60)
        took_ms.append((time.perf_counter() - began) * 1_000)
    return took_ms


def _row(took_ms: list[float]) -> dict[str, float]:
    return {
        "median_ms": statistics.median(took_ms),
        "p99_ms": sorted(took_ms)[len(took_ms) * 99 // 100],
        "most_ms": max(took_ms),
    }


def main(arguments: list[str]) -> None:
    short = "--short" in arguments
    result = measure(100 if short else 500)
    print(json.dumps(result["machine"]))
    asked = {f"request, {name}": row for name, row in result["requests"].items()}
    for name, row in (result["rows"] | asked).items():
        print(
            f"{name:22} median {row['median_ms']:8.3f} ms   p99 {row['p99_ms']:8.3f} ms   most {row['most_ms']:8.3f} ms"
        )
    print(f"goal: median at most {MEDIAN_MS_MAX} ms")
    if not short:
        (HERE / "results").mkdir(exist_ok=True)
        (HERE / "results" / "latency.json").write_text(json.dumps(result, indent=1) + "\n")
