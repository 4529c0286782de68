"""The figures of the house: sizes, arguments, `Any`, unnamed integers and arrows, read from the source.

`python tests/house_figures.py` prints what is over its bound; `tests/test_house.py` holds the bounds.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src" / "penstock"
CLASS_LINES, CLASS_METHODS, MODULE_LINES, FUNCTION_LINES, ARGUMENTS, ANY = 400, 30, 650, 80, 8, 80


class Over(NamedTuple):
    """One thing that is over its bound."""

    where: str
    what: str
    figure: int


def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name."""
    found = {}
    for path in sorted(SRC.rglob("*.py")):
        name = ".".join(path.relative_to(SRC.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = ast.parse(path.read_text())
    return found


def sizes(trees: dict[str, ast.Module]) -> Iterator[Over]:
    """Classes, modules and functions that are over their bounds."""
    for name, tree in trees.items():
        length = (SRC.parent / name.replace(".", "/")).with_suffix(".py")
        lines = len(length.read_text().splitlines()) if length.exists() else 0
        if lines > MODULE_LINES:
            yield Over(name, "lines of the module", lines)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)) for inner in node.body)
                long = _lines(node)
                if long > CLASS_LINES:
                    yield Over(f"{name}.{node.name}", "lines of the class", long)
                if methods > CLASS_METHODS:
                    yield Over(f"{name}.{node.name}", "methods of the class", methods)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                if (long := _lines(node)) > FUNCTION_LINES:
                    yield Over(f"{name}.{node.name}", "lines of the function", long)
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                own = [argument for argument in given if argument.arg not in ("self", "cls")]
                if len(own) > ARGUMENTS:
                    yield Over(f"{name}.{node.name}", "parameters", len(own))


def _lines(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def any_in_signatures(trees: dict[str, ast.Module]) -> Iterator[Over]:
    """How many `Any` stand in the signatures of each module."""
    for name, tree in trees.items():
        count = 0
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                given = [
                    *node.args.posonlyargs,
                    *node.args.args,
                    *node.args.kwonlyargs,
                    node.args.vararg,
                    node.args.kwarg,
                ]
                notes = [argument.annotation for argument in given if argument] + [node.returns]
                for note in notes:
                    if note is not None:
                        count += sum(isinstance(inner, ast.Name) and inner.id == "Any" for inner in ast.walk(note))
        if count:
            yield Over(name, "Any in signatures", count)


def numbers(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Unnamed integers above 2 inside functions, as (line, value); not the ASCII letters that a byte is compared with."""
    letters = {id(one) for node in ast.walk(tree) if isinstance(node, ast.Compare) for one in _letters(node)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Constant) and type(inner.value) is int and inner.value > 2:
                    if id(inner) in letters:
                        continue
                    yield inner.lineno, inner.value


def _letters(node: ast.Compare) -> list[ast.Constant]:
    """The codes of ASCII letters that a byte of a text is compared with: one of a buffer, or `c`, in small letters too."""
    byte = node.left
    if isinstance(byte, ast.BinOp) and isinstance(byte.op, ast.BitOr) and "LOWER_CASE" in ast.dump(byte.right):
        byte = byte.left
    if not (isinstance(byte, ast.Subscript) or (isinstance(byte, ast.Name) and byte.id == "c")):
        return []
    if not all(isinstance(op, (ast.Eq, ast.NotEq)) for op in node.ops):
        return []
    constants = [one for one in node.comparators if isinstance(one, ast.Constant) and isinstance(one.value, int)]
    return [one for one in constants if chr(one.value).isascii() and chr(one.value).isalpha()]


def imports(name: str, tree: ast.Module, known: set[str], is_package: bool = False) -> dict[str, str]:
    """The modules of the package that a module imports in any way, with the way: import, lazy or type."""
    found: dict[str, str] = {}

    def add(target: str, way: str) -> None:
        while target and target not in known:
            target = target.rpartition(".")[0]
        if target and target not in (name, "penstock"):
            found.setdefault(target, way)

    def walk(nodes: list[ast.stmt], way: str) -> None:
        for node in nodes:
            if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "penstock":
                for alias in node.names:
                    add(f"{node.module}.{alias.name}", way)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.name.split(".")[0] == "penstock":
                        add(alias.name, way)
            elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
                walk(node.body, "type")
                walk(node.orelse, way)
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                walk(node.body, "lazy")
            else:
                for field in ("body", "orelse", "finalbody", "handlers"):
                    inner = getattr(node, field, None)
                    if inner:
                        walk(inner, way)

    walk(tree.body, "import")
    return found


def arrows(trees: dict[str, ast.Module]) -> dict[str, dict[str, str]]:
    """All imports of all modules."""
    known = set(trees)
    return {name: imports(name, tree, known) for name, tree in trees.items()}


def circles(graph: dict[str, dict[str, str]]) -> list[list[str]]:
    """The groups of modules that reach one another (Tarjan's strongly connected components above one)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for there in graph.get(name, {}):
            if there not in index:
                visit(there)
                low[name] = min(low[name], low[there])
            elif there in stack:
                low[name] = min(low[name], index[there])
        if low[name] == index[name]:
            group = []
            while True:
                group.append(stack.pop())
                if group[-1] == name:
                    break
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in index:
            visit(name)
    return found


def compiled() -> list[str]:
    """The modules that are compiled."""
    listed: dict[str, list[str]] = {}
    exec((ROOT / "build_ext.py").read_text(), {}, listed)
    return listed["COMPILED"]


def main() -> None:
    """Print what is over its bound."""
    sys.setrecursionlimit(10_000)
    trees = modules()
    for over in sorted(sizes(trees), key=lambda over: (over.what, -over.figure)):
        print(f"{over.figure:6} {over.what:24} {over.where}")
    found = sorted(any_in_signatures(trees), key=lambda over: -over.figure)
    print(
        sum(over.figure for over in found), "Any in signatures:", ", ".join(f"{o.where[9:]} {o.figure}" for o in found)
    )
    counts = {name: len(list(numbers(trees[name]))) for name in compiled()}
    print(
        sum(counts.values()),
        "unnamed integers:",
        ", ".join(f"{n[9:]} {c}" for n, c in sorted(counts.items(), key=lambda p: -p[1])),
    )
    graph = arrows(trees)
    for group in circles(graph):
        print("circle:", *[f"\n   {a} -> {b} ({way})" for a in group for b, way in graph[a].items() if b in group])


if __name__ == "__main__":
    main()
