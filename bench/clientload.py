"""One way of using a Python client, run in a process of its own: prints the CPU time and the rate a message, as JSON.

`python bench/clientload.py WAY KIND REGISTRY COUNT`. WAY: send, nowait, tasks, batch, iterate, listener, getmany; KIND: log or
queue. With `pynsq` as KIND the same is done with pynsq at an nsqd's address: send, nowait, iterate; with `confluent`, with
confluent-kafka at a Kafka's: those and getmany.
The sources of the package are those on PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BODY = b"x" * 200
BATCH = 200


class Measured:
    """CPU and wall time between `begin` and `end`, over `count` messages."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.began = self.began_cpu = 0.0

    def begin(self) -> None:
        self.began, self.began_cpu = time.perf_counter(), time.process_time()

    def end(self) -> None:
        cpu, wall = time.process_time() - self.began_cpu, time.perf_counter() - self.began
        print(json.dumps({"cpu_us": cpu / self.count * 1e6, "rate": self.count / wall}))


def send(kind: str, registry: str, count: int) -> None:
    from penstock import Message, Producer

    measured = Measured(count)
    with Producer(registry, kind=kind) as producer:
        producer.send(Message("bench", BODY))
        measured.begin()
        for _ in range(count):
            producer.send(Message("bench", BODY))
        measured.end()


def nowait(kind: str, registry: str, count: int) -> None:
    from penstock import Message, Producer

    measured = Measured(count)
    with Producer(registry, kind=kind) as producer:
        producer.send(Message("bench", BODY))
        measured.begin()
        window: list[Any] = []
        for _ in range(count):
            window.append(producer.send_nowait(Message("bench", BODY)))
            if len(window) == 2000:
                for future in window[:1000]:
                    future.result()
                del window[:1000]
        for future in window:
            future.result()
        measured.end()


