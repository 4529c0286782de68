"""Staged rows in a replica set, the master killed at each step of a batch: each row once, no part of a batch seen (H-14)."""

from __future__ import annotations

import struct
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from ha_parts import Process, eventually
from penstock.client.staging import SinkRun, StageClient, Stager
from penstock.errors import ClientError
from penstock.wire.record import BatchItem, encode_batch
from registration.test_roles import Pair

TOPIC = "orders"
RUN = SinkRun("sink", "query", "run")
ROWS = 400


def piece(queue_id: int, bodies: list[bytes]) -> bytes:
    messages = encode_batch(BatchItem(body, b"") for body in bodies)
    rest = struct.pack(">BB6siiqI", 0, len(TOPIC), TOPIC.encode(), queue_id, 0, 1_700_000_000_000, len(bodies))
    return struct.pack(">I", len(rest) + len(messages)) + rest + messages


def rows(task: int, batch: int = 0) -> list[bytes]:
    return [b"%d/%d/%d " % (batch, task, n) + b"r" * 300 for n in range(ROWS)]


def stage(client: StageClient, task: int, batch: int = 0) -> Stager:
    """A task that has sent its rows and not sealed them."""
    stager = Stager(client, RUN, batch)
    bodies = rows(task, batch)
    for at in range(0, ROWS, 100):
        stager.add("broker-a", piece(task % 4, bodies[at : at + 100]), 100)
    stager._settle(stager._parts["broker-a"], 0)
    return stager


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path, topic='[{"name":"orders","queues":4}]')
    made.start()
    with penstock.Producer(made.name_server) as producer:
        eventually(lambda: producer.send(penstock.Message(TOPIC, b"before")).status is not None)
    try:
        yield made
    finally:
        made.stop()


def promote(pair: Pair) -> None:
    eventually(lambda: pair.ha("promote", "--node", "b").returncode == 0, 60)
    eventually(lambda: pair.rows().get("b", {}).get("role") == "master", 60)


def staged(process: Process) -> list[str]:
    return sorted(path.name for path in (process.folder / "staging").iterdir())


def shown(pair: Pair) -> list[bytes]:
    return sorted(body for body in pair.bodies() if body != b"before")


@pytest.fixture
def client(pair: Pair) -> Iterator[StageClient]:
    with StageClient(pair.name_server, patience_s=60) as made:
        yield made


def test_killed_behind_seal_the_new_master_publishes(pair: Pair, client: StageClient) -> None:
    sealed = [stage(client, task).seal() for task in range(3)]
    for one in sealed:
        name = one.token
        assert (pair.b.folder / "staging" / name).read_bytes() == (pair.a.folder / "staging" / name).read_bytes()
    pair.a.kill()
    promote(pair)
    assert shown(pair) == []
    for already in (False, True):
        assert client.publish(RUN, 0, sealed).already is already
    assert shown(pair) == sorted(rows(0) + rows(1) + rows(2))
    pair.a.start()
    pair.in_sync("b", "a")
    eventually(lambda: staged(pair.a) == [])
    assert shown(pair) == sorted(rows(0) + rows(1) + rows(2))


def test_killed_between_tasks_what_was_not_sealed_is_staged_anew(pair: Pair, client: StageClient) -> None:
    done = stage(client, 0).seal()
    half = stage(client, 1)
    pair.a.kill()
    promote(pair)
    try:
        again = half.seal()  # everything had come over
    except ClientError:
        again = stage(client, 1).seal()  # the task is tried again
    finally:
        half.close()
    client.publish(RUN, 0, [done, again])
    assert shown(pair) == sorted(rows(0) + rows(1))


@pytest.mark.parametrize("after_s", [0.0, 0.004, 0.02, 0.06])
def test_killed_inside_a_publish_or_before_its_answer(pair: Pair, client: StageClient, after_s: float) -> None:
    """Whatever had become of it: it is asked for again, and each row is there once."""
    sealed = [stage(client, task).seal() for task in range(4)]
    timer = threading.Timer(after_s, pair.a.kill)
    timer.start()
    outcome: list[object] = []

    def publish() -> None:
        outcome.append(client.publish(RUN, 0, sealed))

    asking = threading.Thread(target=publish)
    asking.start()
    timer.join()
    promote(pair)
    # The client asks the new master meanwhile, and queues are read one behind the other: from one of them on all is seen.
    seen = Counter(int(body.split(b"/")[1]) for body in shown(pair))
    assert set(seen.values()) <= {ROWS}
    assert sorted(seen) == list(range(4 - len(seen), 4))
    asking.join(120)
    assert len(outcome) == 1
    assert shown(pair) == sorted(body for task in range(4) for body in rows(task))
    following = [stage(client, 0, batch=1).seal()]
    client.publish(RUN, 1, following)
    assert len(shown(pair)) == 5 * ROWS


def test_a_publish_that_was_answered_outlives_the_master(pair: Pair, client: StageClient) -> None:
    for batch in range(5):
        sealed = [stage(client, task, batch).seal() for task in range(2)]
        client.publish(RUN, batch, sealed)
    pair.a.kill()
    promote(pair)
    assert len(shown(pair)) == 10 * ROWS
    assert client.publish(RUN, 4, sealed).already


def test_a_spool_that_is_missing_is_told(pair: Pair, client: StageClient) -> None:
    sealed = [stage(client, task).seal() for task in range(2)]
    pair.a.kill()
    (pair.b.folder / "staging" / sealed[1].token).unlink()
    promote(pair)
    with pytest.raises(ClientError, match="not here"):
        client.publish(RUN, 0, sealed)
    assert shown(pair) == []
    sealed[1] = stage(client, 1).seal()
    client.publish(RUN, 0, sealed)
    assert shown(pair) == sorted(rows(0) + rows(1))


def test_a_slave_that_comes_later_gets_what_is_sealed_before_it_is_in_sync(pair: Pair, client: StageClient) -> None:
    pair.b.kill()
    sealed = [stage(client, 0).seal()]  # answered alone
    pair.b.start()
    pair.in_sync("a", "b")
    pair.a.kill()
    promote(pair)
    client.publish(RUN, 0, sealed)
    assert shown(pair) == sorted(rows(0))


def test_what_is_published_or_dropped_goes_from_the_slave(pair: Pair, client: StageClient) -> None:
    first, second = stage(client, 0).seal(), stage(client, 1, 1).seal()
    assert len(staged(pair.b)) == 2
    client.publish(RUN, 0, [first])
    eventually(lambda: staged(pair.b) == [second.token])
    client.drop(RUN, [second])
    eventually(lambda: staged(pair.b) == [])
