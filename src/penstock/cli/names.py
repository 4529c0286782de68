"""Names that a shell completes: topics, groups and channels of the broker that is in use."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem

TIMEOUT_S = 1.0
NAMES_MAX = 500
# Arguments called `name` are a topic's or a group's as their command says.
_KINDS = {"topic": "topics", "group": "groups", "dlq": "groups"}


def names_for(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What may stand there; nothing, and quickly, when no registry answers."""
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


def _registry() -> str:
    from penstock.cli.inuse import registry_in_use

    return registry_in_use() or "127.0.0.1:9876"
