"""A process of ours: it stops at SIGTERM, or when a descriptor ends; its log says who speaks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from penstock.config import BrokerConfig
from penstock.serve import run
ports = {f"{name}_port": -1 for name in ("remoting", "http")}
run(BrokerConfig(data=sys.argv[1], nsq_port=0, **ports), None, ends_with=0, log_as="100%")
"""


@pytest.mark.parametrize("how", ["term", "int", "end of input"])
def test_a_process_stops_cleanly(tmp_path: Path, how: str) -> None:
    read, write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdin=read, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(read)
    assert process.stdout is not None
    assert process.stdout.readline().startswith('ready {"nsq": "127.0.0.1:')
    os.write(write, b"what is said meanwhile is nothing to it")
    if how != "end of input":
        process.send_signal(signal.SIGTERM if how == "term" else signal.SIGINT)
    else:
        os.close(write)
    _, log = process.communicate(timeout=60)
    if how != "end of input":
        os.close(write)
    assert process.returncode == 0
    assert " INFO 100% penstock.serve stopping" in log
    assert oct((tmp_path / "store.json").stat().st_mode & 0o777) == "0o600"
    assert "Traceback" not in log
