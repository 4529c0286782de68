"""`penstock send | import`: messages from arguments, standard input and JSON lines."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Literal, TypedDict, Unpack

import click
from msgspec import structs

import penstock
from penstock.cli.rows import BadRow, Row, message_of, parse_row
from penstock.cli.tools import due_ms, printable, with_json, with_registry
from penstock.client.routes import MessageQueue
from penstock.client.sending import check
from penstock.errors import BrokerRefused, NoRoute, NotFound
from penstock.message import Message

BATCH_BYTES_MAX = 256 << 10
BATCH_MAX = 1_000
FILE_BATCH = 100  # lines of a file are there already: nobody waits for one of them


class Given(TypedDict):
    """What `send` is told of all its messages."""

    keys: tuple[str, ...]
    tag: str | None
    properties: tuple[str, ...]
    sharding_key: str | None
    delay: str | None
    moment: str | None
    file: IO[bytes] | None
    jsonl: bool
    batch: int | None
    new: bool
    kind: Literal["log", "queue"] | None


@click.command()
@with_registry
@with_json
@click.argument("topic")
@click.argument("bodies", nargs=-1)
@click.option("--key", "keys", multiple=True, help="A key to find it by; may be repeated.")
@click.option("--tag", help="The tag subscriptions filter by.")
@click.option("--property", "properties", multiple=True, metavar="NAME=VALUE", help="A property; may be repeated.")
@click.option("--sharding-key", help="Messages with an equal one go to the same message queue, in order.")
@click.option("--delay", metavar="TIME", help="Deliver after 10s, 5m, 1h30m, 500ms.")
@click.option("--at", "moment", metavar="MOMENT", help="Deliver at 2026-11-20T10:00:00+00:00.")
@click.option("--file", type=click.File("rb"), help="Read lines from a file; -: standard input, as without BODIES.")
@click.option("--jsonl", is_flag=True, help="Each line is a JSON object: body or bodyBase64, keys, tags, properties, …")
@click.option(
    "--batch", type=click.IntRange(1, BATCH_MAX), help="So many at once: all or none. As it is, up to 100 of a file."
)
@click.option("--new", is_flag=True, help="Make the topic where there is none.")
@click.option("--kind", type=click.Choice(["log", "queue"]), help="The same, and what it becomes.")
def send(registry: str, as_json: bool, topic: str, bodies: tuple[str, ...], **given: Unpack[Given]) -> None:
    """Send messages: the bodies given, or each line of a file or of standard input."""
    file, jsonl = given["file"], given["jsonl"]
    if bodies and (file is not None or jsonl):
        raise click.UsageError("give bodies, or lines of a file")
    common: Row = {
        "keys": list(given["keys"]), "tags": given["tag"], "shardingKey": given["sharding_key"],
        "properties": _pairs(given["properties"]),
    }  # fmt: skip
    due = due_ms(given["delay"], given["moment"])
    if due is not None:
        common["due"] = due
    lines: Iterable[bytes] = file if file is not None else sys.stdin.buffer
    if bodies:
        bare = message_of(common | {"body": ""}, topic, 0)
        messages = [structs.replace(bare, body=os.fsencode(body)) for body in bodies]  # whatever bytes were typed
        texts: Iterator[Message] = iter(messages)
    else:
        texts = _from_lines(lines, topic, common, jsonl)
    with _producer(registry, topic, given["new"], given["kind"]) as producer:
        sender = Sender(producer, given["batch"] or 1, tell=as_json or bool(bodies), as_json=as_json)
        if given["batch"] is None and not as_json and file is not None and os.path.isfile(file.name):
            sender.gather()
        try:
            sender.send(texts)
        except Exception:
            if not bodies:
                click.echo(f"penstock: {sender.count} sent before this:", err=True)
            raise
    if not bodies and not as_json:
        click.echo(f"{sender.count} sent")


def _from_lines(lines: Iterable[bytes], topic: str, common: Row, jsonl: bool) -> Iterator[Message]:
    plain = None if jsonl else message_of(common | {"body": ""}, topic, 0)
    for number, line in enumerate(lines, 1):
        text = line.rstrip(b"\n").removesuffix(b"\r") if jsonl else line.rstrip(b"\n")
        if plain is not None:
            yield Message(
                topic, text, plain.keys, plain.tags, plain.properties, deliver_at_ms=plain.deliver_at_ms,
                sharding_key=plain.sharding_key,
            )  # fmt: skip
        elif text.strip():
            row = parse_row_at(text, number)
            late = row.get("delayMs") is not None  # what the line says is said of it alone
            own = {name: value for name, value in common.items() if value and not (late and name == "due")}
            yield made(own | row, topic, number)


def parse_row_at(line: bytes, number: int) -> Row:
    """A row; BadParameter with the line's number when it is none."""
    try:
        return parse_row(line)
    except BadRow as error:
        raise click.ClickException(f"line {number}: {error}; what came before it is sent") from None


