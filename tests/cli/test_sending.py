"""`penstock send | import` as they are typed: what is sent arrives, and a typing mistake makes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cli.conftest import Run
from penstock import Producer
from penstock.cli.main import main
from penstock.cli.rows import message_of
from penstock.cli.sending import BATCH_BYTES_MAX, FILE_BATCH, Sender
from penstock.message import Message
from penstock.testing import Broker


def read(run: Run, topic: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("export", topic, "--json").split("\n") if line]


def typed(broker: Broker, *words: str, stdin: bytes = b"") -> Any:
    return CliRunner().invoke(main, [*words, "-n", broker.registry], input=stdin)


def test_arguments(run: Run) -> None:
    run("topic", "add", "orders", "--queues", "1")
    told = run(
        "send", "orders", "one", "two", "--key", "k1", "--key", "k2", "--tag", "eu", "--property", "a=b=c",
        "--sharding-key", "s", rows=True,
    )  # fmt: skip
    assert [(row["status"], row["offset"]) for row in told] == [("SEND_OK", 0), ("SEND_OK", 1)]
    for row, body in zip(read(run, "orders"), ("one", "two"), strict=True):
        assert row["body"] == body
        assert {**row["properties"], "KEYS": "k1 k2", "TAGS": "eu", "a": "b=c"} == row["properties"]
    run("send", "orders", "later", "--delay", "1h")
    assert len(run("delayed", "ls", "-t", "orders", rows=True)) == 1


def test_bytes_that_are_no_text(run: Run) -> None:
    """As a shell hands them over: Python holds them as halves of surrogate pairs."""
    run("topic", "add", "odd")
    run("send", "odd", "a\udcff\udcfe")
    assert run("tail", "odd", "--from", "first", "--no-follow", rows=True)[0]["bodyBase64"] == "Yf/+"
    for words in (("send", "odd", "x", "--key", "\udcff"), ("topic", "describe", "\udcff"), ("peek", "\udcff")):
        said = run(*words, status=2)
        assert "no text in UTF-8" in said
        assert "\n  " in said


def test_lines(broker: Broker, run: Run, tmp_path: Path) -> None:
    run("topic", "add", "lines", "--queues", "1")
    assert typed(broker, "send", "lines", stdin=b"a\n\xff\xfe\r\n\n").output == "3 sent\n"
    assert [row.get("body", row.get("bodyBase64")) for row in read(run, "lines")] == ["a", "//4N", ""]
    file = tmp_path / "in.jsonl"
    file.write_text('{"body": "x", "keys": ["k"], "properties": {"p": "1"}}\n\n{"bodyBase64": "AP8="}\n')
    assert run("send", "lines", "--file", str(file), "--jsonl", "--tag", "t") == "2 sent\n"
    rows = read(run, "lines")[3:]
    assert [row["properties"]["TAGS"] for row in rows] == ["t", "t"]
    assert (rows[0]["properties"]["KEYS"], rows[1]["bodyBase64"]) == ("k", "AP8=")
    no_messages = [
        b'{"body": 5}', b'{"body": "x", "flag": 4294967296}', b'{"body": "x", "tags": "a\\u0001"}',
        b'{"body": "x", "tags": "\\ud800"}', b'{"body": "x", "properties": {"p": "%s"}}' % (b"x" * 40_000),
    ]  # fmt: skip
    for line in no_messages:
        bad = typed(broker, "send", "lines", "--jsonl", stdin=b'{"body": "ok"}\n%s\n' % line)
        assert (bad.exit_code, "line 2: " in bad.output, "1 sent before this" in bad.output) == (1, True, True)
    assert (
        typed(broker, "send", "lines", "--batch", "50", stdin=b"".join(b"%d\n" % n for n in range(120))).exit_code == 0
    )
    assert [row["body"] for row in read(run, "lines")[-120:]] == [str(n) for n in range(120)]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("orers", "x"), 3), (("no good name", "x"), 3), (("t", "x", "--property", "a"), 2), (("t", "x", "--property", "a="), 2),
        (("t", "x", "--delay", "soon"), 2),
        (("t", "x", "--at", "2026-11-20T10:00:00"), 2), (("t", "x", "--at", "noon"), 2), (("t", "x", "--jsonl"), 2),
        (("t", "x", "--delay", "1s", "--at", "2026-11-20T10:00:00Z"), 2), (("t", "--file", "/no/such/file"), 2),
    ],
)  # fmt: skip
def test_mistakes_make_nothing(run: Run, words: tuple[str, ...], status: int) -> None:
    run("send", *words, status=status)
    assert not {row["topic"] for row in run("topic", "ls", rows=True)} & {"orers", "t"}


def test_a_new_topic_is_made_when_asked_for(run: Run) -> None:
    run("send", "fresh-log", "x", "--new")
    run("send", "fresh-queue", "x", "--kind", "queue")
    kinds = {row["topic"]: row["kind"] for row in run("topic", "ls", rows=True)}
    assert (kinds["fresh-log"], kinds["fresh-queue"]) == ("log", "queue")


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_what_export_wrote_import_reads(broker: Broker, run: Run, tmp_path: Path, kind: str) -> None:
    source, copy = f"source-{kind}", f"copy-{kind}"
    for name in (source, copy):
        run("topic", "add", name, "--kind", kind, *(["--queues", "2"] if kind == "log" else []))
    bodies = [b"text", b"\xff\x00\n", "ä\u2028".encode(), b"z" * 20_000]
    with Producer(broker.registry) as producer:
        for number, body in enumerate(bodies * 30):
            more = {"keys": (f"k{number}",), "tags": "t", "properties": {"n": str(number)}} if kind == "log" else {}
            producer.send(Message(source, body, **more))  # type: ignore[arg-type]
    file = str(tmp_path / "all.jsonl")
    run("export", source, file)
    run("export", source, file, status=2)  # not over it
    assert "would send 120 to" in run("import", file, "--to", copy, "--dry-run")
    assert read(run, copy) == []
    assert run("import", file, "--to", copy) == f"sent 120 to {copy}\n"

    def shape(topic: str) -> list[Any]:
        rows = read(run, topic)
        return [
            (row.get("queue"), row.get("body"), row.get("bodyBase64"), {**row.get("properties", {}), "UNIQ_KEY": ""})
            for row in sorted(rows, key=lambda row: (row.get("queue", 0), row.get("offset", 0)))
        ]

    def own(found: list[Any]) -> list[Any]:
        return [(*row[:3], {k: v for k, v in row[3].items() if k in ("KEYS", "TAGS", "n")}) for row in found]

    assert own(shape(copy)) == own(shape(source))
    assert len(shape(copy)) == 120


def test_an_import_that_fails_says_where(broker: Broker, run: Run, tmp_path: Path) -> None:
    run("topic", "add", "into", "--queues", "1")
    file = tmp_path / "x.jsonl"
    file.write_text('{"topic": "into", "body": "1"}\n{"topic": "into", "body": "2"}\n{"topic": "itno", "body": "3"}\n')
    assert "no broker serves topic 'itno'" in run("import", str(file), status=3)
    assert "itno" not in run("topic", "ls")
    file.write_text('{"topic": "into", "body": "1"}\n{"body": "2"}\n')
    assert "line 2: it names no topic" in run("import", str(file), "--batch", "1", status=1)
    assert run("import", str(file), "--skip", "1", "--to", "into") == "sent 1 to into\n"


def test_an_import_of_nothing_says_so(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.write_text("\n")
    assert run("import", str(file)) == f"nothing to send: {file} has no message\n"
    file.write_text('{"topic": "into", "body": "1"}\n')
    assert run("import", str(file), "--skip", "1") == f"nothing to send: {file} has no message behind line 1\n"
    assert run("import", str(file), "--skip", "1", rows=True) == []


def test_what_stands_before_a_bad_line_is_sent(broker: Broker, run: Run, tmp_path: Path) -> None:
    """The error says so, and `--skip` passes over it."""
    for name in ("before-a", "before-b"):
        run("topic", "add", name, "--queues", "1")
    file = tmp_path / "bad.jsonl"
    rows = [json.dumps({"topic": f"before-{'aab'[number % 3]}", "body": str(number)}) for number in range(9)]
    file.write_text("\n".join([*rows, "no JSON"]))
    said = run("import", str(file), "--batch", "4", status=1)
    assert "9 sent of what stands up to line 9: go on with --skip 9" in said
    assert [len(read(run, name)) for name in ("before-a", "before-b")] == [6, 3]
    run("send", "before-b", "--jsonl", "--batch", "4", "--file", str(file), status=1)
    assert len(read(run, "before-b")) == 3 + 9


def test_a_failing_or_interrupted_import_says_up_to_where_all_is_sent(
    broker: Broker, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not up to where it was read: what waits for its batch is not sent."""
    for name in ("half-a", "half-b"):
        run("topic", "add", name, "--queues", "1")
    file = tmp_path / "half.jsonl"
    names = ("half-b", *["half-a"] * 5, "itno")
    file.write_text(
        "".join(json.dumps({"topic": name, "body": str(number)}) + "\n" for number, name in enumerate(names))
    )
    assert "4 sent of what stands up to line 0: " in run("import", str(file), "--batch", "4", status=3)
    file.write_text("".join(json.dumps({"topic": "half-a", "body": str(number)}) + "\n" for number in range(6)))
    add = Sender.add

    def pressed(sender: Sender, message: Message, queue: Any, line: int = 0) -> None:
        if message.body == b"5":
            raise KeyboardInterrupt
        add(sender, message, queue, line)

    monkeypatch.setattr(Sender, "add", pressed)
    assert "4 sent of what stands up to line 4: " in run("import", str(file), "--batch", "4", status=130)


