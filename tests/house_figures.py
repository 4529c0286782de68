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


# Whose attributes may be assigned from outside, by module: how the target begins, and why.
_DRAFT = (
    "a Draft has no state of its own: it is where a send writes what the log is to append, field by field, per message"
)
_RESULT = "the answer of a read is filled in by the reader"
_OUTBOX = "bytes are written in place behind its end, per message"
_OPENING = "the store is being made: opening fills it, its log and its report"
_OUTSIDE = "an object of another library"
ASSIGNED = {
    "penstock.broker.sending": {"draft.": _DRAFT},
    "penstock.cli.queues": {"run.": "the help text of a command that is made in a loop"},
    "penstock.delivery.cursor": {"file.beyond": "counted per message, with the bits that a CursorFile has no object for"},
    "penstock.disk.readyqueue": {"segment.": "the append of a message, written in place in the segment"},
    "penstock.fronts.nsq.publishing": {"asker.need": "how much of a frame is missing, said per frame"},
    "penstock.fronts.remoting.pulling": {"out.size": _OUTBOX, "self.result.": _RESULT},
    "penstock.fronts.remoting.sending": {"draft.": _DRAFT, "text.size": _OUTBOX},
    "penstock.log.commitlog": {"d.": _DRAFT},
    "penstock.log.contents": {"store.": _OPENING},
    "penstock.log.derived": {"self.report.": _OPENING},
    "penstock.log.follow": {"d.": _DRAFT},
    "penstock.log.recovery": {
        "report.": _OPENING, "self.report.": _OPENING, "self.upkeep.": _OPENING, "store.": _OPENING, "sums.": _OPENING,
    },
    "penstock.log.state": {"d.": _DRAFT, "self.log.store_ms": "the newest record that a replay has seen, per record"},
    "penstock.log.store": {"d.": _DRAFT, "e.": _DRAFT, "result.": _RESULT},
    "penstock.log.tail": {"self.report.": _OPENING},
    "penstock.log.verify": {"log.sums.": "a log of its own, opened for reading only"},
    "penstock.spark.catalog": {"columns.": _OUTSIDE},
    "penstock.spark.tools.plainly": {"captured.": _OUTSIDE, "connect.": _OUTSIDE, "error.": _OUTSIDE, "say.": _OUTSIDE},
    "penstock.spark.tools.sessions": {"logging.": _OUTSIDE},
    "penstock.security": {"context.": _OUTSIDE},
    "penstock.tls": {"get_mode.": _OUTSIDE, "set_callback.": _OUTSIDE},
    "penstock.wire.answers": {"out.size": _OUTBOX},
    "penstock.wire.nsq": {"out.size": _OUTBOX},
}  # fmt: skip


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


class Written(NamedTuple):
    """An attribute of another object that is assigned: `target` as it is written."""

    where: str
    line: int
    target: str


def written_outside(trees: dict[str, ast.Module]) -> Iterator[Written]:
    """Attributes of other objects that are assigned without a method of theirs.

    An object is one's own while it is made: in the function that calls its class. Two classes of one module that exist for
    one another (a waiter and its waiting room) may assign what the other one declares.
    """
    for name, tree in trees.items():
        declared = {node.name: _declared(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        yield from _assigned(name, tree, {"self", "cls"}, "", declared)


def _declared(node: ast.ClassDef) -> set[str]:
    """The attributes that a class assigns on itself or lists."""
    found = {
        part.target.id for part in node.body if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
    }
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store):
            found |= {inner.attr} if isinstance(inner.value, ast.Name) and inner.value.id == "self" else set()
    return found


def _made(function: ast.AST) -> set[str]:
    """The names that a function gives to objects it makes."""
    names = set()
    for node in ast.walk(function):
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) and isinstance(node.value, ast.Call):
            called = node.value.func
            last = (
                called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
            )
            if last == "__new__" or last.lstrip("_")[:1].isupper():
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _assigned(module: str, node: ast.AST, own: set[str], here: str, declared: dict[str, set[str]]) -> Iterator[Written]:
    if isinstance(node, ast.ClassDef):
        here = node.name
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        own = own | _made(node)
    elif isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
        mine = isinstance(node.value, ast.Name) and node.value.id in own
        friend = any(node.attr in found for name, found in declared.items() if name != here)
        listed = any(ast.unparse(node).startswith(target) for target in ASSIGNED.get(module, ()))
        if not mine and not friend and not listed:
            yield Written(module, node.lineno, ast.unparse(node))
    for child in ast.iter_child_nodes(node):
        yield from _assigned(module, child, own, here, declared)


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
    for where, line, target in written_outside(trees):
        print(f"{where}:{line} assigns {target}")
    graph = arrows(trees)
    for group in circles(graph):
        print("circle:", *[f"\n   {a} -> {b} ({way})" for a in group for b, way in graph[a].items() if b in group])


if __name__ == "__main__":
    main()
