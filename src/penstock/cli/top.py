"""`penstock top`: what happens now: rates, lag and consumers of the busiest topics, again and again."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress

import click

import penstock
from penstock.cli.tools import DAY_S, Amount, look_again, looking, print_rows, printable, with_json, with_registry
from penstock.errors import BrokerRefused, NoRoute
from penstock.wire.codes import ResponseCode

Row = dict[str, object]
CLEAR = "\x1b[H\x1b[2J"


class Rates:
    """Counters read twice make a rate."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], tuple[float, int]] = {}

    def of(self, key: tuple[str, str], count: int, now_s: float) -> float | None:
        """So many a second since it was asked last; None the first time, and after a restart of the counter."""
        before, self._before[key] = self._before.get(key), (now_s, count)
        if before is None or count < before[1] or now_s <= before[0]:
            return None
        return (count - before[1]) / (now_s - before[0])


def snapshot(admin: penstock.Admin, rates: Rates, now_s: float) -> list[Row]:
    """A row for each group of a log topic and each channel, and for topics that nobody reads."""
    rows: list[Row] = []
    ends: dict[str, int] = {}
    for name in admin.topics():
        try:
            if admin.missed and admin.missed.keys() >= set(admin.route(name).brokers):
                continue  # nobody is there to tell of it
            ends[name] = sum(stats.max_offset for stats in admin.topic_stats(name).values())
        except NoRoute:  # deleted meanwhile
            continue
        except BrokerRefused as error:  # deleted at its broker alone: name servers keep what they have heard
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
    stored = dict(ends)
    seen: dict[
        tuple[str, str, str], tuple[int, int, int | None]
    ] = {}  # of a channel at all brokers: done, behind, how old
    for one in admin.queue_topics():
        topic, kind = str(one["topic"]), str(one["kind"])
        if topic not in stored:
            ends[topic] = ends.get(topic, 0) + int(one["messages"])
        for channel in one["channels"]:
            behind = int(channel["depth"]) + int(channel["inFlight"])
            age_ms: int | None = channel.get("lagMillis")
            before, more, oldest_ms = seen.get((topic, kind, channel["channel"]), (0, 0, 0))
            oldest = None if age_ms is None or oldest_ms is None else max(age_ms, oldest_ms)
            done = before + int(channel["messages"]) - behind
            seen[topic, kind, channel["channel"]] = (done, more + behind, oldest)
    for group, queues in admin.all_group_stats().items():
        for topic in {queue.topic for queue in queues}:
            of = [stats for queue, stats in queues.items() if queue.topic == topic]
            if topic in stored and (topic, "log", group) not in seen:  # a channel of that name is the same reader
                lag_ms = [stats.lag_ms for stats in of if stats.lag_ms is not None]
                read = sum(stats.committed for stats in of)
                rows.append(
                    _row(
                        topic,
                        "log",
                        group,
                        rates,
                        now_s,
                        (stored[topic], read),
                        sum(s.lag for s in of),
                        max(lag_ms, default=0),
                    )
                )
    for (topic, kind, name), (done, behind, oldest) in seen.items():
        rows.append(_row(topic, kind, name, rates, now_s, (ends[topic], done), behind, oldest))
    read_by = {row["topic"] for row in rows}
    for topic, end in ends.items():
        if topic not in read_by:
            rows.append(_row(topic, "log" if topic in stored else "queue", "", rates, now_s, (end, 0), 0, 0))
    return sorted(rows, key=lambda row: (-float(str(row["in_s"] or 0)), str(row["topic"]), str(row["reader"])))


def _row(
    topic: str, kind: str, reader: str, rates: Rates, now_s: float, counts: tuple[int, int], lag: int, lag_ms: int | None
) -> Row:  # fmt: skip
    into, out = (
        rates.of((topic, f"in {reader}"), counts[0], now_s),
        rates.of((topic, f"out {reader}"), counts[1], now_s),
    )
    return {
        "topic": topic,
        "kind": kind,
        "reader": reader,
        "in_s": None if into is None else round(into, 1),
        "out_s": None if out is None or not reader else round(out, 1),
        "lag": lag,
        "lag_s": None if lag_ms is None else lag_ms / 1000,
    }


def lines(rows: Iterable[Row], width: int, height: int) -> Iterator[str]:
    """A screen of them."""
    titles = ("topic", "kind", "reader", "in_s", "out_s", "lag", "lag_s")
    cells = [[printable("-" if row[title] in (None, "") else str(row[title])) for title in titles] for row in rows]
    cells = cells[: max(1, height - 2)]
    widths = [
        max(len(title), *(len(row[n]) for row in cells)) if cells else len(title) for n, title in enumerate(titles)
    ]
    for row in [list(titles), *cells]:
        yield "  ".join(word.ljust(size) for word, size in zip(row, widths, strict=True))[:width].rstrip()


@click.command()
@with_registry
@with_json
@click.option("--interval", type=Amount(0.1, DAY_S), default=2.0, show_default=True, help="Seconds.")
@click.option("--count", type=click.IntRange(1), help="So often, then end.")
def top(registry: str, as_json: bool, interval: float, count: int | None) -> None:
    """Show topics with their readers, rates and lag, the busiest first, again and again until Ctrl-C."""
    rates = Rates()
    screen = sys.stdout.isatty() and not as_json
    with suppress(KeyboardInterrupt), looking(registry) as admin:

        def show() -> None:
            rows = snapshot(admin, rates, time.monotonic())
            if screen:
                size = shutil.get_terminal_size()
                click.echo(CLEAR + "\n".join(lines(rows, size.columns, size.lines)))
            elif as_json:
                print_rows(rows, True)
            else:
                click.echo("\n".join(lines(rows, 200, 1 << 30)))

        look_again(admin, show, interval, count)
