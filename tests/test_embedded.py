"""A broker inside a program: addresses, a folder of its own, and what keeps it from starting."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

import penstock
from penstock import Message, Producer, aio, embedded
from penstock.app import Server
from penstock.client.results import SendStatus
from penstock.config import RegistryConfig
from penstock.embedded import Broker, ThreadedBroker
from penstock.errors import Closed, ConfigError, Locked, PenstockError, StoreError
from polling import until
from ports import staying


def test_a_folder_of_its_own_goes_with_it() -> None:
    with ThreadedBroker() as broker:
        assert len({broker.registry, broker.remoting, broker.nsq, broker.http, broker.lookup, broker.lookup_http}) == 6
        assert broker.call(lambda server: isinstance(server, Server))
        assert broker.folder.exists()
    assert not broker.folder.exists()


def test_on_a_given_folder_it_may_be_started_again(tmp_path: Path) -> None:
    broker = ThreadedBroker(tmp_path)
    for expected in (0, 1):
        with broker, Producer(broker.registry) as producer:
            assert producer.send(Message("T", b"x", sharding_key="one")).queue_offset == expected


def test_its_folder_is_said_once(tmp_path: Path) -> None:
    """`data`, as a setting, took the place of the folder that was given, and of `folder`."""
    for kind in (Broker, ThreadedBroker):
        with pytest.raises(ConfigError, match="data is the folder"):
            kind(tmp_path / "a", data=str(tmp_path / "b"))
    assert not list(tmp_path.iterdir())


def test_what_keeps_it_from_starting_is_raised(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        ThreadedBroker(tmp_path, no_such_setting=1)
    with ThreadedBroker(tmp_path), pytest.raises(Locked):
        ThreadedBroker(tmp_path).start()


def test_what_kept_it_from_starting_may_be_mended(tmp_path: Path) -> None:
    broker = ThreadedBroker(tmp_path)
    with ThreadedBroker(tmp_path), pytest.raises(Locked):
        broker.start()
    with broker:  # it raised the former failure, or waited for ever
        assert broker.registry
    broker.stop()


def test_the_own_folder_goes_also_when_the_start_fails() -> None:
    with ThreadedBroker() as other:
        broker = ThreadedBroker(nsq_port=int(other.nsq.rpartition(":")[2]))
        with pytest.raises(ConfigError, match="cannot listen"):
            broker.start()
    assert not broker.folder.exists()
    with broker:
        assert broker.folder.exists()


def test_a_start_that_fails_leaves_no_thread() -> None:
    """Who tries again and again had two more each time."""
    before = set(threading.enumerate())
    with ThreadedBroker() as other, pytest.raises(ConfigError, match="cannot listen"):
        ThreadedBroker(nsq_port=int(other.nsq.rpartition(":")[2])).start()
    assert set(threading.enumerate()) <= before


def test_a_start_without_a_thread_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was said to run already, and its folder stayed until the end of the program."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    broker = ThreadedBroker()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            broker.start()
    assert not broker.folder.exists()
    with broker:
        assert broker.registry


def test_one_that_runs_is_not_started_twice() -> None:
    with ThreadedBroker() as broker:
        with pytest.raises(Locked, match="runs already"):
            broker.start()
        assert broker.call(lambda server: True)
    with pytest.raises(Closed):
        broker.call(lambda server: True)


def test_what_ended_it_is_raised_by_stop(tmp_path: Path) -> None:
    broker = ThreadedBroker(tmp_path).start()
    thread = broker._thread
    assert thread is not None
    broker.call(lambda server: server._stop("a flush failed"))
    thread.join()
    with pytest.raises(StoreError, match="a flush failed"):  # it was: the event loop is closed
        broker.stop()
    broker.stop()


async def test_in_the_present_loop_it_is_entered_once_at_a_time(tmp_path: Path) -> None:
    async with Broker(tmp_path) as broker:
        with pytest.raises(Locked, match="runs already"):
            async with broker:
                pass
    for _ in range(2):  # its folder was locked for ever
        async with broker:
            assert broker.broker is not None


async def test_in_the_present_loop(tmp_path: Path) -> None:
    async with Broker(tmp_path, nsq_port=-1, lookup_port=-1, lookup_http_port=-1) as broker:
        assert "nsq" not in broker.addresses
        assert broker.remoting.startswith("127.0.0.1:")


async def test_in_the_present_loop_its_role_may_change(tmp_path: Path) -> None:
    """Master and slave change places, and each is started anew where it was; what was written before is there."""
    registry = Server(
        None, RegistryConfig(data=str(tmp_path / "r"), registry_port=0, lookup_port=-1, lookup_http_port=-1)
    )
    async with registry:
        name_server = registry.addresses["registry"]
        settings: dict[str, object] = {
            "mapped_file_size_commit_log": 1 << 20, "nsq_port": -1, "http_port": -1, "registry_port": -1, "lookup_port": -1,
            "lookup_http_port": -1, "registry": name_server, "level": "pair",
        }  # fmt: skip
        first = Broker(tmp_path / "a", node="a", **settings, **staying("remoting", "ha"))
        second = Broker(tmp_path / "b", node="b", role="slave", **settings, **staying("remoting", "ha"))
        async with first, second, aio.Producer(name_server) as producer, aio.Admin(name_server) as admin:
            before = dict(first.addresses), dict(second.addresses)

            async def sent(body: bytes) -> SendStatus | None:
                with suppress(PenstockError):
                    return (await producer.send(Message("T", body, sharding_key="one"))).status
                return None

            async def well(body: bytes) -> None:
                async with asyncio.timeout(60):
                    while await sent(body) != SendStatus.SEND_OK:
                        await asyncio.sleep(0.02)

            await well(b"before")
            assert await admin.switch(first.remoting) == "b"
            await until(lambda: roles(first, second) == ["slave", "master"])
            await well(b"after")
            assert (dict(first.addresses), dict(second.addresses)) == before
            await until(lambda: end(first) == end(second) > 0)
            stop = asyncio.Event()
            stop.set()
            await first.run_until(stop)


async def test_what_keeps_it_from_going_on_is_raised(tmp_path: Path) -> None:
    broker = Broker(tmp_path, nsq_port=-1, lookup_port=-1, lookup_http_port=-1)
    with pytest.raises(StoreError, match="the log cannot be written"):
        async with broker:
            broker._stop("the log cannot be written")
            with pytest.raises(StoreError):
                await broker.run_until(asyncio.Event())
    async with broker:  # and it may be used once more
        assert broker.registry


def roles(*brokers: Broker) -> list[str]:
    return [one.broker.config.role if one.broker is not None else "" for one in brokers]


def end(one: Broker) -> int:
    return one.broker.store.end_position if one.broker is not None else -1


NEVER_STOPPED = """
import penstock
from penstock import Message, Producer
from penstock.testing import Broker

