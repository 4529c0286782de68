"""RocketMQ 4.9 itself: its name server, its broker and its Java client, from Maven Central by package name."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from pathlib import Path

from peers.conftest import CACHE, HERE, Lines, Program, install

VERSION = "4.9.7"
PARTS = ("rocketmq-broker", "rocketmq-namesrv", "rocketmq-tools")
# It looks into the JDK's buffers; newer Javas want to be asked.
OPENED = [
    f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "jdk.internal.ref", "java.lang")
]
READY_S = 120  # on a busy machine a Java takes long
SEGMENT_BYTES = 256 << 10
QUIET = '<configuration><root level="WARN"/></configuration>'


def needed() -> str:
    """What Maven must bring."""
    parts = "".join(
        f"<dependency><groupId>org.apache.rocketmq</groupId><artifactId>{part}</artifactId>"
        f"<version>{VERSION}</version></dependency>"
        for part in PARTS
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>peer</groupId><artifactId>peer</artifactId>"
        f"<version>1</version><dependencies>{parts}</dependencies></project>"
    )


class Installed:
    """The JARs, and our program for the client among them."""

    def __init__(self) -> None:
        maven = ["mvn", "-q", "-B", "-f", "FOLDER/pom.xml"]
        self.folder = install(
            CACHE / f"rocketmq-{VERSION}",
            ["sh", "-c", f"printf '%s' '{needed()}' > FOLDER/pom.xml"],
            [*maven, "dependency:copy-dependencies", "-DoutputDirectory=FOLDER/jars"],
            ["javac", "-nowarn", "-cp", "FOLDER/jars/*", "-d", "FOLDER", str(HERE / "RocketmqPeer.java")],
        )
        self.path = f"{self.folder}:{self.folder}/jars/*"

    def client(self, registry: str, home: Path) -> Program:
        """The Java client, for a registry of anybody."""
        return Program([*self.java(home), "RocketmqPeer"], {}, registry)

    def java(self, home: Path) -> list[str]:
        return ["java", "-Xmx256m", *OPENED, f"-Duser.home={home}", "-cp", self.path]


class Rocketmq:
    """A name server and a broker over one folder, as long as the `with` lasts."""

    def __init__(self, installed: Installed, folder: Path, *, host: str = "127.0.0.1", name: str = "broker-a") -> None:
        self.installed, self.folder, self.host, self.name = installed, folder, host, name
        self.store = folder / "store"
        self._processes: list[tuple[subprocess.Popen[str], threading.Thread]] = []

    def __enter__(self) -> Rocketmq:
        conf = self.folder / "home" / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        for what in ("broker", "namesrv"):
            (conf / f"logback_{what}.xml").write_text(QUIET)
        registry_port, port = _two_apart(), _two_apart()
        self.registry = f"{self.host}:{registry_port}"
        self.address = f"{self.host}:{port}"
        settings = {
            "listenPort": registry_port, "kvConfigPath": self.folder / "kv.json", "configStorePath": self.folder / "n.conf",
        }  # fmt: skip
        self._start("org.apache.rocketmq.namesrv.NamesrvStartup", settings)
        settings = {
            "brokerClusterName": "DefaultCluster", "brokerName": self.name, "brokerId": 0, "brokerIP1": self.host,
            "namesrvAddr": self.registry, "listenPort": port, "haListenPort": _two_apart(),
            "storePathRootDir": self.store, "storePathCommitLog": self.store / "commitlog",
            "mappedFileSizeCommitLog": SEGMENT_BYTES, "mappedFileSizeConsumeQueue": 6000,
            "maxHashSlotNum": 500, "maxIndexNum": 2000, "diskMaxUsedSpaceRatio": 95, "autoCreateTopicEnable": "true",
            "defaultTopicQueueNums": 4, "messageDelayLevel": " ".join(["1s"] * 18), "transactionCheckInterval": 1000,
        }  # fmt: skip
        self._start("org.apache.rocketmq.broker.BrokerStartup", settings)
        return self

    def __exit__(self, *error: object) -> None:
        for process, reader in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
            process.wait(30)
            reader.join(10)
        self._processes.clear()

    def _start(self, main: str, settings: dict[str, object]) -> None:
        given = self.folder / f"{main.rpartition('.')[2]}.properties"
        given.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        log = (self.folder / "log").open("a")
        process = subprocess.Popen(
            [*self.installed.java(self.folder), main, "-c", str(given)],
            stdout=subprocess.PIPE, stderr=log, text=True, env={**os.environ, "ROCKETMQ_HOME": str(self.folder / "home")},
        )  # fmt: skip
        log.close()
        told: list[str] = []
        up = threading.Event()
        reader = threading.Thread(target=_listen, args=(process, told, up), daemon=True)
        reader.start()
        self._processes.append((process, reader))
        up.wait(READY_S)
        if "boot success" not in "".join(told):
            self.__exit__()
            raise AssertionError(f"{main} did not start:\n{''.join(told)}{(self.folder / 'log').read_text()[-2000:]}")

    def send(self, topic: str, count: int) -> Lines:
        return self.installed.client(self.registry, self.folder).run("send", topic, count)

    def read(self, topic: str) -> Lines:
        return self.installed.client(self.registry, self.folder).run("read", topic)


def _listen(process: subprocess.Popen[str], told: list[str], up: threading.Event) -> None:
    """Keep what it prints until it says that it is up, and read on, so that it never waits for us."""
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            told.append(line)
            if "boot success" in line:
                up.set()
    up.set()


def _two_apart() -> int:
    """A free port; a broker also listens two below it."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = int(one.getsockname()[1])
            try:
                two.bind(("127.0.0.1", port - 2))
            except OSError:
                continue
            return port
