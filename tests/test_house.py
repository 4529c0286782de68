"""The house keeps its order: imports go down, the compiled modules are what the list says, both builds are there."""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ONCE
from house_figures import any_in_signatures, arrows, circles, compiled, modules, numbers, sizes, written_outside

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "penstock"
TREES = modules()
ARROWS = arrows(TREES)

# A floor imports floors below it, and nothing but wings imports a wing. Read are all imports of every module: those in
# functions and those for type checkers, too. The root is the public face: it takes names from wherever they are.
FLOORS = {
    "memory": -2, "errors": -2, "limits": -1, "settingfiles": -1, "msgid": -1, "faults": 0, "garbage": 0, "logs": 0,
    "threads": 0, "notify": 0,
    "charts": 0, "histogram": 0, "version": 0, "words": 0, "lmdbfile": 0, "octets": 0, "message": 0, "clock": 1, "config": 0,
    "security": 2, "tls": 1, "tlsconnection": 2, "wire": 1, "disk": 1,
    "access": 2,
    "delivery": 2, "log": 2, "schedule": 2,
    "broker": 3, "registry": 3,
    "fronts": 4,
    "admission": 1, "net": 5,
    "listeners": 5, "httpd": 6, "registration": 6, "statsd": 6, "authority": 6,
    "process": 6, "app": 7, "reload": 7, "serve": 8, "embedded": 8, "supervisor": 9, "testing": 9,
    # wings
    "client": 10, "aio": 11, "spark": 11, "console": 12, "cli": 13, "demo": 13,
}  # fmt: skip
WING = 10
MAY_MEET = {("log", "delivery")}

PUBLIC = {  # constructors that users call with keywords
    "penstock.client.aio.push.__init__", "penstock.client.aio.producer.__init__", "penstock.client.blocking.__init__",
}  # fmt: skip
ANY_MAX = 31


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_imports_go_down() -> None:
    found = []
    for module, imported in ARROWS.items():
        here = _room(module)
        for target, way in imported.items():
            there = _room(target)
            if not here or not there or here == there or (here, there) in MAY_MEET:
                continue
            if FLOORS[there] >= FLOORS[here] or (FLOORS[there] >= WING > FLOORS[here]):
                found.append(f"{module} imports {target} ({way})")
    assert not found


def test_no_circles() -> None:
    assert not list(circles(ARROWS))


def test_one_job_a_class() -> None:
    assert not [over for over in sizes(TREES) if over.what != "parameters" or over.where not in PUBLIC]


def test_the_main_road_is_typed() -> None:
    assert sum(over.figure for over in any_in_signatures(TREES)) <= ANY_MAX


def test_an_object_is_changed_by_its_own_methods() -> None:
    assert not [f"{where}:{line} assigns {target}" for where, line, target in written_outside(TREES)]


def test_the_finder_of_assignments_from_outside_finds_them() -> None:
    code = """
class Box:
    size: int
    def grow(self, other): self.size += 1; other.name = 1
class Shelf:
    def put(self, box): box.size = 2; box.label = 3
def make():
    box = Box(); box.anything = 1; (box.a, far.b) = 1, 2
    for near.c in (): del near.d
"""
    found = [(line, target) for _, line, target in written_outside({"penstock.x": ast.parse(code)})]
    assert found == [(4, "other.name"), (6, "box.label"), (8, "far.b"), (9, "near.c"), (9, "near.d")]


def test_numbers_have_names() -> None:
    found = [f"{name}:{line}: {value}" for name in compiled() for line, value in numbers(TREES[name])]
    assert not found


def test_the_broker_never_loads_arrow_or_spark() -> None:
    heavy = ("pyarrow", "pyspark", "pandas", "numpy")
    code = f"import sys, penstock.app, penstock.cli.main; print([m for m in {heavy} if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_the_compiled_list_is_true() -> None:
    listed = compiled()
    assert sorted(listed) == listed
    # octets and named numbers have a .pxd because compiled modules take what is in them from C, never from a compiled
    # twin.
    pairs = [p for p in SRC.rglob("*.pxd") if "\ncdef enum:" in p.read_text()]
    named = {".".join(p.relative_to(ROOT / "src").with_suffix("").parts) for p in pairs}
    declared = {".".join(p.relative_to(ROOT / "src").with_suffix("").parts) for p in SRC.rglob("*.pxd")}
    assert declared - named - {"penstock.octets"} <= set(listed)
    pure = os.environ.get("PENSTOCK_PURE") == "1"
    for name in listed:
        file = str(importlib.import_module(name).__file__)
        assert file.endswith(".py") == pure, f"{name} runs from {file}"


