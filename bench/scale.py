"""How cost grows: topics that are made, written in turn and only there, connections, a backlog, a restart behind a kill."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.machine import anonymous_mib, cpu_s, describe, touch_memory
from bench.servers import HERE, Running, load_client, nsq_load, penstock, several

IDLE_CPU_SHARE_MAX = 0.02
KIB_A_CONNECTION_MAX = 10
CONNECTIONS, DESCRIPTORS_LEFT = 50_000, 1_000
BACKLOG_MIB_MAX = 300


def resident_mib(pid: int) -> dict[str, float]:
    """RSS, and PSS, which counts what is shared once."""
    told = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return {name.lower(): round(int(told[name].split()[0]) / 1024, 1) for name in ("Rss", "Pss")}


def _post(broker: Running, path: str) -> None:
    with urllib.request.urlopen(urllib.request.Request(f"http://{broker.http}{path}", method="POST"), timeout=30):
        pass


def _hold(broker: Running, topic: str, messages: int) -> socket.socket:
    """A consumer that has messages in flight, for a quarter of an hour."""
    peer = socket.create_connection(("127.0.0.1", broker.nsq))
    about = b'{"msg_timeout":900000,"heartbeat_interval":60000}'
    peer.sendall(b"  V2IDENTIFY\n" + struct.pack(">I", len(about)) + about)
    peer.sendall(f"SUB {topic} one\nRDY {messages}\n".encode())
    bodies = b"".join([struct.pack(">I", 100) + bytes(100)] * messages)
    peer.sendall(f"MPUB {topic}\n".encode() + struct.pack(">II", 4 + len(bodies), messages) + bodies)
    got = 0
    while got < messages * 134 + 30:  # three OK and the messages
        got += len(peer.recv(1 << 16))
    return peer


def idle_topics(topics: int, seconds: float) -> dict[str, Any]:
    """CPU share of a broker with so many topics of two channels each, messages in flight in every tenth."""
    with penstock(queue_segment_bytes=8 << 20) as broker:
        for number in range(topics):
            _post(broker, f"/topic/create?topic=t{number}")
            for channel in ("one", "two"):
                _post(broker, f"/channel/create?topic=t{number}&channel={channel}")
        held = [_hold(broker, f"t{number}", 10) for number in range(0, topics, 10)]
        time.sleep(3)  # what was published is flushed
        began, used = time.monotonic(), cpu_s(broker.pid)
        time.sleep(seconds)
        share = (cpu_s(broker.pid) - used) / (time.monotonic() - began)
        figures = {"topics": topics, "channels": 2 * topics, "in_flight": 10 * len(held), "cpu_share": round(share, 4)}
        for peer in held:
            peer.close()
        return figures | {"anonymous_mib": round(anonymous_mib(broker.pid))}


def idle_connections(count: int) -> dict[str, Any]:
    """Memory that so many connections add, each after IDENTIFY. Of several brokers of one machine where the limit of open files
    allows one of them fewer.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - DESCRIPTORS_LEFT
    brokers = -(-count // most)
    each = -(-count // brokers)
    with several(brokers, max_connections=each + DESCRIPTORS_LEFT) as running, ExitStack() as clients:
        before = [resident_mib(broker.pid) for broker in running]
        for broker in running:
            client = subprocess.Popen(
                [str(load_client("nsqload")), "idle", "-p", str(broker.nsq), "-n", str(each)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            clients.enter_context(client)  # it ends with its input
            assert client.stdout is not None
            if client.stdout.readline() != "ready\n":
                raise SystemExit("bench: the connections were not made (look at the limit of open files)")
        after = [resident_mib(broker.pid) for broker in running]
    grown = {name: sum(now[name] - then[name] for now, then in zip(after, before, strict=True)) for name in before[0]}
    return {
        "brokers": brokers, "connections": brokers * each, **{f"{name}_mib": round(mib, 1) for name, mib in grown.items()},
        "kib_each": round(grown["pss"] * 1024 / (brokers * each), 1), "date": describe()["date"],
    }  # fmt: skip


def backlog(messages: int) -> dict[str, Any]:
    """Anonymous memory of a broker whose channel is so far behind, and while a consumer catches up."""
    with penstock() as broker:
        _post(broker, "/topic/create?topic=bench")
        _post(broker, "/channel/create?topic=bench&channel=ch")
        filled = nsq_load("load", broker, P=1, w=20, b=200, s=100, t=600, W=0, n=messages)
        memory = [anonymous_mib(broker.pid)]
        read = nsq_load("load", broker, P=0, C=1, t=600, W=0, n=messages * 9 // 10)
        memory.append(anonymous_mib(broker.pid))
        return {
            "messages": messages, "body_bytes": 100, "fill_rate": filled["rate"], "fill_cpu_us": filled["cpu_us"],
            "read_rate": read["rate"], "read_cpu_us": read["cpu_us"], "anonymous_mib": [round(mib) for mib in memory],
        }  # fmt: skip


class Peer:
    """A connection that waits for each answer."""

    def __init__(self, port: int, hello: bytes = b"") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(hello)

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            piece = self.socket.recv(count - len(found))
            if not piece:
                raise SystemExit("bench: the broker closed the connection")
            found += piece
        return found

    def frame(self) -> bytes:
        """What stands behind a length: an answer of either protocol."""
        return self._exactly(struct.unpack(">I", self._exactly(4))[0])

    def make_log_topic(self, name: str) -> None:
        """Code 17, as an administrator's tools send it."""
        ext = {"topic": name, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
               "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
        about = {"code": 17, "language": "JAVA", "version": 0, "opaque": 1, "flag": 0, "extFields": ext}
        header = json.dumps(about).encode()
        self.socket.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        answer = self.frame()
        if json.loads(answer[4 : 4 + struct.unpack(">I", answer[:4])[0]])["code"]:
            raise SystemExit(f"bench: topic {name} was refused")

    def publish(self, topics: list[str]) -> None:
        """A message of 100 bytes to each, all sent before the first answer is read."""
        self.socket.sendall(b"".join(b"PUB %s\n" % t.encode() + struct.pack(">I", 100) + bytes(100) for t in topics))
        for _ in topics:
            while (answer := self.frame()[4:]) == b"_heartbeat_":
                self.socket.sendall(b"NOP\n")
            if answer != b"OK":
                raise SystemExit(f"bench: a message was refused: {answer.decode()}")


def topics_made(logs: int, queues: int, messages: int = 100_000) -> dict[str, Any]:
    """CPU of a broker for each log topic made, each first message of a queue topic, and messages to all in turn."""
    found: dict[str, Any] = {"log_topics": logs, "queue_topics": queues}
    with penstock() as broker:
        admin, producer = Peer(broker.port), Peer(broker.nsq, b"  V2")
        used = cpu_s(broker.pid)
        for number in range(logs):
            admin.make_log_topic(f"log{number}")
        found["made_ms"] = round((cpu_s(broker.pid) - used) * 1000 / logs, 3)
        names = [f"queue{number}" for number in range(queues)]
        used = cpu_s(broker.pid)
        for name in names:
            producer.publish([name])
        time.sleep(1)  # the last of them are flushed
        found["first_message_ms"] = round((cpu_s(broker.pid) - used) * 1000 / queues, 3)
        for what, among in (("one_us", names[:1]), ("round_robin_us", names)):
            turn = [among[number % len(among)] for number in range(500)]
            costs = []
            for _ in range(3):
                used = cpu_s(broker.pid)
                for first in range(0, messages, 500):
                    producer.publish(turn if len(among) == 1 else [among[(first + n) % len(among)] for n in range(500)])
                costs.append((cpu_s(broker.pid) - used) * 1e6 / messages)
            found[what] = round(min(costs), 2)
    return found


def many_topics(count: int, seconds: float) -> dict[str, Any]:
    """A broker with so many log topics: its start behind a kill, and what it uses while nothing happens."""
    folder = tempfile.mkdtemp(prefix="penstock-bench-")
    try:
        with penstock(data=folder) as broker:
            admin = Peer(broker.port)
            for number in range(count):
                admin.make_log_topic(f"log{number}")
            os.kill(broker.pid, signal.SIGKILL)
        began = time.monotonic()
        with penstock(data=folder) as broker:
            found = {
                "topics": count,
                "start_s": round(time.monotonic() - began, 2),
                "start_cpu_s": round(cpu_s(broker.pid), 2),
            }
            time.sleep(12)  # the table is written whole behind ten quiet seconds
            used, began = cpu_s(broker.pid), time.monotonic()
            time.sleep(seconds)
            return found | {"cpu_share": round((cpu_s(broker.pid) - used) / (time.monotonic() - began), 4)}
    finally:
        shutil.rmtree(folder)


_FILL = """
import os, signal, sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from penstock.log.draft import Draft
from penstock.log.store import LogStore

store, draft, count = LogStore(Path(sys.argv[1])), Draft(), int(sys.argv[2])
store.open()
pool, running, n, quiet = ThreadPoolExecutor(2), [], 0, 0.0
while n < count or time.monotonic() < quiet:
    for n in range(n, min(n + 2000, count)):
        draft.queue = store.queue(b"T", n % 4)
        draft.set_body(bytes(50))
        draft.set_properties(b"KEYS\\x01k%d" % n)
        if store.append(draft):
            n -= 1
            time.sleep(0.01)
            break
    else:
        quiet = time.monotonic() + 3 if n + 1 >= count and not quiet else quiet
    n += 1
    mono_ms = int(time.monotonic() * 1000)
    store.tick(int(time.time() * 1000), mono_ms)
    running += [(job, pool.submit(job.run)) for job in store.take_jobs(mono_ms)]
    for one in [one for one in running if one[1].done()]:
        running.remove(one)
        one[0].finish(one[1].exception(), mono_ms)
os.kill(os.getpid(), signal.SIGKILL)
"""
_OPEN = """
import os, signal, sys, time
from pathlib import Path
from penstock.log.store import LogStore

store, wall, cpu = LogStore(Path(sys.argv[1])), time.perf_counter(), time.process_time()
store.open()
wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
assert all(len(store.query(b"T", b"k%d" % n, 2, 0, 1 << 60)) == 1 for n in (0, int(sys.argv[2]) // 2, int(sys.argv[2]) - 1))
print(round(wall, 3), round(cpu, 3), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def restart(messages: int) -> dict[str, Any]:
    """Opening a log of so many messages with a key each behind kill -9, from the page cache and from the disk."""
    folder = tempfile.mkdtemp(prefix="penstock-bench-")
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent / "src")}

    def run(program: str) -> list[float]:
        command = [sys.executable, "-c", program, folder, str(messages)]
        return [float(word) for word in subprocess.run(command, env=environment, stdout=subprocess.PIPE).stdout.split()]

    try:
        run(_FILL)
        run(_OPEN)  # takes what came behind the last checkpoint
        wall, cpu = run(_OPEN)
        for path in Path(folder).rglob("*"):
            if path.is_file():
                with path.open("rb") as file:
                    os.fdatasync(file.fileno())
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return {"messages": messages, "seconds": wall, "cpu_s": cpu, "cold_seconds": run(_OPEN)[0]}
    finally:
        shutil.rmtree(folder)


def empty_disk() -> dict[str, Any]:
    """MB on the disk of a broker that was just made, and with the first message of a topic of either kind."""
    folder = tempfile.mkdtemp(prefix="penstock-bench-")

    def used() -> float:
        return round(sum(path.lstat().st_blocks * 512 for path in Path(folder).rglob("*")) / 1e6, 1)

    try:
        with penstock(data=folder) as broker:
            found = {"empty_mb": used()}
            Peer(broker.nsq, b"  V2").publish(["jobs"])
            asyncio.run(_send(broker.registry, "events", []))
            time.sleep(1)
            return found | {"first_messages_mb": used()}
    finally:
        shutil.rmtree(folder)


async def _send(registry: str, topic: str, delays_ms: list[int]) -> None:
    from penstock.client.aio.producer import Producer
    from penstock.message import Message

    async with Producer(registry) as producer:
        if not delays_ms:
            await producer.send(Message(topic, b"first", keys=["k"]))
        for delay_ms in delays_ms:
            due_ms = int(time.time() * 1000) + delay_ms
            await producer.send(Message(topic, b"%d" % due_ms, deliver_at_ms=due_ms))
            await asyncio.sleep(0.005)


def lateness(count: int) -> dict[str, Any]:
    """How late delayed messages of a log topic come to a consumer on an idle broker, in ms."""

    async def run(registry: str) -> list[float]:
        from penstock.client.aio.push import PushConsumer

        noise, late = random.Random(1), list[float]()
        async with PushConsumer("late", registry, start="first") as consumer:
            await _send(registry, "late", [])
            await consumer.subscribe("late")
            delays_ms = [noise.randrange(500, 3_000) for _ in range(count)]
            sending: asyncio.Task[None] | None = None
            async for delivery in consumer:
                if sending is None:  # the first message: consumer and topic know each other
                    sending = asyncio.create_task(_send(registry, "late", delays_ms))
                    continue
                late.append(time.time() * 1000 - int(delivery.body))
                if len(late) == count:
                    break
            assert sending is not None
            await sending
        return sorted(late)

    with penstock() as broker:
        late = asyncio.run(run(broker.registry))
    at = {
        name: round(late[min(count - 1, int(count * part))], 1)
        for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }
    return {"messages": count, **{f"{name}_ms": ms for name, ms in at.items()}}


ROWS = ("topics", "connections", "backlog", "made", "many", "restart", "disk", "lateness")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench scale", description=__doc__)
    parser.add_argument("--short", action="store_true", help="small sizes, and nothing is stored")
    parser.add_argument(
        "--only", nargs="+", choices=ROWS, default=list(ROWS), help="these rows; what is stored of others stays"
    )
    parser.add_argument("--topics", type=int, default=0, help="log topics of rows made and many (10,000)")
    parser.add_argument("--queue-topics", type=int, default=0, help="queue topics of row made (1,000)")
    parser.add_argument(
        "--connections", type=int, default=0, help="(50,000; of several brokers where one may not open so many files)"
    )
    parser.add_argument("--messages", type=int, default=0, help="of the largest log of row restart (10,000,000)")
    given = parser.parse_args(arguments)
    short = given.short
    stored = HERE / "results" / "scale.json"
    result: dict[str, Any] = {} if short or not stored.is_file() else json.loads(stored.read_text())
    result["machine"] = describe()
    logs = given.topics or (200 if short else 9_900)
    queues = given.queue_topics or (100 if short else 1_000)
    messages = given.messages or (200_000 if short else 10_000_000)
    touch_memory(1 if short else 6)
    rows = {
        "topics": lambda: idle_topics(100 if short else 1000, 2 if short else 10),
        "connections": lambda: idle_connections(given.connections or (1000 if short else CONNECTIONS)),
        "backlog": lambda: backlog(500_000 if short else 10_000_000),
        "made": lambda: topics_made(logs, queues, 20_000 if short else 100_000),
        "many": lambda: many_topics(logs, 2 if short else 10),
        "restart": lambda: [restart(messages // 10), restart(messages)],
        "disk": empty_disk,
        "lateness": lambda: lateness(50 if short else 400),
    }
    for name in ROWS:
        if name in given.only:
            result[name] = rows[name]()
            print(name, result[name], flush=True)
    result["goals"] = {
        "cpu_share_max": IDLE_CPU_SHARE_MAX, "kib_a_connection_max": KIB_A_CONNECTION_MAX, "backlog_mib_max": BACKLOG_MIB_MAX,
    }  # fmt: skip
    print(json.dumps(result["machine"]))
    if not short:
        stored.parent.mkdir(exist_ok=True)
        stored.write_text(json.dumps(result, indent=1) + "\n")
