"""`penstock group` as it is typed, against a real broker."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from cli.conftest import Run, rows_of
from fronts.raw_peer import RawPeer, heartbeat
from penstock import Admin, Message, Producer, PullConsumer, PushConsumer
from penstock.cli.groups import group
from penstock.client.routes import MessageQueue
from penstock.errors import NoRoute, NotFound
from penstock.testing import Broker
from polling import eventually


def filled(broker: Broker, topic: str, group: str, *, committed: int = 1) -> list[MessageQueue]:
    """A topic of two queues with four messages in the first, of which a group has committed some."""
    with Admin(broker.registry) as admin, Producer(broker.registry) as producer:
        admin.create_topic(topic, 2)
        queues = known(admin, topic)
        for n in range(4):
            producer.send(Message(topic, b"%d" % n), queue=queues[0])
    with PullConsumer(broker.registry, group=group) as consumer:
        consumer.commit({queues[0]: committed, queues[1]: 0})
    return queues


def known(admin: Admin, topic: str) -> list[MessageQueue]:
    found: list[MessageQueue] = []

    def is_there() -> bool:
        with contextlib.suppress(NoRoute):
            found[:] = admin.route(topic).subscribe_queues()
        return bool(found)

    eventually(is_there)
    return found


def test_the_lag_is_in_messages_and_in_seconds(broker: Broker, run: Run) -> None:
    filled(broker, "lag-t", "lag-g")
    first, second = rows_of(run("group", "lag", "lag-g", "--json"))
    assert (first["committed"], first["end"], first["lag"]) == (1, 4, 3)
    assert first["lag_s"] > 0
    assert (second["lag"], second["lag_s"]) == (0, 0.0)
    later = rows_of(run("group", "lag", "lag-g", "--watch", "--count", "2", "--json"))
    assert len(later) == 4
    assert later[0]["lag_s"] < later[2]["lag_s"]
    (row,) = [row for row in rows_of(run("group", "ls", "--json")) if row["group"] == "lag-g"]
    assert (row["members"], row["topics"], row["lag"]) == (0, 1, 3)
    assert row["lag_s"] > first["lag_s"]
    assert "lag_s" in run("group", "ls")
    assert "TOOLS_CONSUMER" not in run("group", "ls")
    assert "TOOLS_CONSUMER" in run("group", "ls", "--system")
    assert "no member of lag-g is connected" in run("group", "info", "lag-g")


def test_members_say_what_they_read(broker: Broker, run: Run) -> None:
    filled(broker, "info-t", "info-g")
    with PushConsumer("info-g", broker.registry, listener=lambda message: None) as consumer:
        consumer.subscribe("info-t", "a || b")
        said: list[dict[str, Any]] = []

        def reads() -> bool:
            said[:] = rows_of(run("group", "info", "info-g", "--json"))
            return bool(said) and len([q for q in said[0].get("queues") or () if q.startswith("info-t/")]) == 2

        eventually(reads)
        assert said[0]["member"] == consumer.client_id
        assert said[0]["address"].startswith("127.0.0.1:")
        assert {"subscription": "info-t", "expression": "a || b"} in said
        assert consumer.client_id in run("group", "info", "info-g")
        assert "members connected" in run("group", "rm", "info-g", "--yes", status=1)
        assert "members connected" in run("group", "reset", "info-g", "info-t", "--to", "2", status=1)
        assert "info-g" in run("group", "ls")


def test_a_dry_run_says_what_a_reset_does_and_does_nothing(broker: Broker, run: Run) -> None:
    queues = filled(broker, "reset-t", "reset-g")
    with Admin(broker.registry) as admin:
        for to, target in (
            ("first", 0),
            ("last", 4),
            ("3", 3),
            ("99", 4),
            ("-1h", 0),
            ("2036-01-01T00:00:00+00:00", 4),
        ):
            plan = rows_of(run("group", "reset", "reset-g", "reset-t", "--to", to, "--dry-run", "--json"))
            assert plan[0] == {
                "broker": "broker-a", "queue": 0, "from": 1, "to": target, "messages": 1 - target,
            }  # fmt: skip
            assert admin.group_stats("reset-g", "reset-t")[queues[0]].committed == 1
        said = run("group", "reset", "reset-g", "reset-t", "--to", "3", "--dry-run")
        assert "0 would come again, 2 be passed over" in said
        assert "broker-a 0: 3" in run("group", "reset", "reset-g", "reset-t", "--to", "3")
        assert admin.group_stats("reset-g", "reset-t")[queues[0]].committed == 3
        run("group", "reset", "reset-g", "reset-t", "--to", "-1h")
        assert admin.group_stats("reset-g", "reset-t")[queues[0]].committed == 0


def test_a_group_is_forgotten(broker: Broker, run: Run) -> None:
    filled(broker, "rm-t", "rm-g")
    assert "would forget group rm-g with its offsets in rm-t, 3 messages behind" in run(
        "group", "rm", "rm-g", "--dry-run"
    )
    assert "not asked on a terminal" in run("group", "rm", "rm-g", status=2)
    with Admin(broker.registry) as admin:
        assert "rm-g" in admin.groups()
        assert rows_of(run("group", "rm", "rm-g", "--yes", "--json")) == [
            {"group": "rm-g", "topics": ["rm-t"], "lag": 3, "done": "rm"}
        ]
        assert "rm-g" not in admin.groups()
        with pytest.raises(NotFound):
            admin.delete_group("rm-g")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("info", "nosuch"), 3, "no broker knows a group 'nosuch'"),
        (("lag", "nosuch"), 3, "no broker knows a group 'nosuch'"),
        (("rm", "nosuch", "--yes"), 3, "no broker knows a group 'nosuch'"),
        (("reset", "nosuch", "typo-t", "--dry-run"), 3, "no broker knows a group 'nosuch'"),
        (("reset", "typo-g", "nosuch", "--dry-run"), 3, "no broker has a topic 'nosuch'"),
        (("reset", "typo-g", "typo-q"), 3, "is a queue topic"),
        (("reset", "typo-g", "typo-t", "--to", "-1x"), 2, "neither first, last, -1h nor a moment"),
        (("lag", "typo-g", "-t", "nosuch"), 3, "no broker has a topic 'nosuch'"),
    ],
)
def test_a_typing_mistake_makes_nothing(
    broker: Broker, run: Run, words: tuple[str, ...], status: int, said: str
) -> None:
    filled(broker, "typo-t", "typo-g")
    run("topic", "add", "typo-q", "--kind", "queue")
    assert said in run("group", *words, status=status)
    with Admin(broker.registry) as admin:
        assert "nosuch" not in admin.groups()
        assert "nosuch" not in admin.topics(system=True)


def test_every_command_explains_itself() -> None:
    assert set(group.commands) == {"ls", "info", "lag", "reset", "rm"}


def test_watching_ends_with_an_interrupt(broker: Broker, run: Run) -> None:
    """As every verb does that looks until then: that is its end, and no failure."""
    with Producer(broker.registry) as producer, PullConsumer(broker.registry, group="lag-w") as consumer:
        producer.send(Message("lag-watched", b"x"))
        consumer.commit(dict.fromkeys(consumer.queues("lag-watched"), 0))
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "group",
        "lag",
        "lag-w",
        "--watch",
        "--json",
        "-n",
        broker.registry,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["topic"] == "lag-watched"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
    assert (process.returncode, told) == (0, b"")


def test_members_that_hang_are_shown(broker: Broker, run: Run) -> None:
    """Two members that do not answer what they read: `?`, and the others are told."""
    filled(broker, "hung", "hung-g")
    with PushConsumer("hung-g", broker.registry, listener=lambda message: None) as well:
        well.subscribe("hung")
        hang = [RawPeer(broker.remoting) for _ in range(2)]
        for number, peer in enumerate(hang):
            heartbeat(peer, f"hangs-{number}\x1b[31m", "hung-g", "hung")

        def told() -> list[dict[str, Any]]:
            return [row for row in run("group", "info", "hung-g", rows=True) if "member" in row]

        eventually(lambda: len(told()) == 3)
        rows = told()
        assert [row["queues"] for row in rows if "hangs" in row["member"]] == [None, None]
        assert [row["queues"] is not None for row in rows if "hangs" not in row["member"]] == [True]
        shown = run("group", "info", "hung-g")
        assert "hangs-0\\x1b[31m" in shown
        assert "\x1b" not in shown
        for peer in hang:
            peer.socket.close()
