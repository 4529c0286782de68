"""Several brokers in one console: which there are, one of them chosen, and what all of them tell as sums.

/topics            the sums of all brokers; of a page that has none, the broker that has its topic, or a choice
/at/broker-b/topics   the same page of one broker
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from penstock.console.pages import Site
from penstock.console.upstream import Json, Refusal, Source, Unreachable, Upstream
from penstock.console.words import name_of, part
from penstock.errors import NotFound, PenstockError

LOOK_EVERY_S = 10.0  # for brokers that came or went
_OF_A_TOPIC = re.compile(r"/topics/([^/]+)/.+")
_OF_A_BROKER = ("/settings", "/spark", "/replication")
_LINK = re.compile(r'\b(href|action)="/(?!/|static/|export/|at/)')
_HIGHEST = ("lag_s", "used", "oldest", "consumers")  # what is no sum


class Choose(PenstockError):
    """A page is of one broker, and there are several; `names` says which."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__("several brokers have this page")
        self.names = sorted(names)


def place_of(path: str) -> tuple[str, str]:
    """The broker that a path chooses, empty for none, and the path of the page."""
    if not path.startswith("/at/"):
        return "", path
    name, _, rest = path.removeprefix("/at/").partition("/")
    return name_of(name), f"/{rest}"


def prefix_of(name: str) -> str:
    """Before the path of each page of a broker."""
    return f"/at/{part(name)}" if name else ""


def keep_choice(html: str, name: str) -> str:
    """The links and forms of a page of one broker lead to pages of the same one."""
    return _LINK.sub(rf'\1="{prefix_of(name)}/', html) if name else html


class Silent(Source):
    """A broker that is there, and has not said where it answers: it hangs, or cannot be reached from here."""

    def __init__(self, address: str, why: str) -> None:
        self.url = address
        self._why = why

    async def get(self, path: str, query: Mapping[str, object] | None = None) -> Json:
        """Unreachable."""
        raise Unreachable(self._why)

    async def change(self, method: str, path: str, body: bytes = b"") -> bytes:
        """Unreachable."""
        raise Unreachable(self._why)

    def forget(self) -> None:
        """Nothing was known."""


class Brokers:
    """The brokers behind one console: those of the addresses, or else those that the registry knows."""

    def __init__(self, site: Site, addresses: Sequence[str] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self.site = site
        self._addresses = addresses
        self._clock = clock
        self._looked_s: float | None = None
        self._looking = asyncio.Lock()
        self._task: asyncio.Future[None] | None = None
        self._upstreams: dict[str, Upstream] = {}  # URL → the broker there
        self._named: dict[str, Source] = {}

    async def named(self) -> dict[str, Source]:
        """Each by its name. Once some are known nobody waits for a registry that may be away."""
        if self._looked_s is None:
            async with self._looking:
                if self._looked_s is None:
                    await self._look()
        elif self._clock() - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = self._clock()
            self._task = asyncio.ensure_future(self._look())
            if not self._named:
                await self._task
        return self._named

    async def _look(self) -> None:
        self._named = await (self._asked() if self._addresses else self._listed())
        self._looked_s = self._clock()

    def _upstream(self, url: str) -> Upstream:
        found = Upstream(url, self.site.security)
        return self._upstreams.setdefault(found.url, found)

    async def _asked(self) -> dict[str, Source]:
        """Those of the addresses; one that does not answer is called by its address."""
        upstreams = [self._upstream(address) for address in self._addresses]
        told = await asyncio.gather(
            *(one.get("/api/snapshot", {"parts": ","}) for one in upstreams), return_exceptions=True
        )
        found: dict[str, Source] = {}
        for upstream, head in zip(upstreams, told, strict=True):
            name = str(head.get("name", "")) if isinstance(head, dict) else ""
            found[name if name and name not in found else upstream.url.partition("//")[2]] = upstream
        return found

    async def _listed(self) -> dict[str, Source]:
        """The masters that the registry knows, by the HTTP ports that they tell; one that does not answer stays where it was, or
        is `Silent`. Those known before, and at first the usual address, where the registry does not answer.
        """
        found: dict[str, Source] = {}
        silent: dict[str, Source] = {}
        try:
            async with self.site.admin() as admin:
                info = await admin.cluster_info()
                first = {name: members[min(members)] for name, members in sorted(info.brokers.items())}
                answers = await admin.runtime_infos(first.values())
                for name, address in first.items():
                    told = answers[address]
                    if isinstance(told, PenstockError):
                        silent[name] = self._named.get(name) or Silent(address, str(told))
                        continue
                    scheme = "http" if told.get("httpPort") else "https"
                    if port := told.get(f"{scheme}Port"):
                        found[name] = self._upstream(f"{scheme}://{address.rpartition(':')[0]}:{port}")
        except PenstockError:
            return self._named
        return dict(sorted((found | silent).items())) if found else self._named

    async def site_of(self, name: str, path: str) -> Site:
        """What a page is drawn from: one broker where it is named, or alone, or alone has the topic; else the sums.
        NotFound for a broker that there is not, Choose where one of several must be named.
        """
        named = await self.named()
        if name:
            if name not in named:
                raise NotFound(f"no broker {name!r}", f"There are {', '.join(named) or 'none'}.")
            return replace(self.site, upstream=named[name])
        if not named:
            return self.site
        if len(named) == 1:
            return replace(self.site, upstream=next(iter(named.values())))
        together = Together(named)
        of_topic = _OF_A_TOPIC.fullmatch(path)
        if of_topic:
            held = await self._holders(together, name_of(of_topic[1]))
            if len(held) == 1:
                return replace(self.site, upstream=held.popitem()[1], silent=together.silent)
            if held:
                raise Choose({*held, *together.silent})
        elif path in _OF_A_BROKER:
            raise Choose(named)
        return replace(self.site, upstream=together, silent=together.silent)

    async def _holders(self, together: Together, topic: str) -> dict[str, Source]:
        """The brokers that have a topic."""
        named = together.brokers
        told = await together.ask_all("/api/snapshot", {"parts": "topics", "topic": topic})
        return {name: named[name] for name, answer in told.items() if answer["topics"]}


class Together(Source):
    """All brokers, asked at the same time; numbers are added up."""

    def __init__(self, brokers: Mapping[str, Source]) -> None:
        self.brokers = brokers
        self.silent: dict[str, str] = {}  # broker → why it did not answer
        self.url = f"{len(brokers)} brokers"

    async def ask_all(self, path: str, query: Mapping[str, object] | None) -> dict[str, Json]:
        """The answer of each that answers; the error of the first, where none does. One that was silent is not asked again: a
        page waits for it once.
        """
        asked = {name: one for name, one in self.brokers.items() if name not in self.silent} or self.brokers
        told = await asyncio.gather(*(one.get(path, query) for one in asked.values()), return_exceptions=True)
        found: dict[str, Json] = {}
        errors: list[Unreachable | Refusal] = []
        for name, answer in zip(asked, told, strict=True):
            if isinstance(answer, Unreachable | Refusal):
                self.silent[name] = str(answer)
                errors.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                found[name] = answer
        if not found:
            raise errors[0]
        return found

    async def get(self, path: str, query: Mapping[str, object] | None = None) -> Json:
        """What all tell, as one."""
        told = await self.ask_all(path, query)
        if path == "/api/history":
            return added_history(list(told.values()))
        return added_snapshots(told, self.silent)

    async def change(self, method: str, path: str, body: bytes = b"") -> bytes:
        """The same change at each."""
        return b"".join([await one.change(method, path, body) for one in self.brokers.values()])

    def forget(self) -> None:
        for one in self.brokers.values():
            one.forget()


def _added(rows: Sequence[Json]) -> Json:
    """Rows of numbers as one: sums, but for what is no sum; of what is no number the first. None: nobody knows."""
    found: dict[str, Json] = dict(rows[0])
    for name in found:
        values = [row.get(name) for row in rows if row.get(name) is not None]
        if values and all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            found[name] = max(values) if name in _HIGHEST else sum(values)
        elif values and all(isinstance(value, bool) for value in values):
            found[name] = any(values)
        elif values:
            found[name] = values[0]
    return found


def _grouped(rows: Iterable[Json], *names: str) -> list[list[Json]]:
    """Rows that agree in these."""
    found: dict[tuple[str, ...], list[Json]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in names), []).append(row)
    return list(found.values())


