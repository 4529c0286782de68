"""The process: sockets that are taken, addresses that are not safe, roles alone and together."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from access.people import user, write
from penstock import Message, listeners
from penstock.aio import Producer
from penstock.app import Server, _demand_no_error
from penstock.client.results import SendStatus
from penstock.clock import FakeClock
from penstock.config import BrokerConfig, RegistryConfig
from penstock.errors import ConfigError, Locked
from penstock.listeners import address_of, bind, port_of
from penstock.msgid import unpack_host
from ports import free_port

FREE = {"remoting_port": 0, "nsq_port": 0, "http_port": 0, "host": "127.0.0.1"}


async def test_a_broker_alone(tmp_path: Path) -> None:
    async with Server(BrokerConfig(data=str(tmp_path), mapped_file_size_commit_log=1 << 20, **FREE), None) as server:  # type: ignore[arg-type]
        assert {"remoting", "nsq", "http"} <= set(server.addresses)
        assert "registry" not in server.addresses
        assert server.broker is not None


async def test_a_registry_alone(tmp_path: Path) -> None:
    config = RegistryConfig(data=str(tmp_path), registry_port=0, lookup_port=-1, lookup_http_port=-1, host="127.0.0.1")
    async with Server(None, config) as server:
        assert set(server.addresses) == {"registry"}
        assert server.broker is None


async def test_two_registries_have_not_one_folder(tmp_path: Path) -> None:
    config = RegistryConfig(data=str(tmp_path), registry_port=0, lookup_port=-1, lookup_http_port=-1, host="127.0.0.1")
    for _ in range(2):  # behind its end another one may
        async with Server(None, config):
            with pytest.raises(Locked, match="in use by another registry"):
                async with Server(None, config):
                    raise AssertionError("each would write over what the other was told")


@pytest.mark.parametrize("wanted", [True, False])
async def test_old_rocketmq_clients_find_the_port_two_below_unless_it_is_not_wanted(
    tmp_path: Path, wanted: bool
) -> None:
    while True:
        port = free_port()
        settings = {**FREE, "remoting_port": port, "vip_port": wanted, "mapped_file_size_commit_log": 1 << 20}
        with socket.socket() as below:
            try:
                below.bind(("127.0.0.1", port - 2))
                break
            except OSError:
                continue

    async with Server(BrokerConfig(data=str(tmp_path), **settings), None):  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setblocking(False)
            try:
                await loop.sock_connect(client, ("127.0.0.1", port - 2))
                connected = True
            except ConnectionRefusedError:
                connected = False
    assert connected is wanted


async def test_a_port_two_below_that_is_taken_is_no_reason_not_to_start(tmp_path: Path) -> None:
    port = free_port()
    with socket.create_server(("127.0.0.1", port - 2)):
        config = BrokerConfig(
            data=str(tmp_path), mapped_file_size_commit_log=1 << 20, **{**FREE, "remoting_port": port}  # type: ignore[arg-type]
        )  # fmt: skip
        async with Server(config, None) as server:
            assert server.addresses["remoting"] == f"127.0.0.1:{port}"


@pytest.mark.parametrize(("setting", "option"), [("ha_port", "--set ha_port=…"), ("nsq_port", "--nsq-port")])
async def test_who_finds_a_port_taken_is_told_an_option_that_there_is(
    tmp_path: Path, setting: str, option: str
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = BrokerConfig(data=str(tmp_path), **{**FREE, setting: taken.getsockname()[1]})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="cannot listen on") as told:
            await Server(config, None).__aenter__()
    assert f"or choose {option};" in told.value.hint


async def test_users_open_the_door_to_other_machines(tmp_path: Path) -> None:
    config = BrokerConfig(data=str(tmp_path), mapped_file_size_commit_log=1 << 20, **{**FREE, "host": "0.0.0.0"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no authentication"):
        async with Server(config, None):
            pass
    write(tmp_path / "users.toml", user("root", "admin"))
    async with Server(config, None) as server:
        assert server.addresses["remoting"].startswith("0.0.0.0:")


async def test_clients_that_are_told_an_address_of_their_own_machine_are_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Clients of other machines look for a broker that listens on every address at home, and nothing said why."""
    config = BrokerConfig(
        data=str(tmp_path), mapped_file_size_commit_log=1 << 20, insecure=True, **{**FREE, "host": "0.0.0.0"}  # type: ignore[arg-type]
    )  # fmt: skip
    for advertise, warned in (("127.0.0.1", False), ("", True)):
        async with Server(replace(config, advertise=advertise), None):
            assert ("set advertise" in caplog.text) is warned


