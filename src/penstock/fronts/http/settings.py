"""/config and /debug: settings that change while the broker runs, and looks inside, for those who may."""

from __future__ import annotations

import gc
import hmac
import json
import re
import sys
import traceback
from collections.abc import Callable

from penstock.broker.broker import Broker
from penstock.config import parts
from penstock.fronts import figures
from penstock.fronts.flags import LEVELS, node_id, nsqd_value, set_log_level
from penstock.fronts.site import DONE, TEXT, Answer, Handler, Request, Site, error, json_answer, refuse

LOOKUPDS_MAX = 100

_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]{2,45}\]|[a-zA-Z0-9_.-]{1,255}):[0-9]{1,5}")


class Place(Site):
    """Where the broker is to be found: names, and the real ports; -1 for none."""

    hostname: str
    broadcast_address: str
    tcp_port: int
    http_port: int
    https_port: int


class Settings:
    """`lookups` are the nsqlookupds that may be changed over HTTP."""

    def __init__(self, broker: Broker, site: Place) -> None:
        self.config = broker.config
        self.site = site
        self.lookups = parts(self.config.lookupd_tcp_address)
        self._told: Callable[[list[str]], None] = lambda lookups: None
        self.log_level = self.config.log_level
        self.routes: dict[str, dict[str, Handler]] = {
            "/config/:name": {"GET": self._show_config, "PUT": self._change_config},
            "/debug/freememory": {"POST": self._free_memory},
            "/debug/stacks": {"GET": self._stacks},
        }

    def tell_lookups(self, told: Callable[[list[str]], None]) -> None:
        """Call this with the nsqlookupds when they are changed."""
        self._told = told

    def _trusted(self, request: Request) -> bool:
        """Whether this peer may change settings and look inside: with the token, or anybody as at nsqd."""
        token = self.config.admin_token.encode()
        if self.config.open_config or self.site.rights.on:  # where there are users this one is an administrator
            return True
        return bool(token) and hmac.compare_digest(request.header(b"authorization"), b"Bearer " + token)

    def statsd_prefix(self) -> str:
        """The first part of statsd names, with this machine in it."""
        config = self.config
        port = config.broadcast_http_port or self.site.http_port
        return figures.statsd_prefix(config.statsd_prefix, self.site.broadcast_address, port)

    def _option(self, name: str) -> Answer:
        if name == "nsqlookupd_tcp_addresses":
            return json_answer(self.lookups)
        if name == "log_level":
            return json_answer(LEVELS[self.log_level])
        try:
            value = nsqd_value(self.config, name, node_id(self.config.node_id, self.site.hostname))
        except KeyError:
            raise refuse(400, "INVALID_OPTION") from None
        value = {
            "broadcast_address": self.site.broadcast_address,
            "broadcast_tcp_port": value or self.site.tcp_port,
            "broadcast_http_port": value or self.site.http_port,
            "statsd_prefix": self.statsd_prefix(),
        }.get(name, value)
        if not isinstance(value, str):
            return json_answer(value)
        return Answer(200, value.encode()) if value else DONE

    def _show_config(self, request: Request) -> Answer:
        return self._option(request.path.rpartition("/")[2])

    async def _change_config(self, request: Request) -> Answer:
        if not self._trusted(request):
            return self.site.reject(403, "ADMIN_TOKEN_REQUIRED")
        name = request.path.rpartition("/")[2]
        body = await request.body(self.config.max_msg_size)
        if not body:
            return error(413, "INVALID_VALUE")
        if name == "nsqlookupd_tcp_addresses":
            self.lookups = _addresses(body)
            self._told(self.lookups)
        elif name == "log_level":
            level = body.decode("latin-1").lower()
            if level not in LEVELS:
                raise refuse(400, "INVALID_VALUE")
            self.log_level = level
            set_log_level(level)
        else:
            raise refuse(400, "INVALID_OPTION")
        return self._option(name)

    def no_debug(self, request: Request) -> Answer:
        """What nsqd has under /debug and we have not."""
        return error(404, "NOT_FOUND") if self._trusted(request) else self.site.reject(403, "ADMIN_TOKEN_REQUIRED")

    def _free_memory(self, request: Request) -> Answer:
        if not self._trusted(request):
            return self.site.reject(403, "ADMIN_TOKEN_REQUIRED")
        gc.collect()
        return Answer(200, b"", (TEXT,))

    def _stacks(self, request: Request) -> Answer:
        """Where every thread is."""
        if not self._trusted(request):
            return self.site.reject(403, "ADMIN_TOKEN_REQUIRED")
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
