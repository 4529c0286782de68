"""Several brokers behind one registry, as `penstock up --brokers N` runs them: real processes, kills, ports that are taken."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from certificates import Authority, Certificate
from loglines import sentences
from penstock import Admin, Message, Producer, PushConsumer
from penstock.config import BrokerConfig
from penstock.errors import ConfigError, PenstockError
from penstock.supervisor import PORT_STEP, Member, check_masters, members, replicas
from polling import eventually
from ports import free_port

ANY_PORTS = [f"--{name}-port=0" for name in ("remoting", "nsq", "http", "registry", "lookup", "lookup-http")]


@dataclass
class Up:
    """`penstock up` as a process of its own."""

    process: subprocess.Popen[str]
    ready: dict[str, Any]

    @property
    def registry(self) -> str:
        return str(self.ready["registry"])

    @property
    def pids(self) -> list[int]:
        return [broker["pid"] for broker in self.ready["brokers"]]


def command(folder: Path, brokers: int, *flags: str) -> list[str]:
    return [sys.executable, "-m", "penstock.cli", "up", "--data", str(folder), f"--brokers={brokers}", *flags]


@contextmanager
def up(folder: Path, brokers: int = 2, *flags: str) -> Iterator[Up]:
    with (folder / "up.log").open("a") as log:
        process = subprocess.Popen(
            command(folder, brokers, *(flags or ANY_PORTS)), stdout=subprocess.PIPE, stderr=log, text=True
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    try:
        assert line.startswith("ready "), (folder / "up.log").read_text()
        yield Up(process, json.loads(line.removeprefix("ready ")))
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def is_there(pid: int) -> bool:
    """A process that is not yet waited for is gone as well."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@contextmanager
def reading(one: Up, topic: str) -> Iterator[list[bytes]]:
    """The bodies of a topic that a consumer has got so far."""
    found: list[bytes] = []
    with PushConsumer(
        "g", one.registry, listener=lambda delivery: found.append(delivery.body), start="first"
    ) as consumer:
        consumer.subscribe(topic)
        yield found


def counts(one: Up, topic: str) -> dict[str, int]:
    with Admin(one.registry) as admin:
        found: Counter[str] = Counter()
        for queue, row in admin.topic_stats(topic).items():
            found[queue.broker] += row.max_offset - row.min_offset
        return dict(found)


def test_a_log_topic_is_spread_and_a_killed_broker_comes_back_with_all_of_it(tmp_path: Path) -> None:
    stored: set[bytes] = set()
    with up(tmp_path) as one:
        with Producer(one.registry, retries=5, send_timeout_s=30) as producer:
            for n in range(100):
                body = b"%d" % n
                producer.send(Message("Spread", body))
                stored.add(body)
            assert set(counts(one, "Spread")) == {"broker-a", "broker-a-2"}
            assert min(counts(one, "Spread").values()) >= 30
            os.kill(one.pids[1], signal.SIGKILL)
            for n in range(100, 200):
                body = b"%d" % n
                producer.send(Message("Spread", body))
                stored.add(body)
            eventually(lambda: "started again name=broker-a-2" in sentences(tmp_path / "up.log"))
            for n in range(200, 300):
                body = b"%d" % n
                producer.send(Message("Spread", body))
                stored.add(body)
        with reading(one, "Spread") as found:
            eventually(lambda: set(found) == stored)


def test_a_queue_topic_is_found_at_every_broker(tmp_path: Path) -> None:
    with up(tmp_path) as one:
        for n, broker in enumerate(one.ready["brokers"]):
            with urllib.request.urlopen(f"http://{broker['http']}/pub?topic=jobs", data=b"%d" % n) as answer:
                assert answer.read() == b"OK"
        address = one.ready["lookup_http"]

        def producers() -> list[int]:
            try:
                with urllib.request.urlopen(f"http://{address}/lookup?topic=jobs") as answer:
                    return sorted(row["tcp_port"] for row in json.load(answer)["producers"])
            except OSError:
                return []

        ports = sorted(int(broker["nsq"].rpartition(":")[2]) for broker in one.ready["brokers"])
        eventually(lambda: producers() == ports)
        with reading(one, "jobs") as found:
            eventually(lambda: sorted(found) == [b"0", b"1"])


