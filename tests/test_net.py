"""The loop's own promises: a turn and a timer that always end, answers and connections within bounds, on real sockets."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from fronts.nsq_peer import NsqPeer, mpub, sized
from fronts.raw_peer import RawPeer, sending
from penstock.broker.nsq.table import Table
from penstock.disk.files import Files
from penstock.errors import DiskFull, StoreError
from penstock.faults import FAULTS_IN_A_ROW_MAX, Faults
from penstock.fronts.front import Front
from penstock.log.consumequeue import ConsumeQueue
from penstock.net import READ_BYTES
from penstock.testing import Broker
from penstock.wire import remoting
from penstock.wire.remoting import RemotingCommand
from polling import eventually

HEARTBEAT = {
    "clientID": "1@c", "producerDataSet": [],
    "consumerDataSet": [{
        "groupName": "fresh-group", "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "unitMode": False,
        "subscriptionDataSet": [{"topic": "logs", "subString": "*", "subVersion": 1, "tagsSet": [], "codeSet": []}],
    }],
}  # fmt: skip
WRITES = ("write", "write_parts", "allocate", "grow", "make_folder", "rename")


class FailingFiles(Files):
    """While `error` is set, every call that needs room or changes a name raises it."""

    error: StoreError | None = None

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in WRITES:
            error = super().__getattribute__("error")
            if error is not None and name != "make_folder":

                def fail(*args: object, **more: object) -> None:
                    raise error

                return fail
        return found


def _nsq(server: Any) -> Any:
    return next(front for front in server._process.fronts if front.name == "nsq")


def http(broker: Broker, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    request = urllib.request.Request(f"http://{broker.http}{path}", data=body)
    try:
        with urllib.request.urlopen(request, timeout=30) as told:
            return told.status, told.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read()


def metric(broker: Broker, line: str) -> float:
    page = http(broker, "/metrics")[1].decode()
    return sum(float(found.rpartition(" ")[2]) for found in page.splitlines() if found.startswith(line))


def asked_for_anew(peer: RawPeer) -> dict[str, int]:
    """What needs a new topic, a new group or a table: the codes of the answers."""
    topic = {
        "topic": "made", "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": False,
    }  # fmt: skip
    return {
        "pull": peer.pull("logs", 0, 0, consumerGroup="another-group").code,
        "heartbeat": peer.ask(34, {}, json.dumps(HEARTBEAT).encode()).code,
        "send": peer.send("fresh-topic", b"x").code,
        "topic": peer.ask(17, topic).code,
        "group": peer.ask(200, {}, json.dumps({"groupName": "made-group"}).encode()).code,
    }


@pytest.mark.parametrize(
    "error", [DiskFull("no room (by order of the test)"), StoreError("EIO (by order of the test)")]
)
def test_no_write_that_fails_leaves_a_client_without_its_answer(tmp_path: Path, error: StoreError) -> None:
    files = FailingFiles()
    with Broker(tmp_path, files=files) as broker:
        with RawPeer(broker.remoting) as peer:
            assert peer.send("logs", b"before").code == 0
            files.error = error
            told = asked_for_anew(peer)
            assert (told["topic"], told["group"]) == (14, 14)
            assert told["pull"] == 0  # the group is in memory, as its offsets are
        with RawPeer(broker.remoting) as peer:  # everybody else is served
            assert peer.pull("logs", 0, 0).code == 0
        for path in ("/topic/create?topic=made-by-http",):
            assert http(broker, path, b"")[0] == 503
        peer2 = NsqPeer(broker.nsq)
        answer = peer2.ask(b"SUB logs fresh-channel\n")
        assert answer.startswith(b"E_SUB_FAILED"), answer
        peer2.close()
        assert http(broker, "/ping")[0] in (200, 500)
        files.error = None
        deadline = time.monotonic() + 60
        while True:
            with RawPeer(broker.remoting) as peer:
                told = asked_for_anew(peer)
            if set(told.values()) == {0} or not isinstance(error, DiskFull) or time.monotonic() > deadline:
                break
        if isinstance(error, DiskFull):
            assert set(told.values()) == {0}, told
            assert http(broker, "/topic/create?topic=made-by-http", b"")[0] == 200
    with Broker(tmp_path) as broker, RawPeer(broker.remoting) as peer:
        assert peer.pull("logs", 0, 0).body.count(b"before") == 1
        if isinstance(error, DiskFull):
            assert b"made-by-http" in http(broker, "/stats")[1]
            config = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
            assert {"fresh-group", "another-group", "made-group"} <= set(config["subscriptionGroupTable"])


class NthWrite(Files):
    """The n-th call that writes fails, a write with half of its bytes written; those around it do not."""

    def __init__(self, n: int, error: type[StoreError]) -> None:
        self.left = n
        self.error = error
        self.armed = False
        self.failed = ""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in (*WRITES, "datasync", "sync_folder", "unlink") and super().__getattribute__("armed"):
            self.left -= 1
            if self.left == 0:
                self.failed = name
                raise_this = self.error(f"{name} (by order of the test)")

                def fail(*args: Any, **more: object) -> None:
                    if name == "write":
                        fd, at, data = args
                        found(fd, at, memoryview(data)[: len(data) // 2])
                    elif name == "write_parts":
                        fd, at, parts = args
                        found(fd, at, parts[:1])
                    raise raise_this

                return fail
        return found


def script(broker: Broker, tag: str) -> tuple[list[bytes], list[bytes], int]:
    """A bit of everything by every door; what was acknowledged (log, queue), and how many answers came."""
    logged: list[bytes] = []
    queued: list[bytes] = []
    answers = 0
    with RawPeer(broker.remoting) as peer:
        peer.socket.settimeout(30)
        for n in range(3):
            body = f"{tag} log {n}".encode()
            answers += 1
            if peer.send(f"log-{tag}", body, {"KEYS": f"k{n}"}).code == 0:
                logged.append(body)
        peer.pull(f"log-{tag}", 0, 0, consumerGroup=f"group-{tag}")
        peer.ask(34, {}, json.dumps(HEARTBEAT | {"clientID": tag}).encode())
        peer.send(f"log-{tag}", b"later", {"DELAY": "1"})
        answers += 3
    for n in range(3):
        body = f"{tag} queue {n}".encode() + b"x" * (n * 20_000)  # the last is written beside the mapping
        nsq = NsqPeer(broker.nsq)
        nsq.socket.settimeout(30)
        if nsq.ask(b"PUB queue-%s\n" % tag.encode() + sized(body)) == b"OK":
            queued.append(body)
        answers += 1
        nsq.close()
    nsq = NsqPeer(broker.nsq)
    nsq.socket.settimeout(30)
    nsq.ask(b"DPUB queue-%s 60000\n" % tag.encode() + sized(b"deferred"))
    nsq.close()
    nsq = NsqPeer(broker.nsq)
    nsq.socket.settimeout(30)
    nsq.ask(b"SUB queue-%s c\n" % tag.encode())
    nsq.close()
    http(broker, f"/topic/create?topic=http-{tag}", b"")
    assert http(broker, "/ping")[0] in (200, 500)
    return logged, queued, answers + 4


@pytest.mark.parametrize("error", [DiskFull, StoreError])
@pytest.mark.parametrize("part", range(3))
def test_any_write_may_fail_once_under_clients_of_all_fronts(
    tmp_path: Path, error: type[StoreError], part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every answer comes, none of success is false, and after DiskFull all goes on without a restart."""
    monkeypatch.setattr("penstock.broker.tables.OFFSETS_EVERY_MS", 50)
    n = 1 + part
    while True:
        folder = tmp_path / f"{n}"
        files = NthWrite(n, error)
        small = {"mapped_file_size_commit_log": 1 << 20, "queue_segment_bytes": 1 << 16}
        with Broker(folder, files=files, **small) as broker:
            files.armed = True
            logged, queued, _ = script(broker, "a")
            files.armed = False
            if error is DiskFull:
                logged_b, queued_b, _ = script(broker, "b")
                assert (len(logged_b), len(queued_b)) == (3, 3), (n, files.failed)
        with Broker(folder, **small) as broker, RawPeer(broker.remoting) as peer:
            found = b"".join(peer.pull("log-a", q, 0).body for q in range(4)) if logged else b""
            for body in logged:
                assert body in found, (n, files.failed)
            stats = json.loads(http(broker, "/stats?format=json&topic=queue-a")[1])["topics"] if queued else []
            depth = sum(t["depth"] + sum(c["depth"] for c in t["channels"]) for t in stats or ())
            assert depth >= len(queued), (n, files.failed)
        if files.left > 0:
            break
        n += 9  # each part of the test takes every ninth call: 27 in all from 1 on
    assert n > 9


