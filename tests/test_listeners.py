"""Bound sockets: nobody else reaches them unless somebody said so."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.listeners import Ports, address_of, bind, port_of


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=str(port)) as refused:
            bind("127.0.0.1", port, False, "--nsq-port")
        assert "choose --nsq-port" in (refused.value.hint or "")


@pytest.mark.parametrize("host", ["192.0.2.7", "a..b", "\udcff"])
def test_an_address_that_is_not_here_is_no_matter_of_ports(host: str) -> None:
    with pytest.raises(ConfigError, match="cannot listen") as refused:
        bind(host, 0, True, "--nsq-port")
    assert "address of this machine" in (refused.value.hint or "")


def test_an_address_for_everybody_must_be_meant() -> None:
    with pytest.raises(ConfigError, match="no authentication"):
        bind("0.0.0.0", 0, False, "--host")
    bind("0.0.0.0", 0, True, "--host").close()
    bind("127.0.0.1", 0, False, "--host").close()


def test_the_file_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    path = str(tmp_path / "nsq.sock")
    bind(path, 0, False, "--host").close()
    listener = bind(path, 0, False, "--host")
    assert (address_of(listener), port_of(path), port_of("127.0.0.1:7")) == (path, -1, 7)
    listener.listen()
    with pytest.raises(ConfigError, match="cannot listen"):
        bind(path, 0, False, "--host")
    listener.close()


def test_a_port_is_kept_while_nobody_listens(tmp_path: Path) -> None:
    ports = Ports()
    first = ports.bind("nsq", "127.0.0.1", 0, False, "--host")
    first.listen()
    port = port_of(address_of(first))
    first.close()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind(("127.0.0.1", port))
    with socket.socket() as client:
        assert client.connect_ex(("127.0.0.1", port)) != 0
    with ports.bind("nsq", "127.0.0.1", port, False, "--host") as again:
        again.listen()
        socket.create_connection(("127.0.0.1", port)).close()
    ports.bind("http", str(tmp_path / "nsq.sock"), 0, False, "--host").close()
    ports.give_up()
    with socket.create_server(("127.0.0.1", port)):
        pass
