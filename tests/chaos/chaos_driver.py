"""The driver that is killed: one query from a topic to four, each by another plan; and a sink that can be held.

Its folder goes on the Python path of the driver and the executors, so that all of them know the held sink.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.spark.write.sink import Staged, StreamWriter, client_of, stream_writer
from penstock.wire.codes import RequestCode
from pyspark_penstock import DefaultSource

PLANS = ("map", "hash", "rand", "count")


def hold(folder: str, point: str, about: str = "") -> None:
    """If somebody wants to kill something just here, wait until that has happened. One process at a time is held; who
    it is stands in the file, with what it was about to do."""
    wanted, held = Path(folder) / f"hold-{point}", Path(folder) / f"held-{point}"
    mine = wanted.with_name(f"taken-{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        wanted.rename(mine)
        mine.write_text(f"{os.getpid()} {about}")
        mine.rename(held)
        while held.exists():
            time.sleep(0.01)


def note(folder: str, doing: str) -> None:
    """Write down what is being done now, for whoever kills at a random moment."""
    with Path(folder, "doing").open("a") as file:
        file.write(f"{doing} {time.time()}\n")


class HeldWriter(StreamWriter):
    """The sink, with places to be killed at: in a task, behind its SEAL, before, between and behind the PUBLISHes."""

    folder = ""

    def write(self, iterator: Iterator[Any]) -> Staged:
        def held() -> Iterator[Any]:
            for batch in iterator:
                yield batch
                hold(self.folder, "write")

        note(self.folder, "staging")
        staged = super().write(held())
        if staged.sealed.brokers:  # not of a batch that is over
            hold(self.folder, "sealed")
        return staged

    def commit(self, messages: list[Any], batchId: int) -> None:
        hold(self.folder, "before", f"{batchId}")
        note(self.folder, "publishing")
        client = client_of(self.options)
        real, published = client.ask_broker, []

        def ask_broker(broker: str, code: int, *given: Any) -> Any:
            if code == RequestCode.STAGE_PUBLISH:
                if published:
                    hold(self.folder, "between", f"{batchId} {published[0]} {broker}")
                published.append(broker)
            return real(broker, code, *given)

        client.ask_broker = ask_broker  # type: ignore[method-assign]
        try:
            super().commit(messages, batchId)
        finally:
            del client.ask_broker
        note(self.folder, "resting")
        hold(self.folder, "after", f"{batchId}")


class HeldSink(DefaultSource):
    """`format("penstock-held")`; the option `folder` says where the holds are."""

    @classmethod
    def name(cls) -> str:
        return "penstock-held"

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        options = {name: value for name, value in self.options.items() if name.lower() != "folder"}
        plain = stream_writer(options, schema, overwrite)
        writer = HeldWriter(plain.options, plain.location)
        writer.folder = self.options["folder"]
        return writer


def counted(frame: Any) -> Any:
    """How often each key has come so far, told with every batch it comes in."""
    import pandas as pd

    def count(key: Any, parts: Any, state: Any) -> Any:
        seen = (state.get[0] if state.exists else 0) + sum(len(part) for part in parts)
        state.update((seen,))
        host = key[0].decode()
        yield pd.DataFrame({"value": [f"{host}={seen}".encode()], "key": [host.encode()]})

    return frame.groupBy("key").applyInPandasWithState(
        count, "value binary, key binary", "seen long", "append", "NoTimeout"
    )


def planned(frame: Any) -> Any:
    """The rows four times, by a plan of its own each, for a topic of its own each."""
    from pyspark.sql import functions as f

    rows = frame.select("value", "key")
    plans = {
        "map": rows,
        "hash": rows.repartition(3),
        "rand": rows.repartition(3, f.rand()),
        "count": counted(rows).select("value", "key"),
    }
    assert tuple(plans) == PLANS
    every = [plan.withColumn("topic", f.lit(f"chaos-{name}")) for name, plan in plans.items()]
    return functools.reduce(lambda a, b: a.union(b), every)


def main() -> None:
    given = json.loads(sys.argv[1])
    from penstock.spark import session

    spark = session(
        "chaos", master=given["master"], quick=True,
        config={
            "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"], "spark.sql.shuffle.partitions": "2",
            "spark.task.maxFailures": "10", "spark.executor.memory": "700m",
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )  # fmt: skip
    spark.dataSource.register(HeldSink)
    frame = (
        spark.readStream.format("penstock")
        .options(registry=given["registry"], subscribe="chaos-in", startingOffsets="earliest")
        .options(maxOffsetsPerTrigger=str(given["per_batch"]))
        .load()
    )
    query = (
        planned(frame)
        .writeStream.format("penstock-held")
        .options(registry=given["registry"], folder=given["folder"])
        .option("checkpointLocation", f"{given['folder']}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    Path(given["folder"], "started").touch()
    query.awaitTermination()


if __name__ == "__main__":
    main()
