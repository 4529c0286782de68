"""/healthz and /ready: a full disk, a flush that failed, a step that fails; a restart is asked for only where it helps."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from asking import ask

from broker.queueside import Side
from penstock.disk.files import Files
from penstock.errors import Refused, StoreError
from penstock.fronts.health import Health, hindrances_of
from penstock.fronts.http.nsqd import NEEDS, NsqHttp
from penstock.fronts.lookupd import NEEDS as LOOKUP_NEEDS
from penstock.fronts.site import Site
from penstock.fronts.snapshot import Snapshot
from penstock.testing import Broker
from penstock.wire.names import TIMER_TOPIC
from polling import eventually


class Disk(Files):
    used, total = 10, 1 << 40
    number = 0  # of the error with which it gives no room

    def usage(self, path: Path) -> tuple[int, int]:
        return self.used, self.total

    def allocate(self, fd: int, at: int, length: int) -> None:
        if self.number:
            raise StoreError("no room") from OSError(self.number, "")
        super().allocate(fd, at, length)


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


@pytest.mark.parametrize("number", [errno.ENOMEM, errno.EMFILE, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO])
@pytest.mark.parametrize("kind", ["queue", "log"])
async def test_what_the_system_does_not_give_is_a_reason_for_ten_seconds(
    side: Side, number: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a load balancer sends on to a broker that can store nothing: no address space, no descriptor, a limit. But one
    file that cannot be written is no reason for all.
    """
    site, disk = NsqHttp(side.broker), side.broker.files
    assert isinstance(disk, Disk)
    disk.number = number
    if kind == "log":
        with pytest.raises(Refused):
            side.broker.sending.put_own(TIMER_TOPIC, b"", {})
    else:
        assert (await ask(site, "POST", "/pub?topic=jobs", b"body")).status == 503
    why = (
        []
        if number == errno.EIO
        else [f"nothing is stored: {os.strerror(number)}, says the system; the broker's log has of what"]
    )
    assert await told(site) == (200, 503 if why else 200, why)
    disk.number, then_ns = 0, time.monotonic_ns() + 10_000_000_000
    monkeypatch.setattr(time, "monotonic_ns", lambda: then_ns)
    assert await told(site) == (200, 200, [])


async def test_what_a_restart_mends(side: Side) -> None:
    site = NsqHttp(side.broker)
    failing: dict[str, str] = {}
    site.found_at(
        SimpleNamespace(
            role=SimpleNamespace(faults=SimpleNamespace(failing=failing)), workers=SimpleNamespace(hanging_s=0.0)
        ),
        1,
        2,
        3,
    )  # type: ignore[arg-type]
    failing["flushes"] = "flushes: it broke"
    assert await told(site) == (500, 503, ["flushes: it broke"])
    assert (await ask(site, "GET", "/ping")).short == (500, "NOK - flushes: it broke")
    failing.clear()
    assert await told(site) == (200, 200, [])
    side.broker.schedule.error = StoreError("schedule: Input/output error")
    reason = "delayed messages are not written down: schedule: Input/output error"
    assert await told(site) == (500, 503, [reason])


async def test_what_could_not_be_written_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It was no flush, but a page that says where the log ends, say; people were told "None"."""
    side = Side(tmp_path)
    site, why = NsqHttp(side.broker), "a write to live0: Input/output error"
    job = side.broker.store.upkeep._once("marks", lambda: None, lambda mono_ms: None)
    job.finish(StoreError(why), 0)
    assert await told(site) == (500, 503, [why])
    assert (await ask(site, "GET", "/ping")).short == (500, f"NOK - {why}")
    assert Snapshot(side.broker).head()["health"] == why
    side.close()  # the flush of queue topics is over, too
    assert f"flush failed, no publish is accepted until a restart error={why}" in caplog.messages


class Hanging(Files):
    """A disk whose flushes take until `goes_on` is set."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.goes_on.set()

    def datasync(self, fd: int) -> None:
        time.sleep(0.005)  # so long that no flush is the loop's own
        self.goes_on.wait()
        super().datasync(fd)


def test_a_disk_that_does_not_answer_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load balancer sent on to a broker whose every answer waited for a flush."""
    disk = Hanging()
    with Broker(files=disk) as broker:

        def reasons() -> list[str]:
            with urllib.request.urlopen(
                f"http://{broker.http}/healthz", timeout=30
            ) as alive:  # a restart would not help
                assert alive.read() == b"OK"
            try:
                with urllib.request.urlopen(f"http://{broker.http}/ready", timeout=30) as ready:
                    return list(json.load(ready)["reasons"])
            except urllib.error.HTTPError as refused:
                with refused:
                    return list(json.load(refused)["reasons"])

        def send() -> bytes:
            with urllib.request.urlopen(f"http://{broker.http}/pub?topic=jobs", b"at level os", timeout=30) as stored:
                return bytes(stored.read())

        assert send() == b"OK"
        assert reasons() == []
        monkeypatch.setattr("penstock.disk.workers.LONG_S", 0.0)
        monkeypatch.setattr("penstock.fronts.health.HANGING_S", 0.05)
        disk.goes_on.clear()
        try:
            assert send() == b"OK"
            eventually(lambda: reasons() != [])
            assert reasons()[0].startswith("the disk does not answer: a flush has taken ")
        finally:
            disk.goes_on.set()
        eventually(lambda: reasons() == [])


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
