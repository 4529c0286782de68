"""/healthz and /ready: a full disk, a flush that failed, a step that fails; a restart is asked for only where it helps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asking import ask

from broker.queueside import Side
from penstock.disk.files import Files
from penstock.errors import StoreError
from penstock.fronts.health import Health, hindrances_of
from penstock.fronts.http.nsqd import NEEDS, NsqHttp
from penstock.fronts.lookupd import NEEDS as LOOKUP_NEEDS
from penstock.fronts.site import Site


class Disk(Files):
    used, total = 10, 1 << 40

    def usage(self, path: Path) -> tuple[int, int]:
        return self.used, self.total


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path, files=Disk())
    yield side
    side.close()


async def told(site: Any) -> tuple[int, int, list[str]]:
    ready = await ask(site, "GET", "/ready")
    assert ready.json["ready"] == (ready.status == 200) == (not ready.json["reasons"])
    return (await ask(site, "GET", "/healthz")).status, ready.status, ready.json["reasons"]


async def test_a_full_disk_is_not_ready_and_no_reason_to_restart(side: Side) -> None:
    site, disk = NsqHttp(side.broker), side.broker.files
    assert isinstance(disk, Disk)
    assert await told(site) == (200, 200, [])
    disk.used = disk.total * 92 // 100
    assert await told(site) == (200, 503, ["disk full: 91 % are used, messages are refused from 90 % on"])
    disk.used, disk.total = 1_000, 1_000 + (1 << 19)
    assert await told(site) == (200, 503, ["disk full: 524288 bytes are free"])
    disk.total = 1 << 40
    assert await told(site) == (200, 200, [])
    assert (await ask(site, "GET", "/ready")).json["name"] == "broker-a"


async def test_what_a_restart_mends(side: Side) -> None:
    site = NsqHttp(side.broker)
    failing: dict[str, str] = {}
    site.found_at(SimpleNamespace(role=SimpleNamespace(faults=SimpleNamespace(failing=failing))), 1, 2, 3)  # type: ignore[arg-type]
    failing["flushes"] = "flushes: it broke"
    assert await told(site) == (500, 503, ["flushes: it broke"])
    assert (await ask(site, "GET", "/ping")).short == (500, "NOK - flushes: it broke")
    failing.clear()
    assert await told(site) == (200, 200, [])
    side.broker.schedule.error = StoreError("schedule: Input/output error")
    reason = "delayed messages are not written down: schedule: Input/output error"
    assert await told(site) == (500, 503, [reason])


async def test_a_closed_store_is_not_ready(tmp_path: Path) -> None:
    side = Side(tmp_path, files=Disk())
    side.close()
    assert hindrances_of(side.broker) == ["the log is not open for writing"]


async def test_a_registry_answers() -> None:
    site = Site()
    site.routes = Health(None).routes
    assert await told(site) == (200, 200, [])
    assert (await ask(site, "GET", "/ready")).json["role"] == "registry"


def test_health_needs_no_login() -> None:
    for needs in (NEEDS, LOOKUP_NEEDS):
        assert [list(needs[f"GET {path}"]({})) for path in ("/healthz", "/ready")] == [[], []]
