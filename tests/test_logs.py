"""Lines of the log: what stands in them, whatever a value holds, and how many there are of a kind."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from penstock import logs

LEVELS = ("debug", "info", "warning", "error", "exception", "critical", "log")
BAD = 'a b" reason=\x1b[2J\nlevel=info x\\'


def record(
    message: str, *values: object, level: int = logging.INFO, name: str = "penstock.t", **more: Any
) -> logging.LogRecord:
    return logging.LogRecord(name, level, __file__, 1, message, values, **{"exc_info": None, **more})


@pytest.mark.parametrize(
    ("template", "values", "event", "fields"),
    [
        ("client left protocol=%s peer=%s", ("nsq", "a:1"), "client left", {"protocol": "nsq", "peer": "a:1"}),
        ("made name=%s count=%d", (BAD, 3), "made", {"name": BAD, "count": 3}),
        ("closed peer=%s reason=%d %s", ("a", 5, "why"), "closed", {"peer": "a", "reason": "5 why"}),
        ("it went 100%% wrong for %s times=%d", ("x", 2), "it went 100% wrong for x", {"times": 2}),
        (
            "topic made name=%s kind=log queues=%d",
            ("%RETRY%g", 1),
            "topic made",
            {"name": "%RETRY%g", "kind": "log", "queues": 1},
        ),
        ("they differ ours=%08x part=%.2f", (255, 0.5), "they differ", {"ours": "000000ff", "part": "0.50"}),
        ("nothing more", (), "nothing more", {}),
        ("%s is gone", ("x=1",), "x=1 is gone", {}),
        ("x=1 said by hand", (), "x=1 said by hand", {}),
    ],
)
def test_fields(template: str, values: tuple[object, ...], event: str, fields: dict[str, object]) -> None:
    assert logs.fields_of(record(template, *values)) == (event, fields)


@pytest.mark.parametrize("log_format", ["json", "logfmt"])
def test_a_line_is_one_line(log_format: str) -> None:
    try:
        raise ValueError("first\nsecond")
    except ValueError:
        error = sys.exc_info()
    line = logs.Lines("100%", logs.line_of(log_format, io.StringIO())).format(
        record("lost peer=%s", BAD, exc_info=error)
    )
    assert line.isprintable()
    assert "Traceback" in line
    if log_format == "json":
        found = json.loads(line)
        assert (found["event"], found["peer"], found["broker"], found["level"]) == ("lost", BAD, "100%", "info")
        moment = found["time"]
    else:
        moment, _, rest = line.partition(" ")
        assert rest.startswith(
            'level=info broker=100% logger=penstock.t event=lost peer="a b\\" reason=\\u001b[2J\\nlevel'
        )
    assert datetime.fromisoformat(moment).tzinfo is not None


def test_fields_do_not_take_the_place_of_our_own() -> None:
    found = json.loads(logs.Lines("", logs.json_line).format(record("topic made level=%s", "disk")))
    assert (found["level"], found["level_"]) == ("info", "disk")


def test_lines_of_a_kind_are_limited_and_counted() -> None:
    now = [0.0]
    limit = logs.Limit(lambda: now[0])
    refusals = [record("refused peer=%s", n, level=logging.WARNING) for n in range(logs.BURST + 7)]
    assert sum(map(limit.filter, refusals)) == logs.BURST
    assert limit.filter(record("something else", level=logging.WARNING))
    now[0] += logs.PERIOD_S
    after = record("refused peer=%s", 0, level=logging.WARNING)
    assert limit.filter(after)
    assert "left_out=7" in logs.Lines("", logs.logfmt_line).format(after)
    for name, level in (("penstock.audit", logging.WARNING), ("penstock.t", logging.INFO), ("x", logging.CRITICAL)):
        assert all(limit.filter(record("y", level=level, name=name)) for _ in range(3 * logs.BURST))
    assert sum(limit.filter(record("client left", name="penstock.net")) for _ in range(3 * logs.BURST)) == logs.BURST


def test_auto_asks_the_stream() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    assert logs.line_of("auto", Terminal()) is logs.logfmt_line
    assert logs.line_of("auto", io.StringIO()) is logs.json_line
    assert logs.line_of("json", Terminal()) is logs.json_line


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root, level = logging.getLogger(), logging.getLogger().level
    yield root
    for one in list(root.handlers):
        if isinstance(one.formatter, logs.Lines):
            root.removeHandler(one)
    root.setLevel(level)


def test_said_twice_it_is_written_once(root: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    logs.to_stderr("json")
    logs.to_stderr("json", "b")
    logging.getLogger("penstock.t").warning("once")
    assert [json.loads(line)["broker"] for line in capsys.readouterr().err.splitlines() if "once" in line] == ["b"]


def test_each_field_that_a_line_of_ours_names_is_one() -> None:
    """A value with text before it (`kept=lost+found/%s`) was taken for a part of the field before it."""
    for path in Path(logs.__file__).parent.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in LEVELS):
                continue
            if ast.unparse(call.func.value) == "log" and isinstance(call.args[0], (ast.JoinedStr, ast.IfExp)):
                pytest.fail(f"{path}: {ast.unparse(call)}: what it names are no fields")
            for template in (one.value for one in call.args[:2] if isinstance(one, ast.Constant)):
                if isinstance(template, str):
                    named = re.findall(r"([a-z_]+)=", template)
                    assert [part.name for part in logs._parts(template)[1:]] in (named, []), (path, template)
