"""`caller`: questions over a connection that is made when it is needed, and again when it is gone."""

from __future__ import annotations

import asyncio

import pytest

from penstock.app import Server
from penstock.config import RegistryConfig
from penstock.registration.caller import Caller
from penstock.wire.codes import RequestCode
from penstock.wire.remoting import RemotingCommand
from ports import free_port
from silence import silent


def registry(folder: object, port: int = 0) -> Server:
    return Server(None, RegistryConfig(data=str(folder), registry_port=port, lookup_port=-1, lookup_http_port=-1))


async def test_answers_come_over_one_connection_until_it_is_gone(tmp_path: object) -> None:
    port = free_port()
    lost: list[int] = []
    async with registry(f"{tmp_path}/mine") as mine:
        caller = Caller(mine.net, f"127.0.0.1:{port}", lost=lambda: lost.append(1))
        with pytest.raises(OSError, match=r"refused|Connect call failed|111"):
            await caller.ask(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        for turn in range(2):
            async with registry(f"{tmp_path}/other", port) as other:
                for _ in range(3):
                    reply = await caller.ask(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
                    assert b"brokerAddrTable" in reply.body
                assert len(other.net.connections) == 1
                with pytest.raises(ConnectionRefusedError, match="code"):
                    await caller.ask(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "none"}))
            async with asyncio.timeout(30):
                while len(lost) == turn:
                    await asyncio.sleep(0.01)


async def test_a_machine_that_is_off_is_not_waited_for(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses nothing, and the kernel tries for minutes."""
    monkeypatch.setattr("penstock.registration.caller.ANSWER_MS", 300)
    with silent() as port:
        async with registry(f"{tmp_path}/mine") as mine, asyncio.timeout(60):
            with pytest.raises(TimeoutError):
                await Caller(mine.net, f"127.0.0.1:{port}").ask(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))


async def test_nothing_is_left_open(tmp_path: object) -> None:
    async with registry(f"{tmp_path}/mine") as mine, registry(f"{tmp_path}/other") as other:
        caller = Caller(mine.net, other.addresses["registry"])
        await caller.ask(RemotingCommand(RequestCode.GET_BROKER_CLUSTER_INFO))
        caller.close()
        async with asyncio.timeout(30):
            while other.net.connections:
                await asyncio.sleep(0.01)
