"""Messages sent again: out of an archive or a commit log into topics, with key, tag and properties, each once.

The sink stages and publishes under a job's name, and what is published once under a name is not published again. An archive
is sent file by file, each under a name made of the file's place and bytes and of what was asked of it: a run that was killed,
or is run twice, goes on with the files that are left, and an archive that has grown sends what is new. A log is one job, named
by the ends of its segments. By which address the cluster is reached, and what is asked of other topics, is no part of a name.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

from penstock.client.reader import LogReader
from penstock.client.routes import MessageQueue
from penstock.client.staging import StageClient
from penstock.client.subscriptions import check_topic
from penstock.errors import ConfigError
from penstock.spark.log import files as logfiles
from penstock.spark.pipelines import manifest
from penstock.spark.pipelines.asked import bound_ms, complete
from penstock.spark.pipelines.parallel import Progress

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_KEPT = ("value", "key", "tags", "properties")
_END_BYTES = 4096


@dataclass(frozen=True)
class ReplayResult:
    """What was sent, or would be: messages by the topic they go to. `rows` counts what was handed to the sink."""

    source: str
    registry: str
    rows: int
    jobs: int
    seconds: float
    dry_run: bool
    topics: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


class Asked(TypedDict, total=False):
    """The keywords of `run`."""

    archive: str | Path
    path: str | Path
    topics: tuple[str, ...]
    renamed: Mapping[str, str] | None
    registry: str
    since: str
    until: str
    rate: int
    keep_queue: bool
    job: str
    dry_run: bool


DEFAULTS = Asked(
    archive="", path="", topics=(), renamed=None, registry="127.0.0.1:9876", since="", until="", rate=0,
    keep_queue=False, job="", dry_run=False,
)  # fmt: skip


class Selection(TypedDict):
    """What is sent and where to; of what concerns a unit its job's name is made."""

    since: int | None
    until: int | None
    renamed: dict[str, str]
    keep_queue: bool
    job: str


class Unit(NamedTuple):
    """What is sent under one job name: a file of an archive and its topic, or topics of a log."""

    name: str
    load: Callable[[SparkSession], DataFrame]
    topics: tuple[str, ...]
    path: Path | None  # of the file

    @property
    def topic(self) -> str:
        """The topic of all its messages; empty for a log."""
        return self.topics[0] if self.path else ""


def run(
    spark: SparkSession | Callable[[], SparkSession], *, progress: Progress | None = None, **asked: Unpack[Asked]
) -> ReplayResult:
    """Send the messages of an archive (the folder of the job `archive`) or of a log (`path`) to a cluster.

    `renamed` says which topic goes where; others keep their name. `rate` is messages a second at most. `keep_queue`
    sends each to the queue it came from. `job` is part of the name all is counted under: another one sends it again.
    """
    began = time.monotonic()
    given = complete(asked, DEFAULTS)
    archive, path, topics, registry = given["archive"], given["path"], given["topics"], given["registry"]
    if bool(archive) == bool(path):
        raise ConfigError("give an archive or a log")
    selection = Selection(
        since=bound_ms(given["since"]), until=bound_ms(given["until"]), renamed=dict(given["renamed"] or {}),
        keep_queue=given["keep_queue"], job=given["job"],
    )  # fmt: skip
    units = list(_files(Path(archive), topics) if archive else _log(str(path), topics))
    if not units:
        raise ConfigError(f"nothing to send at {archive or path}")
    _check(selection, {*topics, *selection["renamed"]} - {topic for unit in units for topic in unit.topics})
    if given["rate"] < 0:
        raise ConfigError(f"rate {given['rate']} is none", "messages a second at most; 0 is without a limit")
    dry_run = given["dry_run"]
    if not dry_run:
        with LogReader(registry, timeout_s=10) as cluster:  # the sink would wait for it for minutes
            cluster.topics()
    from pyspark.sql.functions import lit

    spark = spark() if callable(spark) else spark
    counts: dict[str, int] = {}
    for done, unit in enumerate(units):
        frame = _chosen(unit.load(spark), unit.topic, selection)
        if given["keep_queue"] and unit.path is not None and not dry_run:
            with StageClient(registry) as sink:
                queues = sink.queues_to_write(selection["renamed"].get(unit.topic, unit.topic))
            frame = frame.withColumn("partition", lit(number_of(unit.path, queues)))
        for target, count in _counted(frame, unit, selection):
            counts[target] = counts.get(target, 0) + count
        if not dry_run:
            _send(frame, registry, job_name(unit, selection), given["rate"])
        if progress:
            progress(done + 1, len(units))
    return ReplayResult(
        str(archive or path), registry, sum(counts.values()), len(units), round(time.monotonic() - began, 3), dry_run,
        dict(sorted(counts.items())),
    )  # fmt: skip