def test_a_role_that_raises_ends_neither_turn_nor_timer(caplog: pytest.LogCaptureFixture) -> None:
    with Broker() as broker:
        state = {"left": 3}

        def spoil(server: Any) -> None:
            queueing, schedule = server.broker.queueing, server.broker.schedule
            table, pop_due = queueing.table, schedule.pop_due

            class Raising:
                """What the end of a turn looks at last."""

                def __getattr__(self, name: str) -> object:
                    state["left"] -= 1
                    if not state["left"]:
                        queueing.table = table
                    raise RuntimeError("by order of the test")

            queueing.table = Raising()
            schedule.pop_due = lambda now_ms, limit: 1 // 0 if state["left"] else pop_due(now_ms, limit)

        broker.call(spoil)
        with RawPeer(broker.remoting) as peer:
            for n in range(6):
                assert peer.send("logs", b"%d" % n).code == 0
            assert peer.send("logs", b"later", {"DELAY": "1"}).code == 0
            eventually(lambda: b"later" in b"".join(peer.pull("logs", q, 0).body for q in range(4)))
        assert http(broker, "/ping") == (200, b"OK")  # it was well again at once
    assert "failed step=channels" in caplog.text


class Threads(Files):
    """Who flushes. A flush takes no time, unless told to; `fails`: none succeeds."""

    def __init__(self) -> None:
        self.threads: list[str] = []
        self.takes_s = 0.0
        self.fails = False

    def datasync(self, fd: int) -> None:
        self.threads.append(threading.current_thread().name)
        time.sleep(self.takes_s)
        if self.fails:
            raise StoreError("EIO (by order of the test)")


