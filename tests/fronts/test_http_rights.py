"""Every HTTP path of a broker and a registry against five kinds of people."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asking import Told, ask

from access.people import SECRET, rights_of, user
from broker.queueside import Side
from penstock.access.users import token_digest
from penstock.fronts.http.nsqd import NsqHttp
from penstock.fronts.lookupd import Lookupd, LookupHttp
from penstock.fronts.site import Site
from penstock.registry.producers import ProducerTables

OPEN = "open"
KNOWN = ""

# `|`: any one of these; a blank: all of them.
BROKER = {
    "GET /ping": OPEN,
    "GET /healthz": OPEN,
    "GET /ready": OPEN,
    "GET /info": KNOWN,
    "POST /pub": "publish:T",
    "POST /mpub": "publish:T",
    "GET /stats": "publish:T|subscribe:T|monitor",
    "GET /metrics": "monitor",
    "POST /topic/create": "publish:T",
    "POST /topic/delete": "admin",
    "POST /topic/empty": "admin",
    "POST /topic/pause": "admin",
    "POST /topic/unpause": "admin",
    "POST /channel/create": "subscribe:T group:C",
    "POST /channel/delete": "admin",
    "POST /channel/empty": "admin",
    "POST /channel/pause": "admin",
    "POST /channel/unpause": "admin",
    "GET /api/topics/:name/messages": "subscribe:T",
    "GET /api/snapshot": "monitor",
    "GET /api/history": "monitor",
    "GET /config/:name": "monitor",
    "PUT /config/:name": "admin",
    "POST /debug/freememory": "admin",
    "GET /debug/stacks": "admin",
}
REGISTRY = {
    "GET /ping": OPEN,
    "GET /healthz": OPEN,
    "GET /ready": OPEN,
    "GET /info": KNOWN,
    "GET /debug": "monitor",
    "GET /lookup": "publish:T|subscribe:T|monitor",
    "GET /topics": "monitor",
    "GET /channels": "publish:T|subscribe:T|monitor",
    "GET /nodes": "monitor",
    "POST /topic/create": "admin",
    "POST /topic/delete": "admin",
    "POST /topic/tombstone": "admin",
    "POST /channel/create": "admin",
    "POST /channel/delete": "admin",
}
OTHERS = ("publish:X", "subscribe:X", "group:X", "register")


class People:
    """Users of both sites, by the rights they have."""

    def __init__(self, folder: Path, rows: list[str]) -> None:
        self.wanted: dict[str, tuple[str, ...]] = {"root": ("admin",), "wrong": OTHERS, "nothing": ()}
        for row in rows:
            together = row.split()
            for number, one in enumerate(together):
                for right in one.split("|"):
                    others = [other.split("|")[0] for other in together[:number] + together[number + 1 :]]
                    self.name(right, *others)
                if len(together) > 1:
                    self.name(*OTHERS, *(other for other in together if other != one))
        self.rights = rights_of(folder, *(user(name, *granted) for name, granted in self.wanted.items()))

    def name(self, *granted: str) -> str:
        name = "u." + ".".join(granted).replace(":", "-")
        self.wanted[name] = granted
        return name


@pytest.fixture
def people(tmp_path: Path) -> People:
    return People(tmp_path / "rights", [row for row in (*BROKER.values(), *REGISTRY.values()) if row != OPEN])


async def told_to(site: Site, route: str, headers: dict[str, str]) -> Told:
    method, path = route.split(" ")
    target = path.replace("/topics/:name/", "/topics/T/").replace(":name", "log_level") + "?topic=T&channel=C&node=n:1"
    return await ask(site, method, target, b"info", {"host": "127.0.0.1", **headers})


def basic(name: str, secret: str = "") -> dict[str, str]:
    return {"authorization": "Basic " + b64encode(f"{name}:{secret or SECRET + name}".encode()).decode()}


async def check(site: Site, route: str, row: str, people: People) -> None:
    async def status(headers: dict[str, str]) -> int:
        return (await told_to(site, route, headers)).status

    if row == OPEN:
        assert await status({}) == 200
        return
    nobody = await told_to(site, route, {})
    wrong = await told_to(site, route, basic("root", "wrong-secret"))
    unknown = await told_to(site, route, basic("stranger"))
    assert nobody == wrong == unknown
    assert nobody.status == 401
    assert nobody.headers["www-authenticate"].startswith("Basic ")
    assert (await status(basic("wrong")) == 403) is (await status(basic("nothing")) == 403) is (row != KNOWN)
    together = row.split()
    for one in together:
        others = [other.split("|")[0] for other in together if other != one]
        if others:
            assert await status(basic(people.name(*OTHERS, *others))) == 403
        for right in one.split("|"):
            assert await status(basic(people.name(right, *others))) not in (401, 403)
    assert await status(basic("root")) not in (401, 403)


@pytest.fixture
def broker_site(tmp_path: Path, people: People) -> Any:
    side = Side(tmp_path / "data")
    site = NsqHttp(side.broker, rights=people.rights)
    yield site
    side.close()


@pytest.fixture
def registry_site(people: People) -> LookupHttp:
    return LookupHttp(Lookupd(ProducerTables(), rights=people.rights))


def routes(site: Site) -> set[str]:
    return {f"{method} {path}" for path, methods in site.routes.items() for method in methods}


def test_no_route_is_without_a_row(broker_site: NsqHttp, registry_site: LookupHttp) -> None:
    assert routes(broker_site) == set(BROKER) == set(broker_site.needs)
    assert routes(registry_site) == set(REGISTRY) == set(registry_site.needs)


@pytest.mark.parametrize("route", BROKER)
async def test_who_may_ask_a_broker(broker_site: NsqHttp, people: People, route: str) -> None:
    await check(broker_site, route, BROKER[route], people)


@pytest.mark.parametrize("route", REGISTRY)
async def test_who_may_ask_a_registry(registry_site: LookupHttp, people: People, route: str) -> None:
    await check(registry_site, route, REGISTRY[route], people)


async def test_statistics_of_all_topics_are_for_monitors(broker_site: NsqHttp, people: People) -> None:
    site = broker_site
    assert (
        await ask(site, "GET", "/stats", b"", {"host": "localhost", **basic(people.name("publish:T"))})
    ).status == 403
    assert (await ask(site, "GET", "/stats", b"", {"host": "localhost", **basic(people.name("monitor"))})).status == 200


async def test_a_token_and_a_head(tmp_path: Path) -> None:
    rights = rights_of(tmp_path / "rights", user("m", "monitor", tokens=(token_digest("tok"),)))
    site = LookupHttp(Lookupd(ProducerTables(), rights=rights))
    headers = {"host": "localhost", "authorization": "Bearer tok"}
    assert (await ask(site, "GET", "/topics", b"", headers)).status == 200
    assert (await ask(site, "GET", "/topics", b"", {"host": "localhost", "authorization": "Bearer tik"})).status == 401


def test_an_nsqd_registers_by_its_address_or_not_at_all(tmp_path: Path) -> None:
    far = user("far", "register").__class__("far", rights=user("x", "register").rights, addresses=("10.0.0.1",))
    lookupd = Lookupd(ProducerTables(), rights=rights_of(tmp_path / "rights", far))
    body = b'{"broadcast_address":"b","hostname":"h","http_port":1,"tcp_port":2,"version":"1"}'
    identify = b"  V1IDENTIFY\n" + len(body).to_bytes(4, "big") + body

    def answer(remote: str) -> SimpleNamespace:
        session = lookupd.session(remote, lambda: None)
        session.feed(bytearray(identify), len(identify))
        return SimpleNamespace(said=session.take()[4:], closing=session.closing)

    assert answer("10.0.0.1:5").said.startswith(b"{")
    refused = answer("127.0.0.1:5")
    assert refused.said.startswith(b"E_AUTH_FIRST")
    assert refused.closing
