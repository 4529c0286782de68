"""`penstock store lost`: what a tail holds, and what of it is sent again."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock
from penstock.app import Server
from penstock.broker.topics import HALF_TOPIC
from penstock.cli.lost import DELIVERY
from penstock.cli.lost import lost as command
from penstock.disk.files import Files
from penstock.errors import NoRoute
from penstock.log import cutting
from penstock.testing import Broker
from penstock.wire.codes import SYS_COMMIT
from polling import eventually

SEGMENT = 1 << 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "new") as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data folder that has cut off what was sent behind the first two messages."""
    old = tmp_path / "old"
    with Broker(old, mapped_file_size_commit_log=SEGMENT) as running, penstock.Producer(running.registry) as producer:
        for n in range(2):
            producer.send(penstock.Message("orders", b"kept %d" % n))
        delayed = penstock.Message("orders", b"long delayed", deliver_at_ms=4_000_000_000_000)
        producer.send(penstock.Message("orders", b"short", deliver_at_ms=1))
        to = running.call(lambda server: server.broker.store.end_position)
        for n in range(5):
            producer.send(penstock.Message("orders", b"lost %d" % n, keys=("k",), tags="A", properties={"p": str(n)}))
        producer.send(delayed)
        end = running.call(lambda server: server.broker.store.end_position)
    intent = cutting.Intent(to, end, f"log-{to}-1", 1, "a test")
    cutting.keep_tail(Files(), old, intent, SEGMENT, 1_700_000_000_000)
    return old


def run(*words: str) -> list[dict[str, object]]:
    done = CliRunner().invoke(command, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.output.splitlines()]


def found(broker: Broker) -> list[bytes]:
    with penstock.Admin(broker.registry) as admin:
        try:
            return sorted(m.body for m in admin.query_by_key("orders", "k"))
        except NoRoute:  # the registry hears of a new topic a moment later
            return []


def test_what_a_tail_holds(folder: Path) -> None:
    [row] = run("ls", str(folder))
    assert (row["messages"], row["why"]) == (6, "a test")
    told = CliRunner().invoke(command, ["show", str(folder), str(row["name"])]).output.splitlines()
    assert [json.loads(line)["topic"] for line in told] == ["orders"] * 5 + ["rmq_sys_wheel_timer"]
    assert CliRunner().invoke(command, ["show", str(folder), "log-1-1"]).exit_code == 3


def test_it_is_sent_again_once(folder: Path, broker: Broker) -> None:
    name = str(run("ls", str(folder))[0]["name"])
    again = ("republish", str(folder), name, "-n", broker.registry, "--force")
    assert run(*again, "--dry-run") == [{"topic": "orders", "messages": 6, "what": "would be sent"}]
    assert run(*again) == [{"topic": "orders", "messages": 6, "what": "sent"}]
    eventually(lambda: found(broker) == [b"lost %d" % n for n in range(5)])
    with penstock.Admin(broker.registry) as admin:
        [first, *_] = admin.query_by_key("orders", "k")
        assert (first.tags, first.properties["p"]) == ("A", "0")
        assert sum(admin.delayed_counts([1_000])) == 1
    assert run(*again) == [{"topic": "orders", "messages": 6, "what": "was sent by a former call"}]
    assert len(found(broker)) == 5


def test_a_call_that_was_interrupted_is_gone_on_with(folder: Path, broker: Broker) -> None:
    name = str(run("ls", str(folder))[0]["name"])
    again = ("republish", str(folder), name, "-n", broker.registry, "--force")
    run(*again)
    sent = folder / "lost+found" / name / "republished"
    sent.write_text("\n".join(sent.read_text().split()[:3]) + "\n")
    rows = run(*again)
    assert {row["what"]: row["messages"] for row in rows} == {"was sent by a former call": 3, "sent": 3}


def test_what_the_topic_has_already_is_left_out(folder: Path) -> None:
    """Here the old broker itself: it has all of them."""
    name = str(run("ls", str(folder))[0]["name"])
    with Broker(folder, mapped_file_size_commit_log=SEGMENT) as broker:
        rows = run("republish", str(folder), name, "-n", broker.registry, "--force")
    assert {row["what"]: row["messages"] for row in rows} == {"is in the topic already": 5, "sent": 1}


def test_a_delayed_message_of_a_transaction_is_sent_again_once(tmp_path: Path, broker: Broker) -> None:
    """Its delivery says, too, that it was committed."""
    old = tmp_path / "old"

    def commit(server: Server) -> None:
        broker = server.broker
        broker.topic_to_write(b"orders")
        due = str(broker.now_ms + 200)
        properties = {"PGROUP": "PG", "REAL_TOPIC": "orders", "REAL_QID": "0", "TIMER_DELIVER_MS": due, "KEYS": "k"}
        half = broker.put(
            broker.topics.by_name[HALF_TOPIC], 0, b"lost", properties, born_host=broker.store_host, born_ms=1, half=True
        )
        broker.transactions.begun(half.queue_offset, half.physical, 1, properties)
        told = {"producerGroup": "PG", "tranStateTableOffset": half.queue_offset, "commitLogOffset": half.physical}
        broker.transactions.end({**told, "commitOrRollback": SYS_COMMIT})

    with Broker(old, mapped_file_size_commit_log=SEGMENT) as running:
        running.call(commit)
        eventually(lambda: found(running) == [b"lost"])
        end = running.call(lambda server: server.broker.store.end_position)
    cutting.keep_tail(Files(), old, cutting.Intent(0, end, "log-0-1", 1, "a test"), SEGMENT, 1_700_000_000_000)
    name = str(run("ls", str(old))[0]["name"])
    rows = run("republish", str(old), name, "-n", broker.registry, "--force")
    told = {row["what"]: row["messages"] for row in rows if row["topic"] == "orders"}
    assert told == {"sent": 1, DELIVERY: 1}
    eventually(lambda: found(broker) == [b"lost"])


def test_a_dry_run_writes_nothing_and_two_at_once_are_one(folder: Path, broker: Broker) -> None:
    """The second one sent all of it once more, for it did not know what the first had sent meanwhile."""
    name = str(run("ls", str(folder))[0]["name"])
    note = folder / "lost+found" / name / "republished"
    run("republish", str(folder), name, "-n", broker.registry, "--dry-run")
    assert not note.exists()
    with note.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        done = CliRunner().invoke(command, ["republish", str(folder), name, "-n", broker.registry, "--force"])
        assert (done.exit_code, "another call is republishing" in done.output) == (2, True)
    assert found(broker) == []
