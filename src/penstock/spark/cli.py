"""`penstock spark …`: jobs over topics, each in a local Spark unless PENSTOCK_SPARK_MASTER says otherwise."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.spark.pipelines.archive import Result


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
def spark() -> None:
    """Jobs over topics with Spark."""


@spark.command()
@click.argument("topic")
@click.option("--to", required=True, type=click.Path(file_okay=False), help="Folder of the Parquet table.")
@click.option("--registry", default="127.0.0.1:9876", show_default=True, help="Name servers, separated by ';'.")
@click.option("--columns", help="Columns to keep, separated by commas.")
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
@click.option("--master", help="Spark master (default: all cores of this machine).")
@click.option("--allow-loss", is_flag=True, help="Go on, with a warning, where retention was faster.")
@click.option("--dry-run", is_flag=True, help="Say what would be written.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; no progress.")
def archive(
    topic: str,
    to: str,
    registry: str,
    columns: str | None,
    compression: str,
    table: str,
    group: str,
    store: str,
    master: str | None,
    allow_loss: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Write what TOPIC holds beyond the last run to Parquet files, each offset once, whatever is killed when."""
    from penstock.spark.pipelines import archive as job
    from penstock.spark.progress import Progress
    from penstock.spark.sessions import session

    say = Progress(f"archive {topic}", quiet=as_json)
    try:
        say.note("starting Spark") if not dry_run else None
        # A dry run only asks the brokers.
        running = session(f"penstock archive {topic}", master=master) if not dry_run else None
        result = job.run(
            running,  # type: ignore[arg-type]
            topic,
            to,
            registry=registry,
            columns=tuple(name.strip() for name in columns.split(",")) if columns else job.COLUMNS,
            compression=compression,
            table=table,
            fail_on_data_loss=not allow_loss,
            group=group,
            store=store,
            dry_run=dry_run,
            progress=say,
        )
    except Exception as error:
        say.clear()
        _fail(error)
    say.clear()
    click.echo(json.dumps(result.as_dict()) if as_json else _told(result))


def _told(result: Result) -> str:
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


def _positions(result: Result) -> str:
    return ", ".join(
        f"{broker} queue {queue} up to {offset}"
        for broker, queues in result.next.items()
        for queue, offset in queues.items()
    )


@spark.command()
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def doctor(as_json: bool) -> None:
    """Say whether everything the Spark side needs is there, and what to do if not."""
    from penstock.spark.doctor import examine, report

    findings = examine()
    if as_json:
        click.echo(json.dumps([{**finding._asdict(), "good": finding.good} for finding in findings]))
    else:
        click.echo(report(findings))
    sys.exit(0 if all(finding.good for finding in findings) else 1)


def _fail(error: Exception) -> NoReturn:
    """The Python cause of whatever Spark made of it, on one line."""
    from penstock.spark.sessions import cause

    if isinstance(error, ImportError):
        click.echo(f"penstock: {error}\n  pip install 'penstock[spark]'", err=True)
    elif isinstance(error, PenstockError):
        click.echo(f"penstock: {error}" + (f"\n  {error.hint}" if error.hint else ""), err=True)
    else:
        click.echo(f"penstock: {cause(error)}", err=True)
    sys.exit(1)


import penstock.spark.jobs  # noqa: E402, F401  (adds its commands to the group)

if __name__ == "__main__":
    spark()
