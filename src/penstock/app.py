"""Builds the roles of a process and stops them again, in reverse.

Start: bind the ports → lock and open the store (repair, dispatch) → tables → listeners → timers → registration.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from msgspec.structs import replace

from penstock.access.rights import Rights, read_rights
from penstock.broker.broker import Broker
from penstock.broker.clock import BrokerClock
from penstock.broker.replica import check_role, copied, placed, seated
from penstock.clock import Clock
from penstock.config import BrokerConfig, RegistryConfig, parts
from penstock.disk.files import Files
from penstock.disk.folderlock import FolderLock
from penstock.errors import ConfigError, Locked, StoreError
from penstock.fronts.flags import broadcast_address, is_every_address
from penstock.fronts.soundness import check_settings
from penstock.limits import Limits, limits_of
from penstock.listeners import Ports, address_of, bind, port_of
from penstock.net import Net
from penstock.process import Process
from penstock.security import security_of
from penstock.tls import Door, Tls, door, server_tls, share_certificate
from penstock.wire.addresses import host_in

if TYPE_CHECKING:  # a process imports the roles it has: that is half the time of a start
    from penstock.fronts.front import Front
    from penstock.fronts.http.nsqd import NsqHttp
    from penstock.fronts.lookupd import Lookupd
    from penstock.fronts.site import Answer, Site
    from penstock.httpd import Httpd
    from penstock.log.contents import Recovery
    from penstock.registration.announce import Announcer
    from penstock.registration.election import Election
    from penstock.registration.registrar import Registrar, Registration

log = logging.getLogger("penstock.app")


Config = TypeVar("Config", BrokerConfig, RegistryConfig)
Run = Callable[[Coroutine[object, object, None]], None]


class Server:
    """A registry, a broker, or both, running in the present event loop.

    `addresses` says where: {"registry": "127.0.0.1:9876", "remoting": …, "nsq": …, "http": …}. Use as `async with`.
    """

    def __init__(
        self,
        broker: BrokerConfig | None = None,
        registry: RegistryConfig | None = None,
        *,
        files: Files | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._election: Election | None = None  # it outlives a change of role
        self._ports = Ports()  # so do these
        self._files, self._clock = files or Files(), clock or Clock()
        self._time = BrokerClock(self._clock)
        self.addresses: dict[str, str] = {}
        self._begin(broker, registry)

    def _begin(self, broker: BrokerConfig | None, registry: RegistryConfig | None) -> None:
        """What each start begins with."""
        self._broker_config, self._registry_config = broker, registry
        self._stack = AsyncExitStack()
        self._limits = Limits() if broker is None and registry is None else limits_of(broker or registry)
        self._rights = _rights(broker or registry, self._limits)
        self._process = Process(self._clock, self._stop, self._rights)
        self._bound: dict[str, socket.socket] = {}
        self._tls: list[Tls] = []
        self._ha_door = Door(tls=None, plain=False)
        self.broken = ""  # why this server cannot go on
        self.again = ""  # why it is to be started anew
        self._over: asyncio.Event | None = None
        self.broker: Broker | None = None
        self.recovery: Recovery | None = None
        self.announcer: Announcer | None = None  # nsqlookupds are told

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def _stop(self, why: str) -> None:
        """What cannot be mended: `broken` says why, and `run_until` ends."""
        log.critical("this process cannot go on reason=%s", why)
        self.broken = self.broken or why
        if self._over is not None:
            self._over.set()

    def start_again(self, why: str) -> None:
        """End `run_until`, so that this server is closed and started anew: its role has changed."""
        self.again = self.again or why
        if self._over is not None:
            self._over.set()

    def prepare_again(self) -> None:
        """It was closed, and is to be started anew, on the same ports. What was changed since its start stays so."""
        ports = {f"{name}_port": port_of(self.addresses[name]) for name in self._bound}
        broker = _as_changed(_with_ports(self._broker_config, ports), self.broker)
        self._time = self.broker.time if self.again and self.broker is not None else BrokerClock(self._clock)
        self._begin(broker, _with_ports(self._registry_config, ports))

    async def run_until(self, stop: asyncio.Event) -> None:
        """Return when told to stop. StoreError when something failed that cannot be mended while running."""
        self._over = asyncio.Event()
        if self.broken or self.again:
            self._over.set()
        waits = [asyncio.ensure_future(event.wait()) for event in (stop, self._over)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if self.broken:
            raise StoreError(f"{self.broken}; stopped. What was acknowledged is stored: start again")

    async def leave_engine(self) -> None:
        """It is not started anew."""
        self._ports.give_up()
        if self._election is not None:
            await self._election.close()

    async def hand_over(self) -> None:
        """The process is to end: where an engine decides, a slave in sync becomes the master first."""
        mastership = self.broker.mastership if self.broker is not None else None
        if self._election is not None and self._election.leads and mastership is not None:
            from penstock.registration.campaign import hand_over

            await hand_over(self.net, mastership, self._election)

    @property
    def renewable(self) -> bool:
        """Whether there are certificates."""
        return bool(self._tls)

    def renew(self) -> None:
        """Take the certificates as they are now, for the connections to come; one that cannot be used changes nothing."""
        for tls in self._tls:
            tls.reload()

    def change_settings(self, values: Mapping[str, int], limits: Collection[str]) -> None:
        """Settings that hold from now on; those of `limits` are of connections and numbers."""
        self._limits.change({name: value for name, value in values.items() if name in limits})
        if self.broker is not None:
            known = {name: value for name, value in values.items() if hasattr(self.broker.config, name)}
            self.broker.core.change(known)

    def registered(self) -> set[str]:
        """The names of the brokers that the registry knows."""
        name_server = self._process.name_server
        clusters = {} if name_server is None else name_server.routes.clusters()
        return {name for names in clusters.values() for name in names}

    async def _start(self, stack: AsyncExitStack) -> None:
        stack.callback(lambda: None if self.again else self._ports.give_up())
        registry, config = self._registry_config, self._broker_config
        check_settings(config, registry)
        if registry is not None and config is not None:
            registry = share_certificate(config, registry)
        if registry is not None:
            self._bind_registry(stack, registry)
        if config is not None:
            config = self._bind_broker(stack, config)
        net = self.net = Net(self._process, self._limits)
        stack.push_async_callback(net.close)  # before the sockets it listens on are closed
        lookupd = None if registry is None else await self._start_registry(net, stack, registry)
        if config is not None:
            await self._start_broker(net, stack, config, lookupd)
        _hold(registry, self._files, stack)
        net.start()

    # -- ports first: a port that is taken is known before the store is opened -------------------------------------

    def _bind(self, stack: AsyncExitStack, name: str, host: str, port: int, insecure: bool) -> None:
        if port < 0 and "/" not in host:
            return
        listener = self._bound[name] = self._ports.bind(name, host, port, insecure, _option(name))
        stack.callback(listener.close)
        self.addresses[name] = address_of(listener)

    def _bind_registry(self, stack: AsyncExitStack, config: RegistryConfig) -> None:
        host, insecure = config.host, config.insecure or self._rights.on
        self._bind(stack, "registry", host, config.registry_port, insecure)
        self._bind(stack, "lookup", config.lookup_host or host, config.lookup_port, insecure)
        self._bind(stack, "lookup_http", config.lookup_http_host or host, config.lookup_http_port, insecure)

    def _bind_broker(self, stack: AsyncExitStack, config: BrokerConfig) -> BrokerConfig:
        """Binds the ports; the settings with the real ones."""
        config = _with_role(check_role(config), self._files, self._election)
        host, insecure = config.host, config.insecure or self._rights.on
        self._bind(stack, "remoting", host, config.remoting_port, insecure)
        self._bind(stack, "nsq", config.nsq_host or host, config.nsq_port, insecure)
        self._bind(stack, "http", config.http_host or host, config.http_port, insecure)
        if config.tls_cert or config.tls_key:
            self._bind(stack, "https", config.https_host or host, config.https_port, insecure)
        self._bind(stack, "ha", config.ha_host or host, config.ha_port, insecure)
        names = [name for name in ("remoting", "nsq", "http", "https", "ha") if name in self.addresses]
        return replace(config, **{f"{name}_port": port_of(self.addresses[name]) for name in names})  # type: ignore[arg-type]

    # -- the roles -------------------------------------------------------------------------------------------------

    async def _start_registry(self, net: Net, stack: AsyncExitStack, config: RegistryConfig) -> Lookupd | None:
        process, bound = self._process, self._bound
        tls = self._make_tls(config)
        if "registry" in bound:
            from penstock.fronts.namesrv import NameServer
            from penstock.fronts.remoting.session import RemotingSession

            name_server = NameServer(
                Path(config.data) / "namesrv",
                files=self._files,
                foreign_addresses=config.foreign_addresses,
                changeable=lambda: self._rights.on,
            )
            process.take(name_server=name_server)
            await net.listen(
                bound["registry"],
                lambda remote, wake: RemotingSession(process, remote, wake, self._rights, self._limits),
                "registry",
                **door(config.registry_tls, "registry_tls", tls),
            )
        if "lookup" not in bound and "lookup_http" not in bound:
            return None
        from penstock.fronts.lookupd import Lookupd, LookupHttp
        from penstock.registry.producers import ProducerTables

        lookupd = Lookupd(
            ProducerTables(config.inactive_producer_timeout_ms, config.tombstone_lifetime_ms),
            clock=self._clock,
            broadcast_address=config.broadcast_address,
            rights=self._rights,
            limits=self._limits,
        )
        lookupd.tcp_port = port_of(self.addresses.get("lookup", ":0"))
        lookupd.http_port = port_of(self.addresses.get("lookup_http", ":0"))
        lookup_door = door(config.lookup_tls, "lookup_tls", tls)
        if "lookup" in bound:
            await net.listen(bound["lookup"], lookupd.session, "lookupd", **lookup_door)
        if "lookup_http" in bound:
            site = LookupHttp(lookupd, allowed_hosts=parts(config.allowed_hosts), begin=net.begin)
            site.found_at(net, None if process.name_server is None else process.name_server.routes)
            await self._listen_http(net, stack, "lookup_http", site, **lookup_door)
        return lookupd

    async def _start_broker(
        self, net: Net, stack: AsyncExitStack, config: BrokerConfig, lookupd: Lookupd | None
    ) -> None:
        process, bound = self._process, self._bound
        tls = self._make_tls(config)
        remoting = door(config.remoting_tls, "remoting_tls", tls)
        self._ha_door = door(config.ha_tls, "ha_tls", tls)
        if config.engine:
            election = self._election = self._election or _election(config, self._clock)
            stack.push_async_exit(partial(_leave_engine, election, lambda: bool(self.again)))
        broker = self.broker = Broker(config, files=self._files, time=self._time, limits=self._limits)
        process.take(broker=broker)
        self.recovery = broker.open()
        # Closed after the network: nothing is appended any more, and every answer is out.
        stack.callback(broker.close)
        stack.push_async_callback(net.close)
        stack.callback(broker.store.upkeep.hasten)
        if _in_a_set(self._bound, broker):
            _wait_for_a_role(broker, self.recovery)
        http = None
        if "http" in bound or "https" in bound or config.statsd_address:
            http = await self._start_http(net, stack, config, broker, tls)
        await self._start_announcer(stack, config, broker, http, lookupd)
        if "nsq" in bound:
            await self._start_nsq(net, stack, config, broker, http, tls)
        if "remoting" in bound:
            await self._start_remoting(net, stack, config, broker, remoting)
        if self.announcer is not None:  # it is known now whether this is a master, and of which epoch
            self.announcer.set_peers(parts(config.lookupd_tcp_address))

    def _make_tls(self, config: BrokerConfig | RegistryConfig) -> Tls | None:
        """The TLS of a role's listeners."""
        tls = server_tls(config)
        if tls is not None:
            self._tls.append(tls)
        return tls

    def add_front(self, front: Front, http: NsqHttp | None = None) -> None:
        """Let a protocol have its part of each turn; `net.listen(listener, front.session, front.name)` opens its door."""
        self._process.add_front(front)
        if http is not None:
            http.count_rejections(front.name, front.rejected)

    async def _start_nsq(
        self, net: Net, stack: AsyncExitStack, config: BrokerConfig, broker: Broker, http: NsqHttp | None,
        tls: Tls | None,
    ) -> None:  # fmt: skip
        from penstock.fronts.nsq.front import TOO_MANY, NsqFront

        ask = None
        if config.auth_http_address:
            from penstock.authority import Authority

            authority = Authority(config, net.begin)
            ask = authority.ask
            stack.push_async_callback(authority.close)
        front = NsqFront(broker, tls, ask, self._rights)
        self.add_front(front, http)
        await net.listen(self._bound["nsq"], front.session, front.name, refusal=TOO_MANY)

    async def _start_remoting(
        self, net: Net, stack: AsyncExitStack, config: BrokerConfig, broker: Broker, opened: Door
    ) -> None:
        from penstock.fronts.remoting.front import BrokerFront
        from penstock.registration.registrar import Registrar, Registration, RouteNeighbour

        process = self._process
        front = BrokerFront(broker, self._rights)
        self.add_front(front)
        stack.callback(front.leave)
        self.addresses["remoting"] = _told_to_clients(self.addresses["remoting"], config)
        await net.listen(self._bound["remoting"], front.session, "remoting", **opened)
        if self._broker_config is not None and self._broker_config.remoting_port > 2 and config.vip_port:
            await _listen_vip(net, config, self._rights.on, front, opened)
        registration = Registration(
            broker, self.addresses["remoting"], _nsq_address(self.addresses, config),
            _advertised(self.addresses.get("ha", ""), config),
        )  # fmt: skip
        await self._start_ha(net, stack, broker, registration)
        if process.name_server is not None:
            neighbour = RouteNeighbour(registration, process.name_server)
            process.tell_news(neighbour)
            neighbour.tick(process.mono_ms)
        for name in parts(config.registry):
            registrar = Registrar(net, registration, name, security_of(config.security or None))
            task = asyncio.create_task(registrar.run())
            stack.push_async_callback(_stop_registrar, registrar, task, lambda: bool(self.again))

    async def _start_ha(self, net: Net, stack: AsyncExitStack, broker: Broker, registration: Registration) -> None:
        """Replication, where this broker has slaves or is one. Behind the other fronts: what they hold waits for it."""
        if not _in_a_set(self._bound, broker):
            return
        from penstock.registration.replication import begin, elect, make_front

        assert self.recovery is not None
        front = make_front(broker, registration, self.start_again)
        self.add_front(front)
        if self._election is not None:
            go_on = await elect(net, front, registration, self._election, self.start_again)
            task = asyncio.create_task(go_on())
        else:
            task = await begin(net, front, registration, lossy=self.recovery.lossy)
        if self.announcer is not None and broker.config.role != "slave":
            self.announcer.lead(front.replica.set_id.hex(), front.replica.epoch)
        task.add_done_callback(partial(_demand_no_error, self._stop))
        stack.push_async_callback(_cancelled, task)
        if "ha" in self._bound and not self.again:
            await net.listen(self._bound["ha"], front.session, front.name, **self._ha_door)

    async def _start_http(
        self, net: Net, stack: AsyncExitStack, config: BrokerConfig, broker: Broker, tls: Tls | None
    ) -> NsqHttp:
        from penstock.fronts.http.nsqd import NsqHttp, tls_required

        http = NsqHttp(broker, begin=net.begin, rights=self._rights)
        http.found_at(net, *(port_of(self.addresses.get(name, ":-1")) for name in ("nsq", "http", "https")))
        if "https" in self._bound:
            await self._listen_http(net, stack, "https", http, tls=tls)
        if "http" in self._bound:
            refusal = tls_required(http.https_port) if config.tls_required == "true" else None
            await self._listen_http(net, stack, "http", http, refusal=refusal)
        if config.statsd_address:
            from penstock.statsd import Statsd

            task = asyncio.create_task(Statsd(http).run())
            stack.push_async_callback(_cancelled, task)
        return http

    async def _listen_http(
        self,
        net: Net,
        stack: AsyncExitStack,
        name: str,
        site: Site,
        *,
        tls: Tls | None = None,
        plain: bool = False,
        refusal: Answer | None = None,
    ) -> None:
        """Accept at once; uvicorn, which takes a third of a start to import, comes after the `ready` line."""
        made: list[Httpd] = []

        def httpd() -> Httpd:
            if not made:
                from penstock.httpd import Httpd

                made.append(Httpd(net, site, refusal))
            return made[0]

        async def close() -> None:
            soon.cancel()
            if made:
                await made[0].close()

        await net.serve(self._bound[name], lambda: httpd().connection(), tls, plain, spare=True)
        soon = net.loop.call_later(0.05, httpd)  # the greeting of the registries must not wait for an import
        stack.push_async_callback(close)

    async def _start_announcer(
        self, stack: AsyncExitStack, config: BrokerConfig, broker: Broker, http: NsqHttp | None, lookupd: Lookupd | None
    ) -> None:
        """Tell nsqlookupds of our topics, if we speak NSQ at all."""
        if "nsq" not in self._bound:
            return
        from penstock.registration.announce import Announcer
        from penstock.wire.names import NSQD_VERSION

        identity = {
            "broadcast_address": broadcast_address(config),
            "hostname": socket.gethostname(),
            "http_port": config.broadcast_http_port or config.http_port,
            "tcp_port": config.broadcast_tcp_port or config.nsq_port,
            "topology_region": config.topology_region,
            "topology_zone": config.topology_zone,
            "version": NSQD_VERSION,
        }
        announcer = Announcer(
            broker,
            identity,
            neighbour=lookupd,
            remote=self.addresses["nsq"],
            security=security_of(config.security or None),
        )
        self.announcer = announcer
        if announcer.neighbour is not None:
            self._process.tell_news(announcer.neighbour)
            announcer.neighbour.tick(self._process.mono_ms)
        if http is not None:
            http.settings.tell_lookups(announcer.set_peers)
        stack.push_async_callback(announcer.close)


