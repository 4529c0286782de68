"""nsqd's HTTP API, metrics and administration: an ASGI application over a broker, no socket.

`publish` is the whole of `/pub` and `/mpub`: a query and a body in, an `Answer` out, or the Ticket of a flush that must
come first. Whoever has the sockets may call it without ASGI; the routes here do the same for any other server.
"""

from __future__ import annotations

import asyncio
import gc
import hmac
import json
import logging
import re
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any

from penstock.config import parts
from penstock.errors import Refused
from penstock.fronts import figures
from penstock.fronts.flags import LEVELS, broadcast_address, node_id, nsqd_value, set_log_level
from penstock.fronts.site import (
    DONE,
    JSON,
    OK,
    TEXT,
    V1,
    Answer,
    Request,
    Site,
    dumps,
    error,
    json_answer,
    parse_query,
    refuse,
    topic_and_channel,
    valid_name,
)
from penstock.wire.names import NSQD_VERSION

log = logging.getLogger("penstock.http")

TOPICS_A_PIECE = 20  # of statistics, before others have the loop
LINES_A_PIECE = 200
LOOKUPDS_MAX = 100
PROMETHEUS = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
EXITING = error(503, "EXITING")
PUBLISH_PATHS = ("/pub", "/mpub")

_TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]{2,45}\]|[a-zA-Z0-9_.-]{1,255}):[0-9]{1,5}")


def tls_required(https_port: int) -> Answer:
    """What plain HTTP is told when everybody is to use HTTPS; NSQ's own tools then do."""
    return Answer(403, b'{"message": "TLS_REQUIRED", "https_port": %d}' % https_port, (JSON, V1))