class Recorder:
    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []

    def send(self, message: Message, queue: object = None) -> None:
        self.sent.append([message.body])

    def send_batch(self, messages: list[Message], queue: object = None) -> None:
        self.sent.append([message.body for message in messages])


def test_a_file_is_sent_in_batches_and_an_error_comes_at_its_line(
    broker: Broker, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    send_batch = Producer.send_batch

    def counted(producer: Producer, messages: list[Message], **given: Any) -> Any:
        batches.append(len(messages))
        return send_batch(producer, messages, **given)

    monkeypatch.setattr(Producer, "send_batch", counted)
    run("topic", "add", "from-file", "--queues", "1")
    file = tmp_path / "lines"
    lines = [str(number) for number in range(2 * FILE_BATCH + 50)]
    file.write_text("\n".join(lines))
    assert run("send", "from-file", "--file", str(file)) == "250 sent\n"
    assert batches == [FILE_BATCH, FILE_BATCH, 50]
    assert [row["body"] for row in read(run, "from-file")] == lines
    batches.clear()
    run("send", "from-file", "--file", str(file), "--batch", "1")
    assert typed(broker, "send", "from-file", stdin=b"a\nb\n").output == "2 sent\n"  # somebody may be typing
    assert batches == []
    lines[130] = "x" * (5 << 20)  # more than a broker takes
    file.write_text("\n".join(lines))
    before = len(read(run, "from-file"))
    bad = typed(broker, "send", "from-file", "--file", str(file))
    assert bad.exit_code != 0
    assert "130 sent before this" in bad.output
    assert [row["body"] for row in read(run, "from-file")[before:]] == lines[:130]


def test_batches_end_where_they_must() -> None:
    recorder = Recorder()
    sender = Sender(recorder, 3)  # type: ignore[arg-type]
    large = b"x" * BATCH_BYTES_MAX
    later = Message("t", b"later", deliver_at_ms=9)
    sender.send(
        [Message("t", b"1"), later, Message("t", b"2"), Message("u", b"3"), Message("u", large), Message("u", b"4")]
    )
    assert recorder.sent == [[b"1"], [b"later"], [b"2"], [b"3", large], [b"4"]]


@pytest.mark.parametrize("words", [("send", "sharded-send", "--jsonl", "--batch", "50", "--file"), ("import",)])
def test_messages_with_one_sharding_key_go_to_one_queue_in_batches_too(
    run: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    topic = f"sharded-{words[0]}"
    run("topic", "add", topic, "--queues", "8")
    file = tmp_path / "sharded.jsonl"
    rows = [{"topic": topic, "body": str(n), "shardingKey": f"k{n // 2 % 10}"} for n in range(80)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(*words, str(file))
    found = {(row["properties"]["__SHARDINGKEY"], row["queue"]) for row in read(run, topic)}
    assert len(found) == 10
    assert len({queue for _, queue in found}) > 1


@pytest.mark.parametrize("words", [("export",), ("dlq", "export")])
def test_a_message_larger_than_a_page_is_exported_whole(tmp_path: Path, words: tuple[str, ...]) -> None:
    with Broker(tmp_path / "data", max_msg_size=10 << 20, max_body_size=10 << 20) as broker:
        CliRunner().invoke(main, ["topic", "add", "large.c.dead", "--kind", "queue", "-n", broker.registry])
        bodies = [b"before", b"\xff" * (9 << 20), b"behind"]
        with Producer(broker.registry, kind="queue") as producer:
            for body in bodies:
                producer.send(Message("large.c.dead", body))
        file = tmp_path / "large.jsonl"
        done = CliRunner().invoke(main, [*words, "large.c.dead", str(file), "-n", broker.registry])
        assert done.output == f"3 written to {file}\n"
        found = [message_of(json.loads(line), "t", 0).body for line in file.read_bytes().splitlines()]
        assert found == bodies
