"""Staged writes over the wire: nothing before PUBLISH, everything after it, once."""

from __future__ import annotations

import contextlib
import json
import signal
import struct
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Admin
from penstock.client import reader, staging
from penstock.client.line import Line
from penstock.client.reader import LogReader
from penstock.client.staging import PlannedAnew, Sealed, SinkRun, StageClient, StagedLost, Stager
from penstock.errors import OF_A_SLAVE, BrokerRefused, ClientError, NoRoute, Refused, TimedOut
from penstock.fronts.requests import Requests
from penstock.testing import Broker
from penstock.wire.codes import PERM_READ, PERM_WRITE, RequestCode
from penstock.wire.record import BatchItem, encode_batch, iter_records
from penstock.wire.remoting import RemotingCommand
from polling import eventually
from ports import free_port

if TYPE_CHECKING:
    from client.conftest import Cluster
    from penstock.broker.clients import Peer
    from penstock.fronts.requests.calls import Answer
else:
    Cluster = object


def piece(topic: str, queue_id: int, bodies: list[bytes], *, properties: bytes = b"", delayed: bool = False) -> bytes:
    messages = encode_batch(BatchItem(body, properties) for body in bodies)
    name = topic.encode()
    rest = (
        struct.pack(">BB", delayed, len(name))
        + name
        + struct.pack(">iiqI", queue_id, 0, 1_700_000_000_000, len(bodies))
    )
    return struct.pack(">I", len(rest) + len(messages)) + rest + messages


def stage(
    client: StageClient, run: SinkRun, batch: int, bodies: list[bytes], topic: str = "T", queue_id: int = 0
) -> Sealed:
    stager = Stager(client, run, batch)
    for at in range(0, len(bodies), 10):
        stager.add("broker-a", piece(topic, queue_id, bodies[at : at + 10]), len(bodies[at : at + 10]))
    return stager.seal()


def contents(registry: str, topic: str = "T") -> list[bytes]:
    found = []
    with LogReader(registry) as reader:
        for queue in reader.queues(topic):
            at, end = reader.offsets(queue, durable=False)
            while at < end:
                got = reader.fetch(queue, at, durable=False)
                found += [message.body for message in iter_records(got.records, check=True)]
                at = got.next_offset
    return found


def rows(name: str, count: int) -> list[bytes]:
    return [f"{name}-{n}".encode() for n in range(count)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "data") as running:
        yield running


@pytest.fixture
def client(broker: Broker) -> Iterator[StageClient]:
    with StageClient(broker.registry, patience_s=5) as made:
        yield made


RUN = SinkRun("sink", "query", "run-1")


@pytest.mark.parametrize("patience_s", [float("nan"), -1.0])
def test_a_patience_that_would_never_end_is_refused(patience_s: float) -> None:
    with pytest.raises(ValueError, match="patience_s is 0 or above"):
        StageClient("127.0.0.1:9", patience_s=patience_s)


def test_rows_are_seen_when_they_are_published_and_once(broker: Broker, client: StageClient) -> None:
    one, two = stage(client, RUN, 0, rows("one", 25)), stage(client, RUN, 0, rows("two", 5))
    assert contents(broker.registry) == []
    first = client.publish(RUN, 0, [two, one])
    assert (first.already, first.rows) == (False, {"broker-a": 30})
    assert contents(broker.registry) == rows("two", 5) + rows("one", 25)
    again = client.publish(RUN, 0, [two, one])
    assert (again.already, again.rows) == (True, {"broker-a": 30})
    other = stage(client, RUN, 0, rows("late", 5))  # not even staged: the batch is over
    assert other.brokers == ()
    assert client.publish(RUN, 4, [stage(client, RUN, 4, rows("four", 3))]).rows == {"broker-a": 3}
    assert contents(broker.registry) == rows("two", 5) + rows("one", 25) + rows("four", 3)