def _told_to_clients(address: str, config: BrokerConfig) -> str:
    """Where name servers send clients."""
    if config.advertise:
        return f"{host_in(config.advertise)}:{config.remoting_port}"
    if is_every_address(config.host):
        log.warning("clients of other machines are told an address of their own: set advertise address=%s", address)
    return address


def _advertised(address: str, config: BrokerConfig) -> str:
    """A listener's address as others reach it; empty where there is none."""
    return f"{host_in(config.advertise)}:{port_of(address)}" if config.advertise and address else address


def _nsq_address(addresses: Mapping[str, str], config: BrokerConfig) -> str:
    """Where our clients of queue topics are sent; empty without an NSQ listener, or on a Unix socket."""
    address = addresses.get("nsq", "")
    if config.advertise and address and "/" not in address:
        address = f"{host_in(config.advertise)}:{config.nsq_port}"
    return "" if "/" in address else address


async def _listen_vip(net: Net, config: BrokerConfig, guarded: bool, front: Front, opened: Door) -> None:
    """Old Java clients send to the port two below (rocketmq.md §2.1); where it is taken they are on their own."""
    try:
        listener = bind(config.host, config.remoting_port - 2, config.insecure or guarded, "--remoting-port")
    except ConfigError as error:
        log.warning("no VIP port error=%s", error)
        return
    try:
        await net.listen(listener, front.session, "remoting", **opened)  # which closes it in the end
    except (OSError, ConfigError) as error:  # whoever bound it, too, was quicker
        listener.close()
        log.warning("no VIP port error=%s", error)