def no_peer() -> None:
    """Each request of HTTP has a connection of its own."""


@pytest.mark.parametrize("protocol", ["remoting", "nsq", "http"])
def test_the_loop_flushes_by_itself_for_a_sender_that_is_alone(protocol: str) -> None:
    files = Threads()
    with Broker(files=files, level="disk") as broker, RawPeer(broker.remoting) as other:
        peer = {"remoting": lambda: RawPeer(broker.remoting), "nsq": lambda: NsqPeer(broker.nsq)}.get(
            protocol, no_peer
        )()

        def send() -> set[bool]:
            """Whether the thread for flushes did what the send asked for, the loop, or both."""
            files.threads.clear()
            if isinstance(peer, RawPeer):
                assert peer.send("logs", b"x").code == 0
            elif peer is None:
                assert http(broker, "/pub?topic=jobs", b"x")[0] == 200
            else:
                assert peer.ask(b"PUB jobs\n" + sized(b"x")) == b"OK"
            return {
                name.startswith("penstock-flush") for name in files.threads if not name.startswith("penstock-files")
            }

        eventually(lambda: send() == {False})
        files.takes_s = 0.005  # a disk that takes its time: nobody else waits for it
        eventually(lambda: send() == {True})
        files.takes_s = 0.0
        eventually(lambda: send() == {False})
        # another one speaks: the flush is left to its thread
        eventually(lambda: other.send("logs", b"y").code == 0 and send() == {True})
        assert broker.call(lambda server: server.net.role.faults.count) == 0
        if peer is not None:
            peer.close()


class Beside(Threads):
    """Its flush ends when the slave has what is flushed; `late`: it never had."""

    slave: Any = None
    end = 0
    late = 0

    def datasync(self, fd: int) -> None:
        super().datasync(fd)
        if self.slave is None or threading.current_thread().name.startswith(("penstock-flush", "penstock-files")):
            return
        with contextlib.suppress(AssertionError):
            eventually(lambda: self.slave.end_position >= self.end, 1.0)
        self.late += self.slave.end_position < self.end


def test_a_slave_flushes_while_its_masters_loop_does(tmp_path: Path) -> None:
    """What it says is nobody's who is kept waiting by the flush, and it hears of the message first."""
    files = Beside()
    with (
        Broker(tmp_path / "a", files=files, level="pair-disk", ha_port=0, node="a") as master,
        Broker(tmp_path / "b", level="pair-disk", role="slave", node="b", ha_master=master.addresses["ha"]) as slave,
        RawPeer(master.remoting) as peer,
    ):
        eventually(lambda: peer.send("logs", b"x").code == 0)
        files.slave = slave.call(lambda server: server.broker.store)

        def alone() -> bool:
            files.threads.clear()
            files.end = master.call(lambda server: server.broker.store.end_position) + 1
            assert peer.send("logs", b"x").code == 0
            return not any(name.startswith("penstock-flush") for name in files.threads)

        eventually(alone)
        assert files.late == 0
        files.slave = None


