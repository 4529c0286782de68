"""nsqd's HTTP API, metrics and administration: an ASGI application over a broker, no socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TypeVar

from penstock.access.needs import ADMIN, MONITOR, USER, Need, group, know, publish, subscribe
from penstock.access.rights import Rights
from penstock.broker.broker import Broker
from penstock.config import parts
from penstock.fronts import figures, prometheus
from penstock.fronts.flags import broadcast_address
from penstock.fronts.health import Health
from penstock.fronts.http.browsing import Browsing
from penstock.fronts.http.overview import Overview
from penstock.fronts.http.publishing import TRUTHS, Publishing
from penstock.fronts.http.settings import Place, Settings
from penstock.fronts.http.topics import Topics
from penstock.fronts.site import JSON, NAME, TEXT, V1, Answer, Handler, Needs, Request, dumps, json_answer
from penstock.wire.addresses import host_in
from penstock.wire.fastjson import JsonObject
from penstock.wire.names import NSQD_VERSION

T = TypeVar("T")

TOPICS_A_PIECE = 20  # of statistics, before others have the loop
LINES_A_PIECE = 200


def _publishers(producers: Iterable[JsonObject], topic: str) -> Iterator[JsonObject]:
    """Those that published to a topic, and how much to that one: whoever may know one topic is told of no other."""
    for producer in producers:
        counts = producer.get("pub_counts", ())
        if own := [one for one in counts if one["topic"] == topic]:
            yield producer | {"pub_counts": own}


def _publish(query: Mapping[str, str]) -> Iterable[Need]:
    return (publish(query.get("topic", "")),)


def _channel(query: Mapping[str, str]) -> Iterable[Need]:
    return subscribe(query.get("topic", "")), group(query.get("channel", ""))


_ADMIN_ROUTES = (
    "POST /topic/delete", "POST /topic/empty", "POST /topic/pause", "POST /topic/unpause",
    "POST /channel/delete", "POST /channel/empty", "POST /channel/pause", "POST /channel/unpause",
    "PUT /config/:name", "POST /debug/freememory", "GET /debug/stacks",
)  # fmt: skip

# What each route needs where there are users (docs/rights.md). The first three are for health checks, which have none.
NEEDS: Mapping[str, Needs] = {
    "GET /ping": lambda query: (),
    "GET /healthz": lambda query: (),
    "GET /ready": lambda query: (),
    "GET /info": lambda query: (USER,),
    "POST /pub": _publish,
    "POST /mpub": _publish,
    "POST /topic/create": _publish,
    "POST /channel/create": _channel,
    "GET /stats": lambda query: (know(query["topic"]) if query.get("topic") else MONITOR,),
    "GET /metrics": lambda query: (MONITOR,),
    "GET /api/topics/:name/messages": lambda query: (subscribe(query[NAME]),),
    "GET /api/snapshot": lambda query: (MONITOR,),
    "GET /api/history": lambda query: (MONITOR,),
    "GET /config/:name": lambda query: (MONITOR,),
    **{route: lambda query: (ADMIN,) for route in _ADMIN_ROUTES},
}


def tls_required(https_port: int) -> Answer:
    """What plain HTTP is told when everybody is to use HTTPS; NSQ's own tools then do."""
    return Answer(403, b'{"message": "TLS_REQUIRED", "https_port": %d}' % https_port, (JSON, V1))


