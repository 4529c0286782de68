"""Ask an ASGI application, without a server."""

from __future__ import annotations

import json
from typing import Any, NamedTuple


class Told(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def short(self) -> tuple[int, str]:
        """Status and body; of an error only its code."""
        text = self.body.decode()
        return self.status, json.loads(text)["message"] if text.startswith('{"message"') else text


async def ask(app: Any, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Told:
    path, _, query = target.partition("?")
    scope = {
        "type": "http", "method": method, "path": path, "query_string": query.encode(), "client": ("127.0.0.1", 9),
        "headers": [(name.encode(), value.encode()) for name, value in (headers or {"host": "127.0.0.1"}).items()],
    }  # fmt: skip
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, end = sent
    names = {name.decode(): value.decode() for name, value in start["headers"]}
    return Told(start["status"], names, end["body"])
