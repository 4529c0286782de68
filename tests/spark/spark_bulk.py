"""Reads a log as a job of the bulk reader does, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.spark import schema
from penstock.spark.log import files as logfiles
from penstock.spark.log import source as logsource
from penstock.spark.log.options import parse

NAMES = tuple(name for name in schema.BY_NAME if name not in ("broker", "delayUntil"))


def read(path: Path | str, splits: int = 1, names: tuple[str, ...] = NAMES, **given: Any) -> list[dict[str, Any]]:
    """The rows as a job with so many splits reads them, one split after the other."""
    options = parse({"path": str(path), "minPartitions": str(splits), **{k: str(v) for k, v in given.items()}})
    arrow, out = schema.arrow_of(names), []
    for run in logsource.plan(options, logfiles.find(str(path))):
        for batch in logsource.batches(options, arrow, run):
            batch.validate(full=True)
            columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in batch.columns]
            out += pa.RecordBatch.from_arrays(columns, names=arrow.names).to_pylist()
    for row in out:
        if row.get("headers") is not None:
            row["headers"] = [(pair["key"], pair["value"]) for pair in row["headers"]]
    return out
