"""The console as an ASGI application: pages and their JSON, the live stream, files, changes.

GET /topics?sort=in      a page; /topics.json?sort=in is what it shows, as JSON
GET /live?of=/topics     server-sent events: the part of that page that changes, drawn anew
POST /do/topic-add       a change: a form with the token of the session
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from penstock.access.audit import audit
from penstock.console import pages, words
from penstock.console.changes import ACTS, Act
from penstock.console.cluster import Brokers, Choose, keep_choice, place_of, prefix_of
from penstock.console.exports import export_dead, export_messages
from penstock.console.guard import HEADERS, SESSION, Guard
from penstock.console.pages import Data, Page, Site, View
from penstock.console.upstream import Refusal, Unreachable
from penstock.errors import NoRoute, NotFound, PenstockError
from penstock.version import __version__

log = logging.getLogger("penstock.console")

FORM_BYTES_MAX = 5 << 20
FIELDS_MAX = 20_000  # more are chosen by no hand
SAID_MAX = 1_000  # letters of what was done, or not: it goes through a header
LIVE_EVERY_S = 1.0
STREAMS_MAX = 100
LIVE_SHARE = 20  # a page is drawn anew after so many times what drawing took, at the soonest
HERE = Path(__file__).parent
FILES = {"console.css": "text/css; charset=utf-8", "console.js": "text/javascript; charset=utf-8"}


class Console:
    """The console of one broker, or of those of a cluster."""

    def __init__(self, site: Site, guard: Guard, brokers: Brokers | None = None) -> None:
        self.site = site
        self.brokers = brokers  # None: there is one
        self.guard = guard
        self.streams = 0
        self._over = asyncio.Event()
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
            lstrip_blocks=True, finalize=words.visible, auto_reload=False,  # an upgrade changes the files beneath
        )  # fmt: skip
        self._templates.filters.update(words.FILTERS)
        self._templates.filters["part"] = words.part
        self._templates.globals["version"] = __version__
        for name in self._templates.list_templates():  # the first page is as quick as the others
            self._templates.get_template(name)
        self._files = {name: (HERE / "static" / name).read_bytes() for name in FILES}

    def app(self) -> Starlette:
        """The application."""
        return Starlette(
            routes=[
                Route("/live", self._guarded(self.live)),
                Route("/static/{name}", self._guarded(self.file)),
                Route("/do/{act}", self._guarded(self.do), methods=["POST"]),
                Route("/at/{broker}/do/{act}", self._guarded(self.do), methods=["POST"]),
                Route("/export/deadletters", self._guarded(self.export)),
                Route("/{path:path}", self._guarded(self.page)),
            ]
        )

    def _guarded(self, handler: Callable[[Request], object]) -> Callable[[Request], object]:
        async def answer(request: Request) -> Response:
            if not self.guard.host_is_ours(request.headers.get("host", "")):
                response = Response("this console has another name\n", 403, media_type="text/plain")
            else:
                response = await handler(request)  # type: ignore[misc]
            response.headers.update(HEADERS)
            return response

        return answer

    # -- looking -------------------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """A page, or its JSON."""
        path, as_json = request.url.path, False
        raw = request.scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1") or path
        if raw.endswith(".json") and raw != "/.json":
            raw, as_json = raw.removesuffix(".json"), True
        broker, raw = place_of(raw)
        if raw.endswith("/messages.jsonl"):
            return await self._message_lines(broker, raw.removesuffix(".jsonl"), dict(request.query_params))
        if raw == "/now":
            raw = "/"
        template, data, status = await self._data(broker, raw, dict(request.query_params))
        if as_json:
            plain = {name: value for name, value in data.items() if not name.startswith("_")}
            return Response(json.dumps(plain, ensure_ascii=False, default=str), status, media_type="application/json")
        session = request.cookies.get(SESSION, "")
        fresh = not session
        session = session or self.guard.new_session()
        context = self._context(data, raw, request.url.query, session) | await self._choice(broker)
        html = keep_choice(self._templates.get_template(f"{template}.html").render(context), broker)
        response = Response(html, status, media_type="text/html")
        if fresh:
            response.set_cookie(SESSION, session, httponly=True, samesite="strict")
        return response

    async def _choice(self, broker: str) -> Data:
        """Which brokers may be chosen, and which one is."""
        names = sorted(await self.brokers.named()) if self.brokers is not None else []
        return {"brokers": names if len(names) > 1 else [], "chosen": broker}

    async def _site_of(self, broker: str, path: str) -> Site:
        """What a page is drawn from. NotFound, Choose."""
        if self.brokers is not None:
            return await self.brokers.site_of(broker, path)
        if broker:
            raise NotFound(
                f"no broker {broker!r}", "This console is of one broker: its pages have no /at/NAME before them."
            )
        return self.site

    async def _data(
        self, broker: str, raw: str, query: dict[str, str], instead: Page | None = None
    ) -> tuple[str, Data, int]:
        """Template, data and status of a page; what goes wrong is a page, too. `instead`: of this, at the same place."""
        found = pages.find(raw)
        view: View | None = None
        try:
            if found is None:
                raise NotFound("there is no such page", "The list above names them all.")
            template, page, names = found
            site = await self._site_of(broker, raw)
            view = View(site, {name: words.name_of(value) for name, value in names.items()}, query)
            data = await (instead or page)(view)
            return template, data | ({} if "sentences" in data else _missed(view)), 200
        except Unreachable as error:
            return "error", {"error": str(error), "hint": "Is it running? The address is said with --broker."}, 502
        except Refusal as error:
            hint = (
                "The console's user lacks a right: monitor, and subscribe for messages."
                if error.status in (401, 403)
                else ""
            )
            return "error", {"error": str(error), "hint": hint}, error.status
        except Choose as choose:
            return "error", {"error": str(choose), "hint": "Choose one of them.", "names": choose.names}, 200
        except NotFound as error:
            if view is not None and (missed := _missed(view)):
                return "error", {"error": f"{error} at those that answer", "hint": "", **missed}, 502
            return "error", {"error": str(error), "hint": error.hint or ""}, 404
        except NoRoute as error:  # the topic of a message, say
            return "error", {"error": str(error), "hint": "It may have been deleted; see the list of topics."}, 404
        except PenstockError as error:
            return "error", {"error": str(error), "hint": error.hint or ""}, 502
        except ValueError as error:
            return "error", {"error": f"the filter makes no sense: {error}", "hint": "Change it, or go back."}, 400

    def _context(self, data: Data, path: str, query: str, session: str) -> Data:
        said = dict(parse_qsl(query, keep_blank_values=True))

        def filtered(**changed: object) -> str:
            """The query of this page with something else in it; None takes a part away."""
            parts = {**said, **dict(changed.items())}
            kept = {name: str(value) for name, value in parts.items() if value not in (None, "")}
            for name in ("did", "failed"):  # of the change before
                kept.pop(name, None)
            return "?" + urlencode(kept)

        json_path = ("/now" if path == "/" else path) + ".json" + (f"?{query}" if query else "")
        return {
            "missed": [], **data, "path": path, "query": query, "filtered": filtered, "json_path": json_path,
            "changes": self.site.allow_changes, "token": self.guard.token(session), "did": said.get("did", ""),
            "failed": said.get("failed", ""), "registry": self.site.registry, "broker": self.site.upstream.url,
            "live_of": f"{path}?{query}" if query else path,
        }  # fmt: skip

    async def file(self, request: Request) -> Response:
        """A file of ours."""
        name = request.path_params["name"]
        if name not in FILES:
            return Response("no such file\n", 404, media_type="text/plain")
        return Response(self._files[name], headers={"content-type": FILES[name]})

    async def _message_lines(self, broker: str, raw: str, query: dict[str, str]) -> Response:
        """What a page of messages shows as a file of JSON lines."""
        found: list[AsyncIterator[str]] = []

        async def page(view: View) -> Data:
            found.append(await export_messages(view))
            return {}

        _, told, status = await self._data(broker, raw, query, page)
        if not found:
            return Response(f"{told['error']}\n", status, media_type="text/plain")
        name = {"content-disposition": "attachment; filename=messages.jsonl"}
        return StreamingResponse(found[0], media_type="application/x-ndjson", headers=name)

    async def export(self, request: Request) -> Response:
        """The dead letters of a group or channel as JSON lines, a file."""
        group, text = request.query_params.get("group", ""), request.query_params.get("match", "")
        try:
            lines = await asyncio.to_thread(export_dead, self.site, group, text)
        except PenstockError as error:
            return Response(f"{error}\n", 404, media_type="text/plain")
        name = {"content-disposition": f"attachment; filename*=UTF-8''{quote(group, safe='')}.jsonl"}
        return StreamingResponse(lines, media_type="application/x-ndjson", headers=name)

    # -- live ----------------------------------------------------------------------------------------------------

    async def live(self, request: Request) -> Response:
        """The changing part of a page, whenever it has changed."""
        if self.streams >= STREAMS_MAX:
            return Response("too many pages are open\n", 503, media_type="text/plain")
        return StreamingResponse(self._events(request), media_type="text/event-stream")

    def end_streams(self) -> None:
        """The console stops: pages that are open are told so by the end of their streams."""
        self._over.set()

    async def _rest(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._over.wait(), seconds)

    async def _events(self, request: Request) -> AsyncIterator[str]:
        of = urlsplit(request.query_params.get("of", "/"))
        broker, path = place_of(of.path)
        session = request.cookies.get(SESSION, "")
        before = ""
        self.streams += 1
        try:
            while not self._over.is_set() and not await request.is_disconnected():
                begun = time.monotonic()
                template, data, _ = await self._data(broker, path, dict(parse_qsl(of.query)))
                found = self._templates.get_template(f"{template}.html")
                choice = await self._choice(broker)
                context = found.new_context(self._context(data, path, of.query, session) | choice)
                missed = self._templates.get_template("base.html").blocks["missed"]
                html = "".join([*missed(context), *found.blocks["live"](context)]) if "live" in found.blocks else ""
                html = keep_choice(html, broker)
                if html != before:
                    yield f"data: {json.dumps(html)}\n\n"
                    before = html
                else:
                    yield ": nothing new\n\n"
                await self._rest(max(LIVE_EVERY_S, LIVE_SHARE * (time.monotonic() - begun)))
        except ClientDisconnect:
            pass
        finally:
            self.streams -= 1

    # -- changing ------------------------------------------------------------------------------------------------

    async def do(self, request: Request) -> Response:
        """One change. Whoever is not one of our own pages gets 403."""
        name, remote = request.path_params["act"], request.client.host if request.client else "local"
        broker = request.path_params.get("broker", "")
        if not self.site.allow_changes:
            return Response("this console is read-only: start it with --allow-changes\n", 403, media_type="text/plain")
        if not self.guard.origin_is_ours(request.headers.get("origin"), request.headers.get("host", "")):
            audit(None, remote, f"console {name}", "foreign origin")
            return Response("the request comes from a page of another site\n", 403, media_type="text/plain")
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > FORM_BYTES_MAX:
                return Response("the form is too large\n", 413, media_type="text/plain")
        try:
            form = _fields(body)
        except ValueError:
            return Response(f"the form has more than {FIELDS_MAX} fields\n", 413, media_type="text/plain")
        if not self.guard.token_is_right(request.cookies.get(SESSION, ""), form.pop("token", "")):
            audit(None, remote, f"console {name}", "wrong token")
            return Response("the form is not of this session: load the page again\n", 403, media_type="text/plain")
        act = ACTS.get(name)
        if act is None:
            return Response("no such change\n", 404, media_type="text/plain")
        asked = " ".join(f"{key}={value}" for key, value in form.items() if key not in ("body", "typed", "back"))
        try:
            site = await self._site_of(broker, "/")
            said, back = await act(Act(site, form))
        except (PenstockError, ValueError) as error:
            audit(None, remote, f"console {name} {asked}", str(error))
            back = form.get("back", "/")
            back = back if back.startswith("/") and not back.startswith(("//", "/\\")) else "/"
            return _go(_at(broker, back), failed=str(error))
        finally:
            await self._forget()
        audit(None, remote, f"console {name} {asked}", "ok")
        return _go(_at(broker, back), did=said)

    async def _forget(self) -> None:
        """Something has changed, wherever that was."""
        for source in (
            self.site.upstream,
            *((await self.brokers.named()).values() if self.brokers is not None else ()),
        ):
            source.forget()


def _at(broker: str, back: str) -> str:
    """Where a page of this broker goes on."""
    return back if back.startswith("/at/") else prefix_of(broker) + back


def _missed(view: View) -> Data:
    """Which brokers are not in what a page shows; nothing where all are."""
    found = [{"name": name, "why": why} for name, why in sorted({**view.site.silent, **view.missed}.items())]
    return {"missed": found} if found else {}


def _fields(body: bytes) -> dict[str, str]:
    """A form; several fields of one name are lines. ValueError when it has too many."""
    told: dict[str, list[str]] = {}
    for field, value in parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS_MAX):
        told.setdefault(field, []).append(value)
    return {field: "\n".join(values) for field, values in told.items()}


def _go(back: str, **said: str) -> Response:
    """Back to a page, which says what was done."""
    said = {name: text if len(text) <= SAID_MAX else text[:SAID_MAX] + "…" for name, text in said.items()}
    path, _, query = back.partition("?")
    kept = [(name, value) for name, value in parse_qsl(query) if name not in ("did", "failed")]
    return RedirectResponse(f"{path}?{urlencode([*kept, *said.items()])}", 303)
