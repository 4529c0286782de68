"""Which names an argument or option is completed with."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

import penstock
from penstock.cli.main import main
from penstock.cli.names import names_for
from penstock.testing import Broker


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


def test_names_that_are_none(broker: Broker) -> None:
    """Of what nobody knows there is nothing to list: an error, 3. Of what is there and holds nothing: nothing, 0."""
    with penstock.Admin(broker.registry) as admin:
        admin.create_topic("named-log", 1)
        admin.change_queue("named-queue", "add")
        admin.change_queue("named-queue", "add", channel="named-channel")
    there = (
        "delayed ls -t named-log", "delayed ls -t named-queue -c named-channel", "delayed histogram -t named-queue",
        "delayed find x -t named-log", "client ls --of named-log", "client ls --of named-queue/named-channel",
        "client ls --of named-channel", "client ls", "delayed ls",
    )  # fmt: skip
    gone = (
        "delayed ls -t typo", "delayed ls -c typo", "delayed ls -t named-queue -c typo", "delayed histogram -t typo",
        "delayed find x -t typo", "client ls --of typo", "client ls --of named-queue/typo", "client ls --of typo/named-channel",
    )  # fmt: skip
    for call, code in (*((call, 0) for call in there), *((call, 3) for call in gone)):
        done = CliRunner().invoke(main, [*call.split(), "-n", broker.registry])
        assert done.exit_code == code, (call, done.output)
        assert code == 0 or "list" in done.stderr.splitlines()[1]


def test_what_only_log_topics_have(broker: Broker) -> None:
    with penstock.Admin(broker.registry) as admin:
        admin.change_queue("queue-only", "add")
    for call, verb in (("topic info queue-only", "topic describe"), ("message find queue-only k", "peek")):
        done = CliRunner().invoke(main, [*call.split(), "-n", broker.registry])
        assert (done.exit_code, done.stdout) == (3, ""), done.output
        assert f"`penstock {verb} queue-only`" in done.stderr
