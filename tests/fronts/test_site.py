"""The ASGI application of the HTTP fronts: who may ask, which handler answers, what an error becomes."""

from __future__ import annotations

import pytest
from asking import ask

from penstock.errors import Refused, StoreError
from penstock.fronts.site import OK, Answer, Request, Site, parse_query, topic_and_channel, valid_name


def site(handler: object = lambda request: OK) -> Site:
    made = Site(["shop.test"])
    made.routes = {"/a": {"GET": handler, "POST": handler}, "/config/:name": {"GET": handler}}  # type: ignore[dict-item]
    return made


@pytest.mark.parametrize(
    ("host", "ours"),
    [("shop.test", True), ("SHOP.test:4151", True), ("shop.test.", True), ("127.0.0.1:1", True), ("[::1]:1", True),
     ("10.9.8.7", True), ("localhost", True), ("", True), ("evil.test", False), ("127.0.0.1.evil.test", False)],
)  # fmt: skip
def test_a_name_that_others_can_make_point_here_is_not_ours(host: str, ours: bool) -> None:
    refusal = site().guard([(b"host", host.encode())])
    assert (refusal is None) is ours
    assert site().guard([(b"host", host.encode())], local=True) is None


def test_a_page_in_a_browser_may_not_ask() -> None:
    made = site()
    refusal = made.guard([(b"host", b"shop.test"), (b"origin", b"null")])
    assert refusal is not None
    assert (refusal.status, made.rejected) == (403, {"ORIGIN_NOT_ALLOWED": 1})
    assert Site(["*"]).guard([(b"host", b"evil.test")]) is None


@pytest.mark.parametrize(
    ("method", "target", "status", "header"),
    [("GET", "/a", 200, None), ("GET", "/config/x", 200, None), ("GET", "/config/", 404, None), ("GET", "/b", 404, None),
     ("PUT", "/a", 405, ("allow", "GET, OPTIONS, POST")), ("OPTIONS", "/a", 200, ("allow", "GET, OPTIONS, POST")),
     ("GET", "/a/?q=1", 301, ("location", "/a?q=1")), ("POST", "/a/", 307, ("location", "/a")),
     ("GET", "//a?q=1", 301, ("location", "/a?q=1")), ("POST", "/./A//", 307, ("location", "/a")),
     ("GET", "//b", 404, None), ("PUT", "//a", 404, None), ("GET", "/", 404, None), ("GET", "//evil.test/a", 404, None),
     ("GET", "/config/x/", 301, ("location", "/config/x")), ("GET", "/Config/X", 301, ("location", "/config/x")),
     ("GET", "/config/x\r\ny: z/", 301, ("location", "/config/x%0D%0Ay%3A%20z"))],
)  # fmt: skip
async def test_routes(method: str, target: str, status: int, header: tuple[str, str] | None) -> None:
    told = await ask(site(), method, target)
    assert told.status == status
    assert header is None or told.headers[header[0]] == header[1]


@pytest.mark.parametrize(
    ("error", "short"),
    [(Refused("MSG_EMPTY", http=400), (400, "MSG_EMPTY")), (StoreError("disk"), (503, "NOT_STORED: disk")),
     (ValueError("a mistake"), (500, "INTERNAL_ERROR"))],
)  # fmt: skip
async def test_what_an_error_becomes(error: Exception, short: tuple[int, str]) -> None:
    def handler(request: Request) -> Answer:
        raise error

    assert (await ask(site(handler), "GET", "/a")).short == short


async def test_a_body_has_a_limit() -> None:
    async def handler(request: Request) -> Answer:
        body = await request.body(5)
        return Answer(200, b"none" if body is None else body)

    assert (await ask(site(handler), "POST", "/a", b"12345")).body == b"12345"
    assert (await ask(site(handler), "POST", "/a", b"123456")).body == b"none"


def test_queries() -> None:
    assert parse_query(b"a=1&b=x%20y+z&a=2&c&&=v") == {"a": "1", "b": "x y z", "c": "", "": "v"}
    for bad in (b"a;b", b"a=%", b"a=%zz"):
        with pytest.raises(Refused, match="INVALID_REQUEST"):
            parse_query(bad)
    assert topic_and_channel({"topic": "t", "channel": "c#ephemeral"}) == (b"t", b"c#ephemeral")
    with pytest.raises(Refused, match="MISSING_ARG_CHANNEL"):
        topic_and_channel({"topic": "t"})
    assert [valid_name(name) for name in ("t", "t" * 64, "", "t" * 65, "a b", "\udc80")] == [True, True] + [False] * 4
