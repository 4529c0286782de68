"""Which names an argument or option is completed with."""

from __future__ import annotations

import click
import pytest

from penstock.cli.main import main
from penstock.cli.names import names_for


@pytest.mark.parametrize(
    ("words", "param"),
    [(("topic", "describe"), "name"), (("tail",), "topic"), (("tail",), "group"), (("peek",), "topic")],
)
def test_nothing_is_offered_and_nothing_raised_without_a_broker(words: tuple[str, ...], param: str) -> None:
    context, command = click.Context(main, info_name="penstock"), click.Command("x")
    command = main
    for word in words:
        assert isinstance(command, click.Group)
        command = command.get_command(context, word)  # type: ignore[assignment]
        context = click.Context(command, parent=context, info_name=word)
    context.params["registry"] = "127.0.0.1:1"
    found = next(one for one in command.params if one.name == param)
    assert names_for(context, found, "") == []
    other = click.Argument(["other"])
    assert names_for(context, other, "") == []
