"""What each page shows: from what the broker tells, one call for a page and not one for a row.

A page is a function of a `View` and returns what its template draws; the same, less the drawings, is its JSON.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from urllib.parse import quote

from penstock.aio import Admin
from penstock.client.deadletters import DeadLetters, describe
from penstock.client.deadrules import matches
from penstock.console import plans, plots, words
from penstock.console.plans import COUNT_DIGITS_MAX, start_of
from penstock.console.plots import Line
from penstock.console.upstream import Json, Source
from penstock.errors import NotFound, PenstockError
from penstock.message import ReceivedMessage
from penstock.security import Security
from penstock.wire.names import DEAD_PREFIX, RETRY_PREFIX, TAGS

ROWS = 100  # of a table
SPARKS = 40
LETTERS_READ_MAX = 2_000
STATES = ("ready", "in-flight", "deferred")
BODY_BYTES = 2_048
BODY_BYTES_MAX = 1 << 20

Data = dict[str, Any]


@dataclass(frozen=True)
class Site:
    """What the pages of one broker are drawn from. `silent`: why these brokers do not answer, which the page is of as well."""

    upstream: Source
    registry: str
    security: Security
    allow_changes: bool = False
    silent: Mapping[str, str] = field(default_factory=dict)

    def admin(self, *, partial: bool = False) -> Admin:
        """For what the HTTP API does not tell; `partial`: of the brokers that answer."""
        return Admin(self.registry, security=self.security, partial=partial)


@dataclass(frozen=True)
class View:
    """One look at one page: the names in its path, and its filter. `missed`: why these brokers are not in what it shows."""

    site: Site
    names: Mapping[str, str]
    query: Mapping[str, str]
    missed: dict[str, str] = field(default_factory=dict)

    def miss(self, missed: Mapping[str, PenstockError]) -> None:
        """These brokers did not answer."""
        self.missed.update({name: str(error) for name, error in missed.items()})

    def get(self, name: str, default: str = "") -> str:
        """A part of the filter."""
        return self.query.get(name, default)

    def choice(self, name: str, *choices: str) -> str:
        """A part of the filter that is one of these; the first without it."""
        said = self.get(name)
        return said if said in choices else choices[0]

    def number(self, name: str, default: int, most: int) -> int:
        """A part of the filter that is a number."""
        said = self.get(name)
        return min(most, int(said)) if said.isdecimal() and len(said) <= COUNT_DIGITS_MAX and int(said) > 0 else default

    async def snapshot(self, parts: str, topic: str = "") -> Json:
        """The broker's own answer."""
        return await self.site.upstream.get("/api/snapshot", {"parts": parts, "topic": topic})

    async def history(self, *keys: str, span: str = "hour", points: int = 3_600) -> Json:
        """The history of these."""
        return await self.site.upstream.get("/api/history", {"keys": ",".join(keys), "span": span, "points": points})


Page = Callable[[View], Awaitable[Data]]


# -- Now -----------------------------------------------------------------------------------------------------------------


async def now(view: View) -> Data:
    """Four lines of the last hour, who is behind most, and what is not well as a sentence with what to do."""
    span = view.choice("span", "hour", "week")
    told, past = await asyncio.gather(view.snapshot("topics"), view.history("broker", "disk", span=span, points=10_080))
    readers = [
        {**reader, "topic": row["topic"]} for row in told["topics"] for reader in row["readers"] if reader["lag"]
    ]
    readers.sort(key=lambda one: (one["lag_s"] or 0, one["lag"]), reverse=True)
    return {
        "head": told,
        "behind": readers[:5],
        "sentences": sentences(told),
        "kinds": Counter(row["kind"] for row in told["topics"]),
        "span": span,
        "_plots": _overview(past, told),
    }


