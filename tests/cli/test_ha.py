"""`penstock ha status`, and a registry with a master and a slave in one command."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from click.testing import CliRunner

import penstock
from ha_parts import SMALL, eventually
from penstock.cli.ha import ha
from penstock.client.results import SendStatus
from penstock.testing import Broker
from penstock.wire import remoting


def status(registry: str) -> list[dict[str, object]]:
    done = CliRunner().invoke(ha, ["status", "--registry", registry, "--json"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.output.splitlines()]


def test_a_master_and_a_slave_by_one_command(tmp_path: Path) -> None:
    small = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    ports = [f"--{name}-port=0" for name in ("remoting", "nsq", "http", "registry", "lookup", "lookup-http")]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", "up", "--data", str(tmp_path / "d"), "--replicas", "2", "--level", "pair",
         *ports, *small],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline().removeprefix(b"ready "))
        registry = told["registry"]
        eventually(lambda: [row.get("in_sync") for row in status(registry) if row["id"] == 1] == ["yes"])
        with penstock.Producer(registry) as producer:
            assert producer.send(penstock.Message("T", b"x")).status == SendStatus.SEND_OK
        master, slave = status(registry)
        assert (master["role"], slave["role"], slave["in_sync"]) == ("master", "slave", "yes")
        assert (master["broker"], master["epoch"]) == ("broker-a", 1)
        assert master["written"] == slave["written"]
        page = urllib.request.urlopen(f"http://{told['brokers'][0]['http']}/metrics", timeout=30).read().decode()
        assert re.search(r'^penstock_replica_in_sync\{node="broker-a-2"\} 1$', page, re.M)
        assert (tmp_path / "d" / "replica-2" / "commitlog").is_dir()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


def test_a_broker_that_nobody_can_follow(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker:
        eventually(lambda: status(broker.registry))
        [row] = status(broker.registry)
        assert (row["role"], row["id"]) == ("master", 0)
        assert "no ha_port" in str(row["why_not"])


def test_a_dry_run_says_who_would_lead(tmp_path: Path) -> None:
    """And nobody else leads then; without it the two change places, and a program is told so in one object."""
    small = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    ports = [f"--{name}-port=0" for name in ("remoting", "nsq", "http", "registry", "lookup", "lookup-http")]
    command = [
        sys.executable,
        "-m",
        "penstock.cli",
        "up",
        "--data",
        str(tmp_path / "d"),
        "--replicas",
        "2",
        *ports,
        *small,
    ]

    def asked(*words: str) -> dict[str, object]:
        done = CliRunner().invoke(ha, [*words, "--json", "--registry", registry])
        assert done.exit_code == 0, done.output
        (row,) = [json.loads(line) for line in done.output.splitlines()]
        assert isinstance(row, dict)
        return row

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process, ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdout is not None
        registry = json.loads(process.stdout.readline().removeprefix(b"ready "))["registry"]
        with penstock.Producer(registry) as producer:
            producer.send(penstock.Message("t", b"x"))
        eventually(lambda: [row.get("in_sync") for row in status(registry) if row["id"] == 1] == ["yes"])
        master, slave = (
            next(row["node"] for row in status(registry) if row["role"] == role) for role in ("master", "slave")
        )
        for words in (("switch",), ("switch", "--to", str(slave))):
            told = asked(*words, "--dry-run")
            assert (told["node"], told["done"]) == (slave, "")
        plain = CliRunner().invoke(ha, ["switch", "--dry-run", "--registry", registry]).output
        assert plain.startswith(f"{slave} would be the master of ")
        assert CliRunner().invoke(ha, ["switch", "--to", "x", "--dry-run", "--registry", registry]).exit_code != 0
        for words in (("--broker", "zz"), ("--broker", "zz", "--to", str(slave))):
            nobody = CliRunner().invoke(ha, ["switch", *words, "--registry", registry])
            assert "no node of a replica set is registered as zz" in str(nobody.exception)
        assert next(row["node"] for row in status(registry) if row["role"] == "master") == master
        assert asked("switch")["node"] == slave
        process.terminate()
        process.wait(60)


def told(registry: str, words: str) -> subprocess.CompletedProcess[str]:
    """`penstock ha …` as a process."""
    command = [sys.executable, "-m", "penstock.cli", "ha", *words.split(), "-n", registry]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_nodes_that_hang_are_not_nodes_that_are_none() -> None:
    """The registry knows a broker that takes connections and says nothing: no answer in time (124), not "none is there" (3)."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_server(("127.0.0.1", 0)) as port,
    ):
        hung = f"127.0.0.1:{silent.getsockname()[1]}"
        info = {"brokerAddrTable": {"b": {"cluster": "c", "brokerName": "b", "brokerAddrs": {"0": hung}}}}

        def answer(peer: socket.socket) -> None:
            with peer, suppress(OSError, EOFError):
                parser = remoting.CommandParser()
                while data := peer.recv(1 << 16):
                    for command in parser.feed(data):
                        peer.sendall(remoting.encode(command.reply(body=json.dumps(info).encode())))

        def serve() -> None:
            with suppress(OSError), ThreadPoolExecutor() as pool:
                while True:
                    pool.submit(answer, port.accept()[0])

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        registry = f"127.0.0.1:{port.getsockname()[1]}"
        with ThreadPoolExecutor(4) as pool:  # each waits for ten seconds
            asked = pool.map(partial(told, registry), ("promote --node n", "switch", "pause", "forget n --yes"))
            for done in asked:
                assert done.returncode == 124, (done.args, done.stderr)
                assert f"{hung} did not answer" in done.stderr
        port.shutdown(socket.SHUT_RDWR)
        thread.join()
