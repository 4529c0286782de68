"""Messages as they are found and read from the command line."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from cli.conftest import Run
from penstock import Admin, Message, Producer
from penstock.cli.main import main
from penstock.cli.messages import message
from penstock.testing import Broker


@pytest.fixture(scope="module")
def offers(broker: Broker) -> str:
    """Thirty messages over four queues, in the order of their numbers."""
    with Admin(broker.registry) as admin, Producer(broker.registry) as producer:
        admin.create_topic("offers", 4)
        for n in range(30):
            more = {"city": "Rome"} if n % 3 else {}
            tag = "even" if n % 2 == 0 else "odd"
            producer.send(Message("offers", b"%d" % n, tags=tag, properties={"price": str(n), **more}))
    return "offers"


def bodies(said: str) -> list[int]:
    return [int(json.loads(line)["body"]) for line in said.splitlines()]


def test_every_id_that_is_printed_finds_its_message(broker: Broker, run: Run) -> None:
    with Producer(broker.registry) as producer:
        receipt = producer.send(Message("found", b"body of it", keys=("key-1",)))
    (row,) = [json.loads(line) for line in run("message", "find", "found", "key-1", "--json").splitlines()]
    assert row["msgId"] == receipt.msg_id
    for words in (("message", "get", row["msgId"]), ("message", "get", row["msgId"], "-t", "found")):
        assert "body of it" in run(*words)
    assert "not an offset message id" in run("message", "get", "nonsense", status=2)
    assert "no message" in run("message", "get", "0" * 32, status=3)
    run("message", "get", "é" * 32, status=2)


def test_an_id_makes_nobody_dial_an_address_that_no_registry_names(broker: Broker, run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as trap:
        trap.settimeout(0.5)
        id_ = bytes((127, 0, 0, 1)).hex() + trap.getsockname()[1].to_bytes(4).hex() + bytes(8).hex()
        assert "no message" in run("message", "get", id_, status=3)
        with pytest.raises(TimeoutError):
            trap.accept()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), range(30)),
        (("--where", "price > 4 AND price <= 9"), [5, 6, 7, 8, 9]),
        (("--where", "city IS NULL AND TAGS = 'odd'"), [3, 9, 15, 21, 27]),
        (("--where", "price < 0"), []),
        (("--where", "nothing = 'x' OR price = 29"), [29]),
        (("--tags", "even"), range(0, 30, 2)),
        (("--limit", "3"), None),
    ],
)
def test_tail_reads_what_is_asked_for_up_to_the_end(
    run: Run, offers: str, words: tuple[str, ...], wanted: object
) -> None:
    found = bodies(run("tail", offers, "--from", "first", "--no-follow", "--json", *words))
    assert sorted(found) == list(wanted) if wanted is not None else len(found) == 3  # type: ignore[call-overload]


def test_tail_for_people(run: Run, offers: str) -> None:
    (line,) = run(
        "tail", offers, "--from", "2026-01-01T00:00:00+00:00", "--no-follow", "--where", "price = 7"
    ).splitlines()
    assert line.endswith("  odd  7")
    assert run("tail", offers, "--no-follow") == ""  # last: nothing came meanwhile


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--where", "price >"), "Parse 'price >' failed"),
        (("--where", "price = 1", "--tags", "even"), "not both"),
        (("--from", "yesterday"), "neither first, last, -1h nor a moment"),
        (("--from", "2026-01-01"), "time zone"),
    ],
)
def test_what_cannot_be_read_is_said_before_anything_is_read(
    run: Run, offers: str, words: tuple[str, ...], said: str
) -> None:
    assert said in run("tail", offers, *words, status=2)


def test_tail_of_no_log_topic(run: Run, broker: Broker) -> None:
    assert "no broker serves topic" in run("tail", "nosuch", status=3)
    assert "no broker serves topic" in run("message", "find", "nosuch", "k", status=3)


def test_tail_follows_until_it_is_interrupted(broker: Broker, offers: str) -> None:
    root = str(Path(__file__).parents[2] / "src")
    with subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "tail", offers, "--from", "first", "--where", "price >= 29", "--json", "-n",
         broker.registry],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["body"] == "29"
        with Producer(broker.registry) as producer:
            for price in (28, 1000):
                producer.send(Message(offers, b"%d" % price, properties={"price": str(price)}))
        assert json.loads(process.stdout.readline())["body"] == "1000"
        process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=60)
        assert (process.returncode, said, errors) == (0, "", "")


def test_every_command_explains_itself() -> None:
    assert message.commands
    for words in (["tail"], *(["message", name] for name in message.commands)):
        told = CliRunner().invoke(main, [*words, "--help"])
        assert told.exit_code == 0
        assert "--registry" in told.output


def test_where_a_message_went(broker: Broker, run: Run) -> None:
    with Producer(broker.registry, group="shop", trace=True) as producer:
        receipt = producer.send(Message("shown", b"x", keys=("order-9",)))
    rows = [json.loads(line) for line in run("message", "trace", receipt.msg_id, "--json").splitlines()]
    (stored,) = (row for row in rows if row["what"] == "stored")
    assert stored["host"].endswith(f"{receipt.queue.queue_id}/{receipt.queue_offset}")
    (row,) = (row for row in rows if row is not stored)
    assert (row["what"], row["group"], row["topic"], row["host"]) == ("sent", "shop", "shown", broker.remoting)
    assert (row["msgId"], row["keys"]) == (receipt.msg_id, "order-9")
    assert "shop" in run("message", "trace", "order-9")
    assert "no trace of nosuch" in run("message", "trace", "nosuch", status=3)
