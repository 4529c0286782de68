"""`penstock tail | sub | export`: messages of topics of both kinds, as they come, or all there are.

A log topic is read without a group, or as a member of one; a queue topic through a channel: a given one, or one of our
own that is gone with us. `export` reads without taking.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, Literal, TypedDict, Unpack

import click

import penstock
from penstock.cli.messages import row_of
from penstock.cli.rows import BadRow, Row, body_fields, row_of_browsed
from penstock.cli.rows import row_of as whole_row
from penstock.cli.sending import check_topic
from penstock.cli.tools import PARTLY, NamedPath, looking, opened, position, printable, with_json, with_registry
from penstock.client.browsed import PIECE_BYTES, WentAway, browsed
from penstock.client.routes import MessageQueue
from penstock.client.subscriptions import selector_of
from penstock.errors import ConnectionLost, NotEverywhere, NotFound, PenstockError, TimedOut
from penstock.message import ReceivedMessage
from penstock.wire.names import EPHEMERAL

IDLE_S = 2.0  # without a message a group or channel is at its end

Messages = Generator[ReceivedMessage, None, None]
Print = Callable[[ReceivedMessage], None]


class Given(TypedDict):
    """What is read, how, and how it is shown."""

    where: str | None
    tags: str
    start: str
    group: str | None
    channel: str | None
    new: bool
    form: str | None


class Exporting(TypedDict):
    """What is written, and for whom."""

    start: str
    channel: str
    target: str | None
    data: str
    logs: bool


@click.command()
@with_registry
@with_json
@click.argument("topic")
@click.option(
    "--where", metavar="EXPR", help="Only messages for whose properties this is true: price > 9 AND city <> 'Rome'."
)
@click.option("--tags", default="*", metavar="A||B", help="Only messages with one of these tags.")
@click.option(
    "--from", "start", default="last", show_default=True,
    help="first, last, an offset, -1h, or a moment: 2026-11-20T10:00:00+00:00.",
)  # fmt: skip
@click.option("-l", "--limit", "--count", type=click.IntRange(1), help="Stop after so many.")
@click.option("--follow/--no-follow", default=True, help="Wait for what comes, or stop where the topic ends now.")
@click.option("-g", "--group", help="As a member of this consumer group: what is shown counts as consumed.")
@click.option("-c", "--channel", help="Of a queue topic, through this channel: what is shown counts as finished.")
@click.option("--new", is_flag=True, help="Make the group or channel where there is none.")
@click.option("--format", "form", metavar="TEXT", help="As kcat: %t topic, %p queue, %o offset, %k keys, %s body, …")
def tail(registry: str, as_json: bool, topic: str, limit: int | None, follow: bool, **given: Unpack[Given]) -> None:
    """The messages of a topic as they come, a line each, until Ctrl-C: of a log topic without a group unless one is
    given, of a queue topic through a channel of its own unless one is given.

    --format knows %t topic, %p queue, %o offset, %i id, %T store time in ms, %g tag, %k keys, %h properties, %S size of
    the body, %s body, %%, \\n, \\t.
    """
    where, tags, start, form = given["where"], given["tags"], given["start"], given["form"]
    group, channel, new = given["group"], given["channel"], given["new"]
    if form is not None and as_json:
        raise click.UsageError("give --format or --json")
    if group and channel:
        raise click.UsageError("give --group or --channel")
    tell = _printer(as_json, form)
    kind = check_topic(registry, topic, reads=True)
    missed: dict[str, PenstockError] = {}
    reader: Messages
    if kind == "queue":
        if start != "last" or where or tags != "*":
            raise click.UsageError(f"{topic} is a queue topic: --from, --where and --tags are for log topics")
        reader = _through_channel(registry, topic, channel or group, new, follow, limit, missed)
    elif channel:
        raise click.UsageError(f"{topic} is a log topic: give --group, or read the channel with an NSQ client")
    elif group:
        if start not in ("first", "last"):
            raise click.UsageError("a group begins at first or last; `penstock group reset` moves it")
        reader = _in_group(
            registry, topic, group, new, follow, limit, (tags, where, "first" if start == "first" else "last"), missed
        )
    else:
        reader = _alone(registry, topic, (tags, where, start), follow, limit, missed)
    with suppress(KeyboardInterrupt, BrokenPipeError):  # it may come at any moment
        try:
            for found in reader:
                tell(found)
        finally:
            reader.close()
        if missed:
            raise NotEverywhere(missed, PARTLY)


# -- readers -----------------------------------------------------------------------------------------------------------


def _alone(
    registry: str, topic: str, chosen: tuple[str, str | None, str], follow: bool, limit: int | None,
    missed: dict[str, PenstockError] | None = None,
) -> Messages:  # fmt: skip
    """A log topic, without a group. Where `missed` is given, that of brokers that answer, and those that do not are put there."""
    tags, where, text = chosen
    offset = int(text) if text.isascii() and text.isdigit() else None
    goal = "first" if offset is not None else position(text, "--from")
    with penstock.PullConsumer(registry) as consumer:
        away: dict[str, PenstockError] = {}
        for queue in consumer.queues(topic):
            if queue.broker in away:
                continue
            try:
                consumer.assign(topic, tags=tags, where=where, start=goal, queues=[queue])
                if offset is not None:
                    low, high = consumer.offsets(queue)
                    consumer.seek(queue, min(max(low, offset), high))
            except (ConnectionLost, TimedOut) as error:
                if missed is None:
                    raise
                away[queue.broker] = error
        if missed is not None:
            _leave_out(consumer, away)
            _miss(away, missed, follow)
        yield from islice(_coming(consumer, follow), limit)


def _leave_out(consumer: penstock.PullConsumer, away: dict[str, PenstockError]) -> None:
    """Read nothing of these brokers. The error of the first, with its name, where there are no others."""
    if lost := [queue for queue in consumer.assignment if queue.broker in away]:
        consumer.unassign(*lost)
    if away and not consumer.assignment:
        name, error = next(iter(away.items()))
        raise type(error)(f"broker {name}: {error}") from error.__cause__


def _miss(away: Mapping[str, PenstockError], missed: dict[str, PenstockError], follow: bool) -> None:
    """These brokers do not answer: it is said at the end, and at once where there is none."""
    missed |= away
    if follow:
        for name, error in away.items():
            click.echo(f"penstock: not at broker {name}: {printable(str(error))}", err=True)


def _coming(consumer: penstock.PullConsumer, follow: bool) -> Iterator[ReceivedMessage]:
    """What is read, by store time as far as it came together; without `follow` up to where the queues end now."""
    ends = {} if follow else {queue: consumer.offsets(queue)[1] for queue in consumer.assignment}
    while True:
        _leave(consumer, ends)
        if not consumer.assignment:
            return
        batch = consumer.getmany(0.2 if ends else 1.0)
        rows = [m for queue, messages in batch.items() for m in messages if m.queue_offset < _end(ends, queue)]
        yield from sorted(rows, key=lambda found: (found.store_ms, found.queue_id, found.queue_offset))


def _end(ends: dict[MessageQueue, int], queue: MessageQueue) -> int:
    return ends.get(queue, 1 << 63)


def _leave(consumer: penstock.PullConsumer, ends: dict[MessageQueue, int]) -> None:
    """Read no longer what has come to its end."""
    done = [queue for queue, end in ends.items() if queue in consumer.assignment and consumer.position(queue) >= end]
    if done:
        consumer.unassign(*done)


def _in_group(
    registry: str, topic: str, group: str, new: bool, follow: bool, limit: int | None,
    chosen: tuple[str, str | None, Literal["first", "last"]], missed: dict[str, PenstockError],
) -> Messages:  # fmt: skip
    """A log topic, as a member of a group."""
    tags, where, start = chosen
    if where is not None:
        selector_of(where)
    if not new:
        with looking(registry, missed) as admin:
            admin.check_group(group)
        _miss(dict(missed), missed, follow)
    consumer = penstock.PushConsumer(group, registry, start=start, window_count=min(limit or 100, 100))
    consumer.subscribe(topic, tags, where=where)
    return _taken(consumer, follow, limit)


def _through_channel(
    registry: str, topic: str, channel: str | None, new: bool, follow: bool, limit: int | None,
    missed: dict[str, PenstockError],
) -> Messages:  # fmt: skip
    """A queue topic, through a channel."""
    if channel is None:
        _check_spares(registry, topic, missed)
        channel = f"tail{secrets.randbelow(1_000_000):06d}{EPHEMERAL[0].decode()}"
    elif not new:
        check_channel(registry, topic, channel, missed)
    _miss(dict(missed), missed, follow)
    consumer = penstock.PushConsumer(channel, registry, kind="queue", in_flight_max=min(limit or 100, 100))
    consumer.subscribe(topic)
    return _taken(consumer, follow, limit)


def _check_spares(registry: str, topic: str, missed: dict[str, PenstockError]) -> None:
    """NotFound where a topic has no channel, and holds messages: they wait for the first one, and would go with ours."""
    with looking(registry, missed) as admin:
        if any(row["channels"] for row in admin.queue_topics(topic)):
            return
        if admin.missed:  # it may hold some
            raise NotFound(f"topic {topic!r} has no channel")
        if any(admin.browse(topic, state=state, limit=1) for state in ("ready", "deferred")):
            hint = f"`penstock peek {topic}` shows them; --channel NAME --new takes them, and keeps what is not shown."
            raise NotFound(f"topic {topic!r} has no channel yet, and its messages wait for the first one", hint)


def check_channel(registry: str, topic: str, channel: str, missed: dict[str, PenstockError] | None = None) -> None:
    """NotFound when a topic has no such channel. Where `missed` is given, one broker that has it is enough."""
    with penstock.Admin(registry) if missed is None else looking(registry, missed) as admin:
        known = {one["channel"] for row in admin.queue_topics(topic) for one in row["channels"]}
        if channel not in known:
            hint = f"`penstock channel ls {topic}` lists them; --new of `penstock tail` makes one."
            raise NotFound(f"topic {topic!r} has no channel {channel!r}", hint)


def _taken(consumer: penstock.PushConsumer, follow: bool, limit: int | None) -> Messages:
    """What the consumer is given: it counts as done once it is printed. What is not printed goes back."""
    timer: threading.Timer | None = None

    def wait() -> None:
        nonlocal timer
        if timer is not None:
            timer.cancel()
        if not follow:
            timer = threading.Timer(IDLE_S, consumer.close)
            timer.daemon = True
            timer.start()

    try:
        with consumer:
            wait()
            for count, delivery in enumerate(consumer, 1):
                wait()
                yield delivery.message
                delivery.ack()
                if count == limit:
                    return
    finally:
        if timer is not None:
            timer.cancel()


# -- printing ----------------------------------------------------------------------------------------------------------


def _printer(as_json: bool, form: str | None) -> Print:
    if form is not None:
        pieces = pieces_of(form)
        return lambda message: _write(
            b"".join(piece if isinstance(piece, bytes) else piece(message) for piece in pieces)
        )
    if as_json:
        return lambda message: click.echo(json.dumps(_json_row(message), ensure_ascii=False))
    return lambda message: click.echo(_line(message))


def _json_row(message: ReceivedMessage) -> Row:
    return row_of(message) | body_fields(message.body)


def _line(message: ReceivedMessage) -> str:
    row = row_of(message)
    about = [str(row[name]) for name in ("tags", "keys") if row[name]]
    place = message.nsq_id or f"{row['queue']}/{row['offset']}"
    return printable("  ".join([f"{row['stored']} {place}", *about, str(row["body"])]))


def _write(data: bytes) -> None:
    """To a pipe as it is; to a terminal so that it does nothing to it."""
    if sys.stdout.isatty():
        text = data.decode("utf-8", "backslashreplace")
        click.echo("\n".join("\t".join(map(printable, line.split("\t"))) for line in text.split("\n")), nl=False)
    else:
        click.echo(data, nl=False)


_FORMATS: dict[str, Callable[[ReceivedMessage], object]] = {
    "t": lambda m: m.topic, "p": lambda m: m.queue_id, "o": lambda m: m.queue_offset, "i": lambda m: m.msg_id,
    "T": lambda m: m.store_ms, "g": lambda m: m.tags or "", "k": lambda m: " ".join(m.keys), "S": lambda m: len(m.body),
    "h": lambda m: json.dumps(dict(m.properties), ensure_ascii=False), "s": lambda m: m.body, "%": lambda m: "%",
}  # fmt: skip
_ESCAPES = {"\\n": b"\n", "\\t": b"\t", "\\\\": b"\\"}


def pieces_of(form: str) -> list[bytes | Callable[[ReceivedMessage], bytes]]:
    """A format string, taken apart. BadParameter for a letter that means nothing."""
    pieces: list[bytes | Callable[[ReceivedMessage], bytes]] = []
    for word in re.findall(r"%.?|\\.?|[^%\\]+", form, re.DOTALL):
        if word[0] == "%":
            if word[1:] not in _FORMATS:
                known = " ".join(f"%{letter}" for letter in _FORMATS)
                raise click.BadParameter(f"{word!r} means nothing; known are {known}", param_hint="--format")
            pieces.append(_piece(_FORMATS[word[1:]]))
        else:
            pieces.append(_ESCAPES.get(word, word.encode()))
    return pieces


def _piece(get: Callable[[ReceivedMessage], object]) -> Callable[[ReceivedMessage], bytes]:
    def piece(message: ReceivedMessage) -> bytes:
        value: Any = get(message)
        return value if isinstance(value, bytes) else str(value).encode()

    return piece


# -- export ------------------------------------------------------------------------------------------------------------


@click.command()
@with_registry
@with_json
@click.argument("topic", metavar="TOPIC|FOLDER")
@click.argument("file", type=NamedPath(dir_okay=False, allow_dash=True), default="-")
@click.option(
    "--from", "start", default="first", show_default=True, help="Of a log topic: first, an offset, -1h, or a moment."
)
@click.option("-c", "--channel", default="", help="Of a queue topic: what this channel has not finished.")
@click.option("-l", "--limit", type=click.IntRange(1), help="At most so many.")
@click.option("-f", "--force", is_flag=True, help="Write over a file that is there.")
@click.option(
    "--to", "target", type=click.Choice(["nsqd"]), help="Write a data folder for nsqd, from that of a stopped broker."
)
@click.option("--data", default="penstock-data", show_default=True, help="With --to: the broker's data folder.")
@click.option("--logs", is_flag=True, help="With --to: log topics that have no channel, too.")
def export(
    registry: str, as_json: bool, topic: str, file: str, limit: int | None, force: bool, **given: Unpack[Exporting]
) -> None:
    """Write the messages of TOPIC to FILE (-: standard output) as JSON lines; none is taken away.

    Of a log topic all that are stored, of a queue topic what some channel, or the one given, has not finished, and what
    is deferred. `penstock import` sends them again.

    With --to nsqd the argument is a folder that is not there yet: nsqd starts on it with every topic, channel, pause and
    message. The broker must be stopped; its folder stays as it is.
    """
    start, channel = given["start"], given["channel"]
    if given["target"] is not None:
        from penstock.cli.tonsqd import write

        write(given["data"], topic, given["logs"], as_json)
        return
    kind = check_topic(registry, topic, reads=True)
    if kind == "log":
        if channel:
            raise click.UsageError(f"{topic} is a log topic: --channel is for queue topics")
        rows: Iterator[Row] = map(whole_row, _alone(registry, topic, ("*", None, start), False, limit))
    else:
        if start != "first":
            raise click.UsageError(f"{topic} is a queue topic: --from is for log topics")
        if channel:
            check_channel(registry, topic, channel)
        rows = _browsed(registry, topic, channel)
    count = 0
    with opened(file, force) as out:
        try:
            for row in rows:
                out.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
                count += 1
                if count == limit:
                    break
        except (BadRow, WentAway) as error:
            raise click.ClickException(f"{error}; {count} are written to {out.name}") from None
    if file != "-":
        click.echo(
            json.dumps({"topic": topic, "file": file, "count": count}) if as_json else f"{count} written to {file}"
        )
    elif not count and not as_json:
        click.echo("nothing", err=True)


def _browsed(registry: str, topic: str, channel: str) -> Iterator[Row]:
    with penstock.Admin(registry) as admin:
        for state in ("in-flight", "ready", "deferred") if channel else ("ready", "deferred"):
            for broker in admin.brokers():
                pages = partial(_page, admin, broker, (topic, channel, state))
                yield from map(row_of_browsed, browsed(pages))


def _page(
    admin: penstock.Admin, broker: str, of: tuple[str, str, str], after: str, body_from: int = 0
) -> tuple[list[Row], str | None]:
    topic, channel, state = of
    return admin.browse_page(
        broker, after, topic=topic, channel=channel, state=state, body_bytes=PIECE_BYTES, body_from=body_from
    )
