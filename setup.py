"""Compiles the modules named in build_ext.py. Everything else about the package stands in pyproject.toml.

PENSTOCK_BUILD=pure builds nothing (the package then runs from its sources, slowly); PENSTOCK_BUILD=lines builds for a
profiler, with the lines of the `.py` in the machine code. Any other value, or none: a module that does not compile is an
error, never a silent slow install.
"""

import os
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).parent))
from build_ext import COMPILED

DIRECTIVES = {
    "language_level": 3,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
    "cdivision": True,
    "annotation_typing": False,  # annotations are for mypy; C types stand in the .pxd
}


def forget_stale(folder: Path) -> None:
    """Delete what Cython wrote before a file of named numbers changed: it does not see what a .py takes by cython.cimports."""
    changed = max(path.stat().st_mtime for path in Path("src").rglob("*.pxd") if "cdef enum:" in path.read_text())
    for path in folder.rglob("*.c"):
        if path.stat().st_mtime < changed:
            path.unlink()


def extensions() -> list[Extension]:
    if os.environ.get("PENSTOCK_BUILD") == "pure":
        return []
    from Cython.Build import cythonize

    lines = os.environ.get("PENSTOCK_BUILD") == "lines"
    # Many a Python asks for debug information of all it builds, which here is five times the code, and a quarter of the time.
    debugging = ["-g"] if lines else [] if "CFLAGS" in os.environ else ["-g0"]
    folder = "build/cython-lines" if lines else "build/cython"
    forget_stale(Path(folder))
    modules = [
        Extension(
            name,
            [f"src/{name.replace('.', '/')}.py"],
            include_dirs=["src/penstock"],
            depends=["src/penstock/octets.h", "src/penstock/spark/kernel/arenas.h"],
            extra_compile_args=[
                "-O2",
                "-fno-strict-aliasing",
                "-fstack-protector-strong",
                "-Wno-unused-function",
                *debugging,
            ],
        )
        for name in COMPILED
    ]
    return cythonize(
        modules, compiler_directives=DIRECTIVES, build_dir=folder,
        include_path=["src"], quiet=True, emit_linenums=lines, nthreads=os.cpu_count() or 1,
    )  # fmt: skip


class Modules(build_py):
    """setuptools gathers in build/ and never deletes there: a module that is gone from src would be in every later wheel."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        source, built = Path("src"), Path(self.build_lib)
        compiled = {module.name for module in self.distribution.ext_modules or []}
        for path in [path for path in built.rglob("*") if path.is_file()]:
            at = path.relative_to(built)
            if path.suffix == ".so":  # NAME.cpython-311-x86_64-linux-gnu.so
                name = ".".join([*at.parent.parts, path.name.partition(".")[0]])
                kept = name in compiled
            else:
                kept = (source / at).is_file()
            if not kept:
                path.unlink()


if __name__ == "__main__":  # not in the processes Cython starts, which since Python 3.14 read this file again
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Every module is a C file of its own: pip, too, compiles as many at once as there are cores.
    setup(cmdclass={"build_py": Modules}, ext_modules=extensions(), options={"build_ext": {"parallel": cores}})
