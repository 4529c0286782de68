"""RocketMQ 4.9 itself: its name server, its broker and its Java client, from Maven Central by package name."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import threading
from pathlib import Path
from zlib import crc32

from peers.conftest import CACHE, HERE, Lines, Program, install

VERSION = "4.9.7"
PARTS = ("rocketmq-broker", "rocketmq-namesrv", "rocketmq-tools")
# It looks into the JDK's buffers; newer Javas want to be asked.
OPENED = [
    f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.nio", "sun.nio.ch", "jdk.internal.ref", "java.lang")
]
ATTEMPTS = 3
READY_S = 120  # on a busy machine a Java takes long
SEGMENT_BYTES = 256 << 10
QUIET = '<configuration><root level="WARN"/></configuration>'


def needed(parts: tuple[str, ...], version: str) -> str:
    """What Maven must bring."""
    named = "".join(
        f"<dependency><groupId>org.apache.rocketmq</groupId><artifactId>{part}</artifactId>"
        f"<version>{version}</version></dependency>"
        for part in parts
    )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>peer</groupId><artifactId>peer</artifactId>"
        f"<version>1</version><dependencies>{named}</dependencies></project>"
    )


class Installed:
    """The JARs, and our program for the client among them."""

    def __init__(self, program: str = "RocketmqPeer", parts: tuple[str, ...] = PARTS, version: str = VERSION) -> None:
        maven = ["mvn", "-q", "-B", "-f", "FOLDER/pom.xml"]
        self.program = program
        self.folder = install(
            CACHE / f"rocketmq-{'' if parts == PARTS else '-'.join(parts) + '-'}{version}",
            ["sh", "-c", f"printf '%s' '{needed(parts, version)}' > FOLDER/pom.xml"],
            [*maven, "dependency:copy-dependencies", "-DoutputDirectory=FOLDER/jars"],
        )
        source = HERE / f"{program}.java"
        classes = install(
            CACHE / f"rocketmq-client-{version}-{crc32(source.read_bytes()):08x}",
            ["javac", "-nowarn", "-cp", f"{self.folder}/jars/*", "-d", "FOLDER", str(source)],
        )
        self.path = f"{classes}:{self.folder}/jars/*"

    def client(self, registry: str, home: Path, *properties: str) -> Program:
        """The Java client, for a registry of anybody; Java's `-D` properties."""
        java, *rest = self.java(home)
        return Program([java, *properties, *rest, self.program], {}, registry)

    def java(self, home: Path) -> list[str]:
        return ["java", "-Xmx256m", *OPENED, f"-Duser.home={home}", "-cp", self.path]

    def admin(self, registry: str, home: Path, *words: str) -> str:
        """What `mqadmin` prints."""
        conf = home / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        (conf / "logback_tools.xml").write_text(QUIET)
        main = "org.apache.rocketmq.tools.command.MQAdminStartup"
        done = subprocess.run(
            [*self.java(home), main, *words, "-n", registry], capture_output=True, text=True, timeout=READY_S,
            env={**os.environ, "ROCKETMQ_HOME": str(home)},
        )  # fmt: skip
        assert "Exception" not in done.stdout + done.stderr, done.stdout + done.stderr
        return done.stdout


class Rocketmq:
    """A name server and a broker over one folder, as long as the `with` lasts."""

    def __init__(
        self, installed: Installed, folder: Path, *, host: str = "127.0.0.1", name: str = "broker-a", **settings: str
    ) -> None:
        self.installed, self.folder, self.host, self.name, self.settings = installed, folder, host, name, settings
        self.store = folder / "store"
        self._processes: list[tuple[subprocess.Popen[str], threading.Thread]] = []

    def __enter__(self) -> Rocketmq:
        conf = self.folder / "home" / "conf"
        conf.mkdir(parents=True, exist_ok=True)
        for what in ("broker", "namesrv"):
            (conf / f"logback_{what}.xml").write_text(QUIET)
        for left in reversed(range(ATTEMPTS)):
            try:
                self._start_both()
                break
            except PortTaken:
                if not left:
                    raise
        return self

    def _start_both(self) -> None:
        """Both processes, on ports of their own. PortTaken when somebody else was faster."""
        ports = Ports()
        registry_port, vip_port, port, ha_port = ports.numbers
        self.registry = f"{self.host}:{registry_port}"
        self.address = f"{self.host}:{port}"
        settings = {
            "listenPort": registry_port, "kvConfigPath": self.folder / "kv.json", "configStorePath": self.folder / "n.conf",
        }  # fmt: skip
        with ports:
            ports.let_go(registry_port)
            self._start("org.apache.rocketmq.namesrv.NamesrvStartup", settings)
            settings = {
                "brokerClusterName": "DefaultCluster", "brokerName": self.name, "brokerId": 0, "brokerIP1": self.host,
                "namesrvAddr": self.registry, "listenPort": port, "haListenPort": ha_port,
                "storePathRootDir": self.store, "storePathCommitLog": self.store / "commitlog",
                "mappedFileSizeCommitLog": SEGMENT_BYTES, "mappedFileSizeConsumeQueue": 6000,
                "maxHashSlotNum": 500, "maxIndexNum": 2000, "diskMaxUsedSpaceRatio": 95, "autoCreateTopicEnable": "true",
                "defaultTopicQueueNums": 4, "messageDelayLevel": " ".join(["1s"] * 18), "transactionCheckInterval": 1000,
                **self.settings,
            }  # fmt: skip
            ports.let_go(vip_port, port, ha_port)
            self._start("org.apache.rocketmq.broker.BrokerStartup", settings)

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
            said = f"{main} did not start:\n{''.join(told)}{(self.folder / 'log').read_text()[-2000:]}"
            raise PortTaken(said) if "BindException" in said or "already in use" in said else AssertionError(said)

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


class PortTaken(AssertionError):
    """Another program listens where one of these should."""


class Ports:
    """Four free ports, held until `let_go`: a name server's; of a broker the one two below its own (for "VIP" clients),
    its own, and the one for slaves. All lie below those that the system gives to outgoing connections, so that none of
    these comes between.
    """

    def __init__(self) -> None:
        self._held: dict[int, socket.socket] = {}
        self.numbers: list[int] = []
        low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
        while not self.numbers:
            vip = random.randrange(10_000, min(low, 32_000) - 8)
            wanted = [vip - 1, vip, vip + 2, vip + 3]
            try:
                for port in wanted:
                    self._held[port] = self._hold(port)
            except OSError:
                self.let_go(*list(self._held))
                continue
            self.numbers = wanted

    @staticmethod
    def _hold(port: int) -> socket.socket:
        """On every address of this machine, as Java listens."""
        held = socket.socket(socket.AF_INET6)
        try:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            held.bind(("::", port))
            held.listen()  # two that do not listen may be bound to one port
        except OSError:
            held.close()
            raise
        return held

    def let_go(self, *ports: int) -> None:
        """Now they are somebody's."""
        for port in ports:
            self._held.pop(port).close()

    def __enter__(self) -> Ports:
        return self

    def __exit__(self, *error: object) -> None:
        self.let_go(*list(self._held))
