"""Names of topics, groups and channels: a shell completes them, and one that is none is an error."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from penstock.errors import NoRoute, NotFound, PenstockError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from penstock import Admin

TIMEOUT_S = 1.0
NAMES_MAX = 500
# Arguments called `name` are a topic's or a group's as their command says.
_KINDS = {"topic": "topics", "group": "groups", "dlq": "groups"}


def names_for(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What may stand there; nothing, and quickly, when no registry answers."""
    from click.shell_completion import CompletionItem

    what = _what(context, param)
    if not what:
        return []
    try:
        found = _ask(context, what)
    except Exception:  # a completion that fails must not write over what is being typed
        return []
    return [CompletionItem(name) for name in found if name.startswith(incomplete)][:NAMES_MAX]


def _what(context: click.Context, param: click.Parameter) -> str:
    """topics, groups or channels; empty for any other argument."""
    name, parent = param.name or "", context.parent.info_name if context.parent else ""
    if name in ("channel_name", "channel") or (name == "name" and parent == "channel"):
        return "channels"
    if name == "group":
        return "groups"
    if name == "topic":
        return "topics"
    return _KINDS.get(parent or "", "") if name == "name" else ""


def _ask(context: click.Context, what: str) -> list[str]:
    import penstock

    registry = str(context.params.get("registry") or os.environ.get("PENSTOCK_REGISTRY") or _registry())
    with penstock.Admin(registry, timeout_s=TIMEOUT_S) as admin:
        if what == "groups":
            return sorted(admin.groups())
        if what == "topics":
            return sorted({*admin.topics(), *(str(row["topic"]) for row in admin.queue_topics())})
        topic = str(context.params.get("topic") or "")
        return (
            sorted({str(one["channel"]) for row in admin.queue_topics(topic) for one in row["channels"]})
            if topic
            else []
        )


def check_names(admin: Admin, topic: str, reader: str) -> None:
    """Nothing was found of these: NotFound where no broker knows the topic, or the group or channel; without a topic `reader` may
    be one. Empty names are not asked for.
    """
    try:
        queues = admin.queue_topics(topic)
        topics = {*admin.topics(system=True), *(str(row["topic"]) for row in queues)}
        readers = {str(one["channel"]) for row in queues for one in row["channels"]} if reader else set()
        readers |= set(admin.groups()) if reader else set()
    except PenstockError:
        return  # who may see what waits need not be one who may see all names
    if topic and topic not in topics:
        raise NotFound(f"no broker has a topic {topic!r}", "`penstock topic ls` lists the topics.")
    if reader and reader not in readers and (topic or reader not in topics):
        hint = "`penstock group ls`, `penstock channel ls` and `penstock topic ls` list what there is."
        raise NotFound(f"no broker knows {reader!r}", hint)


def demand_log_topic(admin: Admin, topic: str, lacks: str, hint: str) -> None:
    """NotFound for a queue topic, which has no such things; of a topic that is not there nothing is said."""
    with suppress(NoRoute):
        if admin.route(topic).kind == "queue":
            raise NotFound(f"{topic} is a queue topic, which has no {lacks}", hint)


def _registry() -> str:
    from penstock.cli.inuse import registry_in_use

    return registry_in_use() or "127.0.0.1:9876"