def test_a_batch_that_was_planned_behind_its_publish_is_no_repetition(tmp_path: Path) -> None:
    with Broker(tmp_path / "data") as broker, StageClient(broker.registry, patience_s=5) as client:
        for batch, planned in ((0, 1_000), (1, 2_000)):
            client.publish(RUN, batch, [stage(client, RUN, batch, rows("one", 5))], planned)
    with Broker(tmp_path / "data") as broker, StageClient(broker.registry, patience_s=5) as client:
        again = SinkRun("sink", "query", "run-2")
        assert all(client.publish(again, batch, [], batch * 1_000 + 1_000).already for batch in (1, 0))
        assert client.known(again, "broker-a").planned == 2_000
        for batch, planned in ((1, 2_000), (0, 1_000), (2, 2_001)):
            client.demand_planned(again, batch, planned)
        with pytest.raises(PlannedAnew, match="batch 1 of sink sink was published before"):
            client.demand_planned(again, 1, 2_001)
        for batch in (1, 0):
            with pytest.raises(PlannedAnew, match=f"batch {batch} of sink sink was published before .* up to batch 1"):
                client.publish(again, batch, [], 2_001)
        assert client.publish(again, 1, []).already  # who does not say is believed
        assert client.publish(again, 2, [stage(client, again, 2, rows("two", 3))]).rows == {"broker-a": 3}
        assert client.publish(again, 2, [], 9_000).already  # nobody knows
        assert len(contents(broker.registry)) == 13


def test_a_run_of_an_older_checkpoint_does_not_end_the_one_that_goes_on(broker: Broker, client: StageClient) -> None:
    """It is told so before it is noted, of a batch behind the newest one also where nobody says when that was planned."""
    for batch in (0, 1):
        client.publish(RUN, batch, [stage(client, RUN, batch, rows("one", 5))], 1_000 + batch)
    assert client.publish(RUN, 0, []).already
    for number, (batch, planned) in enumerate(((1, 2_000), (0, 2_000), (0, 1_000), (0, None))):
        older = SinkRun("sink", "query", f"older-{number}")
        assert stage(client, older, batch, rows("other", 5)).brokers == ()  # as one that asked before
        with pytest.raises(PlannedAnew, match="older than what it has written, up to batch 1"):
            client.publish(older, batch, [], planned)
    assert client.publish(RUN, 2, [stage(client, RUN, 2, rows("two", 5))]).rows == {"broker-a": 5}
    again = SinkRun("sink", "query", "run-2")  # from the checkpoint there is: it repeats the newest batch
    assert client.publish(again, 2, []).already
    with pytest.raises(BrokerRefused, match="a newer one writes to it"):
        client.publish(RUN, 3, [])


def test_a_publish_names_what_is_there_or_nothing_happens(broker: Broker, client: StageClient) -> None:
    one = stage(client, RUN, 0, rows("one", 5))
    unknown = Sealed(uuid.uuid4().hex, 1, 1, ("broker-a",))
    with pytest.raises(BrokerRefused) as refused:
        client.publish(RUN, 0, [one, unknown])
    assert refused.value.code == 77_002
    assert contents(broker.registry) == []
    assert client.publish(RUN, 0, [one]).rows == {"broker-a": 5}


# -- lost connections, newer runs, two brokers


def test_a_process_that_writes_job_after_job_does_not_remember_all_of_them(
    client: StageClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "RUNS_MAX", 3)
    for n in range(8):
        run = SinkRun(f"job-{n}", f"{n}", uuid.uuid4().hex)
        assert not client.publish(run, 0, [stage(client, run, 0, rows(f"job{n}", 2))]).already
        assert client.coordinator(run) == "broker-a"
    assert (len(client._deciders), len(client._told)) == (3, 3)
    assert client.publish(SinkRun("job-0", "0", uuid.uuid4().hex), 0, []).already


def test_a_lost_connection_costs_nothing(broker: Broker, client: StageClient) -> None:
    stager = Stager(client, RUN, 0, inflight=3)
    for n in range(20):
        stager.add("broker-a", piece("T", 0, [b"%d" % n]), 1)
        if n % 5 == 4:
            part = stager._parts["broker-a"]
            assert part.pipe is not None
            part.pipe._socket.shutdown(2)
    sealed = stager.seal()
    assert (sealed.rows, sealed.brokers) == (20, ("broker-a",))
    client.publish(RUN, 0, [sealed])
    assert contents(broker.registry) == [b"%d" % n for n in range(20)]


def test_staging_and_publishing_go_on_over_restarts(tmp_path: Path) -> None:
    ports = {"remoting_port": free_port()}
    with Broker(tmp_path / "data", **ports) as first:
        client = StageClient(first.registry, patience_s=20)
        stager = Stager(client, RUN, 0, inflight=1)
        stager.add("broker-a", piece("T", 0, rows("a", 5)), 5)
        stager.add("broker-a", piece("T", 0, rows("b", 5)), 5)
    with Broker(tmp_path / "data", **ports):
        stager.add("broker-a", piece("T", 0, rows("c", 5)), 5)
        sealed = stager.seal()
    with Broker(tmp_path / "data", **ports) as third:
        client.publish(RUN, 0, [sealed])
        client.close()
        assert contents(third.registry) == rows("a", 5) + rows("b", 5) + rows("c", 5)


