"""`penstock dlq` as it is typed, against a real broker."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Run, rows_of
from penstock import Admin, Message, Producer, PullConsumer, PushConsumer
from penstock.cli.deadletters import dlq
from penstock.client.deadrules import Rule
from penstock.client.results import Reject
from penstock.errors import NoRoute
from penstock.testing import Broker
from polling import eventually


def dead(broker: Broker, topic: str, group: str, bodies: list[bytes], expected: int | None = None) -> None:
    """A group that rejects these messages of a topic."""

    def refuse(message: object) -> None:
        raise Reject("no such\x1b[31m customer")

    with Producer(broker.registry) as producer, Admin(broker.registry) as admin:
        for body in bodies:
            producer.send(Message(topic, body, keys=("k" + body.decode("latin-1")[:4].strip("\x00\x1b"),), tags="paid"))
        with PushConsumer(group, broker.registry, listener=refuse, start="first") as consumer:
            consumer.subscribe(topic)
            eventually(lambda: _count(admin, f"%DLQ%{group}") >= (expected or len(bodies)))


def _count(admin: Admin, topic: str) -> int:
    try:
        return sum(stats.max_offset for stats in admin.topic_stats(topic).values())
    except NoRoute:
        return 0


def stored(broker: Broker, topic: str) -> list[bytes]:
    found: list[bytes] = []
    with PullConsumer(broker.registry) as consumer:
        queues = consumer.assign(topic, start="first")
        ends = sum(consumer.offsets(queue)[1] for queue in queues)
        while len(found) < ends:
            found += [message.body for messages in consumer.getmany(1.0).values() for message in messages]
    return sorted(found)


def test_what_died_is_listed_and_shown(broker: Broker, run: Run, tmp_path: Path) -> None:
    dead(broker, "show-t", "show-g", [b"1", b"2", b"3"])
    (row,) = [row for row in rows_of(run("dlq", "ls", "--json")) if row["group"] == "show-g"]
    assert (row["kind"], row["count"], row["left"], row["topic"]) == ("log", 3, 3, "%DLQ%show-g")
    assert row["oldest"] <= row["newest"]
    assert "%DLQ%show-g" in run("dlq", "ls")
    found = rows_of(run("dlq", "show", "show-g", "--json"))
    assert sorted(one["body"] for one in found) == ["1", "2", "3"]
    first = found[0]
    assert (first["reason"], first["group"], first["origin"]) == ("rejected", "show-g", "show-t")
    assert (first["detail"], first["attempts"], first["redriven"]) == ("no such [31m customer", 1, False)
    assert "127.0.0.1:" in first["client"]
    assert (first["keys"], first["tags"]) == (["k" + first["body"]], "paid")
    said = run("dlq", "show", "%DLQ%show-g", "-l", "1")
    assert said.count("queue ") == 1
    assert "\n  tags  paid\n  keys  k" in said
    assert "why   rejected no such [31m customer" in said
    assert [one["body"] for one in rows_of(run("dlq", "show", "show-g", "--match", "k2", "--json"))] == ["2"]
    file = tmp_path / "letters.jsonl"
    assert "3 written" in run("dlq", "export", "show-g", str(file))
    exported = rows_of(file.read_text())
    assert exported == rows_of(run("dlq", "export", "show-g", "-"))
    assert exported[0]["properties"]["DLQ_REASON"] == "rejected"


def test_a_body_does_nothing_to_the_terminal(broker: Broker, run: Run) -> None:
    dead(broker, "odd-t", "odd-g", [b"\x1b[2J<b>{{7*7}}" + b"x" * 1_000])
    said = run("dlq", "show", "odd-g")
    assert r"\x1b[2J<b>{{7*7}}xxx" in said
    assert "\x1b" not in said
    assert "(1,014 characters)" in said
    dead(broker, "raw-t", "raw-g", [b"\xff\x00"])
    (row,) = rows_of(run("dlq", "show", "raw-g", "--json"))
    assert (row["bodyBase64"], row.get("body")) == ("/wA=", None)


def test_each_is_sent_again_once(broker: Broker, run: Run) -> None:
    dead(broker, "again-t", "again-g", [b"1", b"2", b"3", b"4"])
    assert "would send 4 to again-t" in run("dlq", "redrive", "again-g", "--dry-run")
    assert len(stored(broker, "again-t")) == 4
    assert rows_of(run("dlq", "redrive", "again-g", "--match", "k3", "--json"))[0]["to"] == "again-t"
    assert "sent nothing" in run("dlq", "redrive", "again-g", "--match", "k3")
    assert "sent 2 to again-t" in run("dlq", "redrive", "again-g", "-l", "2", "--rate", "1000")
    assert sum(one["redriven"] for one in rows_of(run("dlq", "show", "again-g", "--json"))) == 3
    assert "sent 1 to again-t" in run("dlq", "redrive", "again-g")
    assert "sent nothing" in run("dlq", "redrive", "again-g")
    assert "sent nothing" in run("dlq", "redrive", "again-g", "--match", "4")
    assert stored(broker, "again-t") == sorted([b"1", b"2", b"3", b"4"] * 2)
    (row,) = [row for row in rows_of(run("dlq", "ls", "--json")) if row["group"] == "again-g"]
    assert (row["count"], row["left"]) == (4, 0)
    dead(broker, "again-t", "again-g", [b"5"], expected=9)  # and those sent again died again
    run("topic", "add", "other-t")
    assert "sent 5 to other-t" in run("dlq", "redrive", "again-g", "--to", "other-t")
    assert stored(broker, "other-t") == [b"1", b"2", b"3", b"4", b"5"]


def test_by_why_they_died(broker: Broker, run: Run, tmp_path: Path) -> None:
    dead(broker, "why-t", "why-g", [b"1", b"2"])
    assert "would send 2 to why-t" in run("dlq", "redrive", "why-g", "--match", "such", "--dry-run")
    assert "sent nothing" in run("dlq", "redrive", "why-g", "--match", "timeout")
    assert not {Rule("timeout").group, Rule("such").group} & {row["group"] for row in run("group", "ls", rows=True)}
    assert "sent 2 to why-t" in run("dlq", "redrive", "why-g", "--match", "such")
    assert "sent nothing" in run("dlq", "redrive", "why-g")
    file = tmp_path / "letters.jsonl"
    file.write_text("mine")
    assert "--force" in run("dlq", "export", "why-g", str(file), status=2)
    assert file.read_text() == "mine"
    assert "2 written" in run("dlq", "export", "why-g", str(file), "--force")


def test_an_id_is_that_of_one_letter(broker: Broker, run: Run) -> None:
    dead(broker, "id-t", "id-g", [b"1", b"2"])
    first, second = (row["msgId"] for row in rows_of(run("dlq", "show", "id-g", "--json")))
    dead(broker, "id-t", "id-g", [b"about " + second.encode()], expected=3)
    assert f"id    {first}" in run("dlq", "show", "id-g")
    assert "no dead letter with the id k1" in run("dlq", "redrive", "id-g", "--id", "k1", status=3)
    assert "sent 1 to id-t" in run("dlq", "redrive", "id-g", "--id", second)
    assert "sent nothing" in run("dlq", "redrive", "id-g", "--id", second)
    assert "sent 1 to id-t" in run("dlq", "redrive", "id-g", "--id", "gone", "--id", first, status=3)
    assert "sent 1 to id-t" in run("dlq", "redrive", "id-g")


def test_a_killed_call_is_gone_on_with(broker: Broker, run: Run) -> None:
    bodies = [b"%02d" % n for n in range(30)]
    dead(broker, "kill-t", "kill-g", bodies)
    command = [sys.executable, "-m", "penstock.cli", "dlq", "redrive", "kill-g", "--rate", "5", "--json"]
    with subprocess.Popen([*command, "-n", broker.registry], stdout=subprocess.PIPE, text=True, bufsize=1) as process:
        assert process.stdout is not None
        for _ in range(8):
            assert "kill-t" in process.stdout.readline()
        process.kill()
    run("dlq", "redrive", "kill-g")
    assert "sent nothing" in run("dlq", "redrive", "kill-g")
    found = stored(broker, "kill-t")
    assert found == sorted(bodies * 2)  # those whose offset was not committed, too


def test_the_dead_letters_of_a_queue_topic_are_listed(broker: Broker, run: Run) -> None:
    with Admin(broker.registry) as admin:
        admin.change_queue("jobs.x", "add")
        admin.change_queue("jobs.x", "add", channel="work")
        admin.change_queue("jobs.x.work.dead", "add")
    (row,) = [row for row in rows_of(run("dlq", "ls", "--json")) if row["kind"] == "queue"]
    assert (row["group"], row["topic"], row["count"]) == ("jobs.x.work", "jobs.x.work.dead", 0)
    assert "jobs.x.work.dead" in run("dlq", "ls")
    assert run("dlq", "show", "jobs.x.work") == ""


def test_the_dead_letters_of_a_queue_topic_are_shown_exported_and_sent_again(
    broker: Broker, run: Run, tmp_path: Path
) -> None:
    def refuse(message: object) -> None:
        raise Reject("no")

    with Admin(broker.registry) as admin, Producer(broker.registry, kind="queue") as producer:
        admin.change_queue("work.q", "add")
        admin.change_queue("work.q", "add", channel="c")
        for body in (b"one", b"two", b"three"):
            producer.send(Message("work.q", body))
        with PushConsumer("c", broker.registry, listener=refuse) as consumer:
            consumer.subscribe("work.q")
            eventually(lambda: sum(row["depth"] for row in admin.queue_topics("work.q.c.dead")) == 3)
    rows = rows_of(run("dlq", "show", "work.q.c", "--json"))
    assert [(row["body"], row["reason"], row["group"], row["origin"]) for row in rows] == [
        (body, "rejected", "c", "work.q") for body in ("one", "two", "three")
    ]
    said = run("dlq", "show", "work.q.c.dead", "--match", "two")
    assert "why   rejected" in said
    assert "from  work.q" in said
    file = tmp_path / "letters.jsonl"
    assert "3 written" in run("dlq", "export", "work.q.c", str(file))
    assert rows_of(file.read_text())[0]["properties"]["DLQ_ATTEMPTS"] == "1"
    assert "would send 3 to work.q" in run("dlq", "redrive", "work.q.c", "--dry-run")
    assert "sent 1 to work.q" in run("dlq", "redrive", "work.q.c", "--id", rows[1]["msgId"])
    assert "no dead letter with the id" in run("dlq", "redrive", "work.q.c", "--id", "0" * 16, status=3)
    assert "--id names" in run("dlq", "redrive", "work.q.c", "--id", "x", "--match", "y", status=2)
    run("topic", "add", "work-log")
    assert "is not another queue topic" in run("dlq", "redrive", "work.q.c", "--to", "work-log", status=1)
    assert "sent 2 to work.q, deleted 0" in run("dlq", "redrive", "work.q.c", "--delete")
    assert "sent nothing" in run("dlq", "redrive", "work.q.c")


def test_those_sent_are_deleted(broker: Broker, run: Run) -> None:
    dead(broker, "gone-t", "gone-g", [b"1", b"2"])
    assert "sent 2 to gone-t, deleted 2" in run("dlq", "redrive", "gone-g", "--delete")
    assert run("dlq", "show", "gone-g") == ""


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("show", "nosuch"), 3, "has no dead letters"),
        (("show", "typo-h"), 3, "Did you mean typo-g?"),
        (("redrive", "nosuch"), 3, "has no dead letters"),
        (("redrive", "typo-g", "--to", "nosuch"), 3, "no broker has the topic 'nosuch'"),
        (("redrive", "typo-g", "--rate", "0"), 2, "--rate"),
        (("redrive", "typo-g", "--match", "x" * 200), 2, "at most 150"),
        (("export", "nosuch", "-"), 3, "has no dead letters"),
        (("export", "typo-g", "/nosuch/file"), 1, "No such file"),
    ],
)
def test_a_typing_mistake_makes_nothing(
    broker: Broker, run: Run, words: tuple[str, ...], status: int, said: str
) -> None:
    with Admin(broker.registry) as admin:
        if "%DLQ%typo-g" not in admin.topics(system=True):
            dead(broker, "typo-t", "typo-g", [b"1"])
        assert said in run("dlq", *words, status=status)
        assert not [topic for topic in admin.topics(system=True) if "nosuch" in topic]


def test_every_command_explains_itself() -> None:
    assert set(dlq.commands) == {"ls", "show", "export", "redrive"}
