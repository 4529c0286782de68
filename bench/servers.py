"""Starts what is measured, each in an empty folder on free ports, and the load client beside it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.machine import cpu_s, lie_apart

HERE = Path(__file__).parent
LISTENERS = ("remoting", "nsq", "http", "registry", "lookup", "lookup-http")  # the last three are a registry's


@dataclass
class Running:
    """A server under load."""

    pid: int
    port: int
    registry: str = ""
    nsq: int = 0
    http: str = ""


def environment(source: Path) -> dict[str, str]:
    """That of a broker of `source`. It keeps its bytecode, as where it is installed: a start compiles nothing."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(source)}


def load_client(name: str = "load") -> Path:
    """A load client, compiled when its source is newer."""
    program, source = HERE / name, HERE / f"{name}.c"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        try:
            subprocess.run(["cc", "-O2", "-Wall", "-o", str(program), str(source)], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise SystemExit(f"bench: the load client does not compile ({error}); it wants a C compiler") from None
    return program


def load(mode: str, server: Running, **flags: Any) -> dict[str, Any]:
    """Run the load client; its figures. Flags are its own: P=4, w=250, j=True, …"""
    return _run([str(load_client()), mode, "-p", str(server.port)], server, flags)


def nsq_load(mode: str, server: Running, **flags: Any) -> dict[str, Any]:
    """Run the NSQ load client; its figures."""
    return _run([str(load_client("nsqload")), mode, "-p", str(server.nsq)], server, flags)


def _run(command: list[str], server: Running, flags: dict[str, Any]) -> dict[str, Any]:
    command += ["-i", str(server.pid)]
    for name, value in flags.items():
        if value is not False:
            command += [f"-{name}"] if value is True else [f"-{name}", str(value)]
    told = subprocess.run(command, capture_output=True, text=True)
    if told.returncode:
        raise SystemExit(f"bench: {' '.join(command)}: {told.stderr.strip()}")
    figures: dict[str, Any] = json.loads(told.stdout)
    if figures.get("refused"):
        raise SystemExit(f"bench: {figures['refused']} sends refused: {told.stderr.strip()}")
    return figures


@contextmanager
def penstock(source: Path = HERE.parent / "src", **settings: Any) -> Iterator[Running]:
    """`penstock up` in a process of its own, from the sources of this tree or of another; `data`: its folder, if it is to
    stay.
    """
    with _started(source, settings, "up", LISTENERS) as ready:
        yield _running(ready, ready["registry"])


@contextmanager
def several(count: int, **settings: Any) -> Iterator[list[Running]]:
    """`penstock up --brokers N`: each of its brokers."""
    with _started(HERE.parent / "src", settings, "up", LISTENERS, f"--brokers={count}") as ready:
        yield [_running(broker, ready["registry"]) for broker in ready.get("brokers", [ready])]


def _running(ready: dict[str, Any], registry: str) -> Running:
    ports = {name: int(ready[name].rpartition(":")[2]) for name in ("remoting", "nsq")}
    return Running(ready["pid"], ports["remoting"], registry, ports["nsq"], ready["http"])


@contextmanager
def name_server() -> Iterator[str]:
    """`penstock registry` without a broker of ours: its address."""
    with _started(HERE.parent / "src", {}, "registry", LISTENERS[3:]) as ready:
        yield str(ready["registry"])


@contextmanager
def _started(
    source: Path, settings: dict[str, Any], verb: str, listeners: tuple[str, ...], *flags: str
) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        lie_apart(Path(folder))
        data = str(settings.pop("data", Path(folder) / Path(folder).name))  # its name says where on the disk it lies
        command = [sys.executable, "-m", "penstock.cli", verb, "--data", data, *flags]
        command += [f"--{name}-port=0" for name in listeners]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        log = Path(folder) / "log"
        with log.open("w") as errors:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment(source)
            )
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready "):
            raise SystemExit(f"bench: the broker did not start: {log.read_text()}")
        try:
            yield json.loads(line.removeprefix("ready "))
        finally:
            process.terminate()
            process.wait(60)
            process.stdout.close()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextmanager
