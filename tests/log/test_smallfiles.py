"""`log.smallfiles`, and with it `penstock store inspect` of every file that a broker with all there is leaves behind."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

import penstock
from client.test_staging import stage as stage_rows
from fronts.nsq_peer import NsqPeer
from penstock.cli.main import main
from penstock.client.results import Reject
from penstock.client.staging import SinkRun, StageClient
from penstock.log import smallfiles
from penstock.log.verify import inspect
from polling import eventually


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a replica set with topics of every level, delayed, deferred, dead and staged messages, traces, retention, users."""
    folder = tmp_path_factory.mktemp("every")
    ports = [f"--{name}-port=0" for name in ("remoting", "nsq", "http", "registry", "lookup", "lookup-http")]
    command = [
        sys.executable, "-m", "penstock.cli", "up", "--data", str(folder), "--replicas", "2", *ports,
        "--set", "mem_queue_size=10", "--set", "max_attempts=1",
    ]  # fmt: skip

    def refuse(message: object) -> None:
        raise Reject("no")

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process, ExitStack() as stack:
        stack.callback(process.kill)  # whatever goes wrong, nobody waits for it
        assert process.stdout is not None
        at = json.loads(process.stdout.readline().removeprefix(b"ready "))
        registry = at["registry"]

        def post(target: str, body: bytes = b"") -> None:
            urllib.request.urlopen(urllib.request.Request(f"http://{at['http']}{target}", body, method="POST")).read()

        with penstock.Producer(registry) as producer, penstock.Admin(registry) as admin:
            for n in range(20):
                producer.send(penstock.Message("orders", b"%d" % n, keys=(f"k{n}",), tags="t"))
            producer.send(penstock.Message("orders", b"later", deliver_at_ms=time.time_ns() // 1_000_000 + 3_600_000))
            admin.keep_topic("orders", retention_ms=3_600_000, trace=True)
            for level in ("memory", "os", "disk"):
                admin.change_queue(level, "add", level=level)
                admin.change_queue(level, "add", channel="c")
                post(f"/mpub?topic={level}", b"\n".join(b"%d" % n for n in range(100)))
            post("/pub?topic=os&defer=3000000", b"deferred")
            with penstock.PushConsumer("g", registry, listener=refuse, start="first") as consumer:
                consumer.subscribe("orders")
                eventually(lambda: "%DLQ%g" in admin.topics(system=True))
            peer = NsqPeer(at["nsq"])
            peer.subscribe(b"os", b"c", 1)
            peer.send(b"REQ " + peer.message().id + b" 0\n")
            peer.close()
            admin.purge_topic("orders", 2)
            with StageClient(registry, patience_s=60) as client:
                stage_rows(client, SinkRun("sink", "query", "run"), 0, [b"row"] * 30, "staged")
        eventually(lambda: any(folder.rglob("ha/confirmed")))
        process.terminate()
        assert process.wait(60) == 0
    assert CliRunner().invoke(main, ["user", "add", "root", "admin", "--data", str(folder)]).exit_code == 0
    return folder


def test_every_file_of_a_folder(folder: Path) -> None:
    kinds: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            done = CliRunner().invoke(main, ["store", "inspect", str(path)])
            assert (done.exit_code, done.exception) == (0, None), (path, done.output, done.exception)
            rows = [json.loads(line) for line in done.output.splitlines()]
            assert "damage" not in {row["kind"] for row in rows}, (path, rows)
            kinds.setdefault(path.name, set()).update(str(row["kind"]) for row in rows)
    assert len(kinds) >= 30
    assert kinds["epochs"] == {"epoch"}
    assert kinds["confirmed"] == {"confirmed"}
    assert kinds["users.toml"] == {"user"}
    (staged,) = (folder / "staging").iterdir()
    assert kinds[staged.name] == {"header", "chunk", "piece", "seal"}
    done = CliRunner().invoke(main, ["store", "verify", str(folder)])
    assert done.exit_code == 0, done.output


def test_no_secret_is_shown(folder: Path) -> None:
    (row,) = inspect(folder / "users.toml")
    assert row == {"kind": "user", "name": "root", "rights": ["admin"]}


def test_what_is_staged(folder: Path) -> None:
    (staged,) = (folder / "staging").iterdir()
    rows = list(inspect(staged))
    assert sum(int(str(row["messages"])) for row in rows if row["kind"] == "piece") == 30
    assert [row["rows"] for row in rows if row["kind"] == "seal"] == [30]
    assert rows[0]["sink"] == "sink"


@pytest.mark.parametrize("name", ["ha/epochs", "ha/confirmed", "staging", "users.toml"])
def test_damage_is_said(folder: Path, tmp_path: Path, name: str) -> None:
    """Cut at any place, or with a byte turned: one line says so, and nothing is raised."""
    source = next((folder / "staging").iterdir()) if name == "staging" else next(folder.rglob(name))
    copy = tmp_path / ("staging" if name == "staging" else Path(name).parent) / source.name
    copy.parent.mkdir(exist_ok=True)
    whole = source.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        copy.write_bytes(whole[:at])
        list(inspect(copy))
        copy.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        rows = list(inspect(copy))
        assert rows[-1]["kind"] == "damage" or name == "users.toml", (at, rows)
    shutil.rmtree(copy.parent if copy.parent != tmp_path else copy, ignore_errors=True)


def test_what_is_none_of_them(tmp_path: Path) -> None:
    for name in ("epochs", "confirmed", "abcdef0123", "other"):
        assert smallfiles.inspect(tmp_path / name) is None
