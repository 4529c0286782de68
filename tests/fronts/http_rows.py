"""nsqd's HTTP answers as recorded from nsqd 1.3.0 started with max-msg-size 1000 and max-body-size 2000.

(method, target, body, status, answer): the answer is the whole body, of an error the code in it. The rows run in this
order against one daemon. `python tests/fronts/http_rows.py HOST:PORT` runs them against any daemon.
"""

from __future__ import annotations

import http.client
import json
import sys
from typing import Any, NamedTuple


class Row(NamedTuple):
    method: str
    target: str
    body: bytes
    status: int
    answer: str


def packed(*bodies: bytes, count: int | None = None) -> bytes:
    number = len(bodies) if count is None else count
    return number.to_bytes(4, "big", signed=True) + b"".join(len(body).to_bytes(4, "big") + body for body in bodies)


ROWS = [
    Row("GET", "/ping", b"", 200, "OK"),
    Row("GET", "/pub?topic=a", b"", 405, "METHOD_NOT_ALLOWED"),
    Row("POST", "/ping", b"", 405, "METHOD_NOT_ALLOWED"),
    Row("GET", "/nope", b"", 404, "NOT_FOUND"),
    Row("POST", "/nope", b"", 404, "NOT_FOUND"),
    Row("GET", "/config", b"", 404, "NOT_FOUND"),
    Row("GET", "/config/", b"", 404, "NOT_FOUND"),
    # publishing
    Row("POST", "/pub?topic=h", b"", 400, "MSG_EMPTY"),
    Row("POST", "/pub", b"x", 400, "MISSING_ARG_TOPIC"),
    Row("POST", "/pub", b"", 400, "MSG_EMPTY"),
    Row("POST", "/pub?topic=", b"x", 400, "INVALID_TOPIC"),
    Row("POST", "/pub?topic=h$1", b"x", 400, "INVALID_TOPIC"),
    Row("POST", "/pub?topic=h%0a", b"x", 400, "INVALID_TOPIC"),
    Row("POST", "/pub?topic=" + "t" * 65, b"x", 400, "INVALID_TOPIC"),
    Row("POST", "/pub?topic=h%C3%A9", b"x", 400, "INVALID_TOPIC"),
    Row("POST", "/pub?topic=h;x", b"x", 400, "INVALID_REQUEST"),
    Row("POST", "/pub?topic=%zz", b"x", 400, "INVALID_REQUEST"),
    Row("POST", "/pub?topic=h", b"x" * 1001, 413, "MSG_TOO_BIG"),
    Row("POST", "/pub?topic=h$", b"x" * 1001, 413, "MSG_TOO_BIG"),
    Row("POST", "/pub?topic=h", b"x" * 1000, 200, "OK"),
    Row("POST", "/pub?topic=h&defer=x", b"x", 400, "INVALID_DEFER"),
    Row("POST", "/pub?topic=h&defer=1_0", b"x", 400, "INVALID_DEFER"),
    Row("POST", "/pub?topic=h&defer=-1", b"x", 400, "INVALID_DEFER"),
    Row("POST", "/pub?topic=h&defer=3600001", b"x", 400, "INVALID_DEFER"),
    Row("POST", "/pub?topic=h&defer=3600000", b"x", 200, "OK"),
    Row("POST", "/pub?topic=made&defer=x", b"x", 400, "INVALID_DEFER"),
    Row("POST", "/topic/empty?topic=made", b"", 200, ""),
    Row("POST", "/mpub?topic=h", b"a\nb\n\nc", 200, "OK"),
    Row("POST", "/mpub?topic=h", b"", 200, "OK"),
    Row("POST", "/mpub?topic=h", b"\n\n", 200, "OK"),
    Row("POST", "/mpub?topic=h&binary=true", packed(b"a", b"b"), 200, "OK"),
    Row("POST", "/mpub?topic=h&binary=1", packed(b"a", b"b"), 200, "OK"),
    Row("POST", "/mpub?topic=h&binary=yes", packed(b"a", b"b"), 200, "OK"),
    Row("POST", "/mpub?topic=h&binary=false", b"a\nb", 200, "OK"),
    Row("POST", "/mpub?topic=h&binary=1", packed(b"a", b""), 413, "BAD_MESSAGE"),
    Row("POST", "/mpub?topic=h&binary=1", packed(b"a", b"x" * 1001), 413, "BAD_MESSAGE"),
    Row("POST", "/mpub?topic=h&binary=1", packed(b"a", count=2), 413, "BAD_MESSAGE"),
    Row("POST", "/mpub?topic=h&binary=1", packed(), 413, "BAD_BODY"),
    Row("POST", "/mpub?topic=h&binary=1", b"\0\0", 413, "BAD_BODY"),
    Row("POST", "/mpub?topic=h&binary=1", packed(b"a", count=-1), 413, "BAD_BODY"),
    Row("POST", "/mpub?topic=h&binary=1", packed(b"a", count=400), 413, "BAD_BODY"),
    Row("POST", "/mpub?topic=h", b"x" * 2001, 413, "BODY_TOO_BIG"),
    Row("POST", "/mpub?topic=h", b"x" * 1500, 413, "MSG_TOO_BIG"),
    Row("POST", "/mpub", b"x", 400, "MISSING_ARG_TOPIC"),
    Row("POST", "/mpub?topic=$", b"x", 400, "INVALID_TOPIC"),
    # topics and channels
    Row("POST", "/topic/create", b"", 400, "MISSING_ARG_TOPIC"),
    Row("POST", "/topic/create?topic=a$", b"", 400, "INVALID_TOPIC"),
    Row("POST", "/topic/create?topic=t", b"", 200, ""),
    Row("POST", "/topic/create?topic=t", b"", 200, ""),
    Row("POST", "/topic/pause?topic=nope", b"", 404, "TOPIC_NOT_FOUND"),
    Row("POST", "/topic/pause?topic=a$", b"", 404, "TOPIC_NOT_FOUND"),
    Row("POST", "/topic/pause", b"", 400, "MISSING_ARG_TOPIC"),
    Row("POST", "/topic/unpause?topic=nope", b"", 404, "TOPIC_NOT_FOUND"),
    Row("POST", "/topic/delete?topic=nope", b"", 404, "TOPIC_NOT_FOUND"),
    Row("POST", "/topic/delete", b"", 400, "MISSING_ARG_TOPIC"),
    Row("POST", "/topic/empty?topic=a$", b"", 400, "INVALID_TOPIC"),
    Row("POST", "/topic/empty?topic=nope", b"", 404, "TOPIC_NOT_FOUND"),
    Row("POST", "/topic/pause?topic=t", b"", 200, ""),
    Row("POST", "/topic/unpause?topic=t", b"", 200, ""),
    Row("POST", "/channel/create?topic=t&channel=c$", b"", 400, "INVALID_ARG_CHANNEL"),
    Row("POST", "/channel/create?topic=t$&channel=c", b"", 400, "INVALID_ARG_TOPIC"),
    Row("POST", "/channel/create?topic=t", b"", 400, "MISSING_ARG_CHANNEL"),
    Row("POST", "/channel/create?channel=c", b"", 400, "MISSING_ARG_TOPIC"),
    Row("POST", "/channel/create?topic=nope&channel=c", b"", 404, "TOPIC_NOT_FOUND"),
    Row("POST", "/channel/create?topic=t&channel=c", b"", 200, ""),
    Row("POST", "/channel/pause?topic=t&channel=c", b"", 200, ""),
    Row("POST", "/channel/unpause?topic=t&channel=c", b"", 200, ""),
    Row("POST", "/channel/empty?topic=t&channel=c", b"", 200, ""),
    Row("POST", "/channel/pause?topic=t&channel=nope", b"", 404, "CHANNEL_NOT_FOUND"),
    Row("POST", "/channel/unpause?topic=t&channel=nope", b"", 404, "CHANNEL_NOT_FOUND"),
    Row("POST", "/channel/empty?topic=t&channel=nope", b"", 404, "CHANNEL_NOT_FOUND"),
    Row("POST", "/channel/delete?topic=t&channel=nope", b"", 404, "CHANNEL_NOT_FOUND"),
    Row("POST", "/channel/delete?topic=nope&channel=c", b"", 404, "TOPIC_NOT_FOUND"),
    Row("POST", "/channel/delete?topic=t&channel=c", b"", 200, ""),
    Row("POST", "/topic/delete?topic=t", b"", 200, ""),
    # settings
    Row("GET", "/config/nope", b"", 400, "INVALID_OPTION"),
    Row("PUT", "/config/mem_queue_size", b"5", 400, "INVALID_OPTION"),
    Row("PUT", "/config/mem_queue_size", b"", 413, "INVALID_VALUE"),
    Row("PUT", "/config/log_level", b"silly", 400, "INVALID_VALUE"),
    Row("PUT", "/config/log_level", b"DEBUG", 200, "1"),
    Row("PUT", "/config/log_level", b"info", 200, "2"),
    Row("GET", "/config/log_level", b"", 200, "2"),
    Row("PUT", "/config/nsqlookupd_tcp_addresses", b"{", 400, "INVALID_VALUE"),
    Row("PUT", "/config/nsqlookupd_tcp_addresses", b"[1]", 400, "INVALID_VALUE"),
    Row("PUT", "/config/nsqlookupd_tcp_addresses", b'["127.0.0.1:9"]', 200, '["127.0.0.1:9"]'),
    Row("PUT", "/config/nsqlookupd_tcp_addresses", b"[]", 200, "[]"),
    Row("GET", "/config/nsqlookupd_tcp_addresses", b"", 200, "[]"),
    Row("GET", "/config/auth_http_addresses", b"", 200, "[]"),
    Row("GET", "/config/e2e_processing_latency_percentiles", b"", 200, "[]"),
    Row("GET", "/config/msg_timeout", b"", 200, "60000000000"),
    Row("GET", "/config/max_msg_size", b"", 200, "1000"),
    Row("GET", "/config/deflate", b"", 200, "true"),
    Row("GET", "/config/tls_required", b"", 200, "0"),
    Row("GET", "/config/statsd_address", b"", 200, ""),
    Row("GET", "/stats?format=json&topic=a;b", b"", 400, "INVALID_REQUEST"),
]  # fmt: skip


class Told(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def answer(self) -> str:
        text = self.body.decode()
        return str(json.loads(text)["message"]) if text.startswith('{"message":') else text


def ask(address: str, method: str, target: str, body: bytes = b"", **headers: str) -> Told:
    """One request on a connection of its own."""
    connection = http.client.HTTPConnection(address, timeout=30)
    try:
        connection.request(method, target, body or None, headers)
        answer = connection.getresponse()
        return Told(answer.status, answer.headers, answer.read())
    finally:
        connection.close()


def main(address: str) -> int:
    wrong = 0
    for row in ROWS:
        told = ask(address, *row[:3])
        if (told.status, told.answer) != (row.status, row.answer):
            wrong += 1
            print(f"{row.method} {row.target}: {told.status} {told.answer!r}, not {row.status} {row.answer!r}")
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
