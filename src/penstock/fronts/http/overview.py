"""GET /api/snapshot and /api/history: what consoles draw, in one answer each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

from penstock.broker.broker import Broker
from penstock.broker.history import KEYS_MAX, SPANS, Key
from penstock.fronts.site import JSON, V1, Answer, Handler, Request, dumps, json_answer, refuse
from penstock.fronts.snapshot import Snapshot
from penstock.wire.fastjson import JsonObject

POINTS = 3_600
PARTS = ("topics", "clients", "settings", "sinks", "recovery")

Collect = Callable[[Iterator[JsonObject]], Awaitable[list[JsonObject]]]


class Overview:
    """The routes; `collect` goes through an iterator and lets others have the loop between."""

    def __init__(self, broker: Broker, collect: Collect) -> None:
        self.broker = broker
        self._collect = collect
        self.routes: dict[str, dict[str, Handler]] = {
            "/api/snapshot": {"GET": self._snapshot},
            "/api/history": {"GET": self._history},
        }

    async def _snapshot(self, request: Request) -> Answer:
        """`parts` says what beside the head is wanted: topics and clients where it is not given; `topic` one topic alone."""
        parts = request.query.get("parts", "topics,clients").split(",")
        if not set(parts) <= {*PARTS, ""}:
            raise refuse(400, "INVALID_PARTS")
        snapshot = Snapshot(self.broker, request.query.get("topic", ""))
        head = snapshot.head()
        if "sinks" in parts:
            head["sinks"] = snapshot.sinks()
        if "recovery" in parts:
            head["recovery"] = snapshot.recovery()
        pieces = [dumps(head)[:-1]]
        for name in ("topics", "clients", "settings"):
            if name in parts:
                rows = await self._collect(getattr(snapshot, name)())
                pieces += [b',"%s":[' % name.encode(), b",".join(map(dumps, rows)), b"]"]
        return Answer(200, b"".join([*pieces, b"}"]), (JSON, V1))

    def _history(self, request: Request) -> Answer:
        """`keys` are ``kind/topic/name`` with commas between: topic, group, channel; ``broker`` and ``disk`` alone."""
        query = request.query
        span, words = query.get("span", "hour"), query.get("keys", "broker").split(",")
        points = query.get("points", str(POINTS))
        if span not in SPANS or not points.isdecimal() or len(points) > 6 or len(words) > KEYS_MAX:
            raise refuse(400, "INVALID_REQUEST")
        found: JsonObject = {}
        for word in words:
            parts = word.split("/")
            if len(parts) > len(Key._fields):
                raise refuse(400, "INVALID_KEY")
            found[word] = self.broker.history.read(Key(*parts), span, max(1, int(points)))
        return json_answer(found)