class Ends(Front):
    """Where the log ended at the end of each turn."""

    name = "ends"

    def __init__(self, store: Any) -> None:
        self.store = store
        self.positions: list[int] = []

    def end_turn(self, news: list[ConsumeQueue]) -> None:
        self.positions.append(self.store.end_position)


@contextlib.contextmanager
def held(broker: Broker) -> Iterator[None]:
    """Its loop does nothing meanwhile."""
    begun, free = threading.Event(), threading.Event()

    def hold(server: Any) -> None:
        begun.set()
        free.wait(60)

    holder = threading.Thread(target=broker.call, args=(hold,))
    holder.start()
    try:
        assert begun.wait(60)
        yield
    finally:
        free.set()
        holder.join(60)


@pytest.mark.parametrize(("waits", "size", "turns"), [(True, 20_000, 2), (True, 9_000, 1), (False, 20_000, 1)])
def test_a_slave_that_is_waited_for_begins_with_each_large_read(
    tmp_path: Path, waits: bool, size: int, turns: int
) -> None:
    """Two senders' reads at one look of the loop are one turn, unless they are large and an answer waits for the slave."""
    with (
        Broker(tmp_path / "a", level="pair", ha_port=0, node="a") as master,
        Broker(tmp_path / "b", level="pair", role="slave", node="b", ha_master=master.addresses["ha"]) as slave,
        RawPeer(master.remoting) as one,
        RawPeer(master.remoting) as other,
        RawPeer(master.remoting) as before,
    ):
        for peer in (one, other, before):
            eventually(lambda peer=peer: peer.send("logs", b"first").code == 0)  # type: ignore[misc]
        ends = master.call(lambda server: Ends(server.broker.store))
        master.call(lambda server: server.net.role.add_front(ends))
        with held(slave):
            if waits:
                before.write(remoting.encode(sending("logs", b"waits")))
                eventually(lambda: master.call(lambda server: server.net.role.copy_wanted))
            with held(master):
                begin = ends.store.end_position
                for peer in (one, other):
                    peer.write(remoting.encode(sending("logs", b"x" * size)))
            eventually(lambda: max(ends.positions, default=0) > begin + 2 * size)
        assert [peer.read().code for peer in (one, other)] == [0, 0]
        assert len({position for position in ends.positions if position > begin}) == turns


def test_a_flush_of_the_loops_own_that_fails_is_told() -> None:
    files = Threads()
    with Broker(files=files, level="disk") as broker, RawPeer(broker.remoting) as peer:

        def alone() -> bool:
            files.threads.clear()
            assert peer.send("logs", b"x").code == 0
            return not any(name.startswith("penstock-flush") for name in files.threads)

        eventually(alone)
        files.fails = True
        assert [peer.send("logs", b"x").code for _ in range(3)] == [14, 14, 14]
        files.fails = False
        assert peer.send("logs", b"x").code == 14  # until a restart has looked
        assert http(broker, "/ping")[0] == 500


def test_a_step_that_always_fails_is_told_and_stops_the_process() -> None:
    stopped: list[str] = []
    faults = Faults(stopped.append)
    for n in range(FAULTS_IN_A_ROW_MAX - 1):
        faults.report("channels", RuntimeError("x"), n)
        faults.settle(("channels", "tables"))
    assert faults.failing == {"channels": "channels: x"}
    assert stopped == []
    faults.settle(("channels", "tables"))  # one good round: it starts over
    assert faults.failing == {}
    for n in range(FAULTS_IN_A_ROW_MAX):
        faults.report("channels", RuntimeError("x"), n)
    assert len(stopped) == 1
    for n in range(10 * FAULTS_IN_A_ROW_MAX):  # a full disk is a state
        faults.report("tables", DiskFull("no room"), n)
    assert len(stopped) == 1


def test_ping_says_what_fails(caplog: pytest.LogCaptureFixture) -> None:
    with Broker() as broker:

        def raising() -> None:
            raise DiskFull("no room (by order of the test)")

        broker.call(lambda server: setattr(server.broker, "save_tables", raising))
        with RawPeer(broker.remoting) as peer:
            assert peer.send("logs", b"x").code == 0
        status, text = http(broker, "/ping")
        assert (status, text[:3]) == (500, b"NOK")
        assert b"tables: no room" in text