async def test_a_broker_that_clients_know_by_name(tmp_path: Path) -> None:
    """Its name stands in routes, its address in records."""
    config = BrokerConfig(
        data=str(tmp_path), mapped_file_size_commit_log=1 << 20, **{**FREE, "host": "localhost", "advertise": "localhost:1"}  # type: ignore[arg-type]
    )  # fmt: skip
    shared = RegistryConfig(data=str(tmp_path), registry_port=0, lookup_port=-1, lookup_http_port=-1, host="localhost")
    async with Server(config, shared) as server:
        assert server.addresses["remoting"].startswith("localhost:")
        assert server.broker is not None
        registry = server.addresses["registry"]
        async with Producer(registry) as producer:
            receipt = await producer.send(Message("named", b"one"))
        assert unpack_host(server.broker.store_host).startswith("127.0.0.1:")
        assert receipt.status is SendStatus.SEND_OK


async def test_what_follows_or_leads_ends_with_an_error_and_the_process_with_it() -> None:
    """One that went on would be a node whom nobody tells who is the master; a cancelled one was told to end."""
    whys: list[str] = []

    async def part(error: Exception | None) -> None:
        if error is not None:
            raise error
        await asyncio.Event().wait()

    for error in (None, OverflowError("port must be 0-65535")):
        task = asyncio.create_task(part(error))
        task.add_done_callback(partial(_demand_no_error, whys.append))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    assert whys == ["replication ended: OverflowError('port must be 0-65535')"]


async def test_a_server_that_is_started_anew_keeps_its_ports_meanwhile(tmp_path: Path) -> None:
    """The system gave one to somebody else now and then, and the broker ended."""
    server = Server(BrokerConfig(data=str(tmp_path), mapped_file_size_commit_log=1 << 20, **FREE), None)  # type: ignore[arg-type]
    async with server:
        before = dict(server.addresses)
        server.start_again("a test")
    ports = [int(address.rpartition(":")[2]) for address in before.values()]
    for port in ports:
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
    server.prepare_again()
    async with server:
        assert server.addresses == before
    for port in ports:
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", port))
            other.listen()


async def test_time_goes_on_when_the_role_changes_whatever_the_machines_clock_says_by_then(tmp_path: Path) -> None:
    """A slave whose clock was set meanwhile delivered all delayed messages at once as the master, or years late."""
    clock = FakeClock()
    config = BrokerConfig(data=str(tmp_path), mapped_file_size_commit_log=1 << 20, **FREE)  # type: ignore[arg-type]
    server = Server(config, None, clock=clock)
    async with server:
        assert server.broker is not None
        server.broker.time.follow(clock.now_ms() + 60_000)  # its master's
        began = server.broker.now_ms
        clock.jump(10 * 365 * 86_400_000)
        server.start_again("a test")
    clock.advance(5_000)
    server.prepare_again()
    async with server:
        assert server.broker is not None
        assert abs(server.broker.now_ms - began - 5_000) < 10
    server.prepare_again()
    async with server:  # as somebody wants it who starts it
        assert server.broker is not None
        assert abs(server.broker.now_ms - clock.now_ms()) < 10


async def test_a_port_that_somebody_else_took_while_it_was_bound_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quicker: list[socket.socket] = []

    def bind_both(host: str, port: int, insecure: bool, flag: str) -> socket.socket:
        listener = bind(host, port, insecure, flag)
        quicker.append(bind(host, port_of(address_of(listener)), insecure, flag))
        quicker[-1].listen()
        return listener

    monkeypatch.setattr(listeners, "bind", bind_both)
    server = Server(BrokerConfig(data=str(tmp_path), mapped_file_size_commit_log=1 << 20, **FREE), None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:\d+: .*in use"):
        async with server:
            pass
    for one in quicker:
        one.close()
