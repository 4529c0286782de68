"""The names of `/metrics`, and their text: what every process with an HTTP port has, a registry, too."""

from __future__ import annotations

import gc
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Protocol

from penstock.access.rights import Rights
from penstock.disk.workers import Workers
from penstock.histogram import Attempts, Histogram
from penstock.limits import Limits

PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
TEXT_FORMAT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")
OPENMETRICS = b"application/openmetrics-text"
OPENMETRICS_FORMAT = (b"content-type", OPENMETRICS + b"; version=1.0.0; charset=utf-8")


def memory() -> dict[str, int]:
    """nsqd's fields, as far as Python has them."""
    page = resource.getpagesize()
    try:
        with open("/proc/self/statm", "rb") as file:
            resident = int(file.read().split()[1]) * page
    except OSError:
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "heap_objects": sys.getallocatedblocks(),
        "heap_idle_bytes": 0,
        "heap_in_use_bytes": resident,
        "heap_released_bytes": 0,
        "gc_pause_usec_100": 0,
        "gc_pause_usec_99": 0,
        "gc_pause_usec_95": 0,
        "next_gc_bytes": 0,
        "gc_total_runs": sum(generation["collections"] for generation in gc.get_stats()),
    }


class Faults(Protocol):
    """What failed in a process."""

    count: int

    @property
    def failing(self) -> Mapping[str, str]: ...


class Role(Protocol):
    @property
    def faults(self) -> Faults: ...


class Net(Protocol):
    """The sockets of a process, as far as this floor knows them."""

    waiting_bytes: int

    @property
    def connections(self) -> Sized: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def late(self) -> Histogram: ...
    @property
    def handshakes(self) -> Mapping[str, int]: ...
    @property
    def role(self) -> Role: ...
    @property
    def workers(self) -> Workers: ...