def sink(client: str = "load", *flags: str) -> Iterator[Running]:
    """The floor: a C server that reads the same frames, copies their bodies and answers."""
    port = free_port()
    command = [str(load_client(client)), "sink", "-p", str(port), *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield Running(process.pid, port, nsq=port)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@contextmanager
def named_sink(topic: str) -> Iterator[Running]:
    """The same as a broker that clients find through a registry, with a topic of four queues."""
    table = {topic: {"topicName": topic, "perm": 6, "readQueueNums": 4, "writeQueueNums": 4}}
    wrapper = {"dataVersion": {"timestamp": 1, "counter": 1}, "topicConfigTable": table}
    body = json.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []}).encode()
    with name_server() as registry, sink("load", "-j") as floor:
        about = {"brokerName": "floor", "brokerAddr": f"127.0.0.1:{floor.port}", "clusterName": "DefaultCluster",
                 "haServerAddr": f"127.0.0.1:{floor.port}", "brokerId": "0"}  # fmt: skip
        ask = {"code": 103, "language": "JAVA", "version": 0, "opaque": 1, "flag": 0, "extFields": about}
        header = json.dumps(ask).encode()
        host, _, port = registry.rpartition(":")
        with socket.create_connection((host, int(port))) as told:  # the route goes with it
            told.sendall(struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body)
            told.recv(4096)
            floor.registry = registry
            yield floor


def find_nsqd() -> str | None:
    """The original nsqd, if there is one on the path: ours has the same name and was not built with Go."""
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        program = Path(folder) / "nsqd"
        if program.is_file() and os.access(program, os.X_OK):
            told = subprocess.run([str(program), "-version"], capture_output=True, text=True)
            if "built w/go" in told.stdout:
                return str(program)
    return None


@contextmanager
def nsqd(program: str) -> Iterator[Running]:
    """The original, as it comes: a memory queue, then the disk."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        port, http = free_port(), free_port()
        command = [
            program,
            "-data-path",
            folder,
            "-tcp-address",
            f"127.0.0.1:{port}",
            "-http-address",
            f"127.0.0.1:{http}",
        ]
        process = subprocess.Popen([*command, "-log-level", "error"], stderr=subprocess.DEVNULL)
        try:
            for _ in range(500):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", http), 1):
                    break
                time.sleep(0.01)
            yield Running(process.pid, port, nsq=port, http=f"127.0.0.1:{http}")
        finally:
            process.terminate()
            process.wait(60)


ROCKETMQ_FOLDER = "PENSTOCK_BENCH_ROCKETMQ"  # of RocketMQ 4.9: its JARs lie in lib/, or in the folder itself


def find_rocketmq() -> Path | None:
    """Where the JARs of RocketMQ's broker are, if the environment names their folder, and there is a Java."""
    named = os.environ.get(ROCKETMQ_FOLDER, "")
    for jars in (Path(named) / "lib", Path(named)) if named else ():
        if list(jars.glob("rocketmq-broker-*.jar")):
            if shutil.which("java"):
                return jars
            raise SystemExit(f"bench: {ROCKETMQ_FOLDER} is set, and there is no java on PATH")
    if named:
        raise SystemExit(f"bench: no rocketmq-broker-*.jar in {named} or its lib; unset {ROCKETMQ_FOLDER}")
    return None


