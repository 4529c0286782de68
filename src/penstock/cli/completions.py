"""`penstock completion` and the names that it offers: topics, groups and channels of the broker that is in use."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem, get_completion_class

SHELLS = ("bash", "zsh", "fish")
TIMEOUT_S = 1.0
NAMES_MAX = 500
TOPICS = frozenset(("topic", "source"))
# Arguments called `name` are a topic's or a group's as their command says.
_KINDS = {"topic": "topics", "group": "groups", "dlq": "groups"}


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what makes SHELL complete commands, options and the names of topics, groups and channels.

    bash: eval "$(penstock completion bash)" in .bashrc; zsh the same in .zshrc; fish: penstock completion fish | source
    """
    from penstock.cli.main import main

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "penstock", "_PENSTOCK_COMPLETE").source())


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
    from penstock.cli.contexts import registry_in_use

    return registry_in_use() or "127.0.0.1:9876"
