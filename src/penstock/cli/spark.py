"""`penstock spark …`: jobs over topics, each in a local Spark unless --master or PENSTOCK_SPARK_MASTER says otherwise.

Exit code 0 when all went well; 1 for an error, which is told in one line and what to do about it in a second one, or, of
`audit`, for a store that is not well; 2 for words the command does not know.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Unpack

import click

from penstock.cli.sparkjobs import audit, compact, redrive, reindex, replay, search, stats
from penstock.cli.sparkrun import fail, on_spark, run_job
from penstock.cli.tools import NamedPath, Whole, with_registry

if TYPE_CHECKING:
    from penstock.spark.pipelines.archive import ArchiveResult
    from penstock.spark.pipelines.archive import Asked as ArchiveAsked


@click.group(cls=Whole, context_settings={"help_option_names": ["-h", "--help"]})
def spark() -> None:
    """Jobs over topics with Spark."""


@spark.command()
@click.argument("topic")
@click.option("--to", required=True, type=NamedPath(file_okay=False), help="Folder of the Parquet table.")
@with_registry
@click.option("--columns", "names", help="Columns to keep, separated by commas.")
@click.option(
    "--compression", type=click.Choice(["zstd", "snappy", "gzip", "lz4", "none"]), default="zstd", show_default=True
)
@click.option(
    "--format",
    "table",
    type=click.Choice(["parquet", "delta", "iceberg"]),
    default="parquet",
    show_default=True,
    help="Commit the files to a table of this kind, too.",
)
@click.option("--group", default="", help="Show the archived offsets as this consumer group's.")
@click.option("--store", default="", help="The broker's data folder, where it is on this machine: read directly.")
@on_spark
@click.option("--allow-loss", is_flag=True, help="Go on, with a warning, where retention was faster.")
@click.option("--dry-run", is_flag=True, help="Say what would be written.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; no progress.")
def archive(
    topic: str,
    to: str,
    names: str | None,
    allow_loss: bool,
    master: str | None,
    as_json: bool,
    **asked: Unpack[ArchiveAsked],
) -> None:
    """Write what TOPIC holds beyond the last run to Parquet files, each offset once, whatever is killed when."""
    from penstock.spark.pipelines import archive as job

    chosen = tuple(name.strip() for name in names.split(",")) if names else job.COLUMNS
    # A dry run only asks the brokers.
    asked["columns"], asked["fail_on_data_loss"] = chosen, not allow_loss
    result = run_job(f"archive {topic}", "messages", master, as_json, lambda running, say: job.run(
        running, topic, to, progress=say, **asked,
    ), with_spark=not asked["dry_run"])  # fmt: skip
    if not as_json:
        click.echo(_told(result))


def _told(result: ArchiveResult) -> str:
    if result.dry_run:
        lines = [f"would write {result.rows:,} messages to {len(result.files)} files under {result.folder}"]
        lines += [f"  {file.path}" for file in result.files[:20]]
        return "\n".join([*lines, f"  … and {len(result.files) - 20} more"] if len(result.files) > 20 else lines)
    if not result.files:
        return f"nothing new in {result.topic}; archived is {_positions(result)}"
    rate = result.rows / max(result.seconds, 0.001)
    lines = [
        f"{result.rows:,} messages of {result.topic} in {len(result.files)} files, {result.bytes / 1e6:,.1f} MB,"
        f" {result.seconds:.1f} s ({rate:,.0f}/s)",
        f"table: {result.folder}",
        f"archived is {_positions(result)}",
    ]
    if result.resumed:
        lines.insert(1, f"{result.resumed} files were planned by a run that did not end")
    return "\n".join(lines)


def _positions(result: ArchiveResult) -> str:
    return ", ".join(
        f"{broker} queue {queue} up to {offset}"
        for broker, queues in result.next.items()
        for queue, offset in queues.items()
    )


@spark.command()
@click.argument("folder", type=NamedPath(file_okay=False, path_type=Path))
@with_registry
@click.option("--from", "source", default="orders", show_default=True, help="The topic that is read.")
@click.option("--to", "target", default="results", show_default=True, help="The topic that is written.")
def template(folder: Path, registry: str, source: str, target: str) -> None:
    """Write a project for Spark's declarative pipelines to FOLDER: topic → table → topic, each row once."""
    from penstock.spark.template import write

    try:
        files = write(folder, registry=registry, source=source, target=target)
    except Exception as error:
        fail(error)
    for file in files:
        click.echo(f"  {file}")
    click.echo(f'cd {quote(str(folder))} && SPARK_CONF_DIR="$PWD/conf" spark-pipelines run')


@spark.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(as_json: bool) -> None:
    """Say whether everything the Spark side needs is there, and what to do if not."""
    from penstock.spark.tools.doctor import examine, report

    findings = examine()
    if as_json:
        click.echo(json.dumps([{**finding._asdict(), "good": finding.good} for finding in findings]))
    else:
        click.echo(report(findings))
    sys.exit(0 if all(finding.good for finding in findings) else 1)


for command in (audit, stats, search, reindex, compact, replay, redrive):
    spark.add_command(command)
