"""Spreads work over Spark's tasks: one item a task, and back come small answers, never the messages.

`work(item)` runs in a Python task and yields what pickles; the answers are returned in the order of the items. Without
Spark (None) the same runs in this process, one item after another; with a function in place of the session, small work does,
and for the rest the function is called for one.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    Spark = SparkSession | Callable[[], SparkSession] | None

log = logging.getLogger(__name__)
I = TypeVar("I")  # noqa: E741
A = TypeVar("A")

Progress = Callable[[int, int], None]
"""Called now and then with (done, of how many)."""

# Below these the work is done before a JVM has started.
SMALL_BYTES = 128 << 20
SMALL_MESSAGES = 200_000

IDLE_S = 30.0
IDLE = "no worker has taken a task yet: has the cluster free cores? Waiting for them"
_RETURNS = "item bigint, answer binary"


def over(
    spark: Spark,
    items: Sequence[I],
    work: Callable[[I], Iterator[A]],
    progress: Progress | None = None,
    total: int = 0,
    *,
    small: bool = False,
) -> list[A]:
    """The answers for all items; `progress` is told the part of `total` that is done, by finished tasks."""
    total = total or len(items)
    spark = started(spark, small=small or not items)
    if spark is None:
        answers: list[A] = []
        for n, item in enumerate(items, 1):
            answers += work(item)
            if progress:
                progress(total * n // len(items), total)
        return answers
    if not items:
        return []

    def task(ids: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in ids:
            for number in batch.column(0).to_pylist():
                packed = pickle.dumps(list(work(items[number])))
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number], pa.int64()), pa.array([packed], pa.binary())], names=["item", "answer"]
                )

    frame = spark.range(0, len(items), 1, len(items)).mapInArrow(task, _RETURNS)
    with _TaskWatch(spark, len(items), total, progress):
        rows = frame.collect()
    rows.sort(key=lambda row: int(row["item"]))
    return [answer for row in rows for answer in pickle.loads(row["answer"])]


def started(spark: Spark, *, small: bool) -> SparkSession | None:
    """The session to work with; None: none is worth it."""
    if callable(spark):
        return None if small else spark()
    return spark


class _TaskWatch:
    """Tells the progress of one action, by its finished tasks."""

    def __init__(self, spark: SparkSession, tasks: int, total: int, progress: Progress | None) -> None:
        self.spark, self.tasks, self.total, self.progress = spark, tasks, total, progress
        self.group = f"penstock-{uuid.uuid4().hex[:12]}"
        self.remote = "connect" in type(spark).__module__
        self.handler: Any = self._told
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._look, name="penstock-progress", daemon=True)

    def __enter__(self) -> None:
        if self.progress and self.remote:
            self.spark.registerProgressHandler(self.handler)
        elif self.progress:
            self.spark.sparkContext.setJobGroup(self.group, "penstock")
            self.thread.start()

    def __exit__(self, failed: Any, *_: object) -> None:
        self.over.set()
        if self.progress:
            if self.remote:
                self.spark.removeProgressHandler(self.handler)
            else:
                self.thread.join()
            if failed is None:
                self.progress(self.total, self.total)

    def _told(self, stages: Any, inflight_tasks: int, operation_id: str | None, done: bool) -> None:
        """Spark Connect calls this by itself."""
        self._say(sum(stage.num_completed_tasks for stage in stages or ()))

    def _look(self) -> None:
        tracker = self.spark.sparkContext.statusTracker()
        since: float | None = time.monotonic()  # nothing has begun since then
        while not self.over.wait(0.3):
            done = active = 0
            for job in tracker.getJobIdsForGroup(self.group):
                info = tracker.getJobInfo(job)
                for stage in [tracker.getStageInfo(stage) for stage in info.stageIds] if info else []:
                    done += stage.numCompletedTasks if stage else 0
                    active += stage.numActiveTasks if stage else 0
            if done or active:
                since = None
            elif since is not None and time.monotonic() - since > IDLE_S:
                since = None
                getattr(self.progress, "note", log.warning)(IDLE)
            self._say(done)

    def _say(self, done: int) -> None:
        assert self.progress is not None
        self.progress(self.total * min(done, self.tasks) // self.tasks, self.total)
