"""The commands of `penstock spark` that work on logs and archives: each starts Spark, runs a job, prints its result."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Unpack

import click

from penstock.cli.sparkrun import fail, on_spark, run_job
from penstock.cli.tools import printable, with_registry
from penstock.errors import ConfigError

if TYPE_CHECKING:
    from penstock.spark.pipelines.redrive import Asked as RedriveAsked
    from penstock.spark.pipelines.replay import Asked as ReplayAsked
    from penstock.spark.pipelines.search import Asked as SearchAsked
    from penstock.spark.pipelines.stats import Asked as StatsAsked

BODY_SHOWN = 100
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON; no progress.")
_SINCE = click.option("--from", "since", default="", help="Stored at or after this moment (ISO 8601 or milliseconds).")
_UNTIL = click.option("--to", "until", default="", help="Stored before this moment.")


@click.command()
@click.argument("store", type=click.Path(exists=True, file_okay=False))
@click.option("--report", default="", help="Write an HTML page with the result here.")
@click.option(
    "--split-bytes", type=click.IntRange(1), default=128 << 20, show_default=True, help="Bytes of log per task."
)
@on_spark
@_JSON
def audit(store: str, report: str, split_bytes: int, master: str | None, as_json: bool) -> None:
    """Look at every byte of STORE's log and all that is derived from it; name what is wrong."""
    from penstock.spark.pipelines import audit as job

    result = run_job("audit", "bytes", master, as_json, lambda running, say: job.run(
        running, store, split_bytes=split_bytes, report=report, progress=say))  # fmt: skip
    if not as_json:
        click.echo(
            f"{result.records:,} records ({result.unchecked:,} without a sum over the whole) in {result.segments} segments,"
            f" {result.bytes:,} bytes; {result.queues} queues with {result.entries:,} entries;"
            f" {result.index_entries:,} index entries; {result.seconds:.1f} s"
        )
        for one in result.findings[:100]:
            place = f"{one.topic} queue {one.queue} offset {one.offset}: " if one.topic else ""
            where = f" (bytes {one.position} to {one.end})" if one.position >= 0 else ""
            click.echo(f"{one.level:8}{place}{one.why}{where} {one.file}".rstrip())
        more = max(len(result.findings) - 100, 0) + result.more_findings
        if more:
            click.echo(f"and {more:,} more")
        click.echo("all is well" if result.ok else "NOT well: see above")
    sys.exit(0 if result.ok else 1)


@click.command()
@click.argument("topics", nargs=-1)
@click.option("--path", default="", help="A store folder or commit log instead of a live cluster.")
@with_registry
@click.option(
    "--by", "columns", default="topic", show_default=True, help="topic, partition, tags, bornHost, group; by commas."
)
@click.option(
    "--group", "groups", multiple=True, help="A consumer group: its retried and dead messages; may be given again."
)
@click.option("--window", default="1h", show_default=True, help="Of store time: 30s, 5m, 1h, 1d or all.")
@_SINCE
@_UNTIL
@click.option("--report", default="", help="Write an HTML page with tables and charts here.")
@on_spark
@_JSON
def stats(
    topics: tuple[str, ...], columns: str, master: str | None, as_json: bool, **asked: Unpack[StatsAsked]
) -> None:
    """Count the messages of TOPICS by time window: how many, how large, how late, how often retried."""
    from penstock.spark.pipelines import stats as job

    asked["by"] = [name.strip() for name in columns.split(",")]
    unit = "bytes" if asked["path"] else "messages"
    result = run_job("stats", unit, master, as_json, lambda running, say: job.run(
        running, topics, progress=say, **asked))  # fmt: skip
    if as_json:
        return
    names = ("window", *result.by, *result.MEASURES)
    rows = [
        names,
        *[
            [f"{v:,}" if isinstance(v, int) else printable(str(v or "")) for v in row.values()]
            for row in result.rows[:200]
        ],
    ]
    widths = [max(len(row[n]) for row in rows) for n in range(len(names))]
    for row in rows:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    if len(result.rows) > 200:
        click.echo(f"and {len(result.rows) - 200:,} more rows: --json or --report have them")
    click.echo(f"{result.messages:,} messages, {result.bytes:,} stored bytes, {result.seconds:.1f} s")


