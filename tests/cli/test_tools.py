"""What the commands share: rows, registries, confirmations."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from client.scripted import CLIENT, DELAYED, MESSAGE, TOPIC, Scripted
from client.steps import peer
from penstock import Admin, Message, Producer
from penstock.cli.main import main
from penstock.cli.tools import (
    confirm,
    due_ms,
    opened,
    permission,
    print_rows,
    repeat,
    time_text,
    with_json,
    with_registry,
)
from penstock.client.aio.cluster import Cluster
from penstock.errors import ConnectionLost, NoRoute, NotEverywhere, TimedOut
from penstock.testing import Broker
from penstock.wire.codes import RequestCode
from penstock.wire.fastjson import dumps
from penstock.wire.remoting import RemotingCommand
from polling import eventually

ROWS = [{"name": "a", "count": 5}, {"name": "longer", "count": 12345}]


def test_columns_are_as_wide_as_what_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(ROWS, False)
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["name", "count"],
        ["a", "5"],
        ["longer", "12345"],
    ]
    print_rows(iter(ROWS), True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == ROWS
    print_rows([], False)
    assert capsys.readouterr() == ("", "nothing\n")


def test_the_registry_comes_from_the_flag_or_the_environment() -> None:
    @click.command()
    @with_registry
    @with_json
    def command(registry: str, as_json: bool) -> None:
        click.echo(f"{registry} {as_json}")

    run = CliRunner().invoke
    assert run(command, ["-n", "a:1", "--json"]).output == "a:1 True\n"
    assert run(command, [], env={"PENSTOCK_REGISTRY": "b:2"}).output == "b:2 False\n"


def test_without_a_terminal_nothing_is_deleted_unless_it_is_said() -> None:
    confirm("sure?", True)

    @click.command()
    def command() -> None:
        confirm("sure?", False)

    told = CliRunner().invoke(command)
    assert told.exit_code == 2
    assert "--force" in told.output


def test_an_empty_name_is_not_the_present_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that of a variable that is not set: the present folder would be an archive, or a broker's."""
    monkeypatch.chdir(tmp_path)
    for words in (
        ("spark", "archive", "t", "--to", ""), ("spark", "template", ""), ("up", "--data", ""), ("broker", "--data", ""),
        ("registry", "--data", ""), ("up", "--config", ""), ("config", "check", "--config", ""),
        ("config", "check", "--data", ""),
        ("user", "add", "u", "--data", ""), ("export", "t", ""), ("dlq", "export", "g", ""), ("up", "--set", "data="),
    ):  # fmt: skip
        done = CliRunner().invoke(main, list(words))
        assert (done.exit_code, "empty" in done.output) == (2, True), (words, done.output)
    assert not list(tmp_path.iterdir())


def test_times_and_permissions() -> None:
    assert time_text(1_700_000_000_123) == "2023-11-14T22:13:20.123+00:00"
    assert time_text(1 << 62).startswith("9999-")
    assert [permission(perm) for perm in (6, 4, 2, 0)] == ["RW", "R", "W", "none"]


def test_who_watches_goes_on_while_a_broker_starts_again(capsys: pytest.CaptureFixture[str]) -> None:
    slept: list[float] = []

    def steps(*outcomes: BaseException | None) -> Callable[[], None]:
        left = list(outcomes)

        def step() -> None:
            outcome = left.pop(0)
            if outcome is not None:
                raise outcome

        return step

    repeat(steps(None, ConnectionLost("gone"), NoRoute("not back yet"), None), 2.0, 4, slept.append)
    assert slept == [2.0] * 3
    assert "gone: tried again in 2 s" in capsys.readouterr().err
    with pytest.raises(ConnectionLost):  # it was never there
        repeat(steps(ConnectionLost("gone")), 2.0, None, slept.append)
    with pytest.raises(TimedOut):  # and nobody asks again
        repeat(steps(None, TimedOut("slow")), 2.0, 2, slept.append)
    repeat(steps(None, KeyboardInterrupt()), 2.0, None, slept.append)

    repeat(steps(NotEverywhere({"b": TimedOut("it hangs")}), None), 2.0, 2, slept.append)  # the others are there
    assert "not at broker b: it hangs" in capsys.readouterr().err


LOOKS = (
    ("topic", "ls"), ("topic", "describe", "seen"), ("channel", "ls"), ("channel", "info", "seen", "c"), ("peek", "seen"),
    ("channel", "peek", "seen", "c"), ("group", "ls"), ("group", "info", "g"), ("group", "lag", "g"), ("client", "ls"),
    ("group", "lag", "g", "--watch", "--count", "1"), ("delayed", "ls"), ("delayed", "find", "x"), ("delayed", "histogram"),
    ("top", "--count", "1"), ("dlq", "ls"), ("dlq", "show", "g"),
)  # fmt: skip


