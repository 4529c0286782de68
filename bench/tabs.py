"""`./run bench tabs`: ten tabs of the console open on a busy broker. Its PUB throughput beside the same without them, round by
round; how soon pages answer with 5,000 topics; whether the memory of broker and console stays where it is.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
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
from bench.servers import HERE, Running, environment, nsq_load, penstock

PAGES = (
    "/", "/topics", "/topics?sort=in", "/topics/log-0/about", "/topics/queue-0/about", "/topics/queue-0/channel/c/about",
    "/deadletters", "/delayed", "/clients", "/settings",
)  # fmt: skip
SHARE_MIN = 0.97
FIRST_BYTE_MS_MAX = 300
LOOKS = 15
LOAD = {"P": 1, "C": 1, "w": 1_000, "W": 0.5}  # PUB, and a consumer, so that the disk does not fill


@contextmanager
def console(broker: Running) -> Iterator[tuple[str, int]]:
    """A console: its address, and its process."""
    command = [
        sys.executable, "-m", "penstock.cli", "console", "--broker", f"http://{broker.http}", "-n", broker.registry,
        "--port", "0", "--ends-with-input",
    ]  # fmt: skip
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment(HERE.parent / "src"),
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        told = json.loads(process.stdout.readline().removeprefix(b"ready "))
        try:
            yield f"http://{told['console']}", process.pid
        finally:
            process.stdin.close()


@contextmanager
def tabs(address: str) -> Iterator[list[int]]:
    """Ten pages that are live, each its stream; how much came on each."""
    over = threading.Event()
    came = [0] * len(PAGES)

    def look(number: int) -> None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/live?of={PAGES[number]}") as stream:
            while not over.is_set() and (line := stream.readline()):
                came[number] += len(line)

    threads = [threading.Thread(target=look, args=(number,), daemon=True) for number in range(len(PAGES))]
    for thread in threads:
        thread.start()
    try:
        yield came
    finally:
        over.set()
        for thread in threads:
            thread.join(30)


def prepare(broker: Running, topics: int) -> None:
    """Half log topics, half queue topics with a channel."""
    with client.Admin(broker.registry) as admin:
        admin.create_topics((f"log-{n}" for n in range(topics // 2)), 1)
        for n in range(topics // 2):
            for target in (f"/topic/create?topic=queue-{n}", f"/channel/create?topic=queue-{n}&channel=c"):
                request = urllib.request.Request(f"http://{broker.http}{target}", method="POST")
                urllib.request.urlopen(request, timeout=60).close()


def first_bytes(address: str) -> dict[str, float]:
    """Page → median ms until its first byte."""
    found = {}
    for page in PAGES:
        took = []
        for _ in range(LOOKS):
            began = time.monotonic()
            with urllib.request.urlopen(address + page, timeout=60) as answer:
                answer.read(1)
                took.append(1_000 * (time.monotonic() - began))
                answer.read()
        found[page] = round(statistics.median(took), 1)
    return found


def share(pid: int, seconds: float) -> float:
    """What part of a core a process takes."""
    before, began = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before) / (time.monotonic() - began)


def measure(topics: int, minutes: float, seconds: float, open_s: float) -> dict[str, Any]:
    """Everything, on one broker."""
    with penstock(level="os", max_topic_creations_per_second=100_000) as broker, console(broker) as (address, pid):
        prepare(broker, topics)
        quick = first_bytes(address)
        time.sleep(2)
        idle = share(broker.pid, 10 * seconds)
        with tabs(address):
            time.sleep(5)
            watched = share(broker.pid, 10 * seconds)
        rates: list[tuple[float, float]] = []
        costs: list[tuple[float, float]] = []
        memory: list[tuple[float, float]] = []
        until = time.monotonic() + 60 * minutes
        came: list[int] = []
        while time.monotonic() < until or len(rates) < 3:
            plain, seen = {}, {}
            for number in (0, 1) if len(rates) % 2 == 0 else (1, 0):
                if number == 0:
                    plain = nsq_load("load", broker, t=seconds, T=f"plain-{len(rates)}", **LOAD)
                else:
                    with tabs(address) as came:
                        time.sleep(2)
                        seen = nsq_load("load", broker, t=seconds, T=f"seen-{len(rates)}", **LOAD)
                        time.sleep(open_s)
            rates.append((plain["rate"], seen["rate"]))
            costs.append((plain["cpu_us"], seen["cpu_us"]))
            memory.append((anonymous_mib(broker.pid), anonymous_mib(pid)))
        ratios = sorted(seen / plain for plain, seen in rates)
        half = len(memory) // 2
        return {
            "topics": topics, "tabs": len(PAGES), "minutes": minutes, "rounds": len(rates),
            "rate": round(statistics.median(plain for plain, _ in rates)),
            "rate_with_tabs": round(statistics.median(seen for _, seen in rates)),
            "ratio": round(statistics.median(ratios), 3), "ratio_range": [round(ratios[0], 3), round(ratios[-1], 3)],
            "cpu_us": round(statistics.median(plain for plain, _ in costs), 4),
            "cpu_us_with_tabs": round(statistics.median(seen for _, seen in costs), 4),
            "share": round(watched - idle, 4), "goal_ratio": SHARE_MIN, "pages_that_told": sum(size > 0 for size in came),
            "first_byte_ms": quick, "goal_first_byte_ms": FIRST_BYTE_MS_MAX,
            "broker_mib": [round(memory[at][0], 1) for at in (0, half, -1)],
            "console_mib": [round(memory[at][1], 1) for at in (0, half, -1)],
        }  # fmt: skip


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="bench tabs")
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seconds", type=float, default=3, help="of each half of a round")
    parser.add_argument("--open", type=float, default=20, help="seconds that tabs stay open after each round")
    parser.add_argument("--short", action="store_true", help="seconds, and nothing is stored")
    given = parser.parse_args(arguments)
    if given.short:
        print(json.dumps(measure(100, 0.01, 0.5, 0)))
        return
    figures = {"machine": describe(), **measure(given.topics, given.minutes, given.seconds, given.open)}
    Path(HERE / "results" / "tabs.json").write_text(json.dumps(figures, indent=1) + "\n")
    print(json.dumps(figures))
