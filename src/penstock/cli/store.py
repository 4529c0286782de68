"""`penstock store`: look into a data folder without a broker."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.lost import lost
from penstock.cli.tools import Whole, end_unread, printable, with_json
from penstock.errors import StoreError

if TYPE_CHECKING:
    from penstock.log.verify import Report


@click.group(cls=Whole)
def store() -> None:
    """Look into the files of a broker. Nothing is changed."""


class _Bar:
    """Progress of work longer than a second: a bar on a terminal, a line every ten seconds elsewhere."""

    def __init__(self) -> None:
        self.began = self.told = time.monotonic()
        self.drawn = False

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if now - self.began < 1 or now - self.told < (0.1 if terminal else 10):
            return
        self.told = now
        share = done / max(1, total)
        text = f"{share:4.0%} of {total / 2**20:,.0f} MiB, {done / (now - self.began) / 2**20:,.0f} MiB/s"
        with suppress(OSError):  # nobody reads it: the work goes on
            if terminal:
                filled = round(share * 30)
                sys.stderr.write(f"\r[{'█' * filled}{' ' * (30 - filled)}] {text}\x1b[K")
                self.drawn = True
            else:
                sys.stderr.write(text + "\n")

    def close(self) -> None:
        if self.drawn:
            sys.stderr.write("\r\x1b[K")


@store.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="The whole report as one JSON object.")
def verify(folder: Path, as_json: bool) -> None:
    """Read every record, sum, queue and index entry of a data folder. Exit code 1 when something is wrong."""
    from penstock.log.verify import verify as run

    bar = _Bar()
    report = run(folder, bar)
    bar.close()
    with _exits_with(0 if report.ok else 1):
        if as_json:
            click.echo(json.dumps(report.as_dict()))
        else:
            _print_report(report)


def _print_report(report: Report) -> None:
    click.echo(
        f"{report.records:,} records ({report.unchecked:,} without a sum) in {report.segments} segments, "
        f"{report.bytes / 2**20:,.1f} MiB; {report.queues} queues with {report.entries:,} entries; "
        f"{report.index_entries:,} index entries; {report.queue_messages:,} messages in {report.queue_segments} segments of "
        "queue topics, and in disk queues"
    )
    for finding in report.findings:
        file, why = printable(finding.file), printable(finding.why)
        click.echo(f"{finding.level:8} {file} {finding.position}–{finding.end}: {why}")
    if report.more_findings:
        click.echo(f"and {report.more_findings:,} more")
    click.echo("all is well" if report.ok else "NOT well: see above")


@contextmanager
def _exits_with(code: int) -> Iterator[None]:
    """What was found is the exit code, whether or not somebody reads to the end what is printed of it."""
    try:
        yield
    except BrokenPipeError:
        end_unread(code)
    sys.exit(code)


@store.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--limit", type=int, default=0, help="Stop after so many entries (0: all).")
@click.option("--json", is_flag=True, expose_value=False, help="As it is printed anyway.")
def inspect(file: Path, limit: int) -> None:
    """Print what is in a file of a store, one JSON object an entry."""
    for number, entry in enumerate(_entries(file), 1):
        click.echo(json.dumps(entry, default=str, ensure_ascii=False))
        if number == limit:
            break


def _entries(file: Path) -> Iterator[dict[str, object]]:
    from penstock.log.verify import inspect as run

    try:
        yield from run(file)
    except OSError as error:  # a part of the disk is bad
        raise StoreError(f"{file} cannot be read to its end: {error.strerror}") from error


store.add_command(lost)


@store.command()
@click.argument("one", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("other", type=click.Path(exists=True, file_okay=False, path_type=Path))
@with_json
def diff(one: Path, other: Path, as_json: bool) -> None:
    """Where the logs of two stopped nodes of a set differ, and what each has behind. Exit code 1 when they part."""
    from penstock.log.comparing import compare

    found = compare(one, other)
    parted = found.same < min(found.one[0], found.other[0])
    with _exits_with(1 if parted else 0):
        if as_json:
            click.echo(json.dumps(found._asdict()))
        else:
            click.echo(f"epochs are the same up to {found.shared}; bytes are the same up to {found.same}")
            for folder, end, epochs in ((one, *found.one), (other, *found.other)):
                click.echo(f"{folder}: ends at {end}, epochs {epochs}")
            click.echo(f"they PART at {found.same}" if parted else "one is the beginning of the other")
