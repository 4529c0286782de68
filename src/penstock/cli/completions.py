"""`penstock completion`: what makes a shell complete; `names` has what it offers."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


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
