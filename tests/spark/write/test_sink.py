"""The sink's writers: what is asked of them before a row is sent."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.errors import ConfigError

pytest.importorskip("pyspark")

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
