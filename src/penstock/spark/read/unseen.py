"""What a stream does not see of what it has read before, told once: a run that ends without it would look like one that has read
everything.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from penstock.client.routes import MessageQueue
from penstock.spark.read import planning
from penstock.spark.read.options import SourceOptions
from penstock.spark.read.planning import ClusterView, Offsets

log = logging.getLogger(__name__)


class Unseen:
    """Each thing is told when it is missed first, and again when it had been there meanwhile."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._away: frozenset[str] = frozenset()  # brokers
        self._vanished: frozenset[str] = frozenset()  # topics
        self._unnamed: frozenset[MessageQueue] = frozenset()

    def tell(self, cluster: ClusterView, at: Offsets, known: Iterable[MessageQueue]) -> None:
        """`at`: what is read up to where; `known`: the queues that are there."""
        there = frozenset(known)
        self._brokers(at, there)
        self._topics(at, there)
        self._queues(cluster, at, there)

    def _brokers(self, at: Offsets, there: frozenset[MessageQueue]) -> None:
        away = planning.away(at, there)
        for broker in sorted(away.keys() - self._away):
            log.warning(
                "broker %s is away: what it holds of %s is read when it is back", broker, ", ".join(away[broker])
            )
        self._away = frozenset(away)

    def _topics(self, at: Offsets, there: frozenset[MessageQueue]) -> None:
        """Those that a pattern names, which are not waited for."""
        vanished = planning.vanished(self._options, at, there)
        for topic in sorted(vanished - self._vanished):
            log.warning(
                "no broker has topic %s now: of one that was deleted the rest is lost, of one whose brokers are away it is"
                " read when they are back",
                topic,
            )
        self._vanished = vanished

    def _queues(self, cluster: ClusterView, at: Offsets, there: frozenset[MessageQueue]) -> None:
        """Those that a topic has no more; it is asked what they hold only when others are missing than before."""
        if self._options.assign is not None:  # the user's to leave out, and an error where the topic has them not
            return
        unnamed = planning.unnamed(at, there)
        if unnamed - self._unnamed:
            for queue, count in planning.unread(cluster, at, unnamed).items():
                log.warning(
                    "%d messages of %s are not read: the topic has fewer queues now", count, planning.name_of(queue)
                )
        self._unnamed = unnamed
