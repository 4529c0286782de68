"""Whether Spark has ended a task's input, or its rows have ended."""

from __future__ import annotations

import io
import os
import socket
from types import FunctionType
from typing import Any

import pytest

from penstock.spark.write.taskinput import is_whole


def main(infile: Any, outfile: Any) -> bool | None:
    """As in Spark's worker, far above the sink."""
    below = [lambda: [is_whole() for _ in "1"]]
    return below[0]()[0]


worker = FunctionType(main.__code__, {**globals(), "__name__": "pyspark.worker"})


def test_a_connection_that_has_ended_behind_rows_that_were_read() -> None:
    here, spark = socket.socketpair()
    with here, spark, os.fdopen(os.dup(here.fileno()), "rb", 65_536) as infile:
        spark.sendall(b"rows")
        assert infile.read(4) == b"rows"
        assert worker(infile, None) is True
        spark.sendall(b"what Spark says behind the rows")
        assert worker(infile, None) is True
        spark.shutdown(socket.SHUT_WR)
        assert worker(infile, None) is False


@pytest.mark.parametrize("infile", [io.BytesIO(), None])
def test_where_it_cannot_be_told(infile: io.BytesIO | None) -> None:
    assert is_whole() is None
    assert worker(infile, None) is None
