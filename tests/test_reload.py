"""Settings taken anew, at SIGHUP and by command: what holds now does, what wants a restart is said, what is wrong is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from loglines import sentences
from penstock.cli.main import main
from penstock.config import BrokerConfig, RegistryConfig, defaults
from penstock.errors import ConfigError
from penstock.limits import Limits
from penstock.reload import AT_ONCE, LIMITS, Change, Reloading
from polling import eventually


class Up(NamedTuple):
    process: subprocess.Popen[bytes]
    file: Path
    log: Path
    addresses: dict[str, Any]

    def write(self, **settings: object) -> None:
        lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items()]
        self.file.write_text("\n".join(["[broker]", *lines]))


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    file, log = tmp_path / "p.toml", tmp_path / "log"
    file.write_text("[broker]\nmax_groups = 7\n")
    ports = [f"{name}_port=0" for name in ("remoting", "nsq", "http", "registry", "lookup", "lookup_http")]
    words = [sys.executable, "-m", "penstock.cli", "up", "--data", str(tmp_path / "data"), "--config", str(file)]
    words += [word for port in [*ports, "vip_port=false"] for word in ("--set", port)]
    with log.open("wb") as out, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=out) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            assert line.startswith(b"ready "), log.read_text()
            yield Up(process, file, log, json.loads(line[6:]))
        finally:
            process.terminate()
            process.wait(60)


def reload(up: Up, status: int = 0) -> list[dict[str, Any]]:
    done = CliRunner().invoke(main, ["config", "reload", "--json", "-n", up.addresses["registry"]])
    assert done.exit_code == status, done.output
    return [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]


def test_by_command(up: Up) -> None:
    assert reload(up) == []
    up.write(max_groups=1_000, log_level="debug", channel_window=5, file_reserved_time_hours=1)
    rows = {row["setting"]: (row["from"], row["to"], row["effect"]) for row in reload(up)}
    assert rows == {
        "broker.max_groups": (7, 1_000, "now"), "broker.log_level": ("info", "debug", "now"),
        "registry.log_level": ("info", "debug", "now"), "broker.channel_window": (10_000, 5, "restart"),
        "broker.file_reserved_time_hours": (72, 1, "now"),
    }  # fmt: skip
    assert reload(up) == []  # told once
    up.write(max_gruops=1)
    assert reload(up, status=1) == []
    assert up.process.poll() is None


def test_by_signal(up: Up) -> None:
    up.write(max_topics=3)
    os.kill(up.process.pid, signal.SIGHUP)
    eventually(lambda: "settings changed effect=now settings=broker.max_topics" in sentences(up.log))
    up.file.write_text("[broker\n")
    os.kill(up.process.pid, signal.SIGHUP)
    eventually(lambda: "settings not read, all stay as they were" in sentences(up.log))
    topics = CliRunner().invoke(main, ["topic", "add", "a", "b", "c", "d", "-n", up.addresses["registry"]])
    assert "no more than 3 topics" in topics.output


class FakeServer:
    def __init__(self) -> None:
        self.changed: list[dict[str, int]] = []
        self.renewed = 0

    def change_settings(self, values: dict[str, int], limits: set[str]) -> None:
        self.changed.append(values)

    def renew(self) -> None:
        self.renewed += 1


def test_what_is_wrong_changes_nothing() -> None:
    server, config = FakeServer(), BrokerConfig()
    read = [replace(config, log_level="loud", max_groups=1)]
    reloading = Reloading(server, (config, None), lambda: (read[0], None))  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        reloading.run()
    reloading.at_signal()
    assert (server.changed, server.renewed) == ([], 1)
    read[0] = replace(config, max_groups=1, host="::1")
    assert [(change.setting, change.effect) for change in reloading.run()] == [
        ("broker.host", "restart"), ("broker.max_groups", "now"),
    ]  # fmt: skip
    assert server.changed == [{"max_groups": 1}]


@pytest.mark.parametrize(
    "wrong",
    [
        {"topic": ({"pattern": "a*", "kind": "log"},)}, {"topic": ({"name": "["},), "broker_name": "no name"},
        {"message_delay_level": "soon"}, {"log_format": "poem"}, {"nsq_port": 10911},
    ],
)  # fmt: skip
def test_what_the_next_start_would_refuse_is_refused(wrong: dict[str, Any]) -> None:
    """It was told as a change that wants a restart, and the restart was the end."""
    server, config = FakeServer(), BrokerConfig()
    reloading = Reloading(server, (config, None), lambda: (replace(config, max_groups=1, **wrong), None))  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        reloading.run()
    assert (server.changed, reloading.configs) == ([], (config, None))


def test_the_limits_of_a_process_are_its_brokers() -> None:
    """A registry beside it has them at the start: what changed of its own was taken for both."""
    server, broker, registry = FakeServer(), BrokerConfig(), RegistryConfig()
    read = [(replace(broker, max_connections=500), replace(registry, max_connections=5, idle_timeout_ms=1))]
    reloading = Reloading(server, (broker, registry), lambda: read[0])  # type: ignore[arg-type]
    assert [change.setting for change in reloading.run()] == ["broker.max_connections"]
    alone = Reloading(server, (None, registry), lambda: (None, read[0][1]))  # type: ignore[arg-type]
    assert [change.setting for change in alone.run()] == ["registry.max_connections", "registry.idle_timeout_ms"]
    assert server.changed == [{"max_connections": 500}, {"max_connections": 5, "idle_timeout_ms": 1}]


def test_a_secret_that_changed_is_not_told() -> None:
    row = Change("broker.admin_token", "", "s3cret", "restart").row()
    assert row == {"setting": "broker.admin_token", "from": "", "to": "(not shown)", "effect": "restart"}


def test_every_name_is_a_setting() -> None:
    assert set(defaults(BrokerConfig)) >= AT_ONCE
    assert set(Limits.__annotations__) >= LIMITS
    assert "log_level" in defaults(RegistryConfig)
