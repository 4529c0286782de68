"""Exit codes of every verb that asks a cluster: 3 not found, 4 refused, 124 not answered in time; never a traceback.

A verb that is not in the table fails the first test: whoever adds one says here how it is called.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from access.people import SECRET, user, write
from penstock import Admin, Message, Producer, PullConsumer
from penstock.cli.main import main
from penstock.cli.tools import first_sentence
from penstock.fronts.requests.queues import QueueCalls
from penstock.security import Security
from penstock.testing import Broker

SRC = Path(__file__).parents[2] / "src"

# How each is called, T is a log topic, Q a queue topic with the channel C, G a group; and what it ends with when those are
# not there.
VERBS: dict[str, tuple[str, int | None]] = {
    "bench both": ("--topic T --msgs 1", None),
    "bench delayed": ("--topic T --msgs 1", None),
    "bench pub": ("--topic T --msgs 1", None),
    "bench sub": ("--topic T --msgs 1", None),
    "broker ls": ("", None),
    "channel add": ("Q D", 3),
    "channel empty": ("Q C -f", 3),
    "channel info": ("Q C", 3),
    "channel ls": ("Q", 3),
    "channel pause": ("Q C", 3),
    "channel peek": ("Q C", 3),
    "channel rm": ("Q C -f", 3),
    "channel unpause": ("Q C", 3),
    "client disconnect": ("1.2.3.4:5 -f", 3),
    "client ls": ("", None),
    "config reload": ("", None),
    "delayed cancel": ("broker-a/77", 3),
    "delayed find": ("x", None),
    "delayed fire": ("broker-a/77", 3),
    "delayed histogram": ("", None),
    "delayed ls": ("", None),
    "dlq export": ("G -", 3),
    "dlq ls": ("", None),
    "dlq redrive": ("G", 3),
    "dlq show": ("G", 3),
    "export": ("T -", 3),
    "group info": ("G", 3),
    "group lag": ("G", 3),
    "group ls": ("", None),
    "group reset": ("G T --to first", 3),
    "group rm": ("G --yes", 3),
    "ha forget": ("n --yes", 3),
    "ha pause": ("", 3),
    "ha promote": ("--node n", 3),
    "ha resume": ("", 3),
    "ha status": ("", None),
    "ha switch": ("", 3),
    "import": ("FILE --to T", 3),
    "message find": ("T k", 3),
    "message get": ("7F0000010000AA210000000000099999", 3),
    "message trace": ("7F0000010000AA210000000000099999", 3),
    "peek": ("T", 3),
    "send": ("T x", 3),
    "sub": ("T --no-follow", 3),
    "tail": ("T --no-follow", 3),
    "top": ("--count 1", None),
    "topic add": ("A", None),
    "topic alter": ("T --queues 16", 3),
    "topic convert": ("Q --to log --yes", 3),
    "topic describe": ("T", 3),
    "topic info": ("T", 3),
    "topic ls": ("", None),
    "topic purge": ("T --yes", 3),
    "topic rm": ("T -f", 3),
}
# Where a user who may nothing is not refused: who knows of the cluster may be told by anybody who is a user, and of what is
# not there nobody has to be refused.
ANYBODY = {
    "broker ls": 0, "ha status": 0, "ha forget": 3, "ha pause": 3, "ha promote": 3, "ha resume": 3, "ha switch": 3,
    "delayed cancel": 3, "delayed fire": 3,
}  # fmt: skip
# Jobs of Spark, whose exit codes have tests of their own, what starts a process, what only notes an address, and what looks
# into a folder before it asks anybody.
OTHERS = {"broker", "console", "context add", "store lost republish"}


def verbs() -> Iterator[str]:
    """All that ask a cluster."""

    def walk(command: click.Command, path: tuple[str, ...]) -> Iterator[str]:
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from walk(found, (*path, name))
        if path and any(param.name == "registry" for param in command.params):
            yield " ".join(path)

    context = click.Context(main)
    return walk(main, ())


def test_every_verb_is_in_the_table() -> None:
    asked = {verb for verb in verbs() if not verb.startswith("spark ")} - OTHERS
    assert asked == set(VERBS)


def exits(registry: str, folder: Path, names: dict[str, str], at_once: int = 8, **environ: str) -> dict[str, str]:
    """What each verb ends with: ``code`` and what it said."""
    file = folder / "rows.jsonl"
    file.write_text('{"topic": "t", "body": "x"}\n')

    calls = {
        verb: [
            *verb.split(),
            *(names.get(word, word) for word in words.replace("FILE", str(file)).split()),
            "-n",
            registry,
        ]
        for verb, (words, _) in VERBS.items()
    }
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("forked.py")), str(at_once)],
        input=json.dumps({"folder": str(folder), "calls": calls}), capture_output=True, text=True, timeout=600,
        env={**os.environ, "PYTHONPATH": str(SRC), "HOME": str(folder), **environ},
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert {verb: said for verb, (_, said) in found.items() if "Traceback" in said} == {}
    return {verb: f"{code} {said.strip()}" for verb, (code, said) in found.items()}


def wrong(found: dict[str, str], wanted: dict[str, int]) -> list[str]:
    return [
        f"{verb}: {said}" for verb, said in found.items() if verb in wanted and int(said.split()[0]) != wanted[verb]
    ]


THERE = {"T": "t", "Q": "q", "C": "c", "G": "g", "A": "a", "D": "d"}
GONE = dict.fromkeys(THERE, "nosuch") | {"A": "made"}


def test_what_is_not_there(tmp_path: Path) -> None:
    with Broker() as broker, Admin(broker.registry) as admin:
        before = admin.topics(system=True)
        found = exits(broker.registry, tmp_path, GONE)
        assert wrong(found, {verb: code for verb, (_, code) in VERBS.items() if code is not None}) == []
        silent = {verb: said for verb, said in found.items() if said.startswith("3 ") and "\n  " not in said}
        assert silent == {}  # each says what to do next
        assert set(admin.topics(system=True)) - set(before) - {"b"} == {"made"}
        assert admin.queue_topics("nosuch") == []


def test_the_port_of_a_broker_as_that_of_the_registry() -> None:
    with Broker() as broker:
        for words in (["topic", "ls"], ["send", "t", "x"], ["group", "ls"]):
            done = CliRunner().invoke(main, [*words, "-n", broker.remoting])
            assert done.exit_code == 1
            assert "Is -n the port of a registry (9876)?" in done.output


def test_a_broker_that_knows_no_request_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """As RocketMQ's own does not; its registry is the right one."""
    monkeypatch.setattr(QueueCalls, "TABLE", {})
    with Broker() as broker:
        for words in (["topic", "ls"], ["channel", "ls"], ["peek", "t"]):
            done = CliRunner().invoke(main, [*words, "-n", broker.registry])
            assert done.exit_code == 1
            assert "Is -n the port of a registry" not in done.output
            assert "The broker is RocketMQ's, or an older Penstock" in done.output
        assert CliRunner().invoke(main, ["group", "ls", "-n", broker.registry]).exit_code == 0


