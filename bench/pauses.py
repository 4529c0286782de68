"""`./run bench pauses`: how long a producer waits for its answer while something large happens to another topic.

It publishes a small message every other millisecond, and waits for each answer. Meanwhile 2 GB are deleted, a million messages
get their first channel, 100,000 deferred ones are due at one moment, 10,000 RocketMQ producers end together, or a topic is made
where 80,000 pairs of topic and group are. Every broker and nsqd, which has no groups, by turns.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import statistics
import struct
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable
from typing import Any

import penstock as penstock_client
from bench.machine import describe, touch_memory
from bench.servers import HERE, Running, find_nsqd, nsqd, penstock
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import RemotingCommand, encode

LONG, SHORT, DEFERRED = 100 << 10, 100, 20  # bytes of a body
AT_ONCE = 4 << 20  # bytes of a batch
PAUSE_S = 0.002
BEFORE_S, BEHIND_S = 0.5, 3.0


class Line:
    """A connection that has one request on its way, or several."""

    def __init__(self, server: Running) -> None:
        self._socket = socket.create_connection(("127.0.0.1", server.nsq))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(b"  V2")
        self._in = self._socket.makefile("rb")

    def ask(self, requests: bytes, answers: int = 1) -> None:
        """Send, and wait for so many answers."""
        self._socket.sendall(requests)
        while answers:
            (size,) = struct.unpack(">i", self._in.read(4))
            said = self._in.read(size)[4:]
            if said == b"_heartbeat_":
                self._socket.sendall(b"NOP\n")
                continue
            if said != b"OK":
                raise SystemExit(f"bench: {said.decode()}")
            answers -= 1

    def close(self) -> None:
        self._in.close()
        self._socket.close()


class Bystander:
    """A producer of a topic of its own."""

    def __init__(self, server: Running) -> None:
        self._line = Line(server)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.took_ms: list[float] = []

    def __enter__(self) -> Bystander:
        self._thread.start()
        time.sleep(BEFORE_S)
        return self

    def __exit__(self, *error: object) -> None:
        time.sleep(BEHIND_S)
        self._over.set()
        self._thread.join()
        self._line.close()

    def _run(self) -> None:
        while not self._over.wait(PAUSE_S):
            began = time.perf_counter()
            self._line.ask(b"PUB bystander\n" + struct.pack(">i", SHORT) + bytes(SHORT))
            self.took_ms.append((time.perf_counter() - began) * 1_000)


def _post(server: Running, target: str) -> None:
    urllib.request.urlopen(urllib.request.Request(f"http://{server.http}{target}", method="POST"), timeout=120).close()


def _fill(server: Running, topic: str, count: int, body_bytes: int) -> None:
    line, each = Line(server), AT_ONCE // (body_bytes + 4)
    while count > 0:
        each = min(each, count)
        batch = struct.pack(">i", each) + (struct.pack(">i", body_bytes) + bytes(body_bytes)) * each
        line.ask(b"MPUB %s\n%s%s" % (topic.encode(), struct.pack(">i", len(batch)), batch))
        count -= each
    line.close()


def _deletes(server: Running, part: float) -> Callable[[], None]:
    _fill(server, "large", int((2 << 30) * part) // LONG, LONG)
    return lambda: _post(server, "/topic/delete?topic=large")


def _first_channel(server: Running, part: float) -> Callable[[], None]:
    _fill(server, "kept", int(1_000_000 * part), SHORT)
    return lambda: _post(server, "/channel/create?topic=kept&channel=first")


def _due(server: Running, part: float) -> Callable[[], None]:
    """They are due three seconds after all are stored."""
    for target in ("/topic/create?topic=later", "/channel/create?topic=later&channel=c"):
        _post(server, target)
    line, count, piece = Line(server), int(100_000 * part), 500
    rate_s = 40e-6 * count + 3
    began = time.monotonic()
    for _ in range(count // piece):
        left = max(1, round((rate_s - (time.monotonic() - began)) * 1_000))
        line.ask((b"DPUB later %d\n" % left + struct.pack(">i", DEFERRED) + bytes(DEFERRED)) * piece, piece)
    line.close()
    return lambda: time.sleep(max(0.0, rate_s - (time.monotonic() - began)))


def _asks(server: Running, commands: Iterable[RemotingCommand]) -> socket.socket:
    """Ask them one behind the other on one connection, which stays open."""
    line = socket.create_connection(("127.0.0.1", server.port))
    with line.makefile("rb") as answers:
        for command in commands:
            line.sendall(encode(command))
            answers.read(struct.unpack(">i", answers.read(4))[0])
    return line


def _producers_end(server: Running, part: float) -> Callable[[], None]:
    lines = []
    for number in range(int(10_000 * part)):
        about = {"clientID": f"10.0.0.1@{number}", "producerDataSet": [{"groupName": "crowd"}], "consumerDataSet": []}
        lines.append(_asks(server, [RemotingCommand(RequestCode.HEART_BEAT, {}, json.dumps(about).encode())]))

    def end() -> None:
        for line in lines:
            line.close()

    return end


def _one_of_many(server: Running, part: float) -> Callable[[], None]:
    topics = [f"read-{number}" for number in range(int(4_000 * part))]
    with penstock_client.Admin(server.registry) as admin:
        admin.create_topics(topics, 1)
    read = {"queueId": "0", "commitOffset": "0"}
    for group in range(20):
        asked = ({**read, "consumerGroup": f"group-{group}", "topic": topic} for topic in topics)
        _asks(server, (RemotingCommand(RequestCode.UPDATE_CONSUMER_OFFSET, ext) for ext in asked)).close()
    return lambda: _post(server, "/topic/create?topic=one-more")


OURS = (_producers_end, _one_of_many)  # nsqd has nothing of the kind
EVENTS: dict[str, Callable[[Running, float], Callable[[], None]]] = {
    "a topic of 2 GB is deleted": _deletes,
    "a million messages get their first channel": _first_channel,
    "100,000 deferred messages are due at once": _due,
    "10,000 RocketMQ producers end together": _producers_end,
    "a topic is made beside 80,000 pairs of topic and group": _one_of_many,
}


def measure(rounds: int = 3, part: float = 1.0) -> dict[str, Any]:
    """For each event and server the median of the rounds' longest answers and of their 99th percentiles, ms."""
    result: dict[str, Any] = {"machine": describe(), "rounds": rounds, "rows": {}}
    touch_memory(2)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a connection is a descriptor, here as there
    peer = find_nsqd()
    servers = {"level os": lambda: penstock(level="os"), "level memory": lambda: penstock(level="memory")}
    if peer is not None:
        servers["nsqd"] = lambda: nsqd(peer)
    for event, prepare in EVENTS.items():
        asked = [name for name in servers if name != "nsqd" or prepare not in OURS]
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in asked}
        for number in range(rounds):
            for name in asked if number % 2 == 0 else reversed(asked):
                with servers[name]() as server:
                    happen = prepare(server, part)
                    time.sleep(1)
                    with Bystander(server) as bystander:
                        happen()
                    took_ms = sorted(bystander.took_ms)
                    found[name].append((took_ms[-1], took_ms[len(took_ms) * 99 // 100]))
        result["rows"][event] = {
            name: {
                "most_ms": round(statistics.median(most for most, _ in runs), 1),
                "most_range": [round(pick(most for most, _ in runs), 1) for pick in (min, max)],
                "p99_ms": round(statistics.median(p99 for _, p99 in runs), 2),
            }
            for name, runs in found.items()
        }
    return result


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench pauses")
    parser.add_argument("--short", action="store_true", help="a twentieth, once, and nothing is stored")
    given = parser.parse_args(arguments)
    result = measure(1, 0.05) if given.short else measure()
    print(json.dumps(result["machine"]))
    for event, row in result["rows"].items():
        for name, figures in row.items():
            print(f"{event:55} {name:13} most {figures['most_ms']:8.1f} ms   p99 {figures['p99_ms']:7.2f} ms")
    if not given.short:
        (HERE / "results" / "pauses.json").write_text(json.dumps(result, indent=1) + "\n")
