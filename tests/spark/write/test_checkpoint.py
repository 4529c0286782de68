"""What the sink reads and keeps in the checkpoint of a query, and what that is good for."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.disk import tables
from penstock.spark.write.checkpoint import NOTE, Checkpoint
from polling import eventually
from ports import free_port


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As Spark begins one."""
    found = tmp_path / "a checkpoint"
    (found / "offsets").mkdir(parents=True)
    (found / "metadata").write_text('{"id":"7d7d8a4e-0f0e-4d3d-8a3c-2a8f5f7f4a11"}')
    return found


def test_it_says_when_a_batch_was_planned(folder: Path) -> None:
    (folder / "offsets" / "7").write_text('v1\n{"batchWatermarkMs":0,"batchTimestampMs":1795172400123,"conf":{}}\n{}')
    (folder / "offsets" / "8").write_text("v1\n[]\n{}")
    (folder / "offsets" / "9").write_text("")
    for location in (str(folder), folder.as_uri(), f"file:{str(folder).replace(' ', '%20')}"):
        assert Checkpoint(location).planned_ms(7) == 1_795_172_400_123
    for location, batch in ((str(folder), 6), (str(folder), 8), (str(folder), 9), (f"s3a://{folder}", 7), ("", 7)):
        assert Checkpoint(location).planned_ms(batch) is None


def test_it_says_which_batch_was_planned_last(folder: Path) -> None:
    assert Checkpoint(str(folder)).newest_planned() == {}
    for batch in (9, 10):
        text = f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":{1000 + batch},"conf":{{}}}}\n{{}}'
        (folder / "offsets" / str(batch)).write_text(text)
    (folder / "offsets" / ".11.crc").write_text("")
    assert Checkpoint(folder.as_uri()).newest_planned() == {10: 1010}
    (folder / "offsets" / "11").write_text("")
    for location in (str(folder), f"s3a://{folder}", "", "/no/such/folder"):
        assert Checkpoint(location).newest_planned() == {}


def test_it_keeps_who_decides(folder: Path) -> None:
    checkpoint = Checkpoint(folder.as_uri())
    assert checkpoint.deciders() == {}
    checkpoint.note_decider("s", "broker-a")
    assert checkpoint.deciders() == Checkpoint(str(folder)).deciders() == {"s": "broker-a"}
    before = (folder / NOTE).stat().st_ino
    checkpoint.note_decider("s", "broker-a")
    assert (folder / NOTE).stat().st_ino == before  # nothing is written for each batch
    checkpoint.note_decider("sum", "broker-b")  # as the table's own last field is called
    assert checkpoint.deciders() == {"sum": "broker-b"}
    (folder / NOTE).write_bytes(b"\0" * 40)
    assert checkpoint.deciders() == {"s": "broker-a"}  # the former one
    (folder / NOTE).with_name(NOTE + ".bak").unlink()
    assert checkpoint.deciders() == {}


def test_a_folder_that_is_not_sparks_is_left_alone(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A path of another file system may be one here, too."""
    for location in (str(tmp_path / "none"), str(tmp_path), f"hdfs://{folder}", ""):
        Checkpoint(location).note_decider("s", "broker-a")
        assert Checkpoint(location).deciders() == {}
    assert sorted(path.name for path in tmp_path.iterdir()) == [folder.name]
    assert not caplog.records
    (folder / NOTE).mkdir()
    Checkpoint(str(folder)).note_decider("s", "broker-a")
    assert "cannot note that broker broker-a decides for sink s" in caplog.text


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """One that outlives its brokers."""
    port = free_port()
    command = [sys.executable, "-m", "penstock.cli", "registry", "--data", str(tmp_path / "registry")]
    command += ["--registry-port", str(port), "--lookup-port", "-1", "--lookup-http-port", "-1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        yield f"127.0.0.1:{port}"
        process.terminate()


def test_a_broker_that_was_away_all_the_time_does_not_decide_anew(registry: str, tmp_path: Path, folder: Path) -> None:
    """The rows were there twice: nobody else knew that the batch was published, and by whom."""
    pytest.importorskip("pyspark")
    import pyarrow as pa

    from client.conftest import SMALL, Cluster
    from client.test_staging import contents
    from penstock.client.staging import SinkRun, StageClient
    from penstock.errors import ClientError, NoRoute
    from penstock.spark.write import options as sinkoptions
    from penstock.spark.write import sink

    def brokers(*names: str) -> None:
        def known() -> bool:
            with contextlib.suppress(ClientError):  # the registry may not listen yet
                return set(client.masters_now()) == set(names)
            return False

        with StageClient(registry) as client:
            eventually(known, say=f"not {names} are registered")

    def run(name: str, batch: int, patience_ms: int = 30_000) -> None:
        """A run of the query, in a driver of its own: it writes the batch."""
        for client in sink._clients.values():
            client.close()
        sink._clients.clear()
        options = sinkoptions.parse({"registry": registry, "topic": "T", "sendTimeoutMs": str(patience_ms)})
        who = SinkRun("query", "query", name, decider=Checkpoint(str(folder)).deciders().get("query", ""))
        staged = sink.write(options, who, batch, 0, iter([pa.RecordBatch.from_pydict({"value": [b"a", b"b"]})]))
        sink.commit(options, [staged], batch, str(folder))

    one, other = (
        Cluster(tmp_path / name / "data", SMALL | {"broker_name": name}, registry) for name in ("one", "other")
    )
    for broker in (one, other):
        broker.data.parent.mkdir()
    try:
        one.start()
        brokers("one")
        run("run-1", 0)
        one.stop(signal.SIGKILL)
        other.start()
        brokers("other")
        with pytest.raises(NoRoute, match="broker one decides for sink query and is away: start it again"):
            run("run-2", 0, 200)
        one.start()
        brokers("one", "other")
        run("run-3", 0)
        run("run-4", 1)
        assert sorted(contents(registry)) == [b"a", b"a", b"b", b"b"]
    finally:
        one.stop()
        other.stop()
    assert tables.parse((folder / NOTE).read_text())["broker"] == "one"
