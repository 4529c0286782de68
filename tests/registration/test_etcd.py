"""etcd as the engine: with real ones, and behind a port that keeps answers back, or breaks them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from certificates import Authority
from etcd_parts import Etcd as RealEtcd
from etcd_parts import Forwarder
from penstock.config import BrokerConfig
from penstock.errors import ConfigError
from penstock.registration import etcd as module
from penstock.registration.engine import EngineAway
from penstock.registration.etcd import Etcd
from penstock.wire.etcd import Holds, Put, Unchanged

pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def behind(real: RealEtcd) -> Iterator[Forwarder]:
    real.empty()
    made = Forwarder(real.clients[0])
    yield made
    made.stop()


def client(*ports: int, **more: str) -> Etcd:
    return Etcd(BrokerConfig(engine="etcd://" + ",".join(f"127.0.0.1:{port}" for port in ports), **more))  # type: ignore[arg-type]


async def test_keys_leases_and_changes(behind: Forwarder) -> None:
    etcd = client(behind.port)
    lease = await etcd.grant(60)
    assert await etcd.keep(lease)
    assert not await etcd.keep(lease + 1)
    first = await etcd.change([Unchanged("/p/a", 0)], [Put("/p/a", b"1", lease), Put("/p/b", b"\x00\xff")])
    assert first > 0
    assert await etcd.change([Unchanged("/p/a", 0)], [Put("/p/a", b"2")]) == 0
    found = await etcd.read("/p/")
    assert {key: (entry.value, entry.lease) for key, entry in found.items()} == {
        "/p/a": (b"1", lease), "/p/b": (b"\x00\xff", 0),
    }  # fmt: skip
    assert found["/p/a"].revision == first
    assert await etcd.change([Unchanged("/p/a", first), Holds("/p/b", b"?")], [Put("/p/a", b"2")]) == 0
    second = await etcd.change([Unchanged("/p/a", first), Holds("/p/b", b"\x00\xff")], [Put("/p/a", b"2", lease)])
    assert second > first
    assert await etcd.change([], [Put("/p/c", b"", lease + 1)]) == 0  # no such lease
    await etcd.revoke(lease)
    await etcd.revoke(lease)
    assert list(await etcd.read("/p/")) == ["/p/b"]
    await etcd.close()


@pytest.mark.parametrize("way", ["hang", "close", "half", "garbage", "late"])
async def test_a_bad_answer_is_no_answer(behind: Forwarder, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    etcd = client(behind.port)
    await etcd.change([], [Put("/p/a", b"1")])
    behind.way = way
    with monkeypatch.context() as hasty:
        hasty.setattr(module, "CALL_S", 0.5)
        for ask in (etcd.read("/p/"), etcd.grant(5), etcd.keep(7), etcd.change([], [Put("/p/b", b"1")])):
            with pytest.raises(EngineAway):
                await ask
    behind.way = "pass"
    assert (await etcd.read("/p/"))["/p/a"].value == b"1"  # and not an answer to a question before
    await etcd.close()


async def test_a_change_that_may_have_been_made_is_not_said_to_be_none(
    real: RealEtcd, behind: Forwarder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was carried out by the first member, which kept the answer; the second one says that its condition does not hold."""
    monkeypatch.setattr(module, "CALL_S", 3.0)  # longer than a busy machine stands still
    etcd = client(behind.port, real.clients[0])
    behind.way = "hang"
    with pytest.raises(EngineAway):
        await etcd.change([Unchanged("/p/x", 0)], [Put("/p/x", b"1")])
    assert (await etcd.read("/p/"))["/p/x"].value == b"1"
    assert await etcd.change([Unchanged("/p/x", 0)], [Put("/p/x", b"2")]) == 0  # by the good one alone
    await etcd.close()


async def test_the_next_member_is_asked(real: RealEtcd) -> None:
    dead = Forwarder(real.clients[0])
    dead.stop()
    etcd = client(dead.port, real.clients[0])
    assert await etcd.grant(5)
    lost = client(dead.port)
    with pytest.raises(EngineAway) as error:
        await lost.grant(5)
    assert f"127.0.0.1:{dead.port}" in str(error.value)
    await asyncio.gather(etcd.close(), lost.close())


async def test_a_connection_that_died_is_made_anew(behind: Forwarder, real: RealEtcd) -> None:
    etcd = client(behind.port)
    await etcd.read("/p/")
    behind.way = "close"
    with pytest.raises(EngineAway):
        await etcd.read("/p/")
    behind.way = "pass"
    await etcd.read("/p/")
    await etcd.close()


async def test_an_answer_without_end(tmp_path: Path) -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        try:
            while True:
                writer.write(b"10000\r\n" + b" " * (1 << 16) + b"\r\n")
                await writer.drain()
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(flood, "127.0.0.1", 0)
    etcd = client(server.sockets[0].getsockname()[1])
    with pytest.raises(EngineAway) as error:
        await etcd.read("/p/")
    assert "does not end" in str(error.value)
    await etcd.close()
    server.close()


async def test_users_and_passwords(tmp_path: Path) -> None:
    real = RealEtcd(tmp_path).start()
    secret = tmp_path / "password"
    secret.write_text("right\n")
    secret.chmod(0o600)
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong")
    wrong.chmod(0o600)
    try:
        real.ask("auth/user/add", {"name": "root", "password": "right"})
        real.ask("auth/user/grant", {"user": "root", "role": "root"})
        real.ask("auth/enable", {})
        nobody, liar = (
            client(real.clients[0]),
            client(real.clients[0], engine_user="root", engine_password_file=str(wrong)),
        )
        for etcd in (nobody, liar):
            with pytest.raises(EngineAway):
                await etcd.change([], [Put("/p/a", b"1")])
            await etcd.close()
        etcd = client(real.clients[0], engine_user="root", engine_password_file=str(secret))
        assert await etcd.change([], [Put("/p/a", b"1")])
        real.kill()  # it forgets tokens
        real.start_member(0)

        async def again() -> bool:
            try:
                return "/p/a" in await etcd.read("/p/")
            except EngineAway:
                return False

        deadline = time.monotonic() + 60
        while not await again():
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        await etcd.close()
        os.chmod(secret, 0o644)
        with pytest.raises(ConfigError):
            client(real.clients[0], engine_user="root", engine_password_file=str(secret))
    finally:
        real.stop()


async def test_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, ours = authority.sign("etcd"), authority.sign("broker")
    real = RealEtcd(tmp_path, certificate=server, authority=authority)
    files = {"engine_ca_file": str(authority.cert), "engine_cert": str(ours.cert), "engine_key": str(ours.key)}
    member = f"etcds://127.0.0.1:{real.clients[0]}"
    try:
        real.start_member(0)
        etcd = Etcd(BrokerConfig(engine=member, **files))  # type: ignore[arg-type]
        for _ in range(1_000):
            try:
                assert await etcd.change([], [Put("/p/a", b"1")])
                break
            except EngineAway:
                await asyncio.sleep(0.02)
        assert (await etcd.read("/p/"))["/p/a"].value == b"1"
        await etcd.close()
        stranger = Etcd(BrokerConfig(engine=member, engine_ca_file=files["engine_ca_file"]))
        unknown = Etcd(BrokerConfig(engine=member))  # whose authority nobody knows
        for one in (stranger, unknown):
            with pytest.raises(EngineAway):
                await one.read("/p/")
            await one.close()
    finally:
        real.stop()
