"""/config and /debug: what is shown to everybody, and changed by those who may."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from asking import ask

from broker.queueside import Side
from penstock.fronts.http.nsqd import NsqHttp
from penstock.fronts.http.settings import LOOKUPDS_MAX, Settings

TOKEN = {"host": "127.0.0.1", "authorization": "Bearer secret"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[NsqHttp]:
    side, level = Side(tmp_path, admin_token="secret"), logging.getLogger("penstock").level
    yield NsqHttp(side.broker)
    logging.getLogger("penstock").setLevel(level)
    side.close()


async def test_nsqlookupds_are_changed_by_those_who_may(site: NsqHttp) -> None:
    settings: Settings = site.settings
    told: list[list[str]] = []
    settings.tell_lookups(told.append)
    body = json.dumps(["a:1", "[::1]:2", "a:1"]).encode()
    path = "/config/nsqlookupd_tcp_addresses"
    assert (await ask(site, "PUT", path, body)).short == (403, "ADMIN_TOKEN_REQUIRED")
    assert (await ask(site, "PUT", path, body, TOKEN)).json == ["a:1", "[::1]:2"]
    assert told == [["a:1", "[::1]:2"]]
    for bad in (b"x", b"{}", b'["no port"]', b"[5]", json.dumps([f"a:{n}" for n in range(LOOKUPDS_MAX + 1)]).encode()):
        assert (await ask(site, "PUT", path, bad, TOKEN)).short == (400, "INVALID_VALUE")
    assert len(told) == 1


async def test_what_is_logged(site: NsqHttp) -> None:
    assert (await ask(site, "PUT", "/config/log_level", b"ERROR", TOKEN)).short == (200, "4")
    assert logging.getLogger("penstock").level == logging.ERROR
    assert (await ask(site, "PUT", "/config/log_level", b"loud", TOKEN)).short == (400, "INVALID_VALUE")
    assert (await ask(site, "PUT", "/config/msg_timeout", b"5", TOKEN)).short == (400, "INVALID_OPTION")
    assert (await ask(site, "PUT", "/config/log_level", b"", TOKEN)).short == (413, "INVALID_VALUE")


async def test_every_option_of_nsqd_is_shown(site: NsqHttp) -> None:
    assert (await ask(site, "GET", "/config/msg_timeout")).short == (200, "60000000000")
    assert (await ask(site, "GET", "/config/nothing")).short == (400, "INVALID_OPTION")


async def test_a_look_inside(site: NsqHttp) -> None:
    assert b"thread" in (await ask(site, "GET", "/debug/stacks", b"", TOKEN)).body
    assert (await ask(site, "GET", "/debug/stacks")).status == 403
    assert site.rejected["ADMIN_TOKEN_REQUIRED"] == 1