def test_who_may_not(tmp_path: Path) -> None:
    users = write(tmp_path / "users.toml", user("root", "admin"), user("nobody", "publish:x"))
    with Broker(users=str(users)) as broker:
        root = Security(user="root", secret=SECRET + "root")
        with Admin(broker.registry, security=root) as admin, Producer(broker.registry, security=root) as producer:
            for topic in ("t", "%DLQ%g"):
                admin.create_topic(topic, 1)
                producer.send(Message(topic, b"x"))
            admin.change_queue("q", "add")
            admin.change_queue("q", "add", channel="c")
            with PullConsumer(broker.registry, group="g", security=root) as consumer:
                consumer.commit(dict.fromkeys(consumer.queues("t"), 0))
            environ = {"PENSTOCK_USER": "nobody", "PENSTOCK_SECRET": SECRET + "nobody"}
            found = exits(broker.registry, tmp_path, THERE, **environ)
            assert wrong(found, dict.fromkeys(VERBS, 4) | ANYBODY) == []
            assert {verb: said for verb, said in found.items() if said.startswith("4 ") and "\n  " not in said} == {}
            assert {"t", "%DLQ%g"} <= set(admin.topics(system=True))


@pytest.fixture
def silent() -> Iterator[str]:
    """A registry that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=500) as server:
        kept: list[socket.socket] = []

        def take() -> None:
            while True:
                try:
                    kept.append(server.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
        for one in kept:
            one.close()


def test_nobody_answers(silent: str, tmp_path: Path) -> None:
    found = exits(silent, tmp_path, THERE, at_once=len(VERBS))
    assert wrong(found, dict.fromkeys(VERBS, 124)) == []


def test_help_is_whole() -> None:
    """At 80 columns no line is longer, and the first sentence of each command is there to its end."""

    def commands(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                found = command.get_command(context, name)
                assert found is not None
                yield from commands(found, (*path, name))

    context = click.Context(main)
    for path, command in commands(main, ()):
        told = CliRunner().invoke(main, [*path, "--help"], terminal_width=80).output
        assert max(map(len, told.splitlines())) <= 80, path
        if isinstance(command, click.Group):
            plain = " ".join(told.split())
            for name in command.list_commands(context):
                one = command.get_command(context, name)
                assert one is not None
                assert f"{name} {first_sentence(one)}" in plain, (path, name)


def test_what_is_no_registry(tmp_path: Path) -> None:
    """A usage error at once: nobody is asked under half an address."""
    for verb, said in exits("[::1", tmp_path, THERE).items():
        assert said == "2 penstock: '[::1' is not host:port", (verb, said)
