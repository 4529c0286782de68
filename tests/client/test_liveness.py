"""`client.liveness`: a machine that is gone is known by its system's silence; one that is busy, or stopped, is not gone."""

from __future__ import annotations

import asyncio
import socket
from struct import Struct
from typing import cast

import pytest

from chaos import gone
from chaos.machines import can_make_machines
from client.steps import idle_time
from penstock.client.liveness import GONE, GONE_MS, LOOK_S, Watch, is_gone, keep_asking

INFO = Struct("=2x B B 52x I")


class Told:
    """What the system says of a connection."""

    def __init__(self, repeats: int, probes: int, silent_ms: int) -> None:
        self.info = INFO.pack(repeats, probes, silent_ms)
        self.options: dict[tuple[int, int], int] = {}

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        self.options[level, option] = value

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes:
        assert (level, option, size) == (socket.IPPROTO_TCP, socket.TCP_INFO, INFO.size)
        return self.info


@pytest.mark.parametrize(
    ("repeats", "probes", "silent_ms", "expected"),
    [
        (5, 0, GONE_MS, True),  # what was sent is sent again, and again
        (0, 3, GONE_MS, True),  # nothing was sent: it was asked
        (0, 1, 3 * GONE_MS, False),  # a closed window, asked after just now: the answer is on its way
        (5, 0, GONE_MS - 1, False),
        (0, 0, 100 * GONE_MS, False),  # a closed window: its system says so when it is asked, ever less often
    ],
)
def test_who_is_gone(repeats: int, probes: int, silent_ms: int, expected: bool) -> None:
    assert is_gone(Told(repeats, probes, silent_ms)) is expected


@pytest.mark.parametrize("system", ["freebsd14", "darwin", "win32"])
def test_only_linux_is_asked(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    """FreeBSD has a TCP_INFO, too: other numbers stand where Linux' are."""
    monkeypatch.setattr("sys.platform", system)
    assert not is_gone(Told(5, 5, 3 * GONE_MS))


def test_who_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        keep_asking(one)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert not is_gone(one)


class Transport:
    """What of an event loop's transport is used here."""

    def __init__(self, told: Told) -> None:
        self.told, self.aborted = told, 0

    def get_extra_info(self, name: str) -> Told:
        assert name == "socket"
        return self.told

    def abort(self) -> None:
        self.aborted += 1


async def test_a_connection_is_looked_at_until_it_ends() -> None:
    with idle_time():
        transport, errors = Transport(Told(0, 0, 0)), list[Exception]()
        watch = Watch(cast(asyncio.Transport, transport), errors.append)
        await asyncio.sleep(10 * LOOK_S)
        assert (transport.aborted, errors) == (0, [])
        transport.told.info = INFO.pack(3, 0, GONE_MS)
        await asyncio.sleep(2 * LOOK_S)
        assert transport.aborted == 1
        assert [str(error) for error in errors] == [GONE]
        other = Transport(Told(3, 0, GONE_MS))
        Watch(cast(asyncio.Transport, other), errors.append).stop()
        await asyncio.sleep(2 * LOOK_S)
        watch.stop()
        assert (other.aborted, transport.aborted, len(errors)) == (0, 1, 1)


def test_machines() -> None:
    """One is cut off, of the other no process takes what comes: the first is gone, and only that."""
    reason = can_make_machines()
    if reason is not None:
        pytest.skip(f"machines of their own cannot be made here: {reason}")
    told: list[str] = []
    gone.run(told.append)
    assert told == ["gone: an idle one, one that was spoken to", "there: an idle one, one that takes nothing"]