class NsqHttp(Site):
    """nsqd's API over one broker.

    `tcp_port`, `http_port` and `https_port` are the real ones; -1 for none. `lookups` are the nsqlookupds that may be
    changed over HTTP, and `lookups_changed` is called then.
    """

    def __init__(self, broker: Any, *, begin: Callable[[], None] = lambda: None) -> None:
        config = broker.config
        self.hostname = socket.gethostname()
        self.broadcast_address = broadcast_address(config)
        advertised = config.advertise.partition(":")[0]
        super().__init__((*parts(config.allowed_hosts), self.broadcast_address, advertised), begin)
        self.broker = broker
        self.config = config
        self.tcp_port = self.http_port = self.https_port = -1
        self.rejections: dict[str, Mapping[Any, int]] = {"http": self.rejected}  # protocol → reason → how often
        self.lookups = parts(config.lookupd_tcp_address)
        self.lookups_changed: Callable[[], None] = lambda: None
        self.log_level = config.log_level
        self.net: Any = None  # the sockets of this process, for its metrics and health
        self.quantiles = figures.percentiles(config.e2e_processing_latency_percentile)
        self.routes = {
            "/ping": {"GET": self._ping},
            "/info": {"GET": self._info},
            "/pub": {"POST": self._publish},
            "/mpub": {"POST": self._publish},
            "/stats": {"GET": self._stats},
            "/metrics": {"GET": self._metrics},
            "/topic/create": {"POST": self._create_topic},
            "/topic/delete": {"POST": self._delete_topic},
            "/topic/empty": {"POST": self._empty_topic},
            "/topic/pause": {"POST": lambda request: self._pause_topic(request, True)},
            "/topic/unpause": {"POST": lambda request: self._pause_topic(request, False)},
            "/channel/create": {"POST": self._create_channel},
            "/channel/delete": {"POST": self._delete_channel},
            "/channel/empty": {"POST": self._empty_channel},
            "/channel/pause": {"POST": lambda request: self._pause_channel(request, True)},
            "/channel/unpause": {"POST": lambda request: self._pause_channel(request, False)},
            "/config/:name": {"GET": self._show_config, "PUT": self._change_config},
            "/debug/freememory": {"POST": self._free_memory},
            "/debug/stacks": {"GET": self._stacks},
        }

    def find(self, method: str, path: str) -> tuple[Any, Answer]:
        """As in `Site`; what nsqd has under /debug and we have not is kept from strangers too."""
        handler, answer = super().find(method, path)
        if handler is None and path.startswith("/debug/"):
            return self._no_debug, answer
        return handler, answer

    # -- publishing ----------------------------------------------------------------------------------------------

    def body_max(self, path: str) -> int:
        """The longest body of /pub or /mpub."""
        return int(self.config.max_msg_size if path == "/pub" else self.config.max_body_size)

    def too_big(self, path: str) -> Answer:
        """The answer to a longer one."""
        return self.reject(413, "MSG_TOO_BIG" if path == "/pub" else "BODY_TOO_BIG")

    def publish(self, path: str, query: bytes, body: bytes) -> Any:
        """An Answer, or the Ticket of the flush that must come before OK."""
        try:
            if path == "/pub":
                if not body:
                    return error(400, "MSG_EMPTY")
                arguments = parse_query(query)
                topic = self._topic_to_write(arguments)
                defer_ms = self._defer_ms(arguments)
                bodies = [body]
            else:
                arguments = parse_query(query)
                topic = self._topic_to_write(arguments)
                defer_ms = self._defer_ms(arguments)
                binary = arguments.get("binary")
                bodies = self._binary(body) if binary is not None and _TRUTHS.get(binary, True) else self._lines(body)
                if not bodies:
                    return OK
        except Refused as refused:
            return error(refused.http, str(refused))
        try:
            ticket = self.broker.queueing.publish(topic, bodies, defer_ms)
        except Refused as refused:
            log.warning("not published topic=%s reason=%s", ascii(topic.name), refused)
            return EXITING
        return OK if ticket is None else ticket

    def _topic_to_write(self, arguments: dict[str, str]) -> Any:
        if "topic" not in arguments:
            raise refuse(400, "MISSING_ARG_TOPIC")
        name = arguments["topic"]
        if not valid_name(name):
            raise refuse(400, "INVALID_TOPIC")
        try:
            return self.broker.queueing.topic(name.encode())
        except Refused as refused:
            log.warning("no such topic to write topic=%s reason=%s", name, refused)
            raise refuse(*((503, "EXITING") if refused.http >= 500 else (400, "INVALID_TOPIC"))) from None

    def _defer_ms(self, arguments: dict[str, str]) -> int:
        text = arguments.get("defer")
        if text is None:
            return 0
        if not (_INTEGER.fullmatch(text) and 0 <= int(text) <= self.config.max_req_timeout_ms):
            raise refuse(400, "INVALID_DEFER")
        return int(text)

    def _lines(self, body: bytes) -> list[bytes]:
        found = [line for line in body.split(b"\n") if line]
        if any(len(line) > self.config.max_msg_size for line in found):
            raise refuse(413, "MSG_TOO_BIG")
        return found

    def _binary(self, body: bytes) -> list[bytes]:
        """`count:int32`, then `size:int32 body` each, and nothing behind."""
        count = int.from_bytes(body[:4], "big", signed=True)
        if len(body) < 4 or not 0 < count <= (self.config.max_body_size - 4) // 5:
            raise refuse(413, "BAD_BODY")
        at, found = 4, []
        for _ in range(count):
            size = int.from_bytes(body[at : at + 4], "big", signed=True)
            end = at + 4 + size
            if len(body) < at + 4 or not 0 < size <= self.config.max_msg_size or end > len(body):
                raise refuse(413, "BAD_MESSAGE")
            found.append(body[at + 4 : end])
            at = end
        if at != len(body):
            raise refuse(413, "BAD_BODY")
        return found

    async def _publish(self, request: Request) -> Answer:
        body = await request.body(self.body_max(request.path))
        if body is None:
            return self.too_big(request.path)
        outcome = self.publish(request.path, request.raw_query, body)
        if isinstance(outcome, Answer):
            return outcome
        flushed: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def told(good: bool) -> None:
            if not flushed.done():
                flushed.set_result(good)

        outcome.then(told)
        return OK if await flushed else EXITING

    # -- what is asked -------------------------------------------------------------------------------------------

    def _health(self) -> tuple[bool, str]:
        queueing = self.broker.queueing
        if not queueing.healthy:
            return False, f"NOK - {queueing.error}"
        if self.net is not None and (failing := self.net.role.faults.failing):
            return False, f"NOK - {'; '.join(failing.values())}"
        return True, "OK"

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
        clients = _TRUTHS.get(query.get("include_clients", ""), True)
        mem = figures.memory() if _TRUTHS.get(query.get("include_mem", ""), True) else None
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
            figures.topic_stats(topics, query.get("channel", "").encode(), self.quantiles, clients, now_ms // 1000)
        )
        producers = [one.describe(now_ms // 1000) for one in list(queueing.producers)] if clients else None
        _, health = self._health()
        if query.get("format") != "json":
            lines = figures.stats_lines(stats, producers, mem, health, self.broker.started_ms, now_ms)
            return Answer(200, "\n".join(await self._collect(lines, LINES_A_PIECE)).encode("utf-8", "replace"))
        head: dict[str, Any] = {
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
        topics = figures.topic_stats(self.broker.queueing.all(), b"", self.quantiles, False, 0)
        of_topics = figures.topic_samples(await self._collect(topics))
        of_broker = figures.broker_samples(self.broker, self.rejections)
        if self.net is not None:
            of_broker = chain(of_broker, figures.net_samples(self.net))
        families: dict[str, list[str]] = {}
        for family, line in await self._collect(chain(of_broker, of_topics), LINES_A_PIECE):
            families.setdefault(family, []).append(line)
        return Answer(200, b"".join(await self._collect(figures.metrics_pieces(families), 1)), (PROMETHEUS,))

    @staticmethod
    async def _collect(pieces: Iterator[Any], at_once: int = TOPICS_A_PIECE) -> list[Any]:
        """All the pieces; after every few others have the loop."""
        found = []
        for number, piece in enumerate(pieces):
            found.append(piece)
            if number % at_once == at_once - 1:
                await asyncio.sleep(0)
        return found

    # -- topics and channels -------------------------------------------------------------------------------------

    def _known_topic(self, request: Request, check: bool = False) -> Any:
        if "topic" not in request.query:
            raise refuse(400, "MISSING_ARG_TOPIC")
        name = request.query["topic"]
        if check and not valid_name(name):
            raise refuse(400, "INVALID_TOPIC")
        topic = self.broker.queueing.find(name.encode()) if valid_name(name) else None
        if topic is None:
            raise refuse(404, "TOPIC_NOT_FOUND")
        return topic

    def _known_channel(self, request: Request) -> tuple[Any, Any]:
        topic_name, name = topic_and_channel(request.query)
        topic = self.broker.queueing.find(topic_name)
        if topic is None:
            raise refuse(404, "TOPIC_NOT_FOUND")
        channel = topic.channels.get(name)
        if channel is None:
            raise refuse(404, "CHANNEL_NOT_FOUND")
        return topic, channel

    def _create_topic(self, request: Request) -> Answer:
        self._topic_to_write(request.query)
        self.broker.queueing.write_table()
        return DONE

    def _delete_topic(self, request: Request) -> Answer:
        self.broker.queueing.delete(self._known_topic(request))
        self.broker.queueing.write_table()
        return DONE

    def _empty_topic(self, request: Request) -> Answer:
        self._known_topic(request, check=True).empty()
        return DONE

    def _pause_topic(self, request: Request, pause: bool) -> Answer:
        topic = self._known_topic(request)
        (topic.pause if pause else topic.unpause)()
        self.broker.queueing.write_table()
        return DONE

    def _create_channel(self, request: Request) -> Answer:
        topic_name, name = topic_and_channel(request.query)
        topic = self.broker.queueing.find(topic_name)
        if topic is None:
            raise refuse(404, "TOPIC_NOT_FOUND")
        topic.channel(name)
        self.broker.queueing.write_table()
        return DONE

    def _delete_channel(self, request: Request) -> Answer:
        topic, channel = self._known_channel(request)
        topic.delete_channel(channel.name)
        self.broker.queueing.write_table()
        return DONE

    def _empty_channel(self, request: Request) -> Answer:
        topic, channel = self._known_channel(request)
        topic.empty_channel(channel)
        return DONE

    def _pause_channel(self, request: Request, pause: bool) -> Answer:
        topic, channel = self._known_channel(request)
        topic.pause_channel(channel, pause)
        self.broker.queueing.write_table()
        return DONE

    # -- settings ------------------------------------------------------------------------------------------------

    def _trusted(self, request: Request) -> bool:
        """Whether this peer may change settings and look inside: with the token, or anybody as at nsqd."""
        token = self.config.admin_token.encode()
        if self.config.open_config:
            return True
        return bool(token) and hmac.compare_digest(request.header(b"authorization"), b"Bearer " + token)

    def statsd_prefix(self) -> str:
        """The first part of statsd names, with this machine in it."""
        config = self.config
        port = config.broadcast_http_port or self.http_port
        return figures.statsd_prefix(config.statsd_prefix, self.broadcast_address, port)

    def _option(self, name: str) -> Answer:
        if name == "nsqlookupd_tcp_addresses":
            return json_answer(self.lookups)
        if name == "log_level":
            return json_answer(LEVELS[self.log_level])
        try:
            value = nsqd_value(self.config, name, node_id(self.config.node_id, self.hostname))
        except KeyError:
            raise refuse(400, "INVALID_OPTION") from None
        value = {
            "broadcast_address": self.broadcast_address,
            "broadcast_tcp_port": value or self.tcp_port,
            "broadcast_http_port": value or self.http_port,
            "statsd_prefix": self.statsd_prefix(),
        }.get(name, value)
        if not isinstance(value, str):
            return json_answer(value)
        return Answer(200, value.encode()) if value else DONE

    def _show_config(self, request: Request) -> Answer:
        return self._option(request.path.rpartition("/")[2])

    async def _change_config(self, request: Request) -> Answer:
        if not self._trusted(request):
            return self.reject(403, "ADMIN_TOKEN_REQUIRED")
        name = request.path.rpartition("/")[2]
        body = await request.body(self.config.max_msg_size)
        if not body:
            return error(413, "INVALID_VALUE")
        if name == "nsqlookupd_tcp_addresses":
            self.lookups = _addresses(body)
            self.lookups_changed()
        elif name == "log_level":
            level = body.decode("latin-1").lower()
            if level not in LEVELS:
                raise refuse(400, "INVALID_VALUE")
            self.log_level = level
            set_log_level(level)
        else:
            raise refuse(400, "INVALID_OPTION")
        return self._option(name)

    def _no_debug(self, request: Request) -> Answer:
        return error(404, "NOT_FOUND") if self._trusted(request) else self.reject(403, "ADMIN_TOKEN_REQUIRED")

    def _free_memory(self, request: Request) -> Answer:
        if not self._trusted(request):
            return self.reject(403, "ADMIN_TOKEN_REQUIRED")
        gc.collect()
        return Answer(200, b"", (TEXT,))

    def _stacks(self, request: Request) -> Answer:
        """Where every thread is."""
        if not self._trusted(request):
            return self.reject(403, "ADMIN_TOKEN_REQUIRED")
        pieces = []
        for number, frame in sys._current_frames().items():
            pieces.append(f"thread {number}\n{''.join(traceback.format_stack(frame))}\n")
        return Answer(200, "".join(pieces).encode(), (TEXT,))


def _addresses(body: bytes) -> list[str]:
    """The list of a PUT. Refused for what is no list of host:port."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise refuse(400, "INVALID_VALUE") from None
    if not isinstance(found, list) or len(found) > LOOKUPDS_MAX:
        raise refuse(400, "INVALID_VALUE")
    if not all(isinstance(one, str) and _ADDRESS.fullmatch(one) for one in found):
        raise refuse(400, "INVALID_VALUE")
    return list(dict.fromkeys(found))


def _json_pieces(head: dict[str, Any]) -> Iterator[bytes]:
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
