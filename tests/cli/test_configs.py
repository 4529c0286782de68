"""`penstock config show | check`, as they are typed; tests/test_reload.py has reload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.configs import config
from penstock.cli.main import main


def typed(*words: str, **environment: str) -> Any:
    done = CliRunner().invoke(main, ["config", *words], env=environment)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def test_each_source_is_named(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text('[broker]\nlevel = "disk"\nadmin_token = "secret"\nmax_topics = 5\n[[topic]]\nname = "a*"\n')
    done = typed("show", "--json", "--config", str(file), "--set", "max_topics=7", PENSTOCK_BROKER__LEVEL="os")
    rows = {row["setting"]: (row["value"], row["source"]) for row in map(json.loads, done.output.splitlines())}
    assert rows.pop("broker.topic")[1] == f"file {file}"
    assert rows == {
        "broker.level": ("os", "environment PENSTOCK_BROKER__LEVEL"),
        "broker.admin_token": ("(not shown)", f"file {file}"),
        "broker.max_topics": (7, "--set"),
    }
    explained = [json.loads(line) for line in typed("show", "--explain", "--json").output.splitlines()]
    assert len(explained) > 100
    assert all(row["about"] and row["source"] for row in explained)


@pytest.mark.parametrize(
    ("text", "status"), [('[broker]\nlevel = "os"\n', 0), ("[broker]\nlevle = 1\n", 2), ("[x]\n", 2), ("[broker\n", 2)]
)
def test_check(tmp_path: Path, text: str, status: int) -> None:
    file = tmp_path / "p.toml"
    file.write_text(text)
    assert typed("check", "--config", str(file)).exit_code == status
    assert typed("check", "--config", str(tmp_path / "none")).exit_code == 2
    assert set(config.commands) == {"show", "check", "reload"}


def test_what_is_checked_is_what_is_started(tmp_path: Path) -> None:
    """A broker alone may have the ports of a registry; `penstock up` has the broker's host and users for both."""
    file = tmp_path / "p.toml"
    file.write_text('[broker]\nhost = "127.0.0.2"\nnsq_port = 4160\n')
    given = ("check", "--data", str(tmp_path), "--config", str(file))
    clash = typed(*given)
    assert (clash.exit_code, "are both 4160" in clash.output, "--role broker" in clash.output) == (2, True, True)
    for role in ("broker", "registry"):
        assert typed(*given, "--role", role).exit_code == 0


@pytest.mark.parametrize(
    ("file", "words", "environment", "host"),
    [
        ("", "", {}, "127.0.0.1"),
        ('[broker]\nhost = "127.0.0.2"\n', "", {}, "127.0.0.2"),
        ('[broker]\nhost = "127.0.0.2"\n[registry]\nhost = "127.0.0.3"\n', "", {}, "127.0.0.3"),
        ('[registry]\nhost = "127.0.0.3"\n', "", {"PENSTOCK_REGISTRY__HOST": "127.0.0.4"}, "127.0.0.4"),
        ('[registry]\nhost = "127.0.0.3"\n', "--host 127.0.0.5", {"PENSTOCK_REGISTRY__HOST": "127.0.0.4"}, "127.0.0.5"),
        ('[registry]\nhost = "127.0.0.3"\n', "--set host=127.0.0.6 --host 127.0.0.5", {}, "127.0.0.6"),
        ("", "--set registry.host=127.0.0.7 --host 127.0.0.5", {}, "127.0.0.7"),
    ],
)
def test_a_registry_beside_a_broker_has_what_is_said_of_it(
    tmp_path: Path, file: str, words: str, environment: dict[str, str], host: str
) -> None:
    """`penstock up` had the broker's, its default too, whatever the file and the environment said of the registry."""
    given = tmp_path / "p.toml"
    given.write_text(file)
    call = ["doctor", "--json", "--data", str(tmp_path), "--config", str(given), *words.split()]
    done = CliRunner().invoke(main, call, env=environment)
    rows = {row["listener"]: row for row in map(json.loads, done.output.splitlines())}
    assert rows["registry"]["address"] == f"{host}:9876"
    assert rows["registry"]["advice"] == ""


def test_a_registry_may_be_open_where_the_broker_is_not(tmp_path: Path) -> None:
    given = tmp_path / "p.toml"
    given.write_text('[registry]\nhost = "0.0.0.0"\ninsecure = true\n')
    done = CliRunner().invoke(main, ["doctor", "--json", "--data", str(tmp_path), "--config", str(given)])
    rows = {row["listener"]: row for row in map(json.loads, done.output.splitlines())}
    assert "it will not start" not in rows["registry"]["advice"]
    assert rows["registry"]["reached_by"] == "others"
    given.write_text('[registry]\nhost = "0.0.0.0"\n[broker]\nhost = "127.0.0.1"\n')
    done = CliRunner().invoke(main, ["doctor", "--json", "--data", str(tmp_path), "--config", str(given)])
    rows = {row["listener"]: row for row in map(json.loads, done.output.splitlines())}
    assert "it will not start" in rows["lookup http"]["advice"]
