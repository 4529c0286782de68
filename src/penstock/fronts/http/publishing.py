"""/pub and /mpub: a query and a body in, an `Answer` out, or the Ticket of what must come first.

Whoever has the sockets may call `publish` without ASGI; `handle` does the same for any other server.
"""

from __future__ import annotations

import asyncio
import logging
import re

from penstock.broker.broker import Broker
from penstock.broker.nsq.copied import CopyTicket
from penstock.broker.nsq.flush import Ticket
from penstock.broker.nsq.topics import Topic
from penstock.errors import Refused
from penstock.faults import Told
from penstock.fronts.site import OK, Answer, Request, Site, error, parse_query, refuse, valid_name

log = logging.getLogger("penstock.http")

PUBLISH_PATHS = ("/pub", "/mpub")
EXITING = error(503, "EXITING")
NOT_REPLICATED = error(503, "STORED_NOT_REPLICATED")
TRUTHS = {"true": True, "1": True, "false": False, "0": False}
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")


def answer_of(ticket: Ticket | CopyTicket, good: bool) -> Answer:
    """What is answered to a publish, once it is known what it waited for."""
    if good:
        return OK
    return NOT_REPLICATED if isinstance(ticket, CopyTicket) else EXITING


class Publishing:
    """What is published over HTTP. What is refused counts at the site."""

    def __init__(self, broker: Broker, site: Site) -> None:
        self.broker = broker
        self.config = broker.config
        self.site = site
        self._told = Told()  # a client may ask ten thousand times a second, as long as a disk is full

    def body_max(self, path: str) -> int:
        """The longest body of /pub or /mpub."""
        return int(self.config.max_msg_size if path == "/pub" else self.config.max_body_size)

    def too_big(self, path: str) -> Answer:
        """The answer to a longer one."""
        self.broker.limits.count("nsq_message" if path == "/pub" else "nsq_body")
        return self.site.reject(413, "MSG_TOO_BIG" if path == "/pub" else "BODY_TOO_BIG")

    def publish(self, path: str, query: bytes, body: bytes) -> Answer | Ticket | CopyTicket:
        """An Answer, or the Ticket of what must come before OK: a flush, or the copies of slaves."""
        try:
            if path == "/pub":
                if not body:
                    return error(400, "MSG_EMPTY")
                arguments = parse_query(query)
                topic = self.topic_to_write(arguments, hasty=True)
                defer_ms = self._defer_ms(arguments)
                bodies = [body]
            else:
                arguments = parse_query(query)
                topic = self.topic_to_write(arguments, hasty=True)
                defer_ms = self._defer_ms(arguments)
                binary = arguments.get("binary")
                bodies = self._binary(body) if binary is not None and TRUTHS.get(binary, True) else self._lines(body)
                if not bodies:
                    return OK
        except Refused as refused:
            return error(refused.http, str(refused))
        try:
            ticket = self.broker.queueing.publish(topic, bodies, defer_ms)
        except Refused as refused:
            if self._told.is_news(f"{topic.name!r} {refused}", self.broker.mono_ms):
                log.warning("not published topic=%s reason=%s", ascii(topic.name), refused)
            return EXITING if refused.http >= 500 else error(refused.http, str(refused))
        return OK if ticket is None else ticket

    def topic_to_write(self, arguments: dict[str, str], hasty: bool = False) -> Topic:
        """The topic that the arguments name, made if need be; `hasty`: for a message. Refused."""
        if "topic" not in arguments:
            raise refuse(400, "MISSING_ARG_TOPIC")
        name = arguments["topic"]
        if not valid_name(name):
            raise refuse(400, "INVALID_TOPIC")
        try:
            return self.broker.queueing.topic(name.encode(), hasty=hasty)
        except Refused as refused:
            if self._told.is_news(f"{name} {refused}", self.broker.mono_ms):
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
            self.broker.limits.count("nsq_message")
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
            if size > self.config.max_msg_size:
                self.broker.limits.count("nsq_message")
            if len(body) < at + 4 or not 0 < size <= self.config.max_msg_size or end > len(body):
                raise refuse(413, "BAD_MESSAGE")
            found.append(body[at + 4 : end])
            at = end
        if at != len(body):
            raise refuse(413, "BAD_BODY")
        return found

    async def handle(self, request: Request) -> Answer:
        """The same for a request whose body is still to come."""
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
        return answer_of(outcome, await flushed)
