"""Asks an ASGI application as a browser does: cookies are kept, forms have the token of the page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode


class Told(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


class Browser:
    """One session."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.cookie = ""

    async def ask(self, method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Told:
        path, _, query = target.partition("?")
        said = {"host": "127.0.0.1:4171"} | ({"cookie": self.cookie} if self.cookie else {}) | dict(headers or {})
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1", "method": method, "scheme": "http",
            "path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in said.items()],
            "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 4171),
        }  # fmt: skip
        sent: list[Any] = []
        asked = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive() -> Any:
            return next(asked, {"type": "http.disconnect"})

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        if "set-cookie" in found:
            self.cookie = found["set-cookie"].partition(";")[0]
        return Told(sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:]))

    async def get(self, target: str, **headers: str) -> Told:
        return await self.ask("GET", target, headers=headers)

    async def token(self, page: str = "/topics") -> str:
        """The token of the forms of a page."""
        found = re.search(r'name="token" value="([0-9a-f]{64})"', (await self.get(page)).text)
        assert found, "the page has no form"
        return found[1]

    async def act(self, act: str, headers: Mapping[str, str] | None = None, **form: str) -> Told:
        """Send a form of a page of ours."""
        form = {"token": await self.token()} | form
        said = {"origin": "http://127.0.0.1:4171", "content-type": "application/x-www-form-urlencoded"}
        return await self.ask("POST", f"/do/{act}", urlencode(form).encode(), said | dict(headers or {}))
