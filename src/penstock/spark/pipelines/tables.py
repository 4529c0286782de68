"""Committers of the archive's files: to a Delta table (delta-rs) and to an Iceberg table (pyiceberg), and compaction.

The files are those of the Parquet archive, committed as they lie. How far a queue is in the table stands in the same commit
as its files: for Delta as the version of an application transaction named by topic, broker and queue, for Iceberg in the
snapshot's properties. So a commit that is made again, after whatever kill, adds only what is not there yet.

    Delta      <folder>/T/_delta_log; <folder>/topic=T/_delta_log of an archive that was begun without
    Iceberg    <folder>.penstock/iceberg.db (the catalog, SQLite), <folder>.penstock/iceberg (metadata); table penstock.T;
               in <folder>/_penstock of older versions
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from penstock.client.routes import MessageQueue
from penstock.errors import ConfigError
from penstock.spark.pipelines import manifest
from penstock.spark.pipelines.asked import at_least
from penstock.spark.read.planning import Offsets, Range

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("parquet", "delta", "iceberg")
_HINT = "pip install 'penstock[{}]'"
_TOPIC = "penstock.topic"  # of an Iceberg table: names of topics that differ may make the same name of a table


def check(kind: str) -> None:
    """ConfigError when tables of this kind cannot be written here."""
    if kind not in FORMATS:
        raise ConfigError(f"no table format {kind!r}", f"formats: {', '.join(FORMATS)}")
    try:
        if kind == "delta":
            import deltalake  # noqa: F401
        elif kind == "iceberg":
            import pyiceberg.catalog.sql  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"{kind} tables need another package ({error})", _HINT.format(kind)) from None


def commit(kind: str, folder: Path, topic: str, done: Offsets) -> int:
    """Add the archive's files below the offsets `done` to the table; how many were new."""
    files = [r for r in manifest.archived(folder, topic) if r.end <= done.get(r.queue, 0)]
    if kind == "parquet" or not files:
        return 0
    return (_commit_delta if kind == "delta" else _commit_iceberg)(folder, topic, files)


def _schema(path: Path) -> pa.Schema:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path).schema_arrow.remove_metadata()


# -- Delta


def delta_table(folder: Path, topic: str) -> Any:
    """The Delta table of a topic, or None before the first commit."""
    from deltalake import DeltaTable

    place = str(manifest.root_of(folder, topic))
    return DeltaTable(place) if DeltaTable.is_deltatable(place) else None