async def _stop_registrar(registrar: Registrar, task: asyncio.Task[None], again: Callable[[], bool]) -> None:
    await _cancelled(task)
    if not again():  # another node may have its place at the registry now
        await registrar.leave()


def _option(listener: str) -> str:
    """How another port is chosen on the command line."""
    if listener in ("https", "ha"):
        return f"--set {listener}_port=…"
    return f"--{listener.replace('_', '-')}-port"


def _hold(config: RegistryConfig | None, files: Files, stack: AsyncExitStack) -> None:
    """Have the folder of a name server until the end, once nothing is left that could keep it from starting; where nothing can
    be written, nobody needs it. Locked: another one has it.
    """
    if config is None or config.registry_port < 0:
        return
    folder = Path(config.data) / "namesrv"
    try:
        files.make_folder(folder, durable=False)
        stack.callback(FolderLock(folder / "lock", files, "registry").release)
    except Locked:
        raise
    except StoreError as error:  # it says so again when it is told something to keep
        log.warning("the registry keeps nothing error=%s", error)


def _in_a_set(bound: Mapping[str, socket.socket], broker: Broker) -> bool:
    """Whether it is one of a replica set, or was: then another node may be the master, though nobody can follow this one."""
    if "remoting" not in bound:
        return False
    config = broker.config
    return config.role == "slave" or "ha" in bound or bool(config.engine) or copied(broker.files, broker.folder)