@click.command()
@click.option("--path", default="", help="A store folder or commit log.")
@click.option("--archive", default="", help="The folder of an archive, alone or beside a log.")
@click.option("--topic", default="", help="Only this topic.")
@click.option("--key", default="", help="One of the message's keys, or its unique id.")
@click.option("--tag", default="", help="Its tag.")
@click.option("--body", default="", help="Text that its body has.")
@_SINCE
@_UNTIL
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True)
@on_spark
@_JSON
def search(master: str | None, as_json: bool, **asked: Unpack[SearchAsked]) -> None:
    """Find messages by key, tag, time and body, in a log, an archive or both; each is shown once."""
    from penstock.spark.pipelines import search as job

    result = run_job("search", "pieces", master, as_json, lambda running, say: job.run(
        running, progress=say, **asked))  # fmt: skip
    if as_json:
        return
    for hit in result.hits:
        shown = hit.as_dict()
        place = f"{hit.topic} queue {hit.partition} offset {hit.offset}  {hit.timestamp}"
        click.echo(printable(f"{place}  {hit.tags or ''}  {shown['key']}  {shown['value'][:BODY_SHOWN]}"))
    click.echo(f"{len(result.hits):,} found{', and there are more' if result.more else ''}, {result.seconds:.1f} s")


@click.command()
@click.argument("store", type=click.Path(exists=True, file_okay=False))
@click.option("--to", default="", help="Where the new files go (default: STORE/reindex).")
@click.option("--swap", is_flag=True, help="Put them in the place of those there are; the broker must be stopped.")
@click.option(
    "--split-bytes", type=click.IntRange(1), default=128 << 20, show_default=True, help="Bytes of log per task."
)
@click.option("--dry-run", is_flag=True, help="Say how much there is to do.")
@on_spark
@_JSON
def reindex(
    store: str, to: str, swap: bool, split_bytes: int, dry_run: bool, master: str | None, as_json: bool
) -> None:
    """Make the consume queues and the key index of STORE anew from its commit log."""
    from penstock.spark.pipelines import reindex as job

    result = run_job("reindex", "bytes", master, as_json, lambda running, say: job.run(
        running, store, to=to, swap=swap, split_bytes=split_bytes, dry_run=dry_run, progress=say),
        with_spark=not dry_run)  # fmt: skip
    if as_json:
        return
    if dry_run:
        click.echo(f"would read about {result.records:,} records and write to {result.folder}")
        return
    click.echo(
        f"{result.entries:,} entries of {result.queues} queues and {result.keys:,} keys from {result.records:,} records,"
        f" {result.seconds:.1f} s"
    )
    if result.damaged_bytes:
        click.echo(f"{result.damaged_bytes:,} bytes of the log are damaged and were left out: penstock spark audit")
    click.echo("in place; the files before are in lost+found" if result.swapped else f"in {result.folder}")