def test_what_is_compiled_is_tested_in_both_builds() -> None:
    own = [name.replace(".", "/").removeprefix("penstock/").rpartition("/") for name in compiled()]
    assert [path for folder, _, stem in own if (path := f"{folder}/test_{stem}.py").startswith(ONCE)] == []


def test_no_path_of_a_machine_and_no_registry_host() -> None:
    if shutil.which("git") is None:
        pytest.skip("not a git checkout: no git")
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


def test_the_architecture_page_is_true() -> None:
    """Each module stands in the row of its room, with a star if it is compiled, and nothing else does."""
    told: dict[str, set[str]] = {}
    page = (ROOT / "docs" / "architecture.md").read_text()
    for room, cell in re.findall(r"^\| `([\w.]+)` \| (.*) \|$", page, re.MULTILINE):
        room = room if room == "penstock" else f"penstock.{room}"
        told.setdefault(room, set()).update(f"{room}.{name}" for name in re.findall(r"`(\w+)`\*?", cell))
        for name, star in re.findall(r"`(\w+)`(\*?)", cell):
            assert bool(star) == (f"{room}.{name}" in compiled()), f"{room}.{name}: the star"
    folders = {name for name in TREES if (SRC.parent / name.replace(".", "/")).is_dir()}
    there = {name for name in TREES if name not in folders and not name.endswith("__main__")}
    named = {name for names in told.values() for name in names}
    assert not there - named - {n for n in there if n.startswith("penstock.spark.template.")}, "modules without a word"
    assert not named - there, "words without a module"


# What has no promises of its own: names, numbers and types, which other tests compare or read.
WITHOUT_A_TEST = {
    "aio": "public names", "testing": "public names", "version": "a name",
    "broker/levels": "numbers", "log/status": "numbers", "wire/fields": "numbers", "wire/layout": "numbers",
    "wire/hawords": "numbers",
    "disk/cursorlayout": "numbers", "disk/readylayout": "numbers", "log/sidelayout": "numbers",
    "spark/kernel/rowtable": "numbers", "log/subscriber": "types",
    "spark/kernel/arenas": "types of C's memory", "spark/kernel/buffers": "types",
    "spark/template/transformations/orders": "text that `penstock spark template` fills in",
}  # fmt: skip


def test_each_module_has_a_test_of_its_own() -> None:
    """`src/penstock/x/y.py` is tested by `tests/x/test_y.py`, which imports it."""
    missing, listed = [], set(WITHOUT_A_TEST)
    for path in sorted(SRC.rglob("*.py")):
        if path.stem in ("__init__", "__main__"):
            continue
        name = path.relative_to(SRC).with_suffix("").as_posix()
        test = ROOT / "tests" / Path(name).parent / f"test_{path.stem}.py"
        package, _, module = f"penstock.{name.replace('/', '.')}".rpartition(".")
        imported = (
            rf"^\s*(from {package}\.{module} import|from {package} import .*\b{module}\b|import {package}\.{module}\b)"
        )
        if test.is_file() and re.search(imported, test.read_text(), re.MULTILINE):
            assert name not in listed, f"{name} has a test: take it out of the table"
        elif name not in listed:
            missing.append(name)
        listed.discard(name)
    assert (missing, listed) == ([], set())


# Where real time is the experiment: a disk that is slow, a process that is killed at some moment, a timeout of a second.
# chaos/, peers/ and fuzz/ are such experiments as a whole. This table only ever shrinks.
SLEEPERS = {"client/aio/test_channels.py": 1, "client/aio/test_outages.py": 2, "spark/test_live.py": 2}


def test_nobody_sleeps_where_a_condition_can_be_waited_for() -> None:
    """`sleep` with a constant of 0.05 s or more stands only in experiments; others use tests/polling.py or a fake clock."""
    found: dict[str, int] = {}
    for path in sorted((ROOT / "tests").rglob("*.py")):
        name = path.relative_to(ROOT / "tests").as_posix()
        if name.split("/")[0] in ("chaos", "peers", "fuzz"):
            continue
        waits = re.findall(r"\bsleep\((\d+(?:\.\d+)?)\)", path.read_text())
        count = sum(float(seconds) >= 0.05 for seconds in waits)
        if count:
            found[name] = count
    assert found == SLEEPERS