# name: type, meaning
FAMILIES = {
    "info": ("gauge", "version of this broker"),
    "start_time_seconds": ("gauge", "when it started"),
    "healthy": ("gauge", "1 while the disk takes what is written"),
    "messages_in_total": ("counter", "messages published"),
    "throughput_in_bytes_total": ("counter", "bytes published"),
    "messages_out_total": ("counter", "messages given to a group or channel, each time they were"),
    "throughput_out_bytes_total": ("counter", "bytes given to a group or channel, with the heads of messages"),
    "topic_messages": ("gauge", "messages of a topic that no channel has taken over"),
    "channel_messages_total": ("counter", "messages a channel has been given"),
    "consumer_lag_messages": ("gauge", "messages not finished: ready, in flight and deferred"),
    "consumer_lag_seconds": (
        "gauge",
        "how long the oldest message that is not finished has been stored; deferred ones aside",
    ),
    "consumer_ready_messages": ("gauge", "messages that wait for a consumer"),
    "consumer_inflight_messages": ("gauge", "messages delivered and not finished"),
    "consumer_deferred_messages": ("gauge", "messages that wait for their time"),
    "requeued_messages_total": ("counter", "messages given back"),
    "timed_out_messages_total": ("counter", "messages whose consumer took too long"),
    "dropped_messages_total": ("counter", "messages that an ephemeral channel had no room for"),
    "consumers": ("gauge", "consumers connected"),
    "processing_latency_seconds": ("summary", "publish to finish"),
    "send_to_dlq_messages_total": ("counter", "messages that a group or channel gave up"),
    "timer_enqueue_lag_messages": (
        "gauge",
        "delayed messages that came or went, and are not in the schedule's file yet",
    ),
    "timer_dequeue_lag_messages": ("gauge", "delayed messages that are due and not delivered; 10000: so many or more"),
    "processor_watermark": ("gauge", "requests that wait, by what for: pull for news, flush for the disk or a slave"),
    "delayed_late_seconds": ("gauge", "how long ago the first message of the schedule was due"),
    "storage_message_reserve_seconds": ("gauge", "how long the oldest record of the log has been stored"),
    "delayed_messages": ("gauge", "messages in the schedule"),
    "staged_rows": ("gauge", "rows of Spark's sink that no reader sees yet"),
    "staged_bytes": ("gauge", "their files; stage_max_bytes is the limit"),
    "staged_seconds": ("gauge", "how long ago the oldest of these files was written to; dropped at stage_ttl_ms"),
    "storage_size_bytes": ("gauge", "what the commit log holds"),
    "storage_written_bytes_total": ("counter", "what was written to the commit log since its beginning"),
    "storage_flush_behind_bytes": ("gauge", "written and not flushed"),
    "storage_dispatch_behind_bytes": (
        "gauge",
        "in the log, and not in message queues and key index: 0 but after a full disk",
    ),
    "storage_deleted_segments_total": (
        "counter",
        "segments of the log that went: their age, disk too full for that, or missing: deleted by somebody else",
    ),
    "storage_replay_bytes": ("gauge", "what a start after a kill would read again"),
    "disk_job_seconds": ("histogram", "how long the disk took: flushes, and the making and removing of files"),
    "append_seconds": (
        "histogram",
        "from the first byte that a turn of the loop reads until what it stores is written",
    ),
    "delivery_seconds": (
        "histogram",
        "how long the first message of an answer, or of what a channel gives at once, had been stored",
    ),
    "acknowledge_seconds": (
        "histogram",
        "how long the first message that a turn finishes in a channel, or of a group's commit, had been stored",
    ),
    "finish_attempts": ("histogram", "at which attempt the messages of channels were finished"),
    "loop_lag_seconds": ("histogram", "how late the timer of the event loop came, busy with something else"),
    "http_request_seconds": ("histogram", "from the end of a request's head to its answer, by route"),
    "disk_size_bytes": ("gauge", "size of the file system that the data folder is on"),
    "disk_free_bytes": ("gauge", "what is free there"),
    "replica_in_sync": ("gauge", "1 for each slave that a send of level pair waits for"),
    "replica_lag_bytes": ("gauge", "what a slave has not written of its master's log"),
    "replica_confirmed_bytes": ("gauge", "up to where all brokers in sync have the log"),
    "replica_epoch": ("gauge", "number of the mastership that is copied"),
    "engine_reached": ("gauge", "1 while the engine that decides about the master answers, and makes changes"),
    "engine_silent_seconds": ("gauge", "since it answered last"),
    "replica_leads": ("gauge", "1 on the master, where an engine decides"),
    "replica_lease_seconds": ("gauge", "so long may the master go on answering without hearing of the engine"),
    "replica_bad_blocks_total": ("counter", "blocks of the log that arrived damaged, and were sent again"),
    "replica_repaired_total": ("counter", "damaged records that were mended from another node"),
    "replica_damaged": ("gauge", "damaged records that no other node has given a sound copy of yet"),
    "connections": ("gauge", "connections taken"),
    "limit_reached_total": ("counter", "how often each limit was reached; docs/operate.md lists them"),
    "tls_handshakes_total": ("counter", "TLS handshakes: done, failed, too slow, or plain peers where TLS is required"),
    "connection_memory_bytes": ("gauge", "unfinished requests and unread answers of all connections"),
    "faults_total": ("counter", "steps of the loop that raised"),
    "rejected_total": ("counter", "requests that should not have been sent"),
    "users": ("gauge", "users there are; 0: everything is allowed"),
    "denied_requests_total": ("counter", "requests without the right"),
    "failed_logins_limited_total": ("counter", "logins refused unseen after too many had failed"),
    "process_resident_memory_bytes": ("gauge", "memory of this process"),
    "registry_brokers": ("gauge", "brokers that have told the name server of themselves"),
    "registry_topics": ("gauge", "topics that it knows a route for"),
    "lookup_producers": ("gauge", "nsqds that have told nsqlookupd of themselves, and are heard of"),
    "lookup_topics": ("gauge", "topics that it knows"),
    "lookup_channels": ("gauge", "channels that it knows"),
}
# What a histogram is made of are counters.
FAMILIES |= {
    f"{name}_{part}": ("counter", meaning)
    for name, (kind, meaning) in FAMILIES.items()
    if kind == "histogram"
    for part in ("bucket", "sum", "count")
}


