"""`penstock bench` as it is typed: it counts right, and leaves nothing behind. How fast it is says nobody here."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Literal

import click
import pytest

from cli.conftest import Run
from penstock import Message, Producer
from penstock.cli.bench import Figures, percentile, size_bytes
from penstock.testing import Broker
from polling import eventually


@pytest.mark.parametrize("kind", ["log", "queue"])
@pytest.mark.parametrize("role", ["pub", "sub", "both", "delayed"])
def test_roles(run: Run, role: str, kind: str) -> None:
    batch = ("--batch", "3") if role != "delayed" else ("--delay", "100ms")
    rows = run("bench", role, "--kind", kind, "--msgs", "20", "--clients", "2", "--size", "1K", *batch, rows=True)
    wanted = {"pub": ["pub"], "sub": ["sub"], "both": ["pub", "sub"], "delayed": ["pub", "late"]}[role]
    assert [(row["what"], row["messages"]) for row in rows] == [(what, 20) for what in wanted]
    for row in rows:
        assert 0 <= row["p50_ms"] <= row["p95_ms"] <= row["p99_ms"] <= row["p999_ms"] <= row["max_ms"]
    assert not [row for row in run("topic", "ls", "--system", rows=True) if "bench-" in row["topic"]]
    assert not [row for row in run("group", "ls", rows=True) if "bench-" in row["group"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", ["log", "queue"])
def test_who_ends_it_finds_nothing_left(run: Run, broker: Broker, kind: str, number: signal.Signals) -> None:
    words = ("bench", "delayed", "--delay", "1h", "--kind", kind, "--msgs", "5", "-n", broker.registry)
    bench = subprocess.Popen([sys.executable, "-m", "penstock.cli", *words], stderr=subprocess.PIPE)
    try:
        eventually(lambda: len(run("delayed", "ls", rows=True)) == 5)
        assert [row for row in run("topic", "ls", rows=True) if "bench-" in row["topic"]]
        bench.send_signal(number)
        _, told = bench.communicate(timeout=60)
    finally:
        bench.kill()
    assert b"Traceback" not in told
    assert bench.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    assert not [row for row in run("topic", "ls", "--system", rows=True) if "bench-" in row["topic"]]
    assert not [row for row in run("group", "ls", rows=True) if "bench-" in row["group"]]
    assert run("delayed", "ls", rows=True) == []  # it would make the topic again


def test_a_topic_that_is_there_keeps_its_messages(run: Run, broker: Broker) -> None:
    run("topic", "add", "own", "--queues", "1")
    run("bench", "pub", "--topic", "own", "--msgs", "7")
    assert run("topic", "info", "own", rows=True)[0]["end"] == 7
    run("bench", "pub", "--topic", "onw", status=3)
    assert "onw" not in run("topic", "ls")
    with Producer(broker.registry) as producer:
        producer.send(Message("own", b"short"))


@pytest.mark.parametrize("kind", ["log", "queue"])
@pytest.mark.parametrize("role", ["sub", "both"])
def test_of_a_topic_that_is_there_only_what_the_bench_sent_is_measured(
    run: Run, broker: Broker, role: str, kind: Literal["log", "queue"]
) -> None:
    topic = f"{role}-{kind}"
    run("topic", "add", topic, "--kind", kind)
    if kind == "queue":
        run("channel", "add", topic, "theirs")
    with Producer(broker.registry, kind=kind) as producer:
        for n in range(30):
            producer.send(Message(topic, b"an order of 128 bytes".ljust(128, b"%d" % (n % 10))))
    row = run("bench", role, "--topic", topic, "--msgs", "10", rows=True)[-1]
    assert row["messages"] == 10
    assert row["max_ms"] < 600_000
    assert not [row for row in run("group", "ls", rows=True) if "bench-" in row["group"]]
    if kind == "queue":
        (left,) = run("channel", "ls", topic, rows=True)
        assert (left["channel"], left["depth"]) == ("theirs", 40)


def test_what_waits_in_a_topic_without_channels_is_not_taken(run: Run, broker: Broker) -> None:
    topic = "lone"
    run("topic", "add", topic, "--kind", "queue")
    with Producer(broker.registry, kind="queue") as producer:
        producer.send(Message(topic, b"precious"))
    assert "channel add lone" in run("bench", "both", "--topic", topic, "--msgs", "1", status=2)
    assert run("peek", topic, rows=True)[0]["body"] == "precious"


@pytest.mark.parametrize("words", [("--size", "7B"), ("--size", "1G"), ("--msgs", "0"), ("--clients", "0")])
def test_mistakes(run: Run, words: tuple[str, str]) -> None:
    run("bench", "pub", *words, status=2)
    run("bench", "delayed", "--batch", "2", status=2)
    run("bench", "delayed", "--delay", "soon", status=2)


def test_figures() -> None:
    assert [percentile(list(range(1, 101)), q) for q in (50, 95, 99, 99.9, 100)] == [50, 95, 99, 100, 100]
    assert (percentile([], 50), percentile([7], 50)) == (0, 7)
    figures = Figures("pub", 500)
    figures.add(100, 2_000_000)
    figures.took(0.5)
    row = figures.row()
    assert (row["per_second"], row["mb_per_second"], row["p50_ms"]) == (200, 0.1, 2.0)
    assert (size_bytes("128"), size_bytes("4K"), size_bytes("1MiB")) == (128, 4096, 1 << 20)
    with pytest.raises(click.BadParameter):
        size_bytes("x")
