"""A fact is written once: names, magic numbers, formats and the texts of rules have one home, and others import it.

The whole of src/ is read as syntax trees; docstrings and comments may say what they like.
"""

from __future__ import annotations

import ast
import re
import struct
from collections import defaultdict
from collections.abc import Iterator

import msgspec
import pytest

from house_figures import modules
from penstock import message
from penstock.config import BrokerConfig, RegistryConfig
from penstock.disk import cursorfile, cursorlayout, readylayout, segmenthead
from penstock.log import checkpoint, sidelayout
from penstock.log.options import StoreOptions
from penstock.wire import layout, names, record, staged

TREES = modules()
NAMES = {
    value if isinstance(value, str) else value.decode()
    for name, value in {**vars(names), **vars(message)}.items()
    if name.isupper() and isinstance(value, (str, bytes))
}
MAGICS = {
    "the record's": (layout.MAGIC_V1, "penstock.wire.layout"),
    "the record's of RocketMQ 5": (layout.MAGIC_V2, "penstock.wire.layout"),
    "the blank record's": (layout.MAGIC_BLANK, "penstock.wire.layout"),
    "the sums'": (sidelayout.MAGIC, "penstock.log.sidelayout"),
    "the ready queue's": (readylayout.MAGIC, "penstock.disk.readylayout"),
    "the cursor file's": (cursorlayout.MAGIC, "penstock.disk.cursorlayout"),
    "the cursor file's check": (cursorlayout.CHECK_CONSTANT, "penstock.disk.cursorlayout"),
    "the spool's": (int.from_bytes(staged.MAGIC), "penstock.wire.staged"),
}
HTTP = 100  # statuses from here on are HTTP's
CHANCE = {">qqq"}  # two formats that have three times eight bytes
OTHER_MEANINGS = {  # of environment variables, too, and of a lease
    "penstock.config": {"PENSTOCK_"}, "penstock.security": {"PENSTOCK_"}, "penstock.wire.etcd": {"TTL"},
}  # fmt: skip


def _constants(tree: ast.Module) -> Iterator[ast.Constant]:
    """Every constant that is no docstring."""
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in texts)


def _calls(tree: ast.Module, name: str) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name in (getattr(node.func, "id", ""), getattr(node.func, "attr", "")):
            yield node


def test_names_that_are_shared() -> None:
    found = []
    for module, tree in TREES.items():
        if module in ("penstock.wire.names", "penstock.message"):
            continue
        for node in _constants(tree):
            text = node.value.decode("latin-1") if isinstance(node.value, bytes) else node.value
            if isinstance(text, str) and text.strip("\x01\x02") in NAMES - OTHER_MEANINGS.get(module, set()):
                found.append(f"{module}:{node.lineno}: {text!r}")
    assert not found


@pytest.mark.parametrize("what", MAGICS)
def test_magic_numbers(what: str) -> None:
    magic, home = MAGICS[what]
    spellings = {magic, magic - (1 << 32), (1 << 32) - magic}
    found = []
    for module, tree in TREES.items():
        for node in _constants(tree):
            as_bytes = isinstance(node.value, bytes) and magic.to_bytes(8).lstrip(b"\0")[:3] in node.value
            if as_bytes or (type(node.value) is int and node.value in spellings):
                found.append((module, node.lineno))
    assert [module for module, _ in found] == [home], found


def test_formats() -> None:
    """The format of a struct of several fields, as text, stands in one module."""
    places = defaultdict(set)
    for module, tree in TREES.items():
        for call in _calls(tree, "Struct"):
            if call.args and isinstance(call.args[0], ast.Constant) and len(call.args[0].value) > 3:
                places[call.args[0].value].add(module)
    assert {text: where for text, where in places.items() if len(where) > 1 and text not in CHANCE} == {}


def test_only_the_cutter_takes_a_remoting_prefix_apart() -> None:
    found = set()
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            shifted = isinstance(node, ast.BinOp) and isinstance(node.op, ast.RShift)
            if shifted and ast.unparse(node.right) in ("24", "words.TYPE_SHIFT", "TYPE_SHIFT"):
                found.add(module)
    assert found == {"penstock.wire.frames"}


