"""The runs of a sink: which driver may go on (fencing). A run that is new ends those before it."""

from __future__ import annotations

import json
import re
from collections import deque
from typing import NamedTuple

from penstock.broker.sending import Sending
from penstock.broker.sinks import Note, Sink, Sinks
from penstock.errors import Refused
from penstock.wire.codes import ResponseCode
from penstock.wire.names import SINK_NAME, SINK_NAME_MAX, SINK_TOPIC

GIVEN_UP_MAX = 1_000
_NAME = re.compile(SINK_NAME)


class Run(NamedTuple):
    """Who writes: `reset` gives the sink to another query, `once` is a job that nobody can name again."""

    sink: str
    query: str
    run: str
    coordinator: str
    reset: bool = False
    once: bool = False


class Runs:
    """See the module."""

    def __init__(self, sinks: Sinks, sending: Sending) -> None:
        self._sinks = sinks
        self._sending = sending
        self._given_up: deque[tuple[str, str]] = deque(maxlen=GIVEN_UP_MAX)

    def note(self, about: Note) -> int:
        """Write a record of the sinks' topic: what happened to a sink. Its position; Refused."""
        body = json.dumps(about, separators=(",", ":")).encode()
        return self._sending.put_own(SINK_TOPIC, body, {}).physical

    def ask(self, sink: str, query: str, run: str, reset: bool) -> Sink | None:
        """What is known of a sink, for a run that may write to it. Refused when it may not."""
        self.demand_current(sink, run)
        known = self._sinks.by_name.get(sink)
        if known is None or known.run == run:
            return known
        if known.query != query:
            if not reset:
                raise Refused(
                    f"sink {sink} belongs to query {known.query} and has its batches up to {known.last}; this is {query}. "
                    "sinkReset=true gives it to the new query, another sinkId makes another sink",
                    remoting=ResponseCode.STAGE_OTHER_QUERY,
                )
            return None
        return known

    def demand_current(self, sink: str, run: str) -> None:
        """Refused, when a newer run writes to the sink, or this one was given up."""
        if (sink, run) in self._given_up:
            raise Refused(f"run {run} of sink {sink} is over: it was given up", remoting=ResponseCode.STAGE_STALE)
        known = self._sinks.by_name.get(sink)
        if known is not None and run in known.stale:
            raise Refused(
                f"run {run} of sink {sink} is over: a newer one writes to it", remoting=ResponseCode.STAGE_STALE
            )

    def give_up(self, sink: str, run: str) -> None:
        """This run is over. A task of it that has not noticed would end the next one if it came later, as a run that is new. It
        has some seconds to come, so nobody needs to know longer than this broker runs.
        """
        self._given_up.append((sink, run))

    def register(self, run: Run) -> bool:
        """As `ask`; a run that is new is written down. True when the sink belonged to another query until now."""
        for name in (run.sink, run.query, run.run):
            if len(name) > SINK_NAME_MAX or not _NAME.fullmatch(name):
                raise Refused(f"sinks, queries and runs have names of 1 to {SINK_NAME_MAX} printable characters")
        known = self.ask(run.sink, run.query, run.run, run.reset)
        if known is not None and known.run == run.run:
            return False
        if not run.coordinator:
            raise Refused("a new run names the broker that decides")
        before = run.sink in self._sinks.by_name
        about: Note = {"k": "run", "sink": run.sink, "query": run.query, "run": run.run, "coordinator": run.coordinator}
        if known is None:
            about["reset"] = True
        if run.once:
            about["once"] = True
        self.note(about)
        return known is None and before
