"""The process: sockets that are taken, addresses that are not safe, roles alone and together."""

from __future__ import annotations

from pathlib import Path

import pytest

from access.people import user, write
from penstock.app import Server
from penstock.config import BrokerConfig, RegistryConfig
from penstock.errors import ConfigError

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


async def test_users_open_the_door_to_other_machines(tmp_path: Path) -> None:
    config = BrokerConfig(data=str(tmp_path), mapped_file_size_commit_log=1 << 20, **{**FREE, "host": "0.0.0.0"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no authentication"):
        async with Server(config, None):
            pass
    write(tmp_path / "users.toml", user("root", "admin"))
    async with Server(config, None) as server:
        assert server.addresses["remoting"].startswith("0.0.0.0:")
