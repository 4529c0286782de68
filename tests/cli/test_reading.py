"""`penstock tail | sub | export` as they are typed, for topics of both kinds."""

from __future__ import annotations

import json

import click
import pytest

from cli.conftest import Run
from penstock import Admin, Message, Producer, PullConsumer
from penstock.cli.reading import pieces_of
from penstock.message import ReceivedMessage
from penstock.testing import Broker


@pytest.fixture(scope="module")
def filled(broker: Broker) -> Broker:
    with Admin(broker.registry) as admin, Producer(broker.registry) as producer:
        admin.create_topic("news", 1)
        admin.change_queue("work", "add")
        admin.change_queue("work", "add", channel="c")
        for n in range(6):
            producer.send(Message("news", b"%d\x1b[2J" % n, keys=("k",), properties={"n": str(n)}))
            producer.send(Message("work", b"%d\x1b[2J" % n))
        queue = admin.route("news").subscribe_queues()[0]
    with PullConsumer(broker.registry, group="readers") as consumer:
        consumer.commit({queue: 2})
    return broker


def test_nothing_reaches_the_terminal_as_it_is(run: Run, filled: Broker) -> None:
    for words in (("news", "--from", "first", "--no-follow"), ("work", "-c", "c", "-l", "1")):
        said = run("tail", *words)
        assert "\x1b" not in said
        assert "\\x1b[2J" in said
    run("send", "work", "\x1b[2Jlater", "--delay", "1h")
    assert "\x1b" not in run("delayed", "ls")
    assert "\x1b" not in run("message", "find", "news", "k")


def test_a_group_goes_on_where_it_was(run: Run, filled: Broker) -> None:
    words = ("tail", "news", "--group", "readers", "--format", "%o ")
    assert run(*words, "-l", "2") == "2 3 "
    assert run(*words, "--no-follow") == "4 5 "
    assert run("group", "lag", "readers", rows=True)[0]["lag"] == 0
    assert "no broker knows a group 'raeders'" in run("sub", "news", "--group", "raeders", status=3)
    assert "raeders" not in run("group", "ls")
    assert run("sub", "news", "--group", "newcomers", "--new", "--from", "first", "-l", "1", "--format", "%o") == "0"


def test_messages_that_wait_for_the_first_channel_are_not_taken(run: Run) -> None:
    """An ephemeral channel would be it, and what it was given goes with it."""
    run("send", "held", "one", "two", "--kind", "queue")
    assert "`penstock peek held`" in run("tail", "held", "-l", "1", status=3)
    assert [row["body"] for row in run("peek", "held", rows=True)] == ["one", "two"]
    run("topic", "purge", "held", "--yes")
    run("send", "held", "later", "--delay", "1h")
    assert "wait for the first one" in run("tail", "held", "-l", "1", status=3)
    assert len(run("delayed", "ls", "--topic", "held", rows=True)) == 1
    run("channel", "add", "held", "c")
    assert run("tail", "held", "--no-follow") == ""


def test_a_channel_is_finished_as_far_as_it_is_shown(run: Run, filled: Broker) -> None:
    run("channel", "add", "work", "d")
    with Producer(filled.registry) as producer:
        for n in range(5):
            producer.send(Message("work", b"d%d" % n))
    assert run("tail", "work", "-c", "d", "-l", "2", "--format", "%s ") == "d0 d1 "
    assert run("channel", "info", "work", "d", rows=True)[0]["inFlight"] == 0
    rest = run("tail", "work", "-c", "d", "--no-follow", "--format", "%s ")
    assert sorted(rest.split()) == ["d2", "d3", "d4"]  # what was on its way came back
    assert "has no channel 'dd'" in run("tail", "work", "-c", "dd", status=3)
    assert "dd" not in [row["channel"] for row in run("channel", "ls", "work", rows=True)]
    assert run("tail", "work", "--no-follow") == ""  # a channel of its own: what comes from now on
    assert all("tail" not in row["channel"] for row in run("channel", "ls", "work", rows=True))


@pytest.mark.parametrize(("start", "count"), [("first", 6), ("4", 2), ("99", 0), ("-1h", 6), ("last", 0)])
def test_from(run: Run, filled: Broker, start: str, count: int) -> None:
    assert run("tail", "news", f"--from={start}", "--no-follow", "--format", "%o") == "012345"[6 - count :]


def test_json_has_all_bytes(run: Run, filled: Broker) -> None:
    with Producer(filled.registry) as producer, Admin(filled.registry) as admin:
        admin.create_topic("bytes", 1)
        producer.send(Message("bytes", b"\xff\0"))
    (row,) = run("tail", "bytes", "--from", "first", "--no-follow", rows=True)
    assert row["bodyBase64"] == "/wA="


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("tail", "nwes"), 3), (("export", "nwes"), 3), (("tail", "news", "--format", "%x"), 2),
        (("tail", "news", "--format", "%s", "--json"), 2), (("tail", "news", "-c", "c"), 2),
        (("tail", "work", "--from", "first"), 2), (("tail", "work", "-c", "c", "-g", "g"), 2),
        (("tail", "news", "-g", "readers", "--from", "5"), 2), (("export", "work", "-c", "typo"), 3),
        (("export", "news", "-c", "c"), 2), (("tail", "news", "--where", "price >"), 2),
    ],
)  # fmt: skip
def test_mistakes(run: Run, filled: Broker, words: tuple[str, ...], status: int) -> None:
    run(*words, status=status)
    assert "nwes" not in run("topic", "ls")


def test_export_takes_nothing(run: Run, filled: Broker) -> None:
    for topic in ("news", "work"):
        first, second = run("export", topic), run("export", topic)
        assert first == second
        assert len(run("export", topic, "-l", "3").splitlines()) == 3
    deferred = [json.loads(line) for line in run("export", "work").splitlines() if "later" in line]
    assert all(row["due"] > row["stored"] for row in deferred)
    assert {json.loads(line)["body"][0] for line in run("export", "news", "--from", "4").splitlines()} == {"4", "5"}


def test_an_export_of_nothing_says_so(run: Run) -> None:
    run("topic", "add", "silent")
    assert run("export", "silent") == "nothing\n"
    assert run("export", "silent", rows=True) == []


def test_formats() -> None:
    message = ReceivedMessage("t", b"\xff", 1, 2, 3, {"KEYS": "a b", "TAGS": "x"}, store_ms=5, nsq_id="i")

    def made(form: str) -> bytes:
        return b"".join(p if isinstance(p, bytes) else p(message) for p in pieces_of(form))

    assert (
        made(r"%t %p %o %k %g %S %s %T %i%%\n\t\\%s%h")
        == b't 1 2 a b x 1 \xff 5 i%\n\t\\\xff{"KEYS": "a b", "TAGS": "x"}'
    )
    for bad in ("%", "%y", "%t%"):
        with pytest.raises(click.BadParameter):
            pieces_of(bad)


def test_who_reads_is_not_told_of_an_option_of_senders(run: Run) -> None:
    for verb in ("tail", "export"):
        assert "--new" not in run(verb, "nothing-there", status=3)