def made(row: Row, topic: str, number: int) -> Message:
    """The message of a row, with the same error; also for what no broker would be sent."""
    try:
        message = message_of(row, topic, time.time_ns() // 1_000_000)
        check(message)
        return message
    except UnicodeEncodeError:
        raise click.ClickException(
            f"line {number}: it has half of a surrogate pair, which is no text; what came before it is sent"
        ) from None
    except ValueError as error:
        raise click.ClickException(f"line {number}: {error}; what came before it is sent") from None


def _pairs(texts: Iterable[str]) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--property")
        if not value:
            raise click.BadParameter(f"{text!r}: no reader sees a property without a value", param_hint="--property")
        found[name] = value
    return found


@contextmanager
def _producer(
    registry: str, topic: str, new: bool, kind: Literal["log", "queue"] | None
) -> Iterator[penstock.Producer]:
    """A producer, once it is known that the topic is there, or is to be made."""
    if not (new or kind):
        check_topic(registry, topic)
    with penstock.Producer(registry, kind=kind or "log") as producer:
        yield producer


def check_topic(registry: str, topic: str, *, reads: bool = False) -> Literal["log", "queue"]:
    """The kind of a topic that is there. NotFound; who only `reads` is not told how to make one."""
    with penstock.Admin(registry) as admin:
        try:
            return admin.route(topic).kind
        except NoRoute:
            hint = "`penstock topic ls` lists the topics" + (
                "." if reads else "; `penstock topic add`, or --new, makes one."
            )
            raise NotFound(f"no broker serves topic {topic!r}", hint) from None


class Sender:
    """Sends messages in their order, in batches of one topic and message queue."""

    def __init__(self, producer: penstock.Producer, batch: int, *, tell: bool = False, as_json: bool = False) -> None:
        self.count = 0
        self.first: int | None = None  # the line of the first message that is not sent yet
        self._producer = producer
        self._batch = batch
        self._tell = tell
        self._as_json = as_json
        self._splits = False
        self._waiting: list[Message] = []
        self._queue: MessageQueue | None = None
        self._bytes = 0

    def gather(self) -> None:
        """Nobody asked for batches: send many at once where that goes, for it is much faster. A batch that is refused is
        sent one by one, so that an error still comes at the message it is about, and all before it are sent.
        """
        self._batch, self._splits = FILE_BATCH, True

    def send(self, messages: Iterable[Message]) -> None:
        """Send them all. When one is none, those before it are sent."""
        with _flushed([self]):
            for message in messages:
                self.add(message, None)

    def add(self, message: Message, queue: MessageQueue | None, line: int = 0) -> None:
        """One more, to a message queue or to any. Where it stands tells up to where everything is sent."""
        due = message.delay_level or message.deliver_at_ms is not None
        waiting = self._waiting
        if waiting and (due or queue != self._queue or _apart(waiting[0], message)):
            self.flush()
        if not self._waiting:
            self.first = line
        self._waiting.append(message)
        self._queue = queue
        self._bytes += len(message.body)
        if due or len(self._waiting) >= self._batch or self._bytes >= BATCH_BYTES_MAX:
            self.flush()

    def close(self) -> None:
        """The producer is needed no longer."""
        self._producer.close()

    def _send_each(self, messages: list[Message], queue: MessageQueue | None) -> None:
        for message in messages:
            self._producer.send(message, queue=queue)
            self.count += 1
        self._waiting, self._bytes, self.first = [], 0, None

    def flush(self) -> None:
        """Send what waits. When that fails it waits on."""
        messages = self._waiting
        if not messages:
            return
        queue = self._queue
        if len(messages) == 1:
            receipt = self._producer.send(messages[0], queue=queue)
        else:
            try:
                receipt = self._producer.send_batch(messages, queue=queue)
            except (BrokerRefused, ValueError):  # nothing of it is stored
                if not self._splits:
                    raise
                self._send_each(messages, queue)
                return
        self._waiting, self._bytes, self.first = [], 0, None
        self.count += len(messages)
        if not self._tell:
            return
        to, status = receipt.queue, receipt.status.value
        if not self._as_json:
            click.echo(f"{status} {to.broker}/{to.queue_id} {receipt.queue_offset}")
            return
        row = {"topic": to.topic, "broker": to.broker, "queue": to.queue_id, "offset": receipt.queue_offset}
        click.echo(json.dumps(row | {"status": status, "count": len(messages), "msgId": receipt.msg_id}))


def _apart(one: Message, other: Message) -> bool:
    """Whether the two may belong to different message queues: a batch is stored in the one of its first message."""
    return (one.topic, one.sharding_key) != (other.topic, other.sharding_key)


@contextmanager
def _flushed(senders: Collection[Sender]) -> Iterator[None]:
    """Send what waits at the end, and before a line that is no message: the error says that it is sent."""
    try:
        yield
    except click.ClickException:
        for sender in senders:
            sender.flush()
        raise
    for sender in senders:
        sender.flush()


@click.command("import")
@with_registry
@with_json
@click.argument("file", type=click.File("rb"))
@click.option("--to", default="", metavar="TOPIC", help="Into this topic, not into those that the lines name.")
@click.option("--new", is_flag=True, help="Make topics that are not there, of the kind that the lines name.")
@click.option("--skip", type=click.IntRange(0), default=0, help="Pass over so many lines: to go on after an error.")
@click.option("--batch", type=click.IntRange(1, BATCH_MAX), default=100, show_default=True, help="So many at once.")
@click.option("--dry-run", is_flag=True, help="Read everything and say what would be sent; send nothing.")
def import_command(
    registry: str, as_json: bool, file: IO[bytes], to: str, new: bool, skip: int, batch: int, dry_run: bool
) -> None:
    """Send the messages of FILE (-: standard input), which `penstock export` wrote: bodies, keys, tags, properties, and
    the order within each message queue. Ids and times are new.
    """
    counts: dict[str, int] = {}
    senders: dict[str, Sender] = {}
    queues: dict[str, list[MessageQueue]] = {}
    at = skip
    try:
        with _flushed(senders.values()):
            for number, line in enumerate(file, 1):
                if number <= skip or not line.strip():
                    continue
                row = parse_row_at(line, number)
                topic = to or str(row.get("topic") or "")
                if not topic:
                    raise click.ClickException(f"line {number}: it names no topic; give --to")
                message = made(row, topic, number)
                if topic not in counts:
                    counts[topic] = 0
                    kind = _kind(registry, topic, row, new)
                    if not dry_run:
                        producer = penstock.Producer(registry, kind=kind)
                        senders[topic] = Sender(producer.start(), batch)
                        queues[topic] = producer.queues(topic) if kind == "log" else []
                counts[topic] += 1
                if not dry_run:
                    _add(senders[topic], message, row, queues[topic], number)
                    at = number
    except (Exception, KeyboardInterrupt):
        if any(sender.count for sender in senders.values()):
            sent = sum(sender.count for sender in senders.values())
            whole = min((sender.first - 1 for sender in senders.values() if sender.first is not None), default=at)
            click.echo(f"penstock: {sent} sent of what stands up to line {whole}: go on with --skip {whole}", err=True)
        raise
    finally:
        for sender in senders.values():
            sender.close()
    if not counts and not as_json:
        behind = f" behind line {skip}" if skip else ""
        click.echo(f"nothing to send: {printable(file.name)} has no message{behind}", err=True)
    for topic, count in counts.items():
        if as_json:
            click.echo(json.dumps({"topic": topic, "count": count, "done": "" if dry_run else "sent"}))
        else:
            click.echo(f"{'would send' if dry_run else 'sent'} {count:,} to {topic}")


def _kind(registry: str, topic: str, row: Row, new: bool) -> Literal["log", "queue"]:
    try:
        return check_topic(registry, topic)
    except NotFound:
        if not new:
            raise
    return "queue" if row.get("kind") == "queue" else "log"


def _add(sender: Sender, message: Message, row: Row, queues: list[MessageQueue], line: int) -> None:
    number = row.get("queue")
    queue = queues[number % len(queues)] if queues and isinstance(number, int) and not message.sharding_key else None
    sender.add(message, queue, line)