def _label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def sample(family: str, value: float | int, **labels: str) -> tuple[str, str]:
    """(family, line)."""
    inside = ",".join(f'{name}="{_label(text)}"' for name, text in labels.items())
    return family.removesuffix(
        "_count"
    ), f"penstock_{family}{{{inside}}} {value}" if inside else f"penstock_{family} {value}"


def histogram_samples(family: str, histogram: Histogram | Attempts, **labels: str) -> Iterator[tuple[str, str]]:
    """The samples of a histogram: its buckets, sum and count, all of one moment, whenever they are asked for."""
    buckets = histogram.buckets()
    total = round(histogram.sum_s, 6) if isinstance(histogram, Histogram) else histogram.sum
    for bound, count in buckets:
        yield family, sample(f"{family}_bucket", count, **labels, le=bound)[1]
    yield family, sample(f"{family}_sum", total, **labels)[1]
    yield family, sample(f"{family}_count", buckets[-1][1], **labels)[1]


def access_samples(rights: Rights) -> Iterator[tuple[str, str]]:
    """The samples of users and rights."""
    yield sample("users", len(rights.users))
    yield sample("denied_requests_total", rights.denied)
    yield sample("failed_logins_limited_total", rights.failed_logins.refused)


def net_samples(net: Net) -> Iterator[tuple[str, str]]:
    """The samples of the sockets of this process."""
    yield sample("connections", len(net.connections))
    yield sample("connection_memory_bytes", net.waiting_bytes)
    yield sample("faults_total", net.role.faults.count)
    yield from histogram_samples("loop_lag_seconds", net.late)
    for job, took in net.workers.took.items():
        yield from histogram_samples("disk_job_seconds", took, job=job)
    for limit, count in net.limits.reached.items():
        yield sample("limit_reached_total", count, limit=limit)
    for result, count in net.handshakes.items():
        yield sample("tls_handshakes_total", count, result=result)


def site_samples(took: Mapping[str, Histogram]) -> Iterator[tuple[str, str]]:
    """The samples of a site: how long each of its routes took."""
    for route, histogram in list(took.items()):  # others have the loop between two samples, and may ask a new route
        yield from histogram_samples("http_request_seconds", histogram, route=route)


def by_family(samples: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The lines of each family."""
    families: dict[str, list[str]] = {}
    for family, line in samples:
        families.setdefault(family, []).append(line)
    return families


def metrics_pieces(families: Mapping[str, list[str]], openmetrics: bool = False) -> Iterator[bytes]:
    """The lines of each family, one family after the other, in the text format or as OpenMetrics has it: there the family
    of a counter has no `_total`, and a last line says that nothing is missing.
    """
    for family, lines in families.items():
        kind, about = FAMILIES[family]
        name = family.removesuffix("_total") if openmetrics else family
        head = f"# HELP penstock_{name} {about}", f"# TYPE penstock_{name} {kind}"
        yield ("\n".join([*head, *lines]) + "\n").encode()
    if openmetrics:
        yield b"# EOF\n"


def wants_openmetrics(accept: bytes) -> bool:
    """Whether a scraper would rather have that: whoever names it at all, and not the text format before it."""
    wanted = [(_quality(rest), name.strip()) for name, _, rest in (one.partition(b";") for one in accept.split(b","))]
    ours = [quality for quality, name in wanted if name == OPENMETRICS]
    plain = [quality for quality, name in wanted if name == b"text/plain"]
    return bool(ours) and max(ours) > 0 and max(ours) >= max(plain, default=0.0)


def _quality(parameters: bytes) -> float:
    for one in parameters.split(b";"):
        name, _, text = one.strip().partition(b"=")
        if name == b"q":
            try:
                return float(text)
            except ValueError:
                return 0.0
    return 1.0


def metrics_format(openmetrics: bool) -> tuple[bytes, bytes]:
    """The header that says which one it is."""
    return OPENMETRICS_FORMAT if openmetrics else TEXT_FORMAT