def test_pipelined_pulls_of_one_client_cost_bounded_memory_and_starve_nobody() -> None:
    with Broker(mapped_file_size_commit_log=64 << 20) as broker:
        with RawPeer(broker.remoting) as peer:
            for _ in range(64):
                assert peer.send("logs", bytes(8192), e=0).code == 0
        pull = {
            "consumerGroup": "G", "topic": "logs", "queueId": "0", "queueOffset": "0", "maxMsgNums": "32",
            "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "15000", "subscription": "*",
            "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        count = 700
        frames = b"".join(remoting.encode(RemotingCommand(11, pull, opaque=n)) for n in range(count))
        process = psutil.Process(os.getpid())
        before = process.memory_info().rss
        greedy = RawPeer(broker.remoting)
        greedy.write(frames)
        worst_ms = 0.0
        with RawPeer(broker.remoting) as peer:
            for _ in range(50):
                begin = time.monotonic()
                assert peer.send("others", b"x").code == 0
                worst_ms = max(worst_ms, (time.monotonic() - begin) * 1000)
        assert process.memory_info().rss - before < 64 << 20
        assert worst_ms < 2_000
        found = []
        while len(found) < count:  # nothing was dropped: it gets every answer when it reads
            found.append(greedy.read().opaque)
        assert found == list(range(count))
        greedy.close()


@pytest.mark.parametrize(("settings", "limit"), [({"max_connections": 3}, "connections")])
def test_one_connection_too_many_is_refused_and_counted(settings: dict[str, int], limit: str) -> None:
    with Broker(**settings) as broker:
        peers = [NsqPeer(broker.nsq) for _ in range(2)]
        for peer in peers:
            assert peer.ask(b"PUB jobs\n" + sized(b"x")) == b"OK"
        deadline = time.monotonic() + 60
        while True:  # the registry's side of the process has connections, too
            more = socket.create_connection(tuple(broker.nsq.rsplit(":", 1)), timeout=30)
            peers.append(more)  # type: ignore[arg-type]
            more.settimeout(0.3)
            try:
                told = more.recv(100)
            except TimeoutError:
                told = b""
            if told:
                break
            assert time.monotonic() < deadline
        assert b"too many connections" in told
        assert peers[0].ask(b"PUB jobs\n" + sized(b"x")) == b"OK"
        peers.pop(1).close()
        deadline = time.monotonic() + 60
        while True:
            fresh = NsqPeer(broker.nsq)
            if fresh.ask(b"PUB jobs\n" + sized(b"x")) == b"OK":
                break
            assert time.monotonic() < deadline
        fresh.close()
        for peer in peers[1:]:
            peer.close()
        deadline = time.monotonic() + 60
        while http(broker, "/metrics")[0] != 200:
            assert time.monotonic() < deadline
        assert metric(broker, f'penstock_limit_reached_total{{limit="{limit}"}}') >= 1
        peers[0].close()


def test_large_frames_of_all_connections_share_one_bound() -> None:
    with Broker(connection_memory_bytes=4 << 20) as broker:
        half = b"".join((b"\x00\xf0\x00\x00", b"\x00\x00\x00\x10", bytes(4 * READ_BYTES)))
        peers = [RawPeer(broker.remoting) for _ in range(12)]
        lost = 0
        for peer in peers:
            try:
                peer.write(half)
            except OSError:
                lost += 1
        with RawPeer(broker.remoting) as peer:
            deadline = time.monotonic() + 60
            while not metric(broker, 'penstock_limit_reached_total{limit="memory"}'):
                assert time.monotonic() < deadline
        for peer in peers:
            peer.close()
        deadline = time.monotonic() + 60
        while True:  # what they held is given back
            with RawPeer(broker.remoting) as peer:
                try:
                    assert peer.send("logs", b"x").code == 0
                    break
                except (EOFError, OSError):
                    assert time.monotonic() < deadline
        assert broker.call(lambda server: server.net.waiting_bytes) < 1 << 20


def test_an_id_that_no_number_holds_is_not_in_flight() -> None:
    with Broker() as broker:
        peer = NsqPeer(broker.nsq)
        peer.subscribe(b"jobs", b"c", 1)
        for verb, rest in ((b"TOUCH", b""), (b"REQ", b" 99999999999999999999"), (b"REQ", b" 0"), (b"FIN", b"")):
            if rest == b" 99999999999999999999":
                continue
            answer = peer.ask(verb + b" ffffffffffffffff" + rest + b"\n")
            assert answer.startswith(b"E_%s_FAILED" % verb), answer
        assert http(broker, "/ping") == (200, b"OK")
        peer.close()


def test_sessions_of_closed_connections_are_let_go_of() -> None:
    with Broker() as broker:
        for _ in range(300):
            peer = NsqPeer(broker.nsq)
            assert peer.ask(b"PUB jobs\n" + sized(b"x")) == b"OK"
            peer.close()
        deadline = time.monotonic() + 60
        while broker.call(lambda server: len(_nsq(server).sessions)):
            assert time.monotonic() < deadline
        assert broker.call(lambda server: len(_nsq(server).shared._due)) == 0


def test_the_log_says_who_came_and_went(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "penstock")
    with Broker() as broker:
        peer = NsqPeer(broker.nsq)
        assert peer.ask(b"PUB jobs\n" + sized(b"x")) == b"OK"
        port = peer.socket.getsockname()[1]
        peer.close()
        eventually(lambda: f"client left protocol=nsq peer=127.0.0.1:{port}" in caplog.text)
    assert f"client connected protocol=nsq peer=127.0.0.1:{port}" in caplog.text


def test_what_an_ephemeral_channel_drops_is_counted() -> None:
    """Bounded as nsqd's: a consumer that takes nothing costs `mem_queue_size` messages, not the disk."""
    with Broker(mem_queue_size=50) as broker:
        stalled, writer = NsqPeer(broker.nsq), NsqPeer(broker.nsq)
        stalled.subscribe(b"jobs", b"live#ephemeral", 0)
        writer.publish(b"jobs", *(b"%d" % n for n in range(200)))
        stats = json.loads(http(broker, "/stats?format=json&topic=jobs")[1])["topics"][0]["channels"][0]
        assert stats["depth"] <= 50
        dropped = metric(broker, 'penstock_dropped_messages_total{topic="jobs",channel="live#ephemeral"}')
        assert dropped == 200 - stats["depth"]
        for peer in (stalled, writer):
            peer.close()


def test_a_broker_that_cannot_go_on_stops_and_says_why() -> None:
    broker = Broker().start()

    def spoil(server: Any) -> None:
        class Raising(Table):
            """What the end of a turn looks at last."""

            @property
            def restless(self) -> bool:  # type: ignore[override]
                raise RuntimeError("by order of the test")

            @restless.setter
            def restless(self, value: bool) -> None: ...

        queueing = server.broker.queueing
        queueing.table.release()
        queueing.table = Raising(server.broker.core, queueing.claims)

    with pytest.raises(StoreError, match="channels failed 20 times in a row"):
        with RawPeer(broker.remoting) as peer:
            broker.call(spoil)
            deadline = time.monotonic() + 60
            while not broker.server.broken:  # type: ignore[union-attr]
                assert time.monotonic() < deadline
                try:
                    assert peer.send("logs", b"x").code == 0
                except (EOFError, OSError):
                    break
        broker.stop()


def test_a_server_is_made_before_its_loop_runs(tmp_path: Path) -> None:
    import asyncio

    import penstock

    broker = penstock.Broker(tmp_path, remoting_port=0)

    async def use() -> str:
        async with broker:
            return broker.registry

    assert asyncio.run(use())


def test_what_a_peer_takes_late_comes_whole_and_in_order() -> None:
    """The socket takes what it can at once, the transport has the rest, and what follows waits behind that."""
    bodies = [b"%05d" % n + bytes(3_000) for n in range(2_400)]  # more than a socket holds, each small enough to copy
    with Broker() as broker:
        producer, peer = NsqPeer(broker.nsq), NsqPeer(broker.nsq)
        peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 << 10)
        peer.subscribe(b"jobs", b"c", len(bodies) + 1)
        expected = iter(bodies)

        def take(count: int) -> None:
            for body in itertools.islice(expected, count):
                assert peer.message().body == body

        for at in range(0, len(bodies), 40):
            assert producer.ask(mpub(b"jobs", *bodies[at : at + 40])) == b"OK"
            take(at % 7)  # the socket has room again
        assert broker.call(lambda server: server.net.waiting_bytes) > 0
        take(len(bodies))
        producer.publish(b"jobs", b"at once")
        assert peer.message().body == b"at once"
        assert broker.call(lambda server: server.net.waiting_bytes) == 0
        producer.close()
        peer.close()
