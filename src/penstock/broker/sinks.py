"""What a broker knows of each sink: the last batch it published, and which run may go on. An output of dispatch.

    run     a driver that was not known began to write to the sink; whoever wrote before it is stale
    begin   a batch is published: the records behind this one, up to `done`, are its rows
    done    all rows of the batch are there

Each is a record of RMQ_SYS topic `rmq_sys_penstock_sinks`, a JSON object as its body: live and at the start the table
is made of these records alone, on top of a snapshot (`config/sinks.json`) that retention cannot take away. `begin`, rows
and `done` are appended in one turn, so that nothing stands between them; a `begin` without `done` at the end of the log
is a publish that a crash has cut short, and `broker.staging` appends what is missing from the staged files, which are
kept until `done` is on the disk.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from penstock.disk.files import Files
from penstock.disk.job import Job
from penstock.disk.tables import load, replace
from penstock.wire.names import SINK_TOPIC
from penstock.wire.record import decode_record

SINKS_MAX = 10_000
STALE_RUNS_MAX = 32
LAYOUT_TOPICS_MAX = 1_000
SNAPSHOT_MS, SNAPSHOT_MS_PER_SINK = 5_000, 5
SNAPSHOT_BYTES = 64 << 20  # the most that an unclean start has to read again for the sinks' sake


class Note(TypedDict, total=False):
    """A record of the sinks' topic."""

    k: str
    sink: str
    query: str
    run: str
    coordinator: str
    reset: bool
    once: bool
    batch: int
    rows: int
    tokens: list[str]
    brokers: dict[str, list[str]]
    layout: dict[str, list[str]]
    planned: int
    begin: int


class Sink(msgspec.Struct):
    """One sink at this broker. `last` is the batch published last, -1 for none; `answer` is what its publisher was told."""

    query: str
    run: str
    coordinator: str
    last: int = -1
    answer: dict[str, object] = msgspec.field(default_factory=dict)
    once: bool = False  # a job that nobody can name again: the first to be forgotten
    stale: list[str] = msgspec.field(default_factory=list)
    at_ms: int = 0
    layout: dict[str, list[str]] = msgspec.field(
        default_factory=dict
    )  # topic: the brokers its rows were dealt out over

    def go_on(self, run: str, coordinator: str) -> None:
        """A run writes, and this broker decides for it; the one before it is over."""
        if self.run != run:
            self.stale = [*self.stale, self.run][-STALE_RUNS_MAX:]
            self.run = run
        self.coordinator = coordinator

    def is_once(self, once: bool) -> None:
        """Whether its job can be named again."""
        self.once = once

    def heard(self, at_ms: int) -> None:
        """A record tells of it."""
        self.at_ms = at_ms

    def published(self, about: Note) -> None:
        """A batch is whole."""
        self.last = about["batch"]
        self.answer = {"rows": about["rows"], "brokers": about.get("brokers") or {}}
        if "planned" in about:
            self.answer["planned"] = about["planned"]
        layout = {**self.layout, **(about.get("layout") or {})}
        self.layout = dict(list(layout.items())[-LAYOUT_TOPICS_MAX:])


class Begun(msgspec.Struct, frozen=True):
    """A publish whose rows are being appended: where its `begin` record stands, and how large that is."""

    physical: int
    size: int
    about: Note


class Sinks:
    """The table, as a subscriber of the store."""

    topics = frozenset((SINK_TOPIC,))

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self.files = files
        self.by_name: dict[str, Sink] = {}
        self.begun: Begun | None = None
        self.done_at: dict[str, int] = {}  # behind the last publish of each sink that the snapshot has not
        self.position = -1
        self._changed_at = -1  # physical offset behind the newest change
        self._saved_ms = 0
        self._running = False
        table = load(files, path)
        if table is not None:
            self._take(table)

    def _take(self, table: dict[str, Any]) -> None:
        for name, about in (table.get("sinks") or {}).items():
            try:
                self.by_name[name] = Sink(**about)
            except TypeError:
                continue  # of a later version, or damaged: the log may know it
        position = table.get("position")
        self.position = position if isinstance(position, int) else -1

    # -- what the log tells

    def add(self, physical: int, record: bytes, tags_code: int, store_ms: int) -> None:
        """A record of the topic."""
        message = decode_record(record, decompress=False)
        try:
            about: Note = json.loads(message.body if message is not None else b"{}")
            kind, name = about["k"], about["sink"]
        except (ValueError, KeyError, TypeError):
            return
        self._changed_at = physical + len(record)
        if kind == "run":
            self._run(name, about)
        elif kind == "begin":
            self.begun = Begun(physical, len(record), about)
        elif kind == "done":
            self._done(name)
            self.done_at[name] = self._changed_at
        sink = self.by_name.get(name)
        if sink is not None:
            sink.heard(store_ms)
        if len(self.by_name) > SINKS_MAX:
            oldest = min(self.by_name, key=lambda n: (not self.by_name[n].once, self.by_name[n].at_ms))
            del self.by_name[oldest]
            self.done_at.pop(oldest, None)

    def _run(self, name: str, about: Note) -> None:
        sink = self.by_name.get(name)
        if sink is None or about.get("reset"):
            sink = self.by_name[name] = Sink(about["query"], about["run"], about["coordinator"])
        sink.go_on(about["run"], about["coordinator"])
        sink.is_once(bool(about.get("once")))

    def _done(self, name: str) -> None:
        begun, self.begun = self.begun, None
        sink = self.by_name.get(name)
        if sink is not None and begun is not None:
            sink.published(begun.about)

    def done(self, prepared: int, physical: int) -> None:
        """Nothing here is waited for."""

    def cut(self, end: int) -> None:
        """A snapshot holds only what was flushed: there is nothing to forget."""
        self.position = min(self.position, end)

    def read_again(self) -> None:
        """The log is about to be cut below what the snapshot holds: the log alone is asked, from its beginning."""
        self.by_name.clear()
        self.done_at.clear()
        self.begun, self.position = None, -1
        for path in (self.path, self.path.with_name(self.path.name + ".bak")):
            self.files.unlink(path)
        self.files.sync_folder(self.path.parent)

    # -- the snapshot

    def take_job(self, flushed: int, end: int, mono_ms: int) -> Job | None:
        """Write the table down when all of it is on the disk and it is time."""
        if self._running or not self.by_name or self.begun is not None or self.position >= flushed:
            return None
        if self._changed_at > flushed:
            return None
        pause_ms = SNAPSHOT_MS + len(self.by_name) * SNAPSHOT_MS_PER_SINK
        due = mono_ms - self._saved_ms >= pause_ms and self._changed_at > self.position
        if not due and flushed - self.position < SNAPSHOT_BYTES and mono_ms < 1 << 62:
            return None
        self._running = True
        sinks = {
            name: msgspec.structs.asdict(sink) for name, sink in self.by_name.items()
        }  # their values are never changed

        def finish(error: BaseException | None, now_ms: int) -> None:
            self._running = False
            self._saved_ms = now_ms
            if error is None:
                self.position = flushed  # a full disk keeps the old file, and later is early enough

        return Job("sinks", lambda: replace(self.files, self.path, _text(flushed, sinks)), finish)

    def close(self) -> None:
        """The table is in the log."""


def _text(position: int, sinks: dict[str, dict[str, object]]) -> bytes:
    """The snapshot. Sink by sink, so that the loop gets its turns while a thread makes it."""
    every = ",".join(f"{json.dumps(name)}:{json.dumps(about)}" for name, about in sinks.items())
    return f'{{"position":{position},"sinks":{{{every}}}}}'.encode()
