"""Several brokers behind one registry on one machine: each a process of its own, with a data folder and ports of its own.

A broker does its work in one thread, so several of them use several cores. This process runs the registry and looks
after the brokers: one that ends is started again, after a pause that doubles from `RESTART_S` to `RESTART_MAX_S`; all
stop when this process does, even when it is killed: each broker's standard input ends with it. That is also how each is told
its settings: a line of JSON at the start, and another when SIGHUP had this process read them again.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec.structs import asdict, replace

from penstock import errors
from penstock.app import Server, runner
from penstock.broker.replica import placed
from penstock.config import BrokerConfig, RegistryConfig
from penstock.disk.files import Files
from penstock.errors import ConfigError, Locked, PenstockError, StoreError
from penstock.limits import Limits
from penstock.notify import Notify
from penstock.registration.ownengine import OwnEngine
from penstock.reload import Reloading
from penstock.serve import Beside, announce, heed_hangup, hold_hangup, log_to_stderr, prepare, run, stop_event
from penstock.tls import share_certificate

log = logging.getLogger("penstock.supervisor")

PORT_STEP = 100  # between the ports of one broker and those of the next
RESTART_S = 1.0
RESTART_MAX_S = 30.0
STOP_S = 60.0  # what a broker may take to stop; then it is killed
REGISTERED_S = 10.0  # what their first registration may take
STEADY_S = 60.0  # a broker that ran for so long begins with the shortest pause again
_LISTENERS = ("remoting", "nsq", "http", "https", "ha")
_FOUND = ("registry", "lookupd_tcp_address", "engine", *(f"{name}_port" for name in _LISTENERS))  # while it started
Read = Callable[[], tuple[Sequence[BrokerConfig], RegistryConfig]]
_NUMBERED = re.compile(r"(.+)-(\d+)")  # a broker's folder inside the first one's
HA_PORT = 10_912  # of the first master that has slaves


def members(config: BrokerConfig, count: int) -> list[BrokerConfig]:
    """The settings of each broker. The first has those of a single one, its folder too: more can be added later.

    The n-th is called name-n, keeps its files in a folder of that name inside the first one's, and listens
    `PORT_STEP` * (n - 1) above the first. ConfigError when a folder of another broker lies there: its messages would be
    out of sight.
    """
    data = Path(config.data)
    names = [config.broker_name, *(f"{config.broker_name}-{n}" for n in range(2, count + 1))]
    held = [found for path in data.glob("*-*/store.json") if (found := _NUMBERED.fullmatch(path.parent.name))]
    # Those under another name had a second one as well; replica-2 is a slave's copy.
    firsts = {config.broker_name} | ({found[1] for found in held if found[2] == "2"} - {"replica"})
    if left_out := sorted(found[0] for found in held if found[1] in firsts and found[0] not in names):
        first = min(
            (found[1] for found in held if found[0] in left_out), key=lambda name: (name != config.broker_name, name)
        )
        most = max(int(found[2]) for found in held if found[1] == first)
        renamed = "" if first == config.broker_name else f" --set broker_name={first}"
        raise ConfigError(
            f"{data} also holds the messages of {', '.join(left_out)}, which nobody would serve",
            f"Start with --brokers {most}{renamed}, or move what is not wanted out of {data}.",
        )
    made = [config]
    shared = Limits(connection_memory_bytes=config.connection_memory_bytes).memory_bytes // count
    for n, name in enumerate(names[1:], 1):
        ports = {f"{word}_port": getattr(config, f"{word}_port") for word in _LISTENERS}
        apart = {word: port + PORT_STEP * n if port > 0 else port for word, port in ports.items()}
        if too_high := [word for word, port in apart.items() if port > 0xFFFF]:
            raise ConfigError(f"{too_high[0]} of {name} would be above 65535", f"Choose a lower {too_high[0]}.")
        paths = {f"{word}_host": getattr(config, f"{word}_host") for word in _LISTENERS[1:]}
        files = {word: f"{path}.{name}" for word, path in paths.items() if "/" in path}
        own: dict[str, Any] = {"data": str(data / name), "broker_name": name, **apart, **files}
        made.append(replace(config, **own))
    return [replace(one, connection_memory_bytes=shared) for one in made] if count > 1 else made


def replicas(masters: Sequence[BrokerConfig], count: int) -> list[BrokerConfig]:
    """The masters, and for each so many slaves that there are `count` brokers of its name.

    A slave keeps its copy in the folder `replica-2`, `replica-3`, … inside its master's, and listens above all masters.
    ConfigError when a port would be too high.
    """
    if count == 1:
        return list(masters)
    made = []
    for n, config in enumerate(masters):
        port = config.ha_port if config.ha_port >= 0 else HA_PORT + PORT_STEP * n if config.remoting_port > 0 else 0
        made.append(replace(config, ha_port=port, node=config.node or f"{config.broker_name}-1"))
    for k in range(2, count + 1):
        for n, config in enumerate(masters):
            step = PORT_STEP * ((k - 1) * len(masters))
            ports = {f"{word}_port": getattr(config, f"{word}_port") for word in _LISTENERS[:4]}
            ports["ha_port"] = made[n].ha_port
            apart = {word: port + step if port > 0 else port for word, port in ports.items()}
            if too_high := [word for word, port in apart.items() if port > 0xFFFF]:
                raise ConfigError(f"{too_high[0]} of a slave would be above 65535", f"Choose a lower {too_high[0]}.")
            paths = {f"{word}_host": getattr(config, f"{word}_host") for word in _LISTENERS[1:4]}
            files = {word: f"{path}.replica-{k}" for word, path in paths.items() if "/" in path}
            data, node = str(Path(config.data) / f"replica-{k}"), f"{made[n].broker_name}-{k}"
            own: dict[str, Any] = {"role": "slave", "broker_id": k - 1, "node": node, "data": data, **apart, **files}
            made.append(replace(config, **own))
    return made


def check_masters(brokers: Sequence[BrokerConfig]) -> None:
    """ConfigError where a set has changed its master, and would be started without that node: all others would be its slaves."""
    files = Files()

    def leads(config: BrokerConfig) -> bool:
        return placed(config, files, Path(config.data)).role == "master"

    for first in (config for config in brokers if config.role == "master"):
        data = Path(first.data)
        if any(leads(config) for config in brokers if config.broker_name == first.broker_name):
            continue
        for folder in sorted(data.glob("replica-[0-9]*")):
            if leads(replace(first, role="slave", data=str(folder))):
                raise ConfigError(
                    f"{folder} holds the master of {first.broker_name}, and would not be started",
                    f"Start with --replicas {folder.name.rpartition('-')[2]}, and `penstock ha switch` to a node that stays; "
                    f"where that one is lost, move it out of {data}, and `penstock ha promote` another.",
                )


class Member:
    """One broker's process."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = self._begun_with = config  # as it is started next, and as it was
        self.name = _name_of(config)
        self.addresses: dict[str, object] = {}
        self.restarts = 0
        self.failure = ""  # why it does not run
        self._process: Process | None = None

    async def start(self) -> PenstockError | None:
        """Start it and wait until it answers. When it ended before: why."""
        failure = await self._start()
        self.failure = "" if failure is None else str(failure)
        return failure

    async def _start(self) -> PenstockError | None:
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "penstock.supervisor", stdin=PIPE, stdout=PIPE, start_new_session=True
            )
        except OSError as error:  # no memory, no descriptor; an upgrade takes the program away for a moment
            return PenstockError(f"its process cannot be started: {error}")
        assert process.stdin is not None
        assert process.stdout is not None
        self._begun_with = self.config
        process.stdin.write(_line(self.config))
        line = await process.stdout.readline()
        if not line.startswith(b"ready "):
            code = await process.wait()
            return _failure(line) or PenstockError(f"it ended with {code}; why stands in the log")
        self.addresses = json.loads(line.removeprefix(b"ready "))
        # Clients that know the port come back to it, even where any free one was asked for.
        ports = {f"{name}_port": _port(self.addresses, name) for name in _LISTENERS if _port(self.addresses, name) > 0}
        self.config = replace(self.config, **ports)  # type: ignore[arg-type]
        return None

    async def ended(self) -> int:
        """Wait until it ends; its exit code."""
        assert self._process is not None
        return await self._process.wait()

    def take(self, config: BrokerConfig) -> None:
        """These are its settings now, but for what was found while it started; its certificates it takes anew, too."""
        process = self._process
        if process is not None and process.returncode is None and process.stdin is not None:
            process.stdin.write(_line(_as_found(config, self._begun_with)))
        self.config = _as_found(config, self.config)

    def miss(self, error: ConfigError) -> None:
        """The settings cannot be read, for this: its certificates it takes anew."""
        process = self._process
        if process is not None and process.returncode is None and process.stdin is not None:
            process.stdin.write(json.dumps({"unread": f"{error} {error.hint}".rstrip()}).encode() + b"\n")

    async def stop(self) -> None:
        """Have it stop as SIGTERM has it, also where somebody has halted it; killed after `STOP_S`."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        process.send_signal(signal.SIGCONT)
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            log.error("broker did not stop name=%s", self.name)
            process.kill()
            await process.wait()


class Supervisor:
    """The registry, and the brokers that register with it."""

    def __init__(
        self,
        brokers: Sequence[BrokerConfig],
        registry: RegistryConfig,
        read: Read,
        beside: Beside | None = None,
        engine: OwnEngine | None = None,
    ) -> None:
        self._configs = brokers
        self._read = read
        self._engine = engine
        self._beside = beside
        self._registry = _with_certificate(brokers, registry)
        self._members: list[Member] = []

    async def run(self, stop: asyncio.Event) -> None:
        """Start all, print the `ready` line, keep them running until told to stop.

        PenstockError when a broker cannot be started at first, StoreError when the registry cannot go on.
        """
        notify = Notify()
        async with Server(None, self._registry) as server:
            try:
                if not await _unless(stop, self._start(server)):
                    return
                reloading = Reloading(server, (None, self._registry), lambda: (None, self._registry))
                heed_hangup(notify.around(partial(self._reload, server, reloading)))
                addresses = self._ready(server.addresses)
                announce(addresses)
                if self._beside is not None:
                    self._beside(addresses)
                notify.ready()
                watches = [asyncio.create_task(self._watch(member)) for member in self._members]
                if self._engine is not None:
                    watches.append(asyncio.create_task(self._engine.watch()))
                try:
                    await server.run_until(stop)
                finally:
                    for watch in watches:
                        watch.cancel()
                    await asyncio.gather(*watches, return_exceptions=True)
            finally:
                notify.stopping()
                log.info("stopping")
                if self._engine is not None:  # before them: none need hand its place to one that stops, too
                    await self._engine.stop()
                await asyncio.gather(*(member.stop() for member in self._members))

    def _reload(self, server: Server, reloading: Reloading) -> None:
        """SIGHUP: read all settings again; here are the registry's, each broker is told its own and says what changed. Where they
        cannot be read all take their certificates anew, and nothing else.
        """
        try:
            configs, registry = self._read()
            self._registry = _with_certificate(configs, registry)
        except ConfigError as error:
            log.error("settings not read, all stay as they were error=%s %s", error, error.hint)
            server.renew()
            for member in self._members:
                member.miss(error)
            return
        reloading.at_signal()
        for member, config in zip(self._members, configs, strict=True):
            member.take(config)

    async def _start(self, server: Server) -> None:
        if self._engine is not None:
            await self._engine.start()
            self._configs = [replace(config, engine=self._engine.setting) for config in self._configs]
        registry = server.addresses
        for config in self._configs:
            registries = ";".join(filter(None, (config.registry, registry.get("registry"))))
            lookups = ";".join(filter(None, (config.lookupd_tcp_address, registry.get("lookup"))))
            self._members.append(Member(replace(config, registry=registries, lookupd_tcp_address=lookups)))
        starts = [asyncio.create_task(member.start()) for member in self._members]
        try:
            for start in asyncio.as_completed(starts):
                if (failure := await start) is not None and not _is_its_own(failure):
                    raise failure
        finally:
            for task in starts:
                task.cancel()
        running = [member for member in self._members if not member.failure]
        failed = [member for member in self._members if member.failure]
        if not running:
            raise PenstockError("; ".join(member.failure for member in failed))
        for member in failed:
            log.critical(
                "broker not started, the others run without it name=%s data=%s error=%s: what it holds is out of sight, and it "
                "is tried again; mend it, or move its folder away and start anew",
                member.name, member.config.data, member.failure,
            )  # fmt: skip
        # A new topic is made where the first messages go: a producer shall know all brokers from the first one on.
        names = {member.config.broker_name for member in running if "remoting" in member.addresses}
        deadline = asyncio.get_running_loop().time() + REGISTERED_S
        while "registry" in registry and not names <= server.registered():
            if asyncio.get_running_loop().time() > deadline:
                log.warning("not all brokers are registered missing=%s", ",".join(sorted(names - server.registered())))
                break
            await asyncio.sleep(0.01)

    def _ready(self, registry: dict[str, str]) -> dict[str, object]:
        each = [
            {
                "name": m.config.broker_name,
                "data": m.config.data,
                **m.addresses,
                **({"error": m.failure} if m.failure else {}),
            }
            for m in self._members
        ]
        runs = next(one for one in each if "error" not in one)
        first = {name: runs[name] for name in _LISTENERS if name in runs}
        return {**first, **registry, "brokers": each}

    async def _watch(self, member: Member) -> None:
        loop = asyncio.get_running_loop()
        pause_s, since_s = 0.0, loop.time()
        while True:
            code = await member.ended()
            name = member.name
            steady = loop.time() - since_s > STEADY_S
            pause_s = RESTART_S if steady or not pause_s else min(2 * pause_s, RESTART_MAX_S)
            log.error("broker ended name=%s code=%d restart_s=%g", name, code, pause_s)
            await asyncio.sleep(pause_s)
            since_s = loop.time()
            member.restarts += 1
            failure = await member.start()
            if failure is not None:
                log.error("broker not started again name=%s error=%s", name, failure)
            else:
                log.warning("broker started again name=%s restarts=%d", name, member.restarts)


def supervise(
    brokers: Sequence[BrokerConfig],
    registry: RegistryConfig,
    read: Read,
    *,
    beside: Beside | None = None,
    engine: OwnEngine | None = None,
) -> None:
    """Run until SIGTERM or SIGINT. `read`: reads the settings of all anew, as many as there are, for SIGHUP."""
    prepare()
    log_to_stderr(registry.log_level, log_format=registry.log_format)

    async def main() -> None:
        await Supervisor(brokers, registry, read, beside, engine).run(stop_event())

    runner()(main())


async def _unless(stop: asyncio.Event, work: Awaitable[None]) -> bool:
    """Do this work, unless told to stop before it is done; whether it was done."""
    doing, told = asyncio.ensure_future(work), asyncio.create_task(stop.wait())
    await asyncio.wait((doing, told), return_when=asyncio.FIRST_COMPLETED)
    done = doing.done()
    for task in (told, doing):
        task.cancel()
    await asyncio.gather(told, return_exceptions=True)
    with suppress(asyncio.CancelledError):
        await doing
    return done


def _with_certificate(brokers: Sequence[BrokerConfig], registry: RegistryConfig) -> RegistryConfig:
    with_tls = next((config for config in brokers if config.tls_cert or config.tls_key), None)
    return registry if with_tls is None else share_certificate(with_tls, registry)


def _as_found(config: BrokerConfig, found: BrokerConfig) -> BrokerConfig:
    return replace(config, **{name: getattr(found, name) for name in _FOUND})


def _name_of(config: BrokerConfig) -> str:
    """What tells it from the others: the nodes of a replica set have one broker_name."""
    return config.node if config.ha_port >= 0 and config.node else config.broker_name


def _line(config: BrokerConfig) -> bytes:
    return json.dumps(asdict(config)).encode() + b"\n"


def _port(addresses: dict[str, object], name: str) -> int:
    address = str(addresses.get(name, "/"))
    return 0 if "/" in address else int(address.rpartition(":")[2])


# -- in the broker's process ---------------------------------------------------------------------------------------------

_INPUT, _LINE_MAX = 0, 1 << 24


def member() -> None:
    """Run the broker whose settings are the first line of standard input, until that ends; another line has it take them."""
    hold_hangup()
    newest = _first_line()
    config = _config_of(newest)
    name = _name_of(config)
    rest = bytearray()

    def told(data: bytes) -> None:
        nonlocal newest
        rest.extend(data)
        *lines, last = bytes(rest).split(b"\n")
        rest[:] = last
        if lines:
            newest = lines[-1]
            os.kill(os.getpid(), signal.SIGHUP)

    try:
        run(config, None, ends_with=_INPUT, log_as=name, read=lambda: (_config_of(newest), None), told=told)
    except PenstockError as error:
        failure = {"kind": type(error).__name__, "text": f"{name}: {error}", "hint": error.hint}
        print("failed", json.dumps(failure), flush=True)
        log.critical("broker ends name=%s error=%s", name, error)
        sys.exit(1)


def _config_of(line: bytes) -> BrokerConfig:
    """The settings that a line tells. ConfigError where it tells why there are none."""
    values = json.loads(line)
    if "unread" in values:
        raise ConfigError(values["unread"])
    return BrokerConfig(**{**values, "topic": tuple(values["topic"])})


def _first_line() -> bytes:
    """Read byte by byte up to the end of the line: a buffer would take what comes behind it, and hide the end."""
    line = bytearray()
    while len(line) < _LINE_MAX and (byte := os.read(_INPUT, 1)) and byte != b"\n":
        line += byte
    return bytes(line)


def _is_its_own(failure: PenstockError) -> bool:
    """Whether it is about what one broker holds: the others can do without it. A wrong setting, a port that is taken, a folder
    that is in use are for the one who starts them all.
    """
    return isinstance(failure, StoreError) and not isinstance(failure, Locked)


def _failure(line: bytes) -> PenstockError | None:
    """The error of a broker that could not start, as it is told on its standard output."""
    if not line.startswith(b"failed "):
        return None
    said = json.loads(line.removeprefix(b"failed "))
    kind: type[PenstockError] = getattr(errors, said["kind"], PenstockError)
    if kind is ConfigError or kind is Locked:
        return kind(said["text"], said["hint"])
    made_of_text = kind.__init__ is PenstockError.__init__
    if made_of_text:
        return kind(said["text"])
    return StoreError(said["text"]) if issubclass(kind, StoreError) else PenstockError(said["text"])


if __name__ == "__main__":
    member()