@contextmanager
def rocketmq(jars: Path, *, sync_flush: bool = False, registry: str = "") -> Iterator[Running]:
    """Its broker with its own defaults, 2 GiB of heap; without a registry, which the load clients do not need, or at one."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        port = free_port()
        home = Path(folder) / "home"
        (home / "conf").mkdir(parents=True)
        (home / "conf" / "logback_broker.xml").write_text('<configuration><root level="ERROR"/></configuration>')
        settings = {
            "brokerName": "bench", "listenPort": port, "haListenPort": free_port(), "storePathRootDir": folder,
            "storePathCommitLog": f"{folder}/commitlog", "flushDiskType": "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH",
            "diskMaxUsedSpaceRatio": 95, "brokerIP1": "127.0.0.1",
            # It refuses what has waited 200 ms; a load is to be carried, not turned away.
            "waitTimeMillsInSendQueue": 60_000, "osPageCacheBusyTimeOutMills": 60_000,
            **({"namesrvAddr": registry} if registry else {}),
        }  # fmt: skip
        given = home / "broker.properties"
        given.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        opened = [
            f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "jdk.internal.ref")
        ]
        process = subprocess.Popen(
            ["java", "-Xms2g", "-Xmx2g", *opened, f"-Duser.home={home}", "-cp", f"{jars}/*",
             "org.apache.rocketmq.broker.BrokerStartup", "-c", str(given)],
            env={**os.environ, "ROCKETMQ_HOME": str(home)}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            for _ in range(6000):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                if process.poll() is not None:
                    raise SystemExit("bench: RocketMQ's broker ended before it listened")
                time.sleep(0.01)
            server = Running(process.pid, port, registry)
            load("send", server, t=3, W=0, P=4, w=100, j=True)  # its topic is made, its code compiled
            yield server
        finally:
            process.terminate()
            process.wait(60)


KAFKA_FOLDER = "PENSTOCK_BENCH_KAFKA"  # of a Kafka of 3.3 to 3.9: its JARs lie in libs/, or in the folder itself


def find_kafka() -> Path | None:
    """Where the JARs of Kafka are, if the environment names their folder, and there is a Java."""
    named = os.environ.get(KAFKA_FOLDER, "")
    for jars in (Path(named) / "libs", Path(named)) if named else ():
        if list(jars.glob("kafka_2.*.jar")):
            if shutil.which("java"):
                return jars
            raise SystemExit(f"bench: {KAFKA_FOLDER} is set, and there is no java on PATH")
    if named:
        raise SystemExit(f"bench: no kafka_2.*.jar in {named} or its libs; unset {KAFKA_FOLDER}")
    return None


def demand_kafka_load(jars: Path) -> None:
    """SystemExit, before half an hour is spent on the others, where `kafka_load` would find no program."""
    if not list(jars.glob("kafka-tools-[0-9]*.jar")):
        raise SystemExit(
            f"bench: no kafka-tools JAR in {jars}; add it, as a Kafka's own folder has it, or unset {KAFKA_FOLDER}"
        )


@contextmanager
def kafka(jars: Path) -> Iterator[Running]:
    """A Kafka of one node with its own defaults, without ZooKeeper, 2 GiB of heap; topics are made when they are named."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        port, controller = free_port(), free_port()
        settings = {
            "process.roles": "broker,controller", "node.id": 1, "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER", "log.dirs": f"{folder}/logs", "num.partitions": 4,
            "offsets.topic.replication.factor": 1, "transaction.state.log.replication.factor": 1,
            "group.initial.rebalance.delay.ms": 0,
        }  # fmt: skip
        given = Path(folder) / "server.properties"
        given.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        java = ["java", "-Xmx2g", "-cp", f"{jars}/*"]
        cluster = "MkU3OEVBNTcwNTJENDM2Qg"  # any 16 bytes in base64
        subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(given)],
            check=True,
            capture_output=True,
        )
        process = subprocess.Popen(
            [*java, "-Xms2g", "kafka.Kafka", str(given)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
        )
        try:
            for _ in range(6000):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                if process.poll() is not None:
                    raise SystemExit("bench: Kafka ended before it listened")
                time.sleep(0.01)
            yield Running(process.pid, port, f"127.0.0.1:{port}")
        finally:
            process.terminate()
            process.wait(60)


def kafka_load(jars: Path, server: Running, messages: int, batch_bytes: int) -> dict[str, float]:
    """Messages of 200 bytes by Kafka's own `ProducerPerformance`, acknowledged by the leader: CPU in µs and rate."""
    command = [
        "java", "-Xmx1g", "-cp", f"{jars}/*", "org.apache.kafka.tools.ProducerPerformance", "--topic", "bench", "--num-records",
        str(messages), "--record-size", "200", "--throughput", "-1", "--producer-props", f"bootstrap.servers={server.registry}",
        "acks=1", "linger.ms=5", f"batch.size={batch_bytes}",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)  # its code is compiled
    used, began = cpu_s(server.pid), time.monotonic()
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    used = cpu_s(server.pid) - used
    rate = float(told.split(" records sent, ")[1].split(" records/sec")[0])
    return {"cpu_us": used * 1e6 / messages, "rate": rate, "seconds": time.monotonic() - began}