def _overview(past: Json, told: Json) -> list[Data]:
    broker, disk = past.get("broker"), past.get("disk")
    if broker is None or disk is None:
        return []
    since, step = broker["since"], broker["step"]
    marks = [mark / 100 for mark in told["disk"]["marks"]]
    return [
        _drawn("Messages in", "a second", broker, [Line("in", broker["in"], "a")]),
        _drawn("Messages out", "a second", broker, [Line("out", broker["out"], "b")]),
        _drawn("Oldest unread message", "", broker, [Line("oldest", broker["lag_s"], "c")], words.age),
        {
            "title": "Disk", "unit": f"marks at {', '.join(map(str, told['disk']['marks']))} %",
            "now": words.share(told["disk"].get("used")),
            "svg": plots.plot("Disk", [Line("used", disk["used"], "d")], since, step, words.share, marks, 1.0),
        },
    ]  # fmt: skip


def _drawn(
    title: str, unit: str, series: Json, lines: list[Line], words_of: Callable[[float | None], str] = words.rate
) -> Data:
    latest = next((value for value in reversed(lines[0].values) if value is not None), None)
    return {
        "title": title,
        "unit": unit,
        "now": words_of(latest),
        "svg": plots.plot(title, lines, series["since"], series["step"], words_of),
    }


def sentences(told: Json) -> list[Data]:
    """What is not well, and what to do."""
    found: list[Data] = []

    def say(text: str, advice: str, href: str = "") -> None:
        found.append({"text": text, "advice": advice, "href": href})

    for one in told.get("silent", ()):
        say(f"Broker {one['name']} is not in these sums: {one['why']}.", "Is it running?")
    if told["health"]:
        say(f"The broker takes nothing: {told['health']}.", "Look into its log; free the disk if it is full.")
    used, (clean, force, refuse) = told["disk"].get("used") or 0, told["disk"]["marks"]
    if used * 100 >= refuse:
        say(f"The disk is {used:.0%} full: sends are refused.", "Free space, or lower file_reserved_time_hours.")
    elif used * 100 >= force:
        say(f"The disk is {used:.0%} full: old files are deleted whatever their age.", "Free space now.")
    elif used * 100 >= clean:
        say(f"The disk is {used:.0%} full: old files are deleted at any hour.", "Free space, or keep less.")
    for row in told["topics"]:
        where = f"/topics/{words.part(row['topic'])}/about"
        if row["topic"].startswith(DEAD_PREFIX.decode()) and row["messages"]:
            group = row["topic"].removeprefix(DEAD_PREFIX.decode())
            say(
                f"{row['messages']:,} dead letters of {group}.", "See why, and send them again.",
                f"/deadletters/{words.part(group)}/about",
            )  # fmt: skip
            continue
        for one in row["readers"]:
            if one["lag"] and not one["consumers"] and (one["lag_s"] or 0) > 60:
                say(
                    f"Nobody reads {row['topic']} for {one['name']}: {one['lag']:,} messages wait since "
                    f"{words.age(one['lag_s'])}.", "Start its consumers, or delete it.",
                    f"/topics/{words.part(row['topic'])}/{one['kind']}/{words.part(one['name'])}/about",
                )  # fmt: skip
            if one.get("paused") and one["lag"]:
                say(f"{row['topic']}/{one['name']} is paused with {one['lag']:,} messages.", "Unpause it.", where)
    for one in told["replicas"]:
        if one["why_not"]:
            out = "" if one["in_sync"] == "yes" else " is not in sync"
            say(f"Replica {one['node']}{out}: {one['why_not']}.", "See Replication.", "/replication")
    return found[:20]


# -- Topics --------------------------------------------------------------------------------------------------------------

_SORTS: dict[str, Callable[[Json], Any]] = {
    "lag": lambda row: (-(row["lag_s"] or 0), -row["lag"], row["topic"]),
    "name": lambda row: row["topic"],
    "in": lambda row: (-(row["in"] or 0), row["topic"]),
    "out": lambda row: (-(row["out"] or 0), row["topic"]),
    "bytes": lambda row: (-(row["bytes"] or 0), row["topic"]),
    "messages": lambda row: (-row["messages"], row["topic"]),
}


