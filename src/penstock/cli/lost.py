"""`penstock store lost`: what was cut from the end of a log, because its master never had it."""

from __future__ import annotations

import fcntl
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import click
from msgspec.structs import replace

import penstock
from penstock.cli.tools import Whole, confirm, print_rows, time_text, with_json, with_registry
from penstock.client.deadletters import again
from penstock.errors import NoRoute, NotFound
from penstock.message import ReceivedMessage
from penstock.schedule.delays import due_by_properties
from penstock.wire import names
from penstock.wire.codes import SYS_COMMIT, SYS_PREPARED, SYS_ROLLBACK

_SENT = "republished"  # the file, beside the tail, of the positions that were sent
DELIVERY = "was delayed: its delivery comes again"
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


class NoTail(click.ClickException):
    """A folder that has no tail of the name given."""

    exit_code = 3  # as of everything that is not there


@click.group(cls=Whole)
def lost() -> None:
    """What was cut from the end of a log, because its master never had it."""


@lost.command("ls")
@click.argument("folder", type=_FOLDER)
@with_json
def lost_ls(folder: Path, as_json: bool) -> None:
    """The tails that a data folder keeps, oldest first."""
    from penstock.log.comparing import messages
    from penstock.log.cutting import cut_tails

    rows = [
        {
            "name": path.name,
            "at": time_text(tail["at"]),
            "position": tail["position"],
            "bytes": tail["end"] - tail["position"],
            "messages": sum(1 for row in messages(path)),
            "why": tail["why"],
        }
        for path, tail in cut_tails(folder)
    ]
    print_rows(rows, as_json)


@lost.command("show")
@click.argument("folder", type=_FOLDER)
@click.argument("name")
@click.option("--json", is_flag=True, expose_value=False, help="As it is printed anyway.")
def print_lost(folder: Path, name: str) -> None:
    """The messages of one tail, one JSON object each; their bodies in base64."""
    from penstock.log.comparing import records

    for row in records(_tail(folder, name)[0]):
        click.echo(json.dumps(row, ensure_ascii=False))


@lost.command("republish")
@click.argument("folder", type=_FOLDER)
@click.argument("name")
@with_registry
@click.option("--dry-run", is_flag=True, help="Say what would be sent; send nothing.")
@click.option("--force", is_flag=True, help="Do not ask.")
@with_json
def republish(folder: Path, name: str, registry: str, dry_run: bool, force: bool, as_json: bool) -> None:
    """Send the messages of one tail again, each to its topic and once: a second call sends what the first one could not.
    One that its producer has repeated, so that the topic has it, is left out.

    Messages whose delay was running come when they would have come; of transactions only what was committed is sent.
    What belongs to the broker itself, and consumers' retries, stay.
    """
    path, position = _tail(folder, name)
    if not dry_run:
        confirm(f"Send the messages of {name} again?", force)
    count: Counter[tuple[str, str]] = Counter()
    done = path / _SENT
    with penstock.Admin(registry) as admin, penstock.Producer(registry) as producer, _notes(done, dry_run) as note:
        sent = set(done.read_text().split()) if done.exists() else set()
        for message, why in _to_send(path, position):
            if message is None:
                count["", why] += 1
                continue
            fresh = _fresh(message)
            if not why and str(message.physical_offset) in sent:
                why = "was sent by a former call"
            if not why and _is_there(admin, fresh.topic, message):
                why = "is in the topic already"
            if not why and note is not None:
                producer.send(fresh)
                note.write(f"{message.physical_offset}\n")
                note.flush()
            count[fresh.topic, why or ("would be sent" if dry_run else "sent")] += 1
    rows = [{"topic": topic, "messages": number, "what": what} for (topic, what), number in sorted(count.items())]
    print_rows(rows, as_json)


@contextmanager
def _notes(done: Path, dry_run: bool) -> Iterator[IO[str] | None]:
    """Where it is noted what was sent; two calls at once would send each message twice. None for a dry run."""
    if dry_run:
        yield None
        return
    with done.open("a") as note:
        try:
            fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.UsageError(f"another call is republishing {done.parent.name}") from None
        except OSError:  # a file system without locks
            pass
        yield note


def _tail(folder: Path, name: str) -> tuple[Path, int]:
    """(folder, position) of a tail."""
    from penstock.log.cutting import cut_tails

    for path, tail in cut_tails(folder):
        if path.name == name:
            return path, tail["position"]
    raise NoTail(f"{folder} keeps no tail of this name: penstock store lost ls {folder}")


def _to_send(tail: Path, position: int) -> Iterator[tuple[ReceivedMessage | None, str]]:
    """(each message, why it is not sent again); None for what cannot be read."""
    from penstock.log.comparing import messages

    delayed: set[int] = set()  # what the deliveries of the tail's own delayed messages name
    for found in messages(tail):
        if isinstance(found, ReceivedMessage):
            if _is_delayed(found):
                delayed.add(found.physical_offset + 1)
            yield found, DELIVERY if found.prepared_offset in delayed else _why_not(found, position)
        else:
            yield None, f"cannot be read: {found['error']}"


def _why_not(message: ReceivedMessage, position: int) -> str:
    """Why a message of a tail that begins at `position` is not sent again; empty: it is."""
    topic, transaction = message.topic, message.sys_flag & SYS_ROLLBACK
    if message.undecodable is not None:
        return f"cannot be read: {message.undecodable}"
    if transaction in (SYS_PREPARED, SYS_ROLLBACK):
        return "was not committed"
    if transaction == SYS_COMMIT and message.prepared_offset < position:
        return "is asked for again: its transaction is open"
    if not transaction and message.prepared_offset > 0:
        return DELIVERY
    if _is_delayed(message):
        real = message.properties.get(names.REAL_TOPIC, "")
        return "" if real and not _belongs_to_the_broker(real) else "belongs to the broker"
    return "belongs to the broker" if _belongs_to_the_broker(topic) else ""


def _is_delayed(message: ReceivedMessage) -> bool:
    return message.topic.encode() in (names.SCHEDULE_TOPIC, names.TIMER_TOPIC)


def _belongs_to_the_broker(topic: str) -> bool:
    prefixes = (names.SYSTEM_PREFIX, names.RETRY_PREFIX.decode().lower(), names.DEAD_PREFIX.decode().lower())
    return topic.lower().startswith(prefixes) or topic in names.SYSTEM_TOPICS


def _fresh(message: ReceivedMessage) -> penstock.Message:
    """The message as it is sent again."""
    if not _is_delayed(message):
        return again(message, message.topic)
    told = message.properties
    fresh = again(message, told.get(names.REAL_TOPIC, ""))
    if told.get(names.DELAY, "").isdecimal():
        return replace(fresh, delay_level=int(told[names.DELAY]))
    return replace(fresh, deliver_at_ms=due_by_properties(told, message.store_ms))


def _is_there(admin: penstock.Admin, topic: str, message: ReceivedMessage) -> bool:
    """Whether a topic has a message of this id."""
    if not message.uniq_key:
        return False
    try:
        return any(one.uniq_key == message.uniq_key for one in admin.query_by_key(topic, message.uniq_key))
    except (NotFound, NoRoute):
        return False
