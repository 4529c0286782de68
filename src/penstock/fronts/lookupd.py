"""nsqlookupd's front: a session per nsqd (TCP), and what clients and tools ask over HTTP.

TCP: magic ``"  V1"``, then lines; an answer is `size:int32 data` without a frame type. Every error is the last answer.

    "  V1" IDENTIFY\\n size:int32 JSON      → JSON of this registry
           REGISTER topic [channel]\\n      → OK         UNREGISTER topic [channel]\\n → OK        PING\\n → OK
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from penstock.access.needs import ADMIN, MONITOR, REGISTER, USER, know
from penstock.access.rights import Rights
from penstock.clock import Clock
from penstock.errors import Refused, WireError
from penstock.fronts import prometheus
from penstock.fronts.health import Health
from penstock.fronts.site import (
    DONE,
    TEXT,
    Answer,
    Needs,
    Request,
    Site,
    dumps,
    json_answer,
    refuse,
    topic_and_channel,
    valid_name,
)
from penstock.limits import Limits
from penstock.registry.producers import Producer, ProducerTables
from penstock.registry.routes import RouteTables
from penstock.version import __version__
from penstock.wire import fastjson
from penstock.wire.names import NSQD_VERSION

BODY_BYTES_MAX = 64 << 10
TEXT_BYTES_MAX = 1 << 10  # of one field of IDENTIFY


class Lookupd:
    """The nsqlookupd role of a registry."""

    def __init__(
        self, tables: ProducerTables, *, clock: Clock | None = None, broadcast_address: str = "", hostname: str = "",
        rights: Rights | None = None, limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self.limits = limits or Limits()
        self.tables = tables
        self.rights = rights or Rights()
        self.clock = clock or Clock()
        self.hostname = hostname or socket.gethostname()
        self.broadcast_address = broadcast_address or self.hostname
        self.tcp_port = 0
        self.http_port = 0

    def session(self, remote: str, wake: Callable[[], None]) -> LookupSession:
        """A session for a new connection."""
        return LookupSession(self, remote)

    def now_ms(self) -> int:
        """Steady time."""
        return self.clock.monotonic_ms()


class LookupSession:
    """One nsqd. `closing` says that what `take` returns is the last of it."""

    def __init__(self, server: Lookupd, remote: str) -> None:
        self.server = server
        self.remote = remote
        self.certificate = ""
        self.producer: Producer | None = None
        self._trusted = False
        self.need = 0
        self.closing = False
        self._greeted = False
        self._out: list[bytes] = []

    def certify(self, name: str) -> None:
        """The peer has shown a certificate with this name."""
        self.certificate = name

    # -- bytes in, bytes out

    def feed(self, owner: bytearray, total: int) -> int:
        """Carry out every whole command in the first `total` bytes; how many bytes they were."""
        self.need = 0
        pos = 0
        if not self._greeted:
            if total < 4:
                return 0
            if owner[:4] != b"  V1":
                self._fail(b"E_BAD_PROTOCOL")
                return total
            self._greeted = True
            pos = 4
        while not self.closing:
            most = self.server.limits.max_command_line
            end = owner.find(b"\n", pos, min(total, pos + most))
            if end < 0:
                if total - pos >= most:
                    raise WireError(f"a command line of more than {most} bytes", "command_line")
                return pos
            line = bytes(owner[pos:end]).strip()
            after = end + 1
            if line.split(b" ")[0] == b"IDENTIFY" and self.producer is None:
                if total - after < 4:
                    self.need = after + 4 - pos
                    return pos
                size = int.from_bytes(owner[after : after + 4], "big", signed=True)
                after += 4
                if not 0 < size <= BODY_BYTES_MAX:
                    why = "invalid body size" if size <= 0 else "body too big"
                    limit = f" > {BODY_BYTES_MAX}" if size > 0 else ""
                    self._fail(f"E_BAD_BODY IDENTIFY {why} {size}{limit}".encode())
                    break
                if total - after < size:
                    self.need = after + size - pos
                    return pos
                self._run(lambda body=bytes(owner[after : after + size]): self._identify(body))  # type: ignore[misc]
                after += size
            else:
                self._run(lambda line=line: self._command(line))  # type: ignore[misc]
            pos = after
        return total

    def take(self) -> bytes:
        """What is to be written."""
        data = b"".join(self._out)
        self._out.clear()
        return data

    def lost(self) -> None:
        """The connection is gone."""
        if self.producer is not None:
            self.server.tables.lost(self.producer)

    def _say(self, data: bytes) -> None:
        self._out.append(len(data).to_bytes(4, "big") + data)

    def _fail(self, data: bytes) -> None:
        self._say(data)
        self.closing = True
        self.lost()  # however long its peer takes to close its own end

    def _run(self, command: Callable[[], bytes]) -> None:
        try:
            self._say(command())
        except Refused as refused:
            self._fail(f"{refused.nsq} {refused}".encode("utf-8", "surrogateescape"))

    # -- commands

    def trust(self) -> None:
        """It is the broker of this process: it needs no right."""
        self._trusted = True

    def _demand_right(self) -> None:
        """An nsqd cannot log in: it is known by its certificate or its address. Refused."""
        rights = self.server.rights
        if rights.on and not self._trusted:
            rights.demand(rights.by_connection(self.remote, self.certificate), (REGISTER,))

    def _identify(self, body: bytes) -> bytes:
        self._demand_right()
        self.producer = _producer(body, self.remote)
        server = self.server
        server.tables.identify(self.producer, server.now_ms())
        return dumps(
            {
                "broadcast_address": server.broadcast_address,
                "hostname": server.hostname,
                "http_port": server.http_port,
                "tcp_port": server.tcp_port,
                "version": NSQD_VERSION,
            }
        )

    def _command(self, line: bytes) -> bytes:
        words = line.decode("utf-8", "surrogateescape").split(" ")
        name = words[0]
        if name == "PING":
            if self.producer is not None:
                self.producer.seen(self.server.now_ms())
            return b"OK"
        if name == "IDENTIFY":
            raise Refused("cannot IDENTIFY again")
        if name not in ("REGISTER", "UNREGISTER"):
            raise Refused(f"invalid command {name}")
        if self.producer is None:
            raise Refused("client must IDENTIFY")
        if len(words) < 2:
            raise Refused(f"{name} insufficient number of params")
        topic, channel = words[1], words[2] if len(words) > 2 else ""
        if not valid_name(topic):
            raise Refused(f"{name} topic name '{topic}' is not valid", nsq="E_BAD_TOPIC")
        if channel and not valid_name(channel):
            raise Refused(f"{name} channel name '{channel}' is not valid", nsq="E_BAD_CHANNEL")
        self._demand_right()
        tables = self.server.tables
        (tables.register if name == "REGISTER" else tables.unregister)(self.producer, topic, channel)
        return b"OK"


def _producer(body: bytes, remote: str) -> Producer:
    """Who an IDENTIFY body says it is. Refused for what cannot be."""
    undecodable = Refused("IDENTIFY failed to decode JSON body", nsq="E_BAD_BODY")
    try:
        fastjson.check_depth(body)
        told = msgspec.json.decode(body)
    except (*fastjson.BAD_JSON, WireError):
        raise undecodable from None
    if not isinstance(told, dict | None):
        raise undecodable
    told = fastjson.folded(told or {})
    texts = {}
    for name in ("hostname", "broadcast_address", "version", "topology_zone", "topology_region", "replica_set"):
        value = told.get(name) or ""
        if not isinstance(value, str) or len(value) > TEXT_BYTES_MAX:
            raise undecodable
        texts[name] = value
    ports = {}
    for name in ("tcp_port", "http_port"):
        value = told.get(name) or 0
        if type(value) is not int or not -(2**31) <= value < 2**31:
            raise undecodable
        ports[name] = value
    epoch = told.get("epoch") or 0
    if type(epoch) is not int or not 0 <= epoch < 2**63:
        raise undecodable
    if not (texts["broadcast_address"] and texts["version"] and ports["tcp_port"] and ports["http_port"]):
        raise Refused("IDENTIFY missing fields", nsq="E_BAD_BODY")
    return Producer(remote, epoch=epoch, **texts, **ports)  # type: ignore[arg-type]


# What each route needs where there are users (docs/rights.md).
NEEDS: Mapping[str, Needs] = {
    "GET /ping": lambda query: (),
    "GET /healthz": lambda query: (),
    "GET /ready": lambda query: (),
    "GET /info": lambda query: (USER,),
    "GET /lookup": lambda query: (know(query.get("topic", "")),),
    "GET /channels": lambda query: (know(query.get("topic", "")),),
    "GET /topics": lambda query: (MONITOR,),
    "GET /nodes": lambda query: (MONITOR,),
    "GET /debug": lambda query: (MONITOR,),
    **{
        f"POST {path}": lambda query: (ADMIN,)
        for path in ("/topic/create", "/topic/delete", "/topic/tombstone", "/channel/create", "/channel/delete")
    },
}


class LookupHttp(Site):
    """nsqlookupd's HTTP API."""

    def __init__(
        self, lookupd: Lookupd, *, allowed_hosts: Iterable[str] = (), begin: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        super().__init__((*allowed_hosts, lookupd.broadcast_address), begin, lookupd.rights)
        self.needs = NEEDS
        self.lookupd = lookupd
        self.tables = lookupd.tables
        self.net: prometheus.Net | None = None
        self.name_server: RouteTables | None = None
        self.started_s = lookupd.clock.now_ms() / 1000
        self.routes = {
            "/ping": {"GET": lambda request: Answer(200, b"OK", (TEXT,))},
            "/info": {"GET": lambda request: json_answer({"version": NSQD_VERSION})},
            **Health(None).routes,
            "/debug": {"GET": self._debug},
            "/lookup": {"GET": self._lookup},
            "/topics": {"GET": lambda request: json_answer({"topics": sorted(self.tables.topics)})},
            "/channels": {"GET": self._channels},
            "/nodes": {"GET": self._nodes},
            "/topic/create": {"POST": self._create_topic},
            "/topic/delete": {"POST": self._delete_topic},
            "/topic/tombstone": {"POST": self._tombstone},
            "/channel/create": {"POST": self._create_channel},
            "/channel/delete": {"POST": self._delete_channel},
        }
        self.watched = {"/metrics": self._metrics}

    def found_at(self, net: prometheus.Net, name_server: RouteTables | None) -> None:
        """The sockets of this process, and what its name server knows, for the metrics."""
        self.net, self.name_server = net, name_server

    def _metrics(self, request: Request) -> Answer:
        families = prometheus.by_family(self._samples())
        openmetrics = prometheus.wants_openmetrics(request.header(b"accept"))
        pieces = prometheus.metrics_pieces(families, openmetrics)
        return Answer(200, b"".join(pieces), (prometheus.metrics_format(openmetrics),))

    def _samples(self) -> Iterator[tuple[str, str]]:
        sample, tables, now_ms = prometheus.sample, self.tables, self.lookupd.now_ms()
        yield sample("info", 1, version=__version__, nsq_version=NSQD_VERSION, python=prometheus.PYTHON)
        yield sample("start_time_seconds", self.started_s)
        if self.name_server is not None:
            yield sample("registry_brokers", len(self.name_server.addresses))
            yield sample("registry_topics", len(self.name_server.topics))
        yield sample("lookup_producers", sum(tables.active(one, now_ms) for one in tables.producers))
        yield sample("lookup_topics", len(tables.topics))
        yield sample("lookup_channels", sum(map(len, tables.channels.values())))
        yield sample("process_resident_memory_bytes", prometheus.memory()["heap_in_use_bytes"])
        for reason, count in sorted(self.rejected.items()):
            yield sample("rejected_total", count, protocol="http", reason=reason)
        yield from prometheus.access_samples(self.rights)
        yield from prometheus.site_samples(self.took)
        if self.net is not None:
            yield from prometheus.net_samples(self.net)

    def _lookup(self, request: Request) -> Answer:
        topic = _argument(request, "topic")
        producers = self.tables.lookup(topic, self.lookupd.now_ms())
        if producers is None:
            raise refuse(404, "TOPIC_NOT_FOUND")
        return json_answer(
            {"channels": self.tables.channels_of(topic), "producers": [p.peer_info() for p in producers]}
        )

    def _channels(self, request: Request) -> Answer:
        return json_answer({"channels": self.tables.channels_of(_argument(request, "topic"))})

    def _nodes(self, request: Request) -> Answer:
        tables, now_ms = self.tables, self.lookupd.now_ms()
        nodes = []
        for producer in tables.producers:
            if tables.active(producer, now_ms):
                topics = sorted(producer.topics)
                tombstones = [tables.tombstoned(producer, topic, now_ms) for topic in topics]
                nodes.append({**producer.peer_info(), "tombstones": tombstones, "topics": topics})
        return json_answer({"producers": nodes})

    def _create_topic(self, request: Request) -> Answer:
        topic = _argument(request, "topic")
        if not valid_name(topic):
            raise refuse(400, "INVALID_ARG_TOPIC")
        self.tables.create(topic)
        return DONE

    def _delete_topic(self, request: Request) -> Answer:
        self.tables.delete_topic(_argument(request, "topic"))
        return DONE

    def _create_channel(self, request: Request) -> Answer:
        topic, channel = topic_and_channel(request.query)
        self.tables.create(topic.decode(), channel.decode())
        return DONE

    def _delete_channel(self, request: Request) -> Answer:
        topic, channel = topic_and_channel(request.query)
        if not self.tables.delete_channel(topic.decode(), channel.decode()):
            raise refuse(404, "CHANNEL_NOT_FOUND")
        return DONE

    def _tombstone(self, request: Request) -> Answer:
        self.tables.tombstone(_argument(request, "topic"), _argument(request, "node"), self.lookupd.now_ms())
        return DONE

    def _debug(self, request: Request) -> Answer:
        """The whole registry: `category:key:subkey` → producers."""
        tables, now_ms, wall_ms = self.tables, self.lookupd.now_ms(), self.lookupd.clock.now_ms()
        found: dict[str, list[dict[str, object]]] = {}

        def add(key: str, producers: Iterable[Producer], topic: str) -> None:
            for producer in producers:
                since = producer.tombstones.get(topic) if topic else None
                info = producer.peer_info()
                info["id"] = info.pop("remote_address")
                info["last_update"] = (wall_ms - now_ms + producer.seen_ms) * 1_000_000
                info["tombstoned"] = since is not None
                info["tombstoned_at"] = 0 if since is None else (wall_ms - now_ms + since) * 1_000_000
                found.setdefault(key, []).append(info)

        add("client::", tables.producers, "")
        for topic, producers in tables.topics.items():
            add(f"topic:{topic}:", producers, topic)
        for topic, channels in tables.channels.items():
            for channel, producers in channels.items():
                add(f"channel:{topic}:{channel}", producers, "")
        return json_answer(found)


def _argument(request: Request, name: str) -> str:
    if name not in request.query:
        raise refuse(400, f"MISSING_ARG_{name.upper()}")
    return request.query[name]
