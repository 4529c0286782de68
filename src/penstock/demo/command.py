"""`penstock demo [FILE …]`: what is done, in order, on one page; each step is a function below it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from penstock.demo.shape import Event
from penstock.errors import INTERRUPTED, ConfigError, PenstockError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.charts import Chart
    from penstock.client.aio.producer import Producer
    from penstock.demo.events import Feed
    from penstock.message import ReceivedMessage

GROUP = "demo"
NEEDED = ("pyspark", "pyarrow", "pandas", "matplotlib", "plotext")  # looked for before anything is started
BATCH_MESSAGES, BATCH_BYTES, BATCHES_AT_ONCE = 200, 256 << 10, 8
READY_S, QUIET_S, STOP_S = 30.0, 30.0, 20.0


@dataclass
class TopicReport:
    """What happened to one topic; rates are messages per second."""

    topic: str
    source: str
    published: int = 0
    publish_rate: float = 0.0
    consumed: int = 0
    consume_rate: float = 0.0
    archived: int = 0
    archive_rate: float = 0.0
    archive: str = ""
    table: str = ""
    rows: int = 0

    def keep_archive(self, rows: int, seconds: float, folder: Path) -> None:
        """The archive is written."""
        self.archived, self.archive = rows, str(folder)
        self.archive_rate = rows / max(seconds, 1e-3)

    def keep_table(self, path: Path, rows: int) -> None:
        """The table is written."""
        self.table, self.rows = str(path), rows


@dataclass
class DemoReport:
    """The whole run; also written to summary.json."""

    folder: str
    chart: str = ""
    seconds: float = 0.0
    topics: list[TopicReport] = field(default_factory=list)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default=Path("demo-output"), show_default=True,
              help="Folder for tables and charts; each run makes one of its own in it.")  # fmt: skip
@click.option("--events", type=click.IntRange(min=1), default=20_000, show_default=True,
              help="Without files: how many process samples at least.")  # fmt: skip
def demo(files: tuple[Path, ...], out: Path, events: int) -> None:
    """Publish real events, consume them with a group, archive and summarise them with Spark, draw a chart.

    FILES: CSV, JSON lines, Arrow, Parquet, web-server logs or any lines. Without one this machine's own processes are
    sampled live. A broker is started for it on free ports and stopped at the end.
    """
    try:
        run(list(files), out, events)
    except KeyboardInterrupt:
        click.echo("\nstopped", err=True)
        sys.exit(INTERRUPTED)
    except PenstockError as error:
        click.echo(f"penstock: {error}" + (f"\n  {error.hint}" if error.hint else ""), err=True)
        sys.exit(1)
    except Exception as error:
        from penstock.spark.tools.sessions import cause

        click.echo(f"penstock: {cause(error)}", err=True)
        if os.environ.get("PENSTOCK_DEBUG"):
            raise
        sys.exit(1)


def run(files: list[Path], out: Path, events: int, show: TextIO | None = None) -> DemoReport:
    """The demo. Everything it started is stopped when this returns or raises."""
    from penstock.demo.events import feeds

    show = show or sys.stdout
    logging.getLogger("penstock").setLevel(logging.ERROR)  # the screen is for the story
    began = time.monotonic()
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"the demo needs Spark and charts: {', '.join(missing)} not installed",
            "pip install 'penstock[spark,charts]'",
        )
    work = feeds(files) if files else [_processes(events)]
    folder = _new_folder(out)
    report = DemoReport(str(folder))
    with broker() as registry, _spark_meanwhile() as spark:
        for feed in work:
            report.topics.append(asyncio.run(_through_the_broker(feed, registry)))
        charts = []
        for feed, told in zip(work, report.topics, strict=True):
            charts.append(_through_spark(spark(), feed, told, registry, folder, show))
        report.chart = str(_draw(charts, folder, show))
    report.seconds = round(time.monotonic() - began, 1)
    (folder / "summary.json").write_text(json.dumps(asdict(report), indent=1) + "\n")
    _tell(report, show)
    return report


# -- the broker


@contextmanager
def broker(folder: Path | None = None) -> Iterator[str]:
    """`penstock up` on free ports, its data in `folder` or a temporary one; gives the name server's address."""
    _say("starting registry and broker")
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as data:
        log_path = Path(data) / "broker.log"
        command = [sys.executable, "-m", "penstock.cli", "up", "--data", str(folder or Path(data) / "store")]
        command += ["--registry-port", "0", "--remoting-port", "0", "--host", "127.0.0.1"]
        for none in ("nsq", "http", "lookup", "lookup-http"):
            command += [f"--{none}-port", "-1"]
        command += ["--set", "mapped_file_size_commit_log=268435456"]
        with open(log_path, "wb") as log, subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, env=_environment(), start_new_session=True
        ) as process:  # fmt: skip
            try:
                yield str(_ready(process, log_path)["registry"])
            finally:
                process.terminate()
                try:
                    process.wait(STOP_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def _ready(process: subprocess.Popen[bytes], log_path: Path) -> dict[str, Any]:
    """The addresses of the `ready` line."""
    assert process.stdout is not None
    lines: list[bytes] = []
    reader = threading.Thread(target=lambda: lines.append(process.stdout.readline()), daemon=True)  # type: ignore[union-attr]
    reader.start()
    reader.join(READY_S)
    word, _, addresses = (lines[0] if lines else b"").decode().partition(" ")
    if word != "ready":
        said = log_path.read_text(errors="replace").strip().splitlines()[-5:]
        raise ConfigError("the broker did not start: " + (" / ".join(said) or "it said nothing"))
    found: dict[str, Any] = json.loads(addresses)
    return found


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


# -- publishing and consuming


def _processes(events: int) -> Feed:
    from penstock.demo import processes
    from penstock.demo.events import Feed

    return Feed(
        "processes", "this machine's processes, live", processes.FIELDS, processes.PLAN, processes.sample(events)
    )


async def _through_the_broker(feed: Feed, registry: str) -> TopicReport:
    """Publish the feed's events; a consumer group reads them as they come."""
    from penstock.client.aio.producer import Producer
    from penstock.client.aio.push import PushConsumer
    from penstock.spark.tools.progress import Progress

    told = TopicReport(feed.topic, feed.what)
    say = Progress(f"publish and consume {feed.topic}", "events")
    say.note(f"{feed.topic}: {feed.what}")
    arrived = asyncio.Event()
    first = last = time.monotonic()
    taken: dict[int, set[int]] = {}

    async def take(message: ReceivedMessage) -> None:
        nonlocal first, last
        last = time.monotonic()
        first = first if told.consumed else last
        seen = taken.setdefault(message.queue_id, set())
        if message.queue_offset not in seen:  # delivery is at least once: a repeat is not a message more
            seen.add(message.queue_offset)
            told.consumed += 1
        arrived.set()

    batches = _batches(feed)
    async with Producer(registry, group="demo-producer") as producer:
        began = time.monotonic()
        opening = await asyncio.to_thread(next, batches, None)
        if opening is None:
            raise ConfigError(f"{feed.what}: no events")
        told.published += await _send(producer, feed.topic, opening)  # makes the topic, so that it can be subscribed to
        async with PushConsumer(GROUP, registry, listener=take, start="first") as consumer:
            await consumer.subscribe(feed.topic)
            sending: set[asyncio.Task[int]] = set()
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                sending.add(asyncio.create_task(_send(producer, feed.topic, batch)))
                if len(sending) >= BATCHES_AT_ONCE:
                    done, sending = await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
                    told.published += sum(task.result() for task in done)
                say(min(told.consumed, told.published), told.published)
            told.published += sum(await asyncio.gather(*sending))
            told.publish_rate = told.published / max(time.monotonic() - began, 1e-3)
            while told.consumed < told.published:
                arrived.clear()
                try:
                    await asyncio.wait_for(arrived.wait(), QUIET_S)
                except TimeoutError:
                    raise ConfigError(f"only {told.consumed} of {told.published} messages came back") from None
                say(told.consumed, told.published)
    told.consume_rate = told.consumed / max(last - first, 1e-3)
    say.clear()
    return told


def _batches(feed: Feed) -> Iterator[list[tuple[bytes, str, str | None]]]:
    """(body, key, tag) of the events, in batches; live events are not kept waiting for a full one."""
    import msgspec

    encode = msgspec.json.Encoder().encode
    tag = feed.plan.series or (feed.plan.x if feed.plan.kind == "top" else None)
    batch: list[tuple[bytes, str, str | None]] = []
    size, began = 0, time.monotonic()
    for number, event in enumerate(feed.events):
        body = encode(event)
        batch.append((body, str(number), _tag(event, tag)))
        size += len(body) + 200
        if len(batch) >= BATCH_MESSAGES or size >= BATCH_BYTES or time.monotonic() - began > 0.5:
            yield batch
            batch, size, began = [], 0, time.monotonic()
    if batch:
        yield batch


def _tag(event: Event, name: str | None) -> str | None:
    if name is None or event.get(name) is None:
        return None
    return "".join(c if (c.isalnum() and c.isascii()) or c in "_-" else "-" for c in str(event[name]))[:60] or None


async def _send(producer: Producer, topic: str, batch: list[tuple[bytes, str, str | None]]) -> int:
    from penstock.message import Message

    await producer.send_batch([Message(topic, body, keys=(key,), tags=tag) for body, key, tag in batch], timeout_s=30.0)
    return len(batch)


# -- Spark


@contextmanager
def _spark_meanwhile() -> Iterator[Any]:
    """Starts Spark in a thread; gives a function that waits for the session."""
    from penstock.spark.tools.sessions import running, session

    mine = not running()
    found: list[SparkSession] = []
    failed: list[BaseException] = []

    def start() -> None:
        try:
            found.append(session("penstock demo", quick=True))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=start, name="penstock-demo-spark", daemon=True)
    thread.start()

    def wait() -> SparkSession:
        if thread.is_alive():
            _say("waiting for Spark to start")
        thread.join()
        if failed:
            raise failed[0]
        return found[0]

    try:
        yield wait
    finally:
        thread.join()
        for spark in found if mine else ():
            spark.stop()