def number_of(path: Path, queues: list[MessageQueue]) -> int:
    """What the sink calls the queue of an archive's file: queues are numbered through, broker by broker.

    The queue id where the target has no such broker.
    """
    broker, queue_id = path.parts[-3].removeprefix("broker="), int(path.parts[-2].removeprefix("queue="))
    numbers = [n for n, queue in enumerate(queues) if (queue.broker, queue.queue_id) == (broker, queue_id)]
    return numbers[0] if numbers else queue_id


def _check(selection: Selection, unknown: set[str]) -> None:
    """ConfigError for topics that are not there: with a name mistyped, messages would go where they came from."""
    if unknown:
        raise ConfigError(f"there is no topic {min(unknown)!r} to send", "is its name right?")
    for old, new in selection["renamed"].items():
        try:
            check_topic(new)
        except ValueError as error:
            raise ConfigError(f"{old} cannot be sent to {new!r}: {error}", "--map OLD=NEW") from None


def _counted(frame: DataFrame, unit: Unit, selection: Selection) -> Iterator[tuple[str, int]]:
    """(topic, messages) of what will be sent; a whole file says it itself."""
    if unit.path is not None and selection["since"] is None and selection["until"] is None:
        import pyarrow.parquet as pq

        yield selection["renamed"].get(unit.topic, unit.topic), pq.ParquetFile(unit.path).metadata.num_rows
        return
    for row in frame.groupBy("topic").count().collect():
        yield row["topic"], row["count"]


def job_name(unit: Unit, selection: Selection) -> str:
    """The same unit, sent to the same places, always has the same name; other bytes under the same path have another."""
    renamed = {topic: selection["renamed"].get(topic, topic) for topic in sorted(unit.topics)}
    text = json.dumps([unit.name, _digest(unit.path), {**selection, "renamed": renamed}], sort_keys=True)
    return "replay-" + hashlib.sha256(text.encode()).hexdigest()[:32]


def _digest(path: Path | None) -> str:
    if path is None:
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _files(archive: Path, topics: tuple[str, ...]) -> Iterator[Unit]:
    for path in sorted(archive.glob("*/broker=*/queue=*/*.parquet")):
        topic = manifest.topic_of(path)
        if not topics or topic in topics:
            yield Unit(str(path.relative_to(archive)), partial(_parquet, str(path)), (topic,), path)


def _parquet(path: str, spark: SparkSession) -> DataFrame:
    return spark.read.parquet(path)


def _log(path: str, topics: tuple[str, ...]) -> Iterator[Unit]:
    ends = [(Path(s.path).name, s.base, s.end, _end_of(s)) for s in logfiles.find(path)]

    def load(spark: SparkSession) -> DataFrame:
        options = {"columns": "topic,partition,timestamp,value,key,tags,properties", "topics": ",".join(topics)}
        return spark.read.format("penstock-log").options(**options).load(path)

    if not topics:
        raise ConfigError("no topics given", "a log holds the broker's own topics too: name those to send")
    yield Unit(json.dumps(ends), load, topics, None)


def _end_of(segment: logfiles.LogSegment) -> str:
    """What stands at its end, with the times of the last records: no other log has the same there."""
    with open(segment.path, "rb") as file:
        file.seek(max(segment.end - _END_BYTES, 0))
        return hashlib.sha256(file.read(min(segment.end, _END_BYTES))).hexdigest()


def _chosen(frame: DataFrame, topic: str, selection: Selection) -> DataFrame:
    from pyspark.sql import functions as F

    if "value" not in frame.columns:
        raise ConfigError("the archive lacks the column value")
    for bound, over in ((selection["since"], False), (selection["until"], True)):
        if bound is not None:
            moment = F.timestamp_millis(F.lit(bound))
            frame = frame.where(F.col("timestamp") < moment if over else F.col("timestamp") >= moment)
    name = F.col("topic")
    for old, new in selection["renamed"].items():  # each by the name that the log has
        name = F.when(F.col("topic") == old, F.lit(new)).otherwise(name)
    if topic:
        name = F.lit(selection["renamed"].get(topic, topic))
    kept = [column for column in _KEPT if column in frame.columns]
    own = selection["keep_queue"] and not topic  # that of a file is in its name
    return frame.select(name.alias("topic"), *kept, *(["partition"] if own else []))


def _send(frame: DataFrame, registry: str, job: str, rate: int) -> None:
    if rate:
        frame = frame.coalesce(1).mapInArrow(_Throttle(rate), frame.schema)
    frame.write.format("penstock").options(registry=registry, jobId=job).mode("append").save()


class _Throttle:
    """Lets batches through at a rate, in rows a second."""

    def __init__(self, rate: int) -> None:
        self.rate = rate

    def __call__(self, found: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began, passed = time.monotonic(), 0
        for batch in found:
            for at in range(0, batch.num_rows, max(self.rate // 4, 1)):
                part = batch.slice(at, max(self.rate // 4, 1))
                passed += part.num_rows
                time.sleep(max(began + passed / self.rate - time.monotonic(), 0))
                yield part
