"""The house keeps its order: imports go down, the compiled modules are what the list says, both builds are there."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from house_figures import any_in_signatures, arrows, circles, compiled, modules, numbers, sizes

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "penstock"
TREES = modules()
ARROWS = arrows(TREES)

# A floor imports floors below it, and nothing but wings imports a wing. Read are all imports of every module: those in
# functions and those for type checkers, too. The root is the public face: it takes names from wherever they are.
FLOORS = {
    "errors": -1, "msgid": -1, "faults": 0,
    "charts": 0, "version": 0, "words": 0, "lmdbfile": 0, "octets": 0, "message": 0, "clock": 0, "config": 0,
    "tls": 1, "wire": 1, "disk": 1,
    "delivery": 2, "log": 2, "schedule": 2,
    "broker": 3, "registry": 3,
    "fronts": 4,
    "net": 5,
    "httpd": 6, "registration": 6, "statsd": 6, "authority": 6,
    "app": 7, "embedded": 8, "testing": 9,
    # wings
    "client": 10, "aio": 11, "spark": 11, "cli": 12, "demo": 12,
}  # fmt: skip
WING = 10
MAY_MEET = {("log", "delivery")}

# What is still over its bound, with what it may be at most: this table only ever shrinks.
DEBTS = {
    "penstock.broker.broker": {"lines of the module": 745},
    "penstock.broker.broker.Broker": {"lines of the class": 610, "methods of the class": 38},
    "penstock.broker.broker.put": {"parameters": 11},
    "penstock.broker.queueing": {"lines of the module": 1050},
    "penstock.broker.queueing.Queueing": {"lines of the class": 950, "methods of the class": 74},
    "penstock.broker.staging": {"lines of the module": 800},
    "penstock.broker.staging.Staging": {"lines of the class": 640, "methods of the class": 39},
    "penstock.broker.staging.open_token": {"parameters": 9},
    "penstock.broker.topics.create": {"parameters": 10},
    "penstock.delivery.channel.__init__": {"parameters": 9},
    "penstock.fronts.http.NsqHttp": {"methods of the class": 34},
    "penstock.fronts.nsq": {"lines of the module": 725},
    "penstock.fronts.nsq.NsqSession": {"lines of the class": 591, "methods of the class": 41},
    "penstock.fronts.nsqcommands._identify": {"lines of the function": 82},
    "penstock.schedule.Schedule": {"lines of the class": 480, "methods of the class": 34},
    "penstock.wire.header.HeaderScan": {"lines of the class": 440},
    "penstock.wire.record.encode_record": {"parameters": 14},
    "penstock.wire.remoting.__init__": {"parameters": 9},
}
PUBLIC = {  # constructors that users call with keywords
    "penstock.client.aio.push.__init__", "penstock.client.aio.producer.__init__", "penstock.client.blocking.__init__",
}  # fmt: skip
CIRCLES = [{"penstock.broker"}, {"penstock.fronts"}]  # where modules still import one another
ANY_MAX = 223


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
    for group in circles(ARROWS):
        rooms = {".".join(name.split(".")[:2]) for name in group}
        assert rooms in CIRCLES, group


def test_one_job_a_class() -> None:
    for where, what, figure in sizes(TREES):
        if where in PUBLIC and what == "parameters":
            continue
        assert figure <= DEBTS.get(where, {}).get(what, 0), f"{where}: {figure} {what}"


def test_the_main_road_is_typed() -> None:
    assert sum(over.figure for over in any_in_signatures(TREES)) <= ANY_MAX


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