class NsqHttp(Place):
    """nsqd's API over one broker."""

    def __init__(
        self, broker: Broker, *, begin: Callable[[], None] = lambda: None, rights: Rights | None = None
    ) -> None:
        config = broker.config
        self.hostname = socket.gethostname()
        self.broadcast_address = broadcast_address(config)
        advertised = host_in(config.advertise)
        super().__init__((*parts(config.allowed_hosts), self.broadcast_address, advertised), begin, rights)
        self.broker = broker
        self.config = config
        self.tcp_port = self.http_port = self.https_port = -1
        self.rejections: dict[str, Mapping[str, int] | Mapping[bytes, int]] = {
            "http": self.rejected
        }  # protocol → reason → how often
        self.net: prometheus.Net | None = None
        self.quantiles = figures.percentiles(config.e2e_processing_latency_percentile)
        self.health = Health(broker, self._failing, self._hanging_s)
        self.publishing = Publishing(broker, self)
        self.settings = Settings(broker, self)
        self.routes = {
            "/ping": {"GET": self._ping},
            **self.health.routes,
            "/info": {"GET": self._info},
            "/pub": {"POST": self.publishing.handle},
            "/mpub": {"POST": self.publishing.handle},
            "/stats": {"GET": self._stats},
            "/metrics": {"GET": self._metrics},
            **Topics(broker, self.publishing).routes,
            **Browsing(broker, self).routes,
            **Overview(broker, self._collect).routes,
            **self.settings.routes,
        }
        self.needs = NEEDS

    def found_at(self, net: prometheus.Net, tcp_port: int, http_port: int, https_port: int) -> None:
        """The sockets of this process, for its metrics and health, and its real ports; -1 for none."""
        self.net = net
        self.tcp_port, self.http_port, self.https_port = tcp_port, http_port, https_port

    def count_rejections(self, protocol: str, rejected: Mapping[str, int] | Mapping[bytes, int]) -> None:
        """Show in the metrics what another protocol rejects: reason → how often."""
        self.rejections[protocol] = rejected

    def find(self, method: str, path: str) -> tuple[Handler | None, Answer]:
        """As in `Site`; what nsqd has under /debug and we have not is kept from strangers too."""
        handler, answer = super().find(method, path)
        if handler is None and path.startswith("/debug/"):
            return self.settings.no_debug, answer
        return handler, answer

    def _health(self) -> tuple[bool, str]:
        faults = self.health.faults()
        return not faults, f"NOK - {'; '.join(faults)}" if faults else "OK"

    def _failing(self) -> Mapping[str, str]:
        return {} if self.net is None else self.net.role.faults.failing

    def _hanging_s(self) -> float:
        return 0.0 if self.net is None else self.net.workers.hanging_s

    def _ping(self, request: Request) -> Answer:
        healthy, text = self._health()
        return Answer(200 if healthy else 500, text.encode(), (TEXT,))

    def _info(self, request: Request) -> Answer:
        config = self.config
        return json_answer(
            {
                "version": NSQD_VERSION,
                "broadcast_address": self.broadcast_address,
                "hostname": self.hostname,
                "http_port": self.http_port,
                "tcp_port": self.tcp_port,
                "start_time": self.broker.started_ms // 1000,
                "max_heartbeat_interval": config.max_heartbeat_interval_ms * 1_000_000,
                "max_output_buffer_size": config.max_output_buffer_size,
                "max_output_buffer_timeout": config.max_output_buffer_timeout_ms * 1_000_000,
                "max_deflate_level": config.max_deflate_level,
                "topology_zone": config.topology_zone,
                "topology_region": config.topology_region,
            }
        )

    async def _stats(self, request: Request) -> Answer:
        query, queueing = request.query, self.broker.queueing
        clients = TRUTHS.get(query.get("include_clients", ""), True)
        mem = prometheus.memory() if TRUTHS.get(query.get("include_mem", ""), True) else None
        wanted = query.get("topic", "").encode()
        now_ms = self.broker.now_ms
        if not wanted:
            topics = queueing.all()
        else:
            found = queueing.find(wanted)
            topics = [found] if found is not None else []
            for topic in topics:
                topic.refresh()
        stats = await self._collect(
            figures.topic_stats(topics, query.get("channel", "").encode(), self.quantiles, clients, now_ms)
        )
        of_topic = [one for one in queueing.producers if not wanted or one.publisher.any_to(wanted)] if clients else []
        described = (one.describe(now_ms // 1000) for one in of_topic)
        producers = await self._collect(_publishers(described, wanted.decode()) if wanted else described, LINES_A_PIECE)
        _, health = self._health()
        if query.get("format") != "json":
            lines = figures.stats_lines(stats, producers, mem, health, self.broker.started_ms, now_ms)
            return Answer(200, "\n".join(await self._collect(lines, LINES_A_PIECE)).encode("utf-8", "replace"))
        head: JsonObject = {
            "version": NSQD_VERSION,
            "health": health,
            "start_time": self.broker.started_ms // 1000,
            "topics": stats if not wanted or topics else None,
        }
        if mem is not None:
            head["memory"] = mem
        head["producers"] = producers or None
        return Answer(200, b"".join(await self._collect(_json_pieces(head))), (JSON, V1))

    async def _metrics(self, request: Request) -> Answer:
        topics = figures.topic_stats(self.broker.queueing.all(), b"", self.quantiles, False, self.broker.now_ms)
        of_topics = figures.topic_samples(await self._collect(topics))
        of_process = chain(prometheus.access_samples(self.rights), prometheus.site_samples(self.took))
        if self.net is not None:
            of_process = chain(of_process, prometheus.net_samples(self.net))
        samples = chain(figures.broker_samples(self.broker, self.rejections), of_process, of_topics)
        families = prometheus.by_family(await self._collect(samples, LINES_A_PIECE))
        openmetrics = prometheus.wants_openmetrics(request.header(b"accept"))
        pieces = await self._collect(prometheus.metrics_pieces(families, openmetrics), 1)
        return Answer(200, b"".join(pieces), (prometheus.metrics_format(openmetrics),))

    @staticmethod
    async def _collect(pieces: Iterator[T], at_once: int = TOPICS_A_PIECE) -> list[T]:
        """All the pieces; after every few others have the loop."""
        found = []
        for number, piece in enumerate(pieces):
            found.append(piece)
            if number % at_once == at_once - 1:
                await asyncio.sleep(0)
        return found


def _json_pieces(head: JsonObject) -> Iterator[bytes]:
    """A JSON object, its list of topics in pieces."""
    yield b"{"
    for number, (name, value) in enumerate(head.items()):
        yield (b"," if number else b"") + dumps(name) + b":"
        if name == "topics" and value is not None:
            yield b"["
            for place, topic in enumerate(value):
                yield (b"," if place else b"") + dumps(topic)
            yield b"]"
        else:
            yield dumps(value)
    yield b"}"
