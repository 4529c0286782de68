"""Events out of files: CSV, JSON lines, Arrow and Parquet, web-server logs, and any lines."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import IO

from penstock.demo.shape import Event, Field, Plan, choose, convert, fields_of
from penstock.errors import ConfigError

SAMPLE = 2_000
_ACCESS = re.compile(
    r'(?P<client>\S+) \S+ (?P<user>\S+) \[(?P<time>[^\]]+)\] "(?:(?P<method>[A-Z]+) (?P<path>\S+)[^"]*|[^"]*)"'
    r' (?P<status>\d{3}) (?P<bytes>\d+|-)(?: "(?P<referrer>[^"]*)" "(?P<agent>[^"]*)")?'
)
_STAMP = re.compile(
    r"^\[?(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)\]?"
)
_LEVEL = re.compile(r"\b(TRACE|DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b")


@dataclass
class Feed:
    """Events of one shape, bound for one topic. `events` can be read once."""

    topic: str
    what: str
    fields: list[Field]
    plan: Plan
    events: Iterator[Event]


def feeds(paths: list[Path]) -> list[Feed]:
    """One feed per shape: files with the same fields and alike names share a topic, told apart by a field `source`."""
    found: dict[tuple[str, ...], list[tuple[Path, str, list[Event], Iterator[Event]]]] = {}
    for path in paths:
        what, events = _read(path)
        sample = list(islice(events, SAMPLE))
        if not sample:
            raise ConfigError(f"{path} holds no events")
        # The same fields, and names that begin alike: twelve sensors are one topic, a taxi count and a sensor are two.
        family = re.split(r"[_\-. \d]", path.stem, maxsplit=1)[0].lower()
        shape = (what, family, *dict.fromkeys(name for event in sample[:50] for name in event))
        found.setdefault(shape, []).append((path, what, sample, events))
    return [_feed(parts) for parts in found.values()]


def _feed(parts: list[tuple[Path, str, list[Event], Iterator[Event]]]) -> Feed:
    several = len(parts) > 1
    names = _short_names([path for path, *_ in parts])

    def told_apart(source: str, events: Iterator[Event]) -> Iterator[Event]:
        return ({**event, "source": source} for event in events) if several else events

    sample = [event for name, part in zip(names, parts, strict=True) for event in told_apart(name, iter(part[2]))]
    fields = fields_of(sample)
    plan = _access_plan() if parts[0][1] == "access log" and not several else choose(sample, fields, len(parts))
    every = chain.from_iterable(
        told_apart(name, chain(start, rest)) for name, (_, _, start, rest) in zip(names, parts, strict=True)
    )
    stem = _common_stem([path for path, *_ in parts])
    what = f"{parts[0][1]}: {', '.join(path.name for path, *_ in parts)}"
    return Feed(_topic(stem), what, fields, plan, (convert(event, fields) for event in every))


def _access_plan() -> Plan:
    return Plan("time", "time", None, "status")


def _short_names(paths: list[Path]) -> list[str]:
    stem = _common_stem(paths)
    return [path.stem.removeprefix(stem).strip("_-. ") or path.stem for path in paths]


def _common_stem(paths: list[Path]) -> str:
    if len(paths) == 1:
        return paths[0].stem
    stems = [path.stem for path in paths]
    shared = ""
    for letters in zip(*stems, strict=False):
        if len(set(letters)) > 1:
            break
        shared += letters[0]
    return shared.rstrip("_-. ")


def _topic(stem: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_-]+", "-", stem).strip("-")[:100] or "events"


# -- formats


def _read(path: Path) -> tuple[str, Iterator[Event]]:
    """(what it is, its events). `ConfigError` for a file that cannot be read."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    kind = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    if kind in (".arrow", ".feather", ".ipc"):
        return "Arrow table", _arrow(path)
    if kind == ".parquet":
        return "Parquet table", _parquet(path)
    with _open(path) as file:
        start = file.read(1 << 16)
    lines = [line for line in start.splitlines() if line.strip()]
    if not lines:
        raise ConfigError(f"{path} is empty")
    if kind in (".csv", ".tsv") or (kind == ".txt" and _looks_tabular(lines)):
        return "CSV", _csv(path, start)
    if start.lstrip()[0] == "[" and kind == ".json":
        return "JSON array", _json_array(path)
    if lines[0].lstrip().startswith("{"):
        return "JSON lines", _json_lines(path)
    if sum(_ACCESS.match(line) is not None for line in lines[:20]) >= 0.8 * len(lines[:20]):
        return "access log", _access(path)
    return "lines", _lines(path)


