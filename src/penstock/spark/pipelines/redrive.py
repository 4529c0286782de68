"""Dead letters sent back to the topics they came from: the chosen ones, each once.

A dead letter keeps its topic in the property RETRY_TOPIC and its first id in ORIGIN_MESSAGE_ID; both go along. A small file
notes which offsets were sent, with their store times: by these the letters of another cluster, or of a topic made anew, are told
from them, whatever the registry is called. Before sending, the chosen ones and the job's name are written into it; a killed run
is finished first, under the same name, and the sink writes nothing twice under one name. Every group of the topic gets them, not
only the one that gave them up.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack
from urllib.parse import quote

from penstock.client.reader import LogReader
from penstock.errors import ConfigError, Locked, NoRoute
from penstock.spark.pipelines.asked import bound_ms, complete
from penstock.wire.codes import DLQ_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

LIMIT = 100_000
_COLUMNS = "broker,partition,offset,timestamp,reconsumeTimes,value,key,tags,properties"

_PLACE = {"broker": "string", "partition": "int", "offset": "bigint", "stored": "bigint"}
_FORMER = 3  # of these were in the notes once

Place = tuple[str | int, ...]
"""(broker, queue, offset, store time in microseconds); without the time in notes of a former version."""


@dataclass(frozen=True)
class RedriveResult:
    """What was sent, or would be; `before` were sent by earlier runs, `resumed` belonged to one that did not end."""

    group: str
    rows: int
    before: int
    resumed: int
    dry_run: bool
    seconds: float
    topics: dict[str, int] = field(default_factory=dict)
    samples: list[dict[str, object]] = field(default_factory=list)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


class Asked(TypedDict, total=False):
    """The keywords of `run`."""

    registry: str
    where: str
    tag: str
    key: str
    since: str
    until: str
    state: str | Path
    dry_run: bool


DEFAULTS = Asked(
    registry="127.0.0.1:9876", where="", tag="", key="", since="", until="", state="", dry_run=True
)  # fmt: skip


def run(spark: SparkSession | Callable[[], SparkSession], group: str, **asked: Unpack[Asked]) -> RedriveResult:
    """Send the dead letters of a consumer group back. `where` is a condition in SQL on the columns of the source.

    `state` is the folder with the notes of what was sent, by default below the user's state folder.
    """
    began = time.monotonic()
    job = complete(asked, DEFAULTS)
    registry, state, dry_run = job["registry"], job["state"], job["dry_run"]
    _check_there(registry, group)
    spark = spark() if callable(spark) else spark
    notes = _Notes(Path(state) if state else default_state(), registry, group)
    frame = _chosen(_load(spark, registry, group), job)
    if dry_run:
        rows = _places(frame, notes.done)
        return _result(group, rows, notes, 0, True, began)
    with notes.locked():
        resumed = len(notes.pending)
        if resumed:
            _check_begun(spark, _load(spark, registry, group), notes)
            _send(spark, _load(spark, registry, group), notes, registry)
        rows = _places(frame, notes.done)
        before = len(notes.done)
        if rows:
            notes.begin([_place(row) for row in rows])
            _send(spark, _load(spark, registry, group), notes, registry)
        return _result(group, rows, notes, resumed, False, began, before)


def _check_there(registry: str, group: str) -> None:
    topic = DLQ_PREFIX + group.removeprefix(DLQ_PREFIX)
    with LogReader(registry, timeout_s=10) as cluster:
        try:
            cluster.queues(topic)
        except NoRoute:
            hint = "is the group's name right, and --registry its cluster? `penstock topic ls --system` shows all %DLQ% topics"
            raise ConfigError(
                f"no dead letters of consumer group {group!r}: there is no topic {topic!r}", hint
            ) from None


def _check_begun(spark: SparkSession, frame: DataFrame, notes: _Notes) -> None:
    """ConfigError when the run that did not end was another cluster's: its letters are not here, and must be sent there."""
    if notes.begun_at != notes.registry and not _pending(spark, frame, notes).limit(1).count():
        raise ConfigError(
            f"a redrive of this group with --registry {notes.begun_at} did not end, and its letters are not here",
            f"run it once more with that registry, or delete {notes.path}",
        )


