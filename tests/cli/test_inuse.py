"""Which context is in use: what the environment says, else what was chosen; and what is no context."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.cli.inuse import current, folder, path_of, read, registry_in_use
from penstock.errors import ConfigError, NotFound


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("PENSTOCK_CONTEXT", raising=False)


def test_nothing_is_in_use_at_first() -> None:
    assert (current(), registry_in_use()) == ("", "")


def test_the_environment_is_stronger(monkeypatch: pytest.MonkeyPatch) -> None:
    folder().mkdir(parents=True)
    for name in ("a", "b"):
        path_of(name).write_text(f'registry = "{name}:1"\n')
    (folder() / ".current").write_text("a")
    assert registry_in_use() == "a:1"
    monkeypatch.setenv("PENSTOCK_CONTEXT", "b")
    assert registry_in_use() == "b:1"
    monkeypatch.setenv("PENSTOCK_CONTEXT", "")
    assert registry_in_use() == ""


def test_what_is_none() -> None:
    for name in ("../x", "", ".current", "a/b"):
        with pytest.raises(ConfigError):
            path_of(name)
    with pytest.raises(NotFound):
        read("gone")
    folder().mkdir(parents=True)
    path_of("torn").write_text("registry = ")
    with pytest.raises(ConfigError):
        read("torn")
