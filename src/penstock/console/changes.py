"""What the console changes, where it is allowed to: each act a POST, each destroying one with the name typed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar
from urllib.parse import quote

from penstock.aio import Producer
from penstock.client.deadletters import DeadLetters, again
from penstock.console import plans
from penstock.console.pages import Site
from penstock.console.plans import start_of
from penstock.console.words import moment, part
from penstock.errors import PenstockError
from penstock.message import Message

T = TypeVar("T")
Change = Literal["pause", "unpause", "empty", "rm"]


class Unsure(PenstockError):
    """The name was not typed, or something is missing in the form."""


@dataclass(frozen=True)
class Act:
    """What a form asks for."""

    site: Site
    form: Mapping[str, str]

    def need(self, name: str) -> str:
        """A field that must be there. Unsure."""
        value = self.form.get(name, "")
        if not value:
            raise Unsure(f"the form says no {name}")
        return value

    def typed(self, name: str) -> str:
        """A name that was typed again, because what follows destroys. Unsure."""
        wanted = self.need(name)
        if self.form.get("typed", "") != wanted:
            raise Unsure(f"type {wanted} to go on: this cannot be taken back")
        return wanted


Done = tuple[str, str]  # what was done, as a sentence; where to go on


def _topic(name: str) -> str:
    return f"/topics/{part(name)}/about"


async def _change_queue(act: Act, topic: str, change: Change, channel: str | None = None) -> None:
    async with act.site.admin() as admin:
        await admin.change_queue(topic, change, channel=channel)


async def _with_letters(act: Act, work: Callable[[DeadLetters], T]) -> T:
    """What is done with dead letters, in a thread."""

    def run() -> T:
        with DeadLetters(act.site.registry, security=act.site.security) as letters:
            return work(letters)

    return await asyncio.to_thread(run)


def _letters_of(group: str) -> str:
    return f"/deadletters/{part(group)}/about"


async def topic_add(act: Act) -> Done:
    """Make a topic of either kind."""
    name, queues = act.need("topic"), plans.queues_of(act.form.get("queues", ""))
    async with act.site.admin() as admin:
        if act.form.get("kind") == "queue":
            await admin.change_queue(name, "add")
        else:
            await admin.create_topic(name, queues)
    return f"Topic {name} is there.", _topic(name)


async def topic_delete(act: Act) -> Done:
    """Delete a topic and what it holds."""
    name = act.typed("topic")
    async with act.site.admin() as admin:
        await admin.delete_topic(name)
    return f"Topic {name} is deleted.", "/topics"


async def topic_empty(act: Act) -> Done:
    """Throw away what a queue topic holds."""
    name = act.typed("topic")
    await _change_queue(act, name, "empty")
    return f"Topic {name} is empty.", _topic(name)


async def topic_pause(act: Act) -> Done:
    """Pause a topic, or let it go on."""
    name, pause = act.need("topic"), act.form.get("on") == "1"
    await _change_queue(act, name, "pause" if pause else "unpause")
    return f"Topic {name} {'is paused' if pause else 'goes on'}.", _topic(name)


async def topic_send(act: Act) -> Done:
    """Send one message to a topic that is there."""
    name, body = act.need("topic"), act.form.get("body", "").encode()
    kind = "queue" if act.form.get("kind") == "queue" else "log"
    keys = tuple(act.form.get("keys", "").split())
    async with act.site.admin() as admin:
        await admin.describe_topic(name)  # the page may be older than its deletion: it is not made again
    async with Producer(act.site.registry, kind=kind, security=act.site.security) as producer:  # type: ignore[arg-type]
        await producer.send(Message(name, body, keys=keys, tags=act.form.get("tag") or None))
    return f"One message was sent to {name}.", f"/topics/{part(name)}/messages"


async def topic_alter(act: Act) -> Done:
    """Change queues, retention or trace of a log topic; what this takes out of sight was shown before."""
    name, wanted = act.typed("topic"), plans.wanted_of(dict(act.form))
    if not wanted:
        raise Unsure("the form says nothing to change")
    async with act.site.admin() as admin:
        await plans.alter(admin, name, wanted)
    return f"Topic {name} is changed: {', '.join(sorted(wanted))}.", _topic(name)


async def topic_purge(act: Act) -> Done:
    """Take what lies below a place out of the sight of all readers."""
    name, place = act.typed("topic"), plans.place_of_purge(act.need("purge"))
    async with act.site.admin() as admin:
        rows = await admin.purge_topic(name, place)
    return f"{sum(row['messages'] for row in rows):,} messages of {name} are out of sight.", _topic(name)


async def message_resend(act: Act) -> Done:
    """Send a copy of a message: to its topic, whose readers all get it again, or to another log topic that is there."""
    id_, topic = act.need("id"), act.form.get("topic") or None
    to = act.form.get("to", "") or act.need("topic")
    async with act.site.admin() as admin:
        found = await admin.message(id_, topic)
        if any(row["kind"] != "log" for row in await admin.describe_topic(to)):
            raise Unsure(f"{to} is a queue topic: a message of a log topic goes to a log topic")
    async with Producer(act.site.registry, security=act.site.security) as producer:
        await producer.send(again(found, to))
    return f"A copy of {id_} was sent to {to}.", f"/topics/{part(to)}/messages"


def _reader(act: Act) -> str:
    kind = "group" if act.form.get("kind") == "group" else "channel"
    return f"/topics/{part(act.need('topic'))}/{kind}/{part(act.need('name'))}/about"


async def channel_pause(act: Act) -> Done:
    """Pause a channel, or let it go on."""
    topic, name, pause = act.need("topic"), act.need("name"), act.form.get("on") == "1"
    await _change_queue(act, topic, "pause" if pause else "unpause", name)
    return f"Channel {name} {'is paused' if pause else 'goes on'}.", _reader(act)


async def channel_empty(act: Act) -> Done:
    """Throw away what a channel holds."""
    topic, name = act.need("topic"), act.typed("name")
    await _change_queue(act, topic, "empty", name)
    return f"Channel {name} of {topic} is empty.", _reader(act)


async def channel_delete(act: Act) -> Done:
    """Delete a channel and what it holds."""
    topic, name = act.need("topic"), act.typed("name")
    await _change_queue(act, topic, "rm", name)
    return f"Channel {name} of {topic} is deleted.", _topic(topic)


async def group_reset(act: Act) -> Done:
    """Move a group to a place in a topic; what this does was shown before."""
    topic, name, to = act.need("topic"), act.typed("name"), act.need("to")
    async with act.site.admin() as admin:
        moved = await admin.reset_offset(name, topic, start_of(to))
    return f"Group {name} begins at {to} in {len(moved)} queues of {topic}.", _reader(act)


async def dead_redrive(act: Act) -> Done:
    """Send dead letters again, each once; with `dry` say what would be sent."""
    group, text, dry = act.need("group"), act.form.get("match", ""), act.form.get("dry") == "1"
    limit, rate = plans.limit_of(act.form.get("limit", "")), plans.rate_of(act.form.get("rate", ""))

    done = await _with_letters(
        act,
        lambda letters: letters.redrive(
            group, text=text, limit=limit, rate=rate, dry_run=dry,
        ),
    )  # fmt: skip
    said = ", ".join(f"{n:,} to {topic}" for topic, n in sorted(done.topics.items())) or "nothing"
    back = _letters_of(group) + (f"?match={quote(text)}" if text else "")
    return f"{'Would be sent' if dry else 'Sent'}: {said}.", back


async def dead_resend(act: Act) -> Done:
    """Send the chosen dead letters again, each once."""
    group, ids = act.need("group"), act.need("ids").split("\n")

    done = await _with_letters(act, lambda letters: letters.resend(group, ids))
    return f"{done.count} of {len(ids)} were sent.", _letters_of(group)


async def client_disconnect(act: Act) -> Done:
    """End the connections of a client."""
    address = act.need("address")
    async with act.site.admin() as admin:
        count = await admin.disconnect(address)
    return f"{count} connections from {address} are ended. The client may come again.", "/clients"


async def stage_drop(act: Act) -> Done:
    """Forget what is staged for a sink."""
    sink = act.typed("sink")
    async with act.site.admin() as admin:
        count = await admin.drop_stage(sink, act.form.get("run", ""))
    return f"{count} stages of {sink} are dropped.", "/spark"


async def delayed_fire(act: Act) -> Done:
    """Deliver a delayed message now."""
    async with act.site.admin() as admin:
        row = await admin.fire_delayed(act.need("id"))
    return f"Message {row['msgId']} is delivered.", "/delayed"


async def delayed_move(act: Act) -> Done:
    """A delayed message is to be delivered at another time."""
    at_ms = plans.later_ms(act.need("to"), time.time_ns() // 1_000_000)
    async with act.site.admin() as admin:
        row = await admin.fire_delayed(act.need("id"), at_ms=at_ms)
    return f"Message {row['msgId']} is due {moment(row['due'])}.", "/delayed"


async def delayed_cancel(act: Act) -> Done:
    """A delayed message is not to be delivered."""
    id_ = act.typed("id")
    async with act.site.admin() as admin:
        row = await admin.cancel_delayed(id_)
    return f"Message {row['msgId']} will not be delivered.", "/delayed"


async def log_level(act: Act) -> Done:
    """How much the broker logs, until it stops."""
    level = act.need("level")
    await act.site.upstream.change("PUT", "/config/log_level", level.encode())
    return f"The broker logs from {level} on.", "/settings"


ACTS: dict[str, Callable[[Act], Awaitable[Done]]] = {
    "topic-add": topic_add, "topic-delete": topic_delete, "topic-empty": topic_empty, "topic-pause": topic_pause,
    "topic-send": topic_send, "topic-alter": topic_alter, "topic-purge": topic_purge, "message-resend": message_resend,
    "channel-pause": channel_pause, "channel-empty": channel_empty,
    "channel-delete": channel_delete, "group-reset": group_reset, "dead-redrive": dead_redrive, "dead-resend": dead_resend,
    "client-disconnect": client_disconnect, "stage-drop": stage_drop,
    "delayed-fire": delayed_fire, "delayed-cancel": delayed_cancel, "delayed-move": delayed_move, "log-level": log_level,
}  # fmt: skip