@click.command()
@click.argument("topic")
@click.option(
    "--archive", required=True, type=click.Path(exists=True, file_okay=False), help="The folder of an archive."
)
@click.option(
    "--records", type=click.IntRange(1), default=1_000_000, show_default=True, help="Offsets in one file, at most."
)
@click.option("--delta", is_flag=True, help="Compact the topic's Delta table, in one transaction.")
@click.option("--dry-run", is_flag=True, help="Say what would be joined.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def compact(topic: str, archive: str, records: int, delta: bool, dry_run: bool, as_json: bool) -> None:
    """Join the small files of TOPIC's archive; without Spark."""
    from pathlib import Path

    from penstock.spark.pipelines import manifest, tables

    folder = Path(archive).absolute()
    if not topic or not manifest.root_of(folder, topic).is_dir():
        fail(ConfigError(f"{folder} has no archive of topic {topic!r}", "its folders topic=… are those it has"))
    try:
        if dry_run:
            joined = tables.joinable(folder, topic, records)
            before, after = sum(map(len, joined)), len(joined)
        else:
            with manifest.locked(folder, topic):
                before, after = tables.compact_delta(folder, topic) if delta else tables.compact(folder, topic, records)
    except Exception as error:
        fail(error)
    if as_json:
        click.echo(json.dumps({"topic": topic, "before": before, "after": after, "dry_run": dry_run}))
    else:
        click.echo(f"{'would join' if dry_run else 'joined'} {before:,} files into {after:,}")


@click.command()
@click.argument("topics", nargs=-1)
@click.option("--archive", default="", help="The folder of an archive.")
@click.option("--path", default="", help="A store folder or commit log.")
@with_registry
@click.option("--map", "pairs", multiple=True, help="OLD=NEW: send topic OLD to NEW; may be given again.")
@_SINCE
@_UNTIL
@click.option("--rate", type=click.IntRange(0), default=0, help="Messages a second at most.")
@click.option("--keep-queue", is_flag=True, help="To the queue each came from, instead of by key.")
@click.option("--job", default="", help="Another name sends again what was sent before.")
@click.option("--dry-run", is_flag=True, help="Say what would be sent.")
@on_spark
@_JSON
def replay(pairs: tuple[str, ...], master: str | None, as_json: bool, **asked: Unpack[ReplayAsked]) -> None:
    """Send the messages of an archive or a log again, of TOPICS or of all; run twice, they are sent once."""
    from penstock.spark.pipelines import replay as job

    asked["renamed"] = dict(pair.partition("=")[::2] for pair in pairs)
    result = run_job("replay", "files", master, as_json, lambda running, say: job.run(
        running, progress=say, **asked), needs_spark=True)  # fmt: skip
    if as_json:
        return
    for topic, count in result.topics.items():
        click.echo(f"{count:>12,}  {topic}")
    click.echo(
        f"{'would send' if asked['dry_run'] else 'sent, or sent before:'} {result.rows:,} messages, {result.seconds:.1f} s"
    )


@click.command()
@click.argument("group")
@with_registry
@click.option("--where", default="", help="A condition in SQL: reconsumeTimes > 3 and tags = 'paid'")
@click.option("--tag", default="", help="Only those with this tag.")
@click.option("--key", default="", help="Only those with this key.")
@_SINCE
@_UNTIL
@click.option("--state", default="", help="Folder with the notes of what was sent.")
@click.option("--send", is_flag=True, help="Send; without it only said what would be sent.")
@on_spark
@_JSON
def redrive(group: str, send: bool, master: str | None, as_json: bool, **asked: Unpack[RedriveAsked]) -> None:
    """Send the dead letters of GROUP back to the topics they came from, each once."""
    from penstock.spark.pipelines import redrive as job

    asked["dry_run"] = not send
    result = run_job("redrive", "messages", master, as_json, lambda running, say: job.run(
        running, group, **asked), needs_spark=True)  # fmt: skip
    if as_json:
        return
    for row in result.samples:
        place = f"  {row['topic']}  queue {row['queue']} offset {row['offset']}"
        click.echo(printable(f"{place}  {row['tags'] or ''}  {row['key'] or ''}"))
    if result.resumed:
        click.echo(f"{result.resumed:,} were chosen by a run that did not end; they are sent now")
    told = "sent" if send else "would send"
    to = ", ".join(f"{count:,} to {topic}" for topic, count in result.topics.items()) or "nothing"
    click.echo(f"{told} {to}; {result.before:,} had been sent before" + ("" if send else "; --send does it"))
