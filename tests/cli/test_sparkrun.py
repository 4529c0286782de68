"""How a command of `penstock spark` ends: the cause on one line, and what to do about it on the next."""

from __future__ import annotations

import errno
import os
from typing import Any

import click
import pytest
from click.testing import CliRunner

from penstock.cli.sparkrun import fail, on_spark, run_job
from penstock.errors import ConfigError, NoRoute


@pytest.mark.parametrize(
    ("error", "text", "hint"),
    [
        (ConfigError("this cannot be", "try that"), "this cannot be", "try that"),
        (NoRoute("no broker serves it"), "no broker serves it", "is the topic's name right"),
        (PermissionError("denied\nmore"), "denied", "can this user read and write there"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "[Errno 28] No space left on device", "the disk is full"),
        (ModuleNotFoundError("no pyspark"), "no pyspark", "pip install"),
        (ValueError(), "ValueError", "penstock spark doctor"),
    ],
)
def test_two_lines(error: Exception, text: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        fail(error)
    assert ended.value.code == 1
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"penstock: {text}"
    assert hint in second


class Result:
    def as_dict(self) -> dict[str, object]:
        return {"rows": 5}


def command(**more: Any) -> click.Command:
    @click.command()
    @on_spark
    def job(master: str | None) -> None:
        run_job("a job", "rows", master, True, lambda spark, say: Result(), **more)

    return job


def test_without_spark_a_job_runs_in_this_process() -> None:
    told = CliRunner().invoke(command(), ["--master", "none", "--conf", "a=b"])
    assert (told.exit_code, told.stdout) == (0, '{"rows": 5}\n')


def test_what_needs_spark_says_so() -> None:
    told = CliRunner().invoke(command(needs_spark=True), ["--master", "none"])
    assert told.exit_code == 1
    assert "leave --master none out" in told.output
    assert CliRunner().invoke(command(), ["--conf", "ab"]).exit_code == 2