def _commit_delta(folder: Path, topic: str, files: Sequence[Range]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from deltalake import CommitProperties, Schema, Transaction
    from deltalake.transaction import AddAction, create_table_with_add_actions

    table = delta_table(folder, topic)
    new: list[Range] = []
    ends: dict[str, int] = {}
    for r in files:
        app = f"penstock/{r.queue.topic}/{r.queue.broker}/{r.queue.queue_id}"
        if table is None or r.start >= (table.transaction_version(app) or 0):
            new.append(r)
            ends[app] = max(ends.get(app, 0), r.end)
    if not new:
        return 0
    root = manifest.root_of(folder, topic)
    actions = []
    for r in new:
        path = manifest.file_of(folder, r)
        stats = json.dumps({"numRecords": pq.ParquetFile(path).metadata.num_rows})
        values = {"broker": r.queue.broker, "queue": str(r.queue.queue_id)}
        info = path.stat()
        actions.append(
            AddAction(str(path.relative_to(root)), info.st_size, values, int(info.st_mtime * 1000), True, stats)
        )
    schema = _schema(manifest.file_of(folder, new[0]))
    schema = Schema.from_arrow(schema.append(pa.field("broker", pa.string())).append(pa.field("queue", pa.int32())))
    properties = CommitProperties(app_transactions=[Transaction(app, end) for app, end in ends.items()])
    by = ["broker", "queue"]
    if table is None:
        create_table_with_add_actions(str(root), schema, actions, "error", by, commit_properties=properties)
    else:
        table.create_write_transaction(actions, "append", schema, by, commit_properties=properties)
    return len(new)


# -- Iceberg


def iceberg_catalog(folder: Path) -> Any:
    """The catalog of an archive's Iceberg tables: a SQLite file beside it."""
    from pyiceberg.catalog.sql import SqlCatalog

    place = _iceberg_place(folder)
    (place / "iceberg").mkdir(parents=True, exist_ok=True)
    return SqlCatalog("penstock", uri=f"sqlite:///{place / 'iceberg.db'}", warehouse=(place / "iceberg").as_uri())


def _iceberg_place(folder: Path) -> Path:
    inside = folder / "_penstock"
    return inside if (inside / "iceberg.db").exists() else manifest.notes_of(folder)


def iceberg_name(topic: str) -> str:
    """A topic's table in that catalog."""
    return "penstock." + re.sub(r"[^A-Za-z0-9_]", "_", topic)


def _commit_iceberg(folder: Path, topic: str, files: Sequence[Range]) -> int:
    catalog = iceberg_catalog(folder)
    try:
        catalog.create_namespace_if_not_exists("penstock")
        schema = _schema(manifest.file_of(folder, files[0]))
        name = iceberg_name(topic)
        table = catalog.create_table_if_not_exists(name, schema, properties={_TOPIC: topic})
        if (other := table.properties.get(_TOPIC, topic)) != topic:
            raise ConfigError(
                f"{name} is the Iceberg table of topic {other}", f"archive {topic} to a folder of its own"
            )
        done: dict[str, int] = {}
        for snapshot in table.metadata.snapshots:
            text = (snapshot.summary or {}).get("penstock.next") if snapshot.summary else None
            for name, end in json.loads(text or "{}").items():
                done[name] = max(done.get(name, 0), end)
        new = [r for r in files if r.start >= done.get(_name(r.queue), 0)]
        if new:
            for r in new:
                done[_name(r.queue)] = max(done.get(_name(r.queue), 0), r.end)
            paths = [
                f"file://{manifest.file_of(folder, r)}" for r in new
            ]  # not as a URI: pyiceberg takes the name as it stands
            table.add_files(paths, snapshot_properties={"penstock.next": json.dumps(done, sort_keys=True)})
        return len(new)
    finally:
        catalog.close()


def _name(queue: MessageQueue) -> str:
    return f"{queue.broker}/{queue.queue_id}"


# -- compaction


def groups(files: Sequence[Range], most: int) -> list[list[Range]]:
    """Neighbouring files, without a gap between them, that make one of at most `most` offsets: two at least."""
    found: list[list[Range]] = []
    held: list[Range] = []
    for r in sorted(files):
        joins = held and held[-1].queue == r.queue and held[-1].end == r.start and r.end - held[0].start <= most
        if not joins:
            found.append(held)
            held = []
        held.append(r)
    return [group for group in [*found, held] if len(group) > 1]


def joinable(folder: Path, topic: str, most: int) -> list[list[Range]]:
    """The files of a topic's archive that `compact` joins: none of those that a killed run has begun, which the next one
    looks for under their names.
    """
    begun = set(manifest.load(folder, topic).pending)
    return groups([r for r in manifest.archived(folder, topic) if r not in begun], most)


def compact(folder: Path, topic: str, most: int) -> tuple[int, int]:
    """Join small neighbouring files of a topic's Parquet archive: (files before, files they became).

    The joined file gets its name only when it is whole, then the small ones go. A kill between leaves both; the next
    archive or compaction removes those that another file holds. Until then a reader of the bare folder sees rows
    twice; readers of a Delta table never do (its own compaction is used, in one transaction).
    """
    at_least(2, "records", most)
    _refuse_listed(folder, topic)
    remove_contained(folder, topic)
    joined = joinable(folder, topic, most)
    for group in joined:
        _join(folder, group)
    remove_contained(folder, topic)
    return sum(map(len, joined)), len(joined)


def _refuse_listed(folder: Path, topic: str) -> None:
    """ConfigError when a table lists the files that would go."""
    if (manifest.root_of(folder, topic) / "_delta_log").exists():
        raise ConfigError(f"a Delta table lists the files of {topic}", "compact --delta joins them in one transaction")
    catalog = _iceberg_place(folder) / "iceberg.db"
    if catalog.exists():
        with closing(sqlite3.connect(f"file:{quote(str(catalog))}?mode=ro", uri=True)) as tables:
            name = iceberg_name(topic).partition(".")[2]
            if tables.execute("select 1 from iceberg_tables where table_name = ?", (name,)).fetchone():
                raise ConfigError(
                    f"an Iceberg table lists the files of {topic}", "use Iceberg's own compaction, rewrite_data_files"
                )


def compact_delta(folder: Path, topic: str) -> tuple[int, int]:
    """Delta's own compaction, in one transaction; the old files stay for readers of older versions."""
    table = delta_table(folder, topic)
    if table is None:
        raise ConfigError(f"{folder} has no Delta table of {topic}", "archive it with --format delta first")
    told = table.optimize.compact()
    return int(told["numFilesRemoved"]), int(told["numFilesAdded"])


def remove_contained(folder: Path, topic: str) -> None:
    """Delete files whose offsets another file holds as well: what a killed compaction left."""
    files = manifest.archived(folder, topic)
    for r in files:
        if any(o.queue == r.queue and o != r and o.start <= r.start and r.end <= o.end for o in files):
            manifest.file_of(folder, r).unlink(missing_ok=True)


def _join(folder: Path, group: Sequence[Range]) -> None:
    import pyarrow.parquet as pq

    path = manifest.file_of(folder, Range(group[0].queue, group[0].start, group[-1].end))
    first = pq.ParquetFile(manifest.file_of(folder, group[0]))
    codec = first.metadata.row_group(0).column(0).compression if first.metadata.num_row_groups else "ZSTD"
    compression = None if codec == "UNCOMPRESSED" else codec
    with (
        manifest.written(folder, group[0].queue.topic, path) as file,
        pq.ParquetWriter(file, first.schema_arrow, compression=compression) as writer,
    ):
        for r in group:
            source = pq.ParquetFile(manifest.file_of(folder, r))
            for n in range(source.metadata.num_row_groups):
                writer.write_table(source.read_row_group(n))
