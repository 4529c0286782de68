"""Names of topics, groups and channels: a shell completes them, and one that is none is an error."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from penstock.errors import NoRoute, NotFound, PenstockError
from penstock.wire import names

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from penstock import Admin

TIMEOUT_S = 1.0
NAMES_MAX = 500
_DEAD, _DEAD_SUFFIX = names.DEAD_PREFIX.decode(), names.DEAD_SUFFIX.decode()
# Arguments called `name` are a topic's, a group's or a context's, as their command says.
_KINDS = {"topic": "topics", "group": "groups", "context": "contexts", "channel": "channels"}
_OF_OPTIONS = {"topic": "topics", "group": "groups", "channel": "channels", "channel_name": "channels", "of": "all"}


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
    """topics, groups, channels, dead (what has dead letters), contexts or all; empty for any other argument."""
    name, parent = param.name or "", (context.parent.info_name if context.parent else "") or ""
    if name == "name":
        return _KINDS.get(parent, "")
    if name == "to":
        return "topics" if param.metavar == "TOPIC" else ""
    return "dead" if (parent, name) == ("dlq", "group") else _OF_OPTIONS.get(name, "")


def _ask(context: click.Context, what: str) -> list[str]:
    if what == "contexts":
        from penstock.cli.inuse import folder

        return sorted(path.stem for path in folder().glob("*.toml"))
    import penstock

    registry = str(context.params.get("registry") or os.environ.get("PENSTOCK_REGISTRY") or _registry())
    with penstock.Admin(registry, timeout_s=TIMEOUT_S, partial=True) as admin:
        # An option that lacks its value keeps click from reading the arguments: they are left as they are.
        topic = str(context.params.get("topic") or (context.args[0] if what == "channels" and context.args else ""))
        found: set[str] = set()
        if what in ("groups", "all") or (what == "channels" and not topic):
            found.update(name for name in admin.groups() if not is_own(name))
        if what in ("topics", "all"):
            found.update(admin.topics())
        if what == "dead":
            found.update(name.removeprefix(_DEAD) for name in admin.topics(system=True) if name.startswith(_DEAD))
        for row in admin.queue_topics(topic) if what != "groups" else ():
            name = str(row["topic"])
            if what in ("topics", "all"):
                found.add(name)
            if what in ("channels", "all"):
                found.update(str(one["channel"]) for one in row["channels"])
            if what == "dead" and name.endswith(_DEAD_SUFFIX):
                found.add(name.removesuffix(_DEAD_SUFFIX))
        return sorted(found)


def is_own(group: str) -> bool:
    """Whether a group is none that somebody made: of RocketMQ, of a broker, of a reader without one, of `dlq redrive`."""
    return group in (*names.SYSTEM_GROUPS, "DEFAULT_CONSUMER") or group.startswith(
        (names.SYSTEM_GROUP_PREFIX, "penstock-redrive")
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