def default_state() -> Path:
    """Where notes are kept by default."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "penstock" / "redrive"


def _load(spark: SparkSession, registry: str, group: str) -> DataFrame:
    options = {"registry": registry, "columns": _COLUMNS}
    frame = spark.read.format("penstock").options(**options).load(DLQ_PREFIX + group.removeprefix(DLQ_PREFIX))
    more = ("properties['RETRY_TOPIC'] as topic", "unix_micros(timestamp) as stored")
    return frame.selectExpr("*", *more).where("topic is not null")


def _chosen(frame: DataFrame, job: Asked) -> DataFrame:
    from pyspark.sql import functions as F

    if job["where"]:
        frame = frame.where(job["where"])
    if job["tag"]:
        frame = frame.where(F.col("tags") == job["tag"])
    if job["key"]:
        frame = frame.where(F.array_contains(F.split(F.col("key").cast("string"), " "), job["key"]))
    for bound, late in ((bound_ms(job["since"]), False), (bound_ms(job["until"]), True)):
        if bound is not None:
            moment = F.timestamp_millis(F.lit(bound))
            frame = frame.where(F.col("timestamp") < moment if late else F.col("timestamp") >= moment)
    return frame


def _places(frame: DataFrame, done: set[Place]) -> list[Row]:
    """The chosen messages that were not sent yet, without their bodies."""
    columns = (*_PLACE, "topic", "tags", "cast(key as string) as key", "timestamp")
    found = frame.selectExpr(*columns).orderBy("broker", "partition", "offset").limit(LIMIT + len(done) + 1).collect()
    rows = [row for row in found if not done & {_place(row), _place(row)[:_FORMER]}]
    if len(rows) > LIMIT:
        raise ConfigError(f"more than {LIMIT:,} dead letters are chosen", "choose fewer: --until, --tag, --where")
    return rows


def _place(row: Row) -> Place:
    return row["broker"], row["partition"], row["offset"], row["stored"]


def _pending(spark: SparkSession, frame: DataFrame, notes: _Notes) -> DataFrame:
    """The letters that a run has begun to send."""
    from pyspark.sql import functions as F

    noted = list(_PLACE)[: len(notes.pending[0])]
    chosen = spark.createDataFrame(notes.pending, ", ".join(f"{name} {_PLACE[name]}" for name in noted))
    return frame.join(F.broadcast(chosen), noted)


def _send(spark: SparkSession, frame: DataFrame, notes: _Notes, registry: str) -> None:
    rows = _pending(spark, frame, notes)
    job = rows.select("topic", "value", "key", "tags", "properties").write.format("penstock")
    job.options(registry=registry, jobId=notes.job).mode("append").save()
    notes.end()


def _result(
    group: str, rows: list[Row], notes: _Notes, resumed: int, dry_run: bool, began: float, before: int | None = None
) -> RedriveResult:
    topics: dict[str, int] = {}
    for row in rows:
        topics[row["topic"]] = topics.get(row["topic"], 0) + 1
    samples = [
        {
            "topic": row["topic"],
            "queue": row["partition"],
            "offset": row["offset"],
            "tags": row["tags"],
            "key": row["key"],
        }
        for row in rows[:20]
    ]
    known = len(notes.done) if before is None else before
    return RedriveResult(group, len(rows), known, resumed, dry_run, round(time.monotonic() - began, 3), topics, samples)


class _Notes:
    """Which dead letters of a group were sent, and which are being sent."""

    def __init__(self, folder: Path, registry: str, group: str) -> None:
        name = group.removeprefix(DLQ_PREFIX)
        self.path = folder / f"{quote(name, safe='')}.json"
        self._former = folder / (re.sub(r"[^A-Za-z0-9._-]", "_", f"{registry}-{name}") + ".json")
        self.registry = registry
        self.done: set[Place] = set()
        self.pending: list[Place] = []
        self.job = self.begun_at = ""
        self._load()

    def _load(self) -> None:
        path = self.path if self.path.exists() else self._former
        if path.exists():
            table = json.loads(path.read_text())
            self.done, self.pending = set(map(tuple, table["done"])), list(map(tuple, table["pending"]))
            self.job, self.begun_at = table["job"], table.get("registry", self.registry)

    def begin(self, places: list[Place]) -> None:
        """Note, before it is done, that these are sent under a new name."""
        self.pending, self.job, self.begun_at = places, f"redrive-{uuid.uuid4().hex}", self.registry
        self.save()

    def end(self) -> None:
        """Those that were begun are sent."""
        self.done.update(self.pending)
        self.pending, self.job, self.begun_at = [], "", ""
        self.save()

    def save(self) -> None:
        """Replace the file; durable when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = self.path.with_suffix(".tmp")
        with open(unfinished, "w") as file:
            table = {"done": sorted(self.done), "pending": self.pending, "job": self.job, "registry": self.begun_at}
            json.dump(table, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self.path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One run per group at a time. `Locked` when another one is at it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path.with_suffix(".lock"), "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Locked(f"another redrive of this group is running ({self.path})") from None
            self._load()
            yield
