"""The sink's writers: what is asked of them before a row is sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import ConfigError

pytest.importorskip("pyspark")

from penstock.client.staging import Sealed, SinkRun
from penstock.spark.write import sink
from penstock.spark.write.sink import batch_writer, stream_writer


def rows(*names: str) -> Any:
    kind = SimpleNamespace(simpleString=lambda: "string")
    return SimpleNamespace(fields=[SimpleNamespace(name=name, dataType=kind) for name in names])


@pytest.mark.parametrize("make", [batch_writer, stream_writer])
def test_what_cannot_be_written_is_said_at_once(make: Any) -> None:
    with pytest.raises(ConfigError, match="no column value"):
        make({"topic": "t"}, rows("key"), False)
    with pytest.raises(ConfigError):
        make({"topic": "t"}, rows("value"), True)
    assert make({"topic": "t"}, rows("value"), False) is not None


def test_a_table_of_the_catalog_is_not_written_to() -> None:
    """Spark 4.3 gives its options to nobody: the rows went to the topics they name at the default registry."""
    with pytest.raises(ConfigError, match="cannot be written to"):
        batch_writer({}, rows("value", "topic"), False)


@pytest.mark.parametrize("undecided", [True, False])
def test_an_abort_drops_only_what_is_not_decided(undecided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark aborts behind a commit that has failed, too: the batch may be published at one broker, and wait at another."""
    done: list[str] = []
    client = SimpleNamespace(
        undecided=lambda run, batch: undecided,
        drop=lambda run, sealed: done.append("drop"),
        drop_all=lambda run: done.append("drop_all"),
    )
    monkeypatch.setattr(sink, "client_of", lambda options: client)
    staged = sink.Staged(SinkRun("s", "q", "r"), 3, 0, Sealed("t", 1, 1, ("b",)))
    stream_writer({"topic": "t"}, rows("value"), False).abort([staged, None], 3)
    batch_writer({"topic": "t"}, rows("value"), False).abort([staged])
    assert done == (["drop", "drop_all"] if undecided else [])
