"""`penstock context`: kept for their owner alone, used where nothing else names a registry, their secret for no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock.cli.contexts import context
from penstock.cli.inuse import current, folder, registry_in_use
from penstock.cli.main import main
from penstock.testing import Broker


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("PENSTOCK_REGISTRY", "PENSTOCK_CONTEXT", "PENSTOCK_SECURITY", "PENSTOCK_USER", "PENSTOCK_TLS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def typed(*words: str, status: int = 0, stdin: str = "", **environment: str) -> Any:
    done = CliRunner().invoke(main, list(words), input=stdin, env=environment)
    assert done.exit_code == status, done.output
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.output


def rows(*words: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in typed(*words, "--json").splitlines()]


def test_one_is_used_and_the_way_back(broker: Broker) -> None:
    typed("context", "add", "here", "-n", broker.registry)
    typed("context", "add", "nowhere", "-n", "127.0.0.1:1")
    assert [(row["context"], row["in_use"]) for row in rows("context", "ls")] == [("here", True), ("nowhere", False)]
    typed("topic", "ls")
    typed("context", "use", "nowhere")
    typed("topic", "ls", status=1)
    typed("topic", "ls", "-n", broker.registry)
    typed("topic", "ls", PENSTOCK_REGISTRY=broker.registry)
    typed("topic", "ls", PENSTOCK_CONTEXT="here")
    assert typed("context", "use", "-") == "in use: here\n"
    assert typed("context", "use", "-") == "in use: nowhere\n"


def test_secrets_stay_at_home(home: Path) -> None:
    typed("context", "add", "prod", "-n", "h:1", "--user", "me", stdin="hush\n")
    for path in folder().iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
    assert folder().stat().st_mode & 0o777 == 0o700
    assert "hush" not in typed("context", "ls") + json.dumps(rows("context", "ls"))
    assert registry_in_use() == "h:1"
    assert os.environ.pop("PENSTOCK_SECURITY") == str(folder() / "prod.security")
    typed("topic", "ls", "-n", "127.0.0.1:1", status=1)  # named by hand: the context's secret is not for it
    assert "PENSTOCK_SECURITY" not in os.environ
    typed("topic", "ls", status=1)
    assert "PENSTOCK_SECURITY" not in os.environ  # and not for what follows in this process
    typed("context", "rm", "prod", status=2)
    assert rows("context", "rm", "prod", "--dry-run")[0]["done"] == ""
    typed("context", "rm", "prod", "-f")
    assert not list(folder().glob("prod*"))
    assert current() == ""


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("add", "../x", "-n", "h:1"), 2), (("add", "x", "-n", "h:port"), 2), (("add", "x"), 2), (("use", "typo"), 3),
        (("rm", "typo", "-f"), 3), (("use", "-"), 3), (("add", "x", "-n", "h:1", "--tls-ca", "/etc/hosts"), 2),
        (("add", "x", "-n", "h:1", "--user", "me"), 2),
    ],
)  # fmt: skip
def test_mistakes(words: tuple[str, ...], status: int) -> None:
    typed("context", *words, status=status)
    assert rows("context", "ls") == [] if folder().is_dir() else True


def test_a_name_is_not_taken_twice() -> None:
    assert set(context.commands) == {"add", "use", "ls", "rm"}
    typed("context", "add", "x", "-n", "h:1")
    typed("context", "add", "x", "-n", "h:2", status=2)
    typed("context", "add", "x", "-n", "h:2", "--force")
    assert rows("context", "ls")[0]["registry"] == "h:2"
    typed("topic", "ls", status=3, PENSTOCK_CONTEXT="gone")


def test_a_damaged_one_hides_no_other_and_can_be_deleted(broker: Broker) -> None:
    typed("context", "add", "here", "-n", broker.registry)
    for name, data in (("half", b'registry = "127'), ("noise", b"\x82\xff\x00"), ("two words", b"")):
        (folder() / f"{name}.toml").write_bytes(data)
    told = CliRunner().invoke(main, ["context", "ls", "--json"])
    assert (told.exit_code, [json.loads(line)["context"] for line in told.stdout.splitlines()]) == (0, ["here"])
    assert all(name in told.stderr for name in ("half.toml", "noise.toml", "two words"))
    assert "context rm half" in typed("context", "use", "half", status=2)
    assert "context rm noise" in typed("topic", "ls", status=2, PENSTOCK_CONTEXT="noise")
    for name in ("half", "noise"):
        typed("context", "rm", "-f", name)
        typed("context", "rm", "-f", name, status=3)
    typed("topic", "ls")


def test_a_secret_of_any_letters_in_any_locale(broker: Broker) -> None:
    secret = 'pässwörd 😀 \x7f"\\'
    subprocess.run(
        [sys.executable, "-m", "penstock.cli", "context", "add", "odd", "-n", broker.registry, "--user", "zoe"],
        input=secret.encode(), check=True, capture_output=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    told = tomllib.loads((folder() / "odd.security").read_text("utf-8"))
    assert (told["user"], told["secret"]) == ("zoe", secret)