def _through_spark(
    spark: SparkSession, feed: Feed, told: TopicReport, registry: str, folder: Path, show: TextIO
) -> Chart:
    """Archive the topic, make a typed table of it, and sum that up for the chart."""
    from penstock.demo.summary import summarise, typed
    from penstock.spark.pipelines import archive
    from penstock.spark.tools.progress import Progress

    say = Progress(f"archive {feed.topic}")
    say.note(f"{feed.topic}: Spark archives the topic and makes a table of it")
    _wait_until_durable(registry, feed.topic, told.published)
    result = archive.run(spark, feed.topic, folder / "archive", registry=registry, progress=say)
    say.clear()
    told.keep_archive(result.rows, result.seconds, folder / "archive" / f"topic={feed.topic}")
    table = typed(spark.read.format("penstock").option("registry", registry).load(feed.topic), feed.fields)
    path = folder / "table" / f"{feed.topic}.parquet"
    table.write.parquet(str(path))
    kept = spark.read.parquet(str(path))
    told.keep_table(path, kept.count())
    if told.archived != told.published or told.rows != told.published:
        raise ConfigError(f"{told.published} published, but {told.archived} archived and {told.rows} in the table")
    chart = summarise(kept, feed)
    show.write(f"\n{feed.topic}, the first rows of {told.rows:,}:\n{_first_rows(kept)}\n")
    return chart


