"""A walk over every verb: JSON for programs, a dry run before what destroys, and what an operator's day brings: a port that
speaks something else, a reader that has enough, a disk that is full, Ctrl-C, a broker that is killed. Nothing ends in a
traceback.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import penstock
from access.people import SECRET, user, write
from cli.test_exits import SRC, THERE, VERBS, exits
from penstock.cli.main import main
from penstock.security import Security
from penstock.testing import Broker
from polling import eventually

# They start a process or write a script for a shell; what they print is not data.
NO_DATA = {"broker", "completion", "console", "demo", "registry", "spark template", "up"}
DESTROYS = {
    "channel empty", "channel rm", "client disconnect", "context rm", "delayed cancel", "dlq redrive", "group reset", "group rm",
    "ha forget", "ha promote", "ha switch", "store lost republish", "topic alter", "topic convert", "topic purge", "topic rm",
    "user rm",
}  # fmt: skip
ASKS = DESTROYS - {"delayed cancel", "dlq redrive", "group reset", "ha promote", "ha switch"}


def leaves() -> Iterator[tuple[str, click.Command]]:
    """All verbs that do something."""
    context = click.Context(main)

    def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[str, click.Command]]:
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from walk(found, (*path, name))
        if path and (not isinstance(command, click.Group) or command.invoke_without_command):
            yield " ".join(path), command

    return walk(main, ())


def options(command: click.Command) -> set[str]:
    return {name for param in command.params for name in param.opts}


def test_what_each_verb_offers() -> None:
    known = dict(leaves())
    assert {name for name, command in known.items() if "--json" not in options(command)} == NO_DATA
    assert {name for name in DESTROYS if "--dry-run" not in options(known[name])} == set()
    assert {name for name in ASKS if not options(known[name]) & {"--yes", "--force"}} == set()


def test_json_is_an_object_a_line(tmp_path: Path) -> None:
    """Every verb that asks a cluster, on what is there; those that take a while to look take one look."""
    file = tmp_path / "rows.jsonl"
    file.write_text('{"topic": "t", "body": "x"}\n')
    with Broker() as broker, penstock.Admin(broker.registry) as admin:
        with penstock.Producer(broker.registry) as producer:
            for topic in ("t", "%DLQ%g"):
                admin.create_topic(topic, 1)
                producer.send(penstock.Message(topic, b"x", keys=("k",)))
        with penstock.PullConsumer(broker.registry, group="g") as consumer:
            consumer.commit(dict.fromkeys(consumer.queues("t"), 0))
        for name in ("q", "q2"):
            admin.change_queue(name, "add")
            admin.change_queue(name, "add", channel="c")
        nothing = set()
        last = (
            "topic convert",
            "channel rm",
            "group rm",
            "topic rm",
            "topic purge",
        )  # what they take away, others read
        for verb in sorted(VERBS, key=lambda verb: last.index(verb) if verb in last else -1):
            if "--json" not in options(dict(leaves())[verb]):
                continue
            words = [THERE.get(word, word) for word in VERBS[verb][0].replace("FILE", str(file)).split()]
            done = CliRunner().invoke(
                main, [*verb.split(), *words, "--json", "-n", broker.registry], catch_exceptions=False
            )
            assert done.exit_code in (0, 1, 3), (verb, done.output)
            for line in done.stdout.splitlines():
                assert isinstance(json.loads(line), dict), (verb, line)
            if done.exit_code == 0 and not done.stdout:
                nothing.add(verb)
        assert nothing <= {
            "client ls",
            "config reload",
            "delayed find",
            "delayed ls",
            "group info",
            "channel peek",
            "sub",
            "tail",
            "top",
        }


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    with Broker() as broker, penstock.Admin(broker.registry) as admin:
        admin.change_queue("q", "add")
        admin.change_queue("q", "add", channel="c")
        with penstock.Producer(broker.registry) as producer:
            producer.send(penstock.Message("t", b"x"))
            producer.send(penstock.Message("t", b"later", deliver_at_ms=time.time_ns() // 1_000_000 + 3_600_000))
        eventually(lambda: len(admin.delayed()) == 1)
        (delayed,) = (row["id"] for row in admin.delayed())
        for words in (
            ("topic", "rm", "t"), ("topic", "rm", "q"), ("channel", "rm", "q", "c"), ("channel", "empty", "q", "c"),
            ("delayed", "cancel", delayed), ("delayed", "fire", delayed),
        ):  # fmt: skip
            for form in ((), ("--json",)):
                done = CliRunner().invoke(main, [*words, "--dry-run", *form, "-n", broker.registry])
                assert done.exit_code == 0, done.output
                assert words[2] in done.output
        for typo in (
            "topic rm x",
            "channel rm q x",
            "channel empty x c",
            "delayed cancel b/1",
            "client disconnect 1.2.3.4:5",
        ):
            words = tuple(typo.split())
            assert CliRunner().invoke(main, [*words, "--dry-run", "-n", broker.registry]).exit_code == 3, words
        assert [row["id"] for row in admin.delayed()] == [delayed]
        assert [one["channel"] for one in admin.queue_topics("q")[0]["channels"]] == ["c"]
        assert sum(stat.max_offset for stat in admin.topic_stats("t").values()) == 1


def test_a_delayed_message_of_somebody_else(tmp_path: Path) -> None:
    """3 where nothing has this id, whoever asks; 4 where it is there and this user may not; then it is still there."""
    users = write(
        tmp_path / "users.toml",
        user("root", "admin"),
        user("shop", "publish:t", "subscribe:t"),
        user("other", "publish:x"),
    )
    with Broker(users=str(users)) as broker:
        root = Security(user="root", secret=SECRET + "root")
        with penstock.Admin(broker.registry, security=root) as admin:
            admin.create_topic("t", 1)
            with penstock.Producer(broker.registry, security=root) as producer:
                producer.send(penstock.Message("t", b"later", deliver_at_ms=time.time_ns() // 1_000_000 + 3_600_000))
            eventually(lambda: len(admin.delayed()) == 1)
            (there,) = (row["id"] for row in admin.delayed())
            for who, id_, code in (
                ("other", there, 4),
                ("other", f"{there}77", 3),
                ("shop", f"{there}77", 3),
                ("shop", there, 0),
            ):
                for verb in ("cancel", "fire"):
                    if who == "shop" and code == 0 and verb == "fire":
                        code = 3  # it was cancelled
                    environ = {"PENSTOCK_USER": who, "PENSTOCK_SECRET": SECRET + who}
                    done = CliRunner().invoke(main, ["delayed", verb, id_, "-n", broker.registry], env=environ)
                    assert done.exit_code == code, (who, verb, id_, done.output)
                assert len(admin.delayed()) == (1 if who == "other" or id_ != there else 0)


ANSWERS = {
    "ssh": b"SSH-2.0-OpenSSH_9.2\r\n",
    "http": b"HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nbad",
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "no JSON": b"\0\0\0\x0a\0\0\0\x06{nope}",
    "a list": b"\0\0\0\x06\0\0\0\x02[]",
    "half": b"\0\0\x10\0\0",
    "nothing": b"",
}


@contextmanager
def stranger(says: bytes) -> Iterator[str]:
    """A port where somebody else answers, and closes."""
    with socket.create_server(("127.0.0.1", 0), backlog=500) as server:

        def serve() -> None:
            with suppress(OSError):
                while True:
                    peer, _ = server.accept()
                    with peer, suppress(OSError):
                        peer.sendall(says)
                        peer.recv(1 << 16)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("name", ANSWERS)
def test_a_port_that_speaks_something_else(name: str) -> None:
    with stranger(ANSWERS[name]) as address:
        for verb in (
            "topic ls",
            "send t x",
            "tail t --no-follow",
            "peek t",
            "top --count 1",
            "dlq ls",
            "bench pub --topic t",
        ):
            done = CliRunner().invoke(main, [*verb.split(), "-n", address])
            assert done.exit_code in (1, 124), (verb, done.output)
            assert isinstance(done.exception, SystemExit), (verb, done.exception)
            assert address in done.output
            assert "\n  " in done.output, "what to do next"


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    for verb, said in exits(address, tmp_path, THERE).items():
        assert said.startswith("1 penstock: cannot connect"), (verb, said)
        assert "penstock up" in said


def run(*words: str, registry: str, **streams: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", *words, "-n", registry],
        stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=300, env={**os.environ, "PYTHONPATH": str(SRC)}, **streams,
    )  # type: ignore[call-overload, no-any-return]  # fmt: skip


READS = (
    "topic ls", "topic describe t", "tail t --no-follow --from first", "tail t --no-follow --from first --json", "peek t",
    "export t -", "broker ls", "group ls", "delayed histogram", "top --count 1",
)  # fmt: skip


def test_who_reads_has_enough_or_has_no_room(tmp_path: Path) -> None:
    """`… | head`: no word, 0. A full disk: what it is, and what to do, 1."""
    with Broker() as broker:
        with penstock.Producer(broker.registry) as producer:
            producer.send_batch([penstock.Message("t", bytes(1_000))] * 500)
        with penstock.Admin(broker.registry) as admin:
            admin.set_offset("g", "t", 0, new=True)
        closed, gone = os.pipe()
        os.close(closed)

        def piped(verb: str) -> tuple[str, int, bytes]:
            done = run(*verb.split(), registry=broker.registry, stdout=gone)
            return verb, done.returncode, done.stderr

        def full(verb: str) -> tuple[str, int, bytes]:
            with open("/dev/full", "wb") as device:
                done = run(*verb.split(), registry=broker.registry, stdout=device)
            return verb, done.returncode, done.stderr

        with ThreadPoolExecutor(4) as pool:
            for verb, code, said in pool.map(piped, READS):
                assert (code, said) == (0, b""), (verb, said)
            for verb, code, said in pool.map(full, READS):
                assert code == 1, (verb, said)
                assert said.splitlines()[0] == b"penstock: [Errno 28] No space left on device", verb
                assert b"Make room" in said.splitlines()[1]
        os.close(gone)
        done = run("export", "t", str(tmp_path / "nothing" / "there.jsonl"), registry=broker.registry)
        assert (done.returncode, done.stderr.count(b"\n")) == (1, 2)
        assert b"spelled right" in done.stderr


@pytest.mark.parametrize("words", ["main --help", "main --version", "main topic --help", "nsqd --version"])
def test_help_that_nobody_reads_is_no_failure(words: str) -> None:
    command, *rest = words.split()
    closed, gone = os.pipe()
    os.close(closed)
    code = f"from penstock.cli.__main__ import {command}; {command}()"
    done = subprocess.run(
        [sys.executable, "-c", code, *rest], stdout=gone, stderr=subprocess.PIPE, timeout=120,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    )  # fmt: skip
    os.close(gone)
    assert (done.returncode, done.stderr) == (0, b"")


def test_ctrl_c_ends_a_verb_as_a_shell_has_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as registry:
        words = ["topic", "ls", "-n", f"127.0.0.1:{registry.getsockname()[1]}"]
        with subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SRC)},
        ) as verb:  # fmt: skip
            connection, _ = registry.accept()
            with connection:
                verb.send_signal(signal.SIGINT)
                assert (*verb.communicate(timeout=120), verb.returncode) == (b"", b"", 130)


@pytest.mark.parametrize("verb", ["tail t", "top", "group lag g --watch"])
@pytest.mark.parametrize("end", ["ctrl-c", "killed"])
def test_what_follows_ends_with_a_word(verb: str, end: str, tmp_path: Path) -> None:
    """Ctrl-C, or the broker is killed in the middle: it ends or says so, and never with a traceback."""
    ports = [f"--{name}-port=0" for name in ("remoting", "nsq", "http", "registry", "lookup", "lookup-http")]
    command = [sys.executable, "-m", "penstock.cli", "up", "--data", str(tmp_path), *ports]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as up, ExitStack() as stack:
        stack.callback(up.kill)  # whatever goes wrong, nobody waits for it
        assert up.stdout is not None
        registry = json.loads(up.stdout.readline().removeprefix(b"ready "))["registry"]
        with penstock.Producer(registry) as producer:
            producer.send(penstock.Message("t", b"first"))
        with penstock.PullConsumer(registry, group="g") as consumer:
            consumer.commit(dict.fromkeys(consumer.queues("t"), 0))
        words = verb.split() + (["--from", "first"] if verb.startswith("tail") else [])
        with subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", *words, "-n", registry], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(SRC)},
        ) as follower:  # fmt: skip
            stack.callback(follower.kill)
            assert follower.stdout is not None
            assert follower.stdout.readline()
            if end == "ctrl-c":
                follower.send_signal(signal.SIGINT)
            else:
                up.kill()
                up.wait(60)
                with suppress(subprocess.TimeoutExpired):
                    follower.wait(3)
                follower.send_signal(signal.SIGINT)
            _, said = follower.communicate(timeout=120)
        assert b"Traceback" not in said, said.decode()
        assert follower.returncode in (0, 1, 124, 130), (follower.returncode, said)
        up.kill()
