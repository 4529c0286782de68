"""The house keeps its order: imports go down, the compiled modules are what the list says, both builds are there."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "penstock"

# style.md §1: a floor imports floors below it; nothing imports a wing.
FLOORS = {
    "errors": -1, "charts": 0, "version": 0, "words": 0, "lmdbfile": 0, "octets": 0, "message": 0, "clock": 0, "config": 0,
    "tls": 1,
    "wire": 1, "disk": 1,
    "delivery": 2, "log": 2, "schedule": 2,
    "broker": 3, "registry": 3,
    "fronts": 4,
    "net": 5, "httpd": 5, "registration": 5, "statsd": 5, "authority": 5, "app": 5, "embedded": 5, "testing": 5,
}  # fmt: skip
WINGS = {"client", "aio", "spark", "demo", "cli"}
MAY_MEET = {
    ("log", "delivery"),
    ("app", "net"),
    ("httpd", "net"),
    ("registration", "net"),
    ("embedded", "app"),
    ("testing", "embedded"),
}


def _imports(path: Path) -> set[str]:
    """The parts of the package a module imports when it is imported itself."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        nodes = [node]
        if isinstance(node, ast.If):  # if cython.compiled: … else: …; not what only type checkers see
            if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                continue
            nodes = node.body + node.orelse
        for inner in nodes:
            if isinstance(inner, ast.ImportFrom) and inner.module and inner.module.startswith("penstock."):
                found.add(inner.module.split(".")[1])
            elif isinstance(inner, ast.ImportFrom) and inner.module == "penstock":
                found |= {alias.name for alias in inner.names}
            elif isinstance(inner, ast.Import):
                found |= {a.name.split(".")[1] for a in inner.names if a.name.startswith("penstock.")}
    return found - {"__version__"}


def _modules() -> list[Path]:
    return [path for path in sorted(SRC.rglob("*.py")) if path.parent != SRC or path.name != "__init__.py"]


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(SRC)))
def test_imports_go_down(path: Path) -> None:
    here = path.relative_to(SRC).parts[0].removesuffix(".py")
    for there in _imports(path):
        if here in WINGS or there == here or (here, there) in MAY_MEET:
            continue
        assert there not in WINGS, f"{here} imports the wing {there}"
        assert FLOORS[there] < FLOORS[here], f"{here} (floor {FLOORS[here]}) imports {there} (floor {FLOORS[there]})"


def test_the_broker_never_loads_arrow_or_spark() -> None:
    heavy = ("pyarrow", "pyspark", "pandas", "numpy")
    code = f"import sys, penstock.app, penstock.cli.main; print([m for m in {heavy} if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_the_compiled_list_is_true() -> None:
    sys.path.insert(0, str(ROOT))
    try:
        from build_ext import COMPILED
    finally:
        sys.path.remove(str(ROOT))
    assert sorted(COMPILED) == COMPILED
    # octets and named numbers have a .pxd because compiled modules take what is in them from C, never from a compiled
    # twin.
    pairs = [p for p in SRC.rglob("*.pxd") if "\ncdef enum:" in p.read_text()]
    numbers = {".".join(p.relative_to(ROOT / "src").with_suffix("").parts) for p in pairs}
    declared = {".".join(p.relative_to(ROOT / "src").with_suffix("").parts) for p in SRC.rglob("*.pxd")}
    assert declared - numbers - {"penstock.octets"} <= set(COMPILED)
    pure = os.environ.get("PENSTOCK_PURE") == "1"
    for name in COMPILED:
        file = str(importlib.import_module(name).__file__)
        assert file.endswith(".py") == pure, f"{name} runs from {file}"


def test_no_path_of_a_machine_and_no_registry_host() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    hosts = [".".join(parts) for parts in (("pypi", "org"), ("npmjs", "org"), ("deb", "debian", "org"))]
    for name in tracked.stdout.split():
        path = ROOT / name
        if path.suffix in (".png", ".parquet") or not path.is_file() or path == Path(__file__):
            continue
        text = path.read_text(errors="replace")
        for word in (f"{ROOT}/", f"{Path.home()}/", *hosts):
            assert word not in text, f"{name} holds {word}"


def test_no_test_is_lost_to_a_busy_machine() -> None:
    """An upper bound on elapsed or CPU time fails where the machine is slow; a deadline ends a wait, and is generous."""
    timed = re.compile(r"(monotonic|process_time|perf_counter|thread_time)(_ns)?\(\) - \w+ <=? ?(\d+(\.\d+)?)")
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for found in timed.finditer(path.read_text()):
            assert float(found[3]) >= 60, f"{path.name}: {found[0]}"