async def topics(view: View) -> Data:
    """One table; sorted by lag unless it is said otherwise."""
    told = await view.snapshot("topics")
    text, kind, sort = view.get("q"), view.choice("kind", "all", "log", "queue"), view.choice("sort", *_SORTS)
    system = view.get("system") == "1"
    rows = [
        row
        for row in told["topics"]
        if text.lower() in row["topic"].lower()
        and kind in ("all", row["kind"])
        and (system or not row["topic"].startswith((RETRY_PREFIX.decode(), DEAD_PREFIX.decode())))
    ]
    rows.sort(key=_SORTS[sort])
    page = view.number("page", 1, 1_000)
    shown = rows[(page - 1) * ROWS : page * ROWS]
    sparks = {}
    if shown:
        keys = [f"topic/{row['topic']}" for row in shown[:SPARKS]]
        past = await view.history(*keys, span="week", points=60)
        sparks = {
            key.removeprefix("topic/"): plots.spark(one["in"], "messages in, the last hour")
            for key, one in past.items()
            if one is not None
        }
    return {
        "rows": shown, "found": len(rows), "page": page, "pages": -(-len(rows) // ROWS), "q": text, "kind": kind,
        "sort": sort, "system": system, "_sparks": sparks,
    }  # fmt: skip


async def topic(view: View) -> Data:
    """The three faces of one topic: queues, who reads it, and Spark."""
    name = view.names["topic"]
    span = view.choice("span", "hour", "week")
    told, past = await asyncio.gather(
        view.snapshot("topics", name), view.history(f"topic/{name}", span=span, points=10_080)
    )
    if not told["topics"]:
        raise NotFound(f"no topic {name!r}", "It may have been deleted; see the list of topics.")
    row, series = told["topics"][0], past.get(f"topic/{name}")
    drawn = []
    if series is not None:
        drawn = [
            _drawn("In and out", "messages a second", series,
                   [Line("in", series["in"], "a"), Line("out", series["out"], "b")]),
            _drawn("Bytes in", "a second", series, [Line("bytes", series["bytes"], "d")], words.size),
        ]  # fmt: skip
    asked = {name: view.get(name) for name in ("queues", "keep", "keep_bytes", "trace", "purge")}
    wanted = plans.wanted_of(asked)
    plan = purge = None
    if wanted or asked["purge"]:
        async with view.site.admin() as admin:
            plan = await plans.alter_plan(admin, name, wanted) if wanted else None
            purge = await plans.purge_plan(admin, name, asked["purge"]) if asked["purge"] else None
    kept = row.get("kept") or {"ms": 0, "bytes": 0, "trace": False}
    return {
        "row": row, "span": span, "kept": kept, "keep_ms": kept["ms"] or told["disk"]["keep_ms"],
        "asked": asked, "plan": plan, "purge": purge, "spark": snippet(row, view), "_plots": drawn,
    }  # fmt: skip


def snippet(row: Json, view: View) -> str:
    """The lines to paste into PySpark."""
    if row["kind"] == "log":
        return (
            "from penstock.spark import session\n\n"
            "spark = session()\n"
            f'rows = spark.readStream.format("penstock").option("registry", "{view.site.registry}").load("{row["topic"]}")'
        )
    return (
        "# A queue topic is consumed, not read: what is to be a table goes to a log topic.\n"
        f"penstock topic add {row['topic']}-log && nsq_to_nsq --topic={row['topic']} --destination-topic={row['topic']}-log …"
    )


async def reader(view: View) -> Data:
    """A group or a channel of one topic: its lag in messages and seconds, and who is connected."""
    name, kind, group = view.names["topic"], view.names["kind"], view.names["reader"]
    span = view.choice("span", "hour", "week")
    key = f"{kind}/{name}/{group}"
    told, past = await asyncio.gather(
        view.snapshot("topics,clients", name), view.history(key, span=span, points=10_080)
    )
    rows = told["topics"][0]["readers"] if told["topics"] else []
    row = next((one for one in rows if one["name"] == group and one["kind"] == kind), None)
    if row is None:
        raise NotFound(f"topic {name!r} has no {kind} {group!r}", "See the topic for who reads it.")
    series = past.get(key)
    drawn = []
    if series is not None:
        drawn = [
            _drawn("Lag", "messages", series, [Line("lag", series["lag"], "c")], words.count),
            _drawn("Lag in time", "age of the oldest", series, [Line("age", series["lag_s"], "c")], words.age),
            _drawn("Out", "messages a second", series, [Line("out", series["out"], "b")]),
        ]
    clients = [one for one in told["clients"] if one["role"] == "consumer" and one["group"] == group]
    clients = [one for one in clients if one["protocol"] == "rocketmq" or one["topic"] == name]
    ends = {str(one["queue"]): one for one in told["topics"][0].get("offsets", ())}
    offsets = [
        {"queue": queue, "at": at, "end": ends[queue]["end"], "lag": max(0, ends[queue]["end"] - at)}
        for queue, at in sorted((row.get("offsets") or {}).items(), key=lambda item: int(item[0]))
        if queue in ends
    ]
    plan = await _plan(view, name, group) if kind == "group" and view.get("to") else None
    return {
        "topic": name, "row": row, "clients": clients, "offsets": offsets, "span": span, "plan": plan,
        "to": view.get("to"), "_plots": drawn,
    }  # fmt: skip


async def _plan(view: View, topic: str, group: str) -> list[Data]:
    """What a reset would do: from, to, and how many messages that is."""
    async with view.site.admin() as admin:
        moves = await admin.plan_reset(group, topic, start_of(view.get("to")))
    return [
        {"queue": queue.queue_id, "broker": queue.broker, "from": move.committed, "to": move.target,
         "messages": move.committed - move.target}
        for queue, move in moves.items()
    ]  # fmt: skip


# -- Messages ------------------------------------------------------------------------------------------------------------


async def asked_messages(view: View, limit: int) -> tuple[str, Data]:
    """What the filter of messages asks the broker for: path, and query. NotFound."""
    name, begin, key = view.names["topic"], view.get("from"), view.get("key")
    state, channel, queue = view.choice("state", *STATES), view.get("channel"), view.get("queue")
    asked: Data = {"limit": limit, "state": state, "channel": channel, "key": key, "queue": queue}
    asked["bodyBytes"] = view.number("body", BODY_BYTES, BODY_BYTES_MAX)
    asked["after"] = view.get("after")
    if not channel and state == "ready" and not key:
        asked["from"] = _begin(begin)
    elif key:
        asked["from"] = "first"
    path = f"/api/topics/{quote(name, safe='')}/messages"
    if not channel and not key and state == "ready":
        told = await view.snapshot("topics", name)
        if not told["topics"]:
            raise NotFound(f"no topic {name!r}")
        if told["topics"][0]["kind"] == "queue":
            asked.pop("from")
    return path, asked


def fitting(view: View, rows: list[Json]) -> list[Json]:
    """Those with the text in their bodies, and with the tag."""
    text, tag = view.get("text"), view.get("tag")
    return [
        row
        for row in rows
        if (not text or text in row["body"]) and (not tag or row.get("properties", {}).get(TAGS) == tag)
    ]


async def messages(view: View) -> Data:
    """The last messages of a topic, newest first; or from a time, an offset, by key, of a channel in some state."""
    limit = view.number("limit", 50, 500)
    path, asked = await asked_messages(view, limit)
    page = await view.site.upstream.get(path, asked)
    rows = fitting(view, page["rows"])
    newest = asked.get("from") == "last"
    if newest:
        rows.sort(key=lambda row: row["stored"], reverse=True)
    return {
        "topic": view.names["topic"], "rows": rows, "next": None if newest else page["next"], "limit": limit,
        "view": view.choice("view", "text", "json", "hex"), "state": view.choice("state", *STATES), "begin": view.get("from"),
        "read": len(page["rows"]), **{name: view.get(name) for name in ("key", "text", "tag", "channel", "queue")},
    }  # fmt: skip


def _begin(text: str) -> str:
    """What the broker takes: last, first, an offset, or time:MS."""
    if not text:
        return "last"
    if text in ("first", "last") or text.isdecimal() or text.startswith("time:"):
        return text
    start = start_of(text)
    return f"time:{int(start.timestamp() * 1000)}" if isinstance(start, datetime) else start


async def message(view: View) -> Data:
    """One message and its life, as far as its clients were told to trace it."""
    id_ = view.names["id"]
    topic_name = view.get("topic") or None
    async with view.site.admin() as admin:
        found = await admin.message(id_, topic_name)
        try:
            traces = await admin.traces(found.uniq_key or id_)
        except NotFound:  # nobody was told to trace it
            traces = []
    steps = [
        {"at": found.born_ms, "what": "sent", "who": found.born_host, "detail": ""},
        {"at": found.store_ms, "what": "stored", "who": found.broker or "", "detail":
         f"queue {found.queue_id}, offset {found.queue_offset}"},
    ]  # fmt: skip
    for trace in traces:
        detail = f"{trace.cost_ms} ms" if trace.cost_ms else ""
        what = {"Pub": "sent", "SubBefore": "handed over", "SubAfter": "finished" if trace.success else "failed"}
        steps.append(
            {"at": trace.time_ms, "what": what.get(trace.what, trace.what), "who": trace.group, "detail": detail}
        )
    body = found.body[:BODY_BYTES_MAX]
    try:
        text, encoding = body.decode(), "text"
    except UnicodeDecodeError:
        import base64

        text, encoding = base64.b64encode(body).decode(), "base64"
    return {
        "id": id_, "topic": found.topic, "queue": found.queue_id, "offset": found.queue_offset, "size": len(found.body),
        "keys": list(found.keys), "tags": found.tags, "properties": dict(found.properties), "body": text,
        "encoding": encoding, "view": view.choice("view", "text", "json", "hex"), "cut": len(body) < len(found.body),
        "steps": sorted(steps, key=lambda step: step["at"]), "traced": bool(traces),
    }  # fmt: skip


# -- Dead letters --------------------------------------------------------------------------------------------------------


async def dead_letters(view: View) -> Data:
    """The topics of dead letters, the fullest first."""

    def ask() -> list[Data]:
        with DeadLetters(view.site.registry, security=view.site.security, partial=True) as letters:
            found = letters.topics()
            view.miss(letters.missed)
            return [
                {"name": one.name, "topic": one.topic, "kind": one.kind, "count": one.count, "left": one.left,
                 "oldest": one.oldest_ms, "newest": one.newest_ms}
                for one in found
            ]  # fmt: skip

    rows = await asyncio.to_thread(ask)
    return {"rows": sorted(rows, key=lambda row: -row["count"])}


async def dead_letters_of(view: View) -> Data:
    """The dead letters of one group, by reason: how many, the first, the last, and one of them."""
    name, text = view.names["group"], view.get("match")
    limit = view.number("limit", 20, 200)

    def ask() -> tuple[list[Data], list[Data], bool]:
        reasons: dict[str, Data] = {}
        rows: list[Data] = []
        read = 0
        with DeadLetters(view.site.registry, security=view.site.security, partial=True) as letters:
            for found, redriven in _told(letters, name, view):
                read += 1
                if read > LETTERS_READ_MAX:
                    break
                if not matches(found, text):
                    continue
                row = describe(found, redriven=redriven) | {
                    "body": found.body[:BODY_BYTES].decode("utf-8", "backslashreplace")
                }
                reason = reasons.setdefault(
                    str(row["reason"] or "not told"),
                    {"count": 0, "left": 0, "first": row["died_ms"], "last": row["died_ms"], "sample": row},
                )
                reason["count"] += 1
                reason["left"] += not redriven
                reason["first"] = min(reason["first"], row["died_ms"])
                reason["last"] = max(reason["last"], row["died_ms"])
                rows.append(row)
        rows.sort(key=lambda row: -row["died_ms"])
        named = [{"reason": reason, **about} for reason, about in reasons.items()]
        return sorted(named, key=lambda one: -one["count"]), rows[:limit], read > LETTERS_READ_MAX

    reasons, rows, cut = await asyncio.to_thread(ask)
    return {
        "group": name,
        "match": text,
        "reasons": reasons,
        "rows": rows,
        "cut": cut,
        "limit": limit,
        "most": LETTERS_READ_MAX,
    }


def _told(letters: DeadLetters, name: str, view: View) -> Iterator[tuple[ReceivedMessage, bool]]:
    """The dead letters at the brokers that answer. NotFound where all do, and none has any such."""
    try:
        yield from letters.letters(name)
    except NotFound:
        if not letters.missed:
            raise
    finally:
        view.miss(letters.missed)


# -- Delayed -------------------------------------------------------------------------------------------------------------

SPANS_S = (60, 600, 3_600, 21_600, 86_400, 604_800, 2_592_000)
BARS = 24


async def delayed(view: View) -> Data:
    """How many are due when, and the next ones; the bars are links that look closer."""
    now_ms = int(time.time() * 1000)
    begin = view.number("begin", now_ms // 1000, 1 << 40) * 1000
    topic_name, text, key = view.get("topic"), view.get("text"), view.get("key")
    async with view.site.admin(partial=True) as admin:
        span_s = view.number("span", 0, 10_000_000)
        if not span_s:
            edges = [now_ms + span * 1000 for span in SPANS_S]
            counts = await admin.delayed_counts(edges, topic=topic_name)
            span_s = next(
                (span for span, n in zip(SPANS_S, _sums(counts), strict=False) if n >= sum(counts)), SPANS_S[-1]
            )
        edges = [begin + span_s * 1000 * bar // BARS for bar in range(BARS + 1)]
        counts = await admin.delayed_counts(edges, topic=topic_name)
        rows = await admin.delayed(topic=topic_name, text=text, key=key, limit=view.number("limit", 50, 500))
        view.miss(admin.missed)
    high = max(counts[1:-1], default=0) or 1
    bars = [
        {"begin": edges[n] // 1000, "count": counts[n + 1], "height": round(100 * counts[n + 1] / high),
         "span": max(1, span_s // BARS)}
        for n in range(BARS)
    ]  # fmt: skip
    return {
        "rows": rows, "bars": bars, "before": counts[0], "after": counts[-1], "total": sum(counts), "span": span_s,
        "begin": begin // 1000, "topic": topic_name, "text": text, "key": key, "now": now_ms,
    }  # fmt: skip


def _sums(counts: list[int]) -> list[int]:
    total, found = 0, []
    for one in counts:
        total += one
        found.append(total)
    return found


# -- the others ----------------------------------------------------------------------------------------------------------


async def clients(view: View) -> Data:
    """Producers and consumers of both protocols."""
    text, role = view.get("q").lower(), view.choice("role", "all", "producer", "consumer")
    rows = [
        row
        for row in (await view.snapshot("clients"))["clients"]
        if role in ("all", row["role"]) and any(text in str(value).lower() for value in row.values())
    ]
    return {"rows": rows[:1_000], "found": len(rows), "q": view.get("q"), "role": role}


async def spark(view: View) -> Data:
    """Sinks: what was published last, and what is staged."""
    return {"rows": (await view.snapshot("sinks"))["sinks"], "now": int(time.time() * 1000)}


async def settings(view: View) -> Data:
    """What holds, what would hold if nothing were set, and what the last start found."""
    told = await view.snapshot("settings,recovery")
    text, only = view.get("q").lower(), view.get("set") == "1"
    rows = [
        row
        for row in told["settings"]
        if (text in row["name"] or text in row["about"].lower()) and (row["set"] or not only)
    ]
    return {"rows": rows, "recovery": told["recovery"], "head": told, "q": view.get("q"), "only": only}


async def replication(view: View) -> Data:
    """The replica set."""
    return {"rows": (await view.snapshot(""))["replicas"]}


# path, template and page; a word in braces is a name
PAGES: tuple[tuple[str, str, Page], ...] = (
    ("/", "now", now),
    ("/topics", "topics", topics),
    ("/topics/{topic}/about", "topic", topic),
    ("/topics/{topic}/messages", "messages", messages),
    ("/topics/{topic}/{kind}/{reader}/about", "reader", reader),
    ("/messages/{id}/about", "message", message),
    ("/deadletters", "deadletters", dead_letters),
    ("/deadletters/{group}/about", "deadletter", dead_letters_of),
    ("/delayed", "delayed", delayed),
    ("/clients", "clients", clients),
    ("/spark", "spark", spark),
    ("/settings", "settings", settings),
    ("/replication", "replication", replication),
)

_PATTERNS = [
    (re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(path))), template, page)
    for path, template, page in PAGES
]


def find(path: str) -> tuple[str, Page, dict[str, str]] | None:
    """The template and the page of a path, and the names in it."""
    for pattern, template, page in _PATTERNS:
        if match := pattern.fullmatch(path):
            return template, page, match.groupdict()
    return None