def _topic(rows: Sequence[Json]) -> Json:
    row = _added(rows)
    readers = [_added(same) for same in _grouped((one for each in rows for one in each["readers"]), "kind", "name")]
    row["readers"] = sorted(readers, key=lambda one: (-one["lag"], one["name"]))
    return row


def added_snapshots(told: Mapping[str, Json], silent: Mapping[str, str]) -> Json:
    """The snapshots of several brokers as that of one, with a row for each of them."""
    heads = list(told.values())
    first = heads[0]
    found: dict[str, Json] = {
        **first,
        "name": f"{len(told) + len(silent)} brokers",
        "role": "sums",
        "started": max(head["started"] for head in heads),
        "rates": _added([head["rates"] for head in heads]),
        "disk": _added([head["disk"] for head in heads]),
        "health": "; ".join(f"{name}: {head['health']}" for name, head in told.items() if head["health"]),
        "replicas": [row for head in heads for row in head["replicas"]],
        "brokers": [{name: head[name] for name in ("name", "role", "started", "rates", "disk")} for head in heads],
        "silent": [{"name": name, "why": why} for name, why in silent.items()],
    }
    if "topics" in first:
        rows = _grouped((row for head in heads for row in head["topics"]), "topic")
        found["topics"] = sorted(map(_topic, rows), key=lambda row: str(row["topic"]))
    if "clients" in first:
        found["clients"] = [row for head in heads for row in head["clients"]]
    return found


def added_history(told: Sequence[Json]) -> Json:
    """The histories of several brokers as that of one, moment by moment."""
    return {key: _series([one[key] for one in told if one.get(key) is not None]) for key in told[0]}


def _series(found: Sequence[Json]) -> Json:
    """Series as one: what begins later is unknown before. Those of another step are left out."""
    if not found:
        return None
    step = found[0]["step"]
    found = [one for one in found if one["step"] == step]
    since = min(one["since"] for one in found)
    names = [name for name in found[0] if isinstance(found[0][name], list)]
    added: dict[str, Json] = {"since": since, "step": step}
    for name in names:
        moments: list[list[float]] = []
        for one in found:
            for at, value in enumerate(one[name], (one["since"] - since) // step):
                while len(moments) <= at:
                    moments.append([])
                if value is not None:
                    moments[at].append(value)
        whole = max if name in _HIGHEST else sum
        added[name] = [whole(values) if values else None for values in moments]
    return added
