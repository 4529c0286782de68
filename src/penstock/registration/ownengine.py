"""An engine for the replica sets of one machine: etcd as a process beside the brokers, where that program is there.

One member is enough, for the machine is one, too: what dies with it would have died anyway. It listens on this machine alone,
on ports that are free, and keeps its files in the folder `etcd` of the first broker.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import random
import shutil
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from penstock.config import BrokerConfig
from penstock.errors import ConfigError
from penstock.registration.engine import EngineAway
from penstock.registration.etcd import Etcd

log = logging.getLogger("penstock.supervisor")

NODES_MIN = 3  # of two, one that is lost leaves one: a person can do what is left to do
HOST = "127.0.0.1"
PORTS = (12_000, 32_000)
PORTS_TRIED = 100
FIRST_TRIES = 3
START_S = 30.0
ASK_S = 0.05
RESTART_S = 1.0
STOP_S = 10.0
_DIE_WITH_PARENT = 1  # of prctl(2)


def wanted(brokers: Sequence[BrokerConfig], replicas: int) -> OwnEngine | None:
    """The engine for these brokers, where they are to have one of their own: a set of `NODES_MIN` or more that begins, or one
    that has begun with it, with however many nodes it goes on: what it holds must not fall behind. ConfigError when it is there
    no more.
    """
    first = brokers[0]
    if first.engine or replicas == 1:
        return None
    folder, program = Path(first.data) / "etcd", shutil.which("etcd")
    if not folder.is_dir():
        if replicas < NODES_MIN:
            return None
        known = any((Path(one.data) / "ha" / "replica.json").exists() for one in brokers)
        if known and folder.with_name("etcd.log").exists():
            log.warning("%s is gone, which held who is the master: nobody takes the place of one that is lost. Bring it back, or "
                        "`mkdir` it, start again, and `penstock ha promote` the node that has the most", folder)  # fmt: skip
        return None if known or program is None else OwnEngine(program, folder)
    if program is None:
        raise ConfigError(
            f"{folder} holds who is the master of these brokers, and there is no etcd on PATH",
            "Install it (Debian: etcd-server), or name another engine and promote a node: docs/replication.md.",
        )
    return OwnEngine(program, folder)


class _Ended(ConfigError):
    """It ended before it answered."""


class OwnEngine:
    """See the module. `start` before use; it is kept running by `watch`."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._port, self._peers_port = _free_ports()
        self._process: Process | None = None
        self.starts = 0

    @property
    def setting(self) -> str:
        """What the brokers' setting `engine` is."""
        return f"etcd://{HOST}:{self._port}"

    async def start(self) -> None:
        """Start it and wait until it answers; at other ports while nobody knows these, if it ends: somebody else may have
        taken one. ConfigError when it does not.
        """
        for tries_left in range(0 if self.starts else FIRST_TRIES - 1, -1, -1):
            try:
                await self._start()
                return
            except _Ended as error:
                if not tries_left:
                    raise
                log.warning("etcd not started, trying other ports error=%s", error)
                self._port, self._peers_port = _free_ports()

    async def _start(self) -> None:
        client, peer = f"http://{HOST}:{self._port}", f"http://{HOST}:{self._peers_port}"
        words = [
            "--name", "penstock", "--data-dir", str(self._folder), "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"penstock={peer}", "--auto-compaction-retention", "1",
        ]  # fmt: skip
        self._folder.parent.mkdir(parents=True, exist_ok=True)
        libc = ctypes.CDLL(None)
        with open(self._folder.with_name("etcd.log"), "ab") as said:
            self._process = await asyncio.create_subprocess_exec(
                self._program, *words, stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True,
                preexec_fn=lambda: libc.prctl(_DIE_WITH_PARENT, signal.SIGTERM),
            )  # fmt: skip
        self.starts += 1
        asked = Etcd(BrokerConfig(engine=self.setting))
        try:
            async with asyncio.timeout(START_S):
                while not await self._answers(asked):
                    await asyncio.sleep(ASK_S)
        except TimeoutError:
            await self.stop()
            raise ConfigError(f"etcd does not answer at {client}: see {self._folder.with_name('etcd.log')}") from None
        finally:
            await asked.close()

    async def _answers(self, asked: Etcd) -> bool:
        process = self._process
        if process is None or process.returncode is not None:
            code = "" if process is None else process.returncode
            raise _Ended(f"etcd ended with {code}: see {self._folder.with_name('etcd.log')}")
        try:
            await asked.read("/")
        except EngineAway:
            return False
        return True

    async def watch(self) -> None:
        """Until cancelled: start it again when it ends. The brokers go on meanwhile, as long as they see each other."""
        while True:
            if self._process is not None:
                log.error("etcd ended code=%d restart_s=%g", await self._process.wait(), RESTART_S)
            await asyncio.sleep(RESTART_S)
            try:
                await self.start()
            except (ConfigError, OSError) as error:  # an upgrade takes the program away for a moment
                log.error("etcd not started again error=%s", error)

    async def stop(self) -> None:
        """Have it stop; killed after `STOP_S`."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def _free_ports() -> tuple[int, int]:
    """Two that nobody has, for clients and for peers; below those that the kernel gives to connections that go out, so that they
    are still free when etcd is started again.
    """
    with ExitStack() as held:
        found: list[int] = []
        for _ in range(PORTS_TRIED):
            probe = held.enter_context(socket.socket())
            try:
                probe.bind((HOST, random.randrange(*PORTS)))
            except OSError:
                continue
            found.append(probe.getsockname()[1])
            if len(found) == 2:
                return found[0], found[1]
    raise ConfigError(f"no port between {PORTS[0]} and {PORTS[1]} seems to be free for etcd: name another engine")
