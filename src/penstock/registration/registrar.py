"""Keeps a broker registered with RocketMQ registries: those it is told of, over a connection, and the one of its own process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.broker.broker import Broker
from penstock.errors import WireError
from penstock.fronts.namesrv import NameServer
from penstock.net import Net
from penstock.registration.caller import Caller
from penstock.security import PLAIN, Security
from penstock.wire import fastjson
from penstock.wire.codes import LanguageCode, RequestCode
from penstock.wire.remoting import RemotingCommand

log = logging.getLogger("penstock.app")

RECONNECT_S = 1.0
ID_DIGITS = 9


class News:
    """What one registry has not been told yet, and `ring` is called for."""

    def __init__(self, registration: Registration, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._topics: dict[bytes, None] | None = None
        self._queues: dict[bytes, None] | None = None
        self._whole_only = False
        registration.broker.topics.changed.append(self._topic)
        registration.on_new_queues(self._queue)

    def everything(self) -> None:
        """It may know nothing."""
        self._topics = self._queues = None

    def refused(self) -> None:
        """It does not take what we say: all from now on, in case it is one that knows of no changes of queue topics."""
        self._whole_only = True
        self.everything()

    def _topic(self, name: bytes) -> None:
        if self._topics is not None:
            self._topics[name] = None
        self._ring()

    def _queue(self, name: bytes) -> None:
        if self._whole_only:
            self._queues = None
        elif self._queues is not None:
            self._queues[name] = None
        self._ring()

    def queues_alone(self) -> list[bytes]:
        """The queue topics that came or went, when nothing else is to be told."""
        return list(self._queues) if self._queues and self._topics is not None and not self._topics else []

    def take(self) -> tuple[list[bytes] | None, list[bytes] | None]:
        """(the log topics to be told of, the queue topics that came or went), None for all, and they count as told."""
        topics = None if self._topics is None else list(self._topics)
        queues = None if self._queues is None else list(self._queues)
        self._topics, self._queues = {}, {}
        return topics, queues


class Registration:
    """What a broker says of itself to a registry, and what it takes from the answer."""

    def __init__(self, broker: Broker, address: str, nsq_address: str = "", ha_address: str = "") -> None:
        self.broker = broker
        self.address = address
        self.nsq_address = nsq_address
        self.ha_address = ha_address  # where slaves connect
        self.master_address = ""  # of a slave: where its master answers, as a registry says
        self.seeking: Callable[[], bool] = lambda: False  # whether the registry is asked again and again for a master
        self.on_seek: list[Callable[[], None]] = []
        self.on_master: list[
            Callable[[str], None]
        ] = []  # told where the registry says that the master's slaves connect
        self.on_rival: list[Callable[[int], None]] = []  # told which id is free, when another broker has ours
        self._queues: set[bytes] = set()  # the queue topics there are
        self._on_queue: list[Callable[[bytes], None]] = []
        broker.queueing.announce.append(self._announced)
        self._asked: list[bytes] | None = None  # topics that the registry was told of last; None for all
        self._ordered: set[bytes] = set()
        self._remark = ""
        # Registries that said another id the last time: this one may be the end of it.
        self._renumbered: set[str] = set()

    def _names(self) -> dict[str, str]:
        config = self.broker.config
        return {
            "brokerAddr": self.address,
            "brokerId": str(config.broker_id),
            "brokerName": config.broker_name,
            "clusterName": config.cluster_name,
        }

    def request(self, news: News) -> RemotingCommand:
        """Here I am, with these topics: all, or those that are new or changed since the last time. As RocketMQ's brokers
        do, and as every registry takes it: topics that are not named stay.
        """
        topics, queues = news.take()
        self._asked = topics
        told: dict[str, object] = {
            "filterServerList": [],
            "topicConfigSerializeWrapper": self.broker.topics.as_table(names=topics),
        }
        if self.nsq_address and queues is None:  # ours: where clients of queue topics find us
            found = self.broker.queueing.topics.values()
            self._queues = {topic.name for topic in found if topic.kind == "queue"}
            told["nsq"] = {"address": self.nsq_address, "topics": sorted(name.decode() for name in self._queues)}
        elif self.nsq_address and queues:
            told["nsq"] = {"address": self.nsq_address, "changes": self.changes(queues)}
        body = fastjson.dumps(told)
        ext = self._names() | {"bodyCrc32": "0", "compressed": "false", "haServerAddr": self.ha_address}
        copies = self.broker.copies
        if copies.replica is not None and not copies.following:
            ext["epoch"] = str(copies.replica.epoch)
        return RemotingCommand(RequestCode.REGISTER_BROKER, ext, body, language=LanguageCode.JAVA)

    def seek(self, seeking: Callable[[], bool], hear: Callable[[str], None]) -> None:
        """A slave: `hear` where its master's slaves connect, and ask every second while `seeking`."""
        self.seeking = seeking
        self.on_master.append(hear)

    def ask_again(self) -> None:
        """Register at once: the master may be elsewhere now."""
        for call in self.on_seek:
            call()

    def on_new_queues(self, call: Callable[[bytes], None]) -> None:
        """`call` when a queue topic came or went; channels come and go unheard."""
        self._on_queue.append(call)

    def _announced(self, name: bytes) -> None:
        topic = self.broker.queueing.topics.get(name)
        there = topic is not None and topic.kind == "queue"
        if there != (name in self._queues):
            (self._queues.add if there else self._queues.discard)(name)
            for call in self._on_queue:
                call(name)

    def changes(self, queues: list[bytes]) -> dict[str, bool]:
        """Which of these queue topics are there."""
        return {name.decode(): name in self._queues for name in queues}

    def goodbye(self) -> RemotingCommand:
        """I am leaving."""
        return RemotingCommand(RequestCode.UNREGISTER_BROKER, self._names(), language=LanguageCode.JAVA)

    def take(self, reply: RemotingCommand, registry: str = "") -> None:
        """Order topics are kept at the registry; it tells which they are (rocketmq.md §9.7)."""
        free = reply.ext.get("freeBrokerId", "")
        given = free.isascii() and free.isdigit() and len(free) <= ID_DIGITS
        lasts = not (given and self.on_rival) or registry in self._renumbered
        if (reply.remark or "") != self._remark and lasts:
            self._remark = reply.remark or ""
            if self._remark:
                log.error("the registry says: %s", self._remark)
        self._renumbered.discard(registry)
        if given:
            self._renumbered.add(registry)
            for rival in self.on_rival:
                rival(int(free))
        self.master_address = reply.ext.get("masterAddr", "") or self.master_address
        for call in self.on_master:
            call(reply.ext.get("haServerAddr", ""))
        if reply.body:
            ordered = {name.encode() for name in _table(fastjson.loads(reply.body))}
            by_name = self.broker.topics.by_name
            for name in by_name if self._asked is None else {*self._asked, *(ordered ^ self._ordered)}:
                if (topic := by_name.get(name)) is not None:
                    topic.keep_order(name in ordered)
            self._ordered = ordered


