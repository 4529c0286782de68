"""The everyday tools as they are typed: what a typing mistake and a missing part lead to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cli.conftest import Run, rows_of
from penstock import Admin, Message, Producer, PullConsumer
from penstock.cli.groups import group
from penstock.cli.main import main
from penstock.cli.topics import topic
from penstock.client.routes import MessageQueue
from penstock.errors import BrokerRefused, NotFound
from penstock.testing import Broker
from polling import eventually


def known(admin: Admin, topic: str) -> list[MessageQueue]:
    deadline = time.monotonic() + 60
    while True:
        try:
            return admin.route(topic).subscribe_queues()
        except Exception:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def read_all(broker: Broker, topic: str, queues: int) -> list[bytes]:
    found: list[bytes] = []
    with PullConsumer(broker.registry) as consumer:
        wanted = [MessageQueue(topic, "broker-a", n) for n in range(queues)]
        consumer.assign(topic, wanted, start="first")
        stored = sum(consumer.offsets(queue)[1] for queue in wanted)
        while len(found) < stored:
            found += [message.body for messages in consumer.getmany(1.5).values() for message in messages]
    return sorted(found)


def test_a_change_changes_what_is_named_and_nothing_else(broker: Broker, run: Run) -> None:
    run("topic", "add", "wide", "--queues", "16")
    with Admin(broker.registry) as admin, Producer(broker.registry) as producer:
        queues = known(admin, "wide")
        assert len(queues) == 16
        for queue in queues:
            producer.send(Message("wide", b"%d" % queue.queue_id), queue=queue)
        run("topic", "add", "wide", "--level", "disk")
        assert len(admin.topic_stats("wide")) == 16
        admin.create_topic("wide", perm=4)
        config = broker.call(lambda server: server.broker.topics.get(b"wide").as_config())
        assert (config["readQueueNums"], config["writeQueueNums"]) == (16, 16)
        assert (config["perm"], config["level"]) == (4, "disk")
        admin.create_topic("wide", perm=6)
        with pytest.raises(BrokerRefused, match="holds messages"):
            admin.create_topic("wide", 8)
        assert "holds messages" in run("topic", "add", "wide", "--queues", "8", status=1)
        assert len(admin.topic_stats("wide")) == 16
        run("topic", "add", "wide", "--queues", "8", "--force")
        assert len(known(admin, "wide")) in (8, 16)
    assert len(read_all(broker, "wide", 16)) == 16  # whoever asks for the others by number gets them
    run("topic", "add", "wide", "--queues", "16")  # and now everybody does
    assert len(read_all(broker, "wide", 16)) == 16


def test_levels_of_either_kind(broker: Broker, run: Run) -> None:
    for kind, levels in (("log", ("os", "disk", "pair", "pair-disk")), ("queue", ("memory", "os", "disk"))):
        for level in levels:
            name = f"{kind}-{level}"
            run("topic", "add", name, "--kind", kind, "--level", level)
            row = json.loads(run("topic", "describe", name, "--json"))
            assert (row["kind"], row["level"]) == (kind, level)
    run("topic", "add", "x", "--level", "memory", status=2)
    run("topic", "add", "x", "--kind", "queue", "--level", "pair", status=2)


def test_queues_taken_away_by_force_are_readable_after_a_restart(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Admin(broker.registry) as admin, Producer(broker.registry) as producer:
        admin.create_topic("wide", 4)
        for queue in known(admin, "wide"):
            producer.send(Message("wide", b"%d" % queue.queue_id), queue=queue)
        admin.create_topic("wide", 2, force=True)
    with Broker(tmp_path) as broker:
        assert read_all(broker, "wide", 4) == [b"0", b"1", b"2", b"3"]
        with Admin(broker.registry) as admin:
            admin.create_topic("wide", 4)
            assert [stats.max_offset for stats in admin.topic_stats("wide").values()] == [1, 1, 1, 1]


def test_names_that_nobody_knows_are_errors(broker: Broker, run: Run) -> None:
    run("topic", "add", "orders", "--queues", "2")
    with Admin(broker.registry) as admin:
        queue = known(admin, "orders")[0]
    with PullConsumer(broker.registry, group="billing") as consumer:
        consumer.commit({queue: 0})
    assert "no broker knows a group 'biling'" in (said := run("group", "reset", "biling", "orders", status=3))
    assert "Did you mean billing?" in said
    assert "no broker knows a group 'biling'" in run("group", "lag", "biling", status=3)
    with Admin(broker.registry) as admin:
        with pytest.raises(NotFound):
            admin.reset_offset("biling", "orders")
        assert "biling" not in admin.groups()  # asking did not make it
        assert "billing" in admin.groups()
    assert "broker-a 0: 0" in run("group", "reset", "billing", "orders")
    assert "broker-a 1: 0" in run("group", "reset", "to-come", "orders", "--new")
    assert "no topic 'nosuch'" in run("channel", "ls", "nosuch", status=3)
    run("channel", "ls")


@pytest.mark.parametrize(
    ("words", "ours"), [("topic create orders", "add"), ("topic delete orders", "rm"), ("group show g", "info")]
)
def test_a_command_that_is_called_otherwise_elsewhere_is_named(words: str, ours: str) -> None:
    """Click names only what is spelled alike."""
    told = CliRunner().invoke(main, words.split())
    assert told.exit_code == 2
    assert f"Did you mean '{ours}'?" in told.stderr


def test_who_deletes_a_queue_topic_sees_what_its_channels_have(broker: Broker, run: Run) -> None:
    run("topic", "add", "full", "--kind", "queue")
    for channel in ("one", "two"):
        run("channel", "add", "full", channel)
    run("send", "full", "a", "b", "c")
    run("channel", "empty", "full", "two", "-f")
    assert run("topic", "rm", "full", "--dry-run", rows=True)[0]["messages"] == 3


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("send", "jobs-q", "x", "--kind", "queue", "--key", "k"), 2, "keys"),
        (("send", "no good name", "x", "--new"), 1, "illegal characters"),
        (("group", "reset", "g", "t", "--to", "yesterday"), 2, "neither first, last, -1h nor a moment"),
        (("delayed", "cancel", "nonsense"), 2, "not the id of a delayed message"),
        (("topic", "info", "nosuch"), 3, "no broker serves topic"),
        (("topic", "purge", "t", "--to", "banana", "-f"), 2, "neither end, an offset, -1h nor a moment"),
        (("group", "reset", "g", "t", "--to", "2026-11-25"), 2, "no time zone: +00:00 is UTC"),
        (("message", "get", "z" * 32), 2, "`message find` show ids"),
    ],
)
def test_no_argument_ends_in_a_traceback(run: Run, words: tuple[str, ...], status: int, said: str) -> None:
    assert said in run(*words, status=status)


def test_without_spark_the_spark_commands_say_what_to_install(tmp_path: Path) -> None:
    blocker = tmp_path / "sitecustomize.py"
    blocker.write_text(
        "import sys\n"
        "class No:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('pyspark', 'pyarrow'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, No())\n"
    )
    source = str(Path(__file__).parents[2] / "src")
    for words in (["spark", "stats", "t"], ["spark", "archive", "t", "o"], ["spark", "audit", "x"]):
        done = subprocess.run(
            [sys.executable, "-m", "penstock.cli", *words],
            capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONPATH": f"{tmp_path}:{source}"},
        )  # fmt: skip
        assert done.returncode != 0, words
        assert "Traceback" not in done.stderr, (words, done.stderr[-500:])


def test_exit_codes_are_told_by_kind(tmp_path: Path) -> None:
    def status(*words: str) -> Any:
        return CliRunner().invoke(main, words).exit_code

    assert status("broker", "--data", str(tmp_path), "--set", "nosuch=1") == 2
    assert status("topic", "ls", "-n", "127.0.0.1:1") == 1


@pytest.mark.parametrize("group", [topic, group])
def test_every_command_explains_itself(group: click.Group) -> None:
    assert group.commands
    for name in group.commands:
        told = CliRunner().invoke(group, [name, "--help"])
        assert told.exit_code == 0
        assert "--registry" in told.output


def test_alter_changes_a_topic_that_is_there_and_says_what(broker: Broker, run: Run) -> None:
    def told() -> tuple[object, ...]:
        config = broker.call(lambda server: server.broker.topics.get(b"altered").as_config())
        return config["readQueueNums"], config["perm"], config.get("level", "os")

    run("topic", "add", "altered", "--queues", "4")
    before = told()
    run("topic", "alter", "altered", "--level", "disk", "--dry-run")
    assert told() == before
    run("topic", "alter", "altered", "--level", "disk")
    run("topic", "alter", "altered", "--perm", "R")
    assert told() == (4, 4, "disk")
    run("topic", "alter", "nobody-made-this", "--queues", "2", status=3)
    with Admin(broker.registry) as admin:
        assert "nobody-made-this" not in admin.topics()
    run("topic", "alter", "altered", status=2)  # nothing is named


def test_alter_says_how_long_a_topic_keeps(broker: Broker, run: Run) -> None:
    def told() -> tuple[object, object]:
        (row,) = rows_of(run("topic", "describe", "kept", "--json"))
        return row["retentionMs"], row["retentionBytes"]

    run("topic", "add", "kept")
    assert told() == (0, 0)
    run("topic", "alter", "kept", "--retention", "12h", "--dry-run")
    assert told() == (0, 0)
    (row,) = rows_of(run("topic", "alter", "kept", "--retention", "12h", "--json"))
    assert (row["what"], row["from"], row["to"]) == ("retentionMs", 0, 43_200_000)
    for words in (("--retention", "999999999999d"), ("--retention-bytes", "999999999999999T")):
        assert "more than a broker counts" in run("topic", "alter", "kept", *words, status=2)
    run("topic", "alter", "kept", "--retention-bytes", "10G", "--queues", "16")
    assert told() == (43_200_000, 10 << 30)
    run("topic", "add", "kept", "--queues", "24")  # and a tool that knows nothing of it leaves it alone
    assert told() == (43_200_000, 10 << 30)
    run("topic", "alter", "kept", "--retention", "0")
    assert told() == (0, 10 << 30)
    assert "is no size" in run("topic", "alter", "kept", "--retention-bytes", "9Q", status=2)
    assert "is no time" in run("topic", "alter", "kept", "--retention", "9", status=2)
    run("topic", "alter", "nobody-made-this", "--retention", "1h", status=3)


def test_what_is_purged_is_found_by_nothing(broker: Broker, run: Run) -> None:
    run("topic", "add", "hidden", "--queues", "1")
    with Producer(broker.registry) as producer:
        sent = [producer.send(Message("hidden", b"x", keys=(f"k{n}",))) for n in range(2)]
    run("topic", "purge", "hidden", "--to", "1", "--yes")
    assert rows_of(run("message", "find", "hidden", "k0", "--json")) == []
    run("message", "get", sent[0].offset_msg_ids[0], status=3)
    assert "k1" in run("message", "find", "hidden", "k1")
    assert "k1" in run("message", "get", sent[1].offset_msg_ids[0])
    assert rows_of(run("peek", "hidden", "--key", "k0", "--json")) == []


def test_a_topic_changes_its_kind(broker: Broker, run: Run) -> None:
    run("topic", "add", "turned", "--kind", "queue")
    run("channel", "add", "turned", "c")
    assert "can become a log topic" in run("topic", "convert", "turned", "--to", "log", "--dry-run")
    assert "say --force" in run("topic", "convert", "turned", "--to", "log", status=2)
    assert "turned is a log topic" in run("topic", "convert", "turned", "--to", "log", "--yes")
    with Producer(broker.registry) as producer:
        producer.send(Message("turned", b"x"))
    assert "purge it" in run("topic", "convert", "turned", "--to", "queue", "--dry-run", status=1)
    assert "purge it" in run("topic", "convert", "turned", "--to", "queue", "--yes", status=1)
    run("topic", "purge", "turned", "--yes")
    assert "turned is a queue topic" in run("topic", "convert", "turned", "--to", "queue", "--yes")
    (row,) = rows_of(run("channel", "ls", "turned", "--json"))
    assert row["channel"] == "c"
    found = [row["kind"] for row in run("topic", "ls", rows=True) if row["topic"] == "turned"]
    assert found == ["queue"]  # the registry has forgotten that it was a log topic
    assert "turned" in run("top", "--count", "1")
    run("send", "turned", "y")


def test_a_topic_whose_delayed_messages_outlive_it(broker: Broker, run: Run) -> None:
    """Of a log topic the command says that they make it again; those of a queue topic go with it."""
    later = time.time_ns() // 1_000_000 + 3_600_000
    with Admin(broker.registry) as admin, Producer(broker.registry) as producer:
        admin.create_topic("comes-again", 1)
        producer.send(Message("comes-again", b"x", deliver_at_ms=later))
        eventually(lambda: len(admin.delayed(topic="comes-again")) == 1)
        for words in (("--dry-run",), ("-f",)):
            done = CliRunner().invoke(main, ["topic", "rm", "comes-again", *words, "-n", broker.registry])
            assert done.exit_code == 0
            assert "delayed messages of comes-again make it again" in done.stderr
        (row,) = admin.delayed(topic="comes-again")
        admin.fire_delayed(row["id"])
        eventually(lambda: "comes-again" in admin.topics())
        done = CliRunner().invoke(main, ["topic", "rm", "comes-again", "-f", "-n", broker.registry])
        assert (done.exit_code, done.stderr) == (0, "")
        run("send", "gone-with-it", "x", "--kind", "queue", "--delay", "1h")
        assert run("topic", "rm", "gone-with-it", "-f") == ""
        assert admin.delayed(topic="gone-with-it") == []
