"""`./run bench watch`: what being watched costs a broker: history, `/metrics` every 15 s, a console with two pages open.

1,000 topics with three readers each, half of them log topics with groups, half queue topics with channels. Two brokers get the
same load in the same minutes; one keeps no history and nobody looks at it. The difference of their CPU is the figure.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import penstock as client
from bench.machine import anonymous_mib, describe
from bench.scale import cpu_s
from bench.servers import HERE, Running, environment, penstock

READERS = ("billing", "search", "audit")
SHARE_MAX = 0.02
SCRAPE_S = 15.0
PAGES = ("/", "/topics")


def _post(broker: Running, target: str, body: bytes = b"") -> None:
    request = urllib.request.Request(f"http://{broker.http}{target}", data=body, method="POST")
    urllib.request.urlopen(request, timeout=60).close()


def prepare(broker: Running, topics: int) -> None:
    """The topics, and who reads them."""
    with client.Admin(broker.registry) as admin:
        admin.create_topics((f"log-{n}" for n in range(topics // 2)), 1)
    for group in READERS:
        with client.PullConsumer(broker.registry, group=group) as consumer:
            for n in range(topics // 2):
                consumer.commit(dict.fromkeys(consumer.queues(f"log-{n}"), 0))
    for n in range(topics // 2):
        _post(broker, f"/topic/create?topic=queue-{n}")
        for channel in READERS:
            _post(broker, f"/channel/create?topic=queue-{n}&channel={channel}")


class Load:
    """Messages into topics by turns, as many a second, and groups that come after. The same for every broker."""

    def __init__(self, broker: Running, topics: int, rate: int) -> None:
        self._broker, self._topics, self._rate = broker, topics, rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.sent = 0
        self.error = ""

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._send()
        except Exception as error:
            self.error = repr(error)

    def _send(self) -> None:
        source = random.Random(1)
        began = time.monotonic()
        with (
            client.Producer(self._broker.registry) as producer,
            client.PullConsumer(self._broker.registry, group=READERS[0]) as consumer,
        ):
            while not self._over.wait(max(0.0, self.sent / self._rate - (time.monotonic() - began))):
                n = source.randrange(self._topics // 2)
                if self.sent % 20:
                    producer.send(client.Message(f"log-{n}", bytes(200)))
                    self.sent += 1
                else:
                    _post(self._broker, f"/mpub?topic=queue-{n}", b"\n".join([b"x" * 200] * 10))
                    self.sent += 10
                if self.sent % 50 < 10:
                    consumer.commit(dict.fromkeys(consumer.queues(f"log-{n}"), 1))


@contextmanager
def watched(broker: Running) -> Iterator[None]:
    """Somebody looks: Prometheus, and a console with pages that are live."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(SCRAPE_S):
            urllib.request.urlopen(f"http://{broker.http}/metrics", timeout=60).read()

    command = [
        sys.executable, "-m", "penstock.cli", "console", "--broker", f"http://{broker.http}", "-n", broker.registry,
        "--port", "0", "--ends-with-input",
    ]  # fmt: skip
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(HERE.parent / "src"),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    address = json.loads(process.stdout.readline().removeprefix(b"ready "))["console"]

    def look(page: str) -> None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{address}/live?of={page}") as stream:
            while not over.is_set() and stream.readline():
                pass

    threads = [threading.Thread(target=scrape), *(threading.Thread(target=look, args=(page,)) for page in PAGES)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
        for thread in threads:
            thread.join()


def measure(topics: int, rate: int, minutes: float) -> dict[str, Any]:
    """CPU of a broker that is watched, and of one that is not, as shares of a core."""
    with penstock() as seen, penstock(history_bytes=0) as bare:
        pair = {"watched": seen, "bare": bare}
        for broker in pair.values():
            prepare(broker, topics)
        with Load(seen, topics, rate) as one, Load(bare, topics, rate) as other, watched(seen):
            time.sleep(min(30.0, 6 * minutes))
            before = {name: (cpu_s(broker.pid), time.monotonic()) for name, broker in pair.items()}
            memory = anonymous_mib(seen.pid)
            sent = one.sent, other.sent
            shares: list[float] = []
            rounds = max(1, round(2 * minutes))
            for _ in range(rounds):
                begun = {name: cpu_s(broker.pid) for name, broker in pair.items()}
                at = time.monotonic()
                time.sleep(60 * minutes / rounds)
                passed = time.monotonic() - at
                now = {name: cpu_s(broker.pid) for name, broker in pair.items()}
                shares.append((now["watched"] - begun["watched"] - now["bare"] + begun["bare"]) / passed)
            whole = {
                name: (cpu_s(b.pid) - before[name][0]) / (time.monotonic() - before[name][1])
                for name, b in pair.items()
            }
            sent = one.sent - sent[0], other.sent - sent[1]
            grown = anonymous_mib(seen.pid) - memory
        if one.error or other.error:
            raise SystemExit(f"bench: the load ended: {one.error or other.error}")
        return {
            "topics": topics, "readers": topics * len(READERS), "minutes": minutes, "sent": sent,
            "watched_share": round(whole["watched"], 4), "bare_share": round(whole["bare"], 4),
            "share": round(whole["watched"] - whole["bare"], 4), "share_range": [round(min(shares), 4), round(max(shares), 4)],
            "grown_mib": round(grown, 1), "goal_share": SHARE_MAX,
        }  # fmt: skip


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench watch")
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--rate", type=int, default=200, help="messages a second")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--short", action="store_true", help="seconds, and nothing is stored")
    given = parser.parse_args(arguments)
    if given.short:
        print(json.dumps(measure(100, given.rate, 0.2)))
        return
    figures = {"machine": describe(), **measure(given.topics, given.rate, given.minutes)}
    Path(HERE / "results" / "watch.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures))