def batch(kind: str, registry: str, count: int) -> None:
    from penstock import Message, Producer

    measured = Measured(count)
    with Producer(registry, kind=kind) as producer:
        producer.send(Message("bench", BODY))
        measured.begin()
        for _ in range(count // BATCH):
            producer.send_batch([Message("bench", BODY) for _ in range(BATCH)])
        measured.end()


def tasks(kind: str, registry: str, count: int) -> None:
    from penstock import Message, aio

    async def run() -> None:
        measured = Measured(count)
        async with aio.Producer(registry, kind=kind) as producer:
            await producer.send(Message("bench", BODY))

            async def one() -> None:
                for _ in range(count // 256):
                    await producer.send(Message("bench", BODY))

            measured.begin()
            await asyncio.gather(*(one() for _ in range(256)))
            measured.end()

    asyncio.run(run())


def _fill(kind: str, registry: str, count: int) -> None:
    from penstock import Message, Producer

    with Producer(registry, kind=kind) as producer:
        for _ in range(count // BATCH):
            producer.send_batch([Message("bench", BODY)] * BATCH)


def iterate(kind: str, registry: str, count: int) -> None:
    from penstock import PushConsumer

    measured = Measured(count)
    with PushConsumer("readers", registry, kind=kind, start="first", in_flight_max=1_000) as consumer:
        consumer.subscribe("bench")
        if kind == "queue":
            time.sleep(0.5)  # the channel must be there before the messages
        _fill(kind, registry, count + 2000)
        for seen, delivery in enumerate(consumer, 1):
            delivery.ack()
            if seen == 1000:
                measured.begin()
            if seen == count + 1000:
                break
        measured.end()


def listener(kind: str, registry: str, count: int) -> None:
    from penstock import PushConsumer

    measured, done, seen = Measured(count), threading.Event(), 0

    def take(message: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == 1000:
            measured.begin()
        elif seen == count + 1000:
            measured.end()
            done.set()

    with PushConsumer(
        "readers", registry, kind=kind, start="first", listener=take, concurrency=1, in_flight_max=1_000
    ) as consumer:
        consumer.subscribe("bench")
        if kind == "queue":
            time.sleep(0.5)
        _fill(kind, registry, count + 2000)
        done.wait(300)


def getmany(kind: str, registry: str, count: int) -> None:
    from penstock import PullConsumer

    measured = Measured(count)
    _fill(kind, registry, count)
    with PullConsumer(registry) as consumer:
        consumer.assign("bench", start="first")
        measured.begin()
        seen = 0
        while seen < count:
            seen += sum(map(len, consumer.getmany().values()))
        measured.end()


def pynsq_publish(address: str, count: int, window: int) -> None:
    import nsq
    from tornado.ioloop import IOLoop

    measured, state = Measured(count), {"sent": 0, "done": 0}
    writer = nsq.Writer([address])

    def answered(connection: Any, data: Any) -> None:
        state["done"] += 1
        if state["done"] == count:
            measured.end()
            IOLoop.current().stop()
        else:
            more()

    def more() -> None:
        while state["sent"] < count and state["sent"] - state["done"] < window:
            state["sent"] += 1
            writer.pub("bench", BODY, answered)

    def begin() -> None:
        measured.begin()
        more()

    IOLoop.current().call_later(1.0, begin)
    IOLoop.current().start()


def pynsq_iterate(address: str, count: int) -> None:
    import nsq
    from tornado.ioloop import IOLoop

    measured, seen = Measured(count), 0

    def take(message: Any) -> bool:
        nonlocal seen
        seen += 1
        if seen == 1000:
            measured.begin()
        elif seen == count + 1000:
            measured.end()
            IOLoop.current().stop()
        return True

    nsq.Reader(topic="bench", channel="readers", nsqd_tcp_addresses=[address], message_handler=take, max_in_flight=1000)
    IOLoop.current().start()


def confluent_publish(address: str, count: int, flushes: bool) -> None:
    """`produce`; with `flushes` it is waited for after each."""
    from confluent_kafka import Producer

    measured = Measured(count)
    producer = Producer({"bootstrap.servers": address, "queue.buffering.max.messages": 1_000_000})
    failed: list[object] = []

    def told(error: object, message: object) -> None:
        if error is not None:
            failed.append(error)

    producer.produce("bench", BODY, callback=told)
    producer.flush()
    measured.begin()
    for number in range(count):
        producer.produce("bench", BODY, callback=told)
        if flushes:
            producer.flush()
        elif number % 1000 == 0:
            producer.poll(0)
    producer.flush()
    measured.end()
    if failed:
        raise SystemExit(f"{len(failed)} messages failed: {failed[0]}")


def confluent_read(address: str, count: int, many: int) -> None:
    """`poll`, or `consume` of up to `many` at once; offsets are committed behind the scenes."""
    from confluent_kafka import Consumer, Producer

    measured = Measured(count)
    producer = Producer({"bootstrap.servers": address, "queue.buffering.max.messages": 1_000_000})
    for number in range(count + 2000):
        producer.produce("bench", BODY)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush()
    consumer = Consumer({"bootstrap.servers": address, "group.id": "readers", "auto.offset.reset": "earliest"})
    consumer.subscribe(["bench"])
    seen, began = 0, False
    while seen < count + 1000:
        if many > 1:
            seen += sum(message.error() is None for message in consumer.consume(many, 1.0))
        else:
            message = consumer.poll(1.0)
            seen += message is not None and message.error() is None
        if not began and seen >= 1000:
            began, measured.count = True, count + 1000 - seen
            measured.begin()
    measured.end()
    consumer.close()


WAYS: dict[str, Callable[[str, str, int], None]] = {
    "send": send, "nowait": nowait, "tasks": tasks, "batch": batch, "iterate": iterate, "listener": listener,
    "getmany": getmany,
}  # fmt: skip


def main() -> None:
    way, kind, address, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    if kind == "confluent":
        if way in ("send", "nowait"):
            confluent_publish(address, count, way == "send")
        else:
            confluent_read(address, count, 500 if way == "getmany" else 1)
    elif kind != "pynsq":
        WAYS[way](kind, address, count)
    elif way == "iterate":
        pynsq_iterate(address, count)
    else:
        pynsq_publish(address, count, 1 if way == "send" else 1000)


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))
    main()
