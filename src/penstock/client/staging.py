"""Staged writes with plain blocking sockets: rows go to the brokers now and are shown to readers all at once, later.

A task stages under a random token (`Stager`); the driver of the job publishes the tokens it was told of, once for each
(sink, batch) (`StageClient.publish`). A batch over several brokers is decided at one of them, the sink's coordinator: its
PUBLISH names the tokens of all, and a later driver with the same batch finishes that decision instead of its own.
Which broker that is was said by the first run of the sink, and every broker that was there when a batch was decided knows.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from penstock.client.conversation import checked
from penstock.client.line import Line
from penstock.client.reader import LogReader
from penstock.client.routes import BROKER_PORT, MessageQueue, Route
from penstock.client.sending import QUEUES_PER_NEW_TOPIC, add_sequence, send_header
from penstock.errors import BrokerRefused, ClientError, ConnectionLost, NoRoute, NotTrusted, TimedOut, WireError
from penstock.security import Security
from penstock.wire.addresses import split_address
from penstock.wire.codes import DEFAULT_TOPIC, RequestCode, ResponseCode
from penstock.wire.remoting import RemotingCommand

__all__ = ["Known", "PlannedAnew", "Published", "Sealed", "Sender", "SinkRun", "StageClient", "StagedLost", "Stager"]

log = logging.getLogger(__name__)
T = TypeVar("T")
_PAUSE_S, _PAUSE_MAX_S = 0.05, 2.0
RUNS_MAX = 10_000  # that a process keeps what it heard of: one that lives for months writes any number of jobs
# Answers of a broker that restarts or has a full disk: a later try may succeed.
_PASSING = (ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.FLUSH_DISK_TIMEOUT)


class StagedLost(ClientError):
    """Rows that were staged are not there any more: the task, or the batch, must be done again."""


class PlannedAnew(ClientError):
    """A batch is published, and its query has planned one of the same number since, or has others published behind it: what is
    in it now is not written.
    """


@dataclass(frozen=True)
class SinkRun:
    """Who writes: `sink` is what batches are counted for, `query` what it belongs to, `run` this start of it.

    `reset` gives a sink that belongs to another query to this one. `once`: no other job will use this name. `decider`: the
    broker that decided when it was written to before, where somebody has kept that; nobody else does before it was asked.
    """

    sink: str
    query: str
    run: str
    reset: bool = False
    once: bool = False
    decider: str = ""

    def ext(self) -> dict[str, str]:
        """The fields that all calls carry."""
        flags = {name: "true" for name in ("reset", "once") if getattr(self, name)}
        return {"sink": self.sink, "query": self.query, "run": self.run, **flags}


@dataclass(frozen=True)
class Sealed:
    """What one attempt of one task has staged: rows by broker, under one token. `layout`: which brokers' queues of
    each topic it has dealt them out over."""

    token: str
    rows: int
    bytes: int
    brokers: tuple[str, ...]
    layout: dict[str, list[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Known:
    """What a broker knows of a sink: the batch published last, -1 for none; the broker that decides, empty before the
    first batch; the layout of the batches so far; when the batch published last was planned, if it was said; the run that
    writes to it, which older brokers do not tell."""

    batch: int
    coordinator: str
    layout: dict[str, list[str]]
    planned: int | None = None
    run: str = ""


@dataclass(frozen=True)
class Published:
    """A batch is visible. `already`: an earlier attempt had published (or decided) it, and its rows count."""

    already: bool
    rows: dict[str, int] = field(default_factory=dict)


class StageClient(LogReader):
    """The driver's side, and what tasks need to know of the cluster.

    Every call is tried again for `patience_s` seconds while a broker is away; then it raises what went wrong.
    """

    def __init__(
        self,
        registry: str = "127.0.0.1:9876",
        *,
        timeout_s: float = 30.0,
        patience_s: float = 120.0,
        security: Security | str | Path | None = None,
    ) -> None:
        super().__init__(registry, timeout_s=timeout_s, security=security)
        if not patience_s >= 0:  # none with nan, which would never end
            raise ValueError(f"patience_s is 0 or above, not {patience_s}")
        self.patience_s = patience_s
        self._masters: dict[str, str] = {}
        self._deciders: dict[tuple[str, ...], str] = {}
        self._told: dict[tuple[str, ...], str] = {}

    # -- the cluster

    def patiently(self, ask: Callable[[], T]) -> T:
        """What `ask` returns, asked again after errors that pass, until the patience ends."""
        deadline, pause = time.monotonic() + self.patience_s, _PAUSE_S
        while True:
            try:
                return ask()
            except ClientError as error:
                if not _passing(error) or time.monotonic() + pause > deadline:
                    raise
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)

    def masters(self, *, fresh: bool = False) -> dict[str, str]:
        """The brokers that take writes: name to address."""
        if fresh or not self._masters:
            self._masters = self.masters_now()
        if not self._masters:
            raise NoRoute("no broker is registered")
        return self._masters

    def queues_to_write(self, topic: str, least: Iterable[str] = ()) -> list[MessageQueue]:
        """The message queues that take messages of a topic; of a topic that does not exist those it will have.

        `least`: brokers that had some of them before. One that is away is waited for, because with fewer queues keys
        would go to others; one that does not come back is done without.
        """
        before = set(least)
        fresh = False

        def ask() -> list[MessageQueue]:
            nonlocal fresh
            route, asked, fresh = self._route_to_write(topic, fresh), fresh, True
            found = route.publish_queues()
            away = before - {queue.broker for queue in found}
            if asked and route.is_read_only and not before:  # one that this sink has written to is closed for a while
                return []
            if away or not found:
                raise NoRoute(
                    f"brokers of topic {topic!r} are away: {', '.join(sorted(away))}"
                    if away
                    else f"no broker takes messages for topic {topic!r}"
                )
            return found

        try:
            found = self.patiently(ask)
        except NoRoute as error:
            found = self._route_to_write(topic, True).publish_queues()
            if not found:
                raise
            log.warning("going on without it, keys change their queues: %s", error)
        if not found:
            raise NoRoute(f"no broker takes messages for topic {topic!r}: it is read-only")
        return found

    def _route_to_write(self, topic: str, fresh: bool) -> Route:
        try:
            return self._route(topic, fresh=fresh)
        except NoRoute:
            return self._route(DEFAULT_TOPIC, fresh=fresh).as_template_for(topic, QUEUES_PER_NEW_TOPIC)

    def address(self, broker: str, *, fresh: bool = False) -> tuple[str, int]:
        """Where a broker listens. NoRoute while it is away."""
        known = self._masters.get(broker)
        try:
            known = self.masters(fresh=fresh or known is None).get(broker)
        except (ConnectionLost, TimedOut):
            if known is None:
                raise  # else it may be where it was
        if known is None:
            raise NoRoute(f"broker {broker!r} is away")
        return split_address(known, BROKER_PORT)

    def ask_broker(self, broker: str, code: int, ext: dict[str, str], body: bytes = b"") -> RemotingCommand:
        """The answer of a broker, with patience. Staged calls may all be repeated."""
        fresh = False

        def once() -> RemotingCommand:
            nonlocal fresh
            address = self.address(broker, fresh=fresh)
            fresh = True
            return checked(self._call(address, RemotingCommand(code, dict(ext), body)))

        return self.patiently(once)

    # -- the sink

    def coordinator(self, run: SinkRun) -> str:
        """The broker that decides for the sink: the one that brokers know of, else one chosen by the sink's name."""
        found = self._deciders.get((run.sink, run.run))
        if found is None:
            known = self.patiently(lambda: self._newest(run, self.masters(fresh=True)))
            names = sorted(self.masters())
            found = names[crc32(run.sink.encode()) % len(names)] if known is None else known.coordinator
            _keep(self._deciders, (run.sink, run.run), found)
        return found

    def _newest(self, run: SinkRun, names: Collection[str]) -> Known | None:
        """What the broker that was told last knows of the sink; None: no broker does. One that does not answer is done without
        if another one knows, but not the one that `run` remembers.
        """
        every, silent = [], None
        if run.decider and run.decider not in names:
            raise _undecidable(run, run.decider)
        for name in sorted(names):
            try:
                every.append(_known(self._note(run, name)))
            except (ConnectionLost, TimedOut) as error:
                if name == run.decider:
                    raise
                silent = error
        # Brokers that were alone for a while may each know of another one that decides: the newest batch was decided last.
        # When it was planned is told to that one alone.
        newest = max(
            (known for known in every if known.coordinator),
            key=lambda known: (known.batch, known.planned is not None),
            default=None,
        )
        if newest is None and silent is not None:
            raise silent
        return newest

    def known(self, run: SinkRun, broker: str) -> Known:
        """What a broker knows of the sink. BrokerRefused when this run may not write."""
        return _known(self.ask_broker(broker, RequestCode.STAGE_OPEN, run.ext()))

    def demand_planned(self, run: SinkRun, batch: int, planned_ms: int) -> None:
        """PlannedAnew when the sink has a batch published that its query has planned again since; see `publish`."""
        known = self.known(run, self.coordinator(run))
        if known.batch >= batch:
            _demand_planned_before(run, batch, planned_ms, known)

    def _note(self, run: SinkRun, broker: str, coordinator: str = "") -> RemotingCommand:
        """What a broker answers now; with `coordinator` it notes the run."""
        ext = run.ext() | ({"coordinator": coordinator} if coordinator else {})
        return checked(self._call(self.address(broker), RemotingCommand(RequestCode.STAGE_OPEN, ext)))

    def _tell(self, run: SinkRun, coordinator: str, batch: int, planned_ms: int | None) -> None:
        """Let each broker that is there know who decides, before it does: it may be away when the next run asks.

        That ends the run before. PlannedAnew, and it goes on, when this one can only be that of an older checkpoint.

        Without that, rows which it alone had would be decided a second time by another one. StagedLost when one that was
        away knows better. Of a sink that has batches already, a broker that does not answer was told by a run before.
        """
        with contextlib.suppress(ConnectionLost, TimedOut):  # without a registry those that were there
            self.masters(fresh=True)
        untold = {(run.sink, run.run, name) for name in self.masters()} - self._told.keys()
        newest = self._newest(run, self.masters()) if untold else None
        if newest is not None and newest.coordinator != coordinator:
            raise _others_came(run, newest.coordinator, coordinator)
        if newest is not None and newest.batch >= batch:
            _demand_planned_before(run, batch, planned_ms, newest)
            # A query that starts again repeats its newest batch at most; a task of the run that goes on may come late. Batches
            # that were published without saying when they were planned are believed to be those of whoever says it now.
            told = newest.planned is not None if planned_ms is not None else newest.run not in ("", run.run)
            if newest.batch > batch and told:
                raise _older(run, f"batch {batch} of sink {run.sink} is published, and newer ones are", newest.batch)
        for about in sorted(untold):
            try:
                self._note(run, about[2], coordinator)
            except (ConnectionLost, TimedOut) as error:
                if newest is None or newest.batch < 0:
                    raise
                log.warning("broker %s was not told who decides for sink %s: %s", about[2], run.sink, error)
            _keep(self._told, about, coordinator)

    def publish(self, run: SinkRun, batch: int, sealed: Iterable[Sealed], planned_ms: int | None = None) -> Published:
        """Let readers see the rows of these tokens, in this order; of a batch that was decided before, those of then.

        `planned_ms`: when the query planned this batch, by its own clock. PlannedAnew when that was after the newest batch of
        the sink was planned, and this one is published: then it cannot be a repetition.
        """
        parts = list(sealed)
        coordinator = self.coordinator(run)
        if not run.once:
            self.patiently(lambda: self._tell(run, coordinator, batch, planned_ms))
        tokens: dict[str, list[str]] = {}
        for part in parts:
            for broker in part.brokers:
                tokens.setdefault(broker, []).append(part.token)
        alone = set(tokens) <= {coordinator}
        ext = {**run.ext(), "coordinator": coordinator, "batch": str(batch)}
        body: dict[str, Any] = {"tokens": tokens.get(coordinator, [])} | ({} if alone else {"brokers": tokens})
        layout = {topic: sorted(names) for topic, names in _layout(parts).items()}
        if layout and not run.once:
            body["layout"] = layout
        if planned_ms is not None:
            body["planned"] = planned_ms
        answer = self.ask_broker(coordinator, RequestCode.STAGE_PUBLISH, ext, json.dumps(body).encode())
        told = json.loads(answer.body or b"{}")
        already = answer.ext.get("already") == "true"
        rows = {coordinator: int(told.get("rows", 0))}
        decided: dict[str, list[str]] = told.get("brokers") or {}
        for broker in sorted(set(decided) - {coordinator}):
            part_body = json.dumps({"tokens": decided[broker]}).encode()
            part_told = self.ask_broker(broker, RequestCode.STAGE_PUBLISH, ext, part_body)
            rows[broker] = int(json.loads(part_told.body or b"{}").get("rows", 0))
        if already:
            self.drop(run, [part for part in parts if not _in(part, decided)])
            if planned_ms is not None and planned_ms > told.get("planned", planned_ms):
                raise _planned_anew(run, batch, int(answer.ext["batch"]))
        return Published(already, rows)

    def drop(self, run: SinkRun, sealed: Iterable[Sealed]) -> None:
        """Forget staged rows; best effort, the brokers clean up by rule."""
        tokens: dict[str, list[str]] = {}
        for part in sealed:
            for broker in part.brokers:
                tokens.setdefault(broker, []).append(part.token)
        for broker, named in tokens.items():
            self._drop(run, broker, named)

    def undecided(self, run: SinkRun, batch: int) -> bool:
        """Whether it is certain that the batch is not published: only then may its rows be dropped.

        Of one that is decided the rows at other brokers may still wait for their PUBLISH, and the next run finishes it.
        """
        deciders, heard = set(), set()
        try:
            brokers = list(self.masters(fresh=True))
        except (ClientError, WireError):
            return False
        for broker in brokers:
            with contextlib.suppress(ConnectionLost, TimedOut, NoRoute):
                try:
                    answer = checked(
                        self._call(self.address(broker), RemotingCommand(RequestCode.STAGE_OPEN, run.ext()))
                    )
                except BrokerRefused:  # another run goes on with it, or what was published is not lasting yet
                    return False
                if int(answer.ext["batch"]) >= batch:
                    return False
                deciders.add(answer.ext["coordinator"])
                heard.add(broker)
        return deciders - {""} <= heard

    def drop_all(self, run: SinkRun) -> None:
        """Forget whatever is staged for the sink, at every broker; best effort as well."""
        try:
            brokers = list(self.masters())
        except (ClientError, WireError):
            return
        for broker in brokers:
            self._drop(run, broker, [])

    def _drop(self, run: SinkRun, broker: str, tokens: list[str]) -> None:
        body = json.dumps({"tokens": tokens}).encode()
        with contextlib.suppress(ClientError, WireError):
            self._call(
                self.address(broker),
                RemotingCommand(RequestCode.STAGE_DROP, {"sink": run.sink, "run": run.run}, body),
            )