@pytest.mark.parametrize("options", [BrokerConfig, RegistryConfig, StoreOptions])
def test_every_setting_is_read(options: type[msgspec.Struct]) -> None:
    nodes = (node for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    read = {node.attr for node in nodes if isinstance(node.ctx, ast.Load)}
    assert set(options.__struct_fields__) - read == set()


def test_levels_statuses_and_states_are_compared_with_names() -> None:
    found = []
    for module, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare):
                about = [getattr(side, "attr", getattr(side, "id", "")) for side in (node.left, *node.comparators)]
                told = [side.value for side in (node.left, *node.comparators) if isinstance(side, ast.Constant)]
                equal = all(isinstance(op, (ast.Eq, ast.NotEq)) for op in node.ops)
                ours = any(type(value) is int and value < HTTP for value in told)
                if equal and ours and set(about) & {"level", "status", "state", "perm"}:
                    found.append(f"{module}:{node.lineno}: {ast.unparse(node)}")
    assert not found


def test_request_and_response_codes_are_names() -> None:
    found = []
    for module, tree in TREES.items():
        for call in _calls(tree, "Refused"):
            told = {word.arg: word.value for word in call.keywords}
            if isinstance(told.get("remoting"), ast.Constant):
                found.append(f"{module}:{call.lineno}")
        for call in _calls(tree, "RemotingCommand"):
            if call.args and isinstance(call.args[0], ast.Constant) and call.args[0].value != 0:
                found.append(f"{module}:{call.lineno}")
    assert not found


@pytest.mark.parametrize(
    ("rule", "home"),
    [
        (r"\.perm & (\w+\.)?PERM_WRITE\b", "penstock.broker.topics"),
        (r"\.perm & (\w+\.)?PERM_READ\b", "penstock.fronts.remoting.pulling"),
        (r">= \(?group\.retry_max", "penstock.broker.retry"),
        (r"\.unit \+ ", "penstock.schedule.delays"),
    ],
    ids=["who may write", "who may read", "when a message dies", "when a message is due"],
)
def test_rules(rule: str, home: str) -> None:
    """Below the wings; a client reads the permissions of a route for itself."""
    found = []
    for module, tree in TREES.items():
        if module.split(".")[1:2] not in (["client"], ["registry"]) and re.search(rule, ast.unparse(tree)):
            found.append(module)
    assert found == [home]


def _offsets(packed: struct.Struct) -> list[int]:
    """Where the fields of a format begin, and where it ends."""
    fields = re.findall(r"\d+s|[a-zA-Z]", packed.format[1:])
    return [struct.calcsize(">" + "".join(fields[:n])) for n in range(len(fields) + 1)]


def test_formats_as_text_say_what_the_layouts_say() -> None:
    assert _offsets(record.ENTRY) == [
        layout.ENTRY_PHYSICAL, layout.ENTRY_SIZE, layout.ENTRY_TAGS, layout.ENTRY_BYTES
    ]  # fmt: skip
    assert _offsets(record.INDEX_HEAD) == [
        layout.INDEX_BEGIN_MS, layout.INDEX_END_MS, layout.INDEX_BEGIN_PHYSICAL, layout.INDEX_END_PHYSICAL,
        layout.INDEX_SLOTS_USED, layout.INDEX_COUNT, layout.INDEX_HEAD_BYTES,
    ]  # fmt: skip
    assert _offsets(record.INDEX_ENTRY) == [
        layout.INDEX_HASH, layout.INDEX_PHYSICAL, layout.INDEX_SECONDS, layout.INDEX_PREVIOUS, layout.INDEX_ENTRY_BYTES
    ]  # fmt: skip
    assert _offsets(record._HEAD) == [
        layout.SIZE, layout.MAGIC, layout.BODY_CRC, layout.QUEUE_ID, layout.FLAG, layout.QUEUE_OFFSET, layout.PHYSICAL,
        layout.SYS_FLAG, layout.BORN_MS, layout.BORN_HOST,
    ]  # fmt: skip
    assert _offsets(record.BATCH_HEAD) == [
        layout.SIZE, layout.MAGIC, layout.BODY_CRC, layout.BATCH_FLAG, layout.BATCH_BODY_LENGTH, layout.BATCH_BODY
    ]  # fmt: skip
    assert _offsets(segmenthead._HEAD) == [
        0, readylayout.VERSION, readylayout.FIRST, readylayout.SEGMENT_SIZE, readylayout.TAG, readylayout.COUNT,
        readylayout.HEAD_SUM, readylayout.HEAD_BYTES,
    ]  # fmt: skip
    assert _offsets(cursorfile._SLOT) == [
        cursorlayout.TURN, cursorlayout.COMMITTED, cursorlayout.CHECK, cursorlayout.SLOT_END
    ]  # fmt: skip
    assert _offsets(checkpoint._LIVE)[3:5] == [sidelayout.LIVE_END, sidelayout.LIVE_NEXT]
