"""A line of documentation read by the command that it names: an option or command that is not there fails."""

from __future__ import annotations

import shlex

import click

from penstock.cli.main import main


def read(line: str) -> None:
    words = shlex.split(line, comments=True)
    assert words.pop(0) == "penstock", line
    context, found = click.Context(main), main
    command: click.Command = found
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        inner = command.get_command(context, words[0])
        assert inner is not None, line
        command = inner
        words.pop(0)
    paths = [param.type for param in command.params if isinstance(param.type, click.Path)]
    before = [path.exists for path in paths]
    for path in paths:
        path.exists = False  # it is on somebody's machine
    try:
        with command.make_context(command.name, words):
            pass
    finally:
        for path, exists in zip(paths, before, strict=True):
            path.exists = exists