def _open(path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8", errors="replace", newline="")
    return open(path, encoding="utf-8", errors="replace", newline="")


def _looks_tabular(lines: list[str]) -> bool:
    return any(len({line.count(c) for line in lines[:20]}) == 1 and lines[0].count(c) for c in ",;\t|")


def _csv(path: Path, start: str) -> Iterator[Event]:
    first = start.splitlines()[0]
    delimiter = max(",;\t|", key=first.count) if any(c in first for c in ",;\t|") else ","
    with _open(path) as file:
        rows = csv.reader(file, delimiter=delimiter)
        head = next(rows)
        named = len(set(head)) == len(head) and not any(re.fullmatch(r"\s*[-+.\d]+\s*", cell) for cell in head)
        names = [cell.strip().lstrip("\ufeff") or f"column{i}" for i, cell in enumerate(head, 1)] if named else []
        for row in rows if named else chain([head], rows):
            if row:
                names = names or [f"column{i}" for i in range(1, len(row) + 1)]
                yield dict(zip(names, row, strict=False))


def _json_lines(path: Path) -> Iterator[Event]:
    with _open(path) as file:
        for line in file:
            if line.strip():
                try:
                    yield _flat(json.loads(line))
                except ValueError:
                    yield {"line": line.rstrip("\r\n")}


def _json_array(path: Path) -> Iterator[Event]:
    with _open(path) as file:
        try:
            items = json.load(file)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from None
    yield from (_flat(item) for item in items)


def _flat(item: object, prefix: str = "") -> Event:
    if not isinstance(item, dict):
        return {prefix.rstrip("_") or "value": item if isinstance(item, str | int | float | None) else json.dumps(item)}
    made: Event = {}
    for name, value in item.items():
        made |= _flat(value, f"{prefix}{name}_") if isinstance(value, dict) else _flat(value, f"{prefix}{name}")
    return made


def _arrow(path: Path) -> Iterator[Event]:
    import pyarrow as pa

    try:
        with pa.ipc.open_file(path) as reader:
            batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
    except pa.ArrowInvalid:
        with pa.ipc.open_stream(path) as reader:
            batches = list(reader)
    for batch in batches:
        for at in range(0, batch.num_rows, 5_000):
            yield from batch.slice(at, 5_000).to_pylist()


def _parquet(path: Path) -> Iterator[Event]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(5_000):
        yield from batch.to_pylist()


def _access(path: Path) -> Iterator[Event]:
    with _open(path) as file:
        for line in file:
            match = _ACCESS.match(line)
            if match:
                event: Event = match.groupdict()
                event["bytes"] = None if event["bytes"] == "-" else event["bytes"]
                event["status"] = f"{event['status'][0]}xx"
                event["code"] = match["status"]
                yield event


def _lines(path: Path) -> Iterator[Event]:
    with _open(path) as file:
        for raw in file:
            line = raw.rstrip("\r\n")
            if not line.strip():
                continue
            stamp, level = _STAMP.match(line), _LEVEL.search(line)
            yield {
                "time": stamp[1].replace(",", ".") if stamp else None,
                "level": level[1] if level else None,
                "length": len(line),
                "line": line,
            }