def _wait_until_durable(registry: str, topic: str, count: int) -> None:
    """Spark reads what is flushed, and that is up to a second behind what consumers see."""
    from penstock.client.reader import LogReader

    deadline = time.monotonic() + QUIET_S
    with LogReader(registry) as reader:
        while sum(end - begin for begin, end in map(reader.offsets, reader.queues(topic))) < count:
            if time.monotonic() > deadline:
                raise ConfigError(f"the broker has not flushed {topic} within {QUIET_S:g} s")
            time.sleep(0.1)


def _first_rows(table: DataFrame, count: int = 5) -> str:
    """The first rows as text, cut to the screen."""
    names = [name for name in table.columns if not name.startswith("_")]
    order = ("_queue", "_offset")
    rows = [[_cell(value) for value in row] for row in table.orderBy(*order).select(*names).limit(count).collect()]
    widths = [max(len(cell) for cell in column) for column in zip(names, *rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in [names, *rows]]
    room = shutil.get_terminal_size((120, 24)).columns
    return "\n".join("  " + line.rstrip()[: room - 2] for line in lines)


def _cell(value: object) -> str:
    text = "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else text[:39] + "…"


# -- the end


def _draw(charts: list[Chart], folder: Path, show: TextIO) -> Path:
    from penstock import charts as draw

    width, colour = shutil.get_terminal_size((100, 24)).columns, show.isatty() and not os.environ.get("NO_COLOR")
    for chart in charts:
        show.write("\n" + draw.text(chart, width, colour=colour) + "\n")
    draw.picture(charts, folder / "chart.png")
    return folder / "chart.png"


def _tell(report: DemoReport, show: TextIO) -> None:
    lines = [""]
    for told in report.topics:
        lines += [
            f"{told.topic} ({told.source})",
            f"  in        {told.published:>9,} messages  {told.publish_rate:>10,.0f}/s  published",
            f"  out       {told.consumed:>9,} messages  {told.consume_rate:>10,.0f}/s  consumed by group {GROUP}",
            f"  archived  {told.archived:>9,} messages  {told.archive_rate:>10,.0f}/s  {told.archive}",
            f"  table     {told.rows:>9,} rows                    {told.table}",
        ]
    lines += [
        "",
        f"chart:  {report.chart}",
        f"output: {report.folder}  ({report.seconds:.0f} s, everything is stopped)",
    ]
    show.write("\n".join(lines) + "\n")
    show.flush()


def _new_folder(out: Path) -> Path:
    if not out.exists():
        out.mkdir(parents=True)
        (out / ".gitignore").write_text("*\n")  # output, wherever it is put
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for name in (stamp, *(f"{stamp}-{n}" for n in range(2, 100))):
        folder = out.absolute() / name
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        return folder
    raise ConfigError(f"cannot make a folder in {out}")


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