def _wait_for_a_role(broker: Broker, recovery: Recovery) -> None:
    """Until it is known that no other node is the master by now, and of which epoch what is appended is. The ports are open
    already: a client that has lost its master comes in the same moment.
    """
    from penstock.registration.replication import belong

    broker.store.follow(True)
    belong(broker, lossy=recovery.lossy)


def _with_role(config: BrokerConfig, files: Files, election: Election | None) -> BrokerConfig:
    """The settings with the role that the engine gives, or the folder. ConfigError for an engine that cannot be."""
    if not config.engine:
        return placed(config, files, Path(config.data))
    from penstock.registration.engine import check_engine

    check_engine(config)
    return seated(config, election is not None and election.leads)


def _election(config: BrokerConfig, clock: Clock) -> Election:
    from penstock.registration.election import Election
    from penstock.registration.etcd import Etcd
    from penstock.registration.replication import node_of

    return Election(config, node_of(config), clock, Etcd(config))


async def _leave_engine(election: Election, again: Callable[[], bool], *error: object) -> None:
    if not again() or error[0] is not None:  # where it is started anew, it goes on
        await election.close()


def _demand_no_error(stop: Callable[[str], None], task: asyncio.Task[None]) -> None:
    """A node that nobody tells any more who is the master, or that tells nobody, must not stay as it is: it starts again."""
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("what follows, leads or stands for it has ended", exc_info=error)
        stop(f"replication ended: {error!r}")


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _with_ports(config: Config | None, ports: Mapping[str, int]) -> Config | None:
    """The settings with those of the ports that are theirs."""
    if config is None:
        return None
    return replace(config, **{name: port for name, port in ports.items() if hasattr(config, name)})  # type: ignore[arg-type]


def _as_changed(config: BrokerConfig | None, broker: Broker | None) -> BrokerConfig | None:
    """The settings with what was changed since the start; which id a slave has, its master says again."""
    if config is None or broker is None:
        return config
    changed = {name: value for name, value in broker.core.changed.items() if name != "broker_id"}
    return replace(config, **changed)  # type: ignore[arg-type]


def _rights(config: BrokerConfig | RegistryConfig | None, limits: Limits) -> Rights:
    """The users of a process. ConfigError for a file of them that cannot be used."""
    if config is None:
        return Rights()
    return read_rights(config.users, config.data, config.failed_logins_per_minute, limits)


def runner() -> Run:
    """What runs a coroutine to its end: uvloop where there is one, else asyncio: same protocol classes."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    run: Run = uvloop.run
    return run