broker = Broker().start()
producer = Producer(broker.registry).start()
for _ in range(3000):
    producer.send_nowait(Message("T", bytes(100)))
print(broker.folder)
"""


def test_one_that_nobody_stops_ends_with_the_program() -> None:
    """Two of five programs ended with a traceback of the broker's, and left its folder behind."""
    for _ in range(8):
        told = run_program(NEVER_STOPPED)
        lines = told.stderr.splitlines()
        said = [line for line in lines if not line.startswith("the program ends with ")]  # of its sends, or nothing
        assert (said, told.returncode) == ([], 0)
        assert not Path(told.stdout.strip()).exists()


INTERRUPTED = """
import os, signal, threading, types
from penstock import embedded
from penstock.testing import Broker

class Late(threading.Thread):
    def run(self):
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # Ctrl-C, before there is a loop
        asked.wait()
        super().run()

    def join(self):
        asked.set()  # and the loop comes when somebody waits for its end
        super().join(20)
        if self.is_alive():
            os._exit(1)

asked = threading.Event()
broker = Broker()
embedded.threading = types.SimpleNamespace(Thread=Late, Event=threading.Event)
try:
    broker.start()
except KeyboardInterrupt:
    print("interrupted")
"""


def test_one_whose_start_was_interrupted_ends_with_the_program() -> None:
    """The end of the program waited for a broker that nobody could tell to stop: it had no loop yet."""
    told = run_program(INTERRUPTED)
    assert (told.stdout.strip(), told.stderr, told.returncode) == ("interrupted", "", 0)


def test_one_that_is_stopped_before_its_thread_begins_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program ended with a traceback: a thread that has not begun cannot be waited for."""

    class Late(threading.Thread):
        def start(self) -> None:
            broker.stop()  # as the end of the program does, while another thread starts it
            super().start()

    monkeypatch.setattr(embedded, "threading", SimpleNamespace(Thread=Late, Event=threading.Event))
    broker = ThreadedBroker()
    broker.start()
    assert not broker.folder.exists()
    assert not broker.addresses


FORKS = """
import os, sys, warnings
warnings.simplefilter("ignore")  # Python 3.12 on: a fork beside threads
import penstock
from penstock import Message, Producer
from penstock.errors import Closed
from penstock.testing import Broker

with Broker() as broker:
    child = os.fork()
    if not child:
        try:
            broker.call(id)
        except Closed:
            sys.exit(0)
        sys.exit(1)
    assert not os.waitpid(child, 0)[1]
    assert broker.folder.exists()
    with Producer(broker.registry) as producer:
        producer.send(Message("T", b""))
"""


def test_a_forked_child_ends_without_it() -> None:
    """The child deleted the folder of the broker that runs in its parent."""
    for _ in range(3):
        told = run_program(FORKS)
        assert (told.stderr, told.returncode) == ("", 0)


def run_program(code: str) -> subprocess.CompletedProcess[str]:
    where = {**os.environ, "PYTHONPATH": str(Path(penstock.__file__).parent.parent)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=where, timeout=120)


@pytest.mark.parametrize("name", ["registry", "lookupd_tcp_address", "statsd_address", "nsq_host"])
def test_what_is_no_address_is_a_setting_that_cannot_be_obeyed(tmp_path: Path, name: str) -> None:
    """As a command says it: a ValueError came out of the middle of the start, or nothing was told."""
    for make in (ThreadedBroker, Broker):
        with pytest.raises(ConfigError, match=name):
            make(tmp_path, **{name: "a b"})