def _keep(known: dict[tuple[str, ...], str], key: tuple[str, ...], value: str) -> None:
    """Note it, in the place of the oldest where there are RUNS_MAX: who is asked for that again asks the brokers again."""
    while len(known) >= RUNS_MAX:
        del known[next(iter(known))]
    known[key] = value


def _layout(parts: Iterable[Sealed]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for part in parts:
        for topic, names in part.layout.items():
            found.setdefault(topic, set()).update(names)
    return found


def _known(answer: RemotingCommand) -> Known:
    told, ext = json.loads(answer.body or b"{}"), answer.ext
    layout, planned = told.get("layout") or {}, told.get("planned")
    return Known(int(ext["batch"]), ext["coordinator"], layout, planned, told.get("run", ""))


def _others_came(run: SinkRun, found: str, asked: str) -> StagedLost:
    return StagedLost(f"brokers came or went: {found} decides for sink {run.sink}, not {asked}; start the job again")


def _undecidable(run: SinkRun, broker: str) -> NoRoute:
    return NoRoute(
        f"broker {broker} decides for sink {run.sink} and is away: start it again. Without it nobody knows which batches are "
        "written already; if it is gone for good, begin anew with another sinkId, jobId or checkpoint"
    )


def _demand_planned_before(run: SinkRun, batch: int, planned_ms: int | None, known: Known) -> None:
    """Of a batch that is published: PlannedAnew when its query has planned it since."""
    if planned_ms is not None and known.planned is not None and planned_ms > known.planned:
        raise _planned_anew(run, batch, known.batch)


def _planned_anew(run: SinkRun, batch: int, last: int) -> PlannedAnew:
    return _older(run, f"batch {batch} of sink {run.sink} was published before the query planned it", last)


def _older(run: SinkRun, what: str, last: int) -> PlannedAnew:
    return PlannedAnew(
        f"{what}: its checkpoint is older than what it has written, up to batch {last}. The rows of this batch are not "
        "written. Put the newer checkpoint back; or let the query write as another sink (sinkId), where what it wrote since "
        "comes a second time"
    )


def _in(part: Sealed, decided: dict[str, list[str]]) -> bool:
    return any(part.token in decided.get(broker, ()) for broker in part.brokers)


def _passing(error: ClientError) -> bool:
    if isinstance(error, BrokerRefused):
        return error.code in _PASSING or error.of_slave
    return isinstance(error, ConnectionLost | TimedOut | NoRoute) and not isinstance(error, NotTrusted)


@dataclass
class _BrokerPart:
    """One broker's part of a token."""

    broker: str
    pipe: Line | None = None
    number: int = 0
    rows: int = 0
    size: int = 0
    sums: int = 0
    unanswered: deque[tuple[int, bytes]] = field(default_factory=deque)
    posted: int = 0
    over: bool = False  # the batch is published there already
    moved: bool = False  # perhaps: the last connection was lost, and another node may be the master by now

    def add(self, chunk: bytes, rows: int) -> None:
        """One chunk more is to be sent."""
        self.number += 1
        self.rows += rows
        self.size += len(chunk)
        self.sums = crc32(crc32(chunk).to_bytes(4, "big"), self.sums)
        self.unanswered.append((self.number, chunk))

    def connect(self, pipe: Line) -> Line:
        """A new connection, until `disconnect`."""
        self.pipe, self.moved = pipe, False
        return pipe

    def disconnect(self) -> None:
        """Let the connection go; what is unanswered is sent again on the next one."""
        self.moved = True
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None

    def sent_up_to(self, number: int) -> None:
        """Chunks up to this one went out on the connection, or are there."""
        self.posted = number

    def acknowledged(self, number: int) -> None:
        """The broker has the chunks up to this one."""
        while self.unanswered and self.unanswered[0][0] <= number:
            self.unanswered.popleft()

    def end(self) -> None:
        """Nothing more is sent: the batch is published there already."""
        self.over = True
        self.unanswered.clear()


class Stager:
    """One attempt of one task. Chunks are sent ahead, `inflight` of them; after a lost connection the rest goes again."""

    def __init__(
        self, client: StageClient, run: SinkRun, batch: int, *, inflight: int = 8, level: str = "disk"
    ) -> None:
        self.client = client
        self.run = run
        self.batch = batch
        self.token = uuid.uuid4().hex
        self.coordinator = client.coordinator(run)
        self._inflight = max(1, inflight)
        self._level = level
        self._parts: dict[str, _BrokerPart] = {}
        self.layout: dict[str, list[str]] = {}

    def over(self) -> bool:
        """Whether the batch was published, or decided, before: then nothing needs to be staged. Learns the layout."""
        try:
            known = self.client.known(self.run, self.coordinator)
        except NoRoute as error:
            raise _undecidable(self.run, self.coordinator) from error
        self.layout = known.layout
        return known.batch >= self.batch

    def add(self, broker: str, chunk: bytes, rows: int) -> None:
        """Stage a chunk of pieces (see `wire.staged`) at a broker."""
        part = self._parts.get(broker)
        if part is None:
            part = self._parts[broker] = _BrokerPart(broker)
        if part.over:
            return
        part.add(chunk, rows)
        self._settle(part, self._inflight)

    def _settle(self, part: _BrokerPart, most: int) -> None:
        """Send what is to be sent and take answers until at most `most` chunks are unanswered."""

        def work() -> None:
            try:
                if part.pipe is None:
                    self._open(part)
                assert part.pipe is not None
                for number, chunk in list(part.unanswered):
                    if number > part.posted:
                        part.pipe.ask(self._append(number, chunk), self.client._timeout_s)
                        part.sent_up_to(number)
                while len(part.unanswered) > most:
                    self._taken(part, part.pipe.next_answer(self.client._timeout_s))
            except (ConnectionLost, TimedOut, BrokerRefused):
                part.disconnect()
                raise

        if not part.over:
            self.client.patiently(work)

    def _append(self, number: int, chunk: bytes) -> RemotingCommand:
        return RemotingCommand(RequestCode.STAGE_APPEND, {"token": self.token, "number": str(number)}, chunk)

    def _taken(self, part: _BrokerPart, answer: RemotingCommand) -> None:
        if answer.code != ResponseCode.SUCCESS:
            raise _refused(answer)
        part.acknowledged(int(answer.ext["number"]))

    def _open(self, part: _BrokerPart) -> None:
        """Connect, and find out which chunks the broker has."""
        pipe = part.connect(self.client.line(self.client.address(part.broker, fresh=part.moved)))
        ext = {
            **self.run.ext(), "token": self.token, "batch": str(self.batch), "coordinator": self.coordinator,
        }  # fmt: skip
        answer = pipe.call(RemotingCommand(RequestCode.STAGE_OPEN, ext), self.client._timeout_s)
        if answer.code != ResponseCode.SUCCESS:
            raise _refused(answer)
        if answer.ext["coordinator"] != self.coordinator:
            raise _others_came(self.run, answer.ext["coordinator"], self.coordinator)
        has = int(answer.ext["number"])
        if has < 0:
            part.end()
            return
        part.acknowledged(has)
        if part.number > has and (not part.unanswered or part.unanswered[0][0] != has + 1):
            raise StagedLost(f"broker {part.broker} has {has} chunks of {self.token}, it had acknowledged more")
        part.sent_up_to(has)

    def seal(self) -> Sealed:
        """No more rows come: all of them are on the brokers' disks when this returns."""
        for part in self._parts.values():
            self._settle(part, 0)
        for part in self._parts.values():
            if not part.over:
                self.client.patiently(lambda part=part: self._seal(part))  # type: ignore[misc]
            part.disconnect()
        parts = [part for part in self._parts.values() if not part.over]
        return Sealed(
            self.token, sum(part.rows for part in parts), sum(part.size for part in parts),
            tuple(part.broker for part in parts),
        )  # fmt: skip

    def _seal(self, part: _BrokerPart) -> None:
        # The coordinator flushes its own rows before it decides; of what others have not flushed it knows nothing.
        level = self._level if part.broker == self.coordinator else "disk"
        ext = {
            "token": self.token, "rows": str(part.rows), "bytes": str(part.size), "sums": str(part.sums),
            "level": level,
        }  # fmt: skip
        try:
            if part.pipe is None:
                self._open(part)
                if part.over:
                    return
            assert part.pipe is not None
            answer = part.pipe.call(RemotingCommand(RequestCode.STAGE_SEAL, ext), self.client._timeout_s)
            if answer.code != ResponseCode.SUCCESS:
                raise _refused(answer)
        except (ConnectionLost, TimedOut, BrokerRefused):
            part.disconnect()
            raise

    def abandon(self) -> None:
        """The attempt has failed: let the brokers forget its rows, if they can be reached."""
        self.close()
        self.client.drop(self.run, [Sealed(self.token, 0, 0, tuple(self._parts))])

    def close(self) -> None:
        """Let go of the connections; what is not sealed expires at the brokers."""
        for part in self._parts.values():
            part.disconnect()


class Sender:
    """Plain sends of one attempt of one task: visible at once, each stored once, all of them again if the task is."""

    def __init__(self, client: StageClient, group: str) -> None:
        self._client = client
        self._group = group
        self._numbers: dict[MessageQueue, tuple[str, int]] = {}
        self.rows = 0

    def send(self, queue: MessageQueue, messages: bytes, rows: int, sys_flag: int) -> None:
        """Store messages as one batch; returns when they are stored at the topic's level."""
        producer, number = self._numbers.get(queue, (os.urandom(8).hex(), 0))
        self._numbers[queue] = producer, number + 1
        ext = send_header(self._group, queue, sys_flag, time.time_ns() // 1_000_000, 0, "") | {"m": "true"}
        command = RemotingCommand(RequestCode.SEND_BATCH_MESSAGE, ext, messages)
        add_sequence(command, producer, number + 1, rows)
        self._client.ask_broker(queue.broker, command.code, command.ext, messages)
        self.rows += rows


def _refused(answer: RemotingCommand) -> ClientError:
    if answer.code == ResponseCode.STAGE_LOST:
        return StagedLost(answer.remark or "")
    return BrokerRefused(answer.code, answer.remark or "")
