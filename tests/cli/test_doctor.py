"""`penstock doctor`: each listener with its address, TLS and users."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from access.people import user, write
from certificates import Certificate
from etcd_parts import Etcd
from penstock.cli.doctor import Row
from penstock.cli.main import main
from ports import free_port


def run(folder: Path, *words: str, status: int = 0) -> dict[str, Row]:
    result = CliRunner().invoke(main, ["doctor", "--json", "--data", str(folder), *words])
    assert result.exit_code == status, result.output
    return {row["listener"]: row for row in map(json.loads, result.output.splitlines())}


def test_what_stands_by_itself_is_for_this_machine(tmp_path: Path) -> None:
    found = run(tmp_path)
    assert set(found) == {"remoting", "nsq", "http", "registry", "lookup", "lookup http"}
    assert {row["reached_by"] for row in found.values()} == {"this machine"}
    assert found["remoting"]["address"] == "127.0.0.1:10911"


def test_an_open_door_is_named(tmp_path: Path) -> None:
    assert "will not start" in str(run(tmp_path, "--host", "0.0.0.0", status=1)["nsq"]["advice"])
    write(tmp_path / "users.toml", user("root", "admin"))
    found = run(tmp_path, "--host", "0.0.0.0", status=1)
    assert (found["nsq"]["users"], found["nsq"]["tls"], found["nsq"]["reached_by"]) == (1, "no certificate", "others")
    assert "read along" in str(found["remoting"]["advice"])


def test_with_a_certificate(tmp_path: Path, server_certificate: Certificate) -> None:
    write(tmp_path / "users.toml", user("root", "admin"))
    words = [f"{name}={value}" for name, value in server_certificate.settings.items()]
    plain = run(tmp_path, "--host", "0.0.0.0", *(part for word in words for part in ("--set", word)), status=1)
    assert "require TLS" in str(plain["remoting"]["advice"])
    assert plain["https"]["advice"] == ""
    words += ["remoting_tls=required", "registry_tls=required", "lookup_tls=required", "tls_required=true"]
    strict = run(tmp_path, "--host", "0.0.0.0", *(part for word in words for part in ("--set", word)))
    assert strict["http"]["tls"] == "refused"


@pytest.mark.parametrize("text", ["[[user]", "[[user]]\nname = 1"])
def test_a_file_of_users_that_cannot_be_used(tmp_path: Path, text: str) -> None:
    (tmp_path / "users.toml").write_text(text)
    assert "cannot be used" in str(run(tmp_path, status=1)["nsq"]["advice"])


def test_a_data_folder_that_is_a_file_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    told = CliRunner().invoke(main, ["doctor", "--data", str(tmp_path / "file" / "x")])
    assert told.exit_code == 2
    assert told.output.startswith("penstock: data: ")
    assert "file is a file\n  Name another place" in told.output
    told = CliRunner().invoke(main, ["user", "add", "u", "--data", str(tmp_path / "file" / "x")])
    assert "A part of this path is a file" in told.output


def test_an_engine_that_does_not_answer(tmp_path: Path) -> None:
    port = free_port()
    engine = ("--set", f"engine=etcd://127.0.0.1:{port}", "--set", "ha_port=0")
    found = run(tmp_path, *engine, status=1)
    assert found["engine"]["address"] == f"127.0.0.1:{port}"
    assert "is it running" in str(found["engine"]["advice"])
    found = run(tmp_path, "--set", "engine=zk://127.0.0.1:2181", status=1)
    assert "etcd://" in str(found["engine"]["advice"])
    etcd = Etcd(tmp_path)
    try:
        setting = etcd.start().setting
        found = run(tmp_path, "--set", f"engine={setting}", "--set", "ha_port=0")
        assert found["engine"]["advice"] == ""
        found = run(tmp_path, "--set", f"engine={setting}", status=1)
        assert "set ha_port" in str(found["engine"]["advice"])
        two = f"{setting},127.0.0.1:{etcd.clients[0]}"
        assert "one or three" in str(
            run(tmp_path, "--set", f"engine={two}", "--set", "ha_port=0", status=1)["engine"]["advice"]
        )
    finally:
        etcd.stop()