def test_the_brokers_end_with_their_supervisor_even_when_it_is_killed(tmp_path: Path) -> None:
    with up(tmp_path) as one:
        pids = one.pids
        assert all(map(is_there, pids))
        one.process.kill()
        eventually(lambda: not any(map(is_there, pids)))
    with up(tmp_path) as one:  # and nothing is left that keeps the folders
        assert len(one.pids) == 2
        pids = one.pids
    assert not any(map(is_there, pids))
    assert one.process.returncode == 0


def test_a_port_that_is_taken_ends_all_of_them_and_is_named(tmp_path: Path) -> None:
    remoting = free_port() - PORT_STEP
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", remoting + PORT_STEP))
        flags = [f"--remoting-port={remoting}", *ANY_PORTS[1:]]
        ended = subprocess.run(command(tmp_path, 2, *flags), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert f"broker-a-2: cannot listen on 127.0.0.1:{remoting + PORT_STEP}" in ended.stderr
    assert "Traceback" not in ended.stderr
    with up(tmp_path):
        pass


def test_a_single_broker_becomes_several_and_none_of_them_is_left_out(tmp_path: Path) -> None:
    with up(tmp_path, 1) as one, Producer(one.registry) as producer:
        producer.send(Message("Early", b"kept"))
    with up(tmp_path, 2) as two, reading(two, "Early") as found:
        eventually(lambda: found == [b"kept"])
    ended = subprocess.run(command(tmp_path, 1, *ANY_PORTS), capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert "also holds the messages of broker-a-2" in ended.stderr
    assert "--brokers 2" in ended.stderr


def test_brokers_under_another_name_are_not_left_out_either(tmp_path: Path) -> None:
    """They began with new folders beside the old ones, and what lay there was out of sight."""
    for name in ("broker-a-2", "broker-a-3", "replica-2"):  # the last is a copy of what the first broker holds
        (tmp_path / name).mkdir()
        (tmp_path / name / "store.json").touch()
    with pytest.raises(ConfigError, match="also holds the messages of broker-a-2, broker-a-3") as refused:
        members(BrokerConfig(data=str(tmp_path), broker_name="other"), 3)
    assert "--brokers 3 --set broker_name=broker-a" in refused.value.hint
    assert len(members(BrokerConfig(data=str(tmp_path)), 3)) == 3


def test_a_folder_that_was_put_aside_is_no_brokers(tmp_path: Path) -> None:
    """It has no number to be told in the hint: the start ended with `max() iterable argument is empty`."""
    for name in ("broker-a-2.old", "backup-2026-12-10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "store.json").touch()
    assert len(members(BrokerConfig(data=str(tmp_path)), 1)) == 1


def test_brokers_that_speak_only_nsq_are_not_waited_for_as_name_servers_know_them(tmp_path: Path) -> None:
    """No name server is told of them: the start waited ten seconds, and warned."""
    with up(tmp_path, 2, "--remoting-port=-1", *ANY_PORTS[1:]):
        pass
    assert "not all brokers are registered" not in (tmp_path / "up.log").read_text()


def test_each_has_a_name_a_folder_and_ports_of_its_own(tmp_path: Path) -> None:
    config = BrokerConfig(
        data=str(tmp_path), nsq_host=str(tmp_path / "nsq.sock"), connection_memory_bytes=900, http_port=0
    )
    first, second, third = members(config, 3)
    assert [one.broker_name for one in (first, second, third)] == ["broker-a", "broker-a-2", "broker-a-3"]
    assert [one.data for one in (first, second)] == [str(tmp_path), str(tmp_path / "broker-a-2")]
    assert [one.remoting_port for one in (first, second, third)] == [10911, 11011, 11111]
    assert [one.http_port for one in (first, second, third)] == [0, 0, 0]
    assert second.nsq_host == str(tmp_path / "nsq.sock.broker-a-2")
    assert {one.connection_memory_bytes for one in (first, second, third)} == {300}
    assert members(config, 1) == [config]
    with pytest.raises(ConfigError, match="above 65535"):
        members(BrokerConfig(data=str(tmp_path), remoting_port=65500), 2)


def locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def test_a_broker_that_cannot_start_again_is_tried_again(tmp_path: Path) -> None:
    with up(tmp_path) as one:
        folder = tmp_path / "broker-a-2"
        one.process.send_signal(signal.SIGSTOP)
        os.kill(one.pids[1], signal.SIGKILL)
        with (folder / "lock").open() as lock:  # as another broker would hold it
            eventually(lambda: locked(lock.fileno()))
            one.process.send_signal(signal.SIGCONT)
            log = tmp_path / "up.log"
            eventually(lambda: "not started again name=broker-a-2" in sentences(log))
            with Producer(one.registry) as producer:  # the other one serves
                assert producer.send(Message("T", b"x")).queue.broker == "broker-a"
        eventually(lambda: "started again name=broker-a-2 restarts" in sentences(log))


def makes(broker: dict[str, Any], topic: str) -> bool:
    request = urllib.request.Request(f"http://{broker['http']}/topic/create?topic={topic}", method="POST")
    try:
        urllib.request.urlopen(request, timeout=30).close()
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 503:
            raise
        return False
    return True


def test_a_folder_that_is_in_use_is_told_as_by_a_single_broker(tmp_path: Path) -> None:
    (tmp_path / "broker-a-2").mkdir()
    with (tmp_path / "broker-a-2" / "lock").open("w") as lock:
        assert locked(lock.fileno())
        ended = subprocess.run(command(tmp_path, 2, *ANY_PORTS), capture_output=True, text=True, timeout=120)
    assert ended.returncode == 2
    assert "in use by another broker" in ended.stderr
    assert "Stop that one first" in ended.stderr


def test_a_folder_that_cannot_be_read_keeps_none_of_the_others_from_starting(tmp_path: Path) -> None:
    with up(tmp_path):
        pass
    tables = [tmp_path / "store.json", tmp_path / "broker-a-2" / "store.json"]
    whole = tables[1].read_text()
    newer = json.dumps({**json.loads(whole), "formatVersion": 99, "sum": None}).replace(', "sum": null', "")
    tables[1].write_text(newer)
    with up(tmp_path) as one:
        first, second = one.ready["brokers"]
        assert "error" not in first
        assert "version 99" in second["error"]
        assert one.ready["remoting"] == first["remoting"]
        assert "broker not started, the others run without it name=broker-a-2" in sentences(tmp_path / "up.log")
        with Admin(one.registry) as admin:
            assert list(admin.cluster_info().brokers) == ["broker-a"]
        tables[1].write_text(whole)
        eventually(lambda: "broker started again name=broker-a-2" in sentences(tmp_path / "up.log"))
    for table in tables:
        table.write_text(newer)
    none = subprocess.run(command(tmp_path, 2, *ANY_PORTS), capture_output=True, text=True, timeout=60)
    assert none.returncode == 1
    assert all(f"{name}: " in none.stderr.splitlines()[-1] for name in ("broker-a", "broker-a-2"))


def test_a_process_that_cannot_be_made_is_a_failed_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no end of the watching: it is tried again."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    failure = asyncio.run(Member(BrokerConfig()).start())
    assert "cannot be started" in str(failure)


def children(pid: int) -> set[int]:
    """The processes that this one has started, from when on they are programs of their own."""
    found = set()
    try:
        for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"penstock.supervisor" in Path(f"/proc/{word}/cmdline").read_bytes():
                found.add(int(word))
    except OSError:
        return set()
    return found


def stopped_child(process: subprocess.Popen[str], among: int, but: Collection[int] = ()) -> int:
    """A broker that begins, held by SIGSTOP."""
    eventually(lambda: len(children(process.pid)) == among)
    pid = max(children(process.pid).difference(but))
    os.kill(pid, signal.SIGSTOP)
    return pid


def test_a_start_is_ended_by_sigterm_and_not_by_sighup(tmp_path: Path) -> None:
    with (tmp_path / "up.log").open("a") as log:
        process = subprocess.Popen(command(tmp_path, 2, *ANY_PORTS), stdout=subprocess.PIPE, stderr=log, text=True)
    held = stopped_child(process, 2)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    try:
        eventually(lambda: "stopping" in sentences(tmp_path / "up.log"))
    finally:
        with suppress(ProcessLookupError):
            os.kill(held, signal.SIGCONT)
        said = process.communicate(timeout=120)[0]
    assert (process.returncode, said) == (0, "")


def test_a_broker_that_somebody_has_halted_ends_with_the_others(tmp_path: Path) -> None:
    """The end waited a minute for it, and it was killed then, with all that a stop writes undone."""
    with up(tmp_path, 2) as one:
        os.kill(one.pids[1], signal.SIGSTOP)
        one.process.terminate()
        one.process.wait(120)
    assert "broker did not stop" not in sentences(tmp_path / "up.log")


def test_sighup_is_heeded_by_those_that_start_again(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("[broker]\nmax_topics = 100\n")
    with up(tmp_path, 2, "--config", str(file), *ANY_PORTS) as one:
        again = one.ready["brokers"][1]
        os.kill(one.pids[1], signal.SIGKILL)
        eventually(lambda: one.pids[1] not in children(one.process.pid))
        held = stopped_child(one.process, 2, one.pids)
        file.write_text("[broker]\nmax_topics = 1\n")
        os.kill(one.process.pid, signal.SIGHUP)
        try:
            eventually(lambda: "effect=now settings=broker.max_topics" in sentences(tmp_path / "up.log"))
        finally:
            os.kill(held, signal.SIGCONT)
        eventually(lambda: answers(again["http"]))
        names = map("topic-{}".format, count())
        eventually(lambda: not makes(again, next(names)))


def test_sighup_has_all_read_their_settings(tmp_path: Path) -> None:
    """Each says what changed, and has it; one that is killed comes back with it; a file that cannot be used changes nothing."""
    file = tmp_path / "penstock.toml"
    file.write_text("[broker]\nmax_topics = 100\n")

    def lines() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in (tmp_path / "up.log").read_text().splitlines() if line.startswith("{")]
        return [line for line in found if line["event"].startswith("settings")]

    def told(event: str, times: int) -> None:
        eventually(lambda: len([line for line in lines() if line["event"] == event]) == times)

    with up(tmp_path, 2, "--config", str(file), *ANY_PORTS) as one:
        brokers = one.ready["brokers"]
        assert all(makes(broker, "first") for broker in brokers)
        file.write_text("[broker]\nmax_topics = 1\nqueue_segment_bytes = 8388608\n")
        os.kill(one.process.pid, signal.SIGHUP)
        told("settings changed", 4)
        changed = {(line["broker"], line["effect"], line["settings"]) for line in lines() if "effect" in line}
        assert changed == {
            (name, *what)
            for name in ("broker-a", "broker-a-2")
            for what in (("now", "broker.max_topics"), ("restart", "broker.queue_segment_bytes"))
        }
        assert not any(makes(broker, "second") for broker in brokers)
        file.write_text("[broker]\nmax_topics = many\n")
        os.kill(one.process.pid, signal.SIGHUP)
        told("settings not read, all stay as they were", 3)  # nobody says that it has read them
        told("settings read, none changed", 1)  # the registry's, of the first time
        with Admin(one.registry) as admin, pytest.raises(PenstockError, match="one of several"):
            admin.reload_config("broker-a")
        os.kill(one.pids[1], signal.SIGKILL)
        eventually(lambda: not is_there(one.pids[1]))
        eventually(lambda: answers(brokers[1]["http"]), 60)
        assert not makes(brokers[1], "second")


def answers(http: str) -> bool:
    try:
        urllib.request.urlopen(f"http://{http}/ping", timeout=5).close()
    except OSError:
        return False
    return True


def test_sighup_renews_the_certificates_of_all(tmp_path: Path, authority: Authority) -> None:
    first, second = authority.sign("first"), authority.sign("second")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"

    def install(made: Certificate) -> bytes:
        shutil.copy(made.cert, cert)
        shutil.copy(made.key, key)
        return ssl.PEM_cert_to_DER_cert(cert.read_text())

    def shown(address: str) -> bytes:
        host, _, port = address.rpartition(":")
        return ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate((host, int(port)), timeout=30))

    old = install(first)
    flags = (*ANY_PORTS, "--set", "https_port=-1", "--set", f"tls_cert={cert}", "--set", f"tls_key={key}")
    with up(tmp_path, 2, *flags) as one:
        addresses = [one.registry, *(broker["remoting"] for broker in one.ready["brokers"])]
        assert [shown(address) for address in addresses] == [old] * 3
        new = install(second)
        os.kill(one.process.pid, signal.SIGHUP)
        for address in addresses:
            eventually(lambda address=address: shown(address) == new)  # type: ignore[misc]


def test_replicas_share_the_name_and_nothing_else() -> None:
    masters = members(BrokerConfig(data="nowhere"), 2)
    made = replicas(masters, 3)
    assert [(c.broker_name, c.broker_id, c.role) for c in made] == [
        ("broker-a", 0, "master"), ("broker-a-2", 0, "master"), ("broker-a", 1, "slave"), ("broker-a-2", 1, "slave"),
        ("broker-a", 2, "slave"), ("broker-a-2", 2, "slave"),
    ]  # fmt: skip
    for name in ("data", "remoting_port", "nsq_port", "http_port", "node"):
        assert len({getattr(config, name) for config in made}) == 6, name
    assert len({Member(config).name for config in made}) == 6
    assert [config.ha_port for config in made] == [10912, 11012, 11112, 11212, 11312, 11412]
    assert replicas(masters, 1) == masters
    any_free = replicas([BrokerConfig(remoting_port=0, nsq_port=0, http_port=0)], 2)
    assert [config.ha_port for config in any_free] == [0, 0]
    with pytest.raises(ConfigError, match="65535"):
        replicas([BrokerConfig(remoting_port=65_500)], 2)


def test_a_set_is_not_started_without_its_master(tmp_path: Path) -> None:
    """Which a change of places has made another than the first: all that start would be its slaves, and nothing served."""
    first = BrokerConfig(data=str(tmp_path))

    def say(role: str, folder: Path) -> None:
        (folder / "ha").mkdir(parents=True, exist_ok=True)
        (folder / "ha" / "replica.json").write_text(json.dumps({"role": role}))

    check_masters(replicas([first], 1))
    say("slave", tmp_path)
    say("slave", tmp_path / "replica-2")
    check_masters(replicas([first], 2))  # a person may promote one
    say("master", tmp_path / "replica-3")
    for few in (replicas([first], 1), replicas([first], 2), members(first, 2)):
        with pytest.raises(ConfigError, match="replica-3 holds the master of broker-a, and would not be started"):
            check_masters(few)
    check_masters(replicas([first], 3))
    say("master", tmp_path)  # the other one is a former master
    check_masters(replicas([first], 1))