@asynccontextmanager
async def beside(broker: Broker, name: str, address: str, *topics: str) -> AsyncIterator[None]:
    """Another broker is told to its registry, with these log topics; there is something of each kind in the first one."""
    with Admin(broker.registry) as admin, Producer(broker.registry) as producer:
        admin.change_queue("seen", "add")
        admin.change_queue("seen", "add", channel="c")
        producer.send(Message("seen", b"x"))
        admin.create_topic("read", 1)
        eventually(lambda: "read" in admin.topics())
        admin.set_offset("g", "read", 0, new=True)
    table = {topic: {"topicName": topic, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6} for topic in topics}
    body = dumps(
        {"topicConfigSerializeWrapper": {"dataVersion": {"timestamp": 1, "counter": 1}, "topicConfigTable": table}}
    )
    ext = {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": "DefaultCluster",
        "brokerId": "0",
        "haServerAddr": "",
    }
    cluster = Cluster(broker.registry)
    await cluster.start()
    await cluster.ask_registry(RemotingCommand(RequestCode.REGISTER_BROKER, ext, body))
    try:
        yield
    finally:
        await cluster.close()


async def test_a_look_shows_what_the_others_say(broker: Broker) -> None:
    """A broker that cannot be reached is named; what is found nowhere may be there."""
    async with beside(broker, "gone", "127.0.0.1:1"):
        for words in LOOKS:
            done = CliRunner().invoke(main, [*words, "-n", broker.registry])
            assert (done.exit_code, "not at broker gone: " in done.stderr) == (1, True), (words, done.output)
            assert "What is shown is what the others say" in done.stderr or "--count" in words
            assert done.stdout or words[0] in ("client", "delayed", "dlq") or words[1] == "info", words
        done = CliRunner().invoke(main, ["group", "lag", "perhaps-there", "-n", broker.registry])
        assert (done.exit_code, "not at broker gone: " in done.stderr, done.stdout) == (1, True, "")


async def test_which_brokers_there_are_is_no_success_where_one_does_not_answer(broker: Broker) -> None:
    """A program that asked for the exit code alone took it for well."""
    async with beside(broker, "gone", "127.0.0.1:1"):
        done = CliRunner().invoke(main, ["broker", "ls", "--json", "-n", broker.registry])
        assert (done.exit_code, "penstock: not at broker gone: " in done.stderr) == (1, True), done.output
        assert [json.loads(line)["broker"] for line in done.stdout.splitlines()] == ["broker-a", "gone"]