@pytest.mark.parametrize("code", ["STAGE_OPEN", "STAGE_APPEND", "STAGE_SEAL", "STAGE_PUBLISH"])
def test_a_master_that_is_a_slave_now_is_not_asked_again(
    broker: Broker, client: StageClient, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """Behind `ha switch` its connections end no sooner than it answers; each attempt of a task asked the same one, and failed."""
    handle, asked, refused = Requests.handle, client.masters_now, 0
    looks: list[int] = []  # when the registry was asked who is the master

    def slave(self: Requests, session: Peer, request: RemotingCommand) -> Answer:
        nonlocal refused
        if request.code == RequestCode[code] and refused < 3:
            refused += 1
            raise Refused(f"{OF_A_SLAVE}; its master is away")
        return handle(self, session, request)

    monkeypatch.setattr(client, "masters_now", lambda: [looks.append(refused), asked()][1])
    monkeypatch.setattr(Requests, "handle", slave)
    client.publish(RUN, 0, [stage(client, RUN, 0, rows("a", 25))])
    assert contents(broker.registry) == rows("a", 25)
    assert refused == 3
    assert looks[-1] == 3


def test_a_run_that_is_over_learns_it(broker: Broker, client: StageClient) -> None:
    one = stage(client, RUN, 0, rows("one", 5))
    newer = SinkRun("sink", "query", "run-2")
    two = stage(client, newer, 0, rows("two", 5))
    with pytest.raises(BrokerRefused) as refused:
        client.publish(RUN, 0, [one])
    assert refused.value.code == 77_001
    client.publish(newer, 0, [two])
    assert contents(broker.registry) == rows("two", 5)


@pytest.fixture
def pair(own_cluster: Cluster, second_broker: Cluster) -> Iterator[StageClient]:
    with StageClient(own_cluster.registry, patience_s=20) as made:
        wait_for(made, 2)
        yield made


def stage_pair(client: StageClient, run: SinkRun, batch: int, name: str, split: int) -> Sealed:
    """Ten rows over both brokers, `split` of them at the first."""
    stager = Stager(client, run, batch)
    every = rows(name, 10)
    for broker, part in (("broker-a", every[:split]), ("broker-b", every[split:])):
        if part:
            stager.add(broker, piece("T", 0, part), len(part))
    return stager.seal()


class Died(Exception):
    pass


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_batch_over_two_brokers_is_decided_once(
    pair: StageClient, own_cluster: Cluster, second_broker: Cluster, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver dies behind its first PUBLISH, behind the second, or not; brokers are killed; the next run has the
    rows otherwise distributed, and must finish the first version or write its own, whole."""
    first = SinkRun("over-two", "query", "run-1")
    staged = [stage_pair(pair, first, 0, "first", 4), stage_pair(pair, first, 0, "more", 10)]
    real, done = StageClient.ask_broker, []

    def dies(self: StageClient, broker: str, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        if code == 77_004:
            done.append(broker)
            if len(done) > calls - 1:
                raise Died
        return real(self, broker, code, ext, body)

    monkeypatch.setattr(StageClient, "ask_broker", dies)
    if calls < 3:
        with pytest.raises(Died):
            pair.publish(first, 0, staged)
    else:
        pair.publish(first, 0, staged)
    monkeypatch.undo()
    for cluster in (own_cluster, second_broker):
        cluster.stop(signal.SIGKILL)
        cluster.start()
    with StageClient(own_cluster.registry, patience_s=20) as client:
        wait_for(client, 2)
        second = SinkRun("over-two", "query", "run-2")
        again = [stage_pair(client, second, 0, "second", 7), stage_pair(client, second, 0, "rest", 0)]
        published = client.publish(second, 0, again)
        assert published.already == (calls > 1)
        expected = rows("second", 10) + rows("rest", 10) if calls == 1 else rows("first", 10) + rows("more", 10)
        assert sorted(contents(own_cluster.registry)) == sorted(expected)
        assert client.publish(second, 1, [stage_pair(client, second, 1, "next", 5)]).already is False
        assert len(contents(own_cluster.registry)) == 30


def test_what_another_broker_decides_is_flushed_first(pair: StageClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """At level os a PUBLISH waits for the flush of its own broker's rows; a power cut at another one takes no decided rows."""
    levels: dict[str, str] = {}

    class Noted(Line):
        def call(self, request: RemotingCommand, timeout_s: float) -> RemotingCommand:
            if request.code == RequestCode.STAGE_SEAL:
                levels[self._socket.getpeername()[1]] = request.ext["level"]
            return super().call(request, timeout_s)

    monkeypatch.setattr(reader, "Line", Noted)
    run = SinkRun("flushed-first", "query", "run-1")
    stager = Stager(pair, run, 0, level="os")
    for broker in ("broker-a", "broker-b"):
        stager.add(broker, piece("T", 0, rows(broker, 5)), 5)
    stager.seal()
    here = pair.address(stager.coordinator)[1]
    assert len(levels) == 2
    assert {port: level for port, level in levels.items() if level == "os"} == {here: "os"}


def test_what_is_decided_is_not_given_up(
    pair: StageClient, own_cluster: Cluster, second_broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver whose commit fails is told to abort: its batch may be decided, with rows that wait at another broker."""
    run = SinkRun("half", "query", "run-1")
    staged = [stage_pair(pair, run, 0, "half", 4)]
    assert pair.undecided(run, 0)
    real, asked = StageClient.ask_broker, []

    def refused(self: StageClient, broker: str, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        if code == 77_004:
            asked.append(broker)
            if len(asked) > 1:
                raise BrokerRefused(14, "the disk is full")
        return real(self, broker, code, ext, body)

    monkeypatch.setattr(StageClient, "ask_broker", refused)
    with pytest.raises(BrokerRefused):
        pair.publish(run, 0, staged)
    monkeypatch.undo()
    assert not pair.undecided(run, 0)
    assert pair.undecided(run, 1)
    again = SinkRun("half", "query", "run-2")
    assert pair.publish(again, 0, [stage_pair(pair, again, 0, "other", 7)]).already
    assert sorted(contents(own_cluster.registry)) == sorted(rows("half", 10))
    decider = {"broker-a": own_cluster, "broker-b": second_broker}[asked[0]]
    decider.stop(signal.SIGKILL)
    assert not pair.undecided(again, 1)  # nobody else knows
    wait_for(pair, 1)
    assert not pair.undecided(again, 1)


def test_who_decides_is_known_where_no_rows_were(
    pair: StageClient, own_cluster: Cluster, second_broker: Cluster
) -> None:
    """The first batch lay at the deciding broker alone; it is away when the batch is done again, and nobody decides anew."""
    run, again = SinkRun("one-sided", "query", "run-1"), SinkRun("one-sided", "query", "run-2")
    assert pair.coordinator(run) == "broker-b"
    assert pair.known(run, "broker-a").coordinator == ""
    pair.publish(run, 0, [stage_pair(pair, run, 0, "first", 0)])
    assert pair.known(run, "broker-a").coordinator == "broker-b"
    second_broker.stop(signal.SIGKILL)
    with StageClient(own_cluster.registry, patience_s=1) as client:
        wait_for(client, 1)
        with pytest.raises(NoRoute, match="broker-b decides for sink one-sided and is away: start it"):
            Stager(client, again, 0).over()
    second_broker.start()
    with StageClient(own_cluster.registry, patience_s=20) as client:
        wait_for(client, 2)
        assert Stager(client, again, 0).over()
        assert sorted(contents(own_cluster.registry)) == sorted(rows("first", 10))


def test_a_broker_that_hangs_and_has_no_rows_holds_up_a_new_sink_alone(
    pair: StageClient, own_cluster: Cluster, second_broker: Cluster
) -> None:
    """It must be told of the first batch; of a sink that it was told of it need not answer."""
    known, new = SinkRun("alone", "query", "run-1"), SinkRun("lonely", "query", "run-1")
    assert pair.coordinator(known) == "broker-a"
    pair.publish(known, 0, [stage_pair(pair, known, 0, "first", 10)])
    assert second_broker.process is not None
    second_broker.process.send_signal(signal.SIGSTOP)
    try:
        with StageClient(own_cluster.registry, timeout_s=0.5, patience_s=1) as client:
            again = SinkRun("alone", "query", "run-2")
            assert not client.publish(again, 1, [stage_pair(client, again, 1, "second", 10)]).already
            with pytest.raises(TimedOut):
                client.publish(new, 0, [])
        assert pair.known(new, "broker-a").batch == -1
    finally:
        second_broker.process.send_signal(signal.SIGCONT)
    assert not pair.publish(new, 0, [stage_pair(pair, new, 0, "third", 10)]).already
    assert len(contents(own_cluster.registry)) == 30


def test_of_two_that_decided_the_one_with_more_batches_does(
    pair: StageClient, own_cluster: Cluster, second_broker: Cluster
) -> None:
    """Each was alone for a while, and knew nothing of the other."""
    first = SinkRun("two-minds", "query", "run-1")
    second_broker.stop(signal.SIGKILL)
    wait_for(pair, 1)
    with StageClient(own_cluster.registry, patience_s=20) as client:
        client.publish(first, 0, [stage_pair(client, first, 0, "at-a", 10)])
    second_broker.start()
    wait_for(pair, 2)
    pair._deciders["two-minds", "run-2"] = "broker-b"  # as of a client that has not seen broker-a
    second = SinkRun("two-minds", "query", "run-2")
    sealed = stage_pair(pair, second, 1, "at-b", 0)
    with pytest.raises(StagedLost, match="brokers came or went: broker-a decides for sink two-minds, not broker-b"):
        pair.publish(second, 1, [sealed])
    body = json.dumps({"tokens": [sealed.token]}).encode()
    pair.ask_broker(
        "broker-b", RequestCode.STAGE_PUBLISH, {**second.ext(), "coordinator": "broker-b", "batch": "1"}, body
    )
    with StageClient(own_cluster.registry, patience_s=20) as client:
        third = SinkRun("two-minds", "query", "run-3")
        assert client.coordinator(third) == "broker-b"
        assert client.known(third, "broker-a").coordinator == "broker-a"
        assert Stager(client, third, 1).over()
        client.publish(third, 2, [stage_pair(client, third, 2, "both", 5)])
        assert [client.known(third, name).coordinator for name in ("broker-a", "broker-b")] == ["broker-b"] * 2
        assert len(contents(own_cluster.registry)) == 30


def wait_for(client: StageClient, count: int) -> None:
    """Until the registry knows so many brokers: it hears of an end when the connection closes."""

    def known() -> bool:
        with contextlib.suppress(ClientError):
            return len(client.masters(fresh=True)) == count
        return False

    eventually(known, say=f"the registry does not know {count} brokers")


def test_a_topic_that_is_read_only_is_not_waited_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Spark job waited for it as for a broker that is away, `sendTimeoutMs` in each of four tries of a task."""
    with Admin(broker.registry) as admin, StageClient(broker.registry, patience_s=0.5) as client:
        admin.create_topic("T", 2)
        assert len(client.queues_to_write("T")) == 2
        admin.create_topic("T", perm=PERM_READ)
        client._directory.routes.clear()
        paused: list[float] = []
        with monkeypatch.context() as patch:
            patch.setattr("penstock.client.staging.time.sleep", paused.append)
            with pytest.raises(NoRoute, match="'T': it is read-only"):
                client.queues_to_write("T")
            assert len(paused) <= 1  # what was known may be old: it is asked once more
            with pytest.raises(NoRoute, match="are away: broker-a"):  # one that was written to before is waited for
                client.queues_to_write("T", ["broker-a"])
            assert len(paused) > 1
        admin.create_topic("T", perm=PERM_READ | PERM_WRITE)
        assert len(client.queues_to_write("T")) == 2  # though it is known as read-only


def test_where_keys_go_outlives_a_broker_that_is_away(
    pair: StageClient, own_cluster: Cluster, second_broker: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator tells which brokers had queues of a topic; one of them that is away is waited for, not done without."""
    run = SinkRun("layout", "query", "run-1")
    assert pair.known(run, "broker-a").layout == {}
    both = ["broker-a", "broker-b"]
    pair.publish(run, 0, [replace(stage_pair(pair, run, 0, "one", 5), layout={"T": both})])
    coordinator = pair.coordinator(run)
    assert pair.known(run, coordinator).layout == {"T": both}
    own_cluster.stop(signal.SIGKILL)
    second_broker.stop(signal.SIGKILL)
    own_cluster.start()
    second_broker.start()
    with StageClient(own_cluster.registry, patience_s=30) as client:
        wait_for(client, 2)
        assert client.known(run, coordinator).layout == {"T": both}
        every = client.queues_to_write("T", both)
        assert {queue.broker for queue in every} == set(both)
        second_broker.stop(signal.SIGKILL)
        wait_for(client, 1)
        client._directory.routes.clear()
        paused = []

        def pause(seconds: float) -> None:
            paused.append(seconds)
            if len(paused) == 3:
                second_broker.start()

        monkeypatch.setattr("penstock.client.staging.time.sleep", pause)
        assert client.queues_to_write("T", both) == every
        assert len(paused) >= 3
        monkeypatch.undo()
    second_broker.stop(signal.SIGKILL)
    with StageClient(own_cluster.registry, patience_s=0.5) as client:  # it does not come back
        wait_for(client, 1)
        assert {queue.broker for queue in client.queues_to_write("T", both)} == {"broker-a"}
    second_broker.start()
