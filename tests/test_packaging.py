"""What `python -m build` makes, put into environments that have never seen this checkout."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import penstock

ROOT = Path(__file__).parents[1]
PARTS = (
    "src",
    "pyproject.toml",
    "setup.py",
    "build_ext.py",
    "MANIFEST.in",
    "README.md",
    "LICENSE",
    "requirements.lock",
)
HOOK = "import sys, setuptools.build_meta as m; print(getattr(m, 'build_' + sys.argv[1])(sys.argv[2]))"


def build(source: Path, kind: str, target: Path, **environment: str) -> Path:
    """A distribution by the hook that `python -m build` calls, without its fresh environment from the package index."""
    target.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HOOK, kind, str(target)],
        cwd=source, capture_output=True, text=True, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("checkout")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("*.so", "*.c", "__pycache__"))
        else:
            shutil.copy(ROOT / part, copy / part)
    if (ROOT / "build" / "cython").is_dir():  # what Cython has written: a minute of its work
        shutil.copytree(ROOT / "build" / "cython", copy / "build" / "cython")
    return build(copy, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def unpacked(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / f"penstock-{penstock.__version__}"


def test_the_sdist_has_all_that_a_compiled_build_needs(unpacked: Path) -> None:
    from build_ext import COMPILED

    for name in COMPILED:
        module = unpacked / "src" / (name.replace(".", "/") + ".py")
        assert module.is_file()
        if (ROOT / module.relative_to(unpacked)).with_suffix(".pxd").is_file():
            assert module.with_suffix(".pxd").is_file()
    for part in ("LICENSE", "build_ext.py", "src/penstock/octets.h", "src/penstock/spark/kernel/arenas.h"):
        assert (unpacked / part).is_file(), part
    # setup.py finds its list and hands everything to Cython: all but the compiler's minutes.
    code = (
        "import sys; sys.argv = ['setup.py', '--version']; import setuptools; setuptools.setup = lambda **more: print("
        "len(more['ext_modules']), {m.extra_compile_args[-1] for m in more['ext_modules']});"
        "import Cython.Build; Cython.Build.cythonize = lambda modules, **more: modules;"
        "exec(compile(open('setup.py').read(), 'setup.py', 'exec'), {'__file__': 'setup.py', '__name__': '__main__'})"
    )

    def flags(**more: str) -> list[str]:
        bare = {name: value for name, value in os.environ.items() if name not in ("PENSTOCK_BUILD", "CFLAGS")}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=unpacked, capture_output=True, text=True, env=bare | more
        )
        count, last = done.stdout.split(maxsplit=1)
        assert int(count) == len(COMPILED), done.stderr
        return sorted(ast.literal_eval(last))

    stale, fresh = (unpacked / "build" / "cython" / name for name in ("stale.c", "fresh.c"))
    stale.parent.mkdir(parents=True, exist_ok=True)
    for path, age in ((stale, -1), (fresh, 1)):  # beside the youngest file of named numbers
        path.touch()
        time = (unpacked / "src" / "penstock" / "words.pxd").stat().st_mtime + age
        os.utime(path, (time, time))
    assert flags() == ["-g0"]  # debug information, which many a Python asks for, is five times the code
    assert [path.exists() for path in (stale, fresh)] == [False, True]  # Cython would take the stale one for current
    assert flags(PENSTOCK_BUILD="lines") == ["-g"]
    assert flags(CFLAGS="-g -O1") == ["-Wno-unused-function"]  # who says what they want gets it


def test_what_is_gone_from_the_sources_is_not_in_the_next_wheel(unpacked: Path, tmp_path: Path) -> None:
    left = unpacked / "build" / "lib" / "penstock"  # by an earlier build
    (left / "gone").mkdir(parents=True, exist_ok=True)
    for name in (
        "gone.py",
        "gone/__init__.py",
        "message.cpython-311-x86_64-linux-gnu.so",
    ):  # the last is compiled no more
        (left / name).touch()
    with zipfile.ZipFile(build(unpacked, "wheel", tmp_path, PENSTOCK_BUILD="pure")) as archive:
        names = archive.namelist()
    assert [name for name in names if "gone" in name or name.endswith(".so")] == []
    source = unpacked / "src" / "penstock"
    assert {f"penstock/{path.relative_to(source)}" for path in source.rglob("*.py")} <= set(names)


def test_the_pure_build_of_an_sdist_runs_in_an_empty_environment(unpacked: Path, tmp_path: Path) -> None:
    wheel = build(unpacked, "wheel", tmp_path / "wheel", PENSTOCK_BUILD="pure")
    assert wheel.name.endswith("py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"penstock-{penstock.__version__}.dist-info/METADATA").decode()
    assert "Requires-Dist: Cython" in metadata  # what runs from its sources imports it
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(sysconfig.get_path("purelib", vars={"base": str(tmp_path / "venv")}))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # The dependencies of this environment, without this checkout: files that name folders are not read from there.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    program = (
        "import penstock, penstock.testing, cython\n"
        "assert not cython.compiled\n"
        "with penstock.testing.Broker() as b, penstock.Producer(b.registry) as p:\n"
        "    print(p.send(penstock.Message('t', b'x')).status.value, penstock.__file__)\n"
    )
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PENSTOCK_PURE")}
    done = subprocess.run([python, "-c", program], cwd=tmp_path, capture_output=True, text=True, env=bare)
    assert done.returncode == 0, done.stderr[-2000:]
    status, where = done.stdout.split()
    assert status == "SEND_OK"
    assert Path(where).is_relative_to(tmp_path)