def _table(told: object) -> dict[str, object]:
    """The table in what a registry answers. WireError."""
    table = told.get("table") if isinstance(told, dict) else told
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise WireError("a registry whose table is none")
    return table


class RouteNeighbour:
    """Keeps a broker registered with the registry of its own process: a new topic is known there before its sender is
    answered."""

    remote = ""  # as a peer: this process

    def __init__(self, registration: Registration, name_server: NameServer) -> None:
        self.registration = registration
        self.name_server = name_server
        self.changed = True
        self.news = News(registration, self._mark)
        self._due_ms = 0

    def _mark(self) -> None:
        self.changed = True

    def tick(self, mono_ms: int) -> int:
        """Register if there is news or it is time; when it is time again."""
        if self.changed or mono_ms >= self._due_ms:
            self.changed = False
            if mono_ms >= self._due_ms:
                self.news.everything()
                self._due_ms = mono_ms + self.registration.broker.config.register_broker_period_ms
            elif self._told_of_queues():
                return self._due_ms
            reply = self.name_server.handle(self, self.registration.request(self.news), mono_ms)
            if reply is not None and reply.code:
                self.news.everything()
                log.error("the registry of this process refused the broker remark=%s", reply.remark)
            elif reply is not None:
                self.registration.take(reply)
        return self._due_ms

    def _told_of_queues(self) -> bool:
        """Queue topics that came or went go straight into the routes: a registration costs as much as the topic."""
        queues, registration = self.news.queues_alone(), self.registration
        if not queues or not registration.nsq_address:
            return False
        name, changes = registration.broker.config.broker_name, registration.changes(queues)
        if not self.name_server.routes.change_queues(self, name, registration.address, changes):
            self.news.everything()
            return False
        self.news.take()
        return True


class Registrar:
    """Keeps one broker registered with one registry: every period, at once when its topics change, and anew when the
    connection was lost."""

    def __init__(self, net: Net, registration: Registration, registry: str, security: Security = PLAIN) -> None:
        self.registration = registration
        self.registry = registry
        self._caller = Caller(net, registry, security, self._lost)
        self.changed = asyncio.Event()
        self.news = News(registration, self.changed.set)
        registration.on_seek.append(self.changed.set)
        self._complained = False

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.changed.clear()
            try:
                reply = await self._caller.ask(self.registration.request(self.news))
                self.registration.take(reply, self.registry)
                self._complained = False
                pause = self.registration.broker.config.register_broker_period_ms / 1000
                if self.registration.seeking():
                    pause = RECONNECT_S
            except (OSError, TimeoutError, WireError) as error:
                if isinstance(error, ConnectionRefusedError):
                    self.news.refused()
                self.news.everything()
                if not self._complained:
                    reason = str(error) or "no answer in time"
                    log.warning("registry not reached registry=%s error=%s", self.registry, reason)
                    self._complained = True
                pause = RECONNECT_S
            try:
                # Not wait_for: in Python 3.11 it loses a cancellation that comes together with the event.
                async with asyncio.timeout(pause):
                    await self.changed.wait()
            except TimeoutError:
                self.news.everything()

    async def leave(self) -> None:
        """Say goodbye, if the registry is there to hear it."""
        try:
            async with asyncio.timeout(1.0):
                await self._caller.ask(self.registration.goodbye())
        except (OSError, TimeoutError) as error:
            log.info("not unregistered registry=%s error=%s", self.registry, error)

    def _lost(self) -> None:
        self.news.everything()
        self.changed.set()
