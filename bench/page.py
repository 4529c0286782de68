"""`python -m bench page`: writes the figures from bench/results/ into docs/speed.md."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from bench import ha
from bench.servers import HERE

PAGE = HERE.parent / "docs" / "speed.md"
BEGIN = "## Queue topics over NSQ"
SPARK = {  # kind of pair: what it is, against what, goal
    "source files": ("source, out of the broker's files (the default where they can be read)", "empty source", 0.85),
    "source tcp": ("source, over TCP", "empty source", 0.85),
    "bulk": ("bulk source", "empty source", 0.85),
    "sink": ("sink, flushed before a task ends, and published", "a sink that drops Arrow batches", 0.6),
    "archive": ("`archive`", "`df.write.parquet`", 2.5),
    "stats": ("`stats` of 4 GiB, percentiles included", "the same by Spark's aggregation", 2.0),
    "stats sums": ("the same", "counts and sums alone by Spark's aggregation", None),
}


def _read(name: str) -> dict[str, Any]:
    figures: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text())
    return figures


def _machine(figures: dict[str, Any]) -> str:
    about = figures["machine"]
    return (
        f"{about['cpu']}, {about['cores']} cores, Linux {about['kernel']}, Python {about['python']}, {about['date']}, "
        f"load average before: {about['load_before']:.1f}"
    )


def _speed() -> list[str]:
    figures = _read("nsq")
    lines = [
        f"{BEGIN}, {figures['body_bytes']}-byte bodies, level `{figures['level']}`",
        "",
        f"{_machine(figures)}, after: {figures['load_after']:.1f}; {figures['rounds']} rounds of "
        f"{figures['seconds']:.0f} s, medians.",
        "",
        "| | µs of CPU a message (range) | goal | floor | × floor | nsqd | nsqd ÷ ours | goal | nsqd ÷ floor | messages/s "
        "| nsqd's | floor's | at level `memory`, ÷ `os` (goal 1), nsqd ÷ it |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in figures["rows"]:
        low, high = row["cpu_us_range"]
        memory = f"{row['memory_cpu_us']:.2f}, {row['memory_to_os']}" if "memory_cpu_us" in row else ""
        if memory and "nsqd_cpu_us" in row:
            memory += f", {row['nsqd_cpu_us'] / row['memory_cpu_us']:.1f}"
        theirs = f"{row['nsqd_cpu_us']:.2f} | {row['nsqd_to_ours']}" if "nsqd_cpu_us" in row else " | "
        rates = [f"{row[key]:,}" if key in row else "" for key in ("rate", "nsqd_rate", "floor_rate")]
        lines.append(
            f"| {row['what']} | {row['cpu_us']:.2f} ({low:.2f}–{high:.2f}) | {row['goal_cpu_us'] or ''} "
            f"| {row['floor_cpu_us']:.2f} | {row['times_the_floor']} | {theirs} | {row['goal_nsqd_to_ours'] or ''} "
            f"| {row.get('nsqd_to_floor', '')} | {' | '.join(rates)} | {memory} |"
        )
    return lines


def _log() -> list[str]:
    figures = _read("log")
    lines = [
        "",
        "## Log topics over RocketMQ's protocol, 200-byte bodies",
        "",
        f"{_machine(figures)}; {figures['rounds']} rounds of {figures['seconds']:.0f} s, medians. RocketMQ is 4.9.7 as it comes, "
        "with 2 GiB of heap and three seconds of load before; beside level `disk` with SYNC_FLUSH.",
        "",
        "| | µs of CPU a message (range) | goal | floor | RocketMQ | RocketMQ ÷ ours | messages/s | × its rate |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in figures["rows"]:
        low, high = row["cpu_us_range"]
        floor = f"{row['floor_cpu_us']:.2f}" if "floor_cpu_us" in row else ""
        theirs = f"{row['rocketmq_cpu_us']:.1f} | {row['rocketmq_to_ours']}" if "rocketmq_cpu_us" in row else " | "
        lines.append(
            f"| {row['what']} | {row['cpu_us']:.2f} ({low:.2f}–{high:.2f}) | {row['goal_cpu_us'] or ''} | {floor} | {theirs} "
            f"| {row['rate']:,} | {row.get('rate_to_rocketmq', '')} |"
        )
    if kafka := figures.get("kafka"):
        lines += [
            "",
            f"Kafka {kafka['version']} takes batches of 200 from its own `ProducerPerformance`, acknowledged by the leader, "
            f"on the same cores: {kafka['cpu_us']:.2f} µs of CPU a message, {kafka['rate']:,} a second.",
        ]
    return lines


def _latency() -> list[str]:
    figures = _read("latency")
    lines = [
        "",
        "## One message at a time, RDY 100, from PUB to the consumer",
        "",
        f"{_machine(figures)}; goal: median at most {figures['goal_median_ms']} ms. nsqd gathers what it sends for 250 ms where "
        "a client does not ask for less (`output_buffer_timeout`).",
        "",
        "| | median ms | p99 ms | most ms |",
        "|---|---|---|---|",
    ]
    for name, row in figures["rows"].items():
        lines.append(f"| {name} | {row['median_ms']:.2f} | {row['p99_ms']:.2f} | {row['most_ms']:.2f} |")
    lines += [
        "",
        "`Producer.request` of our client until the reply of another is there (RocketMQ's request-reply), some requests to each",
        "broker by turns:",
        "",
        "| | median ms | p99 ms | most ms |",
        "|---|---|---|---|",
    ]
    for name, row in figures["requests"].items():
        lines.append(f"| {name} | {row['median_ms']:.2f} | {row['p99_ms']:.2f} | {row['most_ms']:.2f} |")
    return lines


def _pauses() -> list[str]:
    figures = _read("pauses")
    lines = [
        "",
        "## What others notice",
        "",
        f"{_machine(figures)}. A producer of another topic publishes a message every other millisecond: how long it waits for an",
        f"answer at most (range of {figures['rounds']} rounds), and the 99th percentile, ms.",
        "",
    ]
    names = list(next(iter(figures["rows"].values())))
    lines += ["| | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for event, row in figures["rows"].items():
        cells = []
        for name in names:
            if name not in row:  # nsqd has no groups
                cells.append("")
                continue
            low, high = row[name]["most_range"]
            cells.append(f"{row[name]['most_ms']:.0f} ({low:.0f}–{high:.0f}), {row[name]['p99_ms']:.2f}")
        lines.append(f"| {event} | {' | '.join(cells)} |")
    return lines


def _scale() -> list[str]:
    figures = _read("scale")
    topics, peers, backlog, goals = (figures[name] for name in ("topics", "connections", "backlog", "goals"))
    full, read = backlog["anonymous_mib"]
    return [
        "",
        "## Many",
        "",
        f"{_machine(figures)}.",
        "",
        "| | measured | goal |",
        "|---|---|---|",
        f"| {topics['topics']:,} topics of two channels, {topics['in_flight']:,} messages in flight, idle "
        f"| {100 * topics['cpu_share']:.2f} % of a core | < {100 * goals['cpu_share_max']:.0f} % |",
        f"| {peers['connections']:,} idle connections, of {peers['brokers']} brokers ({peers['date']}) "
        f"| RSS + {peers['rss_mib']:.0f} MiB, PSS + {peers['pss_mib']:.0f} MiB: "
        f"{peers['kib_each']} KiB each | ≤ {goals['kib_a_connection_max']} KiB |",
        f"| {backlog['messages']:,} messages in a channel: anonymous memory when full, and after reading "
        f"| {full} MiB, {read} MiB | ≤ {goals['backlog_mib_max']} MiB |",
        f"| the same: filled with MPUBs, read by one consumer "
        f"| {backlog['fill_cpu_us']:.2f} and {backlog['read_cpu_us']:.2f} µs a message | |",
        *_growth(figures),
    ]


def _watch() -> list[str]:
    figures = _read("watch")
    low, high = figures["share_range"]
    return [
        "",
        "## Being watched",
        "",
        f"{_machine(figures)}; {figures['minutes']:.0f} minutes, beside a broker with the same load that keeps no history and "
        "that nobody looks at.",
        "",
        "| | measured (range) | goal |",
        "|---|---|---|",
        f"| {figures['topics']:,} topics with {figures['readers']:,} readers: history, `/metrics` every 15 s, a console with two "
        f"pages open | {100 * figures['share']:.2f} % of a core ({100 * low:.2f}–{100 * high:.2f}) "
        f"| ≤ {100 * figures['goal_share']:.0f} % |",
        *_tabs(),
    ]


def _tabs() -> list[str]:
    figures = _read("tabs")
    low, high = figures["ratio_range"]
    slowest, took = max(figures["first_byte_ms"].items(), key=lambda one: one[1])
    broker, console = (" → ".join(f"{mib:.0f}" for mib in figures[name]) for name in ("broker_mib", "console_mib"))
    plain, seen = figures["cpu_us"], figures["cpu_us_with_tabs"]
    return [
        "",
        f"Ten tabs, each on another page, on a broker with {figures['topics']:,} topics that takes PUBs of 200 bytes "
        f"(window 1000, one consumer) on the same two cores. {_machine(figures)}; {figures['minutes']:.0f} minutes, "
        f"{figures['rounds']} rounds with and without in turn. "
        "Where other work has the cores, as the load average says, the rates tell of that; CPU time does not.",
        "",
        "| | measured (range) | goal |",
        "|---|---|---|",
        f"| messages/s with ten tabs ÷ without | {figures['ratio']:.2f} ({low:.2f}–{high:.2f}) | ≥ {figures['goal_ratio']} |",
        f"| CPU of the broker for ten tabs, with no load: of a core | {100 * figures['share']:.1f} % | ≤ 3 % |",
        f"| the same by the broker's CPU: {plain:.3f} ÷ {seen:.3f} µs a message | {plain / seen:.2f} | |",
        f"| first byte of the slowest page (`{slowest}`) | {took:.0f} ms | < {figures['goal_first_byte_ms']} ms |",
        f"| memory of the broker, MiB: first round, half, last | {broker} | flat |",
        f"| memory of the console, MiB | {console} | flat |",
    ]


def _brokers() -> list[str]:
    figures = _read("brokers")
    lines = [
        "",
        "## Several brokers on one machine",
        "",
        "`penstock up --brokers N`, SEND of 200 bytes with a JSON header, window 250 × 4 at each broker; the load clients "
        "use the same cores. "
        f"{_machine(figures)}.",
        "",
        "| brokers | messages/s, all together | µs of CPU a message | least share of one | acknowledged, not stored |",
        "|---|---|---|---|---|",
    ]
    for row in figures["rows"]:
        lines.append(
            f"| {row['brokers']} | {row['rate']:,.0f} | {row['cpu_us']:.2f} "
            f"| {100 * row['least_share']:.0f} % | {row['lost']:,} |"
        )
    return lines


def _growth(figures: dict[str, Any]) -> list[str]:
    lines = []
    if "made" in figures:
        made = figures["made"]
        lines += [
            f"| {made['log_topics']:,} log topics made one by one | {made['made_ms']:.2f} ms of CPU each | ≤ 2 ms |",
            f"| first message of {made['queue_topics']:,} queue topics "
            f"| {made['first_message_ms']:.2f} ms of CPU each | ≤ 0.5 ms |",
            f"| messages to one of them, to all in turn | {made['one_us']:.2f}, {made['round_robin_us']:.2f} µs | ≤ 2 × |",
        ]
    if "many" in figures:
        many = figures["many"]
        lines.append(
            f"| {many['topics']:,} log topics: start behind kill -9, idle "
            f"| {many['start_s']:.1f} s, {100 * many['cpu_share']:.2f} % of a core | ≤ 5 s, ≤ 2 % |"
        )
    for log in figures.get("restart", ()):
        lines.append(
            f"| a log of {log['messages']:,} keyed messages opened behind kill -9, from memory and from the disk "
            f"| {log['seconds']:.2f} s and {log['cold_seconds']:.2f} s | ≤ 2 s |"
        )
    if "disk" in figures:
        disk = figures["disk"]
        lines.append(
            f"| disk of an empty broker, and with a message of each kind "
            f"| {disk['empty_mb']:.1f} MB, {disk['first_messages_mb']:.1f} MB | ≤ 40 MB |"
        )
    if "lateness" in figures:
        late = figures["lateness"]
        lines.append(
            f"| delayed messages of a log topic come late by: median, p95, p99 "
            f"| {late['p50_ms']:.1f}, {late['p95_ms']:.1f}, {late['p99_ms']:.1f} ms | p99 ≤ 20 ms |"
        )
    return lines


def _between(figures: Iterable[float]) -> str:
    low, *_, high = sorted(figures)
    return f"{low}" if low == high else f"{low}–{high}"


def _ha() -> list[str]:
    figures = _read("ha")
    costs, added = figures["costs"], figures["added"]
    lines = [
        "",
        "## Copies, and a change of master",
        "",
        f"{_machine(figures)}. The two brokers of a set and the load client share the cores. Bodies of {ha.WINDOW['s']} bytes, "
        f"window {ha.WINDOW['w']} × {ha.WINDOW['P']}, medians of {len(added['master_us'])} rounds.",
        "",
        "| level | messages/s | of that without a slave (range) | goal | µs of CPU a message, master | slave "
        "| one message alone, ms |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, row in costs.items():
        middle, low, high = row["share"]
        share = f"{middle:.2f} ({low:.2f}–{high:.2f})" if row["slave_us"] else ""
        lines.append(
            f"| {kind} | {row['rate']:,.0f} | {share} | {ha.GOALS.get(kind, '')} | {row['master_us']:.2f} "
            f"| {row['slave_us'] or ''} | {row['single_ms'][0]:.3f} |"
        )
    alone = {kind: row["single_ms"][0] for kind, row in costs.items()}
    trip = median(figures["round_trip_ms"])
    times = alone["pair-disk"] / alone["disk, no slave"]
    return [
        *lines,
        "",
        "| | measured | goal |",
        "|---|---|---|",
        f"| CPU that a copy of a record of 300 bytes adds at the master, level `os`, µs | {median(added['master_us']):.2f} "
        f"({_between(added['master_us'])}) | ≤ {ha.MASTER_US:.2f} |",
        f"| and takes at the slave | {median(added['slave_us']):.2f} ({_between(added['slave_us'])}) | ≤ {ha.SLAVE_US:.2f} |",
        f"| one `pair` send alone, ms | {alone['pair']:.3f} "
        f"| ≤ {alone['os'] + trip + ha.LONE_MS:.3f}: level `os`, a round trip of {trip:.3f} and {ha.LONE_MS} |",
        f"| one `pair-disk` send alone, ÷ one at `disk` | {times:.2f} | ≤ {ha.DISK_TIMES} |",
        "| a planned change of master: the longest time in which a client that sends one message after the other "
        "has none accepted, s "
        f"| {_between(figures['switch_gap_s'])} | < 1 |",
        "| kill -9 of the master, `ha promote` at once: until the first accepted send, s "
        f"| {_between(figures['promotion']['since_kill_s'])} | |",
        f"| kill -9 of the master with an engine, nobody does anything, lease of {ha.LEASE_S} s "
        f"| {_between(figures['failover_s'])} | ≤ {ha.LEASE_S + 1} |",
        f"| a new slave of a full log, until it is in sync, MB/s | {_between(figures['catch_up_mb_s'])} | ≥ {ha.CATCH_UP_MB} |",
    ]


def _java() -> list[str]:
    figures = _read("java")
    return [
        "",
        "## RocketMQ's Java client, sending synchronously",
        "",
        f"{_machine(figures)}; {figures['rounds']} rounds of {figures['seconds']} s, medians. "
        "Client and broker share the cores; the CPU is the broker's. The floor is a C server that keeps nothing and only "
        "answers: what this client reaches at most.",
        "",
        "| threads | messages/s | RocketMQ's broker | × its rate (range) | floor, × its rate | goal | µs of CPU a message "
        "| RocketMQ's | floor |",
        "|---|---|---|---|---|---|---|---|---|",
        *(
            f"| {row['threads']} | {row['rate']:,} | {row['rocketmq_rate']:,} | {row['times_the_rate']} "
            f"({row['times_range'][0]}–{row['times_range'][1]}) | {row.get('floor_times', '')} "
            f"| {row['goal_times']} | {row['cpu_us']} | {row['rocketmq_cpu_us']} | {row.get('floor_cpu_us', '')} |"
            for row in figures["rows"]
        ),
    ]


def _client() -> list[str]:
    figures = _read("client")
    lines = [
        "",
        "## The Python client",
        "",
        f"CPU of the client's process, µs a message; {figures['body_bytes']}-byte bodies, rounds: {figures['rounds']}.",
        f"{_machine(figures)}. The floor is a client in C at our broker, which writes the same bytes again and makes nothing of "
        "what it reads; it sends each message for itself, where ours gathers what comes meanwhile.",
        "",
        "| | log | queue | floor | pynsq at nsqd | confluent-kafka at Kafka | goal |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in figures["rows"]:
        cells = (
            f"{row[kind]['cpu_us']:.1f}" if kind in row else ""
            for kind in ("log", "queue", "floor", "pynsq", "confluent")
        )
        lines.append(f"| {row['what']} | {' | '.join(cells)} | {row['goal_cpu_us']} |")
    return [*lines, *(f"\nNot measured: {reason}." for reason in figures["not_measured"])]


def _spark() -> list[str]:
    figures = _read("spark")
    lines = [
        "",
        "## Spark, in rows per CPU-second",
        "",
        f"{figures['machine']}, decoder {figures['decoder']}; JVM and Python workers together, medians, both sides in turn.",
        "Other work was on the machine for some of it, as the ranges show.",
        "",
        "| | against | body | M rows per CPU-second | × (range) | goal |",
        "|---|---|---|---|---|---|",
    ]
    for kind, (what, floor, goal) in SPARK.items():
        for body in ("100 B", "1 KB"):
            row = figures["pairs"][f"{kind} {body}"]
            (_, theirs), (_, ours) = [(name, row[name]) for name in row if name.endswith("_rows_per_cpu_s")]
            lines.append(
                f"| {what} | {floor} | {body} | {ours / 1e6:.2f} against {theirs / 1e6:.2f} | {row['ratio']:.2f} "
                f"({row['ratio_min']:.2f}–{row['ratio_max']:.2f}) | {goal or ''} |"
            )
    for body in ("100 B", "1 KB"):
        row = figures[f"splits {body}"]
        lines.append(
            f"| 2, 4 and 16 splits of 1 GiB, most to least CPU | | {body} | | {row['most_to_least']:.2f} | 1.3 |"
        )
    made = figures["reindex 100 B"]
    lines += [
        "",
        f"`reindex` of {made['records']:,} records: {made['seconds']:.1f} s, {made['files']} consume-queue files byte for byte "
        f"the broker's, {made['asked']:,} questions to both key indexes answered alike.",
    ]
    return lines


def main(arguments: list[str], page: Path = PAGE) -> None:
    kept = page.read_text().partition(BEGIN)[0]
    page.write_text(
        kept
        + "\n".join(
            _speed()
            + _log()
            + _latency()
            + _pauses()
            + _scale()
            + _watch()
            + _brokers()
            + _ha()
            + _java()
            + _client()
            + _spark()
        )
        + "\n"
    )
