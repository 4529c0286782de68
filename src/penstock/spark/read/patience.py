"""Asking a cluster of which a broker may be away: what is waited for, what is tried again, and what no waiting mends."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from itertools import count
from typing import TypeVar

from penstock.client.reader import Fetched, LogReader
from penstock.client.routes import MessageQueue
from penstock.client.subscriptions import Subscription
from penstock.errors import BrokerRefused, ClientError, ConnectionLost, NoRoute, NotTrusted
from penstock.spark.read.options import SourceOptions
from penstock.spark.read.planning import Range

log = logging.getLogger(__name__)
T = TypeVar("T")

FOUND, NONE_MATCHED = 0, 20  # of `Fetched.status`


class NotYet(ClientError):
    """The broker has the offset but does not serve it yet, as for some seconds after its restart."""

    retryable = True


def patiently(options: SourceOptions, ask: Callable[[], T], *, known: bool = True) -> T:
    """What `ask` returns, asked again after errors that may pass.

    A broker that is away is waited for as long as one request may take; `known`: the topic was there once, so that a
    registry without it has only lost its broker. Other errors are tried again `fetchRetries` times, which may be none.
    """
    deadline = time.monotonic() + options.fetch_timeout_ms / 1000
    for attempt in count():
        try:
            return ask()
        except ClientError as error:
            lost = isinstance(error, ConnectionLost) and not isinstance(error, NotTrusted)
            away = lost or isinstance(error, NotYet) or (known and isinstance(error, NoRoute))
            waits = away and options.fetch_retries > 0 and time.monotonic() < deadline
            if not waits and not (error.retryable and attempt < options.fetch_retries):
                raise
            log.warning("retrying: %s", error)
            time.sleep(min(0.2 * 2 ** min(attempt, 10), 2.0))
    raise AssertionError("unreachable")


def asked(options: SourceOptions, cluster: LogReader, queue: MessageQueue, ask: Callable[[], T]) -> T | None:
    """What `ask` returns, patiently asked; None when the queue was deleted meanwhile, which no patience mends."""

    def once() -> T | None:
        try:
            return ask()
        except (NoRoute, BrokerRefused):
            if cluster.is_gone(queue, group=options.group_id_prefix):
                return None
            raise

    return patiently(options, once)


def fetch(cluster: LogReader, options: SourceOptions, wanted: Range, at: int, selection: Subscription) -> Fetched:
    """Records of the range from an offset on. `NotYet` where they are there and not served."""
    got = cluster.fetch(
        wanted.queue,
        at,
        max_bytes=options.fetch_bytes,
        max_count=min(wanted.end - at, 65_536),
        selection=selection,
        group=options.group_id_prefix,
        durable=True,
        until=wanted.end,
    )
    if got.status != FOUND and got.min_offset <= at < got.max_offset and got.next_offset == at:
        raise NotYet(f"{wanted.queue} gives nothing at offset {at}, which is before its end {got.max_offset}")
    return got