async def test_a_dry_run_of_a_delayed_message_asks_its_own_broker(broker: Broker) -> None:
    """It failed where any other one was away, though cancelling would have been done."""
    async with beside(broker, "gone", "127.0.0.1:1"):
        with Admin(broker.registry, partial=True) as admin, Producer(broker.registry) as producer:
            queue = admin.route("read").publish_queues()[0]
            producer.send(Message("read", b"later", deliver_at_ms=time.time_ns() // 1_000_000 + 3_600_000), queue=queue)
            eventually(lambda: admin.delayed())
            (row,) = admin.delayed()
        for verb in ("cancel", "fire"):
            done = CliRunner().invoke(main, ["delayed", verb, "--dry-run", row["id"], "-n", broker.registry])
            assert (done.exit_code, done.stderr) == (0, ""), done.output
            for id_, code in (("broker-a/99", 3), ("gone/1", 1)):
                done = CliRunner().invoke(main, ["delayed", verb, "--dry-run", id_, "-n", broker.registry])
                assert (done.exit_code, "127.0.0.1:1" in done.stderr) == (code, code == 1), done.output


async def test_what_is_at_the_one_that_is_away_alone_ends_no_look_at_the_others(broker: Broker) -> None:
    """`top` ended at the first topic of a broker that hung."""
    async with beside(broker, "gone", "127.0.0.1:1", "read", "there"):
        done = CliRunner().invoke(main, ["top", "--count", "1", "-n", broker.registry])
        assert (done.exit_code, "not at broker gone: " in done.stderr) == (1, True), done.output
        assert "read" in done.stdout
        done = CliRunner().invoke(main, ["topic", "info", "read", "-n", broker.registry])
        assert (done.exit_code, "not at broker gone: " in done.stderr) == (1, True), done.output
        assert "broker-a" in done.stdout


async def test_a_tail_beside_one_that_is_away_shows_what_the_others_have(broker: Broker) -> None:
    """It showed nothing, and did not say which broker was missed."""
    async with beside(broker, "gone", "127.0.0.1:1", "read", "there"):
        with Admin(broker.registry) as admin, Producer(broker.registry) as producer:
            producer.send(Message("read", b"of a log"), queue=admin.route("read").publish_queues()[0])
            admin.change_queue("bare", "add", broker="broker-a")
            producer.send(Message("bare", b"waits"))
        run = ["--no-follow", "-n", broker.registry]
        for words, shown in (
            (["read", "--from", "first"], "of a log"),
            (["read", "--from", "0"], "of a log"),
            (["read", "--group", "g"], "of a log"),
            (["seen", "-c", "c"], "x"),
            (["bare"], ""),  # what waits for its first channel must not go with ours
        ):
            done = CliRunner().invoke(main, ["tail", *words, *run])
            assert (done.exit_code, "penstock: not at broker gone: " in done.stderr) == (1, True), (words, done.output)
            assert shown in done.stdout
        done = CliRunner().invoke(main, ["tail", "read", "--from", "first", "--limit", "1", "-n", broker.registry])
        assert (done.exit_code, done.stderr.count("not at broker gone: ")) == (1, 2)  # at once, and in the end
        for words in (["tail", "there", *run], ["export", "read", "-n", broker.registry]):
            done = CliRunner().invoke(main, words)
            assert (done.exit_code, done.stdout) == (1, ""), (words, done.output)
        done = CliRunner().invoke(main, ["tail", "there", *run])
        assert "penstock: broker gone: cannot connect to 127.0.0.1:1" in done.stderr  # its address alone says little
        with Admin(broker.registry, partial=True) as admin:
            assert [row["body"] for row in admin.browse("bare")] == ["waits"]


async def test_a_group_is_moved_and_forgotten_at_the_others(broker: Broker) -> None:
    """That one broker could not be asked was all that was said, and nothing was done."""
    async with beside(broker, "gone", "127.0.0.1:1", "read"):
        with Admin(broker.registry, partial=True) as admin, Producer(broker.registry) as producer:
            producer.send(Message("read", b"1"), queue=admin.route("read").publish_queues()[0])
            for words in (
                ["reset", "g", "read", "--to", "last"],
                ["reset", "g", "read", "--to", "0"],
                ["rm", "g", "--dry-run"],
                ["reset", "g", "read", "--to", "last", "--dry-run"],
                ["rm", "perhaps-there", "-y"],
            ):
                done = CliRunner().invoke(main, ["group", *words, "-n", broker.registry])
                assert (done.exit_code, "not at broker gone: " in done.stderr) == (1, True), (words, done.output)
                changes = words[0] == "reset" and "--dry-run" not in words
                assert ("What is done stays done" in done.stderr) == changes
                (row,) = admin.group_stats("g", "read").values()
                assert row.committed == (row.max_offset if words[-1] == "last" else 0)
            done = CliRunner().invoke(main, ["group", "rm", "g", "-y", "-n", broker.registry])
            assert (done.exit_code, "not at broker gone: " in done.stderr) == (1, True), done.output
            assert "What is done stays done" in done.stderr
            assert "g" not in admin.groups()


async def test_a_look_beside_a_broker_of_rocketmq(broker: Broker) -> None:
    """It knows no request of ours: nothing at all was shown. What RocketMQ has, too, is asked of both."""
    script = Scripted()
    for code in RequestCode:
        script.replies[code] = partial(RemotingCommand.reply, body=b"{}")
        if code > 77_000:
            script.replies[code] = partial(RemotingCommand.reply, code=3, remark=f" request type {code} not supported")
    async with peer(script.answer) as address, beside(broker, "rocketmq", address):
        for words in LOOKS:
            script.asked.clear()
            done = await asyncio.to_thread(CliRunner().invoke, main, [*words, "-n", broker.registry])
            if max(script.codes(), default=0) < 77_000:
                assert done.exit_code == 0, (words, done.output)
                continue
            assert (done.exit_code, "not at broker rocketmq: refused with code 3" in done.stderr) == (1, True), (
                done.output
            )
            assert "The broker is RocketMQ's, or an older Penstock" in done.stderr or "--count" in words
            assert done.stdout or words[0] in ("client", "delayed", "dlq") or words[1] == "info", words
        done = await asyncio.to_thread(CliRunner().invoke, main, ["topic", "ls", "-n", broker.registry])
        assert RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER in script.codes()  # it is not left alone for a minute
        assert "seen" in done.stdout


def test_a_file_is_there_once_it_is_whole(tmp_path: Path) -> None:
    """What is written in part is no export that another command takes for one, nor in the way of the next call."""
    file, part = tmp_path / "x.jsonl", tmp_path / "x.jsonl.part"

    def fail() -> None:
        with opened(str(file), False) as out:
            out.write(b"half")
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            fail()
        assert (file.exists(), part.read_bytes()) == (False, b"half")
    with opened(str(file), False) as out:
        out.write(b"whole")
    assert (file.read_bytes(), part.exists()) == (b"whole", False)
    with pytest.raises(click.UsageError), opened(str(file), False):
        pass
    link = tmp_path / "link"
    link.symlink_to(file)
    with opened(str(link), True) as out:
        out.write(b"again")
        assert file.read_bytes() == b"whole"
    assert (file.read_bytes(), link.is_symlink()) == (b"again", True)


def test_a_device_stays_one(tmp_path: Path) -> None:
    device = tmp_path / "pipe"
    os.mkfifo(device)
    reader = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    with opened(str(device), True) as out:
        out.write(b"all")
    assert (os.read(reader, 9), device.is_fifo()) == (b"all", True)
    os.close(reader)


@pytest.mark.parametrize(
    "words",
    ["top --interval", "dlq redrive g --rate", "status 127.0.0.1:1 --timeout", "bench pub --timeout"],
)
@pytest.mark.parametrize("number", ["nan", "-1", "-inf"])
def test_a_number_that_nobody_can_wait_for_is_refused_at_once(words: str, number: str) -> None:
    said = CliRunner().invoke(main, [*words.split(), number])
    assert (said.exit_code, "Invalid value" in said.output) == (2, True)


@pytest.mark.parametrize(
    "words", ["top --interval", "dlq redrive g --rate", "status 127.0.0.1:1 --timeout", "bench pub --timeout"]
)
@pytest.mark.parametrize("number", ["inf", "1e300"])
def test_nor_does_a_number_end_in_a_traceback(words: str, number: str) -> None:
    assert CliRunner().invoke(main, [*words.split(), number]).exit_code == 2


def test_a_moment_long_past_is_now_and_one_too_far_away_is_refused() -> None:
    for moment in ("1960-01-01T00:00:00+00:00", "0001-01-01T00:00:00+14:00"):
        assert due_ms(None, moment) == 0
    with pytest.raises(click.BadParameter, match="9999"):
        due_ms("999999999999d", None)


@pytest.mark.parametrize(
    "words",
    [
        "topic ls", "topic describe T", "channel ls", "channel info T c", "client ls --of T", "peek T", "dlq ls",
        "topic purge T -f", "top --count 1", "delayed ls", "delayed histogram", "config reload",
    ],
)  # fmt: skip
@pytest.mark.parametrize("said", ["nothing", "null", "a number"])
async def test_rows_that_are_not_what_is_printed_make_no_sense(words: str, said: str) -> None:
    """They ended in a traceback of whatever printed them."""
    row: object = {"nothing": {}, "null": dict.fromkeys(TOPIC | MESSAGE | DELAYED | CLIENT), "a number": 5}[said]
    script = Scripted()
    told = {name: [row] for name in ("rows", "topics", "queues", "changes", "counts")} | {"next": None}
    script.replies = {code: partial(RemotingCommand.reply, body=dumps(told)) for code in RequestCode}
    async with peer(script.answer) as address:
        for flag in ([], ["--json"]):
            result = await asyncio.to_thread(CliRunner().invoke, main, [*words.split(), "-n", address, *flag])
            assert result.exit_code == 1
            assert f"penstock: the answer of {address} makes no sense: " in result.output


def test_an_error_of_ours_is_none_of_a_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row of ours that lacks a title was told as an answer that makes no sense."""

    @click.command()
    @with_registry
    def wrong(registry: str) -> None:
        print_rows([{"a": 1}, {"b": 2}], False)

    assert isinstance(CliRunner().invoke(wrong).exception, KeyError)


def test_two_calls_do_not_write_one_file(tmp_path: Path) -> None:
    """The second emptied what the first had written, and found its own file gone when it was done."""
    file = tmp_path / "out"
    with opened(str(file), False) as out:
        out.write(b"whole")
        with pytest.raises(click.UsageError, match=r"another call is writing .*out\.part"), opened(str(file), False):
            raise AssertionError
    assert file.read_bytes() == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    (tmp_path / "out.part").write_bytes(b"what a call that was killed has left behind")
    with opened(str(file), True) as out:
        out.write(b"again")
    assert file.read_bytes() == b"again"


def test_a_file_that_is_done_while_another_call_waits_for_its_name_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part, file = tmp_path / "out.part", tmp_path / "out"
    part.write_bytes(b"whole")
    locks = iter([lambda: part.replace(file), lambda: None])

    def lock(*_: object) -> None:
        next(locks)()

    monkeypatch.setattr("fcntl.flock", lock)
    with opened(str(file), True) as out:
        assert file.read_bytes() == b"whole"
        out.write(b"new")
    assert file.read_bytes() == b"new"


def test_a_full_disk_is_said_of_which_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"out\.part"), opened(str(tmp_path / "out"), False):
        raise OSError(errno.ENOSPC, "No space left on device")
